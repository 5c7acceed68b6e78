"""What a report says is what an independent computation says, and no true count is in it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import dphist
from dphist.display import raised
from dphist.planning.certify import delta_at
from dphist.privacy.noise import LaplaceNoise
from dphist.privacy.types import Budget
from dphist.report.charts import charts_of
from dphist.report.data import data_of
from dphist.report.facts import Facts
from dphist.report.making import FORMATS, render, report_facts
from dphist.report.promise import DELTAS, SLACK, at_most, moved, one_in, promise
from report_cases import BUDGET, COUNTS, FOLDER, KINDS, Page, made, released

DOCS = Path(__file__).resolve().parents[2] / "docs" / "report.md"
# Their parts are in others as well.
SLOW = ("top-k, independent", "lower threshold", "duckdb")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in KINDS]
)
def test_every_kind_of_release_has_every_format(name: str) -> None:
    facts = made(name)[1]
    assert facts.private
    assert facts.certificate is not None
    certificate = json.loads(facts.certificate)
    assert facts.rows.total == certificate["output"]["rows"]
    for format in FORMATS:
        text = render(facts, format)
        assert facts.certificate_name in text or format != "html"
        # Every format names the certificate, tells it from others, and says how it is verified.
        for said in (dict(facts.sealed)["certificate"], certificate["self_sha256"], "dphist verify"):
            assert said in text.replace("\\", ""), (format, said)
        assert "nan" not in re.findall(r"[a-z]+", said_by_the_report(text))
    check_data(facts, name)
    assert {"guarantee"} <= {chart.name for chart in charts_of(facts)}
    sizes, receipt = facts.sizes is not None, bool(facts.receipt)
    assert (sizes, receipt) == (name == "chosen cap", name == "booked")
    assert (facts.selection is None) == (name == "known-domain")
    for said in (facts.title, facts.lead, dict(facts.about)["counted"]):
        assert ("the sum of amount and the mean of amount" in said) == (name == "sums")


def said_by_the_report(text: str) -> str:
    """A report without what chance writes into it, where any three letters may stand together: names of
    temporary folders, and digests and the certificate in base 64."""
    plain = text.split("<script")[0].replace("\\", "")
    return without_digests(plain).replace(FOLDER.name, "")


def without_digests(text: str) -> str:
    return re.sub(r"(base64,|sha256-)[A-Za-z0-9+/=]+|\b[0-9a-f]{64}\b", "", text)


def test_chance_does_not_write_what_is_looked_for() -> None:
    for by_chance in (f"{FOLDER.name}/1", "base64,cy0wMF9nanFfYS83", "'sha256-9nan0='"):
        assert said_by_the_report(f"sum {by_chance} nan").split()[-1] == "nan"
        assert "nan" not in said_by_the_report(f"sum {by_chance}")
    assert without_digests(f"70001 {'a70001b0' * 8}, 'sha256-a70001b='") == "70001 , ''"


def keys(data: dict[str, Any]) -> set[str]:
    """All names of a document, those in its lists included."""
    found = set(data)
    for value in data.values():
        for one in value if isinstance(value, list) else [value]:
            found |= keys(one) if isinstance(one, dict) else set()
    return found


def check_data(facts: Facts, name: str) -> None:
    """The keys of --json are those of the documentation, whatever was released, and say all that a page does."""
    data = data_of(facts)
    listed = set(re.findall(r"^\| `([a-z_]+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {"report", "figures", *data}
    assert all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in keys(data))
    assert json.dumps(data, allow_nan=False)
    assert (data["cap_choice"] is None) == (name != "chosen cap")
    assert data["booking"] == (dict(facts.receipt) or None)
    assert (data["selection"] is None) == (name == "known-domain")
    assert (data["interval"] is None) == (name in ("csh", "top-k, differences"))
    assert data["certificate"] == {"place": dict(facts.sealed)["certificate"], "self_sha256": facts.sealed[1][1]}
    assert (data["curve_note"], data["comparison_note"]) == (facts.curve_note, facts.peers_note)
    assert data["selection_notes"] == list(facts.selected)


def test_the_curve_is_the_certified_one() -> None:
    for name in ("gshm", "csh", "top-k", "sums"):
        facts = made(name)[1]
        for epsilon, delta in facts.curve[::10]:
            assert delta == delta_at(facts.plan, epsilon)
        at = dict(facts.curve)[facts.plan.budget.epsilon]
        assert at == facts.plan.certificate.delta <= facts.budget.delta
        assert all(after <= before for (_, before), (_, after) in zip(facts.curve, facts.curve[1:], strict=False))


def test_the_curve_of_laplace_noise_is_its_own() -> None:
    """By a sum over the law of all counts: m that move by one, or m that are new."""
    facts = made("laplace")[1]
    noise, curve = facts.plan.noise, dict(facts.curve)
    assert isinstance(noise, LaplaceNoise)
    assert facts.plan.contract.items == 1
    q = math.exp(-1.0 / float(noise.scale))
    new = q ** (noise.limit + 1) / (1.0 + q)
    for epsilon in list(curve)[::5]:
        law = {x: (1 - q) / (1 + q) * q ** abs(x) for x in range(-200, 201)}
        moved_by_one = math.fsum(max(0.0, law[x] - math.exp(epsilon) * law[x - 1]) for x in range(-199, 201))
        assert curve[epsilon] == pytest.approx(max(moved_by_one, new), rel=1e-9)
    # The bound that any release with this certificate keeps says more than that.
    from dphist.privacy.choice import delta_profile_upper

    assert delta_profile_upper(noise, facts.plan.contract, epsilon=0.0) >= curve[0.0]
    assert "not always the least bound" in facts.curve_note


def test_the_curve_of_a_chosen_cap_is_of_the_choice_as_well() -> None:
    facts = made("chosen cap")[1]
    curve, alone = dict(facts.curve), facts.plan
    assert curve[facts.budget.epsilon] == facts.delta_proved > alone.certificate.delta
    assert list(curve) == pytest.approx([0.1 * place for place in range(21)])
    for epsilon in (0.0, 0.5, 2.0):
        # Both tell more than the release does, and no more than both can by their budget.
        generic = (math.e + 2e-6 - math.exp(epsilon)) / (1.0 + math.e)
        assert delta_at(alone, epsilon) < curve[epsilon] <= max(generic, facts.delta_proved)
    assert f"at most {at_most((1.0 + curve[0.0]) / 2.0)}." in facts.promise[1]
    assert "together" in facts.curve_note


def test_the_curve_of_a_rehearsal_with_a_seed_is_the_same(tmp_path: Path) -> None:
    """But for its words: nothing of it holds."""
    facts = report_facts(released(tmp_path, max_items_per_user="auto", seed=1))
    assert dict(facts.curve) == dict(made("chosen cap")[1].curve)
    assert "no point of the curve" in facts.curve_note
    assert not facts.private


def test_the_comparison_is_dphist_compare() -> None:
    facts = made("csh")[1]
    rows = {row.analysis: row for row in dphist.compare(epsilon=1.0, delta=1e-6, max_nonzero=50).rows}
    peers = {peer.label: peer for peer in facts.peers}
    assert len(peers) == 1 + len(rows), "no two rows have one name"
    for label, analysis in (
        ("Gaussian noise, exact analysis", "gshm-exact"), ("Laplace noise of scale m/epsilon", "scale m/epsilon"),
        ("Shared noise, best gamma, exact analysis", "exact, gamma tuned"),
    ):  # fmt: skip
        assert (peers[label].noise, peers[label].threshold) == (
            rows[analysis].total_noise,
            rows[analysis].threshold,
        )
    # What is named by its gamma has that one.
    named = {"deltas added": "csh-add-the-deltas", "the paper's analysis": "csh-tighter"}
    for said, analysis in {**named, "exact analysis": "exact, gamma = sqrt k"}.items():
        assert rows[analysis].gamma == pytest.approx(50**0.5)
        assert peers[f"Shared noise, gamma = sqrt k, {said}"].threshold == rows[analysis].threshold
    own = peers["This release"]
    assert (own.noise, own.threshold) == (facts.plan.total_noise, facts.plan.threshold)
    assert own.threshold is not None
    assert own.threshold < min(p.threshold for p in facts.peers if not p.own and p.threshold is not None) * 1.01


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gshm", ("m = 8 items a user)", "with continuous noise")),
        ("csh", ("k = 50 counts",)),
        ("top-k", ("against the counts less the one after the largest", "a part of its own noise")),
        ("top-k, differences", ("against the counts less the one after the largest, as the release has them",)),
        ("lower threshold", ("Counts below 10 were removed before, so that a count must pass 9 more",)),
        ("known-domain", ("do not know the list",)),
        ("chosen cap", ("this release paid for choosing it",)),
        ("sums", ("this release has sums as well",)),
        ("sketch", ("against the counts less the one after the largest",)),
    ],
)
def test_the_comparison_says_what_is_not_the_same(name: str, said: tuple[str, ...]) -> None:
    note = made(name)[1].peers_note
    assert all(sentence in note for sentence in said), note
    others = {
        "counts less": "top-k",
        "below 10": "lower",
        "the list": "known",
        "choosing": "chosen",
        "sums": "sums",
    }
    for sentence, kind in others.items():
        assert sentence not in note or name.startswith((kind, "sketch")), (sentence, note)


def test_what_is_promised_holds_for_a_real_plan() -> None:
    """delta does not bound how often the loss exceeds epsilon; 11 delta bounds how often by more than ln 1.1."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=20)
    # The loss of 20 counts that move by one, each with its own Gaussian noise: normal itself.
    spread = math.sqrt(20.0) / plan.sigma
    over, far_over = (stats.norm.sf((bound - spread**2 / 2.0) / spread) for bound in (1.0, 1.0 + math.log(SLACK)))
    assert over > 15 * 1e-6
    assert far_over <= DELTAS * 1e-6
    assert pytest.approx(1.0) == DELTAS * (1.0 - 1.0 / SLACK)
    *_, exactly, beliefs = promise(plan.budget, 0.1)
    assert "at most e^epsilon (about 2.718) times that without, plus delta = 1e-06 (1 in 1,000,000)" in exactly
    assert "more than 1.1 e^epsilon (about 2.99) only with a probability of at most 11 delta = 1.1e-05" in beliefs
    # From odds of 1 to 99 and 1 to 1 to odds of 2.99.
    assert "1 % becomes at most 3.0 %, a belief of 50 % at most 75.0 %" in beliefs
    assert "nothing can be said of how far" in promise(Budget(1.0, 0.2), 0.5)[3]
    for format in FORMATS:
        text = render(made("gshm")[1], format)
        assert "but for outcomes whose probability delta" not in text


def test_bounds_are_never_rounded_down() -> None:
    assert [at_most(share) for share in (0.5501, 0.55, 0.02001, 0.99999999, 1.0)] == [
        "55.1 %", "55.0 %", "2.1 %", "100 %", "100 %"
    ]  # fmt: skip
    assert one_in(1.1e-5) == "1 in 90,909"
    assert [raised(n, 3) for n in (1.1e-5, 1.2341e-6, 0.9991, 9.999e-7, 0.0)] == [
        "1.1e-05", "1.24e-06", "1", "1e-06", "0"
    ]  # fmt: skip


def test_the_promise_is_what_a_budget_allows() -> None:
    assert moved(0.5, 1.0) == pytest.approx(math.e / (1 + math.e))
    # From odds of 1 to 99 to odds of e to 99.
    assert moved(0.01, 1.0) == pytest.approx(math.e / (99 + math.e))
    # e/(1 + e) is 73.106 %, and delta is within the last digit.
    assert promise(Budget(1.0, 1e-6), 1.0)[1].endswith("at most 73.2 %.")
    assert "at most 55.0 %" in promise(Budget(1.0, 1e-6), 0.1)[1]
    assert "(epsilon = 500)" in promise(Budget(500.0, 1e-6), 1.0)[2]


def test_totals_count_what_is_shared() -> None:
    facts = made("csh")[1]
    noise, rows = facts.plan.noise, facts.rows.total
    error = math.sqrt(noise.sigma**2 * rows + noise.sigma_shared**2 * rows**2)
    assert any(f"standard error of {error:.4g}" in sentence for sentence in facts.uncovered)
    plain = made("gshm")[1]
    assert any(f"standard error of {plain.plan.total_noise * 20**0.5:.4g}" in one for one in plain.uncovered)


def test_no_true_count_is_in_a_report(tmp_path: Path) -> None:
    """From a seed, so that it is the same each time: whatever is true of the data is nowhere in it."""
    counts = {f"item {place}": 70_001 + 1_013 * place for place in range(6)} | {"rare secret": 3, "rarer": 2}
    path = released(tmp_path, counts=counts, max_items_per_user=30, seed=3)
    facts = report_facts(path)
    assert facts.certificate is not None
    texts = [render(facts, format) for format in FORMATS]
    # A page has the certificate in base 64, where no number is found: it is looked through by itself.
    for text in (*texts, facts.certificate):
        digits = set(re.findall(r"\d+", without_digests(text).replace(",", "")))
        for number in (*counts.values(), sum(counts.values()), max(counts.values()) * 2):
            assert number < 10 or str(number) not in digits, number
        assert "rare secret" not in text
    assert all("NOT PRIVATE" in text for text in texts)


def test_a_release_in_memory_has_no_certificate_yet(tmp_path: Path) -> None:
    """A certificate belongs to a file. When the release was made is the same for all that is told of it."""
    from release_data import events

    result = dphist.release(events(COUNTS), **BUDGET, max_items_per_user=2)
    result = replace(result, created="2020-01-02T03:04:05Z")
    facts = report_facts(result)
    assert facts.private
    assert facts.rows.total == 20
    assert facts.certificate is None
    assert dict(facts.about)["made"] == "2020-01-02T03:04:05Z"
    for format in FORMATS:
        text = render(facts, format)
        assert "dphist verify FILE" in text
        assert "release.write(...)" in " ".join(text.split())
        assert "not yet written" in text.lower()
    assert "download" not in [attributes.get("id") for _, attributes in Page(render(facts, "html")).tags]
    written = result.write(tmp_path / "out.csv")
    assert written.document()["created"] == "2020-01-02T03:04:05Z"
    certificate = json.loads((tmp_path / "out.csv.certificate.json").read_text())
    assert certificate["created"] == "2020-01-02T03:04:05Z"
    assert dict(report_facts(tmp_path / "out.csv").about)["made"] == "2020-01-02T03:04:05Z"
    assert "out.csv.certificate.json" in report_facts(written).uncertified


def test_rows_are_sorted_and_of_any_type(tmp_path: Path) -> None:
    table = pa.table({
        "user": list(range(3000)),
        "day": pa.array([19000 + i % 3 for i in range(3000)], pa.date32()),
        "n": pa.array([None if i % 3 == 0 else 2**62 + i % 3 for i in range(3000)], pa.int64()),
    })  # fmt: skip
    path = tmp_path / "out.parquet"
    dphist.release(
        table, user="user", item=["day", "n"], epsilon=1.0, delta=1e-6, max_items_per_user=1, null_items=True,
        output=path, types="fixed",
    )  # fmt: skip
    rows = report_facts(path).rows
    assert rows.items == ("day", "n")
    assert sorted(map(str, rows.columns[1].values)) == ["4611686018427387905", "4611686018427387906", "None"]
    assert rows.columns[1].by_number
    assert "2022-01-08" in rows.columns[0].values
    counts = rows.columns[2].values
    assert list(counts) == sorted(counts, reverse=True)
    written = pq.read_table(path).column("count").to_pylist()
    assert sorted(counts) == pytest.approx(sorted(written), abs=0.5)
    assert "(missing)" in dphist.make_report(path, "text")


def test_a_slow_plan_has_fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends and the promise itself come first; each point is certified all the same."""
    from dphist.report import curve

    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=20)
    assert curve._coarse_first(5)[:3] == [0, 5, 4]
    assert sorted(curve._coarse_first(40)) == list(range(41))
    monkeypatch.setattr(curve, "_SECONDS", -1.0)
    result = dphist.release_histogram(["tea", "milk"], [5000, 4000], plan)
    short = report_facts(result)
    assert [epsilon for epsilon, _ in short.curve] == [0.0, 1.0]
    assert short.curve[0][1] == delta_at(plan, 0.0)
    page = render(short, "html")
    assert page.count('class="knot') == 2
    assert "there are 2, and no more" in page
    assert "Each point is a certified upper bound" in page
    assert "chord of delta over e^epsilon, which is above the line" in page
