"""The picture of what would be released, as SVG: a chart library would take longer than the plan itself.

Colours are classes in the style sheet, which has them for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Places = NDArray[np.bool_]
_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 618, 12, 304
_POINTS: Final = 240
# An area narrower than this has no label.
_LABELLED: Final = 90


@dataclass(frozen=True)
class Expected:
    """Groups of items, the most common first: number of items, users, and users counted after the limit.

    `chance` is the probability of release, `margin` the margin of error of a count. A known list has no threshold,
    and in rounds it is the number of users that an item needs about.
    """

    number: FloatArray
    users: FloatArray
    counted: FloatArray
    chance: FloatArray
    margin: FloatArray
    threshold: float | None
    in_rounds: bool = False

    def fates(self) -> dict[str, Places]:
        """The groups that are released, may be released, and are hidden.

        On a known list, a count within the margin of error counts as "may be": it may be all noise.
        """
        never, sure = self.chance <= 0.01, self.chance >= 0.99
        if self.threshold is None:
            sure &= self.counted > self.margin
        return {"released": sure, "maybe": ~sure & ~never, "hidden": never}


@dataclass(frozen=True)
class _Axes:
    """Logarithmic axes from 1 to these numbers."""

    items: float
    users: float

    def x(self, rank: FloatArray | float) -> FloatArray:
        return np.asarray(_LEFT + (_RIGHT - _LEFT) * np.log(rank) / math.log(self.items))

    def y(self, users: FloatArray | float) -> FloatArray:
        share = np.log(np.clip(users, 1.0, self.users)) / math.log(self.users)
        return np.asarray(_BOTTOM - (_BOTTOM - _TOP) * share)

    def line(self, kind: str, ranks: FloatArray, users: FloatArray) -> str:
        return f'<path class="{kind}" d="{_path(self.x(ranks), self.y(users))}"/>'

    def area(self, kind: str, ranks: FloatArray, low: FloatArray, high: FloatArray) -> str:
        x, y = (np.concatenate((one, other[::-1])) for one, other in ((ranks, ranks), (high, low)))
        return f'<path class="{kind}" d="{_path(self.x(x), self.y(y))}Z"/>'

    def draw(self) -> list[str]:
        parts = []
        for power in range(round(math.log10(self.users)) + 1):
            height = float(self.y(10.0**power))
            parts.append(f'<path class="grid" d="M{_LEFT} {height:.1f}H{_RIGHT}"/>')
            parts.append(_text(_LEFT - 6, height + 4, _short(10**power), "end"))
        for power in range(math.floor(math.log10(self.items)) + 1):
            parts.append(_text(float(self.x(10.0**power)), _BOTTOM + 20, _short(10**power), "middle"))
        middle = (_TOP + _BOTTOM) / 2
        return [
            *parts,
            _text((_LEFT + _RIGHT) / 2, _HEIGHT - 8, "items, the most common first (logarithmic)", "middle"),
            f'<text class="middle" transform="translate(14 {middle}) rotate(-90)">users (logarithmic)</text>',
        ]


def draw_items(expected: Expected, words: str) -> str:
    last = np.cumsum(expected.number)
    axes = _Axes(
        items=max(2.0, float(last[-1])),
        users=10.0 ** math.ceil(math.log10(max(10.0, 1.2 * float(expected.users.max())))),
    )
    ranks = np.unique(np.rint(np.geomspace(1.0, axes.items, _POINTS)))
    group = np.minimum(np.searchsorted(last, ranks), last.size - 1)
    users, counted = expected.users[group], expected.counted[group]
    fates, names = expected.fates(), {"maybe": "mostly noise" if expected.threshold is None else "by chance"}
    parts, labels = axes.draw(), []
    for kind, places in fates.items():
        if (at := _stretch(places[group])).size:
            parts.append(axes.area(kind, ranks[at], np.ones(at.size), users[at]))
            first, end = axes.x(ranks[at[[0, -1]]]).tolist()
            if end - first >= _LABELLED:
                labels.append(_text((first + end) / 2, _BOTTOM - 10, names.get(kind, kind), "middle strong"))
    shown = _stretch(~fates["hidden"][group])
    if shown.size:
        margin = expected.margin[group][shown]
        band = counted[shown] - margin, counted[shown] + margin
        parts.append(axes.area("margin", ranks[shown], *band))
    parts.append(axes.line("curve", ranks, users))
    if (counted < 0.98 * users).any():
        parts.append(axes.line("counted", ranks, counted))
    if expected.threshold is not None and expected.threshold < axes.users:
        height = float(axes.y(expected.threshold))
        parts.append(f'<path class="line" d="M{_LEFT} {height:.1f}H{_RIGHT}"/>')
        least = f"{math.ceil(expected.threshold):,} users"
        label = f"about {least} needed" if expected.in_rounds else f"threshold: {least}"
        parts.append(_text(_LEFT + 8, height - 6, label, "strong"))
    return _svg(_HEIGHT, words, [*parts, *labels])


def draw_shares(shares: Mapping[str, float], words: str) -> str:
    """One bar, divided into the shares."""
    parts, before = [], 0.0
    for kind, share in shares.items():
        parts.append(f'<rect class="{kind}" x="{_WIDTH * before:.1f}" width="{_WIDTH * share:.1f}" height="24"/>')
        before += share
    return _svg(24, words, parts)


def _stretch(places: Places) -> NDArray[np.int64]:
    """The indices that are set, and the next one, so that areas touch."""
    indices = np.flatnonzero(places)
    return np.append(indices, indices[-1] + 1) if indices.size and indices[-1] + 1 < places.size else indices


def _svg(height: int, words: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(words)}">{"".join(parts)}</svg>'


def _path(x: FloatArray, y: FloatArray) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _short(number: int) -> str:
    """1, 10, 1k, 1M, 1G."""
    power = (len(str(number)) - 1) // 3
    return f"{number // 1000**power}{('', 'k', 'M', 'G')[power]}"
