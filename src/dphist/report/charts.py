"""All charts: one Vega-Lite definition each, for reports, files, notebooks and the explore page.

vl-convert draws them. Text and axes use `currentColor` without a background: one SVG follows light and dark.
"""

from __future__ import annotations

import math
import re
import struct
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Final

from dphist.aliases import JsonObject
from dphist.certificate.request import request_for_plan
from dphist.display import figure, printable, upper_figure
from dphist.errors import InvalidParameter, MissingExtra, package
from dphist.model import Plan
from dphist.planning.compare import Comparison, frontiers
from dphist.releasing.result import Release
from dphist.releasing.series import Item, Point, Series
from dphist.releasing.summary import NOT_PRIVATE
from dphist.report.facts import (
    Facts,
    ReleasedRows,
    Rounds,
    Selection,
    curve_of,
    cut_item,
    digits_of,
    label_item,
    rows_of,
    selection_of,
)
from dphist.report.words import BETWEEN, passes, selection_words
from dphist.simulation.population import NOTICE
from dphist.simulation.simulate import Simulation

Spec = JsonObject
PLOTS: Final = (".png", ".svg")

# Okabe and Ito's colours for colour-blind readers, with a contrast of at least 3:1 on white and on the dark page
# (orange is darkened for that).
INK: Final = "currentColor"
BLUE: Final = "#0072b2"
VERMILLION: Final = "#d55e00"
GREEN: Final = "#009e73"
ORANGE: Final = "#bd7d00"
PURPLE: Final = "#a0448b"
LEAF: Final = "#4d9221"
GREY: Final = "#768b9c"
_STYLES: Final = ((BLUE, VERMILLION, GREEN, ORANGE), ([1, 0], [7, 4], [2, 3], [8, 3, 2, 3]))
_WIDTH: Final = 430
_HEIGHT: Final = 240
# An axis is logarithmic if the largest number is this many times the smallest.
_LOG_RATIO: Final = 25.0
# How many counts the chart of a report shows.
SHOWN: Final = 10
# How many items of a series are drawn, how high, and up to how many periods have dots.
SERIES_SHOWN: Final = 8
_SERIES_HEIGHT: Final = 120
_DOTTED: Final = 60
# Labels: characters per line, number of lines, height of a line.
_LABEL_WIDTH: Final = 52
_LABEL_LINES: Final = 4
_LINE: Final = 15
# 0.5, 10k, 1M; and on logarithmic axes 1e-6.
_TICKS: Final = "datum.value >= 1e3 ? format(datum.value, '~s') : format(datum.value, '.6~g')"
_POWERS: Final = (
    "datum.value < 1e-3 ? format(datum.value, '.0e') : format(datum.value, datum.value < 1e3 ? '.6~g' : '~s')"
)
_CONFIG: Final[Spec] = {
    # The converter measures Arial; the padding on the right is for wider fonts.
    "padding": {"left": 5, "top": 5, "right": 30, "bottom": 5},
    "font": "Arial, Liberation Sans, Helvetica, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK, "titleColor": INK, "tickColor": INK, "domainColor": INK, "gridColor": INK,
        "gridOpacity": 0.15, "tickOpacity": 0.5, "domainOpacity": 0.5, "labelFontSize": 12, "titleFontSize": 13,
        "titleFontWeight": "normal", "labelLimit": 0, "titleLimit": 0,
    },
    "legend": {
        "labelColor": INK, "titleColor": INK, "labelFontSize": 13, "labelLimit": 0, "symbolStrokeWidth": 2.5,
        "symbolSize": 300, "columnPadding": 36, "symbolOpacity": 1,
    },
    "title": {"color": INK, "anchor": "start", "fontSize": 15, "limit": 0, "offset": 12},
    "text": {"color": INK, "fontSize": 13},
}  # fmt: skip
_DOT_WIDTH: Final = 11.0
_DOT: Final = {"type": "point", "filled": True, "opacity": 1}
_ABOVE: Final = {"title": None, "orient": "top", "direction": "horizontal"}
_THEME: Final = (
    "<style>.dphist-chart{color:#1c2126;background:#fff}"
    "@media(prefers-color-scheme:dark){.dphist-chart{color:#e8eaed;background:#15181c}}</style>"
)


@dataclass(frozen=True)
class Chart:
    """A chart: its title, its text alternative (`words`), and the rest of its Vega-Lite definition."""

    name: str
    title: str
    words: str
    spec: Spec

    def to_dict(self) -> Spec:
        """The Vega-Lite definition."""
        return {"title": self.title.split("\n"), "description": self.words, **self.spec, "config": _CONFIG}

    def svg(self, *, inline: bool = False) -> str:
        """The chart as SVG with its text alternative; `inline` for a page that sets the colour of text itself."""
        spec = {**self.to_dict(), "config": {**_CONFIG, "aria": False, "background": "transparent"}}
        drawn: str = require_plotting().vegalite_to_svg(spec, allowed_base_urls=[])
        # Screen readers get the text alternative of the whole, not the roles of parts.
        drawn = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", drawn)
        size = re.match(r'<svg [^>]*?(width="[\d.]+" height="[\d.]+") viewBox="([^"]+)">', drawn)
        assert size is not None
        described = (
            f'<title id="{self.name}-title">{escape(self.title)}</title>'
            f'<desc id="{self.name}-desc">{escape(self.words)}</desc>'
        )
        space = "" if inline else f'xmlns="http://www.w3.org/2000/svg" {size[1]} '
        head = (
            f'<svg {space}class="dphist-chart" role="img" viewBox="{size[2]}" '
            f'aria-labelledby="{self.name}-title {self.name}-desc">'
        )
        return head + described + ("" if inline else _THEME) + drawn[size.end() :]

    def png(self) -> bytes:
        """The chart as PNG on white, with its text alternative as description."""
        drawn = self.svg().replace("<svg ", '<svg color="#1c2126" ', 1).replace(_THEME, "", 1)
        white = '<rect width="100%" height="100%" fill="#fff"/>'
        head, end, rest = drawn.partition("</desc>")
        image: bytes = require_plotting().svg_to_png(head + end + white + rest, scale=2)
        words = b"iTXtDescription\0\0\0\0\0" + self.words.encode()
        chunk = struct.pack(">I", len(words) - 4) + words + struct.pack(">I", zlib.crc32(words))
        # After the signature (8 bytes) and the header chunk (25 bytes).
        return image[:33] + chunk + image[33:]

    def content(self, path: Path) -> bytes:
        """The content of an .svg or .png file."""
        if path.suffix.lower() not in PLOTS:
            raise InvalidParameter(f"a chart is saved as .svg or .png, not {path.name!r}")
        return self.svg().encode() if path.suffix.lower() == ".svg" else self.png()

    def save(self, path: str | Path) -> None:
        """Write an .svg or .png file; an existing file is replaced."""
        Path(path).write_bytes(self.content(Path(path)))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"image/svg+xml": self.svg(), "text/plain": f"{self.title}\n{self.words}"}


def require_plotting() -> ModuleType:
    """vl-convert, which turns Vega-Lite into SVG."""
    return package("vl_convert", "plot")


def can_draw() -> bool:
    """Whether vl-convert is installed; without it, reports have the words of their charts."""
    try:
        require_plotting()
    except MissingExtra:
        return False
    return True


@dataclass(frozen=True)
class Mark:
    """A labelled point, or a vertical line if `y` is None; its label is on the left or on the right."""

    label: str
    x: float
    y: float | None = None
    on_left: bool = False


def _layer(mark: Spec, values: Sequence[Mapping[str, object]] | None = None, **encoding: Spec) -> Spec:
    """One layer; without values it draws those of the whole chart."""
    data = {} if values is None else {"data": {"values": values}}
    return {**data, "mark": mark, "encoding": encoding}


def _axis(field: str, title: str | None, domain: Sequence[float], ticks: int) -> Spec:
    scale = {"domain": domain, "nice": False}
    return _number(field, title=title, scale=scale, axis={"labelExpr": _TICKS, "tickCount": ticks})


def _number(field: str, **settings: object) -> Spec:
    return {"field": field, "type": "quantitative", **settings}


def _name(field: str, **settings: object) -> Spec:
    return {"field": field, "type": "nominal", **settings}


def _log_axis(
    field: str, title: str | None, values: Sequence[float], domain: Sequence[float] | None = None
) -> Spec:
    """A logarithmic axis with at most seven labels; the default domain ends at powers of ten."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) - 1e-9)
    last = max(last, first + 1)
    ticks = [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first) / 6)))]
    scale = {"type": "log", "domain": domain or [10.0**first, 10.0**last], "nice": False}
    return _number(field, title=title, scale=scale, axis={"values": ticks, "labelExpr": _POWERS})


def _styles(
    labels: Sequence[str], colours: Sequence[str], dashes: Sequence[Sequence[int]], **legend: object
) -> dict[str, Spec]:
    """Colour and dashes of lines by `label`, in one legend."""
    key, names = {"title": None, "symbolType": "stroke", **legend}, list(labels)
    return {
        channel: _name(
            "label", sort=names, legend=key, scale={"domain": names, "range": list(kinds[: len(names)])}
        )
        for channel, kinds in (("color", colours), ("strokeDash", dashes))
    }


def line_chart(
    name: str, title: str, words: str, lines: Mapping[str, Sequence[tuple[float, float]]], marks: Sequence[Mark],
    x: Spec, y: Spec, *, points: bool = False, low: bool = False,
) -> Chart:  # fmt: skip
    """Labelled lines; `points` shows where they were computed, and labels of vertical marks are high or `low`."""
    looks = _styles(list(lines), *_STYLES, orient="top", direction="horizontal")
    values = [{"label": label, "x": a, "y": b} for label, line in lines.items() for a, b in line]
    layers = [_layer({"type": "line", "strokeWidth": 2.5}, values, x=x, y=y, **looks)]
    if points:
        layers.append(_layer({**_DOT, "size": 22}, values, x=x, y=y, color=looks["color"]))
    for mark in marks:
        values = [{"x": mark.x, "y": mark.y, "label": mark.label}]
        side = -1 if mark.on_left else 1
        text = {"type": "text", "align": "right" if mark.on_left else "left", "fontWeight": 600}
        if mark.y is None:
            rule = {"type": "rule", "strokeDash": [4, 4], "strokeWidth": 1.5, "color": INK, "opacity": 0.7}
            at = {"value": _HEIGHT - 10 if low else 10}
            layers.append(_layer(rule, values, x=x))
            layers.append(_layer({**text, "dx": 5 * side}, values, x=x, y=at, text=_name("label")))
        else:
            layers.append(_layer({**_DOT, "size": 90, "color": VERMILLION}, values, x=x, y=y))
            layers.append(_layer({**text, "dx": 8 * side, "dy": -10}, values, x=x, y=y, text=_name("label")))
    return Chart(name, title, words, {"layer": layers, "width": _WIDTH, "height": _HEIGHT})


def _length_axis(field: str, label: str, lengths: Sequence[float]) -> tuple[Spec, float]:
    """The axis of lengths and its start: zero, or a power of ten if it has to be logarithmic."""
    least, most = min(lengths), max(*lengths, 1e-9)
    if least <= 0.0 or most <= _LOG_RATIO * least:
        return _axis(field, label, [0.0, most], 5), 0.0
    low = 10.0 ** math.floor(math.log10(least) - 1e-9)
    return _log_axis(field, f"{label} (logarithmic)", lengths, [low, most]), low


@dataclass(frozen=True)
class Dot:
    """A labelled number, with its interval."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            whole = self.value >= 1000.0 or self.value == round(self.value)
            return f"{self.value:,.0f}" if whole else f"{self.value:.4g}"
        margin = (self.high - self.low) / 2.0
        digits = digits_of(margin)
        return f"{self.value:,.{digits}f} ± {margin:,.{digits}f}"


def _narrowest(x: Spec, dots: Sequence[Dot]) -> float:
    """The width of the narrowest interval, as it is drawn on this axis."""
    first, last = x["scale"]["domain"]

    def place(value: float) -> float:
        at = min(last, max(first, value))
        share = (
            math.log(at / first) / math.log(last / first)
            if "type" in x["scale"]
            else (at - first) / (last - first)
        )
        return _WIDTH * share

    widths = [place(dot.high) - place(dot.low) for dot in dots if dot.low is not None and dot.high is not None]
    return min(widths, default=math.inf)


def dot_chart(name: str, title: str, words: str, dots: Sequence[Dot], *, x_label: str, legend: str = "") -> Chart:
    """Numbers as dots with error bars, each with its label above it: labels are long, and phones narrow.

    `legend` is given if there are intervals.
    """
    lengths = [max(0.0, dot.value) for dot in dots]
    ends = [length if dot.high is None else max(0.0, dot.high) for dot, length in zip(dots, lengths, strict=True)]
    x, low = _length_axis("value", x_label, [*ends, *lengths])
    # Where a dot would hide an interval, dots are small and the ends of intervals are hairlines beyond them.
    narrow = bool(legend) and _narrowest(x, dots) < _DOT_WIDTH + 6.0
    size, thin = (20, 1.5) if narrow else (90, 2.5)
    labels = [textwrap.wrap(dot.label, _LABEL_WIDTH, max_lines=_LABEL_LINES, placeholder="…") for dot in dots]
    most = max(1, *map(len, labels))
    values = [
        {
            "place": place, "number": str(dot), "low": low, "begin": max(low, dot.low or 0.0), "end": ends[place],
            "value": lengths[place], "main": legend, "label": "\n".join(labels[place]),
            "lines": len(labels[place]),
        }
        for place, dot in enumerate(dots)
    ]  # fmt: skip
    # The lines of a long label grow upwards from the number.
    down = 0.5 * _LINE * (most - 1)
    colour: Spec = {"value": BLUE}
    if legend:
        colour = _name("main", legend=_ABOVE, scale={"domain": [legend], "range": [BLUE]})
    stem = {"type": "rule", "color": INK, "opacity": 0.2, "strokeWidth": 2, "yOffset": down}
    bar = {"type": "rule", "color": BLUE, "strokeWidth": thin, "yOffset": down}
    tick = {"type": "tick", "color": BLUE, "thickness": thin, "size": 12, "yOffset": down}
    text = {"type": "text", "align": "left"}
    up = {"expr": f"{down - 17} - {_LINE} * (datum.lines - 1)"}
    label = {"lineBreak": "\n", "lineHeight": _LINE, "dy": up}
    intervals = [
        _layer(bar, x=_number("begin"), x2={"field": "end"}),
        *(_layer(tick, x=_number(end)) for end in ("begin", "end")),
    ]
    layers = [
        _layer(stem, x=x, x2={"field": "low"}),
        *(intervals if legend else []),
        _layer({**_DOT, "size": size, "yOffset": down}, x=_number("value"), color=colour),
        _layer({**text, **label}, x={"value": 0}, text=_name("label")),
        _layer({**text, "dx": 9, "yOffset": down}, x=_number("end"), text=_name("number")),
    ]
    y = {"field": "place", "type": "ordinal", "axis": None}
    spec = {
        "data": {"values": values}, "encoding": {"y": y}, "layer": layers, "width": _WIDTH,
        "height": {"step": 42 + _LINE * (most - 1)},
    }  # fmt: skip
    return Chart(name, title, words, spec)


def panels(name: str, title: str, words: str, parts: Sequence[Chart], *, one_legend: bool = False) -> Chart:
    drawn = [{"title": part.title.split("\n"), **part.spec} for part in parts]
    scales = dict.fromkeys(("color", "strokeDash", "shape"), "shared" if one_legend else "independent")
    spec = {"concat": drawn, "columns": 2, "spacing": 30, "resolve": {"scale": scales}}
    return Chart(name, title, words, spec)


# Curves of the paper's figure: colour, dashes, shape of the minimum, label.
_CURVES: Final = {
    "gshm-add-the-deltas": (VERMILLION, [6, 4], "square", "GSHM, add the deltas"),
    "gshm-exact": (LEAF, [1, 0], "circle", "GSHM, exact"),
    "csh-add-the-deltas": (PURPLE, [3, 3], "diamond", "CSH, add the deltas"),
    "csh-tighter": (BLUE, [8, 3, 2, 3], "triangle-up", "CSH, tighter (the paper)"),
    "exact": (INK, [1, 0], "cross", "CSH, exact (dphist)"),
}


def describe_comparisons(comparisons: Sequence[Comparison]) -> str:
    sentences = []
    for comparison in comparisons:
        best = min(comparison.rows, key=lambda row: row.tau)
        sentences.append(
            f"For {comparison.title} the lowest threshold is {best.threshold:.1f} "
            f"({best.mechanism}, {best.analysis}), {best.ratio_to_gshm:.3f} times the exact GSHM's."
        )
    return " ".join(sentences)


def frontier_chart(comparison: Comparison) -> Chart:
    """The paper's figure: the smallest tau by total noise for every analysis, with the minima marked."""
    curves = frontiers(comparison)
    minima = {row.analysis.split(",")[0]: row for row in reversed(comparison.rows)}
    lowest = {curve.analysis: minima[curve.analysis] for curve in curves}
    labels = {name: f"{_CURVES[name][3]}: {row.tau:,.1f}" for name, row in lowest.items()}
    tallest = 1.6 * max(row.tau for row in lowest.values())
    noises = [x for curve in curves for x in (curve.least_noise, *(noise for noise, _ in curve.points))]
    across = "total noise (standard deviation of a released count)"
    # From below the least noise, so that the first minimum is not on the axis.
    before = 0.06 * (max(noises) - min(noises))
    x = _axis("noise", across, [max(0.0, min(noises) - before), max(noises)], 6)
    y = _axis("tau", "smallest tau (threshold minus 1)", [0, tallest], 5)
    colours, dashes, *_ = zip(*(_CURVES[name] for name in labels), strict=True)
    styles = _styles(list(labels.values()), colours, dashes, orient="bottom", columns=2, title="minimum tau")
    colour = styles["color"]
    # Without a scale, so that the legend shows lines.
    shape = _name("shape", legend=None, scale=None)
    layers: list[Spec] = []
    for curve in curves:
        label, best = labels[curve.analysis], lowest[curve.analysis]
        points = [{"label": label, "noise": a, "tau": b} for a, b in curve.points if b <= tallest]
        least = {"label": label, "noise": curve.least_noise}
        minimum = {
            "label": label, "noise": best.total_noise, "tau": best.tau, "shape": _CURVES[curve.analysis][2],
        }  # fmt: skip
        # The exact curves of GSHM and CSH coincide: a thin line on a wide one shows both.
        width = 5.0 if curve.analysis == "gshm-exact" else 1.8
        layers += [
            _layer({"type": "line", "strokeWidth": width}, points, x=x, y=y, **styles),
            _layer({"type": "rule", "strokeDash": [2, 3], "opacity": 0.7}, [least], x=x, color=colour),
            _layer({**_DOT, "size": 90}, [minimum], x=x, y=y, color=colour, shape=shape),
        ]
    spec = {"layer": layers, "width": _WIDTH, "height": 300}
    return Chart("comparison", comparison.title, describe_comparisons([comparison]), spec)


def curve_chart(
    name: str, points: Sequence[tuple[float, float]], marks: Sequence[Mark] = (), more: str = ""
) -> Chart:
    """delta by epsilon; `more` is added to the words."""
    kept = sorted((float(epsilon), float(delta)) for epsilon, delta in points if delta > 0.0)
    if not kept:
        raise InvalidParameter("a profile needs at least one point with a delta above 0")
    (first, high), (last, low) = kept[0], kept[-1]
    falls = f"δ falls from {upper_figure(high, 4)} at ε = {first:.4g}"
    words = f"{falls} to {upper_figure(low, 4)} at ε = {last:.4g}. {more}".strip()
    deltas = [delta for _, delta in kept] + [mark.y for mark in marks if mark.y is not None]
    x = _axis("x", "epsilon (ε)", [first, last if last > first else first + 1.0], 6)
    y = _log_axis("y", "delta (δ)", deltas)
    return line_chart(name, "δ for every ε", words, {"δ, certified at the points": kept}, marks, x, y, points=True)


def plan_chart(plan: Plan) -> Chart:
    """The privacy profile, and the probability of release if there is a threshold for counts."""
    budget, delta = plan.budget, plan.proof.delta
    more = f"At ε = {budget.epsilon:g} it is {upper_figure(delta, 6)}, within the budget of {budget.delta:g}."
    parts = [curve_chart("profile", curve_of(plan), [Mark("budget", budget.epsilon, delta)], more)]
    # A request that is not empty: a plan does not say whether counts will be reduced.
    selection = selection_of(plan, request_for_plan({"epsilon": budget.epsilon, "delta": budget.delta}))
    if selection is not None:
        parts.append(_probability(selection))
    title = f"{plan.mechanism}, ε = {budget.epsilon:g}, δ = {budget.delta:g}"
    return panels("plan", title, " ".join(part.words for part in parts), parts)


def simulation_chart(simulation: Simulation) -> Chart:
    """Items, missing share, errors and distance of all candidates by their limit m or k.

    Those without a limit are level lines.
    """
    kinds = {"limit": "m items per user", "top": "the k largest", "goal": "no limit"}
    limits = [one.value for one in simulation.candidates if isinstance(one.value, int)] or [1]

    def panel(name: str, title: str) -> Chart:
        rows = [
            {"label": kinds[one.kind], "x": x, "y": y, "line": one.name if one.kind == "goal" else one.kind}
            for one in simulation.candidates
            if (y := getattr(one, name)) is not None
            for x in ([one.value] if isinstance(one.value, int) else sorted({min(limits), max(limits)}))
        ]
        x = _log_axis("x", "m or k", limits, [min(limits), max(*limits, min(limits) + 1)])
        y = _number("y", title=None, axis={"format": ".0%"} if name == "missing" else {"labelExpr": _TICKS})
        positive = [row["y"] for row in rows if row["y"] > 0.0]
        if name == "mean_error" and positive:
            y = _log_axis("y", None, positive)
        styles = _styles(list(kinds.values()), *_STYLES, orient="bottom", direction="horizontal")
        layers = [
            _layer({"type": "line", "strokeWidth": 2}, rows, x=x, y=y, **styles, detail=_name("line")),
            _layer({**_DOT, "size": 45}, rows, x=x, y=y, color=styles["color"]),
        ]
        return Chart(name, title, "", {"layer": layers, "width": 250, "height": _HEIGHT})

    parts = [
        panel("items", "items released"),
        panel("missing", "share of pairs missing"),
        panel("mean_error", "mean error of a released count"),
        panel("distance", "distance of the counts"),
    ]
    data = printable(simulation.title)
    title, words = f"{NOTICE}\n{data}", f"{NOTICE} {data}. {simulation.recommendation()}"
    return panels("simulation", title.replace("; epsilon", "\nepsilon"), words, parts, one_legend=True)


def largest_counts_chart(rows: Sequence[JsonObject], words: str) -> Chart:
    """Counts of public or synthetic data by rank: each row has `true`, and `released` (None if hidden)."""
    states = ["true count, released", "true count, not released", "released count"]
    values: list[JsonObject] = [
        {
            "rank": rank, "true": max(1.0, float(row["true"])), "one": 1.0,
            "released": None if row["released"] is None else max(1.0, float(row["released"])),
            "state": states[row["released"] is None], "dot": states[2],
        }
        for rank, row in enumerate(rows, 1)
    ]  # fmt: skip
    every = max(1, len(values) // 5)
    ranks = [1, *range(every, len(values) + 1, every)] if every > 1 else [*range(1, len(values) + 1)]
    highest = max(max(value["true"], value["released"] or 1.0) for value in values)
    y = _log_axis("true", "users (logarithmic)", [1.0, highest])
    look = {
        "legend": {**_ABOVE, "symbolType": "square"},
        "scale": {"domain": states, "range": [BLUE, GREY, VERMILLION]},
    }
    x = {
        "field": "rank", "type": "ordinal", "title": "rank of the item",
        "axis": {"values": ranks, "labelAngle": 0},
    }  # fmt: skip
    dots = _layer({**_DOT, "size": 45}, y=_number("released"), color=_name("dot", **look))
    layers = [
        _layer({"type": "bar"}, y=y, y2={"field": "one"}, color=_name("state", **look)),
        {"transform": [{"filter": "isValid(datum.released)"}], **dots},
    ]
    spec = {
        "data": {"values": values}, "encoding": {"x": x}, "layer": layers, "width": _WIDTH, "height": _HEIGHT,
    }  # fmt: skip
    return Chart("largest", "The largest counts", words, spec)


def release_chart(release: Release) -> Chart:
    rows = rows_of(release.to_arrow(), release.plan, release.request, release.decimals)
    if not rows.total:
        raise InvalidParameter("the release is empty: there is nothing to draw")
    drawn = counts_chart(rows, 20)
    return drawn if release.private else _with_warning(drawn)


def counts_chart(rows: ReleasedRows, most: int) -> Chart:
    """The largest counts of a release, with their intervals if there are any."""
    shown = min(most, rows.total)
    cells = zip(*(column.texts(shown) for column in rows.columns[: len(rows.items)]), strict=True)
    labels = [cut_item(printable(", ".join(names)), _LABEL_WIDTH) for names in cells]
    which = f"The {shown} largest of {rows.total:,}" if shown < rows.total else f"All {rows.total:,}"
    dots = [Dot(label, count) for label, count in zip(labels, rows.counts, strict=False)]
    level, legend = f"{100 * rows.level:g} %", ""
    if rows.intervals is not None:
        legend, ends = f"count, {level} interval", zip(dots, *rows.intervals, strict=False)
        dots = [replace(dot, low=low, high=high) if low == low else dot for dot, low, high in ends]
    words = f"{which} released counts, from {dots[0]} to {dots[-1]}{f' ({level} intervals)' if legend else ''}."
    return dot_chart("counts", "The largest released counts", words, dots, x_label=rows.count, legend=legend)


# --- the charts of a report


def report_charts(facts: Facts) -> tuple[Chart, ...]:
    """All charts of a report, in its order."""
    charts = [*([counts_chart(facts.rows, SHOWN)] if facts.rows.total else []), _guarantee(facts)]
    if facts.selection is not None:
        charts += [_probability(facts.selection), _error(facts.selection)]
    if facts.rounds is not None:
        charts.append(_sizes(facts.rounds))
    return tuple(charts if facts.private else map(_with_warning, charts))


def _with_warning(chart: Chart) -> Chart:
    """The chart of a seeded release, which may be shown without its page."""
    words = f"{NOT_PRIVATE}, so it protects nobody. {chart.words}"
    return replace(chart, title=f"NOT PRIVATE: {chart.title}", words=words)


def _guarantee(facts: Facts) -> Chart:
    label, which = "this release", "The budget"
    if not facts.private:
        label, which = "the plan, not this release", "The plan's budget"
    epsilon, delta = (upper_figure(number, 6) for number in (facts.plan.budget.epsilon, facts.plan.budget.delta))
    mark = Mark(label, facts.plan.budget.epsilon, facts.delta_certified)
    return curve_chart("guarantee", facts.curve, [mark], f"{which} is δ = {delta} at ε = {epsilon}. {BETWEEN}")


def _probability(selection: Selection) -> Chart:
    what = passes(selection)
    points = [(float(count), probability) for count, probability, _, _ in selection.points]
    y = _number("y", title="probability", scale={"domain": [0, 1]}, axis={"format": ".0%", "tickCount": 5})
    x = _axis("x", selection.axis, [points[0][0], points[-1][0]], 6)
    marks = [Mark("50 %", selection.even), Mark("99 %", selection.likely, on_left=True)]
    words = f"Probability of {what} by {selection.axis}: {selection_words(selection)}."
    lines = {f"probability of {what}": points}
    return line_chart("release", f"Probability of {what}", words, lines, marks, x, y, low=True)


def _error(selection: Selection) -> Chart:
    # The few counts that are released with less than 1 % would dominate the chart.
    shown = [point for point in selection.points if point[1] >= 0.01]
    near = min(shown, key=lambda point: abs(point[0] - selection.even))
    digits = digits_of(shown[-1][3])
    first, last = (
        f"by {bias:,.{digits}f} on average if the {selection.axis} is {count:,} (standard deviation "
        f"{deviation:,.{digits}f})"
        for count, _, bias, deviation in (near, shown[-1])
    )
    lines = {
        "mean error (too high by)": [(float(count), bias) for count, _, bias, _ in shown],
        "standard deviation": [(float(count), deviation) for count, _, _, deviation in shown],
    }
    ys = [y for line in lines.values() for _, y in line]
    return line_chart(
        "error", "Expected error of a released count", f"A released count is too high {first}, and {last}.", lines,
        [Mark("50 % released", selection.even)], _axis("x", selection.axis, [shown[0][0], shown[-1][0]], 6),
        _axis("y", "error, in users", [min(0.0, *ys), 1.08 * max(ys)], 5),
    )  # fmt: skip


def _sizes(rounds: Rounds) -> Chart:
    """Users by number of released items, without the last numbers if they are within the noise."""
    dots = [Dot(label, float(users)) for label, users in zip(rounds.labels, rounds.users, strict=True)]
    shown, rest = dots[: rounds.drawn], dots[rounds.drawn :]
    group = ", without users who have one item in all" if rounds.alone else ""
    words = (
        f"Noisy numbers of users by how many of the released items they have{group}; the noise of each has a "
        f"standard deviation of {figure(rounds.deviation)}."
    )
    if any(dot.value < 0.0 for dot in shown):
        words += " Numbers below zero come from the noise and are drawn at zero."
    if rest:
        words += (
            f" From {rest[0].label} items on they are not drawn: none is more than three standard deviations "
            "above zero. The table has all of them."
        )
    return dot_chart("sizes", "Users by number of released items (noisy)", words, shown, x_label="users")


# --- the charts of a series


def series_charts(series: Series, most: int = SERIES_SHOWN) -> list[Chart]:
    """The largest items over time, one chart each, with their margins as bands; gaps are gaps, not zero."""
    names = [period.name for period in series.periods]
    released = {part.period.name for part in series.parts}
    charts = [
        _item_chart(f"item-{number}", _label(series, item), line, names, [name in released for name in names])
        for number, (item, line) in enumerate([*series.lines.items()][:most], 1)
    ]
    return charts if series.private else [*map(_with_warning, charts)]


def series_chart(series: Series) -> Chart:
    charts = series_charts(series)
    if not charts:
        raise InvalidParameter("the series is empty: there is nothing to draw")
    drawn = panels("series", "The largest items over time", " ".join(part.words for part in charts), charts)
    return drawn if series.private else _with_warning(drawn)


def _label(series: Series, item: Item) -> str:
    """The item with quotes around values that look like a missing or an empty one or a total."""
    texts = zip(series.item_texts(item), series.shown_values(item), strict=True)
    return ", ".join(
        text if total or value is None or value == "" else label_item(text) for text, (value, total) in texts
    )


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive places."""
    starts = [place for place in places if place - 1 not in places]
    ends = [place for place in places if place + 1 not in places]
    return list(zip(starts, ends, strict=True))


def _item_chart(
    name: str, label: str, line: Mapping[int, Point], periods: Sequence[str], released: Sequence[bool]
) -> Chart:
    places = sorted(line)
    last = len(periods) - 1
    values = [
        {"x": place, "y": line[place][0], "low": max(0.0, line[place][1]), "high": line[place][2], "run": run}
        for run, (first, end) in enumerate(_runs(places))
        for place in range(first, end + 1)
    ]
    missing = [place for place in range(len(periods)) if place not in line]
    gaps = [{"x": max(0.0, a - 0.5), "end": min(last, b + 0.5)} for a, b in _runs(missing)]
    alone = [value for value in values if value["x"] in {a for a, b in _runs(places) if a == b}]
    step = max(1, math.ceil(last / 3))
    ticks = [*range(0, last + 1, step)]
    domain = [0, last] if last else [-0.5, 0.5]
    titles = ", ".join(f"'{period}'" for period in periods)
    x = _number(
        "x", title=None, scale={"domain": domain, "nice": False},
        axis={"values": ticks, "labelExpr": f"[{titles}][datum.value]", "grid": False},
    )  # fmt: skip
    highest = max(*(value["high"] for value in values), 1.0)
    y = _axis("y", None, [0.0, 1.02 * highest], 3)
    y["axis"]["minExtent"] = 34  # so that the charts of all items are aligned
    run: Spec = {"field": "run", "type": "nominal"}
    dot = {**_DOT, "size": 14 if len(periods) <= _DOTTED else 8, "color": BLUE}
    layers = [
        _layer({"type": "rect", "color": INK, "opacity": 0.13}, gaps, x=x, x2={"field": "end"}),
        _layer({"type": "area", "color": BLUE, "opacity": 0.35}, values, x=x, y={**y, "field": "low"},
               y2={"field": "high"}, detail=run),
        _layer({"type": "rule", "color": BLUE, "opacity": 0.5, "strokeWidth": 2.5}, alone, x=x,
               y={**y, "field": "low"}, y2={"field": "high"}),
        _layer({"type": "line", "color": BLUE, "strokeWidth": 1.8}, values, x=x, y=y, detail=run),
        _layer(dot, values if len(periods) <= _DOTTED else alone, x=x, y=y),
    ]  # fmt: skip
    shown = [layer for layer in layers if layer["data"]["values"]]
    title = textwrap.wrap(label, _LABEL_WIDTH, max_lines=2, placeholder="…") or [label]
    dots = [Dot(label, *line[place]) for place in (places[0], places[-1])]
    number = sum(released)
    words = f"{label}: in {len(line):,} of {number:,} releases, {dots[0]} in {periods[places[0]]}"
    words += f" and {dots[1]} in {periods[places[-1]]}." if len(places) > 1 else "."
    if len(line) < number:
        words += " Grey periods: not released, which is not zero."
    return Chart(name, "\n".join(title), words, {"layer": shown, "width": _WIDTH, "height": _SERIES_HEIGHT})


def chart(result: object) -> Chart:
    """The chart of a plan, a comparison (or several), a profile, a simulation, a release or a series of releases.

    Notebooks show it, `.save("chart.png")` writes it, `.words` is its text alternative, and `.to_dict()` is its
    Vega-Lite definition, for other tools.

    >>> import dphist
    >>> drawn = dphist.chart(dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20))
    >>> print(drawn.title)
    gshm, ε = 1, δ = 1e-06

    Args:
        result: A `Plan`, `Comparison` or list of them, `Simulation`, `Release` or `Series`, or the pairs of
            `profile`.
    """
    if isinstance(result, Plan):
        return plan_chart(result)
    if isinstance(result, Comparison):
        return frontier_chart(result)
    if isinstance(result, Simulation):
        return simulation_chart(result)
    if isinstance(result, Release):
        return release_chart(result)
    if isinstance(result, Series):
        return series_chart(result)
    if isinstance(result, Sequence) and result:
        if all(isinstance(comparison, Comparison) for comparison in result):
            charts, words = [frontier_chart(comparison) for comparison in result], describe_comparisons(result)
            title = "Smallest tau by noise"
            return charts[0] if len(charts) == 1 else panels("comparison", title, words, charts)
        if all(isinstance(point, tuple) and len(point) == 2 for point in result):
            return curve_chart("profile", result)
    raise InvalidParameter(
        f"{type(result).__name__} has no chart: pass a plan, a comparison, a profile, a simulation, a "
        "release or a series"
    )
