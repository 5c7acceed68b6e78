"""The tables, figures and numbers of docs/analysis.md and docs/rounds.md are those of benchmarks/results."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import figures
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import analysis
import rivals
import top_k

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
FILMS = DATA / "movietweetings_100k.parquet"
PAGE = ROOT / "docs" / "analysis.md"


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- table " in text
    assert figures.filled(text) == text


def test_every_table_is_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in figures.PAGES)
    assert sorted(re.findall(r"<!-- table (\w+) -->", text)) == sorted(figures.tables())


def test_figures_are_those_of_the_results() -> None:
    """The converter's measures of text differ by the fonts of a machine, so the text alternatives are compared."""
    page = PAGE.read_text(encoding="utf-8")
    for chart in figures.charts():
        drawn = (figures.IMAGES / f"{chart.name}.svg").read_text(encoding="utf-8")
        assert f">{html.escape(chart.words)}</desc>" in drawn
        assert f"](images/{chart.name}.svg)" in page
    assert len(list(figures.IMAGES.glob("analysis-*.svg"))) == len(figures.charts())


def test_labels_keep_their_distance_and_their_order() -> None:
    assert figures.apart([0.5, 0.1], 0.1) == [0.5, 0.1]
    moved = figures.apart([0.0, 0.01, 0.02, 0.5, 0.52], 0.1)
    assert moved == pytest.approx([0.05, 0.15, 0.25, 0.46, 0.56])


def test_plans_of_the_results_are_those_of_the_planner() -> None:
    """Some of each part, computed again."""
    found = figures.computed()
    for k, m, way in ((100, 50, "tuned"), (1_000, 10, "sqrt k"), (1_000, 250, "paper")):
        row = next(r for r in found.shared if (r.k, r.m, r.way) == (k, m, way))
        assert (row.noise, row.tau) == pytest.approx(analysis.ratios(k, m, way), rel=1e-5)
    assert analysis.crossing(100) in found.crossings
    rows, curves = analysis.paper_rows(0.35, 10)
    assert_equal([r for r in found.paper if (r.epsilon, r.k) == (0.35, 10)], rows)
    assert [c.analysis for c in found.curves if c.k == 10] == [c.analysis for c in curves]
    both = next(r for r in found.both if (r.k, r.m) == (1_000, 250))
    assert vars(both) == pytest.approx(vars(analysis.both_limits(1_000, 0.25)), rel=1e-5)
    assert_equal([r for r in found.discrete if (r.epsilon, r.k) == (2.0, 10)], analysis.discrete_noise(2.0, 10))


def assert_equal(
    stored: Sequence[analysis.PaperRow | analysis.Discrete],
    computed: Sequence[analysis.PaperRow | analysis.Discrete],
) -> None:
    """Up to what the planner's searches leave open."""
    for one, other in zip(stored, computed, strict=True):
        assert (one.noise, one.tau) == pytest.approx((other.noise, other.tau), rel=1e-5)


@pytest.mark.skipif(not FILMS.exists(), reason="no real data: see docs/analysis.md")
def test_rivals_of_the_results_are_those_of_the_benchmarks() -> None:
    """Those with fixed seeds give the same numbers again."""
    pairs = rivals.read_pairs(FILMS)
    truth = pairs.sum_by_item()
    keys = []
    for run in range(3):
        order = pairs.shuffled(np.random.default_rng(run))
        generator = np.random.default_rng([run, 0])
        keys.append(rivals.score(rivals.weighted_gaussian(order, 1.0, generator, limit=100), truth).keys)
    row = figures.results("rivals", figures.Rivals).of("films")["Weighted Gaussian, as published"]
    assert row.keys.mean == np.mean(keys)
    counts, budget = np.sort(truth.astype(np.int64))[::-1], top_k.Budget(1.0, 1e-6)
    for name, choices in top_k.rivals_of(counts, 100, budget).items():
        if not name.startswith("dphist"):
            scores = [
                top_k.mean_score([top_k.score(run(seed), counts, 100) for seed in range(9)]) for run in choices
            ]
            best = max(scores, key=lambda one: one.recall)
            stored = figures.top_results().row("films", 1.0, 100, name)
            assert stored is not None
            assert (stored.recall, stored.captured) == pytest.approx((best.recall, best.captured)), name


def test_sentences_of_the_page_are_those_of_the_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for sentence in sentences():
        assert sentence in text, sentence


def recall(data: str, k: int, algorithm: str) -> str:
    row = figures.top_results().row(data, 1.0, k, algorithm)
    assert row is not None
    return f"{100 * row.recall:.0f} %"


def sentences() -> Iterator[str]:
    found = {data: figures.results("rivals", figures.Rivals).of(data) for data in figures.COLOURS}
    published = [name for name in found["films"] if re.search("as published|degree 50|first round", name)]
    hindsight = [name for name in found["films"] if name.endswith("best")]

    def keys(data: str, names: list[str]) -> str:
        return f"{max(figures.value(found[data][name].keys) for name in names):,.0f}"

    def both(data: str) -> tuple[str, str]:
        return keys(data, published), keys(data, ["dphist"])

    films, products, words, common = (both(data) for data in figures.COLOURS)
    yield f"at most {films[0]} films for its {films[1]}, {products[0]} products for {products[1]}, and {common[0]}"
    yield f"items of the common job for {common[1]}. On words"
    yield f"On words, Policy Gaussian finds {words[0]} for {words[1]}; with `--goal keys`"
    fewer = 1 - figures.value(found["words"]["dphist"].keys) / float(words[0].replace(",", ""))
    yield f"three of four data sets, and {100 * fewer:.0f} % fewer on the fourth"
    yield f"`--goal keys` dphist finds {keys('words', ['dphist, goal keys'])}."
    best = [keys(data, hindsight) for data in figures.COLOURS]
    yield f"takes the best of the others to {best[0]}, {best[1]} and {best[3]}, and to {best[2]} words."
    far = [
        figures.value(one["PipelineDP, best cap"].error) / figures.value(one["dphist"].error)
        for one in found.values()
    ]
    yield f"PipelineDP is {100 * min(far) - 100:.0f} to {100 * max(far) - 100:.0f} % farther from the truth"
    rounds = [row for row in figures.results("rounds", figures.Rounds).rows if row.goal == "accuracy"]
    real = [row.intervals for row in rounds if row.data in (*figures.DATA, "common job")]
    yield f"their margins hold the truth in {100 * min(real):.0f} to {100 * max(real):.0f} % of cases"
    held = sorted(row.intervals for row in rounds)[1:]
    yield f"On {len(rounds)} data sets it is between {100 * held[0]:.0f} and {100 * held[-1]:.0f} % on all but one"
    few, many = (
        1 - top_k.top_plan(k, top_k.Budget(1.0, 1e-6), "opposite").total_noise
        / top_k.top_plan(k, top_k.Budget(1.0, 1e-6), "independent").total_noise
        for k in (10, 10_000)
    )  # fmt: skip
    yield f"{100 * few:.0f} % less noise at K = 10, {100 * many:.0f} % at K = 10,000"
    yield f"at K = 10 on products it finds {recall('products', 10, 'dphist --top')}, limited domain "
    yield f"limited domain {recall('products', 10, 'Limited domain')}. It has"
    yield f"the rest is free: {recall('products', 10, 'dphist --top 3K, K largest')}, with counts."
    thirty = [recall("products", 30, name) for name in ("Limited domain", "dphist --top 3K, K largest")]
    yield f"remains ahead on products, {thirty[0]} to {thirty[1]},"
    thousand = [recall("words", 1_000, name) for name in ("dphist rounds, K largest", "Limited domain")]
    yield f"Of the 1,000 most common words they find {thousand[0]}, limited domain {thousand[1]}."
    listed = [recall("products", 30, name) for name in ("Peeling, known items", figures.LISTED)]
    yield f"(products, K = 30: {listed[0]} to {listed[1]})"
    least = min(r.both / min(r.top, r.limit) for r in figures.computed().both if r.k == 10_000)
    yield f"by up to {100 - 100 * least:.0f} % near M = K/4 for K = 10,000"
    tuned = {r.k: r for r in figures.computed().shared if r.way == "tuned" and r.m == r.k}
    ratios = [figures.paper_row(k, "exact").tau / figures.paper_row(k, "csh-tighter").tau for k in (51_914, 10)]
    yield f"lower by {100 - 100 * ratios[0]:.0f} to {100 - 100 * ratios[1]:.0f} % on the paper's own figure"
    gshm = {
        (k, name): 100 - 100 * figures.paper_row(k, name).tau / figures.paper_row(k, "gshm-exact").tau
        for k in (10, 51_914)
        for name in ("csh-tighter", "exact")
    }
    yield (
        f"For k = 10, the paper's best analysis lowers the GSHM's threshold by {gshm[10, 'csh-tighter']:.0f} %, "
        f"the exact one by {gshm[10, 'exact']:.0f} %; for k = 51,914 by {gshm[51_914, 'csh-tighter']:.0f} % and "
        f"{gshm[51_914, 'exact']:.0f} %."
    )
    assert tuned[10].tau == pytest.approx(1 - gshm[10, "exact"] / 100, rel=1e-5)
    most = max(max(r.noise, r.tau) for r in figures.computed().discrete if r.way == "dphist")
    yield f"costs at most {100 * most - 100:.2f} %"
    theorem = [r for r in figures.computed().discrete if r.k == 51_914]
    loss = {r.way: 100 * r.noise - 100 for r in theorem}
    yield f"pays {loss['theorem, printed']:.0f} % more noise with the conversion that it prints"
    yield f"that it prints, {loss['theorem, tight']:.0f} % with the tight one"


def test_citations_are_those_of_the_citation_file() -> None:
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    names = "title|name|family-names|given-names|year|volume|doi|license|collection-title"
    fields = re.findall(rf'^ *(?:- )?(?:{names}): "?([^"\n]*)"?$', cited, re.MULTILINE)
    fields += re.findall(r"arXiv:(\S+)", cited)
    assert len(fields) == 14
    for field in fields:
        assert field in page, field
