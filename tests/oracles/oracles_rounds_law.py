"""A release in rounds run on every draw of all the noise: slow and plain, from the definition alone.

The mechanism is that of oracles_rounds, of which nothing but the numbers and the weights is used here. There are
two rounds, and nobody is in a group of their own.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from oracles_rounds import Rounds

Lists: TypeAlias = Sequence[frozenset[str]]
Output: TypeAlias = Hashable


def draws(variance: Fraction, deviations: float) -> list[tuple[int, float]]:
    """The values of a discrete Gaussian within so many deviations, with their masses."""
    reach = math.ceil(deviations * math.sqrt(variance))
    weights = {x: math.exp(-(x * x) / (2 * float(variance))) for x in range(-reach, reach + 1)}
    whole = math.fsum(weights.values())
    return [(x, weight / whole) for x, weight in weights.items()]


def release_law(
    noise: Rounds, lists: Lists, limit: Callable[[int], int], bounds: Sequence[int], deviations: float = 4.0
) -> dict[Output, float]:
    """The law of everything published of these users: found items with their numbers, noisy sizes, measurement.

    `limit` chooses M from the noisy size of the first bucket.
    """
    items = sorted(set().union(*lists))
    rounds = [draws(noise.variance / k, deviations) for k in noise.parts]
    sized, law = draws(noise.variance / noise.sizes, deviations), defaultdict[Output, float](float)

    def weigh(alive: frozenset[str], r: int) -> dict[str, int]:
        sums = dict.fromkeys(items, 0)
        for own in lists:
            left = len(own & alive)
            for item in own & alive:
                sums[item] += noise.first_weight(left) if r == 0 else noise.later_weight(left, len(own))
        return sums

    first = weigh(frozenset(items), 0)
    for zero in itertools.product(rounds[0], repeat=len(items)):
        chance = math.prod(mass for _, mass in zero)
        y0 = {item: first[item] + z for item, (z, _) in zip(items, zero, strict=True)}
        early = {item for item in items if noise.parts[0] * y0[item] > noise.parts[0] * noise.limits[0]}
        hopeless = {item for item in items if noise.parts[0] * y0[item] < noise.parts[0] * noise.cuts[0]}
        alive = frozenset(items) - early - hopeless
        second = weigh(alive, 1)
        for one in itertools.product(rounds[1], repeat=len(alive)):
            y1 = {item: second[item] + z for item, (z, _) in zip(sorted(alive), one, strict=True)}
            score = {item: noise.parts[0] * y0[item] + noise.parts[1] * y1[item] for item in y1}
            late = {item for item in y1 if score[item] > sum(noise.parts) * noise.limits[1]}
            found = frozenset(early | late)
            shown = tuple((item, y0[item], y1.get(item) if item in late else None) for item in sorted(found))
            mass = chance * math.prod(mass for _, mass in one)
            for rest, part in _measured(noise, lists, found, limit, bounds, sized, deviations):
                law[shown, *rest] += mass * part
    return dict(law)


def _measured(
    noise: Rounds,
    lists: Lists,
    found: frozenset[str],
    limit: Callable[[int], int],
    bounds: Sequence[int],
    sized: list[tuple[int, float]],
    deviations: float,
) -> list[tuple[tuple[Output, ...], float]]:
    """Noisy sizes and measurement once the found items are known."""
    have = [own & found for own in lists]
    true = [
        noise.lattice * sum(low < len(own) <= high for own in have)
        for low, high in itertools.pairwise((0, *bounds))
    ]
    rows: list[tuple[tuple[Output, ...], float]] = []
    for noises in itertools.product(sized, repeat=len(bounds)):
        sizes = tuple(size + z for size, (z, _) in zip(true, noises, strict=True))
        chance, most = math.prod(mass for _, mass in noises), limit(sizes[0])
        if most == 0:
            rows.append(((sizes, ()), chance))
            continue
        sums = [sum(noise.measure_weight(len(own), most) for own in have if item in own) for item in sorted(found)]
        law = draws(most * noise.variance / noise.measure, deviations)
        for measured in itertools.product(law, repeat=len(found)):
            values = tuple(total + z for total, (z, _) in zip(sums, measured, strict=True))
            rows.append(((sizes, values), chance * math.prod(mass for _, mass in measured)))
    return rows


def divergence(p: Mapping[Any, float], q: Mapping[Any, float], epsilon: float) -> float:
    """The sum of (p - e^epsilon q)_+ over all outputs."""
    factor = math.exp(epsilon)
    return math.fsum(max(mass - factor * q.get(output, 0.0), 0.0) for output, mass in p.items())
