"""Independent oracles for releases in rounds: the bound of theorem 1, its parts, and exact deltas by enumeration.

Public are a lattice L, a variance W, parts k_0, ..., k_{R-1} of the rounds, s of the sizes and m of the
measurement, limits T_r and cuts c_r, the most items N of a user and the growth g. A draw with k parts is a
discrete Gaussian of variance parameter W/k on the whole steps. Users with several items:

    round r     a user with n items left, n_1 of them in round 0, adds to each
                b = isqrt(L^2 // n) in round 0, min(isqrt(L^2 // n), isqrt(g^2 L^2 // n_1), L) later;
                y_r(i) = sum + N_Z(W/k_r);  found if sum over q <= r of k_q y_q(i) > (k_0 + ... + k_r) T_r,
                hopeless if it is below (k_0 + ... + k_r) c_r (not in the last round); both leave all lists
    sizes       users by number of found items, L steps each, N_Z(W/s) on every bucket
    measurement with a limit M chosen from noisy numbers: min(L, isqrt(M L^2 // n)) to each of n found items,
                N_Z(M W/m); a sum moves by at most reach of its steps times that weight over L, N_Z(M V)

Users with one item are a group of their own: noise on the number of those that have an item, which is found if
the noisy number exceeds 1 + limit and somebody of the group has it. The noisy number of an item that the rounds
find is published too.

Theorem 1: delta <= max over r of 1 - (1 - p_r)^r, p_r that one of a user's r new items passes at the largest
weights it can have, plus the hockey-stick divergence of one normal draw moved by mu. Derivation:
docs/theory/rounds.md. The enumeration at the end knows nothing of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy.special import ndtr

from oracles import DPS, Real, delta_gaussian, real
from oracles_discrete import GUARD, SUMMED, discrete_gaussian_tail, some_of_tail, to_long

Floats: TypeAlias = NDArray[np.float64]
Long: TypeAlias = NDArray[np.longdouble]
Direction: TypeAlias = Literal["add", "remove"]
DIRECTIONS: Final[tuple[Direction, Direction]] = ("add", "remove")


def gaussian_tail(n: int, variance: Fraction) -> mpf:
    """Pr[X >= n] as in oracles_discrete, to 17 digits: as fast as thousands of plans need it.

    For n > 0 and middling variances e^(-n^2/2V) times the sum of e^(-(2nx + x^2)/2V) over x >= 0 in long doubles.
    """
    if not 8 <= variance <= SUMMED:
        return discrete_gaussian_tail(n=n, variance=variance)
    with mp.workdps(DPS):
        if n <= 0:
            return 1 - gaussian_tail(1 - n, variance)
        v = real(variance)
        xs = np.arange(math.ceil(FAR * math.sqrt(variance))).astype(np.longdouble)
        terms = np.exp(-xs * (xs + 2 * n) / (2 * to_long(v)))
        total = mp.exp(-(mpf(n) ** 2) / (2 * v)) * mpf(str(terms[::-1].sum()))
        return total / (mp.sqrt(2 * mp.pi * v) * (1 + theta(v)))


# --- the parameters ----------------------------------------------------------------------------------


class Laplace(NamedTuple):
    """Discrete Laplace noise on whole users: Pr[x] proportional to exp(-|x|/scale)."""

    scale: Fraction
    limit: int

    @property
    def lattice(self) -> int:
        return 1

    def mass(self, x: int) -> mpf:
        q = mp.exp(-1 / real(self.scale))
        return (1 - q) / (1 + q) * q ** abs(x)

    def tail(self, n: int) -> mpf:
        """Pr[Z >= n]."""
        if n <= 0:
            return 1 - self.tail(1 - n)
        q = mp.exp(-1 / real(self.scale))
        return q**n / (1 + q)


class Gaussian(NamedTuple):
    """Discrete Gaussian noise in steps of 1/lattice."""

    lattice: int
    variance: Fraction
    limit: int

    def mass(self, x: int) -> mpf:
        return self.tail(x) - self.tail(x + 1)

    def tail(self, n: int) -> mpf:
        """Pr[Z >= n]."""
        return gaussian_tail(n, self.variance)


class Sum(NamedTuple):
    """One sum (or vector) beside the measured count: its reach in steps, its variance at M = 1, its columns."""

    reach: int
    variance: Fraction
    columns: int = 1


@dataclass(frozen=True)
class Rounds:
    """The numbers of a release in rounds."""

    lattice: int
    variance: Fraction
    parts: tuple[int, ...]
    limits: tuple[int, ...]
    cuts: tuple[int, ...]
    sizes: int
    measure: int
    most_items: int
    growth: int
    alone: Laplace | Gaussian | None = None
    sums: tuple[Sum, ...] = ()
    shared: int = 0
    listed: int = 0

    def pooled(self, r: int) -> int:
        """The parts of the rounds up to r."""
        return sum(self.parts[: r + 1])

    def first_weight(self, n: int) -> int:
        return math.isqrt(self.lattice**2 // n)

    def later_weight(self, n: int, first: int) -> int:
        grown = math.isqrt(self.growth**2 * self.lattice**2 // first)
        return min(math.isqrt(self.lattice**2 // n), grown, self.lattice)

    def measure_weight(self, n: int, limit: int) -> int:
        return min(self.lattice, math.isqrt(limit * self.lattice**2 // n))

    def measure_noise(self, limit: int) -> tuple[Fraction, Fraction]:
        """Variance parameters of the measurement: of each item, and of the draw that all share; 0 for none.

        It is shared where the variance of an item is less with it: with K = gamma + listed items and the smaller m
        of M and K/2, own = (m (1 - m/K) + K/(4 L^2)) W/k and shared = own/gamma.
        """
        one = self.variance / self.measure
        if self.shared:
            places = self.shared + self.listed
            half = min(Fraction(limit), Fraction(places, 2))
            own = (half * (1 - half / places) + Fraction(places, 4 * self.lattice**2)) * one
            if own * (1 + Fraction(1, self.shared)) < limit * one:
                return own, own / self.shared
        return limit * one, Fraction(0)

    def caps(self, new: int) -> tuple[int, ...]:
        """The largest weight of a new item in each round if its user has `new` of them.

        All of them are on the list in round 0. Later all others may have left, but the growth counts from there.
        """
        return tuple(
            self.first_weight(new) if r == 0 else self.later_weight(1, new) for r in range(len(self.parts))
        )

    def must_exceed(self, weights: Sequence[int]) -> list[int]:
        """What the pooled noise sum k_q Z_q has to exceed, round by round, for an item with these weights."""
        moved = itertools.accumulate(k * b for k, b in zip(self.parts, weights, strict=True))
        return [self.pooled(r) * self.limits[r] - own for r, own in enumerate(moved)]


# --- the pooled evidence -----------------------------------------------------------------------------

FAR: Final = 13.6
"""Draws beyond this many deviations are left out of laws that are summed: less than 1e-40."""


@cache
def single_law(variance: Fraction) -> Long:
    """The masses of a discrete Gaussian within FAR deviations, centred."""
    reach = math.ceil(FAR * math.sqrt(variance))
    xs = np.arange(-reach, reach + 1).astype(np.longdouble)
    v = to_long(real(variance))
    weights: Long = np.exp(-xs * xs / (2 * v))
    law: Long = weights / weights.sum()
    return law


def with_draw(law: Long, variance: Fraction, factor: int) -> Long:
    """The law after adding `factor` times a draw, centred."""
    single = single_law(variance)
    wide = np.zeros(len(law) + factor * (len(single) - 1), dtype=np.longdouble)
    for n, mass in enumerate(single):
        wide[n * factor : n * factor + len(law)] += mass * law
    return wide


@cache
def pooled_law(parts: tuple[int, ...], variance: Fraction) -> Long:
    """The law of sum k_q Z_q, Z_q of variance parameter W/k_q, by convolution; centred."""
    if not parts:
        return np.ones(1, dtype=np.longdouble)
    return with_draw(pooled_law(parts[:-1], variance), variance / parts[-1], parts[-1])


def tail_of(law: Long, n: int) -> np.longdouble:
    """Pr[X >= n] for a centred law, added from the far end."""
    start = max(0, n + len(law) // 2)
    return np.longdouble(law[start:][::-1].sum())


def pooled_tail_summed(parts: Sequence[int], variance: Fraction, n: int) -> np.longdouble:
    """Pr[sum k_q Z_q >= n], by convolution: for small variances."""
    return tail_of(pooled_law(tuple(parts), variance), n)


def theta(variance: Real) -> mpf:
    """2 sum over k >= 1 of exp(-2 pi^2 k^2 V), added until nothing is left."""
    v, total, k = real(variance), mpf(0), 1
    while (term := 2 * mp.exp(-2 * mp.pi**2 * k**2 * v)) > mp.eps * (total + mpf(10) ** -300):
        total, k = total + term, k + 1
    return total


def pooled_factor(parts: Sequence[int], variance: Fraction) -> mpf:
    """How much the pooled noise may exceed a discrete Gaussian of variance parameter W K/g^2 on multiples of g.

    Draw by draw: the solutions of g z + k y = n are multiples of (k, -g)/g' apart, g' = gcd(g, k), along which the
    exponent is a quadratic of variance parameter W K g'^2/(g^2 k (K + k)); K are the parts so far.
    """
    factor, together, divisor = mpf(1), parts[0], parts[0]
    for k in parts[1:]:
        common = math.gcd(divisor, k)
        along = variance * together * common**2 / (divisor**2 * k * (together + k))
        factor *= (1 + theta(along)) ** 2
        together, divisor = together + k, common
    return factor


@cache
def pooled_tail_by_lemma(parts: tuple[int, ...], variance: Fraction, n: int) -> mpf:
    """The upper bound of Pr[sum k_q Z_q >= n], and its value where the factor is 1 to all digits."""
    with mp.workdps(DPS + GUARD):
        common = math.gcd(*parts)
        tail = gaussian_tail(-(-n // common), variance * sum(parts) / common**2)
        return tail * pooled_factor(parts, variance)


def pooled_tail(parts: Sequence[int], variance: Fraction, n: int) -> mpf:
    """Pr[sum k_q Z_q >= n] to 15 digits or more: by the lemma where its factor is 1, else summed."""
    if pooled_factor(parts, variance) - 1 < mpf("1e-20"):
        return pooled_tail_by_lemma(tuple(parts), variance, n)
    return mpf(str(pooled_tail_summed(parts, variance, n)))


# --- theorem 1 ---------------------------------------------------------------------------------------


def passing_union(noise: Rounds, weights: Sequence[int]) -> mpf:
    """At most: that an item with these weights in the rounds passes in one of them. One tail for each round."""
    with mp.workdps(DPS):
        return mp.fsum(
            pooled_tail(noise.parts[: r + 1], noise.variance, bound + 1)
            for r, bound in enumerate(noise.must_exceed(weights))
        )


@cache
def _legendre(nodes: int) -> tuple[Floats, Floats]:
    xs, weights = np.polynomial.legendre.leggauss(nodes)
    return xs, weights


def passing_integrated(noise: Rounds, weights: Sequence[int], nodes: int = 160) -> float:
    """Exactly: that the pooled noise exceeds its bound in some round, by normal draws of the same variance.

    The chance to pass first in round r is an integral over the noise so far, within its bounds: nothing cancels.
    Good to about 1e-8 of it where a deviation has thousands of steps; bounds are in the middle between two values.
    """
    scale, divisor, bounds = math.sqrt(noise.variance), 0, []
    for k, bound in zip(noise.parts, noise.must_exceed(weights), strict=True):
        divisor = math.gcd(divisor, k)
        bounds.append((divisor * (bound // divisor) + divisor / 2) / scale)
    xs, ws = _legendre(nodes)
    points, masses, total = np.zeros(1), np.ones(1), 0.0
    for r, k in enumerate(noise.parts):
        step = math.sqrt(k)
        total += float((masses * ndtr((points - bounds[r]) / step)).sum())
        # The density of the noise that has not passed, at nodes below the bound.
        low, high = -10 * math.sqrt(noise.pooled(r)), bounds[r]
        following = (high - low) / 2 * xs + (high + low) / 2
        steps = (following[:, None] - points[None, :]) / step
        density = (np.exp(-steps * steps / 2) @ masses) / (step * math.sqrt(2 * math.pi))
        points, masses = following, (high - low) / 2 * ws * density
    return total


def passing_summed(noise: Rounds, weights: Sequence[int]) -> np.longdouble:
    """The same by summation over all values of the pooled noise: exact, for small variances."""
    total, law = np.longdouble(0), np.ones(1, dtype=np.longdouble)
    for k, bound in zip(noise.parts, noise.must_exceed(weights), strict=True):
        law = with_draw(law, noise.variance / k, k)
        passed = max(0, bound + 1 + len(law) // 2)
        total += law[passed:][::-1].sum()
        law[passed:] = 0
    return total


SUMMED_BELOW: Final = 8_000
"""Up to this many values the pooled noise is summed; beyond them, integrated."""


def passing(noise: Rounds, weights: Sequence[int]) -> mpf:
    """That an item with these weights in the rounds passes in one of them."""
    values = FAR * sum(math.sqrt(noise.variance * k) for k in noise.parts)
    if values < SUMMED_BELOW:
        return mpf(str(passing_summed(noise, weights)))
    return mpf(passing_integrated(noise, weights))


def worst_new(noise: Rounds) -> int:
    """The number of new items with the largest event, found in doubles by the tails of each round."""
    counts = np.arange(1, noise.most_items + 1)
    bounds = np.array([noise.must_exceed(noise.caps(new)) for new in counts.tolist()], dtype=float)
    deviations = np.sqrt([float(noise.variance * noise.pooled(r)) for r in range(len(noise.parts))])
    each = np.minimum(ndtr(-bounds / deviations).sum(axis=1), 1 - 1e-16)
    return int(counts[np.argmax(-np.expm1(counts * np.log1p(-each)))])


def event(noise: Rounds, *, union: bool, new: int | None = None) -> mpf:
    """E of theorem 1: that some new item of a user is shown. With the union over rounds an upper bound."""
    if not noise.parts:
        return mpf(0)
    count = worst_new(noise) if new is None else new
    weights = noise.caps(count)
    with mp.workdps(DPS):
        return some_of_tail(
            count, min(passing_union(noise, weights) if union else passing(noise, weights), mpf(1))
        )


def measured_move(noise: Rounds, limit: int, rounding: int) -> Fraction:
    """The squared move of a measurement with this limit by one user, in deviations of the rounded noise.

    Without a shared draw M L^2. With one, every offset c of whole steps is a representation: the n items of the
    user move by w - c, the other listed ones by -c and the shared draw by c. The best one for the worst n.
    """
    own, shared = noise.measure_noise(limit)
    if not shared:
        return Fraction(limit * noise.lattice**2) / (own - rounding)

    def moved(n: int, c: int) -> Fraction:
        w = noise.measure_weight(n, limit)
        return (n * (w - c) ** 2 + (noise.listed - n) * c**2) / (own - rounding) + c**2 / (shared - rounding)

    def best(n: int) -> Fraction:
        w = noise.measure_weight(n, limit)
        middle = round(n * w / (noise.listed + (own - rounding) / (shared - rounding)))
        return min(moved(n, c) for c in (middle - 1, middle, middle + 1))

    return max(best(n) for n in range(1, noise.most_items + 1))


def squared_mu(noise: Rounds, rounding: int) -> Fraction:
    """The squared length of a user's move in deviations of the normal noise that is left after `rounding`."""
    square = Fraction(noise.lattice**2)
    counts = sum((square / (noise.variance / k - rounding) for k in (*noise.parts, noise.sizes) if k), Fraction(0))
    # Without a shared draw the limit 1 is the worst: rounding takes the largest share of its noise.
    limits = range(1, noise.most_items + 1) if noise.shared else (1,)
    measured = max(measured_move(noise, limit, rounding) for limit in limits) if noise.measure else Fraction(0)
    return counts + measured + sum((one.reach**2 / (one.variance - rounding) for one in noise.sums), Fraction(0))


def moved_draws(noise: Rounds) -> int:
    """The most draws whose laws depend on one user."""
    measured = noise.listed + 1 if noise.shared else noise.most_items if noise.measure else 0
    summed = noise.most_items * sum(one.columns for one in noise.sums)
    return noise.most_items * len(noise.parts) + measured + summed + (noise.sizes > 0)


def gaussian_part(noise: Rounds, epsilon: Real, rounding: int) -> mpf:
    """e^a H_{eps - 2a}(mu), a being the log of what rounding may change in all draws together; at most 1."""
    with mp.workdps(DPS):
        mu2 = squared_mu(noise, rounding)
        if mu2 == 0:
            return mpf(0)
        a = moved_draws(noise) * mp.log((1 + theta(rounding)) / (1 - theta(rounding)))
        left = real(epsilon) - 2 * a
        return min(mp.exp(a) * delta_gaussian(sensitivity=mp.sqrt(real(mu2)), sigma=1, epsilon=left), mpf(1))


def several_delta(noise: Rounds, epsilon: Real, *, union: bool, rounding: int = 16) -> mpf:
    """Theorem 1, for users with several items."""
    with mp.workdps(DPS):
        return min(event(noise, union=union) + gaussian_part(noise, epsilon, rounding), mpf(1))


# --- users with one item -----------------------------------------------------------------------------


def turning_point(own: Laplace | Gaussian, epsilon: float) -> int | None:
    """The least y with Pr[Z = y - lattice] > e^epsilon Pr[Z = y]; the ratio never falls as y grows."""
    if isinstance(own, Laplace):
        return 1 if own.scale * Fraction(epsilon) < 1 else None
    return math.floor(Fraction(epsilon) * own.variance / own.lattice + Fraction(own.lattice, 2)) + 1


Others: TypeAlias = Literal["nobody", "several", "alone"]


def alone_cases(noise: Rounds, epsilon: float) -> dict[tuple[Others, Direction], mpf]:
    """The exact deltas of a user with one item, by who else has it: nobody, users with several items, or with one.

    All noisy numbers of items that others have are published, as if the rounds found every one of them.
    - nobody: with the user, the item may be found, or be shown later by the noise of the rounds alone.
    - several: only with the user can it be found here, and everybody sees whether it was.
    - alone: somebody else of the group has it, or it is known. Its noisy number moves by one user.
    """
    own = noise.alone
    assert own is not None
    with mp.workdps(DPS):
        factor, step, bound = mp.exp(real(epsilon)), own.lattice, own.limit + own.lattice
        passes = own.tail(own.limit + 1)
        later = passing(noise, [0] * len(noise.parts)) if noise.parts else mpf(0)
        turn = turning_point(own, epsilon)

        def gain(low: int | None, high: int | None) -> mpf:
            """The sum of Pr[Z = y - step] - e^epsilon Pr[Z = y] for low <= y <= high."""
            if low is None or (high is not None and low > high):
                return mpf(0)
            beyond = mpf(0) if high is None else own.tail(high + 1 - step) - factor * own.tail(high + 1)
            return own.tail(low - step) - factor * own.tail(low) - beyond

        moved = gain(turn, None)
        return {
            ("nobody", "add"): passes + later - passes * later,
            ("nobody", "remove"): mpf(0),
            ("several", "add"): passes + gain(turn, bound),
            # Without the user, y <= step - turn is likelier; if the bound is lower still, it ends there.
            ("several", "remove"): own.tail(bound + 1) + (gain(max(turn, step - bound), None) if turn else 0),
            ("alone", "add"): moved,
            ("alone", "remove"): moved,
        }


def alone_delta(noise: Rounds, epsilon: float) -> mpf:
    """The exact delta of users with one item."""
    return max(alone_cases(noise, epsilon).values())


def delta(noise: Rounds, epsilon: float, *, union: bool, rounding: int = 16) -> mpf:
    """The bound for all users: a user is in one group, by their own data."""
    several = several_delta(noise, epsilon, union=union, rounding=rounding)
    return max(several, alone_delta(noise, epsilon)) if noise.alone else several


# --- tiny neighbours, enumerated ---------------------------------------------------------------------

BOX: Final = 7.6
"""Enumeration leaves out draws beyond this many deviations: less than 1e-13 of each law."""
LEAST: Final = 1e-15
"""Entries of a law below this are left out."""
HOPELESS: Final = 0
"""The state of an item after round 0: hopeless, 1, 2, ... on the lists with a rising score, and last found."""
States: TypeAlias = tuple[int, ...]
Weights: TypeAlias = Callable[[States], Sequence[int]]
Reveal: TypeAlias = Literal["found", "states", "all"]
Key: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class World:
    """A user with `shared` items that others have, which come first, and `new` ones that nobody else has.

    `others` and `first` are the weights that others and the user add in round 0, `others_later` and `later`
    those in round 1, as functions of the states of the shared items and of all the user's items; `splits` divide
    the items left by their noisy number in round 0. `limit` chooses M from the noisy size of the user's bucket, in
    steps above the number of others. What is revealed of items that are not found: nothing, their state after
    round 0 if others have them (a popular item of users who react shows it), or all noisy numbers of shared items.
    """

    shared: int
    new: int
    others: tuple[int, ...]
    first: tuple[int, ...]
    others_later: Weights
    later: Weights
    limit: Callable[[int], int]
    splits: tuple[int, ...] = ()
    reveal: Reveal = "found"


class Law(NamedTuple):
    """Masses from `low` on."""

    low: int
    masses: Floats


@cache
def _draws(variance: Fraction, moved: int = 0) -> Law:
    """The law in the box of a draw and of one `moved` by so much.

    Where only one of the two is above 0 the loss is infinite, however likely the moved draw is there.
    """
    reach = math.ceil(BOX * math.sqrt(variance)) + moved
    xs = np.arange(-reach, reach + 1)
    weights = np.exp(-(xs.astype(float) ** 2) / (2 * float(variance)))
    return Law(-reach, weights / weights.sum())


def _moved(law: Law, by: int, xs: NDArray[np.int64]) -> Floats:
    """The masses of a draw moved by so much, at the values xs."""
    index = xs - by - law.low
    inside = (index >= 0) & (index < len(law.masses))
    return np.where(inside, law.masses[np.clip(index, 0, len(law.masses) - 1)], 0.0)


class Stage(NamedTuple):
    """Sizes and measurement of n found items: the losses of all outcomes, rising, and masses from each on."""

    losses: Floats
    with_user: Floats
    without: Floats


def _outer(one: tuple[Floats, Floats], two: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    p, q = (np.outer(a, b).ravel() for a, b in zip(one, two, strict=True))
    kept = (p > LEAST) | (q > LEAST)
    return p[kept], q[kept]


def _summed(variance: Fraction, times: int, moved: int = 0) -> Law:
    """The law of the sum of `times` draws, each in the box of one that is moved by so much."""
    masses = np.ones(1)
    for _ in range(times):
        masses = np.convolve(masses, _draws(variance, moved).masses)
    return Law(-(len(masses) // 2), masses)


def _moves(variance: Fraction, steps: int, times: int, *, wide: bool = False) -> tuple[Floats, Floats]:
    """The sum of `times` draws, each moved by so many steps, and not moved: all that the likelihood depends on."""
    law = _summed(variance, times, abs(steps) if wide else 0)
    xs = np.arange(law.low + min(0, steps * times), -law.low + max(0, steps * times) + 1)
    p, q = _moved(law, steps * times, xs), _moved(law, 0, xs)
    kept = (p > LEAST) | (q > LEAST)
    return p[kept], q[kept]


def final_stage(noise: Rounds, found: int, limit: Callable[[int], int], *, wide: bool = False) -> Stage:
    """The outcomes of sizes and measurement if `found` of the user's items were found.

    Draws are in boxes around their own means, or in `wide` ones that have both means.
    """
    pairs: list[tuple[Floats, Floats]] = [(np.ones(1), np.ones(1))]
    if found:
        law = _draws(noise.variance / noise.sizes, noise.lattice if wide else 0)
        ys = np.arange(law.low, noise.lattice - law.low + 1)
        sizes = _moved(law, noise.lattice, ys), _moved(law, 0, ys)
        chosen = np.array([limit(y) for y in ys.tolist()])
        pairs = []
        for most in sorted(set(chosen.tolist())):
            here = chosen == most
            pair = sizes[0][here], sizes[1][here]
            if most:
                weight, (own, shared) = noise.measure_weight(found, most), noise.measure_noise(most)
                measured = (
                    _moves_with_shared(noise, found, most) if shared else _moves(own, weight, found, wide=wide)
                )
                pair = _outer(pair, measured)
                for one in noise.sums:
                    steps = one.reach * weight // noise.lattice
                    pair = _outer(pair, _moves(most * one.variance, steps, found, wide=wide))
            pairs.append(pair)
    p, q = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    with np.errstate(divide="ignore"):
        losses = np.log(p) - np.log(q)
    order = np.argsort(losses)
    return Stage(losses[order], *(np.append(np.cumsum(side[order][::-1])[::-1], 0.0) for side in (p, q)))


def _gain(p: Floats, q: Floats, final: Stage, epsilon: float) -> dict[Direction, float]:
    """The sum over rounds, sizes and measurement of (P - e^eps Q)+, in both directions."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(q) - np.log(p)
    ratio = np.where(p == 0, np.where(q == 0, 0.0, np.inf), ratio)
    factor = math.exp(epsilon)
    up = np.searchsorted(final.losses, ratio + epsilon, side="right")
    add = p * final.with_user[up] - factor * q * final.without[up]
    down = np.searchsorted(final.losses, ratio - epsilon, side="left")
    below_p, below_q = final.with_user[0] - final.with_user[down], final.without[0] - final.without[down]
    remove = q * below_q - factor * p * below_p
    return {"add": float(add.sum()), "remove": float(remove.sum())}


class _Item:
    """One of the user's items: the laws of its noisy numbers in both rounds, by its state after round 0."""

    def __init__(self, noise: Rounds, world: World, number: int) -> None:
        self.noise = noise
        others = world.others[number] if number < world.shared else 0
        own = world.first[number]
        law = _draws(noise.variance / noise.parts[0])
        self.ys = np.arange(others + law.low, others + own - law.low + 1)
        self.masses = _moved(law, others + own, self.ys), _moved(law, others, self.ys)
        edges = [
            noise.cuts[0],
            *(split for split in world.splits if noise.cuts[0] < split <= noise.limits[0]),
        ]
        self.states = np.searchsorted(np.array(edges), self.ys, side="right")
        self.found = len(edges) + 1
        self.states = np.where(self.ys > noise.limits[0], self.found, self.states)
        self.later = _draws(noise.variance / noise.parts[1])
        self.must_exceed = noise.pooled(1) * noise.limits[1]

    def first_round(self, state: int, side: int) -> Floats:
        masses: Floats = self.masses[side][self.states == state]
        return masses

    def hidden(self, state: int, side: int, mean: int) -> float:
        """In the state, and not found in round 1 either, where its weights have this sum."""
        masses = self.first_round(state, side)
        if state == HOPELESS:
            return float(masses.sum())
        return float((masses * self._stays(state, mean)).sum())

    def _stays(self, state: int, mean: int) -> Floats:
        ys = self.ys[self.states == state]
        most = (self.must_exceed - self.noise.parts[0] * ys) // self.noise.parts[1]
        below = np.concatenate([[0.0], np.cumsum(self.later.masses)])
        cumulative: Floats = below[np.clip(most - mean - self.later.low + 1, 0, len(below) - 1)]
        return cumulative

    def second_round(self, state: int, side: int, mean: int, means: Sequence[int], found: bool) -> Floats:
        """Both noisy numbers, where it is found in round 1 or where it is not; `means` are all that may be."""
        ys = self.ys[self.states == state]
        reach = np.arange(self.later.low, -self.later.low + 1)
        later = np.unique(np.concatenate([one + reach for one in set(means)]))
        score = self.noise.parts[0] * ys[:, None] + self.noise.parts[1] * later[None, :]
        first = np.maximum(self.first_round(state, 0), self.first_round(state, 1))
        second = np.max([_moved(self.later, one, later) for one in set(means)], axis=0)
        shown = ((score > self.must_exceed) == found) & (np.outer(first, second) > LEAST)
        both: Floats = np.outer(self.first_round(state, side), _moved(self.later, mean, later))[shown]
        return both


def _outputs(noise: Rounds, world: World) -> Iterator[tuple[int, Floats, Floats]]:
    """For each kind of output of the rounds: how many shared items it finds, its law with the user and without."""
    items = [_Item(noise, world, number) for number in range(world.shared + world.new)]
    shared, new = items[: world.shared], items[world.shared :]
    ranges = [range(item.found + 1) for item in shared]
    hidden_states = list(itertools.product(*(range(item.found) for item in new)))
    own = {
        (*states, *hidden): tuple(world.later((*states, *hidden)))
        for states in itertools.product(*ranges)
        for hidden in hidden_states
    }
    others = {states: tuple(world.others_later(states)) for states in itertools.product(*ranges)}
    means = [
        [*(one[n] for one in others.values()), *(others[s[: world.shared]][n] + w[n] for s, w in own.items())]
        for n in range(world.shared)
    ]
    laws: dict[Key, list[Floats]] = {}

    def add(key: Key, side: int, mass: float, factors: Sequence[Floats]) -> None:
        whole = np.full(1, mass)
        for factor in factors:
            whole = np.outer(whole, factor).ravel()
        pair = laws.setdefault(key, [np.zeros(whole.size), np.zeros(whole.size)])
        pair[side] += whole

    def parts_of(
        item: _Item, number: int, state: int, side: int, mean: int
    ) -> Iterator[tuple[tuple[str, int], Floats]]:
        """What may be published of a shared item in this state."""
        everything, label = world.reveal == "all", 0 if world.reveal == "found" else state
        if state == item.found:
            yield ("first", 0), item.first_round(state, side)
            return
        if state == HOPELESS:
            masses = item.first_round(state, side)
            yield ("none", label), masses if everything else masses.sum(keepdims=True)
            return
        yield ("second", state), item.second_round(state, side, mean, means[number], True)
        if everything:
            yield ("none", label), item.second_round(state, side, mean, means[number], False)
        else:
            yield ("none", label), np.full(1, item.hidden(state, side, mean))

    for states in itertools.product(*ranges):
        for hidden in hidden_states:
            weights = own[(*states, *hidden)]
            mass = math.prod(
                item.hidden(state, 0, weights[world.shared + n])
                for n, (item, state) in enumerate(zip(new, hidden, strict=True))
            )
            options = [
                list(parts_of(item, n, state, 0, others[states][n] + weights[n]))
                for n, (item, state) in enumerate(zip(shared, states, strict=True))
            ]
            for chosen in itertools.product(*options):
                add(tuple(label for label, _ in chosen), 0, mass, [factor for _, factor in chosen])
        options = [
            list(parts_of(item, n, state, 1, others[states][n]))
            for n, (item, state) in enumerate(zip(shared, states, strict=True))
        ]
        for chosen in itertools.product(*options):
            add(tuple(label for label, _ in chosen), 1, 1.0, [factor for _, factor in chosen])
    for key, (p, q) in laws.items():
        yield sum(kind != "none" for kind, _ in key), p, q


def enumerated(noise: Rounds, world: World, epsilons: Sequence[float]) -> dict[float, dict[Direction, float]]:
    """The exact delta of two given data sets that differ by the user, in both directions, for two rounds.

    All outcomes of the rounds are enumerated; those of sizes and measurement follow for each. With a new item
    shown, the user is known to be there. What is left out is below 1e-9.
    """
    assert len(noise.parts) == 2
    assert min(noise.sizes, noise.measure) > 0
    stages = {found: final_stage(noise, found, world.limit) for found in range(world.shared + 1)}
    total: dict[float, dict[Direction, float]] = {e: {"add": 0.0, "remove": 0.0} for e in epsilons}
    not_shown = 0.0
    for found, p, q in _outputs(noise, world):
        kept = (p > LEAST) | (q > LEAST)
        not_shown += float(p.sum())
        for epsilon, sums in total.items():
            for direction, gain in _gain(p[kept], q[kept], stages[found], epsilon).items():
                sums[direction] += gain
    for sums in total.values():
        sums["add"] += 1 - not_shown
    return total


def _moves_with_shared(noise: Rounds, count: int, limit: int) -> tuple[Floats, Floats]:
    """All that the measurement of a public list says: the sums of the user's `count` items and of the others."""
    own, shared = noise.measure_noise(limit)
    weight, others = noise.measure_weight(count, limit), noise.listed - count
    move, laws = count * weight, [_summed(own, count, weight), _summed(own, others)]
    reach = _draws(shared)
    sides = [
        np.arange(law.low - far, law.low + len(law.masses) + far)
        for law, far in zip(laws, (-count * reach.low, -others * reach.low), strict=True)
    ]
    p, q = (np.zeros((len(sides[0]), len(sides[1]))) for _ in range(2))
    for w, mass in enumerate(reach.masses, start=reach.low):
        beside = mass * _moved(laws[1], others * w, sides[1])
        p += np.outer(_moved(laws[0], count * w + move, sides[0]), beside)
        q += np.outer(_moved(laws[0], count * w, sides[0]), beside)
    kept = (p > LEAST) | (q > LEAST)
    return p[kept], q[kept]


def enumerated_public(
    noise: Rounds, count: int, limit: Callable[[int], int], epsilons: Sequence[float]
) -> dict[float, dict[Direction, float]]:
    """The exact delta of a user with `count` items of a public list: sizes and a measurement, no rounds."""
    stage = final_stage(noise, count, limit, wide=True)
    one = np.ones(1)
    return {epsilon: _gain(one, one, stage, epsilon) for epsilon in epsilons}


def allowed(noise: Rounds, world: World) -> bool:
    """Whether the user's weights keep within squared lengths and caps: what theorem 1 asks for."""
    caps, square = noise.caps(max(world.new, 1)), noise.lattice**2
    every = [
        world.first,
        *(world.later(states) for states in itertools.product(range(8), repeat=len(world.first))),
    ]
    return all(
        sum(w * w for w in weights) <= square and all(w <= caps[r > 0] for w in weights[world.shared :])
        for r, weights in enumerate(every)
    )
