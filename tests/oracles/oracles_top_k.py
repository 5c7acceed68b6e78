"""Independent oracle: the exact privacy of the top-k histogram with a released offset, by summing over the noise.

The mechanism. H_i is the number of users with item i, c the (k+1)-th largest count (0 if there are fewer) and
H~_i = max(H_i - c, 0); at most k entries are positive. All noise is whole steps of 1/b with the law
Pr[x] proportional to exp(-x^2/(2 variance)): Z_i (variance V) for every positive entry, one shared W
(V_s = V/gamma) and Z_c (V_c = V_s). Entry i with H~_i > 0 is released as y_i = H~_i + (Z_i + W)/b iff
y_i > 1 + limit/b (strict). The offset is published, whatever the data, by one of three rules: "none" (nothing),
"opposite" (c + (Z_c - W)/b) or "independent" (c + Z_c/b).

Neighbours. Adding one user with the set U turns c into c (no change) or c + 1.
(a) c stays: entries in U with H_i >= c rise by one, all others stay; those with H_i = c are new, with H~ = 1.
(b) c rises: entries in U with H_i >= c stay as they are (those at c stay 0), and entries outside of U with
H_i > c fall by one; those with H~_i = 1 vanish.
Call A the world with the larger entries (with the user in (a), without in (b)) and B the other one: A has +1 on
``changed`` of the ``shared`` entries that are positive in both worlds, ``single`` further entries that are
positive in A alone and equal to 1 there, and an offset lower by ``offset_change`` (0 or 1).
``neighbour_types`` checks this by enumerating histograms.

Divergence. A shared entry is passed on or dropped by looking at y_i alone, so the threshold on it is
post-processing and the worst counts are those so large that the entry always passes. A single entry has
b (y_i - 1) = Z_i + W and is seen iff Z_i + W > limit; seeing it proves A. With p the law of (y_shared, offset)
in A on the event that no single entry passed, q the law of the same in B, and passed = 1 - sum p,
    delta(A, B) = passed + sum max(p - e^epsilon q, 0),    delta(B, A) = sum max(q - e^epsilon p, 0),
    p(y, t) = sum over w of Pr[W = w] Pr[Z <= limit - w]^single prod Pr[Z = y_i - w - b [i changed]] Pr[t | w]
(in steps; q without the second factor and without shifts). This module imports nothing of the library.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from mpmath import matrix, mp, mpf
from numpy.typing import NDArray

Real: TypeAlias = Any
"""An int, float, Fraction or mpf."""
Rule: TypeAlias = Literal["none", "opposite", "independent"]
RULES: tuple[Rule, ...] = get_args(Rule)
Method: TypeAlias = Literal["direct", "reduced"]
Array: TypeAlias = NDArray[np.float64]
Output: TypeAlias = tuple[tuple[tuple[int, int], ...], int | None]
"""What is published: (item, b y_item) for every released item, and b times the offset."""

TAIL = 1e-15
"""Probability, at most, of the noise that is left out, for each draw."""
DPS = 50
"""Working precision of mpmath, in decimal digits."""


class NeighbourType(NamedTuple):
    """What tells two neighbours apart; A is the world with the larger entries (see above)."""

    shared: int
    """Entries positive in both worlds (j)."""
    changed: int
    """Those of them that are larger by one in A (s)."""
    single: int
    """Entries positive in A alone, where they are 1 (r)."""
    offset_change: int
    """The offset of B minus the offset of A: 0 (A has one user more) or 1 (B has one user more)."""


class Deltas(NamedTuple):
    """Both hockey-stick divergences of one pair, and a bound on the error of either."""

    larger: float
    """sup over S of Pr[A in S] - e^epsilon Pr[B in S]; A has the larger entries and the single ones."""
    smaller: float
    """sup over S of Pr[B in S] - e^epsilon Pr[A in S]."""
    error: float

    @property
    def worst(self) -> float:
        return max(self.larger, self.smaller)


class Worst(NamedTuple):
    """The largest delta over all neighbours, and where it is attained."""

    delta: float
    kind: NeighbourType
    direction: Literal["larger", "smaller"]
    error: float


# --- neighbours --------------------------------------------------------------------------------------------------


def top_k(histogram: Sequence[int], k: int) -> tuple[tuple[int, ...], int]:
    """(H~, c) of a histogram, straight from the definition."""
    ordered = sorted(histogram, reverse=True)
    c = ordered[k] if len(ordered) > k else 0
    return tuple(max(count - c, 0) for count in histogram), c


def neighbour_type(before: Sequence[int], after: Sequence[int], k: int) -> NeighbourType:
    """The type of (histogram without a user, histogram with the user); an AssertionError if the claim fails."""
    without, c = top_k(before, k)
    with_user, c_after = top_k(after, k)
    assert c_after - c in (0, 1), "the offset changes by 0 or 1"
    larger, smaller = (with_user, without) if c_after == c else (without, with_user)
    pairs = list(zip(larger, smaller, strict=True))
    assert all(x - y in (0, 1) for x, y in pairs), "all changes have one sign and size one"
    assert all(sum(x > 0 for x in world) <= k for world in (larger, smaller)), "at most k positive entries"
    return NeighbourType(
        shared=sum(y > 0 for _, y in pairs),
        changed=sum(y > 0 and x > y for x, y in pairs),
        single=sum(x > 0 and y == 0 for x, y in pairs),
        offset_change=c_after - c,
    )


def neighbour_types(k: int, items: int, most: int) -> frozenset[NeighbourType]:
    """All types that occur for ``items`` items with counts 0..``most`` before a user with any set is added.

    Every histogram is that of some dataset, since users have sets of any size, and a removal is an addition
    read backwards. Raises an AssertionError should a pair not have the claimed structure.
    """
    return frozenset(
        neighbour_type(before, [count + one for count, one in zip(before, user, strict=True)], k)
        for before in itertools.product(range(most + 1), repeat=items)
        for user in itertools.product((0, 1), repeat=items)
    )


def claimed_types(k: int) -> frozenset[NeighbourType]:
    """The types claimed to occur: all with changed <= shared, shared + single <= k and offset change 0 or 1."""
    return frozenset(
        NeighbourType(shared, changed, single, offset_change)
        for shared in range(k + 1)
        for changed in range(shared + 1)
        for single in range(k - shared + 1)
        for offset_change in (0, 1)
    )


# --- noise -------------------------------------------------------------------------------------------------------


def _real(value: Real) -> mpf:
    return mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else mpf(value)


@cache
def _weights(variance: Fraction, tail: float) -> tuple[mpf, ...]:
    """Pr[x] for x = 0..R, R the least with Pr[|x| > R] <= tail, with the normaliser of the untruncated law.

    From x = R + 1 on the ratio of consecutive terms is at most exp(-(2 R + 3)/(2 variance)), so that a geometric
    series bounds what is left out; the normaliser is summed until that bound is below 10^-DPS.
    """
    assert variance > 0
    with mp.workdps(DPS + 5):
        scale = 2 * _real(variance)
        terms: list[mpf] = []
        beyond: list[mpf] = []  # a bound on the sum of all terms after x, on both sides
        while not beyond or beyond[-1] > mpf(10) ** -DPS:
            x = len(terms)
            terms.append(mp.exp(-mpf(x * x) / scale))
            following = mp.exp(-mpf((x + 1) ** 2) / scale)
            beyond.append(2 * following / (1 - mp.exp(-mpf(2 * x + 3) / scale)))
        total = terms[0] + 2 * mp.fsum(terms[1:])
        radius = next(x for x, rest in enumerate(beyond) if rest <= mpf(tail) * total)
        return tuple(term / total for term in terms[: radius + 1])


@cache
def discrete_gaussian(variance: Fraction, tail: float = TAIL) -> Array:
    """Pr[x] for x = -R..R as floats (each rounded once); R = (size - 1)/2 and Pr[|x| > R] <= tail."""
    half = [float(weight) for weight in _weights(variance, tail)]
    law = np.array([*half[:0:-1], *half])
    law.flags.writeable = False
    return law


def _radius(law: Array) -> int:
    return (law.size - 1) // 2


# --- exact delta by summation ------------------------------------------------------------------------------------


class _Mixture(NamedTuple):
    """The measure sum over w of weights[w] times the product of factors[a][w, x_a] over the axes a."""

    weights: Array
    factors: list[Array]


def _slices(mixture: _Mixture) -> Iterator[Array]:
    """The masses of all points, the last two axes at a time."""
    *outer, one, two = [np.ones((mixture.weights.size, 1))] * 2 + mixture.factors
    for index in itertools.product(*(range(factor.shape[1]) for factor in outer)):
        weights = mixture.weights
        for factor, x in zip(outer, index, strict=True):
            weights = weights * factor[:, x]
        kept = np.flatnonzero(weights)
        yield (one[kept] * weights[kept, None]).T @ two[kept]


def _placed(law: Array, centres: NDArray[np.int64], low: int, high: int) -> Array:
    """factor[w, x - low] = law(x - centres[w]) for x = low..high, which must cover all of it."""
    radius = _radius(law)
    assert low <= centres.min() - radius
    assert centres.max() + radius <= high
    factor = np.zeros((centres.size, high - low + 1))
    columns = (centres - radius - low)[:, None] + np.arange(law.size)[None, :]
    factor[np.arange(centres.size)[:, None], columns] = law[None, :]
    return factor


def _check(kind: NeighbourType, b: int, gamma: int, limit: int, rule: Rule) -> None:
    assert 0 <= kind.changed <= kind.shared
    assert kind.single >= 0
    assert kind.offset_change in (0, 1)
    assert isinstance(b, int)
    assert b >= 1
    assert isinstance(gamma, int)
    assert gamma >= 1
    assert isinstance(limit, int), "the limit is a whole number of steps"
    assert rule in RULES


def delta_exact(
    kind: NeighbourType,
    b: int,
    V: Fraction | int,
    gamma: int,
    limit: int,
    rule: Rule,
    epsilon: float,
    method: Method = "direct",
) -> Deltas:
    """delta(epsilon) of the pair of the given type, both directions, by direct summation.

    "direct" has one axis for every shared entry and one for the offset. "reduced" has one for the sum of the
    changed entries, one for the sum of the unchanged ones, and one for the offset: as
    prod exp(-(y_i - w)^2/(2V)) = exp(-|y|^2/(2V)) exp((2 w sum y - j w^2)/(2V)),
    p(y, t) = exp(-|y - b v|^2/(2V)) f(sum y, t) and q(y, t) = exp(-|y|^2/(2V)) g(sum y, t) with v the indicator
    of the changed entries, so the ratio p/q depends on y by v.y and sum y alone: the two sums and t are a
    sufficient statistic, and nothing is lost.

    Error. Each draw misses at most TAIL; leaving out mass x of p and z of q changes
    sum max(p - e^epsilon q, 0) by at most x + e^epsilon z. All numbers added are positive, so a computed mass
    has a relative error of at most about (number of additions and multiplications) 2^-53.
    """
    _check(kind, b, gamma, limit, rule)
    j, s, r, offset_change = kind
    variance = Fraction(V)
    own, shared = discrete_gaussian(variance), discrete_gaussian(variance / gamma)
    w = np.arange(-_radius(shared), _radius(shared) + 1)

    # Pr[Z > limit - w] given w, and that of any single entry passing: 1 - (1 - u)^r = u (1 + (1 - u) + ...)
    upper = np.array(
        [min(math.fsum(own[max(limit - x + _radius(own) + 1, 0) :].tolist()), 1.0) for x in w.tolist()]
    )
    some = upper * sum(((1 - upper) ** number for number in range(r)), np.zeros(w.size))
    passed = math.fsum((shared * some).tolist())

    axes: list[tuple[Array, int, int]] = []  # the law, the multiple of w and the shift of A for every axis
    if method == "direct":
        axes += [(own, 1, b)] * s + [(own, 1, 0)] * (j - s)
    else:
        for number, shift in ((s, b * s), (j - s, 0)):
            if number:
                law = own
                for _ in range(number - 1):
                    law = np.convolve(law, own)
                axes.append((law, number, shift))
    if rule != "none":
        axes.append((shared, -1 if rule == "opposite" else 0, -b * offset_change))

    first, second = _Mixture(shared * (1 - some), []), _Mixture(shared, [])
    for law, multiple, shift in axes:
        reach = _radius(law) + abs(multiple) * _radius(shared)
        low, high = min(0, shift) - reach, max(0, shift) + reach
        first.factors.append(_placed(law, multiple * w + shift, low, high))
        second.factors.append(_placed(law, multiple * w, low, high))

    factor = math.exp(epsilon)
    larger, smaller = [passed], [0.0]
    for p, q in zip(_slices(first), _slices(second), strict=True):
        larger.append(float(np.maximum(p - factor * q, 0).sum()))
        smaller.append(float(np.maximum(q - factor * p, 0).sum()))
    operations = w.size + 64 + (own.size * j if method == "reduced" else 0)
    error = (1 + factor) * ((j + r + 2) * TAIL + operations * 2.0**-53)
    return Deltas(math.fsum(larger), math.fsum(smaller), error)


def worst_case(
    k: int,
    b: int,
    V: Fraction | int,
    gamma: int,
    limit: int,
    rule: Rule,
    epsilon: float,
    method: Method | None = None,
) -> Worst:
    """The largest delta over all types of neighbours for this k, and both directions.

    Without a method, "direct" up to two shared entries and "reduced" from three on. Without an offset its
    change cannot be seen, and the two types that differ in it alone have one and the same delta.
    """
    worst: Worst | None = None
    for kind in sorted(claimed_types(k)):
        if rule == "none" and kind.offset_change:
            continue
        chosen: Method = method or ("direct" if kind.shared <= 2 else "reduced")
        deltas = delta_exact(kind, b, V, gamma, limit, rule, epsilon, chosen)
        for direction in ("larger", "smaller"):
            value: float = getattr(deltas, direction)
            if worst is None or value > worst.delta:
                worst = Worst(value, kind, direction, deltas.error)
    assert worst is not None
    return worst


def worst_delta(
    k: int,
    b: int,
    V: Fraction | int,
    gamma: int,
    limit: int,
    rule: Rule,
    epsilon: float,
    method: Method | None = None,
) -> float:
    """The delta of ``worst_case``."""
    return worst_case(k, b, V, gamma, limit, rule, epsilon, method).delta


# --- two slow checks of delta_exact ------------------------------------------------------------------------------


def delta_multiprecision(
    kind: NeighbourType,
    b: int,
    V: Fraction | int,
    gamma: int,
    limit: int,
    rule: Rule,
    epsilon: Real,
    tail: float = 1e-22,
) -> tuple[mpf, mpf]:
    """(larger, smaller) of ``delta_exact`` in plain loops of mpmath numbers; for small V and one shared entry."""
    _check(kind, b, gamma, limit, rule)
    variance = Fraction(V)
    own, shared = _weights(variance, tail), _weights(variance / gamma, tail)
    own_law = {sign * x: mass for x, mass in enumerate(own) for sign in (1, -1)}
    shared_law = {sign * x: mass for x, mass in enumerate(shared) for sign in (1, -1)}
    offset_law: dict[int, mpf] = shared_law if rule != "none" else {0: mpf(1)}
    with mp.workdps(DPS):
        p: dict[tuple[int, ...], mpf] = defaultdict(lambda: mpf(0))
        q: dict[tuple[int, ...], mpf] = defaultdict(lambda: mpf(0))
        passed = mpf(0)
        for w, mass in shared_law.items():
            below = 1 - mp.fsum(weight for z, weight in own_law.items() if z + w > limit)
            none = below**kind.single
            passed += mass * (1 - none)
            for draws in itertools.product(own_law.items(), repeat=kind.shared):
                inner = mass * mp.fprod(weight for _, weight in draws)
                y = [z + w for z, _ in draws]
                moved = [value + b * (i < kind.changed) for i, value in enumerate(y)]
                for z_c, weight in offset_law.items():
                    t = 0 if rule == "none" else z_c - w if rule == "opposite" else z_c
                    shift = 0 if rule == "none" else b * kind.offset_change
                    q[(*y, t)] += inner * weight
                    p[(*moved, t - shift)] += inner * weight * none
        factor = mp.exp(_real(epsilon))
        points = p.keys() | q.keys()
        larger = passed + mp.fsum(max(p[x] - factor * q[x], mpf(0)) for x in points)
        smaller = mp.fsum(max(q[x] - factor * p[x], mpf(0)) for x in points)
        return larger, smaller


def release(
    histogram: Sequence[int], k: int, b: int, limit: int, rule: Rule, own: Sequence[int], shared: int, z_c: int
) -> Output:
    """One run of the mechanism with the given noise, ``own`` in the order of the positive entries."""
    reduced, c = top_k(histogram, k)
    positive = [item for item, count in enumerate(reduced) if count > 0]
    noisy = [(item, b * reduced[item] + z + shared) for item, z in zip(positive, own, strict=True)]
    offset = {"none": None, "opposite": b * c + z_c - shared, "independent": b * c + z_c}[rule]
    return tuple((item, y) for item, y in noisy if y > b + limit), offset


def release_law(
    histogram: Sequence[int], k: int, b: int, V: Fraction | int, gamma: int, limit: int, rule: Rule, tail: float
) -> dict[Output, float]:
    """The law of the whole output on a histogram, by running the mechanism on every draw of all the noise."""
    own, shared = discrete_gaussian(Fraction(V), tail), discrete_gaussian(Fraction(V) / gamma, tail)
    own_draws = list(zip(range(-_radius(own), _radius(own) + 1), own.tolist(), strict=True))
    shared_draws = list(zip(range(-_radius(shared), _radius(shared) + 1), shared.tolist(), strict=True))
    c_draws = shared_draws if rule != "none" else [(0, 1.0)]
    positive = sum(count > 0 for count in top_k(histogram, k)[0])
    law: dict[Output, float] = defaultdict(float)
    for draws in itertools.product(shared_draws, c_draws, *[own_draws] * positive):
        (w, _), (z_c, _), *z = draws
        law[release(histogram, k, b, limit, rule, [x for x, _ in z], w, z_c)] += math.prod(
            mass for _, mass in draws
        )
    return dict(law)


def hockey_stick(p: dict[Output, float], q: dict[Output, float], epsilon: float) -> float:
    """sum max(p - e^epsilon q, 0)."""
    factor = math.exp(epsilon)
    return math.fsum(max(mass - factor * q.get(output, 0.0), 0.0) for output, mass in p.items())


# --- the continuous limit ----------------------------------------------------------------------------------------


def gaussian_sensitivity_squared(
    j: int, s: int, c_change: int, sigma: Real, sigma_shared: Real, sigma_c: Real, rule: Rule
) -> mpf:
    """Squared Mahalanobis distance between the Gaussian vectors (y_1..y_j, offset) of two neighbours.

    The means differ by d = (1 on s entries, 0 on the others, c_change on the offset). With independent
    Z_i ~ N(0, sigma^2), W ~ N(0, sigma_shared^2), Z_c ~ N(0, sigma_c^2) the covariance C has
    sigma^2 [i = i'] + sigma_shared^2 between the entries; "opposite" adds an offset with the variance
    sigma_c^2 + sigma_shared^2 and the covariance -sigma_shared^2 to every entry, "independent" one with the
    variance sigma_c^2 and no covariance. Returned is d^T C^-1 d, by solving C x = d.
    """
    assert 0 <= s <= j
    assert c_change in (-1, 0, 1)
    assert rule in RULES
    with mp.workdps(DPS):
        own, shared, c = (_real(x) ** 2 for x in (sigma, sigma_shared, sigma_c))
        size = j + (rule != "none")
        if size == 0:
            return mpf(0)
        covariance, d = matrix(size, size), matrix(size, 1)
        for one, two in itertools.product(range(j), repeat=2):
            covariance[one, two] = shared + (own if one == two else 0)
        for one in range(s):
            d[one] = mpf(1)
        if rule != "none":
            d[j] = mpf(c_change)
            covariance[j, j] = c + (shared if rule == "opposite" else 0)
            for one in range(j):
                covariance[one, j] = covariance[j, one] = -shared if rule == "opposite" else mpf(0)
        return (d.T * mp.lu_solve(covariance, d))[0]


def gaussian_delta(distance: Real, epsilon: Real) -> mpf:
    """delta(epsilon) of two Gaussians at that Mahalanobis distance m: Phi(m/2 - e/m) - e^e Phi(-m/2 - e/m)."""
    with mp.workdps(DPS):
        m, e = _real(distance), _real(epsilon)
        if m == 0:
            return max(mpf(0), 1 - mp.exp(e))
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)
