"""The figures and tables of docs/analysis.md, and the tables of docs/rounds.md: `make figures`.

    python docs/figures.py               # compute what needs no data (a minute), draw figures, fill in tables
    python docs/figures.py --data DIR    # first run the benchmarks on real data too (an hour)
    python docs/figures.py --draw        # only draw and fill in, from benchmarks/results

Numbers are in benchmarks/results/*.json. A table is between `<!-- table NAME -->` and `<!-- end -->` on its page.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import analysis
import rivals
import top_k

from dphist.report.charts import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION, Chart

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGES: Final = ROOT / "docs" / "images"
PAGES: Final = (ROOT / "docs" / "analysis.md", ROOT / "docs" / "rounds.md")
RESULTS: Final = ROOT / "benchmarks" / "results"
BENCHMARKS: Final = {
    "analysis": (),
    "rivals": ("--epsilon", "1"),
    "rounds": ("--goal", "accuracy", "--goal", "keys"),
    "top_k": (),
}
DATA: Final = {
    "movietweetings_100k": "films",
    "online_retail_2009_2010": "products",
    "reddit_title_words": "words",
    "pairs": "common job",
}
COLOURS: Final = {"films": BLUE, "products": ORANGE, "words": GREEN, "common job": PURPLE}


# Results of the benchmarks


class RoundsRow(msgspec.Struct):
    data: str
    goal: str
    runs: int
    items: float
    distance: float
    intervals: float


class Rounds(msgspec.Struct):
    rows: list[RoundsRow]


class Rivals(msgspec.Struct):
    rows: list[rivals.Row]

    def of(self, data: str) -> dict[str, rivals.Row]:
        return {row.algorithm: row for row in self.rows if DATA[row.data] == data}


class TopK(msgspec.Struct):
    needs: dict[str, str]
    rows: list[top_k.Row]

    def row(self, data: str, epsilon: float, k: int, algorithm: str) -> top_k.Row | None:
        wanted = (data, epsilon, k, algorithm)
        found = (r for r in self.rows if (DATA[r.data], r.epsilon, r.k, r.algorithm) == wanted)
        return next(found, None)


Results = TypeVar("Results")


def results(name: str, kind: type[Results]) -> Results:
    return msgspec.json.decode((RESULTS / f"{name}.json").read_bytes(), type=kind)


@cache
def computed() -> analysis.Analysis:
    return results("analysis", analysis.Analysis)


@cache
def top_results() -> TopK:
    return results("top_k", TopK)


# Drawing: panels that fit on a phone, two beside each other on a page

WIDTH: Final = 262
HEIGHT: Final = 205
LINE: Final = 15.0
# For fonts that are wider than the one that the converter measures.
PADDING: Final = {"left": 8, "top": 5, "right": 22, "bottom": 5}
# Room for the names of algorithms.
DOT_LABELS: Final = 120
RULE: Final = {"type": "rule", "color": INK, "opacity": 0.6, "strokeDash": [3, 3]}
LABEL: Final = {"type": "text", "fontWeight": 600, "fontSize": 12.5, "baseline": "middle"}


@dataclass(frozen=True)
class Axis:
    title: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False
    form: str = ",d"

    def place(self, value: float) -> float:
        """0 at the start of the axis, 1 at its end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, place: float) -> float:
        if self.log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + place * (self.high - self.low)

    def encoding(self, field: str) -> dict[str, Any]:
        scale = {"domain": [self.low, self.high], "nice": False, "type": "log" if self.log else "linear"}
        axis = {"values": list(self.ticks), "format": self.form, "title": self.title, "labelFlush": False}
        return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


@dataclass(frozen=True)
class Line:
    """A line with its label at its end, or at another place."""

    label: str
    colour: str
    points: Sequence[tuple[float, float]]
    dash: tuple[int, ...] = (1, 0)
    dots: bool = False
    at: tuple[float, float] | None = None
    align: Literal["left", "right"] = "left"
    width: float = 2.2


def line_panel(
    name: str,
    title: str,
    words: str,
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
    *,
    room: int = 0,
    note: tuple[float, str] | None = None,
) -> Chart:
    """Lines with direct labels, `room` for labels on the right, and a vertical line with its label."""
    ends = {"x": x.encoding("x"), "y": y.encoding("y")}
    layers: list[dict[str, Any]] = []
    for line in lines:
        values = [{"x": a, "y": b} for a, b in line.points]
        looks = {"strokeWidth": line.width, "strokeDash": list(line.dash), "clip": True}
        marks = [{"type": "line", "color": line.colour, **looks}]
        if line.dots:
            marks.append({"type": "point", "filled": True, "opacity": 1, "size": 30, "color": line.colour})
        layers += [{"data": {"values": values}, "mark": mark, "encoding": ends} for mark in marks]
    at_ends = [line for line in lines if line.label and line.at is None]
    heights = apart([y.place(line.points[-1][1]) for line in at_ends], LINE / HEIGHT)
    places = {line.label: (line.points[-1][0], y.value(h)) for line, h in zip(at_ends, heights, strict=True)}
    for line in lines:
        if line.label:
            place = line.at or places[line.label]
            dx = 7 if line.align == "left" else -7
            text = {**LABEL, "text": line.label, "color": line.colour, "align": line.align, "dx": dx}
            values = [{"x": place[0], "y": place[1]}]
            layers.append({"data": {"values": values}, "mark": text, "encoding": ends})
    if note is not None:
        data = {"data": {"values": [{"x": note[0]}]}}
        text = {**LABEL, "text": note[1], "align": "left", "dx": 5, "dy": 8, "color": INK}
        layers.append({**data, "mark": RULE, "encoding": {"x": ends["x"]}})
        layers.append({**data, "mark": text, "encoding": {"x": ends["x"], "y": {"value": 0}}})
    return Chart(
        name, title, words, {"layer": layers, "width": WIDTH - room, "height": HEIGHT, "padding": PADDING}
    )


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The places from 0 to 1, moved as little as needed to be `gap` apart, in the same order."""
    order = sorted(range(len(places)), key=places.__getitem__)
    # Groups of labels that touch, each around the mean of its places.
    groups: list[list[int]] = []

    def bounds(group: list[int]) -> tuple[float, float]:
        half = gap * len(group) / 2
        middle = max(half, sum(places[i] for i in group) / len(group))
        return middle - half, middle + half

    for i in order:
        groups.append([i])
        while len(groups) > 1 and bounds(groups[-2])[1] > bounds(groups[-1])[0]:
            groups[-2:] = [groups[-2] + groups[-1]]
    found = list(places)
    for group in groups:
        low = bounds(group)[0]
        for rank, i in enumerate(group):
            found[i] = low + gap * (rank + 0.5)
    return found


def dot_panel(
    name: str, title: str, words: str, x: Axis, rows: Sequence[tuple[str, dict[str, float]]], rule: float
) -> Chart:
    """A row of dots for each algorithm, one dot for each kind of data."""
    values = [{"row": row, "data": data, "x": value} for row, cells in rows for data, value in cells.items()]
    legend = {
        "title": None,
        "orient": "none",
        "legendX": -DOT_LABELS,
        "legendY": -24,
        "direction": "horizontal",
        "columnPadding": 6,
        "symbolSize": 70,
        "labelFontSize": 12,
    }
    quiet = {"title": None, "grid": True, "ticks": False, "domain": False}

    def by_data(marks: Sequence[str]) -> dict[str, Any]:
        scale = {"domain": list(COLOURS), "range": list(marks)}
        return {"field": "data", "type": "nominal", "scale": scale, "legend": legend}

    across = {"x": x.encoding("x")}
    kinds = {
        "y": {"field": "row", "type": "nominal", "sort": [row for row, _ in rows], "axis": quiet},
        "color": by_data(list(COLOURS.values())),
        "shape": by_data(["circle", "square", "triangle-up", "diamond"]),
    }
    dot = {"type": "point", "filled": True, "opacity": 0.95, "size": 75}
    layers = [
        {"data": {"values": [{"x": rule}]}, "mark": RULE, "encoding": across},
        {"data": {"values": values}, "mark": dot, "encoding": {**across, **kinds}},
    ]
    spec = {
        "layer": layers,
        "width": WIDTH - DOT_LABELS + 15,
        "height": {"step": 19},
        "padding": {**PADDING, "left": 24},
    }
    return Chart(name, title, words, spec)


# 1. The paper's figure

# Label and colour of each curve, and where its label is: for k = 10, and for k = 51,914.
ANALYSES: Final[dict[str, tuple[str, str, dict[int, tuple[float, float, Literal["left", "right"]]]]]] = {
    "gshm-add-the-deltas": (
        "GSHM, add the deltas",
        ORANGE,
        {10: (37.5, 191, "right"), 51914: (2_240, 15_900, "right")},
    ),
    "gshm-exact": ("GSHM, exact", GREEN, {10: (44, 134, "right"), 51914: (2_200, 13_700, "right")}),
    "csh-add-the-deltas": (
        "add the deltas",
        PURPLE,
        {10: (20.5, 145, "right"), 51914: (1_400, 10_000, "left")},
    ),
    "csh-tighter": ("tighter", BLUE, {10: (20.0, 131, "right"), 51914: (1_400, 8_800, "left")}),
    "exact": ("exact", VERMILLION, {10: (20.0, 96, "right"), 51914: (1_400, 7_600, "left")}),
}


def paper_row(k: int, name: str, epsilon: float = analysis.EPSILON) -> analysis.PaperRow:
    wanted = "exact, gamma tuned" if name == "exact" else name
    return next(r for r in computed().paper if (r.epsilon, r.k, r.analysis) == (epsilon, k, wanted))


def paper_panel(k: int) -> Chart:
    lines, said = [], []
    for curve in computed().curves:
        if curve.k == k:
            label, colour, places = ANALYSES[curve.analysis]
            best, (a, b, align) = paper_row(k, curve.analysis), places[k]
            reach = 1.3 * paper_row(k, "gshm-exact" if curve.analysis.startswith("gshm") else "exact").noise
            number = f"{best.tau:,.0f}"
            highest = 20_000 if k > 100 else 205
            points = [(noise, tau) for noise, tau in curve.points if noise <= reach and tau <= highest]
            lines.append(Line(f"{label} {number}", colour, points, at=(a, b), align=align))
            lines.append(Line("", colour, [(best.noise, best.tau)], dots=True))
            kind = "" if label.startswith("GSHM") else "CSH, "
            said.append(f"{kind}{label} {number} at noise {best.noise:,.1f}")
    across = "noise of a count"
    if k > 100:
        x = Axis(across, 200, 3_000, [1_000, 2_000, 3_000])
        y = Axis("", 5_000, 20_000, [5_000, 10_000, 15_000, 20_000])
    else:
        x, y = Axis(across, -3, 42, [10, 20, 30, 40]), Axis("", 80, 222, [100, 150, 200])
    words = "The least threshold for each amount of noise, with its minimum: " + "; ".join(said) + "."
    return line_panel(f"analysis-paper-{k}", f"Threshold τ, k = {k:,}", words, x, y, lines)


# 2. Where shared noise pays


def shared_panel() -> Chart:
    shares = [i / 100 for i in range(101)]
    limit = [(share, math.sqrt(1 - share) if share <= 0.5 else 0.5 / math.sqrt(share)) for share in shares]
    lines, said = [Line("k → ∞", INK, limit, dash=(3, 3), width=1.5)], []
    for k, colour in ((10, BLUE), (100, ORANGE), (1_000, VERMILLION)):
        points = [(r.m / k, r.tau) for r in computed().shared if (r.k, r.way) == (k, "tuned")]
        lines.append(Line(f"k = {k:,}", colour, points, dots=k == 10))
        said.append(f"{points[-1][1]:.3f} for k = {k:,}")
    words = f"Threshold by m/k, divided by the GSHM's: 1 for m = 1, falling to {', '.join(said)} at m = k."
    x = Axis("items per user m / items k", 0, 1, [0, 0.25, 0.5, 0.75, 1], form=".2~f")
    y = Axis("threshold, relative to the GSHM", 0.45, 1.02, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0], form=".1f")
    return line_panel("analysis-shared", "Shared noise, γ tuned", words, x, y, lines, room=62)


def crossing_panel() -> Chart:
    k = analysis.DETAIL
    ways = {
        "sqrt k": ("γ = √k", ORANGE, (1.2, 1.0205)),
        "tuned": ("γ tuned", VERMILLION, (1.2, 0.9955)),
    }
    lines, said = [], []
    for way, (label, colour, at) in ways.items():
        points = sorted((r.m, r.tau) for r in computed().shared if (r.k, r.way) == (k, way) and r.m <= 140)
        lines.append(Line(label, colour, points, at=at, dots=True))
        said.append(f"{label} from {points[0][1]:.3f} at m = 1 to {points[-1][1]:.3f} at m = {points[-1][0]}")
    crossing = next(c.tau for c in computed().crossings if c.k == k)
    words = (
        f"Threshold by m for k = {k:,}, divided by the GSHM's: {', '.join(said)}; "
        f"with γ = √k it is below 1 from m = {crossing}."
    )
    x = Axis("items per user m", 1, 150, [1, 3, 10, 30, 100], log=True)
    y = Axis("threshold, relative to the GSHM", 0.938, 1.025, [0.94, 0.96, 0.98, 1.0, 1.02], form=".2f")
    note = (math.sqrt(k), "m = √k")
    return line_panel("analysis-crossing", f"Small m, k = {k:,}", words, x, y, lines, note=note)


# 3. Discrete noise

DISCRETE: Final = {
    "theorem, printed": ("paper, printed", BLUE),
    "theorem, tight": ("paper, tight", ORANGE),
    "dphist": ("dphist", VERMILLION),
}


def discrete_panel() -> Chart:
    kept = sorted((r for r in computed().discrete if r.epsilon == analysis.EPSILON), key=lambda r: r.sigma)
    lines, said = [], []
    for way, (label, colour) in DISCRETE.items():
        points = [(r.sigma, r.noise) for r in kept if r.way == way]
        lines.append(Line(label, colour, points, dots=True))
        said.append(f"{label} {min(b for _, b in points):.4f} to {max(b for _, b in points):.4f}")
    words = (
        f"Noise of discrete mechanisms divided by that of continuous noise, from {kept[0].sigma:.0f} to "
        f"{kept[-1].sigma:,.0f}: {', '.join(said)}."
    )
    x = Axis("noise of a count", 10, 1_200, [10, 100, 1_000], log=True)
    y = Axis("noise, relative to continuous", 0.95, 1.5, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], form=".1f")
    return line_panel("analysis-discrete", "The price of discrete noise", words, x, y, lines, room=115)


# 4. Published algorithms

KEYS_ROWS: Final = {
    "dphist, goal keys": "dphist, goal keys",
    "dphist": "dphist",
    "MAD2R, best": "MAD2R *",
    "MAD2R, 10 % in the first round": "MAD2R",
    "Policy Gaussian, best": "Policy Gaussian *",
    "Policy Gaussian, as published": "Policy Gaussian",
    "DP-SIPS, best": "DP-SIPS *",
    "DP-SIPS, as published": "DP-SIPS",
    "MAD, best": "MAD *",
    "Weighted Gaussian, best": "Weighted Gaussian *",
    "dphist, best limit": "dphist, limit *",
    "PipelineDP, best cap": "PipelineDP *",
    "OpenDP, best cap": "OpenDP *",
    "Private Count Release, best": "Private Count Release *",
}
COUNT_ROWS: Final = (
    "dphist",
    "dphist, best limit",
    "PipelineDP, best cap",
    "OpenDP, best cap",
    "Private Count Release, best",
)


def items_panel() -> Chart:
    found = {data: results("rivals", Rivals).of(data) for data in COLOURS}
    rows = []
    for name, label in KEYS_ROWS.items():
        ratios = {data: value(of[name].keys) / value(of["dphist"].keys) for data, of in found.items()}
        rows.append((label, ratios))
    others = [cells for label, cells in rows if not label.startswith("dphist")]
    best = ", ".join(f"{data} {max(cells[data] for cells in others):.2f}" for data in COLOURS)
    words = f"Items found, relative to dphist. The best of all others: {best}."
    x = Axis("", 0, 1.15, [0, 0.25, 0.5, 0.75, 1], form=".2~f")
    return dot_panel("analysis-items", "Items found, relative to dphist", words, x, rows, 1.0)


def distance_panel() -> Chart:
    found = {data: results("rivals", Rivals).of(data) for data in COLOURS}
    rows, said = [], []
    for name in COUNT_ROWS:
        cells = {data: value(of[name].error) for data, of in found.items()}
        rows.append((KEYS_ROWS[name], cells))
        said.append(f"{KEYS_ROWS[name]} " + ", ".join(f"{data} {number:.3f}" for data, number in cells.items()))
    words = f"Distance from the truth of all that publish counts: {'; '.join(said)}."
    x = Axis("", 0, 1, [0, 0.25, 0.5, 0.75, 1], form=".2~f")
    return dot_panel("analysis-distance", "Distance from the truth", words, x, rows, 0.0)


def value(cell: rivals.Cell) -> float:
    assert cell.mean is not None
    return cell.mean


# 5. Top-k

TOP_LINES: Final = {
    "dphist rounds, K largest": ("dphist, rounds", VERMILLION, (1, 0)),
    "dphist --top 3K, K largest": ("dphist --top 3K", BLUE, (1, 0)),
    "dphist --items, K largest": ("dphist, list", VERMILLION, (5, 3)),
    "Limited domain": ("limited domain", ORANGE, (1, 0)),
    "Peeling, known items": ("peeling, list", PURPLE, (5, 3)),
    "Joint, known items": ("joint, list", GREEN, (5, 3)),
}


def top_panel(data: str, epsilon: float = 1.0) -> Chart:
    found = top_results()
    lines, said = [], []
    for name, (label, colour, dash) in TOP_LINES.items():
        rows = [row for k in top_k.SIZES if (row := found.row(data, epsilon, k, name))]
        lines.append(Line(label, colour, [(row.k, row.recall) for row in rows], dash=dash, dots=True))
        said.append(f"{label} " + ", ".join(f"{row.recall:.0%}" for row in rows))
    sizes = [k for k in top_k.SIZES if found.row(data, epsilon, k, "dphist --top")]
    words = (
        f"The share of the true top K that is released, for K = {sizes[0]} to {sizes[-1]:,}: {'; '.join(said)}."
    )
    x = Axis("K", 10, sizes[-1], [k for k in (10, 100, 1_000, 10_000) if k <= sizes[-1]], log=True)
    y = Axis("", 0, 1.02, [0, 0.25, 0.5, 0.75, 1], form=".0%")
    title = f"{data.capitalize()}: share of the true top K"
    return line_panel(f"analysis-top-{data.replace(' ', '-')}", title, words, x, y, lines, room=105)


def both_panel() -> Chart:
    lines, said = [], []
    for k, colour in ((100, BLUE), (1_000, ORANGE), (10_000, VERMILLION)):
        points = [(r.m / r.k, r.both / min(r.top, r.limit)) for r in computed().both if r.k == k]
        lines.append(Line(f"K = {k:,}", colour, points, at=(0.36, min(b for _, b in points)), dots=True))
        said.append(f"{min(b for _, b in points):.3f} for K = {k:,}")
    words = f"Noise with both limits, divided by the lower of each alone, by M/K. The lowest: {', '.join(said)}."
    x = Axis("M / K", 0, 1, [0, 0.25, 0.5, 0.75, 1], form=".2~f")
    y = Axis("relative to the better one alone", 0.86, 1.01, [0.88, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0], form=".2f")
    return line_panel("analysis-both", "Both limits: noise", words, x, y, lines)


def charts() -> list[Chart]:
    return [
        *(paper_panel(k) for k in analysis.SIZES),
        shared_panel(),
        crossing_panel(),
        discrete_panel(),
        items_panel(),
        distance_panel(),
        *(top_panel(data) for data in COLOURS),
        both_panel(),
    ]


# Tables


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def paper_table() -> str:
    names = {
        "gshm-add-the-deltas": "GSHM, add the deltas",
        "gshm-exact": "GSHM, exact (Wilkins et al.)",
        "csh-add-the-deltas": "CSH, add the deltas (the paper)",
        "csh-tighter": "CSH, tighter (the paper's best)",
        "exact, gamma = sqrt k": "CSH, exact, γ = √k",
        "exact": "CSH, exact, γ tuned",
    }
    rows = []
    for name, label in names.items():
        few, many, other = paper_row(10, name), paper_row(51_914, name), paper_row(51_914, name, 0.349)
        rows.append(
            [
                label,
                f"{few.noise:.2f}",
                f"{few.tau:.2f}",
                f"{many.noise:,.1f}",
                f"{many.tau:,.1f}",
                f"{other.tau:,.1f}",
            ]
        )
    return table(["", "k = 10: noise", "τ", "k = 51,914: noise", "τ", "τ at ε = 0.349"], rows)


def crossing_table() -> str:
    full = {r.k: r.tau for r in computed().shared if r.m == r.k and r.way == "tuned"}
    rows = []
    for c in computed().crossings:
        least = [f"{m:,}" for m in (c.noise, c.one_percent, c.ten_percent)]
        rows.append([f"{c.k:,}", f"{math.sqrt(c.k):.1f}", *least, f"{full[c.k]:.3f}"])
    head = ["k", "√k", "γ = √k: less noise from m", "γ tuned: 1 % from m", "10 % from m", "τ at m = k, relative"]
    return table(head, rows)


def discrete_table() -> str:
    rows = []
    for way, (label, _) in DISCRETE.items():
        kept = [r for r in computed().discrete if r.way == way]
        many = next(r for r in kept if r.k == 51_914)
        noise, tau = ([getattr(r, name) for r in kept] for name in ("noise", "tau"))
        digits = 4 if way == "dphist" else 2
        cells = (many.noise, max(noise), many.tau, max(tau))
        rows.append([label, *(f"{cell:.{digits}f}" for cell in cells)])
    return table(["", "noise, k = 51,914", "noise, worst", "τ, k = 51,914", "τ, worst"], rows)


def margins_table() -> str:
    rows = []
    for row in results("rounds", Rounds).rows:
        name = {**DATA, "common job": "common job"}.get(row.data)
        if name and row.goal == "accuracy":
            rows.append(
                [name, f"{row.items:,.0f}", f"{row.distance:.3f}", f"{row.intervals:.1%}".replace("%", " %")]
            )
    return table(["data", "items", "distance", "within the margin"], rows)


LISTED: Final = "dphist --items, K largest"
UNLISTED_COLUMNS: Final = {
    "`--top K`": "dphist --top",
    "`--top 3K`": "dphist --top 3K, K largest",
    "paper's offset": "dphist --top, the paper's offset",
    "rounds": "dphist rounds, K largest",
    "limited domain": "Limited domain",
}
LISTED_COLUMNS: Final = {
    "`--items`": LISTED,
    "peeling": "Peeling, known items",
    "joint": "Joint, known items",
}
# All find the ten most common words, and those of the common job.
TOP_ROWS: Final = (
    *((data, k) for data in ("films", "products") for k in (10, 30, 100, 1_000)),
    *((data, k) for data in ("words", "common job") for k in (100, 1_000, 10_000)),
)


def top_table(columns: dict[str, str]) -> str:
    found = top_results()
    rows = []
    for data, k in TOP_ROWS:
        cells = []
        for name in columns.values():
            recall = found.row(data, 1.0, k, name)
            # Algorithms that publish keys only.
            distance = found.row(data, 1.0, k, f"{name}, with counts") or recall
            assert recall is not None
            assert distance is not None
            assert distance.distance is not None
            cells.append(f"{100 * recall.recall:.0f}, {short(distance.distance)}")
        rows.append([data, f"{k:,}", *cells])
    return table(["data", "K", *columns], rows)


def short(distance: float) -> str:
    return f"{distance:.2f}".removeprefix("0") if distance < 9.995 else f"{distance:,.0f}"


ROUNDS_NAMES: Final = {
    "movietweetings_100k": "films (movietweetings)",
    "online_retail_2009_2010": "products (online retail)",
    "reddit_title_words": "words (Reddit titles)",
}


def rounds_table() -> str:
    rows = []
    every = results("rounds", Rounds).rows
    for row in every:
        if row.goal == "accuracy":
            cells = [ROUNDS_NAMES.get(row.data, row.data)]
            for one in (row, next(r for r in every if r.data == row.data and r.goal == "keys")):
                cells += [f"{one.items:,.0f}", f"{one.distance:.3f}", f"{one.intervals:.1%}".replace("%", " %")]
            rows.append(cells)
    head = ["data", "items", "distance", "in margins", "`--goal keys`: items", "distance", "in margins"]
    return table(head, rows)


def rivals_table() -> str:
    found = results("rivals", Rivals)
    rows = []
    for name in found.of("films"):
        cells = []
        for data in COLOURS:
            row = found.of(data)[name]
            error = "" if row.error.mean is None else f", {row.error.mean:.3f}".replace("0.", ".", 1)
            cells.append(f"{value(row.keys):,.0f}{error}")
        rows.append([name, *cells])
    return table(["algorithm", *COLOURS], rows)


def tables() -> dict[str, str]:
    return {
        "paper": paper_table(),
        "crossing": crossing_table(),
        "discrete": discrete_table(),
        "margins": margins_table(),
        "top": top_table(UNLISTED_COLUMNS),
        "listed": top_table(LISTED_COLUMNS),
        "rounds": rounds_table(),
        "rivals": rivals_table(),
    }


_TABLE = re.compile(r"<!-- table (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    """The text of a page with its tables."""
    found = tables()
    return _TABLE.sub(lambda name: f"<!-- table {name[1]} -->\n\n{found[name[1]]}\n\n<!-- end -->", text)


def main() -> None:
    parser = argparse.ArgumentParser(description="The figures and tables of docs/analysis.md and docs/rounds.md.")
    parser.add_argument("--draw", action="store_true", help="compute nothing: draw from benchmarks/results")
    parser.add_argument("--data", type=Path, help="a folder of real data: run all benchmarks first")
    given = parser.parse_args()
    for name, options in BENCHMARKS.items():
        if given.draw or (name != "analysis" and not given.data):
            continue
        data = () if name == "analysis" else ("--data", str(given.data))
        output = ("--json", str(RESULTS / f"{name}.json"))
        subprocess.run([sys.executable, ROOT / "benchmarks" / f"{name}.py", *options, *data, *output], check=True)
    for chart in charts():
        chart.save(IMAGES / f"{chart.name}.svg")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"Wrote {len(charts())} figures and {len(tables())} tables")


if __name__ == "__main__":
    main()
