"""Charts: their data, text alternatives and files. Items are never markup, and nothing is loaded."""

from __future__ import annotations

import itertools
import math
import re
import struct
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dphist
from dphist.errors import InvalidParameter, MissingExtra
from dphist.planning.utility import count_noise
from dphist.report.charts import _CURVES, Dot, chart, dot_chart, largest_counts_chart
from dphist.report.writing import check_plot
from dphist.simulation.population import NOTICE
from report_cases import data_of, run

EVIL = "<script>alert('x & y')</script> $a$ {{b}} \"quoted\""
SVG = "{http://www.w3.org/2000/svg}"


@cache
def results() -> dict[str, Any]:
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=10)
    return {
        "plan": plan,
        "comparison": dphist.compare(epsilon=1, delta=1e-6, max_items_per_user=10),
        "simulation": dphist.simulate(zipf=(1.1, 1000, 5000), epsilon=1, delta=1e-6, limits=[1, 4]),
        "release": dphist.release_histogram([EVIL, "tea"], [5000, 4000], plan),
        "profile": dphist.profile(plan, [0.0, 1.0, 1.5]),
    }


@pytest.mark.parametrize("kind", ["plan", "comparison", "simulation", "release", "profile"])
def test_every_result_has_a_chart_with_words(kind: str, tmp_path: Path) -> None:
    chart = dphist.chart(results()[kind])
    shown = chart._repr_mimebundle_()
    root = ET.fromstring(shown["image/svg+xml"])
    assert root.get("role") == "img"
    title, words = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert words is not None
    assert (root.get("aria-labelledby") or "").split() == [title.get("id"), words.get("id")]
    assert (title.text, words.text) == (chart.title, chart.words)
    assert shown["text/plain"].endswith(chart.words)
    # Colours follow the page, whose content security policy forbids style attributes.
    drawn = chart.svg(inline=True)
    assert not re.search(r"<(script|image|style|foreignObject)|href|url\(|https?:| on\w+=| style=", drawn)
    assert "currentColor" in drawn
    assert re.search(r'fill="(white|#fff)', drawn) is None
    chart.save(tmp_path / "a.png")
    image = (tmp_path / "a.png").read_bytes()
    assert b"Description\0\0\0\0\0" + chart.words.encode() in image
    wide, high = struct.unpack(">II", image[16:24])
    assert min(wide, high) > 200
    with pytest.raises(InvalidParameter, match=r"saved as \.svg or \.png"):
        chart.save(tmp_path / "a.txt")


def test_items_and_labels_are_escaped() -> None:
    drawn = dphist.chart(results()["release"]).svg()
    assert "<script" not in drawn
    assert EVIL[:60] in {one.text for one in ET.fromstring(drawn).iter(f"{SVG}text")}
    simulation = results()["simulation"]
    named = dphist.chart(replace(simulation, population=replace(simulation.population, label=EVIL)))
    assert EVIL in named.words
    assert any(EVIL in "".join(one.itertext()) for one in ET.fromstring(named.svg()).iter(f"{SVG}text"))


def test_the_profile_and_release_charts_of_a_plan() -> None:
    plan = results()["plan"]
    both = dphist.chart(plan)
    profile, release = ({"layer": part} for part in both.to_dict()["concat"])
    curve = {row["x"]: row["y"] for row in data_of(replace(both, spec=profile))}
    assert len(curve) == 41
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        assert curve[epsilon] == dphist.delta_at(plan, epsilon)
    rows = [row for row in data_of(replace(both, spec=release)) if row["y"] is not None]
    xs, ys = np.array([row["x"] for row in rows]), np.array([row["y"] for row in rows])
    assert float(np.interp(plan.threshold, xs, ys)) == pytest.approx(0.5, abs=0.03)
    match = re.search(r"at least 50 % from ([\d,]+)", both.words)
    assert match is not None
    even = int(match[1].replace(",", ""))
    law = count_noise(plan.noise)
    assert law.probability(even - 1) < 0.5 <= law.probability(even)
    listed = dphist.plan(epsilon=1, delta=1e-6, public_items=5)
    assert len(dphist.chart(listed).to_dict()["concat"]) == 1


def test_the_chart_of_a_comparison_is_the_papers_figure() -> None:
    compared = results()["comparison"]
    minima = {row["noise"]: row["tau"] for row in data_of(dphist.chart(compared)) if "tau" in row}
    exact = next(row for row in compared.rows if row.analysis == "gshm-exact")
    assert minima[exact.total_noise] == exact.tau
    # The axis begins below the least noise, the legend says what its numbers are, and no two colours are alike.
    layers = dphist.chart(compared).to_dict()["layer"]
    domain = layers[0]["encoding"]["x"]["scale"]["domain"]
    least = min(row["noise"] for row in data_of(dphist.chart(compared)))
    assert 0.0 <= domain[0] < least - 0.05 * (domain[1] - least)
    assert layers[0]["encoding"]["color"]["legend"]["title"] == "minimum tau"
    named = [colour for colour, *_ in _CURVES.values() if colour.startswith("#")]
    channels = [tuple(int(one[place : place + 2], 16) for place in (1, 3, 5)) for one in named]
    assert len(named) == 4
    assert all(math.dist(a, b) > 100 for a, b in itertools.combinations(channels, 2))
    two = dphist.chart([compared, dphist.compare(epsilon=0.35, delta=1e-5, max_items_per_user=3)])
    assert len(two.to_dict()["concat"]) == 2
    assert two.words.count("lowest threshold") == 2


def test_the_chart_of_a_simulation_is_marked_as_not_private() -> None:
    simulated = results()["simulation"]
    chart = dphist.chart(simulated)
    assert chart.title.startswith(NOTICE)
    assert chart.words.startswith(NOTICE)
    assert NOTICE in chart.svg().partition("</desc>")[2]
    drawn = {row["y"] for row in data_of(chart)}
    assert {one.items for one in simulated.candidates} <= drawn


def test_a_chart_of_a_trial_shows_what_is_not_released() -> None:
    rows: list[dict[str, Any]] = [{"true": 1000, "released": 1003.5}, {"true": 10, "released": None}]
    found = {row["rank"]: (row["state"], row["released"]) for row in data_of(largest_counts_chart(rows, "words"))}
    assert found[1][1] == 1003.5
    assert found[2] == ("true count, not released", None)


def test_other_objects_have_no_chart() -> None:
    for wrong in (3, list[int]()):
        with pytest.raises(InvalidParameter, match="has no chart"):
            dphist.chart(wrong)


@pytest.mark.parametrize("kind", ["svg", pytest.param("png", marks=pytest.mark.slow)])
def test_the_command_plots(kind: str, tmp_path: Path) -> None:
    words = ["--epsilon", "1", "--delta", "1e-6", "--plot", f"a.{kind}"]
    bounds = ["--max-items-per-user", "2"]
    done = run(tmp_path, "compare", *words, *bounds)
    assert done.returncode == 0, done.stderr
    content = (tmp_path / f"a.{kind}").read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<svg "}[kind])
    assert run(tmp_path, "compare", *words, *bounds).returncode == 1
    if kind == "svg":
        done = run(tmp_path, "simulate", *words, "--zipf", "1.1,1000,5000", "--limits", "2", "--force")
        assert done.returncode == 0, done.stderr
        assert "NOT PRIVATE" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_without_vl_convert_reports_have_the_words_of_charts_and_charts_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = results()["release"]
    release.write(tmp_path / "out.csv")
    (tmp_path / "log.csv").write_text("user,item\n" + "\n".join(f"{user},tea" for user in range(900)))
    complete = dphist.make_report(release)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    page = dphist.make_report(release)
    assert "<svg" in complete
    assert "<svg" not in page
    assert "The chart" not in page
    # Everything else is the same, with the words below each chart.
    without_pictures = re.sub("<svg.*?</svg>", "", complete, flags=re.DOTALL)
    without_pictures = without_pictures.replace("<figure></figure>\n", "\n", 1)
    assert (
        page.split("<main>")[1]
        == re.sub('<p class="summary-only">The chart shows.*?</p>', "", without_pictures).split("<main>")[1]
    )
    assert page.count("<figcaption>") == complete.count("<figcaption>") > 0

    message = "pip install vl-convert-python"
    with pytest.raises(MissingExtra, match=message):
        dphist.chart(results()["comparison"]).svg()
    with pytest.raises(MissingExtra, match=message):
        check_plot(tmp_path / "a.png", force=False)
    flags = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "1"]
    (tmp_path / "weeks").mkdir()
    for words in (
        ["release", "log.csv", *flags, "--output", "weeks/2026-W01.csv", "--report", "r.html"],
        ["report", "weeks/2026-W01.csv", "--output", "s.html"],
        ["series", "weeks", "--report", "t.html"],
    ):
        (tmp_path / "out.csv").unlink(missing_ok=True)
        done = run(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        assert f"{words[-1]} (without charts: they need {message})" in done.stdout
        assert "tea" in (tmp_path / words[-1]).read_text(encoding="utf-8")


def test_intervals_narrower_than_a_dot_stay_visible() -> None:
    """Dots shrink and the ends become hairlines, on both kinds of axes; the margin is also in numbers."""

    def dot_size(values: list[float], margin: float) -> float:
        dots = [Dot(f"item {place}", value, value - margin, value + margin) for place, value in enumerate(values)]
        drawn = dot_chart("counts", "counts", "words", dots, x_label="count", legend="count, interval")
        assert "±" in next(row["number"] for row in data_of(drawn))
        (point,) = (layer["mark"] for layer in drawn.spec["layer"] if layer["mark"]["type"] == "point")
        size: float = point["size"]
        return size

    for values in ([2000.0, 1500.0], [2000.0, 10.0]):
        assert dot_size(values, 15.0 if values[1] > 1000 else 1.0) <= 20
    assert dot_size([2000.0, 1500.0], 100.0) > 80


def test_long_items_have_short_labels() -> None:
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=1)
    names = [f"https://example.org/{'segment/' * 20}{place}" for place in range(3)]
    labels = [row["label"] for row in data_of(chart(dphist.release_histogram(names, [900, 800, 700], plan=plan)))]
    assert len(set(labels)) == 3
    assert all(len(label) <= 52 and "\n" not in label for label in labels)
