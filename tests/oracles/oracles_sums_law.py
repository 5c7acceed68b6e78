"""The release of counts and sums run on every draw of all the noise: slow and plain, from the definition alone.

The mechanism is that of oracles_sums, of which nothing but its numbers and the law of a draw is used here.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

from oracles_sums import Mechanism
from oracles_top_k import discrete_gaussian, top_k

Output: TypeAlias = tuple[tuple[tuple[int, ...], ...], int | None]
"""(item, y, noisy sums...) of every released item, and the noisy offset."""


def draws(variance: Fraction, tail: float) -> list[tuple[int, float]]:
    if variance == 0:
        return [(0, 1.0)]
    law = discrete_gaussian(variance, tail)
    return [(x - (law.size - 1) // 2, mass) for x, mass in enumerate(law.tolist())]


def item_law(
    mechanism: Mechanism, item: int, count: int, totals: Sequence[int], w: int, tail: float
) -> list[tuple[tuple[int, ...] | None, float]]:
    """What is released of one item given the shared noise; None for nothing."""
    law: list[tuple[tuple[int, ...] | None, float]] = []
    noisy = [
        [(t + y, mass) for y, mass in draws(v, tail)] for t, (_, v) in zip(totals, mechanism.sums, strict=True)
    ]
    for z, mass in draws(mechanism.variance, tail):
        y = mechanism.lattice * count + z + w
        if mechanism.limit is not None and y <= mechanism.lattice + mechanism.limit:
            law.append((None, mass))
            continue
        for together in itertools.product(*noisy):
            chance = mass * math.prod(one for _, one in together)
            law.append(((item, y, *(t for t, _ in together)), chance))
    return law


def release_law(
    mechanism: Mechanism, k: int, histogram: Sequence[int], totals: Sequence[Sequence[int]], tail: float
) -> dict[Output, float]:
    """The law of the whole output on a histogram with its sums."""
    counts, c = top_k(histogram, k) if mechanism.top_k else (tuple(histogram), 0)
    law: dict[Output, float] = defaultdict(float)
    for w, chance in draws(mechanism.shared, tail):
        items = [
            item_law(mechanism, item, count, totals[item], w, tail)
            for item, count in enumerate(counts)
            if count > 0 or mechanism.limit is None
        ]
        for outcome in itertools.product(*items):
            mass = chance * math.prod(one for _, one in outcome)
            released = tuple(one for one, _ in outcome if one is not None)
            if not mechanism.top_k:
                law[released, None] += mass
                continue
            for z, weight in draws(mechanism.shared, tail):
                law[released, mechanism.lattice * c + z - w] += mass * weight
    return dict(law)


def divergence(p: dict[Output, float], q: dict[Output, float], epsilon: float) -> float:
    """The sum of (p - e^epsilon q)_+ over all outputs."""
    factor = math.exp(epsilon)
    return math.fsum(max(mass - factor * q.get(output, 0.0), 0.0) for output, mass in p.items())
