"""Independent oracle: the exact privacy of counts and sums that are released together, by summing over the noise.

The mechanism. H_i users have item i, and T_il is the sum of their values l, whole numbers of size at most N_l. All
noise is whole numbers x with the law Pr[x] proportional to exp(-x^2/(2 variance)): Z_i (V) for each count, one W
(V_s) for all counts, Y_il (V_l) for each sum. An item with H_i > 0 and y_i = b H_i + Z_i + W > b + limit is
released: y_i and T_il + Y_il for all l. A public list has no limit and releases all its items. For top-k, c is the
(k+1)-th largest count, H_i - c takes the place of H_i (T_il stays), and t = b c + Z_c - W is released as well, Z_c
of parameter V_s.

Neighbours. Call A the world with the larger counts and B the other one. ``Case`` says how they differ; see
oracles_top_k, which enumerates histograms. The values of the user move the sums of items that the user has: the
changed ones where c stays (A has the user), the unchanged ones where c rises (B has the user).

Reductions, all from the definition:
1. The threshold on an item that both worlds have looks at y_i alone, so that dropping the item is post-processing,
   and the worst counts always pass. A new count (one in A, none in B) passes iff Z_i + W > limit, which proves A.
2. The sums are independent of the rest: with p, q the laws of (y, t) in A where no new item passes and in B,
       delta(A, B) = Pr[some new item passes in A] + sum (p p' - e^epsilon q q')_+,
       delta(B, A) = sum (q q' - e^epsilon p p')_+,
   p' and q' the laws of the sums. A sum that moves by n has log p'/q' = (n x - n^2/2)/V_l at x (counted from B's
   true sum), hence all sums l together are as good as S_l = sum over i of n_il x_il. The map x -> n - x swaps p'
   and q', so that neither the sign of n nor the direction matters for the sums.
3. Expanding the squares, p and q as functions of w have w (A + B - gamma t)/V in the exponent, where A and B are
   the sums of the changed and the unchanged y_i and gamma = V/V_s. What does not depend on w leaves
   b (A - gamma t [c changes])/V in log p/q. So (X1, X2) is sufficient: (A, B - gamma t) where c stays,
   (A - gamma t, B) where it rises, (A, B) without t. Given w both are independent sums of noise.
4. With any number of unchanged items the law of large numbers tells w: the limit is the release of w and A.
Nothing is lost by 1 to 4: the largest delta over all cases, with values of size N_l, is exact. (For each c the
difference Pr[x + n > c] - e^epsilon Pr[x > c] grows with n, and the best events for one sum are of this kind.)
This module imports nothing of the library.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oracles_top_k import discrete_gaussian

Array: TypeAlias = NDArray[np.float64]
Long: TypeAlias = NDArray[np.longdouble]
Values: TypeAlias = tuple[tuple[int, ...], ...]
"""How far the sums of each moved item move."""

TAIL = 1e-17
"""Probability, at most, of the noise that is left out, for each draw."""
NEGLIGIBLE = 1e-22
"""Points with less mass in both worlds are left out; there are fewer than 10^7."""


class Mechanism(NamedTuple):
    """The numbers of the mechanism, in steps."""

    lattice: int
    variance: Fraction
    shared: Fraction
    limit: int | None
    """None for a public list."""
    sums: tuple[tuple[int, Fraction], ...]
    """(N_l, V_l) of each sum."""
    top_k: bool = False

    @property
    def gamma(self) -> int:
        """V/V_s."""
        assert (self.variance / self.shared).denominator == 1
        return int(self.variance / self.shared)


class Case(NamedTuple):
    """What tells A from B; A has the larger counts."""

    shared: int | None
    """Items with a count in both; None for the limit of many."""
    changed: int
    """Those of them whose count is larger by one in A."""
    single: int
    """Items with a count in A alone, which is one."""
    offset: int = 0
    """By how much c is larger in B."""

    @property
    def moved(self) -> int:
        """Items in both worlds that the user has: their sums move."""
        if self.offset == 0:
            return self.changed
        assert self.shared is not None
        return self.shared - self.changed


class Losses(NamedTuple):
    """Log ratios of the sums, increasing, and the masses from each on in both worlds (and 0 at the end)."""

    ratios: Array
    first: Long
    second: Long


class Counts(NamedTuple):
    """Masses of the noisy counts in A where no new item passes and in B, and the mass in A where one passes."""

    first: Array
    second: Array
    passed: float


def cases(mechanism: Mechanism, k: int | None, m: int) -> Iterator[Case]:
    """All ways in which neighbours differ, with at most k items with counts and m items of one user."""
    for changed, single in itertools.product(range(m + 1), repeat=2):
        if mechanism.top_k:
            assert k == m, "users are not bounded"
            for shared, offset in itertools.product(range(changed, k - single + 1), (0, 1)):
                yield Case(shared, changed, single, offset)
        elif not 1 <= changed + single <= m or (mechanism.limit is None and single):
            continue
        elif k is None:
            yield Case(None, changed, single)
        else:
            yield from (Case(shared, changed, single) for shared in range(changed, k - single + 1))


# --- noise -------------------------------------------------------------------------------------------------------


def radius_of(law: Array) -> int:
    return (law.size - 1) // 2


@lru_cache(maxsize=256)
def weighted_sum(terms: tuple[tuple[int, Fraction], ...]) -> Array:
    """The law of the sum of n X over (n, variance of X), centred."""
    law = np.ones(1)
    for multiple, variance in terms:
        single = discrete_gaussian(variance, TAIL)
        spread = np.zeros(multiple * (single.size - 1) + 1)
        spread[::multiple] = single
        law = np.convolve(law, spread)
    return law


def losses_from(ratios: Array, first: Array, second: Array) -> Losses:
    """In order, with tails; extended precision keeps them right to 1e-14 however many points there are."""
    order = np.argsort(ratios)
    tails = [np.append(np.cumsum(x[order][::-1], dtype=np.longdouble)[::-1], 0.0) for x in (first, second)]
    return Losses(ratios[order], tails[0], tails[1])


@lru_cache(maxsize=16)
def losses_of(sums: tuple[tuple[int, Fraction], ...], values: Values) -> Losses:
    """The log ratio of all moved sums, by point 2."""
    ratios, first, second = np.zeros(1), np.ones(1), np.ones(1)
    for place, (reach, variance) in enumerate(sums):
        moves = sorted(abs(row[place]) for row in values if row[place])
        assert all(move <= reach for move in moves)
        if not moves:
            continue
        unit = math.gcd(*moves)
        law = weighted_sum(tuple((move // unit, variance) for move in moves))
        square = sum(move**2 for move in moves)
        gap = np.zeros(square // unit)
        points = unit * (np.arange(law.size + gap.size) - radius_of(law))
        ratios = np.add.outer(ratios, (points - square / 2) / float(variance)).ravel()
        first = np.multiply.outer(first, np.concatenate((gap, law))).ravel()
        second = np.multiply.outer(second, np.concatenate((law, gap))).ravel()
        kept = np.maximum(first, second) > NEGLIGIBLE
        ratios, first, second = ratios[kept], first[kept], second[kept]
    return losses_from(ratios, first, second)


def given_shared(law: Array, multiple: int, mass: Array) -> Array:
    """rows[w, x] = law(x - multiple w) for all w of the shared law ``mass``, where any w makes x likely enough."""
    w = np.arange(mass.size) - radius_of(mass)
    reach = radius_of(law) + multiple * radius_of(mass)
    rows = np.zeros((w.size, 2 * reach + 1))
    starts = multiple * w + reach - radius_of(law)
    rows[np.arange(w.size)[:, None], starts[:, None] + np.arange(law.size)] = law
    likely = np.flatnonzero(mass @ rows > NEGLIGIBLE)
    return rows[:, likely[0] : likely[-1] + 1]


def passing(mechanism: Mechanism, single: int, w: NDArray[np.int64]) -> tuple[Array, Array]:
    """The chances that none and that some of the new items pass, given w."""
    if mechanism.limit is None:
        assert single == 0
        return np.ones(w.size), np.zeros(w.size)
    own = discrete_gaussian(mechanism.variance, TAIL)
    starts = np.maximum(mechanism.limit + 1 - w + radius_of(own), 0)
    upper = np.array([min(math.fsum(own[start:].tolist()), 1.0) for start in starts.tolist()])
    # 1 - (1 - u)^r = u (1 + (1 - u) + ...), without cancellation
    some = upper * sum(((1 - upper) ** n for n in range(single)), np.zeros(w.size))
    return (1 - upper) ** single, some


@lru_cache(maxsize=64)
def joint_law(mechanism: Mechanism, case: Case) -> Array:
    """The law of (X1, X2) in B, and where none of the new items passes: that of A, but for the shift of X1."""
    own = (1, mechanism.variance)
    mass = discrete_gaussian(mechanism.shared, TAIL) if mechanism.shared else np.ones(1)
    none, _ = passing(mechanism, case.single, np.arange(mass.size) - radius_of(mass))
    weights = (mass * none)[:, None]
    if case.shared is None:
        return np.asarray((weights * weighted_sum((own,) * case.changed)).T)
    multiples = [case.changed, case.shared - case.changed]
    noise = [(own,) * number for number in multiples]
    if mechanism.top_k:
        # -gamma t is gamma (w - Z_c), up to the shift
        place = 1 - case.offset
        noise[place] += ((mechanism.gamma, mechanism.shared),)
        multiples[place] += mechanism.gamma
    one, two = (given_shared(weighted_sum(noise[axis]), multiples[axis], mass) for axis in (0, 1))
    return np.asarray((one * weights).T @ two)


@lru_cache(maxsize=64)
def counts_of(mechanism: Mechanism, case: Case) -> Counts:
    """The laws of (X1, X2), by points 1, 3 and 4."""
    mass = discrete_gaussian(mechanism.shared, TAIL) if mechanism.shared else np.ones(1)
    _, some = passing(mechanism, case.single, np.arange(mass.size) - radius_of(mass))
    passed = math.fsum((mass * some).tolist())
    without = joint_law(mechanism, case._replace(single=0))
    with_new = joint_law(mechanism, case) if case.single else without
    shift = mechanism.lattice * case.changed
    if case.offset:
        shift += mechanism.gamma * mechanism.lattice  # t is lower by b in A
    gap = np.zeros((shift, without.shape[1]))
    first, second = np.concatenate((gap, with_new)), np.concatenate((without, gap))
    kept = np.maximum(first, second) > NEGLIGIBLE
    return Counts(first[kept], second[kept], passed)


# --- delta -------------------------------------------------------------------------------------------------------


def hockey_stick(first: Array, second: Array, losses: Losses, epsilon: float) -> float:
    """sum (p p' - e^epsilon q q')_+: for each point of the counts, from which loss of the sums on p p' is larger.

    A start that rounding moved by one gives a smaller sum, if another at all.
    """
    with np.errstate(divide="ignore"):
        needed = epsilon - (np.log(first) - np.log(second))
    start = np.searchsorted(losses.ratios, needed, side="right")
    gains = first * losses.first[start] - np.exp(np.longdouble(epsilon)) * second * losses.second[start]
    return float(np.sum(np.maximum(gains, 0)))


def extreme(mechanism: Mechanism, case: Case) -> Values:
    """Values of the largest size on all moved items."""
    return (tuple(reach for reach, _ in mechanism.sums),) * case.moved


def deltas(mechanism: Mechanism, case: Case, epsilon: float, values: Values | None = None) -> tuple[float, float]:
    """(delta(A, B), delta(B, A)) of one pair of neighbours."""
    chosen = extreme(mechanism, case) if values is None else values
    assert len(chosen) == case.moved
    losses, counts = losses_of(mechanism.sums, chosen), counts_of(mechanism, case)
    larger = counts.passed + hockey_stick(counts.first, counts.second, losses, epsilon)
    return larger, hockey_stick(counts.second, counts.first, losses, epsilon)


def worst_case(mechanism: Mechanism, k: int | None, m: int, epsilon: float) -> tuple[float, Case]:
    """The largest delta over all neighbours, and where it is attained."""
    found = [(max(deltas(mechanism, case, epsilon)), case) for case in cases(mechanism, k, m)]
    return max(found, key=lambda one: one[0])
