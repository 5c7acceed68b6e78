"""Independent oracles for weighted users: who has more items adds less to each of them.

Public are an even lattice q, a threshold in steps, and levels (n_1, a_1 = q), (n_2, a_2), ... of rising n and
falling even a. A user with n' items adds a_i to the count of each, i being the first level with n' <= n_i. Each
count H > 0 gets a draw Z of the discrete Gaussian of variance parameter V (and, if there is shared noise, the one
draw W of variance parameter V_w) and is published iff H + Z + W > threshold. Neighbours differ by one user.

The exact delta. Call P the law of the output with the user and Q the law without. The user is at a level (n, a)
and has r items that nobody else has and s items that others have.

1. More items never help the user: leaving an item out of the output is post-processing. So r + s = n.
2. High counts are worst: publishing H + Z + W only above the threshold is post-processing of publishing it always,
   which counts far above the threshold approach. With any number of unchanged counts, W becomes known.
3. Given W = w, a new item is published with probability p = Pr[Z > threshold - a - w] under P and never under Q.
   With u = (1 - p)^r for none of them,

       P over Q:  1 - u + u D(eps - ln u)        Q over P:  D(eps + ln u)

   where D(e) = sum of (P' - exp(e) Q')+ over the s changed counts alone, the same in both directions by symmetry.
4. The log-likelihood ratio of s draws that move by a depends on their sum S alone: it is a (S + s a/2)/V under P'.
5. A user moves a sum beside the count by up to d whole steps, up or down. After reflection the likelihood ratio
   rises in each coordinate, so that the best event is an upper set, which gains by a longer move. So all moves are
   d, and with the sum Y of s draws of variance parameter V_s the ratio gains d (Y + s d/2)/V_s.

As W is independent of the data, delta is the mean over w of 3. No mixture of r and s is assumed to be the worst.
All terms of all sums are positive: nothing cancels, and long doubles give 15 digits. What is left out of a sum
makes it smaller, by less than 1e-30 of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray

Direction = Literal["add", "remove"]
DIRECTIONS: tuple[Direction, ...] = ("add", "remove")
Long = NDArray[np.longdouble]
Floats = NDArray[np.float64]

LEFT_OUT = 85
"""Terms below exp(-85) = 1e-37 of the largest are left out of sums."""
EQUAL_FROM = 20
"""From this variance parameter on, the sum of draws is a discrete Gaussian but for exp(-pi^2 20) < 1e-85."""


class Level(NamedTuple):
    """A user with up to `items` items adds `weight` steps to the count of each."""

    items: int
    weight: int


class Move(NamedTuple):
    """How far a user at a level moves a sum, and the variance parameter of the sum's noise."""

    steps: int
    variance: Fraction


class Case(NamedTuple):
    """Neighbours: a user at a level, with new items and with items that others have too."""

    level: Level
    new: int
    changed: int
    direction: Direction


def level_of(levels: Sequence[Level], items: int) -> Level:
    """The level of a user with this many items, from the definition."""
    most = min(items, levels[-1].items)
    return next(level for level in levels if most <= level.items)


# --- one discrete Gaussian, and the sum of several ---------------------------------------------------


def _long(x: Fraction | float) -> np.longdouble:
    exact = Fraction(x)
    return np.longdouble(exact.numerator) / np.longdouble(exact.denominator)


def _reach(variance: Fraction) -> int:
    return math.isqrt(math.ceil(2 * LEFT_OUT * variance)) + 1


def _weights(xs: Long, variance: Fraction) -> Long:
    weights: Long = np.exp(-xs * xs / (2 * _long(variance)))
    return weights


@cache
def _residue_factors(variance: Fraction, draws: int) -> tuple[np.longdouble, ...]:
    """What exp(-x^2/(2 draws V)) has to be multiplied with for the mass of a sum x of draws, by x modulo draws.

    The squares of draws z with sum x add up to x^2/draws + |z - x/draws|^2, and adding 1 to all z changes
    x but not the second term: summed over z, it depends on x modulo draws alone. For V >= 20 it is constant: the
    sum over integers y of exp(-(y - c)^2/(2 V')) is sqrt(2 pi V') for any c but for a factor of
    1 +- 2.1 exp(-2 pi^2 V'), with V' = V (draws - 1)/draws >= V/2 for one more draw.
    """
    if variance >= EQUAL_FROM:
        return (1 / np.sqrt(2 * np.longdouble(mp.nstr(mp.pi, 25)) * draws * _long(variance)),) * draws
    reach = _reach(variance)
    single = _weights(np.arange(-reach, reach + 1).astype(np.longdouble), variance)
    single /= single.sum()
    law = single
    for _ in range(draws - 1):
        law = np.convolve(law, single)
    centre = np.arange(draws)
    # Only the middle of the convolution is used, where the truncated draws contribute nothing to speak of.
    factors = law[len(law) // 2 + centre] / _weights(centre.astype(np.longdouble), variance * draws)
    return tuple(np.longdouble(factor) for factor in factors)


def _masses(xs: NDArray[np.int64], variance: Fraction, draws: int) -> Long:
    """Pr[x] for the sum of draws, right to a relative 1e-16 however small."""
    factors = np.array(_residue_factors(variance, draws), dtype=np.longdouble)
    masses: Long = factors[xs % draws] * _weights(xs.astype(np.longdouble), variance * draws)
    return masses


def _from(start: int, variance: Fraction) -> NDArray[np.int64]:
    """The integers from `start` to where the weights of this variance have fallen to 1e-37."""
    reach = _reach(variance)
    last = reach if start <= 0 else math.isqrt(start * start + reach * reach) + 1
    return np.arange(max(start, -reach), last + 1)


@cache
def tail(n: int, variance: Fraction) -> np.longdouble:
    """Pr[Z > n]."""
    return np.longdouble(_masses(_from(n + 1, variance), variance, 1).sum())


# --- the exact delta ---------------------------------------------------------------------------------


def move_divergence(moves: Sequence[Move], times: int, epsilon: np.longdouble) -> np.longdouble:
    """The hockey-stick divergence of any epsilon, negative ones too, of values all of which move.

    There are `times` independent values with each of the moves.
    """
    if times == 0 or not moves:
        return np.longdouble(max(0.0, -np.expm1(epsilon)))
    (steps, variance), others = moves[0], moves[1:]
    half, v = np.longdouble(times * steps) / 2, _long(variance)
    if others:
        reach = _reach(variance * times)
        ys = np.arange(-reach, reach + 1)
        losses = steps * (ys + half) / v
        parts = [move_divergence(others, times, epsilon - loss) for loss in losses]
        return np.longdouble((_masses(ys, variance, times) * np.array(parts, dtype=np.longdouble)).sum())
    # A loss above epsilon from here on.
    ys = _from(int(np.floor(epsilon * v / steps - half)), variance * times)
    gains = -np.expm1(epsilon - steps * (ys + half) / v)
    return np.longdouble((_masses(ys, variance, times) * np.maximum(gains, 0)).sum())


def delta_of_neighbours(
    case: Case,
    variance: Fraction,
    threshold: int,
    epsilon: float,
    *,
    variance_shared: Fraction = Fraction(0),
    sums: Iterable[Move] = (),
) -> np.longdouble:
    """The exact delta of one kind of neighbours, any number of unchanged counts beside them."""
    moves = (*sums, Move(case.level.weight, variance))
    reach = _reach(variance_shared) if variance_shared else 0
    shared = np.arange(-reach, reach + 1)
    chances = _masses(shared, variance_shared, 1) if variance_shared else np.ones(1, dtype=np.longdouble)
    if case.new == 0:  # nothing depends on W
        shared, chances = shared[:1], np.ones(1, dtype=np.longdouble)
    total, e = np.longdouble(0), _long(epsilon)
    for w, chance in zip(shared, chances, strict=True):
        n = threshold - case.level.weight - int(w)
        hidden = np.log1p(-tail(n, variance)) if n >= 0 else np.log(tail(-n - 1, variance))
        log_u = case.new * hidden
        if case.direction == "add":
            changed = move_divergence(moves, case.changed, e - log_u)
            total += chance * (-np.expm1(log_u) + np.exp(log_u) * changed)
        else:
            total += chance * move_divergence(moves, case.changed, e + log_u)
    return total


def cases_of(levels: Iterable[Level]) -> list[Case]:
    """All mixtures at all levels, in both directions."""
    return [
        Case(level, new, level.items - new, direction)
        for level in levels
        for new in range(level.items + 1)
        for direction in DIRECTIONS
    ]


def exact_delta(
    variance: Fraction,
    threshold: int,
    levels: Iterable[Level],
    epsilon: float,
    *,
    variance_shared: Fraction = Fraction(0),
    sums: Iterable[tuple[int, Fraction]] = (),
) -> tuple[float, Case]:
    """The exact delta for any number of non-zero counts, and the neighbours that have it.

    `sums` are reach and variance parameter of each; a user of weight a moves a sum by up to reach a/q steps.
    """
    steps = tuple(Level(*level) for level in levels)
    lattice = steps[0].weight

    def moves(level: Level) -> list[Move]:
        assert all(reach * level.weight % lattice == 0 for reach, _ in sums)
        return [Move(reach * level.weight // lattice, own) for reach, own in sums]

    found = [
        (
            float(
                delta_of_neighbours(
                    case,
                    variance,
                    threshold,
                    epsilon,
                    variance_shared=variance_shared,
                    sums=moves(case.level),
                )
            ),
            case,
        )
        for case in cases_of(steps)
    ]
    return max(found, key=lambda one: one[0])


def exact_delta_without_shared(
    variance: Fraction, threshold: int, levels: Iterable[Level], epsilon: float
) -> float:
    """The exact delta for any number of non-zero counts and no shared noise."""
    return exact_delta(variance, threshold, levels, epsilon)[0]


def exact_delta_public(
    variance: Fraction, levels: Iterable[Level], epsilon: float, *, sums: Iterable[tuple[int, Fraction]] = ()
) -> float:
    """The exact delta of a public list, all of which is published: all items of the user are changed ones."""
    steps = tuple(Level(*level) for level in levels)
    every = [
        move_divergence(
            (*(Move(reach * weight // steps[0].weight, own) for reach, own in sums), Move(weight, variance)),
            items,
            _long(epsilon),
        )
        for items, weight in steps
    ]
    return float(max(every))


# --- brute force from the definition -----------------------------------------------------------------

MASS_LEFT_OUT = 1e-15
"""Brute force: the probability of draws beyond each box, and of outputs that are not summed."""


class Item(NamedTuple):
    """An item: what the other users add to its count, and whether the user in question has it."""

    base: int
    touched: bool


def _box(variance: Fraction) -> tuple[NDArray[np.int64], Floats]:
    """The integers outside of which a draw is with probability below MASS_LEFT_OUT, and their masses."""
    if variance == 0:
        return np.zeros(1, dtype=np.int64), np.ones(1)
    reach = 1
    while 2 * tail(reach, variance) > MASS_LEFT_OUT:
        reach += 1
    xs = np.arange(-reach, reach + 1)
    weights = np.exp(-(xs.astype(float) ** 2) / (2 * float(variance)))
    return xs, weights / weights.sum()


def _output_law(count: int, shared: NDArray[np.int64], variance: Fraction, threshold: int, most: int) -> Floats:
    """Row by value of W: the probabilities that nothing, threshold + 1, ..., threshold + most is published."""
    law = np.zeros((len(shared), most + 1))
    if count == 0:
        law[:, 0] = 1
        return law
    draws, chances = _box(variance)
    for row, w in enumerate(shared):
        values = count + draws + int(w) - threshold
        np.add.at(law[row], np.clip(values, 0, None), chances)
    return law


def brute_force_delta_of(
    items: Sequence[Item],
    levels: Sequence[Level],
    variance: Fraction,
    threshold: int,
    epsilon: float,
    variance_shared: Fraction = Fraction(0),
) -> dict[Direction, float]:
    """Delta for two given data sets of 1 to 3 items by summation over all outputs, in both directions.

    The result is off by at most 4 (1 + exp(epsilon)) MASS_LEFT_OUT, plus rounding of some 1e-15.
    """
    weight = level_of(levels, sum(item.touched for item in items)).weight
    shared, chances = _box(variance_shared)
    most = max(item.base for item in items) + weight + int(_box(variance)[0][-1] + shared[-1]) - threshold
    most = max(most, 1)
    laws: list[tuple[Floats, Floats]] = []
    for item in items:
        without = _output_law(item.base, shared, variance, threshold, most)
        own = _output_law(item.base + weight, shared, variance, threshold, most) if item.touched else without
        seen = (chances @ (own + without)) > MASS_LEFT_OUT / (10 * (most + 1))
        laws.append((own[:, seen], without[:, seen]))
    letters = "abc"[: len(items)]
    formula = ",".join(["w", *("w" + letter for letter in letters)]) + "->" + letters
    p = np.einsum(formula, chances, *(law[0] for law in laws), optimize=True)
    q = np.einsum(formula, chances, *(law[1] for law in laws), optimize=True)
    factor = math.exp(epsilon)
    return {
        "add": float(np.maximum(p - factor * q, 0).sum()),
        "remove": float(np.maximum(q - factor * p, 0).sum()),
    }


def neighbouring_data(levels: Sequence[Level], bases: Sequence[int], nonzero: int) -> list[tuple[Item, ...]]:
    """Data with up to `nonzero` items whose counts are among `bases`, or those of the one user alone."""
    kinds = [Item(0, True), *(Item(base, touched) for base in bases for touched in (True, False))]
    return [
        items
        for number in range(1, nonzero + 1)
        for items in itertools.combinations_with_replacement(kinds, number)
        if 1 <= sum(item.touched for item in items) <= levels[-1].items
    ]


def brute_force_delta(
    levels: Sequence[Level],
    variance: Fraction,
    threshold: int,
    epsilon: float,
    *,
    nonzero: int,
    variance_shared: Fraction = Fraction(0),
    low_bases: Sequence[int] = (),
) -> tuple[float, tuple[Item, ...], Direction]:
    """Delta with at most `nonzero` (1 to 3) non-zero counts, and the data that have it.

    The counts of other users are far above the threshold, where all draws are published, or one of `low_bases`.
    """
    far = threshold + 2 * int(_box(variance)[0][-1] + _box(variance_shared)[0][-1])
    found: list[tuple[float, tuple[Item, ...], Direction]] = []
    for items in neighbouring_data(levels, (*low_bases, far), nonzero):
        both = brute_force_delta_of(items, levels, variance, threshold, epsilon, variance_shared)
        found += [(both[direction], items, direction) for direction in DIRECTIONS]
    return max(found, key=lambda one: one[0])


# --- one item with a sum beside its count ------------------------------------------------------------


def brute_force_delta_with_sum(
    item: Item, weight: int, move: Move, variance: Fraction, threshold: int, epsilon: float
) -> dict[Direction, float]:
    """Delta of one touched item whose count and sum are published together, by summation over all outputs."""
    draws, chances = _box(move.variance)
    size = len(draws) + abs(move.steps)
    still, moved = np.zeros(size), np.zeros(size)
    low, high = max(0, -move.steps), max(0, move.steps)
    still[low : low + len(draws)] = chances
    moved[high : high + len(draws)] = chances
    none = np.zeros(1, dtype=np.int64)
    most = max(item.base + weight + int(_box(variance)[0][-1]) - threshold, 1)
    own = _output_law(item.base + weight, none, variance, threshold, most)[0]
    without = _output_law(item.base, none, variance, threshold, most)[0]
    p = np.concatenate([own[:1], np.outer(own[1:], moved).ravel()])
    q = np.concatenate([without[:1], np.outer(without[1:], still).ravel()])
    factor = math.exp(epsilon)
    return {
        "add": float(np.maximum(p - factor * q, 0).sum()),
        "remove": float(np.maximum(q - factor * p, 0).sum()),
    }


def renyi_divergence(moves: Sequence[Move], order: Fraction, digits: int = 40) -> mpf:
    """The Renyi divergence of one changed item: its count and its sums, each with its move, by summation."""
    with mp.workdps(digits):
        alpha, total = mpf(order.numerator) / order.denominator, mpf(0)
        for steps, variance in moves:
            v = mpf(variance.numerator) / variance.denominator
            reach = int(mp.sqrt(2 * v * digits * mp.log(10)) + abs(steps) * (alpha + 1)) + 2
            xs = range(-reach, reach + 1)
            mass = mp.fsum(mp.exp(-(mpf(x) ** 2) / (2 * v)) for x in xs)
            powers = mp.fsum(
                mp.exp(-(alpha * mpf(x - steps) ** 2 + (1 - alpha) * mpf(x) ** 2) / (2 * v)) for x in xs
            )
            total += mp.log(powers / mass) / (alpha - 1)
        return total
