"""Charts as SVG, without any library: colours come from the page, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Final

from dphist.report.charts import BarChart, Chart, LineChart
from dphist.report.marks import DRAWING

WIDTH: Final = 520
_HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 16, 34, 50
_ROW: Final = 40
_WARNING: Final = 26
Place = Callable[[float], float]


def svg(chart: Chart, *, alone: bool = False) -> str:
    """A drawing with its title and its words; `alone` brings its own colours, for a file of its own."""
    body, height = _lines(chart) if isinstance(chart, LineChart) else _bars(chart)
    style = f"<style>{stylesheet()}</style>" if alone else ""
    space = ' xmlns="http://www.w3.org/2000/svg"' if alone else ""
    mark = DRAWING if alone else ""
    # Above the drawing, for a title is not drawn.
    top = -_WARNING if chart.warning else 0
    body += _text(WIDTH / 2, -8, chart.warning, "note") if chart.warning else ""
    back = f'<rect class="back" y="{top}" width="{WIDTH}" height="{height - top}"/>' if alone else ""
    return (
        f'<svg{space} class="chart" role="img" viewBox="0 {top} {WIDTH} {height - top}" '
        f'aria-labelledby="{chart.name}-title {chart.name}-desc">{mark}'
        f'<title id="{chart.name}-title">{escape(chart.title)}</title>'
        f'<desc id="{chart.name}-desc">{escape(chart.words)}</desc>{style}{back}{body}</svg>'
    )


def stylesheet() -> str:
    """The colours and lines of charts."""
    return files("dphist.report").joinpath("chart.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Axis:
    """A scale: where its numbers are, and which of them are written."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, number: float) -> float:
        """Where a number is drawn."""
        low, high, value = (math.log10(n) if self.log else n for n in (self.low, self.high, number))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round numbers, few enough to be read."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            skip = max(1, math.ceil((last - first) / 6))
            return [10.0**exponent for exponent in range(first, last + 1, skip)]
        rough = (self.high - self.low) / 5.0
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * each for each in (1.0, 2.0, 5.0, 10.0) if size * each >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def short(number: float) -> str:
    """A tick's number: no more letters than it needs."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{number:.6g}"


def power(number: float) -> str:
    """A tick of a scale of powers."""
    return short(number) if 1e-3 <= number < 1e12 else f"1e{round(math.log10(number))}"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _axes(chart: LineChart) -> tuple[Axis, Axis]:
    xs = [x for one in chart.series for x in one.xs] + [mark.x for mark in chart.marks]
    ys = [y for one in chart.series for y in one.ys] + [mark.y for mark in chart.marks if mark.y is not None]
    low, high = (min(ys), max(ys)) if chart.log_y else (min(0.0, *ys), max(ys))
    if chart.log_y:
        low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high) - 1e-9)
        high = high if high > low else 10.0 * low
    else:
        high = 1.0 if chart.share_y else 1.08 * high or 1.0
    last = max(xs) if max(xs) > min(xs) else min(xs) + 1.0
    return (
        Axis(min(xs), last, _LEFT, WIDTH - _RIGHT),
        Axis(low, high, _HEIGHT - _BOTTOM, _TOP, chart.log_y),
    )


def _grid(chart: LineChart, x: Axis, y: Axis) -> list[str]:
    parts = []
    for tick in y.ticks():
        at = y(tick)
        label = power(tick) if chart.log_y else f"{100 * tick:.0f} %" if chart.share_y else short(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(_LEFT - 6, at + 4, label, "tick", "end"))
    for tick in x.ticks():
        at = x(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(_text(at, _HEIGHT - _BOTTOM + 17, short(tick), "tick"))
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, _HEIGHT - 10, chart.x_label, "label"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text class="label" x="14" y="{middle:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle:.1f})">{escape(chart.y_label)}</text>'
    )
    return parts


def _lines(chart: LineChart) -> tuple[str, int]:
    x, y = _axes(chart)
    parts = _grid(chart, x, y)
    for tone, one in enumerate(chart.series):
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(one.xs, one.ys, strict=True))
        parts.append(f'<polyline class="line tone{tone}" points="{points}"/>')
        if one.knots:
            dots = [(x(a), y(b)) for a, b in zip(one.xs, one.ys, strict=True)]
            parts += [f'<circle class="knot tone{tone}" cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>' for a, b in dots]
    at = float(_LEFT)
    for tone, one in enumerate(chart.series):
        parts.append(f'<line class="line tone{tone}" x1="{at}" x2="{at + 26}" y1="16" y2="16"/>')
        parts.append(_text(at + 32, 20, one.label, "legend", "start"))
        at += 52 + 8.8 * len(one.label)
    for mark in chart.marks:
        parts += _mark(mark.label, x(mark.x), None if mark.y is None else y(mark.y), low=chart.share_y)
    return "".join(parts), _HEIGHT


def _mark(label: str, x: float, y: float | None, *, low: bool) -> list[str]:
    """A point or a line; its words go to where there is room."""
    left = x > 0.6 * WIDTH
    side, anchor = (-8, "end") if left else (8, "start")
    if y is None:
        line = f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        return [line, _text(x + side / 2, _HEIGHT - _BOTTOM - 8 if low else _TOP + 14, label, "note", anchor)]
    return [
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="5"/>',
        _text(x + side, y - 8, label, "note", anchor),
    ]


def _bars(chart: BarChart) -> tuple[str, int]:
    """Labels above their bars: they are long, and phones narrow."""
    values = [bar.value for bar in chart.bars]
    start, end, height = 8.0, WIDTH - 74.0, _ROW * len(chart.bars) + 44
    if chart.log_x:
        low = 10.0 ** math.floor(math.log10(min(values)) - 1e-9)
        scale = Axis(low, max(max(values), 10.0 * low), start, end, log=True)
    else:
        scale = Axis(0.0, max(*values, 1e-9), start, end)
    parts = _bar_grid(scale, height)
    for place, bar in enumerate(chart.bars):
        at, own = 8 + _ROW * place, " own" if bar.own else ""
        length = scale(bar.value) if bar.value > 0.0 else start
        parts.append(_text(start, at + 12, bar.label, f"legend{own}", "start"))
        if chart.log_x:
            parts.append(f'<line class="stem" x1="{start}" x2="{length:.1f}" y1="{at + 25}" y2="{at + 25}"/>')
            parts.append(f'<circle class="dot{own}" cx="{length:.1f}" cy="{at + 25}" r="6"/>')
        else:
            width = max(1.0, length - start)
            parts.append(f'<rect class="bar{own}" x="{start}" y="{at + 18}" width="{width:.1f}" height="14"/>')
        parts.append(_text(length + 10, at + 29, bar_number(bar.value), f"value{own}", "start"))
    title = chart.x_label + (", in powers of ten" if chart.log_x else "")
    parts.append(_text((start + end) / 2, height - 4, title, "label"))
    return "".join(parts), height


def bar_number(value: float) -> str:
    """The number at the end of a bar."""
    return f"{value:,.0f}" if value >= 1000.0 or value == round(value) else f"{value:.4g}"


def _bar_grid(scale: Axis, height: int) -> list[str]:
    parts, written = [], -100.0
    for tick in scale.ticks():
        at = scale(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{height - 34}"/>')
        # Not closer to each other than they are long.
        if at - written > 44:
            anchor, written = "start" if at < 20 else "middle", at
            parts.append(_text(at, height - 21, power(tick) if scale.log else short(tick), "tick", anchor))
    return parts


def drawings(charts: Sequence[Chart]) -> dict[str, str]:
    """Each chart's drawing by its name."""
    return {chart.name: svg(chart) for chart in charts}
