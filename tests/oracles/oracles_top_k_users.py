"""Independent oracle for counts above the (K+1)-th largest: pairs of neighbours and exact deltas by enumeration.

Public are K, the most items m of a user, a lattice of b steps per count, variance parameters V, V_W, V_c in
steps^2 and a limit L in steps. N_Z(V) gives every integer x the weight exp(-x^2/(2V)); at V = 0 it is 0.

    1. c is the (K+1)-th largest count, h_i = max(H_i - c, 0): at most K of them are positive
    2. one W from N_Z(V_W); for each h_i > 0 y_i = b h_i + Z_i + W with Z_i from N_Z(V), shown if y_i > b + L
    3. the offset, with Z_c from N_Z(V_c): b c + Z_c - W ("opposite"), b c + Z_c ("independent"), nothing ("none")
    4. a shown item is shown with its sums, if there are any, each plus a draw from N_Z(V_l) in steps of its own

Neighbours are H and H' = H + v, v in {0, 1}^items with 1 <= sum v <= m. The l-th sum of an item with v = 1 moves
by at most N_l steps, those of the others do not move. Delta is the largest sum over outputs of
(P - e^epsilon Q)_+ over all neighbours, with (P, Q) = (H', H) for "add" and (H, H') for "remove".

*Patterns.* An item with h_i > 0 in both datasets is shared. An item with h_i > 0 in one dataset has h_i = 1 there.
For a shared item with a small count, take the y_i of a large count, subtract the difference, and hide it if it is
at most b + L. This is post-processing: large counts are the worst case, and their y_i are shown up to a mass that
tends to 0. What remains of a pair of neighbours is its pattern; ``patterns`` lists those of all small histograms.
Leaving out columns is post-processing too: among patterns with the same move of c, only the largest matter.

*Sums of values.* Only those of the user's shared items move, and a move by N_l steps is the worst one for a
log-concave law. They are independent of all else. Of t of them with one law their total is sufficient, by the
argument below, so each l adds one independent axis: the total of t draws, moved by t N_l.

*The sum.* Given W = w all columns are independent. A shared y_i that moves by s steps has a law proportional to

    exp(-(x_i - w - s)^2/(2V)) = exp(-x_i^2/(2V)) exp((w + s) x_i/V) exp(-(w + s)^2/(2V)),

with the same normaliser for every whole w + s. For n shared items with the same s, both P and Q therefore depend
on the x_i only through their sum, up to a common factor: the sum is sufficient, and replacing the n columns by it,
an n-fold convolution moved by n (w + s), changes no divergence. The negative of an "opposite" offset has variance
V_c, has W added and moves by -b if c moves: it is one more such column, with exponent (w + s) x/V_c. It joins the
items with its s: with V_c/V = p/q in lowest terms, p (sum of the x_i) + q x is sufficient. Shared items have at
most two different s (0 and b, or 0 and -b). This leaves two axes, or three where nothing is joined.

The n items of a single dataset are all hidden with probability Pr[Z <= L - w]^n given w. An output that shows one
of them has probability 0 in the other dataset and counts in full.

*Error.* All sums have positive terms: a probability has a relative error of ROUNDING per term added to get it. The
mass left out is at most LEFT_OUT per noise and per end of an axis. ``Divergence.error`` is what follows for delta:
for variances up to 60 about 2e-13 of the probability of the outputs with P > e^epsilon Q, plus 1e-16.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Variance: TypeAlias = int | Fraction
Direction: TypeAlias = Literal["add", "remove"]
Offset: TypeAlias = Literal["opposite", "independent", "none"]
Histogram: TypeAlias = tuple[int, ...]

FAR: Final = 9
"""A count far above the others in ``patterns``."""
LEFT_OUT: Final = 1e-18
"""Of one noise on each side, and of one axis on each side: the mass beyond the numbers that are summed."""
ROUNDING: Final = 2.0**-53


# --- which pairs there are ---------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Pattern:
    """Shared items whose h moves by +1, 0, -1 from H to H'; items of H' alone; of H alone; the move of c."""

    up: int = 0
    stay: int = 0
    down: int = 0
    appear: int = 0
    vanish: int = 0
    offset: int = 0

    @property
    def touched(self) -> int:
        """The shared items of the user; ``pattern_of`` checks it."""
        return self.stay if self.offset else self.up

    def below(self, other: Pattern) -> bool:
        """Whether its output is the other's with columns left out."""
        return self.offset == other.offset and all(
            mine <= theirs
            for mine, theirs in zip(
                (self.up, self.stay, self.down, self.appear, self.vanish),
                (other.up, other.stay, other.down, other.appear, other.vanish),
                strict=True,
            )
        )


def cut_of(counts: Histogram, k: int) -> int:
    """The (K+1)-th largest count, 0 if at most K are positive."""
    ranked = sorted(counts, reverse=True)
    return ranked[k] if len(ranked) > k else 0


def heights_of(counts: Histogram, k: int) -> Histogram:
    cut = cut_of(counts, k)
    return tuple(max(count - cut, 0) for count in counts)


def pattern_of(before: Histogram, after: Histogram, k: int) -> Pattern:
    """The pattern of H and H', with the claims about it that the module makes checked."""
    pairs = list(zip(heights_of(before, k), heights_of(after, k), strict=True))
    moves = [new - old for old, new in pairs if old > 0 and new > 0]
    alone = [(old, new) for old, new in pairs if (old > 0) != (new > 0)]
    offset = cut_of(after, k) - cut_of(before, k)
    if not (set(moves) <= {-1, 0, 1} and set(alone) <= {(0, 1), (1, 0)} and offset in (0, 1)):
        raise ArithmeticError(f"unforeseen neighbours {before}, {after}")
    pattern = Pattern(
        up=moves.count(1),
        stay=moves.count(0),
        down=moves.count(-1),
        appear=alone.count((0, 1)),
        vanish=alone.count((1, 0)),
        offset=offset,
    )
    mine = sum(
        count != old and old_height > 0 and height > 0
        for (old_height, height), old, count in zip(pairs, before, after, strict=True)
    )
    if pattern.touched != mine:
        raise ArithmeticError(f"the user of {before}, {after} has {mine} shared items")
    return pattern


def histograms(items: int, counts: tuple[int, ...]) -> Iterator[Histogram]:
    """All histograms up to the order of items, which neither c nor the noise looks at."""
    return itertools.combinations_with_replacement(sorted(counts, reverse=True), items)


def neighbours(before: Histogram, m: int | None) -> Iterator[Histogram]:
    """All H' = H + v."""
    for v in itertools.product((0, 1), repeat=len(before)):
        if sum(v) >= 1 and (m is None or sum(v) <= m):
            yield tuple(count + one for count, one in zip(before, v, strict=True))


@cache
def patterns(k: int, m: int | None, items: int | None = None, *, far_only: bool = False) -> frozenset[Pattern]:
    """The patterns of all neighbours with counts 0, 1, 2, 3 and FAR; by default of K + 2 items.

    With far_only those alone whose shared items are all far above: the sum takes every pattern for one of these.
    """
    found = set()
    for before in histograms(k + 2 if items is None else items, (0, 1, 2, 3, FAR)):
        old = heights_of(before, k)
        for after in neighbours(before, m):
            near = any(0 < h < FAR // 2 and new > 0 for h, new in zip(old, heights_of(after, k), strict=True))
            if not (far_only and near):
                found.add(pattern_of(before, after, k))
    return frozenset(found)


def largest(some: frozenset[Pattern]) -> list[Pattern]:
    """Those that are not below another one."""
    return sorted(p for p in some if not any(p != other and p.below(other) for other in some))


# --- the divergence of a pattern -----------------------------------------------------------------------


class Noise(NamedTuple):
    lattice: int
    variance: Variance
    variance_shared: Variance
    variance_offset: Variance
    limit: int
    offset: Offset
    sums: tuple[tuple[int, Variance], ...] = ()
    """N_l and V_l of each."""


class Divergence(NamedTuple):
    delta: float
    error: float
    """Delta is right to this."""


class Worst(NamedTuple):
    delta: float
    error: float
    pattern: Pattern
    direction: Direction


class Law(NamedTuple):
    """Probabilities of -reach, ..., reach, each from so many terms."""

    masses: Floats
    reach: int
    terms: int

    def at(self, places: NDArray[np.int64]) -> Floats:
        inside = np.abs(places) <= self.reach
        return np.where(inside, self.masses[np.where(inside, places + self.reach, 0)], 0.0)

    def times(self, factor: int) -> Law:
        masses = np.zeros(2 * factor * self.reach + 1)
        masses[::factor] = self.masses
        return Law(masses, factor * self.reach, self.terms)

    def plus(self, other: Law) -> Law:
        """The law of the sum of independent draws."""
        terms = self.terms + other.terms + min(len(self.masses), len(other.masses))
        return Law(np.convolve(self.masses, other.masses), self.reach + other.reach, terms)


@cache
def law(variance: Variance) -> Law:
    """N_Z(V); Pr[|x| > r] <= 2 exp(-r^2/(2V)) <= LEFT_OUT."""
    if variance == 0:
        return Law(np.ones(1), 0, 1)
    reach = math.ceil(math.sqrt(2 * float(variance) * math.log(2 / LEFT_OUT)))
    places = np.arange(-reach, reach + 1).astype(np.longdouble)
    double = np.longdouble(2 * Fraction(variance).numerator) / np.longdouble(Fraction(variance).denominator)
    weights = np.exp(-(places**2) / double)
    return Law((weights / weights.sum()).astype(np.float64), reach, 2)


@cache
def law_of_sum(count: int, variance: Variance) -> Law:
    one = law(variance)
    return one if count == 1 else law_of_sum(count - 1, variance).plus(one)


class Axis(NamedTuple):
    """The law of one axis of the output for each w (columns), in H and in H'."""

    before: Floats
    after: Floats
    terms: int


def axis(noise: Law, factor: int, move: int, shared: Law) -> Axis:
    """noise + factor w in H, noise + factor w + move in H', without the ends of negligible mass."""
    span = noise.reach + abs(factor) * shared.reach + abs(move)
    places = np.arange(-span, span + 1)[:, None] - factor * values(shared)[None, :]
    before, after = noise.at(places), noise.at(places - move)
    mass = (before + after) @ shared.masses
    keep = (np.cumsum(mass) > LEFT_OUT) & (np.cumsum(mass[::-1])[::-1] > LEFT_OUT)
    return Axis(before[keep], after[keep], noise.terms)


def values(noise: Law) -> NDArray[np.int64]:
    return np.arange(-noise.reach, noise.reach + 1, dtype=np.int64)


def axes_of(pattern: Pattern, noise: Noise, *, join: bool = True) -> list[Axis]:
    """The sums of the shared items with the same move; the offset, joined to one of them if that is smaller."""
    shared, single = law(noise.variance_shared), law(noise.variance_offset)
    alone = noise.offset == "opposite" or (noise.offset == "independent" and pattern.offset > 0)
    joinable = join and noise.offset == "opposite" and noise.variance > 0 and noise.variance_offset > 0
    axes = []
    for items, move in ((pattern.up, 1), (pattern.stay, 0), (pattern.down, -1)):
        if not items:
            continue
        total, factor = law_of_sum(items, noise.variance), items
        if joinable and move == -pattern.offset:
            p, q = (Fraction(noise.variance_offset) / Fraction(noise.variance)).as_integer_ratio()
            if p * total.reach + q * single.reach < total.reach * single.reach:
                total, factor, alone = total.times(p).plus(single.times(q)), p * items + q, False
        axes.append(axis(total, factor, factor * move * noise.lattice, shared))
    if alone:
        factor = -1 if noise.offset == "opposite" else 0
        axes.append(axis(single, factor, pattern.offset * noise.lattice, shared))
    return axes


def sums_of(pattern: Pattern, noise: Noise) -> tuple[Axis, float]:
    """The joint law of the sums that move, and the mass left out of it."""
    touched, constant = pattern.touched, law(0)
    before, after, terms = np.ones(1), np.ones(1), 0
    for reach, variance in noise.sums if touched else ():
        one = axis(law_of_sum(touched, variance), 0, touched * reach, constant)
        before, after = np.outer(before, one.before).ravel(), np.outer(after, one.after).ravel()
        terms += one.terms
    return Axis(before, after, terms), LEFT_OUT * len(noise.sums) * (touched + 2)


def hidden_and_shown(noise: Noise, count: int) -> tuple[Floats, Floats]:
    """For each w: the probability that so many items of one dataset are all hidden, and that one is shown."""
    one = law(noise.variance)
    last = noise.limit - values(law(noise.variance_shared))
    index = np.clip(last + one.reach + 1, 0, 2 * one.reach + 1)
    passed = np.concatenate(([0.0], np.cumsum(one.masses)))[index]
    missed = np.concatenate((np.cumsum(one.masses[::-1])[::-1], [0.0]))[index]
    few = np.minimum(missed, 0.5)
    return passed**count, np.where(missed < 0.5, -np.expm1(count * np.log1p(-few)), 1 - passed**count)


def is_flat(rows: Floats) -> bool:
    """Whether the axis does not depend on w."""
    return bool(np.all(rows == rows[:, :1]))


def joint(first: Floats, second: Floats, third: Floats, weights: Floats) -> Iterator[Floats]:
    """The joint law of the three axes, W summed out, for one value of the first after the other."""
    if is_flat(first):
        others = (second * weights) @ third.T
        yield from (row[0] * others for row in first)
    else:
        yield from ((second * (weights * row)) @ third.T for row in first)


def divergences(
    pattern: Pattern, noise: Noise, epsilon: float, *, join: bool = True
) -> dict[Direction, Divergence]:
    """The divergence of H' from H ("add") and of H from H' ("remove"), for large shared counts."""
    shared, e = law(noise.variance_shared), math.exp(epsilon)
    axes = axes_of(pattern, noise, join=join)
    if len(axes) > 3:
        raise ArithmeticError(f"{pattern} has items that move up, stay and move down")
    constant = np.ones((1, len(shared.masses)))
    filled = [*axes, *[Axis(constant, constant, 0)] * (3 - len(axes))]
    first, second, third = sorted(filled, key=lambda one: (not is_flat(one.before), len(one.before)))
    hidden_before, shown_before = hidden_and_shown(noise, pattern.vanish)
    hidden_after, shown_after = hidden_and_shown(noise, pattern.appear)
    weight_before, weight_after = shared.masses * hidden_before, shared.masses * hidden_after
    sums, sums_left_out = sums_of(pattern, noise)
    gains: dict[Direction, list[float]] = {
        "add": [float(shared.masses @ shown_after)],
        "remove": [float(shared.masses @ shown_before)],
    }
    masses = {direction: list(shown) for direction, shown in gains.items()}

    def collect(direction: Direction, p: Floats, q: Floats, sums_p: Floats, sums_q: Floats) -> None:
        for one_p, one_q in zip(sums_p, sums_q, strict=True):
            excess = p * one_p - e * one_q * q
            counted = excess > 0
            gains[direction].append(float(excess[counted].sum()))
            masses[direction].append(float(one_p * p[counted].sum()))

    for before, after in zip(
        joint(first.before, second.before, third.before, weight_before),
        joint(first.after, second.after, third.after, weight_after),
        strict=True,
    ):
        collect("add", after, before, sums.after, sums.before)
        collect("remove", before, after, sums.before, sums.after)
    alone = max(pattern.appear, pattern.vanish)
    terms = len(shared.masses) + sum(one.terms for one in (*axes, sums)) + 50
    terms += alone * len(law(noise.variance).masses)
    noises = 2 + pattern.up + pattern.stay + pattern.down + alone
    left_out = (LEFT_OUT * (noises + 2 * len(axes)) + sums_left_out) * (1 + e)
    return {
        direction: Divergence(
            math.fsum(gains[direction]), 2 * ROUNDING * terms * math.fsum(masses[direction]) + left_out
        )
        for direction in gains
    }


def all_divergences(
    *, k: int, m: int | None, noise: Noise, epsilon: float
) -> dict[tuple[Pattern, Direction], Divergence]:
    """Those of the largest patterns, in both directions."""
    return {
        (pattern, direction): divergence
        for pattern in largest(patterns(k, m))
        for direction, divergence in divergences(pattern, noise, epsilon).items()
    }


def exact_delta(
    *,
    k: int,
    m: int | None,
    lattice: int,
    variance: Variance,
    variance_shared: Variance,
    variance_offset: Variance,
    limit: int,
    epsilon: float,
    offset: Offset,
    sums: tuple[tuple[int, Variance], ...] = (),
) -> Worst:
    """The delta of the mechanism, with a pattern and a direction that attain it; m = None is no limit."""
    noise = Noise(lattice, variance, variance_shared, variance_offset, limit, offset, sums)
    every = all_divergences(k=k, m=m, noise=noise, epsilon=epsilon)
    pattern, direction = max(every, key=lambda pair: every[pair].delta)
    error = max(divergence.error for divergence in every.values())
    return Worst(every[pattern, direction].delta, error, pattern, direction)
