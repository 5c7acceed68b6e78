"""The charts: one Vega-Lite definition each, for reports, files, notebooks and the explore page.

A `Chart` holds its title and its words as plain text. altair and vl-convert are loaded when it is drawn. Text and
axes have the colour of their surroundings (`currentColor`) on a transparent background: one SVG follows light and
dark.
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

from dphist.display import count_items, figure, printable, raised
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
from dphist.report.words import BETWEEN, PEERS, passes, percent
from dphist.simulation.population import NOTICE
from dphist.simulation.simulate import Simulation

FigureFormat = Literal["svg", "png"]
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
# Where the largest bar is this many times the shortest, points on a logarithmic axis replace the bars.
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
_CONFIG: Final[dict[str, Any]] = {
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
_THEME: Final = (
    "<style>.dphist-chart{color:#1c2126;background:#fff}"
    "@media(prefers-color-scheme:dark){.dphist-chart{color:#e8eaed;background:#15181c}}</style>"
)


@dataclass(frozen=True)
class Chart:
    """A chart: `title` and `words` (its text alternative), and a function that makes the altair chart."""

    name: str
    title: str
    words: str
    draw: Callable[[], Any]

    def to_altair(self, **config: Any) -> Any:
        """The chart as altair has it, to be changed or rendered live."""
        require_plotting()
        drawn = self.draw().properties(title=self.title.split("\n"), description=self.words)
        return drawn.configure(**_CONFIG, **config)

    def to_dict(self) -> dict[str, Any]:
        """The Vega-Lite definition."""
        found: dict[str, Any] = self.to_altair().to_dict()
        return found

    def svg(self, *, inline: bool = False) -> str:
        """One SVG with its text alternative; `inline` for a page that sets the colour of the text itself."""
        converter = require_plotting()
        spec = self.to_altair(aria=False, background="transparent").to_dict(validate=False)
        drawn: str = converter.vegalite_to_svg(spec, allowed_base_urls=[])
        # Elements of the drawing have no roles of their own: the drawing as a whole has its words.
        drawn = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", drawn)
        size = re.match(r'<svg [^>]*?(width="[\d.]+" height="[\d.]+") viewBox="([^"]+)">', drawn)
        assert size is not None
        told = (
            f'<title id="{self.name}-title">{escape(self.title)}</title>'
            f'<desc id="{self.name}-desc">{escape(self.words)}</desc>'
        )
        space = "" if inline else f'xmlns="http://www.w3.org/2000/svg" {size[1]} '
        head = (
            f'<svg {space}class="dphist-chart" role="img" viewBox="{size[2]}" '
            f'aria-labelledby="{self.name}-title {self.name}-desc">'
        )
        return head + ("" if inline else SVG_MARK) + told + ("" if inline else _THEME) + drawn[size.end() :]

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
    """The converter, if altair is there as well."""
    try:
        import altair  # noqa: F401
        import vl_convert
    except ImportError:
        raise MissingExtra("charts need altair and vl-convert: pip install 'dphist[plot]'") from None
    return vl_convert


def _png_text(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@dataclass(frozen=True)
class Series:
    """A line; with `knots`, the points that were computed are marked."""

    label: str
    points: Sequence[tuple[float, float]]
    knots: bool = False


@dataclass(frozen=True)
class Mark:
    """A labelled point, or without `y` a vertical line."""

    label: str
    x: float
    y: float | None = None


@dataclass(frozen=True)
class Bar:
    """A labelled number; `own` is the one that a reader looks for."""

    label: str
    value: float
    own: bool = False


def line_chart(
    name: str, title: str, words: str, series: Sequence[Series], marks: Sequence[Mark], *,
    x_label: str, y_label: str, log_y: bool = False, share_y: bool = False,
) -> Chart:  # fmt: skip
    """Lines over a common axis. `share_y`: from 0 to 100 %."""

    def draw() -> Any:
        import altair as alt

        xs = [x for one in series for x, _ in one.points] + [mark.x for mark in marks]
        ys = [y for one in series for _, y in one.points] + [mark.y for mark in marks if mark.y is not None]
        low, high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1.0
        x = alt.X("x:Q", title=x_label).scale(domain=[low, high], nice=False).axis(labelExpr=_TICKS, tickCount=6)
        y = alt.Y("y:Q", title=y_label)
        if log_y:
            y = _log_axis(y, ys)
        elif share_y:
            y = y.scale(domain=[0, 1]).axis(format=".0%", tickCount=5)
        else:
            y = y.scale(domain=[min(0.0, *ys), 1.08 * max(ys) or 1.0]).axis(labelExpr=_TICKS, tickCount=5)
        colour, dash = _styles([one.label for one in series], *_STYLES, orient="top", direction="horizontal")
        layers = []
        for one in series:
            data = _data([{"label": one.label, "x": a, "y": b} for a, b in one.points])
            layers.append(data.mark_line(strokeWidth=2.5).encode(x, y, colour, dash))
            if one.knots:
                layers.append(data.mark_point(size=22, filled=True, opacity=1).encode(x, y, colour))
        for mark in marks:
            layers += _mark_layers(mark, x, y, on_left=mark.x > low + 0.6 * (high - low), low=share_y)
        return alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT)

    return Chart(name, title, words, draw)


def _data(values: Sequence[Mapping[str, Any]]) -> Any:
    import altair as alt

    kept: Any = alt.Data  # it has no types
    return alt.Chart(kept(values=list(values)))


def _styles(
    labels: Sequence[str], colours: Sequence[str], dashes: Sequence[Any], **legend: Any
) -> tuple[Any, Any]:
    """Colour and dashes of lines by the field `label`, in one legend."""
    import altair as alt

    key, names = alt.Legend(title=None, symbolType="stroke", **legend), list(labels)
    ranges = ((alt.Color, list(colours)), (alt.StrokeDash, list(dashes)))
    colour, dash = (
        channel("label:N", sort=names, legend=key, scale=alt.Scale(domain=names, range=kept[: len(names)]))
        for channel, kept in ranges
    )
    return colour, dash


def _log_axis(channel: Any, values: Sequence[float], domain: Sequence[float] | None = None) -> Any:
    """Powers of ten, at most seven of them labelled; the domain ends at such powers unless it is given."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) - 1e-9)
    last = max(last, first + 1)
    ticks = [10.0**power for power in range(first, last + 1, max(1, math.ceil((last - first) / 6)))]
    domain = domain or [10.0**first, 10.0**last]
    return channel.scale(type="log", domain=domain, nice=False).axis(values=ticks, labelExpr=_POWERS)


def _mark_layers(mark: Mark, x: Any, y: Any, *, on_left: bool, low: bool) -> list[Any]:
    """A point or a line, with its label where there is room."""
    import altair as alt

    data = _data([{"x": mark.x, "y": mark.y, "label": mark.label}])
    place: dict[str, Any] = {"align": "right" if on_left else "left", "fontWeight": 600}
    if mark.y is not None:
        point = data.mark_point(size=90, filled=True, color=VERMILLION, opacity=1).encode(x, y)
        return [point, data.mark_text(dx=-8 if on_left else 8, dy=-10, **place).encode(x, y, text="label:N")]
    line = data.mark_rule(strokeDash=[4, 4], strokeWidth=1.5, color=INK, opacity=0.7).encode(x)
    at = alt.value(_HEIGHT - 10 if low else 10)
    return [line, data.mark_text(dx=-5 if on_left else 5, **place).encode(x, y=at, text="label:N")]


def bar_chart(name: str, title: str, words: str, bars: Sequence[Bar], *, x_label: str) -> Chart:
    """Bars from zero, each with its label above and its number at the end: labels are long, and phones narrow."""

    def draw() -> Any:
        import altair as alt

        lengths = [max(0.0, bar.value) for bar in bars]
        x, low = _length_axis("length:Q", x_label, lengths)
        log = low > 0.0
        values = [
            {"place": place, "length": lengths[place], "low": low, "number": bar_number(bar.value), **vars(bar)}
            for place, bar in enumerate(bars)
        ]
        base = _data(values).encode(alt.Y("place:O", axis=None))
        colour = alt.when("datum.own").then(alt.value(BLUE)).otherwise(alt.value(GREY))
        weight: Any = alt.ExprRef("datum.own ? 700 : 400")
        if log:
            stems = base.mark_rule(color=INK, opacity=0.3, strokeWidth=2).encode(x, x2="low:Q")
            shapes = [stems, base.mark_point(filled=True, size=130, opacity=1).encode(x, color=colour)]
        else:
            shapes = [base.mark_bar(size=14).encode(x, color=colour)]
        return alt.layer(
            *shapes,
            base.mark_text(align="left", dy=-17, fontWeight=weight).encode(x=alt.value(0), text="label:N"),
            base.mark_text(align="left", dx=9, fontWeight=weight).encode(x, text="number:N"),
        ).properties(width=_WIDTH, height=alt.Step(42))

    return Chart(name, title, words, draw)


def _length_axis(field: str, label: str, lengths: Sequence[float]) -> tuple[Any, float]:
    """The axis of lengths and where it begins: at zero, or above it where a logarithmic one is needed."""
    import altair as alt

    least, most = min(lengths), max(*lengths, 1e-9)
    if least <= 0.0 or most <= _LOG_RATIO * least:
        x = alt.X(field, title=label).scale(domain=[0.0, most], nice=False)
        return x.axis(labelExpr=_TICKS, tickCount=5), 0.0
    low = 10.0 ** math.floor(math.log10(least) - 1e-9)
    return _log_axis(alt.X(field, title=f"{label} (logarithmic)"), lengths, domain=[low, most]), low


@dataclass(frozen=True)
class Measured:
    """A labelled number with its interval; an estimate has the count that it is made of as well."""

    label: str
    value: float
    low: float
    high: float
    count: float | None = None

    def __str__(self) -> str:
        margin = (self.high - self.low) / 2.0
        digits = digits_of(margin)
        return f"{self.value:,.{digits}f} ± {margin:,.{digits}f}"


def interval_chart(
    name: str, title: str, words: str, numbers: Sequence[Measured], *, x_label: str, what: str
) -> Chart:
    """Numbers as dots with error bars, and the counts behind estimates; `what` is the legend of the dots."""

    def draw() -> Any:
        import altair as alt

        ends = [max(0.0, one.high) for one in numbers]
        dots = [max(0.0, one.value) for one in numbers]
        counts = [max(0.0, one.count) for one in numbers if one.count is not None]
        x, low = _length_axis("value:Q", x_label, [*ends, *dots, *counts])
        names, colours, shapes = [what, "count"], [BLUE, GREY], ["circle", "diamond"]
        names = names if counts else names[:1]
        labels = [_lines(one.label) for one in numbers]
        most = max(map(len, labels))
        values = [
            {
                "place": place, "number": str(one), "low": low, "begin": max(low, one.low), "end": ends[place],
                "value": dots[place], "count": None if one.count is None else max(0.0, one.count),
                "main": what, "behind": "count", **{f"line{n}": line for n, line in enumerate(labels[place])},
            }
            for place, one in enumerate(numbers)
        ]  # fmt: skip
        base = _data(values).encode(alt.Y("place:O", axis=None))
        key: dict[str, Any] = {
            "legend": alt.Legend(title=None, orient="top", direction="horizontal", columnPadding=60)
        }
        colour = alt.Scale(domain=names, range=colours[: len(names)])
        shape = alt.Scale(domain=names, range=shapes[: len(names)])
        # Long labels have several lines, all above their number.
        down = 0.5 * _LINE * (most - 1)

        def points(field: str, kind: str) -> Any:
            point = base.mark_point(filled=True, size=90, opacity=1, yOffset=down)
            return point.encode(
                x=alt.X(f"{field}:Q"),
                color=alt.Color(f"{kind}:N", scale=colour, **key),
                shape=alt.Shape(f"{kind}:N", scale=shape, **key),
            )

        return alt.layer(
            base.mark_rule(color=INK, opacity=0.2, strokeWidth=2, yOffset=down).encode(x, x2="low:Q"),
            base.mark_rule(color=BLUE, strokeWidth=2.5, yOffset=down).encode(alt.X("begin:Q"), x2="end:Q"),
            *(
                base.mark_tick(color=BLUE, thickness=2.5, size=12, yOffset=down).encode(alt.X(f"{end}:Q"))
                for end in ("begin", "end")
            ),
            *([points("count", "behind")] if counts else []),
            points("value", "main"),
            *(
                base.mark_text(align="left", dy=down - 17 - _LINE * n).encode(x=alt.value(0), text=f"line{n}:N")
                for n in range(most)
            ),
            base.mark_text(align="left", dx=9, yOffset=down).encode(alt.X("end:Q"), text="number:N"),
        ).properties(width=_WIDTH, height=alt.Step(42 + _LINE * (most - 1)))

    return Chart(name, title, words, draw)


def _lines(label: str) -> list[str]:
    """The lines of a long label, the last one first."""
    lines = textwrap.wrap(label, _LABEL_WIDTH) or [""]
    if len(lines) > _LABEL_LINES:
        lines = [*lines[: _LABEL_LINES - 1], lines[_LABEL_LINES - 1][:-1] + "…"]
    return lines[::-1]


def bar_number(value: float) -> str:
    """The number at the end of a bar."""
    return f"{value:,.0f}" if value >= 1000.0 or value == round(value) else f"{value:.4g}"


def panels(
    name: str, title: str, words: str, parts: Sequence[Chart], *, columns: int = 2, one_legend: bool = False
) -> Chart:
    """Several charts under one title."""

    def draw() -> Any:
        import altair as alt

        drawn = [one.draw().properties(title=one.title.split("\n")) for one in parts]
        kept: Literal["shared", "independent"] = "shared" if one_legend else "independent"
        together = alt.concat(*drawn, columns=columns, spacing=30)
        return together.resolve_scale(color=kept, strokeDash=kept, shape=kept)

    return Chart(name, title, words, draw)


# The curves of the paper's figure: colour, dashes, shape of the minimum, label.
_CURVES: Final = {
    "gshm-add-the-deltas": (VERMILLION, [6, 4], "square", "GSHM, add the deltas"),
    "gshm-exact": (GREEN, [1, 0], "circle", "GSHM, exact"),
    "csh-add-the-deltas": (ORANGE, [3, 3], "diamond", "CSH, add the deltas"),
    "csh-tighter": (BLUE, [8, 3, 2, 3], "triangle-up", "CSH, tighter (the paper)"),
    "exact": (INK, [1, 0], "cross", "CSH, exact (dphist)"),
}


def curve_label(analysis: str) -> str:
    """What a curve of the paper's figure is called in the legend."""
    return _CURVES[analysis][3]


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

    def draw() -> Any:
        import altair as alt

        curves = frontiers(comparison)
        minima = {row.analysis.split(",")[0]: row for row in reversed(comparison.rows)}
        lowest = {curve.analysis: minima[curve.analysis] for curve in curves}
        labels = {name: f"{curve_label(name)}: {row.tau:,.1f}" for name, row in lowest.items()}
        tallest = 1.6 * max(row.tau for row in lowest.values())
        noises = [x for curve in curves for x in (curve.least_noise, *(noise for noise, _ in curve.points))]
        x = alt.X("noise:Q", title="total noise (standard deviation of a released count)")
        x = x.scale(domain=[min(noises), max(noises)], nice=False).axis(labelExpr=_TICKS, tickCount=6)
        y = alt.Y("tau:Q", title="least tau (threshold less one)").axis(labelExpr=_TICKS, tickCount=5)
        y = y.scale(domain=[0, tallest])
        colours, dashes, *_ = zip(*(_CURVES[name] for name in labels), strict=True)
        colour, dash = _styles(list(labels.values()), colours, dashes, orient="bottom", columns=2)
        # Given as it is, so that the legend shows lines.
        shape = alt.Shape("shape:N", legend=None, scale=None)
        layers: list[Any] = []
        for curve in curves:
            label, best = labels[curve.analysis], lowest[curve.analysis]
            points = [{"label": label, "noise": a, "tau": b} for a, b in curve.points if b <= tallest]
            # The exact curves of GSHM and CSH lie on each other: a wide one below a thin one shows both.
            width = 5.0 if curve.analysis == "gshm-exact" else 1.8
            least = _data([{"label": label, "noise": curve.least_noise}])
            place = {"noise": best.total_noise, "tau": best.tau, "shape": _CURVES[curve.analysis][2]}
            minimum = _data([{"label": label, **place}])
            layers += [
                _data(points).mark_line(strokeWidth=width).encode(x, y, colour, dash),
                least.mark_rule(strokeDash=[2, 3], opacity=0.7).encode(x, colour),
                minimum.mark_point(size=90, filled=True, opacity=1).encode(x, y, colour, shape),
            ]
        return alt.layer(*layers).properties(width=_WIDTH, height=300)

    return Chart("comparison", comparison.title, describe_comparisons([comparison]), draw)


def threshold_chart(comparison: Comparison) -> Chart:
    """The thresholds of all mechanisms and analyses as bars, the lowest in colour."""
    best = min(row.threshold for row in comparison.rows)
    bars = [
        Bar(f"{row.mechanism}, {row.analysis}", row.threshold, row.threshold == best) for row in comparison.rows
    ]
    words = describe_comparisons([comparison])
    return bar_chart("thresholds", f"Thresholds\n{comparison.title}", words, bars, x_label="threshold")


def curve_chart(
    name: str, points: Sequence[tuple[float, float]], own: Mark | None = None, more: str = ""
) -> Chart:
    """delta against epsilon; `more` is added to its words."""
    kept = sorted((float(epsilon), float(delta)) for epsilon, delta in points if delta > 0.0)
    if not kept:
        raise InvalidParameter("a profile needs at least one point with a delta above 0")
    (first, high), (last, low) = kept[0], kept[-1]
    words = f"delta falls from {raised(high, 4)} at epsilon {first:.4g} to {raised(low, 4)} at epsilon {last:.4g}."
    return line_chart(
        name, "delta for every epsilon", f"{words} {more}".strip(),
        [Series("delta, certified at the points", kept, knots=True)], [own] if own else [],
        x_label="epsilon", y_label="delta", log_y=True,
    )  # fmt: skip


def _plan_profile(plan: Plan) -> Chart:
    budget, delta = plan.budget, plan.certificate.delta
    more = f"At epsilon {budget.epsilon:g} it is {raised(delta, 6)}, within the budget of {budget.delta:g}."
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
        def draw() -> Any:
            import altair as alt

            rows = [
                {"label": kinds[one.kind], "x": one.value or 1, "y": getattr(one, name)}
                for one in simulation.candidates
                if getattr(one, name) is not None
            ]
            bounds = [row["x"] for row in rows]
            domain = [min(bounds), max(*bounds, min(bounds) + 1)]
            x = _log_axis(alt.X("x:Q", title="m or k"), bounds, domain)
            y = alt.Y("y:Q", title=None)
            positive = [row["y"] for row in rows if row["y"] > 0.0]
            if name == "mean_error" and positive:
                y = _log_axis(y, positive)
            else:
                y = y.axis(format=".0%") if name == "missing" else y.axis(labelExpr=_TICKS)
            colour, dash = _styles(list(kinds.values()), *_STYLES, orient="bottom", direction="horizontal")
            fixed = _data([row for row in rows if row["label"] != kinds["auto"]])
            chosen = _data([row for row in rows if row["label"] == kinds["auto"]])
            return alt.layer(
                fixed.mark_line(strokeWidth=2).encode(x, y, colour, dash),
                fixed.mark_point(filled=True, size=45, opacity=1).encode(x, y, colour),
                chosen.mark_rule(strokeWidth=2).encode(y, colour, dash),
            ).properties(width=250, height=_HEIGHT)

        return Chart(name, title, "", draw)

    parts = [
        panel("items", "items released"),
        panel("missing", "share of pairs missing"),
        panel("mean_error", "mean error of a released count"),
        panel("published_distance", "distance of the published numbers"),
    ]
    data = printable(simulation.title)
    title, words = f"{NOTICE}\n{data}", f"{NOTICE} {data}. {simulation.reason}"
    return panels("simulation", title.replace("; epsilon", "\nepsilon"), words, parts, one_legend=True)


# What a plan does to users by their number of items.
_IN_FULL: Final = "count in full"
_LESS: Final = "each item counts less"
_LEFT_OUT: Final = "some items left out"


def kept_chart(plan: Plan, users: Sequence[tuple[int, float]] = (), *, noisy: bool = False) -> Chart:
    """What all items of a user count together, by their number; below it, how many users have so many items.

    `users` are pairs: the most items of a group, which begins after the group before it, and its users.
    They may be `noisy`.
    """
    levels = levels_of(plan)
    limit, (most, weight) = levels[0][0], levels[-1]
    last = int(max(2, min(2 * most, plan.contract.nonzero), *(items for items, _ in users)))
    points = [(1.0, 1.0), (float(limit), float(limit))]
    for (before, _), (items, each) in pairwise(levels):
        points += [((before + 1) * 1.0, (before + 1) * each), (items * 1.0, items * each)]
    points.append((float(last), most * weight))
    total = figure(most * weight)
    words = f"A user with up to {count_items(limit)} counts in full. One with more counts for a random {limit:,}."
    if most > limit:
        beyond = ", and with more items no more" if last > most else ""
        words = (
            f"A user with up to {count_items(limit)} counts in full. One with more counts less for each item: "
            f"with {count_items(most)} {total} in all, {figure(weight)} for each{beyond}."
        )
    groups = _groups(users, limit, most)
    if groups:
        everyone = max(1.0, sum(count for *_, count in groups))
        above = sum(count for first, _, _, count in groups if first > limit) / everyone
        about = "By the noisy numbers about" if noisy else "About"
        words += f" {about} {percent(above)} of users have more than {limit:,}."

    def draw() -> Any:
        import altair as alt

        bases = (1, 2, 5) if last <= 2000 else (1,)
        ticks = [base * 10**power for power in range(math.ceil(math.log10(last)) + 1) for base in bases]
        ticks = [tick for tick in ticks if tick <= last]
        least = 0.75
        scale = {"type": "log", "domain": [least, last + 0.5], "nice": False}

        def axis(channel: Any, field: str, title: str | None, **more: Any) -> Any:
            return channel(field, title=title).scale(**scale).axis(values=ticks, labelExpr=_TICKS, **more)

        across = "items of a user (logarithmic)"
        x = axis(alt.X, "x:Q", None if groups else across, labels=not groups)
        y = axis(alt.Y, "y:Q", "counted, by weight (logarithmic)")
        names = ["counted", "all items"]
        colour, dash = _styles(names, [BLUE, GREY], [[1, 0], [4, 4]], orient="top", direction="horizontal")
        layers = [
            _data([{"label": name, "x": a, "y": b} for a, b in line])
            .mark_line(strokeWidth=2.5)
            .encode(x, y, colour, dash)
            for name, line in zip(names, (points, [(1.0, 1.0), (float(last), float(last))]), strict=True)
        ]
        for place in sorted({limit, most}):
            # Where both marks are close, their labels are on either side.
            on_left = place == limit if limit < most < 2 * limit else math.log(place) > 0.6 * math.log(last)
            layers += _mark_layers(Mark(f"{place:,}", place), x, y, on_left=on_left, low=True)
        top = alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT)
        if not groups:
            return top
        kinds = list(dict.fromkeys(kind for _, _, kind, _ in groups))
        colours = {_IN_FULL: BLUE, _LESS: ORANGE, _LEFT_OUT: VERMILLION}
        values = [
            {
                "from": max(least, 1.01 * (first - 0.5)), "to": 0.99 * (end + 0.5), "kind": kind, "users": count,
                "zero": 0.0,
            }
            for first, end, kind, count in groups
        ]  # fmt: skip
        key = alt.Legend(title=None, orient="top", direction="horizontal", symbolType="square")
        tint = alt.Scale(domain=kinds, range=[colours[kind] for kind in kinds])
        bars = _data(values).mark_bar().encode(
            axis(alt.X, "from:Q", across), x2="to:Q", y2="zero:Q",
            color=alt.Color("kind:N", sort=kinds, scale=tint, legend=key),
            y=alt.Y("users:Q", title="users (noisy)" if noisy else "users").axis(labelExpr=_TICKS, tickCount=4),
        )  # fmt: skip
        below = bars.properties(width=_WIDTH, height=_HEIGHT // 2)
        return alt.vconcat(top, below, spacing=12).resolve_scale(color="independent", strokeDash="independent")

    return Chart("kept", "What the items of a user count", words, draw)


def _groups(users: Sequence[tuple[int, float]], limit: int, most: int) -> list[tuple[int, int, str, float]]:
    """Of each group: least and most items, what the plan does to its users, and their number, at least 0."""
    found, first = [], 1
    for items, count in users:
        kind = _IN_FULL if items <= limit else _LESS if items <= most else _LEFT_OUT
        found.append((first, items, kind, max(0.0, float(count))))
        first = items + 1
    return found


def largest_counts_chart(rows: Sequence[Mapping[str, Any]], words: str) -> Chart:
    """Counts of public or synthetic data by rank: in each row `true`, and `released` by a trial, or None."""

    def draw() -> Any:
        import altair as alt

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
        base = _data(values).encode(alt.X("rank:O", title="rank of the item").axis(values=ranks, labelAngle=0))
        highest = max(max(value["true"], value["released"] or 1.0) for value in values)
        y = _log_axis(alt.Y("true:Q", title="users (logarithmic)"), [1.0, highest])
        legend = alt.Legend(title=None, orient="top", direction="horizontal", symbolType="square")
        scale = alt.Scale(domain=states, range=[BLUE, GREY, VERMILLION])
        dots = base.transform_filter("isValid(datum.released)").mark_point(filled=True, size=45, opacity=1)
        return alt.layer(
            base.mark_bar().encode(y, y2="one:Q", color=alt.Color("state:N", scale=scale, legend=legend)),
            dots.encode(y=alt.Y("released:Q"), color=alt.Color("dot:N", scale=scale, legend=legend)),
        ).properties(width=_WIDTH, height=_HEIGHT)

    return Chart("largest", "The largest counts", words, draw)


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
        bars = [Bar(label, float(n), own=True) for label, n in zip(labels, numbers.values, strict=False)]
        words = f"{which} {what}, from {bars[0].value:,.0f} to {bars[-1].value:,.0f}."
        return bar_chart("counts", f"The largest {what}", words, bars, x_label=rows.count)
    counts = rows.counts if rows.estimated else [None] * shown
    lows: Sequence[Any] = interval.values
    highs: Sequence[Any] = interval.upper
    if (half := interval.half) is not None:
        lows, highs = (tuple(n + side for n in numbers.values[:shown]) for side in (-half, half))
    columns = zip(labels, numbers.values, lows, highs, counts, strict=False)
    measured = [Measured(*one) for one in columns]
    level = f"{100 * rows.level:g} %"
    words = f"{which} {what}, from {measured[0]} to {measured[-1]} ({level} intervals)"
    words += ", and the counts that they are made of." if rows.estimated else "."
    kind = "estimate" if rows.estimated else "count"
    return interval_chart(
        "counts", f"The largest {what}", words, measured, x_label="users" if rows.estimated else rows.count,
        what=f"{kind}, {level} interval",
    )  # fmt: skip


# --- the charts of a report


def report_charts(facts: Facts) -> tuple[Chart, ...]:
    """All charts of a report, in its order."""
    found = [*([counts_chart(facts.rows, _SHOWN)] if facts.rows.total else []), _guarantee(facts)]
    if len(facts.peers) > 1:
        numbers = [(PEERS[peer.analysis], peer.noise, peer.threshold) for peer in facts.peers]
        noises = [(label, noise) for label, noise, _ in numbers]
        found.append(_peer_bars("noise", "Noise of a count", "standard deviation", noises))
        if facts.peers[0].threshold is not None:
            thresholds = [(label, threshold) for label, _, threshold in numbers if threshold is not None]
            # After a top-k step, or in a sketch, it is not a plain count that must exceed the threshold.
            axis = "" if facts.selection is None else facts.selection.axis
            relative = axis.startswith(("true count", "counter"))
            label = f"{axis.removeprefix('true ')}, with noise" if relative else "noisy count"
            found.append(_peer_bars("threshold", "Threshold that a count must exceed", label, thresholds))
    if facts.selection is not None:
        found += [_probability(facts.selection), _error(facts.selection)]
    if facts.choice is not None or facts.plan.contract.spread is not None:
        found.append(kept_chart(facts.plan, facts.choice.sizes() if facts.choice else (), noisy=True))
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
    budget = f"{which} is delta {raised(facts.budget.delta, 6)} at epsilon {raised(facts.budget.epsilon, 6)}."
    mark = Mark(own, facts.budget.epsilon, facts.delta_certified)
    return curve_chart("guarantee", facts.curve, mark, f"{budget} {BETWEEN}")


def _peer_bars(name: str, title: str, x_label: str, numbers: Sequence[tuple[str, float]]) -> Chart:
    words = ", ".join(f"{label}: {figure(value)}" for label, value in numbers) + "."
    bars = [Bar(label, value, own=place == 0) for place, (label, value) in enumerate(numbers)]
    return bar_chart(name, title, words, bars, x_label=x_label)


def _probability(found: Selection) -> Chart:
    least = "" if found.unlikely is None else f" up to {found.unlikely:,} at most 1 %;"
    what = "release" if found.largest is None else "passing"
    words = (
        f"Probability that an item {passes(found)}, by the {found.axis}:{least} from {found.even:,} on at least "
        f"50 %, from {found.likely:,} on at least 99 %."
    )
    points = list(zip(map(float, found.counts), found.probability, strict=True))
    return line_chart(
        "release", f"Probability of {what}", words, [Series(f"probability of {what}", points)],
        [Mark("50 %", found.even), Mark("99 %", found.likely)],
        x_label=found.axis, y_label="probability", share_y=True,
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
    series = [
        Series("too high on average by", list(zip(xs, bias, strict=True))),
        Series("standard deviation", list(zip(xs, deviation, strict=True))),
    ]
    return line_chart(
        "error", "Expected error of a released count", words, series, [Mark("50 % released", found.even)],
        x_label=found.axis, y_label="error, in users",
    )  # fmt: skip


def _choice(found: LimitChoice) -> Chart:
    """Users by number of items; the last bars that are within the noise are left out."""
    bars = [
        Bar(label, float(users), found.keeps_all(label))
        for label, users in zip(found.labels, found.users, strict=True)
    ]
    shown = bars[: found.drawn]
    above_zero = [(max(0.0, bar.value), bar.own) for bar in shown]
    within = sum(users for users, own in above_zero if own) / max(1.0, sum(users for users, _ in above_zero))
    words = (
        "Noisy numbers of users by how many items they have; the noise of each has a standard deviation of "
        f"{figure(found.deviation)}. The limit chosen from them is {found.cap:,}: about "
        f"{percent(within)} of users have no more (in bold)."
    )
    if any(bar.value < 0.0 for bar in shown):
        words += " A number below zero comes from the noise; its bar has no length."
    if len(shown) < len(bars):
        words += (
            f" The {len(bars) - len(shown)} numbers from {bars[len(shown)].label} items on are not drawn: none is "
            "more than three standard deviations above zero. The table has all of them."
        )
    return bar_chart("sizes", "Users by number of items (noisy)", words, shown, x_label="users")


def chart(result: Any, part: str | None = None) -> Chart:
    """The chart of a plan, a comparison (or several), a profile, a simulation or a release.

    A notebook shows it; `.save("chart.png")` writes it; `.words` is its text alternative; `.to_altair()` is the
    altair chart. A plan has the parts "profile", "release" and "limit"; a comparison has the part "thresholds".
    """
    makers: dict[str | None, Callable[[Any], Chart]] = {None: _chart_of_other}
    if isinstance(result, Plan):
        makers = {None: _plan_chart, "profile": _plan_profile, "release": _plan_release, "limit": _plan_limit}
    elif isinstance(result, Comparison):
        makers = {None: frontier_chart, "thresholds": threshold_chart}
    if part not in makers:
        raise InvalidParameter(
            f"this chart has no part {part!r} (parts: {', '.join(filter(None, makers)) or 'none'})"
        )
    return makers[part](result)


def _chart_of_other(result: Any) -> Chart:
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
