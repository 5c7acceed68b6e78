"""The charts of a report as plain data: what is drawn, and the same in words for those who do not see it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dphist.display import raised
from dphist.releasing.result import NOT_PRIVATE
from dphist.report.curve import BETWEEN
from dphist.report.facts import Facts
from dphist.report.selection import Selection
from dphist.report.sentences import figure, percent


@dataclass(frozen=True)
class Series:
    """A line; its tone is its place in the palette, and lines differ in their dashes too."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    # Whether the points alone are what was computed, and a reader must see which they are.
    knots: bool = False


@dataclass(frozen=True)
class Mark:
    """A point, or without `y` a vertical line, with its label."""

    label: str
    x: float
    y: float | None = None


@dataclass(frozen=True)
class LineChart:
    """Lines over a common axis."""

    name: str
    title: str
    words: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    log_y: bool = False
    share_y: bool = False
    warning: str = ""


@dataclass(frozen=True)
class Bar:
    """A labelled number; `own` is the one that a reader looks for."""

    label: str
    value: float
    own: bool = False


@dataclass(frozen=True)
class BarChart:
    """Bars from zero, or, where the largest would hide the others, points on a scale of powers."""

    name: str
    title: str
    words: str
    x_label: str
    bars: tuple[Bar, ...]
    log_x: bool = False
    warning: str = ""


Chart = LineChart | BarChart
# From this ratio on the short bars could not be told apart.
_TOO_FAR = 25.0


def charts_of(facts: Facts) -> tuple[Chart, ...]:
    """All charts of a report, in its order."""
    found: list[Chart] = [_guarantee(facts)]
    if len(facts.peers) > 1:
        found.append(_noises(facts))
        if any(peer.own and peer.threshold is not None for peer in facts.peers):
            found.append(_thresholds(facts))
    if facts.selection is not None:
        found += [_probability(facts.selection), _error(facts.selection)]
    if facts.sizes is not None:
        found.append(_sizes(facts))
    return tuple(found) if facts.private else tuple(map(_warned, found))


def _warned(chart: Chart) -> Chart:
    """Of a release from a seed: a chart may be shown without the page that it was on."""
    title, words = f"NOT PRIVATE: {chart.title}", f"{NOT_PRIVATE}; nobody is protected. {chart.words}"
    return replace(chart, title=title, words=words, warning=NOT_PRIVATE)


def _guarantee(facts: Facts) -> LineChart:
    curve, budget = [point for point in facts.curve if point[1] > 0.0], facts.budget
    promised = "The promise is delta" if facts.private else "With noise that nobody knows it would be delta"
    own = "this release" if facts.private else "the plan, not this release"
    first, last = facts.curve[0], facts.curve[-1]
    words = (
        f"delta falls from {raised(first[1], 4)} at epsilon 0 to {raised(last[1], 4)} at epsilon "
        f"{raised(last[0], 4)}. {promised} {raised(budget.delta, 6)} at epsilon "
        f"{raised(budget.epsilon, 6)}. {BETWEEN}"
    )
    return LineChart(
        "guarantee", "delta for every epsilon", words, "epsilon", "delta",
        (Series("delta, certified at the points", tuple(e for e, _ in curve), tuple(d for _, d in curve), True),),
        (Mark(own, budget.epsilon, facts.delta_proved),), log_y=True,
    )  # fmt: skip


def _bars(name: str, title: str, axis: str, numbers: list[tuple[str, float, bool]]) -> BarChart:
    values = [value for _, value, _ in numbers]
    own = next(value for _, value, is_own in numbers if is_own)
    others = ", ".join(f"{label}: {figure(value)}" for label, value, is_own in numbers if not is_own)
    bars = tuple(Bar(*number) for number in numbers)
    words = f"This release: {figure(own)}. {others}."
    return BarChart(name, title, words, axis, bars, log_x=max(values) > _TOO_FAR * min(values))


def _noises(facts: Facts) -> BarChart:
    numbers = [(peer.label, peer.noise, peer.own) for peer in facts.peers]
    return _bars("noise", "Noise of a count", "standard deviation", numbers)


def _thresholds(facts: Facts) -> BarChart:
    numbers = [(peer.label, peer.threshold, peer.own) for peer in facts.peers if peer.threshold is not None]
    # Of a top-k step or a sketch it is no plain count that meets the threshold.
    axis = "" if facts.selection is None else facts.selection.axis
    relative = axis.startswith(("true count", "counter"))
    title = f"{axis.removeprefix('true ')}, with noise" if relative else "noisy count"
    return _bars("threshold", "Threshold that a count must pass", title, numbers)


def _probability(found: Selection) -> LineChart:
    least = "" if found.unlikely is None else f" up to {found.unlikely:,} at most 1 %;"
    what = "release" if found.largest is None else "passing"
    words = (
        f"Probability that an item {found.does}, by the {found.axis}:{least} from {found.even:,} on at least "
        f"50 %, from {found.likely:,} on at least 99 %."
    )
    return LineChart(
        "release", f"Probability of {what}", words, found.axis, "probability",
        (Series(f"probability of {what}", tuple(map(float, found.counts)), found.probability),),
        (Mark("50 %", float(found.even)), Mark("99 %", float(found.likely))), share_y=True,
    )  # fmt: skip


def _error(found: Selection) -> LineChart:
    # Below, hardly anything is released, and what is says nothing of what a reader sees.
    kept = [place for place, p in enumerate(found.probability) if p >= 0.01]
    xs = tuple(float(found.counts[place]) for place in kept)
    bias, deviation = (tuple(row[place] for place in kept) for row in (found.bias, found.deviation))
    middle = min(range(len(xs)), key=lambda place: abs(xs[place] - found.even))
    digits = max(0, 1 - math.floor(math.log10(deviation[-1])))
    near, far = (
        f"{bias[at]:,.{digits}f} on average and varies by {deviation[at]:,.{digits}f}" for at in (middle, -1)
    )
    words = (
        f"If it is released, a count is too high by {near} where the {found.axis} is {xs[middle]:,.0f}, and by "
        f"{far} where it is {xs[-1]:,.0f}."
    )
    return LineChart(
        "error", "Expected error of a released count", words, found.axis, "error, in users",
        (Series("too high on average by", xs, bias), Series("standard deviation", xs, deviation)),
        (Mark("even chance", float(found.even)),),
    )  # fmt: skip


def _sizes(facts: Facts) -> BarChart:
    sizes = facts.sizes
    assert sizes is not None
    whole = max(1, sum(sizes.users))
    below = sum(n for n, label in zip(sizes.users, sizes.labels, strict=True) if _within(label, sizes.cap))
    bars = tuple(
        Bar(label, float(users), _within(label, sizes.cap))
        for label, users in zip(sizes.labels, sizes.users, strict=True)
    )
    last = max((place for place, bar in enumerate(bars) if bar.value > 3.0 * sizes.deviation), default=0)
    shown = bars[: max(last + 2, 4)]
    words = (
        f"Noisy numbers of users by how many items they have, with a standard deviation of "
        f"{figure(sizes.deviation)} each. The cap chosen from them is {sizes.cap:,}: about "
        f"{percent(max(0.0, min(1.0, below / whole)))} of users have no more, and are in bold."
        f"{_undrawn(bars, len(shown))}"
    )
    return BarChart("sizes", "Users by number of items (noisy)", words, "users", shown)


def _undrawn(bars: tuple[Bar, ...], shown: int) -> str:
    """What a reader does not see in the bars: those below zero, and those after the last."""
    said = ""
    if any(bar.value < 0.0 for bar in bars[:shown]):
        said = " A number below zero comes from the noise; its bar has no length."
    if shown < len(bars):
        said += (
            f" The {len(bars) - shown} numbers from {bars[shown].label} items on are not drawn: none of them is "
            "more than three standard deviations above zero. The table has all of them."
        )
    return said


def _within(label: str, cap: int) -> bool:
    """Whether the users of a bar keep all of their items."""
    return not label.startswith("over") and int(label.split()[-1].replace(",", "")) <= cap
