"""The charts: one Vega-Lite definition each, for reports, files, notebooks and the explore page.

vl-convert draws them. Text and axes have the colour of their surroundings (`currentColor`) on a transparent
background: one SVG follows light and dark.
"""

from __future__ import annotations

import math
import re
import struct
import textwrap
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

from dphist.display import count_items, figure, printable, upper_figure
from dphist.errors import InvalidParameter, MissingExtra
from dphist.planning.auto_cap import levels_of
from dphist.planning.compare import Comparison, Frontier, frontier
from dphist.privacy.types import Plan
from dphist.releasing.result import Release
from dphist.releasing.summary import NOT_PRIVATE
from dphist.report.facts import (
    Facts,
    LimitChoice,
    Rows,
    Selection,
    curve_of,
    digits_of,
    make_visible,
    rows_of,
    selection_of,
)
from dphist.report.words import BETWEEN, passes, percent
from dphist.simulation.population import NOTICE
from dphist.simulation.simulate import Simulation

FigureFormat = Literal["svg", "png"]
# A part of a Vega-Lite definition.
Spec = dict[str, Any]
# By these marks a later report recognises a file that it may replace.
SVG_MARK: Final = "<metadata>dphist report</metadata>"
PNG_MARK: Final = b"Software\0dphist report"

# Okabe and Ito's colours, which colour-blind readers can tell apart. Each has a contrast of at least 3:1 on white
# and on the dark page; orange is darker than theirs for that reason.
INK: Final = "currentColor"
BLUE: Final = "#0072b2"
VERMILLION: Final = "#d55e00"
GREEN: Final = "#009e73"
ORANGE: Final = "#bd7d00"
GREY: Final = "#768b9c"
# Series differ in their dashes too.
_STYLES: Final = ((BLUE, VERMILLION, GREEN, ORANGE), ([1, 0], [7, 4], [2, 3], [8, 3, 2, 3]))
_WIDTH: Final = 430
_HEIGHT: Final = 240
# Where the largest number is this many times the smallest, the axis is logarithmic.
_LOG_RATIO: Final = 25.0
# The largest counts that the chart of a report shows.
_SHOWN: Final = 10
# Characters of a line of a label, the most lines, and the height of one.
_LABEL_WIDTH: Final = 52
_LABEL_LINES: Final = 12
_LINE: Final = 15
# 10k and 1M, but 0.5; powers of ten as 1e-6.
_TICKS: Final = "datum.value >= 1e4 ? format(datum.value, '~s') : format(datum.value, '.6~g')"
_POWERS: Final = (
    "datum.value < 1e-3 ? format(datum.value, '.0e') : format(datum.value, datum.value < 1e4 ? '.6~g' : '~s')"
)
_CONFIG: Final[Spec] = {
    # The converter measures Liberation Sans, which is as wide as Arial; the room to the right is for wider fonts.
    "padding": {"left": 5, "top": 5, "right": 30, "bottom": 5},
    "font": "Arial, Liberation Sans, Helvetica, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK, "titleColor": INK, "tickColor": INK, "domainColor": INK, "gridColor": INK,
        "gridOpacity": 0.15, "tickOpacity": 0.5, "domainOpacity": 0.5, "labelFontSize": 12, "titleFontSize": 13,
        "titleFontWeight": "normal", "labelLimit": 0, "titleLimit": 0,
    },
    "legend": {
        "labelColor": INK, "labelFontSize": 13, "labelLimit": 0, "symbolStrokeWidth": 2.5, "symbolSize": 300,
        "columnPadding": 36, "symbolOpacity": 1,
    },
    "title": {"color": INK, "anchor": "start", "fontSize": 15, "limit": 0, "offset": 12},
    "text": {"color": INK, "fontSize": 13},
}  # fmt: skip
_DOT: Final = {"type": "point", "filled": True, "opacity": 1}
_ABOVE: Final = {"title": None, "orient": "top", "direction": "horizontal"}
_THEME: Final = (
    "<style>.dphist-chart{color:#1c2126;background:#fff}"
    "@media(prefers-color-scheme:dark){.dphist-chart{color:#e8eaed;background:#15181c}}</style>"
)


@dataclass(frozen=True)
class Chart:
    """A chart: its title, its words (the text alternative), and its Vega-Lite definition without both."""

    name: str
    title: str
    words: str
    spec: Spec

    def to_dict(self) -> Spec:
        """The Vega-Lite definition."""
        return {"title": self.title.split("\n"), "description": self.words, **self.spec, "config": _CONFIG}

    def to_altair(self) -> Any:
        """The chart as altair has it, to be changed or rendered live."""
        try:
            import altair
        except ImportError:
            raise MissingExtra("this needs altair: pip install 'dphist[plot]'") from None
        return altair.Chart.from_dict(self.to_dict())

    def svg(self, *, inline: bool = False) -> str:
        """One SVG with its text alternative; `inline` for a page that sets the colour of the text itself."""
        spec = {**self.to_dict(), "config": {**_CONFIG, "aria": False, "background": "transparent"}}
        drawn: str = require_plotting().vegalite_to_svg(spec, allowed_base_urls=[])
        # Elements of the drawing have no roles of their own: the drawing as a whole has its words.
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
        return head + ("" if inline else SVG_MARK) + described + ("" if inline else _THEME) + drawn[size.end() :]

    def png(self) -> bytes:
        """A PNG on white, whose description is the text alternative."""
        drawn = self.svg().replace("<svg ", '<svg color="#1c2126" ', 1).replace(_THEME, "", 1)
        white = '<rect width="100%" height="100%" fill="#fff"/>'
        head, end, rest = drawn.partition("</desc>")
        image: bytes = require_plotting().svg_to_png(head + end + white + rest, scale=2)
        texts = _png_text(b"tEXt", PNG_MARK)
        texts += _png_text(b"iTXt", b"Description\0\0\0\0\0" + self.words.encode())
        # After the signature (8 bytes) and the header (25 bytes).
        return image[:33] + texts + image[33:]

    def content(self, format: FigureFormat) -> bytes:
        """The content of a file."""
        return self.svg().encode() if format == "svg" else self.png()

    def save(self, path: str | Path) -> None:
        """Write an .svg or .png file, over an existing one."""
        kind = Path(path).suffix.lower()
        if kind not in (".svg", ".png"):
            raise InvalidParameter(f"a chart is saved as .svg or .png, not as {Path(path).name!r}")
        Path(path).write_bytes(self.content("svg" if kind == ".svg" else "png"))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What a notebook shows: an image, for which nothing is loaded from a network."""
        return {"image/svg+xml": self.svg(), "text/plain": f"{self.title}\n{self.words}"}


def require_plotting() -> Any:
    """The converter from Vega-Lite to SVG."""
    try:
        import vl_convert
    except ImportError:
        raise MissingExtra("charts need vl-convert: pip install 'dphist[plot]'") from None
    return vl_convert


def _png_text(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@dataclass(frozen=True)
class Mark:
    """A labelled point, or without `y` a vertical line."""

    label: str
    x: float
    y: float | None = None


def _layer(mark: Spec, values: Sequence[Mapping[str, Any]] | None = None, **encoding: Spec) -> Spec:
    """One kind of mark; without values it draws those of the whole chart."""
    data = {} if values is None else {"data": {"values": values}}
    return {**data, "mark": mark, "encoding": encoding}


def _axis(field: str, title: str | None, domain: Sequence[float], ticks: int) -> Spec:
    scale = {"domain": domain, "nice": False}
    return _number(field, title=title, scale=scale, axis={"labelExpr": _TICKS, "tickCount": ticks})


def _number(field: str, **settings: Any) -> Spec:
    return {"field": field, "type": "quantitative", **settings}


def _name(field: str, **settings: Any) -> Spec:
    return {"field": field, "type": "nominal", **settings}


def _log_axis(
    field: str, title: str | None, values: Sequence[float], domain: Sequence[float] | None = None
) -> Spec:
    """Powers of ten, at most seven of them labelled; the domain ends at such powers unless it is given."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) - 1e-9)
    last = max(last, first + 1)
    ticks = [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first) / 6)))]
    scale = {"type": "log", "domain": domain or [10.0**first, 10.0**last], "nice": False}
    return _number(field, title=title, scale=scale, axis={"values": ticks, "labelExpr": _POWERS})


def _styles(
    labels: Sequence[str], colours: Sequence[str], dashes: Sequence[Any], **legend: Any
) -> dict[str, Spec]:
    """Colour and dashes of lines by the field `label`, in one legend."""
    key, names = {"title": None, "symbolType": "stroke", **legend}, list(labels)
    return {
        channel: _name(
            "label", sort=names, legend=key, scale={"domain": names, "range": list(kinds[: len(names)])}
        )
        for channel, kinds in (("color", colours), ("strokeDash", dashes))
    }


def line_chart(
    name: str, title: str, words: str, lines: Mapping[str, Sequence[tuple[float, float]]], marks: Sequence[Mark],
    *, x_label: str, y_label: str, certified: bool = False, share: bool = False,
) -> Chart:  # fmt: skip
    """Labelled lines over a common axis.

    `certified`: the points were computed and are marked, on a logarithmic axis. `share`: from 0 to 100 %.
    """
    xs = [x for points in lines.values() for x, _ in points] + [mark.x for mark in marks]
    ys = [y for points in lines.values() for _, y in points] + [mark.y for mark in marks if mark.y is not None]
    low, high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1.0
    x, y = _axis("x", x_label, [low, high], 6), _axis("y", y_label, [min(0.0, *ys), 1.08 * max(ys) or 1.0], 5)
    if certified:
        y = _log_axis("y", y_label, ys)
    elif share:
        y |= {"scale": {"domain": [0, 1]}, "axis": {"format": ".0%", "tickCount": 5}}
    styles, layers = _styles(list(lines), *_STYLES, orient="top", direction="horizontal"), []
    for label, points in lines.items():
        values = [{"label": label, "x": a, "y": b} for a, b in points]
        layers.append(_layer({"type": "line", "strokeWidth": 2.5}, values, x=x, y=y, **styles))
        if certified:
            layers.append(_layer({**_DOT, "size": 22}, values, x=x, y=y, color=styles["color"]))
    for mark in marks:
        layers += _mark_layers(mark, x, y, on_left=mark.x > low + 0.6 * (high - low), low=share)
    return Chart(name, title, words, {"layer": layers, "width": _WIDTH, "height": _HEIGHT})


def _mark_layers(mark: Mark, x: Spec, y: Spec, *, on_left: bool, low: bool) -> list[Spec]:
    """A point or a line, with its label where there is room."""
    values = [{"x": mark.x, "y": mark.y, "label": mark.label}]
    text = {"type": "text", "align": "right" if on_left else "left", "fontWeight": 600}
    side = -1 if on_left else 1
    if mark.y is not None:
        return [
            _layer({**_DOT, "size": 90, "color": VERMILLION}, values, x=x, y=y),
            _layer({**text, "dx": 8 * side, "dy": -10}, values, x=x, y=y, text=_name("label")),
        ]
    rule = {"type": "rule", "strokeDash": [4, 4], "strokeWidth": 1.5, "color": INK, "opacity": 0.7}
    at = {"value": _HEIGHT - 10 if low else 10}
    return [
        _layer(rule, values, x=x),
        _layer({**text, "dx": 5 * side}, values, x=x, y=at, text=_name("label")),
    ]


def _length_axis(field: str, label: str, lengths: Sequence[float]) -> tuple[Spec, float]:
    """The axis of lengths and where it begins: at zero, or above it where a logarithmic one is needed."""
    least, most = min(lengths), max(*lengths, 1e-9)
    if least <= 0.0 or most <= _LOG_RATIO * least:
        return _axis(field, label, [0.0, most], 5), 0.0
    low = 10.0 ** math.floor(math.log10(least) - 1e-9)
    return _log_axis(field, f"{label} (logarithmic)", lengths, [low, most]), low


@dataclass(frozen=True)
class Dot:
    """A labelled number, with its interval if it has one; an estimate also has the count that it is made of.

    `own` marks those that a reader looks for.
    """

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    count: float | None = None
    own: bool = False

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            whole = self.value >= 1000.0 or self.value == round(self.value)
            return f"{self.value:,.0f}" if whole else f"{self.value:.4g}"
        margin = (self.high - self.low) / 2.0
        digits = digits_of(margin)
        return f"{self.value:,.{digits}f} ± {margin:,.{digits}f}"


def dot_chart(name: str, title: str, words: str, dots: Sequence[Dot], *, x_label: str, legend: str = "") -> Chart:
    """Numbers as dots on lines from zero, each with its label above: labels are long, and phones narrow.

    With intervals, error bars and the counts behind estimates; `legend` is that of the dots.
    """
    lengths = [max(0.0, dot.value) for dot in dots]
    ends = [length if dot.high is None else max(0.0, dot.high) for dot, length in zip(dots, lengths, strict=True)]
    counts = [None if dot.count is None else max(0.0, dot.count) for dot in dots]
    behind = [count for count in counts if count is not None]
    x, low = _length_axis("value", x_label, [*ends, *lengths, *behind])
    labels = [_lines(dot.label) for dot in dots]
    most, some_own = max(map(len, labels)), any(dot.own for dot in dots)
    values = [
        {
            "place": place, "number": str(dot), "low": low, "begin": max(low, dot.low or 0.0), "end": ends[place],
            "value": lengths[place], "count": counts[place], "own": dot.own, "main": legend, "behind": "count",
            "colour": GREY if some_own and not dot.own else BLUE,
            **{f"line{n}": line for n, line in enumerate(labels[place])},
        }
        for place, dot in enumerate(dots)
    ]  # fmt: skip
    # Long labels have several lines, all above their number.
    down, kinds = 0.5 * _LINE * (most - 1), 2 if behind else 1

    def points(field: str, kind: str) -> Spec:
        styles = {
            channel: _name(
                kind, legend={**_ABOVE, "columnPadding": 60},
                scale={"domain": [legend, "count"][:kinds], "range": looks[:kinds]},
            )
            for channel, looks in (("color", [BLUE, GREY]), ("shape", ["circle", "diamond"]))
        }  # fmt: skip
        if not legend:
            styles = {"color": _name("colour", scale=None, legend=None)}
        return _layer({**_DOT, "size": 90, "yOffset": down}, None, x=_number(field), **styles)

    stem = {"type": "rule", "color": INK, "opacity": 0.2, "strokeWidth": 2, "yOffset": down}
    bar = {"type": "rule", "color": BLUE, "strokeWidth": 2.5, "yOffset": down}
    tick = {"type": "tick", "color": BLUE, "thickness": 2.5, "size": 12, "yOffset": down}
    text = {"type": "text", "align": "left", "fontWeight": {"expr": "datum.own ? 700 : 400"}}
    intervals = [
        _layer(bar, x=_number("begin"), x2={"field": "end"}),
        *(_layer(tick, x=_number(end)) for end in ("begin", "end")),
    ]
    layers = [
        _layer(stem, x=x, x2={"field": "low"}),
        *(intervals if legend else []),
        *([points("count", "behind")] if behind else []),
        points("value", "main"),
        *(
            _layer({**text, "dy": down - 17 - _LINE * n}, x={"value": 0}, text=_name(f"line{n}"))
            for n in range(most)
        ),
        _layer({**text, "dx": 9, "yOffset": down}, x=_number("end"), text=_name("number")),
    ]
    y = {"field": "place", "type": "ordinal", "axis": None}
    spec = {
        "data": {"values": values}, "encoding": {"y": y}, "layer": layers, "width": _WIDTH,
        "height": {"step": 42 + _LINE * (most - 1)},
    }  # fmt: skip
    return Chart(name, title, words, spec)


def _lines(label: str) -> list[str]:
    """The lines of a long label, the last one first."""
    lines = textwrap.wrap(label, _LABEL_WIDTH) or [""]
    if len(lines) > _LABEL_LINES:
        lines = [*lines[: _LABEL_LINES - 1], lines[_LABEL_LINES - 1][:-1] + "…"]
    return lines[::-1]


def panels(name: str, title: str, words: str, parts: Sequence[Chart], *, one_legend: bool = False) -> Chart:
    """Several charts under one title."""
    drawn = [{"title": one.title.split("\n"), **one.spec} for one in parts]
    scales = dict.fromkeys(("color", "strokeDash", "shape"), "shared" if one_legend else "independent")
    spec = {"concat": drawn, "columns": 2, "spacing": 30, "resolve": {"scale": scales}}
    return Chart(name, title, words, spec)


# The curves of the paper's figure: colour, dashes, shape of the minimum, label.
_CURVES: Final = {
    "gshm-add-the-deltas": (VERMILLION, [6, 4], "square", "GSHM, add the deltas"),
    "gshm-exact": (GREEN, [1, 0], "circle", "GSHM, exact"),
    "csh-add-the-deltas": (ORANGE, [3, 3], "diamond", "CSH, add the deltas"),
    "csh-tighter": (BLUE, [8, 3, 2, 3], "triangle-up", "CSH, tighter (the paper)"),
    "exact": (INK, [1, 0], "cross", "CSH, exact (dphist)"),
}


@lru_cache(maxsize=32)
def frontiers(comparison: Comparison) -> tuple[Frontier, ...]:
    """The curves of the paper's figure for one comparison: seconds of work, so they are kept."""
    budget, contract = comparison.budget, comparison.contract
    shared = math.inf if contract.max_nonzero is None else math.sqrt(contract.max_nonzero)
    names = [name for name in _CURVES if name.startswith("gshm") or math.isfinite(shared)]
    largest = 1.3 * max(row.total_noise for row in comparison.rows if row.analysis in _CURVES)
    return tuple(
        frontier(
            epsilon=budget.epsilon, delta=budget.delta, analysis=name, max_nonzero=contract.max_nonzero,
            max_items_per_user=contract.max_items_per_user,
            gamma=None if name.startswith("gshm") else shared, largest_noise=largest,
        )
        for name in names
    )  # fmt: skip


def describe_comparisons(comparisons: Sequence[Comparison]) -> str:
    """The lowest threshold of each comparison, in words."""
    sentences = []
    for comparison in comparisons:
        best = min(comparison.rows, key=lambda row: row.tau)
        sentences.append(
            f"For {comparison.title} the lowest threshold is {best.threshold:.1f} "
            f"({best.mechanism}, {best.analysis}), {best.ratio:.3f} times the exact GSHM's."
        )
    return " ".join(sentences)


def frontier_chart(comparison: Comparison) -> Chart:
    """The paper's figure: least tau against total noise for every analysis, with the minima marked."""
    curves = frontiers(comparison)
    minima = {row.analysis.split(",")[0]: row for row in reversed(comparison.rows)}
    lowest = {curve.analysis: minima[curve.analysis] for curve in curves}
    labels = {name: f"{_CURVES[name][3]}: {row.tau:,.1f}" for name, row in lowest.items()}
    tallest = 1.6 * max(row.tau for row in lowest.values())
    noises = [x for curve in curves for x in (curve.least_noise, *(noise for noise, _ in curve.points))]
    across = "total noise (standard deviation of a released count)"
    x = _axis("noise", across, [min(noises), max(noises)], 6)
    y = _axis("tau", "least tau (threshold less one)", [0, tallest], 5)
    colours, dashes, *_ = zip(*(_CURVES[name] for name in labels), strict=True)
    styles = _styles(list(labels.values()), colours, dashes, orient="bottom", columns=2)
    colour = styles["color"]
    # Given as it is, so that the legend shows lines.
    shape = _name("shape", legend=None, scale=None)
    layers: list[Spec] = []
    for curve in curves:
        label, best = labels[curve.analysis], lowest[curve.analysis]
        points = [{"label": label, "noise": a, "tau": b} for a, b in curve.points if b <= tallest]
        least = {"label": label, "noise": curve.least_noise}
        minimum = {
            "label": label, "noise": best.total_noise, "tau": best.tau, "shape": _CURVES[curve.analysis][2],
        }  # fmt: skip
        # The exact curves of GSHM and CSH lie on each other: a wide one below a thin one shows both.
        width = 5.0 if curve.analysis == "gshm-exact" else 1.8
        layers += [
            _layer({"type": "line", "strokeWidth": width}, points, x=x, y=y, **styles),
            _layer({"type": "rule", "strokeDash": [2, 3], "opacity": 0.7}, [least], x=x, color=colour),
            _layer({**_DOT, "size": 90}, [minimum], x=x, y=y, color=colour, shape=shape),
        ]
    spec = {"layer": layers, "width": _WIDTH, "height": 300}
    return Chart("comparison", comparison.title, describe_comparisons([comparison]), spec)


def curve_chart(
    name: str, points: Sequence[tuple[float, float]], own: Mark | None = None, more: str = ""
) -> Chart:
    """delta against epsilon; `more` is added to its words."""
    kept = sorted((float(epsilon), float(delta)) for epsilon, delta in points if delta > 0.0)
    if not kept:
        raise InvalidParameter("a profile needs at least one point with a delta above 0")
    (first, high), (last, low) = kept[0], kept[-1]
    falls = f"delta falls from {upper_figure(high, 4)} at epsilon {first:.4g}"
    words = f"{falls} to {upper_figure(low, 4)} at epsilon {last:.4g}."
    return line_chart(
        name, "delta for every epsilon", f"{words} {more}".strip(), {"delta, certified at the points": kept},
        [own] if own else [], x_label="epsilon", y_label="delta", certified=True,
    )  # fmt: skip


def _plan_profile(plan: Plan) -> Chart:
    budget, delta = plan.budget, plan.certificate.delta
    more = f"At epsilon {budget.epsilon:g} it is {upper_figure(delta, 6)}, within the budget of {budget.delta:g}."
    return curve_chart("profile", curve_of(plan), Mark("budget", budget.epsilon, delta), more)


def _plan_release(plan: Plan) -> Chart:
    # With a request: whether counts will be reduced is not known before.
    selection = selection_of(plan, {"epsilon": plan.budget.epsilon})
    if selection is None:
        raise InvalidParameter("every item of a public list is released: there is no probability to draw")
    return _probability(selection)


def _plan_limit(plan: Plan) -> Chart:
    if plan.contract.max_items_per_user is None:
        raise InvalidParameter("the plan has no limit on the items per user: there is nothing to draw")
    return kept_chart(plan)


def _plan_chart(plan: Plan) -> Chart:
    parts = [_plan_profile(plan), *([] if math.isinf(plan.threshold) else [_plan_release(plan)])]
    parts += [kept_chart(plan)] if plan.levels else []
    title = f"{plan.mechanism}, epsilon = {plan.budget.epsilon:g}, delta = {plan.budget.delta:g}"
    return panels("plan", title, " ".join(one.words for one in parts), parts)


def simulation_chart(simulation: Simulation) -> Chart:
    """Items, missing share, errors and distance of all candidates: limits as lines, top-k as a dashed line."""
    kinds = {
        "cap": "m items per user, others dropped", "top": "the k largest", "auto": "m chosen privately",
        "spread": "m items per user, others spread",
    }  # fmt: skip

    def panel(name: str, title: str) -> Chart:
        rows = [
            {"label": kinds[one.kind], "x": one.value or 1, "y": getattr(one, name)}
            for one in simulation.candidates
            if getattr(one, name) is not None
        ]
        bounds = [row["x"] for row in rows]
        x = _log_axis("x", "m or k", bounds, [min(bounds), max(*bounds, min(bounds) + 1)])
        y = _number("y", title=None, axis={"format": ".0%"} if name == "missing" else {"labelExpr": _TICKS})
        positive = [row["y"] for row in rows if row["y"] > 0.0]
        if name == "mean_error" and positive:
            y = _log_axis("y", None, positive)
        styles = _styles(list(kinds.values()), *_STYLES, orient="bottom", direction="horizontal")
        fixed = [row for row in rows if row["label"] != kinds["auto"]]
        chosen = [row for row in rows if row["label"] == kinds["auto"]]
        layers = [
            _layer({"type": "line", "strokeWidth": 2}, fixed, x=x, y=y, **styles),
            _layer({**_DOT, "size": 45}, fixed, x=x, y=y, color=styles["color"]),
            _layer({"type": "rule", "strokeWidth": 2}, chosen, y=y, **styles),
        ]
        return Chart(name, title, "", {"layer": layers, "width": 250, "height": _HEIGHT})

    parts = [
        panel("items", "items released"),
        panel("missing", "share of pairs missing"),
        panel("mean_error", "mean error of a released count"),
        panel("published_distance", "distance of the published numbers"),
    ]
    data = printable(simulation.title)
    title, words = f"{NOTICE}\n{data}", f"{NOTICE} {data}. {simulation.reason}"
    return panels("simulation", title.replace("; epsilon", "\nepsilon"), words, parts, one_legend=True)


def kept_chart(plan: Plan) -> Chart:
    """What all items of a user count together, by their number."""
    levels = levels_of(plan)
    limit, (most, weight) = levels[0][0], levels[-1]
    last = int(max(2, min(2 * most, plan.contract.nonzero)))
    points = [(1.0, 1.0), (float(limit), float(limit))]
    for (before, _), (items, each) in pairwise(levels):
        points += [((before + 1) * 1.0, (before + 1) * each), (items * 1.0, items * each)]
    points.append((float(last), most * weight))
    words = f"A user with up to {count_items(limit)} counts in full. One with more counts for a random {limit:,}."
    if most > limit:
        beyond = ", and with more items no more" if last > most else ""
        words = (
            f"A user with up to {count_items(limit)} counts in full. One with more counts less for each item: "
            f"with {count_items(most)} {figure(most * weight)} in all, {figure(weight)} for each{beyond}."
        )
    bases = (1, 2, 5) if last <= 2000 else (1,)
    powers = range(math.ceil(math.log10(last)) + 1)
    settings = {
        "scale": {"type": "log", "domain": [0.75, last + 0.5], "nice": False},
        "axis": {
            "values": [tick for power in powers for base in bases if (tick := base * 10**power) <= last],
            "labelExpr": _TICKS,
        },
    }
    x = _number("x", title="items of a user (logarithmic)", **settings)
    y = _number("y", title="counted, by weight (logarithmic)", **settings)
    lines = {"counted": points, "all items": [(1.0, 1.0), (float(last), float(last))]}
    styles = _styles(list(lines), [BLUE, GREY], [[1, 0], [4, 4]], orient="top", direction="horizontal")
    layers = [
        _layer(
            {"type": "line", "strokeWidth": 2.5}, [{"label": name, "x": a, "y": b} for a, b in line],
            x=x, y=y, **styles,
        )
        for name, line in lines.items()
    ]  # fmt: skip
    for place in sorted({limit, most}):
        # Where both marks are close, their labels are on either side.
        on_left = place == limit if limit < most < 2 * limit else math.log(place) > 0.6 * math.log(last)
        layers += _mark_layers(Mark(f"{place:,}", place), x, y, on_left=on_left, low=True)
    spec = {"layer": layers, "width": _WIDTH, "height": _HEIGHT}
    return Chart("kept", "What the items of a user count", words, spec)


def largest_counts_chart(rows: Sequence[Mapping[str, Any]], words: str) -> Chart:
    """Counts of public or synthetic data by rank: in each row `true`, and `released` by a trial, or None."""
    states = ["true count, released", "true count, not released", "released count"]
    values: list[dict[str, Any]] = [
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
    """The largest released counts."""
    chosen = release.chosen
    rows = rows_of(
        release.to_arrow(),
        release.plan,
        release.document()["request"],
        None if chosen is None else chosen.correction,
    )
    if not rows.total:
        raise InvalidParameter("the release is empty: there is nothing to draw")
    found = counts_chart(rows, 20)
    return found if release.private else _with_warning(found)


def counts_chart(rows: Rows, most: int) -> Chart:
    """The largest numbers of a release with their intervals, estimates where there are any; or bars without."""
    shown, (numbers, interval) = min(most, rows.total), rows.main
    cells = zip(*(column.texts(shown) for column in rows.columns[: len(rows.items)]), strict=True)
    labels = [printable(make_visible(", ".join(one))) for one in cells]
    which = f"The {shown} largest of {rows.total:,}" if shown < rows.total else f"All {rows.total:,}"
    what = "estimates" if rows.estimated else "released counts"
    if interval is None:
        dots = [Dot(label, float(n)) for label, n in zip(labels, numbers.values, strict=False)]
        words = f"{which} {what}, from {dots[0].value:,.0f} to {dots[-1].value:,.0f}."
        return dot_chart("counts", f"The largest {what}", words, dots, x_label=rows.count)
    counts = rows.counts if rows.estimated else [None] * shown
    lows: Sequence[Any] = interval.values
    highs: Sequence[Any] = interval.upper
    if (half := interval.half) is not None:
        lows, highs = (tuple(n + side for n in numbers.values[:shown]) for side in (-half, half))
    columns = zip(labels, numbers.values, lows, highs, counts, strict=False)
    dots = [Dot(*one) for one in columns]
    level = f"{100 * rows.level:g} %"
    words = f"{which} {what}, from {dots[0]} to {dots[-1]} ({level} intervals)"
    words += ", and the counts that they are made of." if rows.estimated else "."
    kind = "estimate" if rows.estimated else "count"
    return dot_chart(
        "counts", f"The largest {what}", words, dots, x_label="users" if rows.estimated else rows.count,
        legend=f"{kind}, {level} interval",
    )  # fmt: skip


# --- the charts of a report


def report_charts(facts: Facts) -> tuple[Chart, ...]:
    """All charts of a report, in its order."""
    found = [*([counts_chart(facts.rows, _SHOWN)] if facts.rows.total else []), _guarantee(facts)]
    if facts.selection is not None:
        found += [_probability(facts.selection), _error(facts.selection)]
    if facts.choice is not None or facts.plan.contract.spread is not None:
        found.append(kept_chart(facts.plan))
    if facts.choice is not None:
        found.append(_choice(facts.choice))
    return tuple(found if facts.private else map(_with_warning, found))


def _with_warning(chart: Chart) -> Chart:
    """For noise from a seed: a chart may be shown without its page."""
    words = f"{NOT_PRIVATE}; it protects nobody. {chart.words}"
    return replace(chart, title=f"NOT PRIVATE: {chart.title}", words=words)


def _guarantee(facts: Facts) -> Chart:
    own, which = (
        ("this release", "The budget") if facts.private else ("the plan, not this release", "The plan's budget")
    )
    epsilon, delta = (upper_figure(number, 6) for number in (facts.budget.epsilon, facts.budget.delta))
    budget = f"{which} is delta {delta} at epsilon {epsilon}."
    mark = Mark(own, facts.budget.epsilon, facts.delta_certified)
    return curve_chart("guarantee", facts.curve, mark, f"{budget} {BETWEEN}")


def _probability(found: Selection) -> Chart:
    least = "" if found.unlikely is None else f" up to {found.unlikely:,} at most 1 %;"
    what = "release" if found.largest is None else "passing"
    words = (
        f"Probability that an item {passes(found)}, by the {found.axis}:{least} from {found.even:,} on at least "
        f"50 %, from {found.likely:,} on at least 99 %."
    )
    points = list(zip(map(float, found.counts), found.probability, strict=True))
    return line_chart(
        "release", f"Probability of {what}", words, {f"probability of {what}": points},
        [Mark("50 %", found.even), Mark("99 %", found.likely)],
        x_label=found.axis, y_label="probability", share=True,
    )  # fmt: skip


def _error(found: Selection) -> Chart:
    # Below 1 % hardly anything is released, and its error says nothing about what a reader sees.
    kept = [place for place, p in enumerate(found.probability) if p >= 0.01]
    xs = [float(found.counts[place]) for place in kept]
    bias, deviation = ([values[place] for place in kept] for values in (found.bias, found.deviation))
    middle = min(range(len(xs)), key=lambda place: abs(xs[place] - found.even))
    digits = max(0, 1 - math.floor(math.log10(deviation[-1])))
    near, far = (
        f"{bias[at]:,.{digits}f} on average, with a standard deviation of {deviation[at]:,.{digits}f}"
        for at in (middle, -1)
    )
    words = (
        f"A released count is too high by {near}, where the {found.axis} is {xs[middle]:,.0f}, and by {far}, "
        f"where it is {xs[-1]:,.0f}."
    )
    lines = {
        "too high on average by": list(zip(xs, bias, strict=True)),
        "standard deviation": list(zip(xs, deviation, strict=True)),
    }
    return line_chart(
        "error", "Expected error of a released count", words, lines, [Mark("50 % released", found.even)],
        x_label=found.axis, y_label="error, in users",
    )  # fmt: skip


def _choice(found: LimitChoice) -> Chart:
    """Users by number of items; the last ones that are within the noise are left out."""
    within_limit = sum(items <= found.cap for items in found.most)
    dots = [
        Dot(label, float(users), own=place < within_limit)
        for place, (label, users) in enumerate(zip(found.labels, found.users, strict=True))
    ]
    shown = dots[: found.drawn]
    above_zero = [(max(0.0, dot.value), dot.own) for dot in shown]
    within = sum(users for users, own in above_zero if own) / max(1.0, sum(users for users, _ in above_zero))
    words = (
        "Noisy numbers of users by how many items they have; the noise of each has a standard deviation of "
        f"{figure(found.deviation)}. The limit chosen from them is {found.cap:,}: about "
        f"{percent(within)} of users have no more (in bold)."
    )
    if any(dot.value < 0.0 for dot in shown):
        words += " A number below zero comes from the noise and is drawn at zero."
    if len(shown) < len(dots):
        words += (
            f" The {len(dots) - len(shown)} numbers from {dots[len(shown)].label} items on are not drawn: none is "
            "more than three standard deviations above zero. The table has all of them."
        )
    return dot_chart("sizes", "Users by number of items (noisy)", words, shown, x_label="users")


def chart(result: Any, part: str | None = None) -> Chart:
    """The chart of a plan, a comparison (or several), a profile, a simulation or a release.

    A notebook shows it; `.save("chart.png")` writes it; `.words` is its text alternative; `.to_altair()` is the
    altair chart. A plan has the parts "profile", "release" and "limit".
    """
    makers: dict[str | None, Callable[[Plan], Chart]] = {}
    if isinstance(result, Plan):
        makers = {None: _plan_chart, "profile": _plan_profile, "release": _plan_release, "limit": _plan_limit}
    if part in makers:
        return makers[part](result)
    if part is not None:
        parts = ", ".join(filter(None, makers)) or "none"
        raise InvalidParameter(f"this chart has no part {part!r} (parts: {parts})")
    if isinstance(result, Comparison):
        return frontier_chart(result)
    if isinstance(result, Simulation):
        return simulation_chart(result)
    if isinstance(result, Release):
        return release_chart(result)
    if isinstance(result, Sequence) and result and all(isinstance(one, Comparison) for one in result):
        several = [frontier_chart(one) for one in result]
        words = describe_comparisons(result)
        return several[0] if len(several) == 1 else panels("comparison", "Least tau against noise", words, several)
    if isinstance(result, Sequence) and result and all(isinstance(one, tuple) and len(one) == 2 for one in result):
        return curve_chart("profile", result)
    raise InvalidParameter(
        "a chart is made of a plan, a comparison, a profile, a simulation or a release, not of "
        f"{type(result).__name__}"
    )
