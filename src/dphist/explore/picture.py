"""The picture of what would be released, as plain SVG: a chart library would take longer than the plan itself.

Colours are classes of the style sheet, which has them for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 22, 12, 56
_POINTS: Final = 240
# An area narrower than this has no label.
_LABELLED: Final = 90


@dataclass(frozen=True)
class Expected:
    """Groups of items from the most common to the rarest: how many, their users, users counted, and the fate.

    `chance` is the probability of release. `noisy` marks items that are released, but within the margin of error.
    """

    number: FloatArray
    users: FloatArray
    counted: FloatArray
    chance: FloatArray
    margin: float
    line: float | None

    @property
    def noisy(self) -> NDArray[np.bool_]:
        """Counts that may be noise alone."""
        return self.counted <= self.margin


def draw_items(expected: Expected, words: str) -> str:
    """Users by rank of the item, both logarithmic: what is released, what is hidden, and the margin of error."""
    last = np.cumsum(expected.number)
    items = max(2.0, float(last[-1]))
    ranks = np.unique(np.rint(np.geomspace(1.0, items, _POINTS)))
    group = np.minimum(np.searchsorted(last, ranks), last.size - 1)
    users, counted, chance = (values[group] for values in (expected.users, expected.counted, expected.chance))
    top = 10.0 ** math.ceil(math.log10(max(10.0, float(users.max()) * 1.2)))

    def x(rank: FloatArray | float) -> FloatArray:
        return np.asarray(_LEFT + (_WIDTH - _LEFT - _RIGHT) * np.log(rank) / math.log(items))

    def y(value: FloatArray | float) -> FloatArray:
        height = (_HEIGHT - _TOP - _BOTTOM) * np.log(np.clip(value, 1.0, top)) / math.log(top)
        return np.asarray(_HEIGHT - _BOTTOM - height)

    def between(kind: str, places: NDArray[np.bool_], low: FloatArray, high: FloatArray) -> str:
        """The area between two curves, up to the next point so that areas touch."""
        found = np.flatnonzero(places)
        if not found.size:
            return ""
        ends = np.append(found, min(found[-1] + 1, ranks.size - 1))
        edge = [*zip(x(ranks[ends]), y(high[ends]), strict=True)]
        edge += [*zip(x(ranks[ends]), y(low[ends]), strict=True)][::-1]
        return f'<path class="{kind}" d="{_path(edge)}Z"/>'

    floor = np.ones_like(users)
    sure = (chance >= 0.99) & ~(expected.noisy[group] & (expected.line is None))
    never = chance <= 0.01
    areas = {"released": sure, "maybe": ~sure & ~never, "hidden": never}
    parts = [_axes(x, y, items, top)]
    parts += [between(kind, places, floor, users) for kind, places in areas.items()]
    band = np.maximum(counted - expected.margin, 1.0), counted + expected.margin
    parts.append(between("margin", ~never, *band))
    parts.append(f'<path class="curve" d="{_path(zip(x(ranks), y(users), strict=True))}"/>')
    if (counted < 0.98 * users).any():
        parts.append(f'<path class="counted" d="{_path(zip(x(ranks), y(counted), strict=True))}"/>')
    if expected.line is not None and expected.line < top:
        height = float(y(expected.line))
        parts.append(f'<path class="line" d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT + 8, height - 6, f"threshold: {math.ceil(expected.line):,} users", "strong"))
    labels = {"released": "released", "maybe": "by chance" if expected.line else "mostly noise", "hidden": "hidden"}
    for kind, places in areas.items():
        found = np.flatnonzero(places)
        if found.size:
            first, end = float(x(ranks[found[0]])), float(x(ranks[min(found[-1] + 1, ranks.size - 1)]))
            if end - first >= _LABELLED:
                parts.append(_text((first + end) / 2, _HEIGHT - _BOTTOM - 10, labels[kind], "middle strong"))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(words)}">{"".join(parts)}</svg>'
    )


def draw_shares(shares: Sequence[tuple[str, float]], words: str) -> str:
    """One bar, divided into shares of one."""
    parts, before = [], 0.0
    for kind, share in shares:
        parts.append(
            f'<rect class="{kind}" x="{_WIDTH * before:.1f}" width="{_WIDTH * share:.1f}" height="24"/>'
        )
        before += share
    return f'<svg viewBox="0 0 {_WIDTH} 24" role="img" aria-label="{escape(words)}">{"".join(parts)}</svg>'


def _axes(x: object, y: object, items: float, top: float) -> str:
    assert callable(x) and callable(y)
    parts = []
    for power in range(round(math.log10(top)) + 1):
        height = float(y(10.0**power))
        parts.append(f'<path class="grid" d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, height + 4, _short(10**power), "end"))
    for power in range(math.floor(math.log10(items)) + 1):
        parts.append(_text(float(x(10.0**power)), _HEIGHT - _BOTTOM + 20, _short(10**power), "middle"))
    parts.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 8, "items, from the most common to the rarest", "middle"))
    side = f'<text class="middle" transform="translate(14 {(_HEIGHT - _BOTTOM) / 2}) rotate(-90)">users</text>'
    return "".join(parts) + side


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _short(number: int) -> str:
    """1, 10, 1k, 1M, 1G."""
    power = (len(str(number)) - 1) // 3
    return f"{number // 1000**power}{('', 'k', 'M', 'G')[power]}"
