"""The exact privacy of the whole family (sigma, sigma_shared, tau) under a contract (k, m).

Neighbours differ by (j, r, s): j counts are non-zero in both, s of them change by one, and r counts are 1 in one
dataset and 0 in the other. First the infinite event and the offset bound, in doubles and in balls; then the worst
case over all neighbours, and the exact delta of one class of neighbours, which is a lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from flint import arb
from numpy.typing import ArrayLike
from scipy import special

from dphist.privacy import balls
from dphist.privacy.numerics import (
    Blocks,
    FloatArray,
    IntArray,
    bound_over_blocks,
    crossing_breaks,
    hockey_stick_normal,
    log_probability_none_passes,
    normal_reach,
    panel_nodes,
    probability_some_passes,
)
from dphist.privacy.types import Contract, NeighbourCase, Noise

# The infinite event: a count that only one of the neighbours has passes the threshold.

_TURNING_OFFSETS = np.array([-8.0, -6.0, -4.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0])
_EVENT_PEAK_OFFSETS = np.array([-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0])


def shared_noise_breaks(
    counts: FloatArray, *, sigma: float, sigma_shared: float, tau: float, low: float, high: float
) -> FloatArray:
    """Breakpoints, in units of sigma_shared, for integrals of Phi((tau - w)/sigma)^count against normals."""
    uniform = np.linspace(low, high, int(np.ceil(high - low)) + 1)
    # Phi^count drops from 1 to 0 around u_turn, within a few units of u.
    u_turn = special.ndtri(np.exp2(-1.0 / counts))[:, None] - _TURNING_OFFSETS
    turning = (tau - sigma * u_turn) / sigma_shared
    # For a high threshold the mass is where -x^2/2 - u(x)^2/2 peaks, not at the origin.
    variance = sigma**2 + sigma_shared**2
    peak = tau * sigma_shared / variance + (sigma / np.sqrt(variance)) * _EVENT_PEAK_OFFSETS
    rows = [np.broadcast_to(part, (counts.size, part.shape[-1])) for part in (uniform, turning, peak)]
    return np.asarray(np.clip(np.concatenate(rows, axis=1), low, high), dtype=np.float64)


def infinite_event(noise: Noise, count: ArrayLike, *, smallest: float = 1e-300) -> FloatArray:
    """Exact probability that at least one of `count` new counts passes the threshold.

        1 - E over Z_shared of Phi((tau - Z_shared)/sigma)^count

    Guarantee: relative error about 1e-13 for values above `smallest`.
    Valid for: count >= 0 (an array is allowed).
    Source: the exact value that `claim:upperbounddeltainf` bounds.
    """
    counts = np.atleast_1d(np.asarray(count, dtype=np.float64))
    sigma, sigma_shared, tau = noise.sigma, noise.sigma_shared, noise.tau
    if sigma_shared == 0.0:
        return probability_some_passes(counts, tau / sigma)
    reach = normal_reach(smallest)
    breaks = shared_noise_breaks(
        np.maximum(counts, 1.0), sigma=sigma, sigma_shared=sigma_shared, tau=tau, low=-reach, high=reach
    )
    x, weights = panel_nodes(breaks)
    passes = probability_some_passes(counts[:, None], (tau - sigma_shared * x) / sigma)
    density = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
    return np.asarray((weights * density * passes).sum(axis=1), dtype=np.float64)


def infinite_event_upper(*, count: ArrayLike, sigma: float, sigma_shared: float, tau: float) -> FloatArray:
    """The paper's upper bound of the infinite event, which splits tau between own and shared noise.

        1 - Phi(tau/(sigma + sigma_shared))^(count + 1)

    Guarantee: an upper bound of `infinite_event`. The paper's sigma_shared is sigma k^(-1/4).
    Valid for: count >= 0, sigma > 0, sigma_shared > 0, tau > 0.
    Source: `claim:upperbounddeltainf`.
    """
    exponent = np.asarray(count, dtype=np.float64) + 1.0
    return probability_some_passes(exponent, tau / (sigma + sigma_shared))


# The offset bound: reveal the shared noise, shifted by an offset a for one neighbour; the rest is independent.
#
# For H write (H_i + Z_i, Z_shared); for its neighbour H' write (H'_i + a + Z_i, Z_shared - a). The sums have the
# mechanism's distribution in both cases, so a bound for these vectors is a bound for the mechanism. Derivation:
# docs/theory/exact-analysis.md.

_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class OffsetDeltas:
    """The bound for adding a user (only H has the new counts) and for removing one."""

    add: FloatArray
    remove: FloatArray

    @property
    def worst(self) -> FloatArray:
        return np.maximum(self.add, self.remove)


def offset_bound(
    noise: Noise,
    *,
    shared: ArrayLike,
    new: ArrayLike,
    changed: ArrayLike,
    offset: ArrayLike,
    epsilon: float,
    smallest: float = 1e-300,
) -> OffsetDeltas:
    """Upper bound of delta for neighbours with j shared, r new and s changed counts, elementwise.

        delta_add    <= Pr[some new passes] + integral over w of H(p g, e^epsilon q)
        delta_remove <= integral over w of H(q, e^epsilon p g)
        H(A, B) = A Phi(mu/2 + ln(A/B)/mu) - B Phi(-mu/2 + ln(A/B)/mu)
        mu^2 = (s (1-a)^2 + (j-s) a^2 + extra s)/sigma^2,  p = N(0, sigma_shared^2),  q = N(-a, sigma_shared^2),
        g(w) = Phi((tau - w)/sigma)^r

    Guarantee: an upper bound of the exact delta, up to quadrature (relative error about 1e-10).
    Valid for: any offset a; `shared` may be infinite with a = 0; sigma_shared = 0 needs a = 0.
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    sigma, sigma_shared, tau = noise.sigma, noise.sigma_shared, noise.tau
    j, r, s, a = (
        np.atleast_1d(x)
        for x in np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (shared, new, changed, offset)))
    )
    unchanged = np.where(a == 0.0, 0.0, (np.where(np.isinf(j), s, j) - s) * a**2)
    mu = np.sqrt(s * ((1.0 - a) ** 2 + noise.extra) + unchanged) / sigma
    if sigma_shared == 0.0:
        # The terms of the GSHM's exact analysis.
        log_g = log_probability_none_passes(r, tau / sigma)
        hidden = np.exp(log_g) * hockey_stick_normal(mu, epsilon - log_g)
        return OffsetDeltas(
            add=probability_some_passes(r, tau / sigma) + hidden,
            remove=hockey_stick_normal(mu, epsilon + log_g),
        )
    alpha = a / sigma_shared
    reach = normal_reach(smallest)
    low, high = -reach - float(alpha.max()), reach
    common = shared_noise_breaks(
        np.maximum(r, 1.0), sigma=sigma, sigma_shared=sigma_shared, tau=tau, low=low, high=high
    )

    def log_none(x: FloatArray) -> FloatArray:
        return log_probability_none_passes(r[:, None], (tau - sigma_shared * x) / sigma)

    def log_ratio(x: FloatArray) -> FloatArray:
        """log(p g/q) at w = sigma_shared x, concave in x."""
        return log_none(x) + alpha[:, None] * (x + alpha[:, None] / 2.0)

    # H(A, B) = A times the hockey-stick divergence at -ln(A/B), so nothing cancels; it turns where A = B.
    breaks = np.concatenate([common, crossing_breaks(log_ratio, epsilon, mu, low, high)], axis=1)
    x, weights = panel_nodes(breaks)
    p_none = np.exp(log_none(x) - 0.5 * x * x) / _ROOT_TWO_PI
    add = (weights * p_none * hockey_stick_normal(mu[:, None], epsilon - log_ratio(x))).sum(axis=1)
    breaks = np.concatenate([common, crossing_breaks(log_ratio, -epsilon, mu, low, high)], axis=1)
    x, weights = panel_nodes(breaks)
    q = np.exp(-0.5 * (x + alpha[:, None]) ** 2) / _ROOT_TWO_PI
    remove = (weights * q * hockey_stick_normal(mu[:, None], epsilon + log_ratio(x))).sum(axis=1)
    return OffsetDeltas(add=infinite_event(noise, r, smallest=smallest) + add, remove=remove)


# The offset bound in balls, from chords: it has no quadrature error.
#
# Each cell of a partition gives an upper bound, for three reasons. delta decreases in g = Pr[no new count passes |
# w], so a lower bound of g is safe. log g is concave, so its chord over a cell is such a lower bound, and the
# normal integral of an exponential has a closed form. H(A, B) = B h(A/B) with h convex, so the average of h over a
# cell, where A/B is exponential in w, is at most that of its chord (Edmundson and Madansky). The error shrinks
# with the square of the cell width. Proof: docs/theory/exact-analysis.md.


def reach(scale: float) -> float:
    """Standard deviations beyond which a normal law holds far less than `scale`."""
    return math.ceil(-float(special.ndtri_exp(math.log(scale) - 50.0)))


@dataclass(frozen=True)
class Case:
    """One offset bound: noise, neighbours (j, r, s), offset a, and the expected size of delta."""

    noise: Noise
    shared: float
    new: int
    changed: int
    offset: float
    epsilon: float
    scale: float

    @property
    def mu(self) -> arb:
        """Distance of the independent coordinates, in standard deviations."""
        a, s = arb(self.offset), arb(self.changed)
        unchanged = arb(0) if self.offset == 0.0 else (arb(int(self.shared)) - s) * a * a
        return (s * (1 - a) ** 2 + unchanged).sqrt() / arb(self.noise.sigma)


def _log_none_passes(case: Case, x: arb) -> arb:
    noise = case.noise
    u = (arb(noise.tau) - arb(noise.sigma_shared) * x) / arb(noise.sigma)
    # 1 - Phi(-u) would cancel for small u, and Phi(u) would round to one for large u.
    return case.new * (balls.normal_cdf(u).log() if u < 0 else (-balls.normal_cdf(-u)).log1p())


def _mass(low: arb, high: arb) -> arb:
    """Normal mass of a cell, from the tail in which it lies, so that nothing cancels."""
    if low > 0:
        return balls.normal_cdf(-low) - balls.normal_cdf(-high)
    return balls.normal_cdf(high) - balls.normal_cdf(low)


def _chord_without_shared_noise(case: Case) -> float:
    """The worse direction, in closed form and exact."""
    log_g = _log_none_passes(case, arb(0))
    mu, epsilon = case.mu, arb(case.epsilon)
    if case.changed == 0:
        return balls.upper(1 - log_g.exp())
    add = 1 - log_g.exp() + log_g.exp() * balls.hockey_stick_normal(mu, epsilon - log_g)
    return max(balls.upper(add), balls.upper(balls.hockey_stick_normal(mu, epsilon + log_g)))


def _nodes(case: Case, count: int) -> list[float]:
    """Cell ends, dense where the integrands are large. Any choice gives a valid bound; this one is tight."""
    noise, far = case.noise, reach(case.scale)
    alpha = case.offset / noise.sigma_shared
    x = np.linspace(-far - alpha, far, 4001)
    mu = float(case.mu.mid())
    log_g = log_probability_none_passes(case.new, (noise.tau - noise.sigma_shared * x) / noise.sigma)
    shift = alpha * (x + alpha / 2.0)
    p, q = np.exp(-0.5 * x * x), np.exp(-0.5 * (x + alpha) ** 2)
    mass = -p * np.expm1(log_g)
    mass += p * np.exp(log_g) * hockey_stick_normal(mu, case.epsilon - log_g - shift)
    mass += q * hockey_stick_normal(mu, case.epsilon + log_g + shift)
    # If every mass underflows, any cells will do.
    density: FloatArray = np.cbrt(mass / max(float(mass.max()), 1e-300)) + 2e-3
    cumulative = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    inner = np.interp(np.linspace(0.0, cumulative[-1], count + 1), cumulative, x)
    return [float(end) for end in np.unique(inner)]


def _convex(log_ratio: arb, mu: arb) -> arb:
    """h(X) = X Phi(mu/2 + ln X/mu) - Phi(-mu/2 + ln X/mu): the divergence per unit of B, convex in X."""
    if mu == 0:
        return (log_ratio.exp() - 1).max(arb(0))
    turn = log_ratio / mu
    return log_ratio.exp() * balls.normal_cdf(mu / 2 + turn) - balls.normal_cdf(turn - mu / 2)


def _cell(mass_a: arb, mass_b: arb, ratios: tuple[arb, arb], values: tuple[arb, arb]) -> arb:
    """Chord bound of the integral of B h(A/B) over a cell, from its masses and its ends."""
    step = ratios[1] - ratios[0]
    if step.contains(0):
        return values[0].max(values[1]) * mass_b
    return values[0] * mass_b + (values[1] - values[0]) * (mass_a - ratios[0] * mass_b) / step


def offset_bound_upper(case: Case, cells: int) -> float:
    """Rigorous upper bound of delta for one case, in both directions, from `cells` chords.

    Guarantee: at least the offset bound, hence at least delta; the excess shrinks as 1/cells^2.
    Valid for: epsilon >= 0, sigma_shared >= 0 (0 is closed form and needs offset 0).
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    if case.noise.sigma_shared == 0.0:
        return _chord_without_shared_noise(case)
    alpha, epsilon, mu = arb(case.offset) / arb(case.noise.sigma_shared), arb(case.epsilon), case.mu
    ends = _nodes(case, cells)
    growth = epsilon.exp()
    # Outside the cells the integrands are at most p (adding) or q (removing).
    first, last = arb(ends[0]), arb(ends[-1])
    add = balls.normal_cdf(first) + balls.normal_cdf(-last)
    remove = balls.normal_cdf(first + alpha) + balls.normal_cdf(-last - alpha)
    previous: tuple[arb, ...] | None = None
    for end in ends:
        x = arb(end)
        log_g = _log_none_passes(case, x)
        shift = alpha * (x + alpha / 2)
        log_add, log_remove = log_g + shift - epsilon, -log_g - shift - epsilon
        point = (
            x, log_g, log_add.exp(), _convex(log_add, mu), log_remove.exp(), _convex(log_remove, mu),
        )  # fmt: skip
        if previous is not None:
            p_mass, q_mass = _mass(previous[0], x), _mass(previous[0] + alpha, x + alpha)
            slope = (log_g - previous[1]) / (x - previous[0])
            tilt = (previous[1] - slope * previous[0] + slope * slope / 2).exp()
            pg_mass = tilt * _mass(previous[0] - slope, x - slope)
            add += p_mass - pg_mass
            add += _cell(pg_mass, growth * q_mass, (previous[2], point[2]), (previous[3], point[3]))
            remove += _cell(q_mass, growth * pg_mass, (previous[4], point[4]), (previous[5], point[5]))
        previous = point
    return max(balls.upper(add), balls.upper(remove))


# The squared sensitivity when no count is new, and the number of changed counts that maximises it.


def squared_sensitivity(*, shared: ArrayLike, changed: ArrayLike, gamma: float, extra: float = 0.0) -> FloatArray:
    """Squared sensitivity, in units of sigma^2, when `changed` of `shared` noisy counts move by one.

        (1 + extra) s - s^2/(gamma + j)     (j = shared, s = changed; infinite j or gamma give (1 + extra) s)

    `extra` is the contribution of the sums of a changed count, in the same units.

    Guarantee: exact: v^T Sigma^-1 v sigma^2 for Sigma = sigma^2 I + sigma_shared^2 11^T.
    Source: beyond the paper, whose min(sqrt j, sqrt(j + sqrt k)/2) in `lem:difference-for-j-sparse` bounds it.
    """
    s = np.asarray(changed, dtype=np.float64)
    alone = s if extra == 0.0 else (1.0 + extra) * s
    return np.asarray(alone - s * s / (gamma + np.asarray(shared, dtype=np.float64)), dtype=np.float64)


def worst_changed(
    *, shared: ArrayLike, most: ArrayLike, gamma: float, extra: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """The two integers s next to (1 + extra)(gamma + j)/2, below and above, but at most `most`.

    `squared_sensitivity` increases up to the first and decreases from the second, so no other s is worse. With the
    offset a = s/(gamma + j) of one of them, the offset bound covers all s on that side.
    """
    half = (1.0 + extra) * (gamma + np.asarray(shared, dtype=np.float64)) / 2.0
    limit = np.asarray(most, dtype=np.float64)
    return np.minimum(np.floor(half), limit), np.minimum(np.floor(half) + 1.0, limit)


def largest_squared_sensitivity(
    *, shared: ArrayLike, most: ArrayLike, gamma: float, extra: float = 0.0
) -> FloatArray:
    """The maximum of `squared_sensitivity` over integers s <= most.

    Guarantee: exact maximum over the integers.
    Source: beyond the paper.
    """
    below, above = worst_changed(shared=shared, most=most, gamma=gamma, extra=extra)
    return np.maximum(
        squared_sensitivity(shared=shared, changed=below, gamma=gamma, extra=extra),
        squared_sensitivity(shared=shared, changed=above, gamma=gamma, extra=extra),
    )


# The worst case over all neighbours: s <= j, j + r <= k, r + s <= m. More shared or new counts never decrease
# delta, so only j = k - r matters. Derivation: docs/theory/exact-analysis.md.


@dataclass(frozen=True)
class CaseDelta:
    delta: float
    case: NeighbourCase


def gaussian_case(noise: Noise, contract: Contract, *, epsilon: float) -> CaseDelta:
    """Exact delta when no count is new (r = 0): the Gaussian mechanism at the largest sensitivity.

    Guarantee: exact: the supremum over neighbours, approached as their shared counts grow.
    Source: beyond the paper; `lem:standard-gaussian-mechanism` with the exact sensitivity.
    """
    numbers = {"shared": contract.nonzero, "gamma": noise.gamma, "extra": noise.extra}
    below, above = worst_changed(most=float(contract.items), **numbers)
    candidates = [(float(squared_sensitivity(changed=s, **numbers)), int(s)) for s in (above, below)]
    squared, changed = max(candidates, key=lambda candidate: candidate[0])
    delta = float(hockey_stick_normal(math.sqrt(squared) / noise.sigma, epsilon))
    return CaseDelta(delta, NeighbourCase(contract.nonzero, 0, changed, "either"))


def infinite_case(noise: Noise, contract: Contract) -> CaseDelta:
    """Exact delta when a user has only new counts (r = m): the infinite event.

    Guarantee: exact for every epsilon >= 0, attained by a pair of neighbours.
    Source: beyond the paper; the exact value behind `claim:upperbounddeltainf`.
    """
    items = contract.items
    delta = float(infinite_event(noise, items)[0])
    return CaseDelta(delta, NeighbourCase(contract.nonzero - items, items, 0, "add"))


def block_offsets(
    noise: Noise, contract: Contract, first: IntArray, last: IntArray
) -> list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]:
    """(j, r, s, a) of two offset bounds that together cover all neighbours with first <= r <= last.

    More shared and more new counts dominate, hence j = k - first and r = last. Of the integers s next to
    (1 + extra)(j + gamma)/2, the offset a = s/(j + gamma) of the lower one covers all smaller s, that of the upper
    one all larger s.
    """
    j = contract.nonzero - first.astype(np.float64)
    most = np.minimum(j, contract.items - first.astype(np.float64))
    below, above = worst_changed(shared=j, most=most, gamma=noise.gamma, extra=noise.extra)
    r, span, half = last.astype(np.float64), j + noise.gamma, (1.0 + noise.extra) / 2.0
    # mu^2 is linear in s with slope 1 + extra - 2a: clamping a keeps the slope's sign despite rounding.
    a_below = np.minimum(below / span, half)
    a_above = np.where(above > below, np.maximum(above / span, half), a_below)
    return [(j, r, below, a_below), (j, r, above, a_above)]


def sum_bound(
    noise: Noise, contract: Contract, first: IntArray, last: IntArray, *, epsilon: float, smallest: float
) -> FloatArray:
    """The simplest upper bound for blocks of cases: the infinite event plus the Gaussian delta.

        Pr[some of r passes] + delta_gaussian(sqrt(max over s of D(j, s)), epsilon),  j = k - first, r = last

    Guarantee: an upper bound in both directions.
    Source: beyond the paper; the idea of `thm:privacy-tighter-analysis` with exact ingredients.
    """
    j = contract.nonzero - first.astype(np.float64)
    most = np.minimum(j, contract.items - first.astype(np.float64))
    squared = largest_squared_sensitivity(shared=j, most=most, gamma=noise.gamma, extra=noise.extra)
    some = infinite_event(noise, last, smallest=smallest)
    return np.asarray(some + hockey_stick_normal(np.sqrt(squared) / noise.sigma, epsilon))


def mixed_blocks_upper(
    noise: Noise, contract: Contract, first: IntArray, last: IntArray, *, epsilon: float, smallest: float
) -> FloatArray:
    """Upper bounds of delta for blocks of mixed cases, by the offset bound."""
    below, above = (
        offset_bound(noise, shared=j, new=r, changed=s, offset=a, epsilon=epsilon, smallest=smallest).worst
        for j, r, s, a in block_offsets(noise, contract, first, last)
    )
    return np.maximum(below, above)


def mixed_blocks(
    noise: Noise,
    contract: Contract,
    *,
    epsilon: float,
    enough: float,
    relative: float = 1e-7,
    growth: float = 1.5,
) -> Blocks:
    """Upper bounds for all mixed cases 0 < r < m, refined where they exceed `enough`."""
    smallest = max(enough, 1e-300)

    def upper(first: IntArray, last: IntArray) -> FloatArray:
        bounds = sum_bound(noise, contract, first, last, epsilon=epsilon, smallest=smallest)
        # The offset bound is never larger, but it is an integral: compute it only where the sum is too large.
        unclear = bounds > enough
        if unclear.any():
            bounds[unclear] = mixed_blocks_upper(
                noise, contract, first[unclear], last[unclear], epsilon=epsilon, smallest=smallest
            )
        return bounds

    return bound_over_blocks(upper, 1, contract.items - 1, enough=enough, relative=relative, growth=growth)


def delta_family(noise: Noise, contract: Contract, *, epsilon: float) -> CaseDelta:
    """Delta of the family at epsilon: the maximum over all neighbours and both directions.

    Guarantee: an upper bound (in doubles); exact when the worst case is not mixed. Where it is mixed, as for an
    epsilon small against delta or a small gamma, it was above the exact value by 0.7 % in the median and by 10 %
    at worst.
    Valid for: epsilon >= 0.
    Source: beyond the paper, which leaves it open (`sec:conclusion`); docs/theory/exact-analysis.md.
    """
    pure = gaussian_case(noise, contract, epsilon=epsilon), infinite_case(noise, contract)
    worst = max(pure, key=lambda case: case.delta)
    if contract.items < 2:
        return worst
    blocks = mixed_blocks(noise, contract, epsilon=epsilon, enough=worst.delta)
    if blocks.maximum <= worst.delta:
        return worst
    # The worst neighbours with this many new counts, by the offset bound.
    new = np.array([blocks.argument], dtype=np.int64)
    cases: list[tuple[float, NeighbourCase]] = []
    for j, r, s, a in block_offsets(noise, contract, new, new):
        both = offset_bound(noise, shared=j, new=r, changed=s, offset=a, epsilon=epsilon)
        case = NeighbourCase(float(j[0]), blocks.argument, int(s[0]), "add")
        cases += [(float(both.add[0]), case), (float(both.remove[0]), replace(case, direction="remove"))]
    return CaseDelta(blocks.maximum, max(cases, key=lambda case: case[0])[1])


_PEAK_OFFSETS = np.array([-4.0, -2.0, 0.0, 2.0, 4.0])
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def delta_of_case(case: NeighbourCase, noise: Noise, *, epsilon: float, smallest: float = 1e-60) -> float:
    """Exact delta of neighbours (j, r, s) in the case's direction ("either" is for r = 0).

    The shared counts determine Z_shared only through its posterior mean T, and the log likelihood ratio L is
    linear in them; given T, L is normal and the inner integral has a closed form:

        delta_add    = Pr[some new passes] + E over T of (g(T) - e^(epsilon - L))_+
        delta_remove = E over T of (e^-L - e^epsilon g(T))_+ ,
        g(T) = E over N(T, V) of Phi((tau - Z)/sigma)^r,  V = 1/(1/sigma_shared^2 + j/sigma^2)

    Guarantee: exact up to quadrature (relative error about 1e-9) for values above `smallest`. Neighbours approach
    it as their shared counts grow, hence a lower bound of delta.
    Valid for: epsilon >= 0.
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    adding = case.direction == "add"
    j, r, s = case.shared, case.new, case.changed
    if r == 0:
        squared = s - s * s / (noise.gamma + j)
        return float(hockey_stick_normal(math.sqrt(squared) / noise.sigma, epsilon))
    some = float(infinite_event(noise, r)[0])
    if s == 0 and adding:
        return some
    if j == 0:
        return some if adding else max(0.0, 1.0 - math.exp(epsilon) * (1.0 - some))
    if noise.sigma_shared == 0.0 or math.isinf(j):
        # The shared noise is absent or known exactly: the offset bound with a = 0 is exact.
        both = offset_bound(noise, shared=j, new=r, changed=s, offset=0.0, epsilon=epsilon)
        return float(both.add[0] if adding else both.remove[0])
    return (some if adding else 0.0) + _finite_part(case, noise, epsilon=epsilon, smallest=smallest)


# Pairs (r, s) that are bounded, and cases whose exact delta is computed, before `delta_of_all_cases` gives up.
_MOST_PAIRS: Final = 40_000
_MOST_CASES: Final = 500
# Relative error of `delta_of_case`.
_QUADRATURE: Final = 1e-9


def delta_of_all_cases(noise: Noise, contract: Contract, *, epsilon: float) -> tuple[float, bool]:
    """The largest delta of all neighbours at epsilon, and whether it is that: otherwise it is a lower bound.

    Branch and bound: of all mixed cases (r, s), only those whose offset bound exceeds the largest delta found so
    far are integrated, the worst first. More shared counts dominate, hence j = k - r.

    Guarantee: exact up to quadrature (relative error about 1e-9) or, if that would take too long, a lower bound.
    Valid for: epsilon >= 0; no sums.
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    best = max(gaussian_case(noise, contract, epsilon=epsilon).delta, infinite_case(noise, contract).delta)
    worst = delta_family(noise, contract, epsilon=epsilon)
    if worst.delta <= best:
        return best, True  # the worst neighbours are not mixed
    best = max(best, delta_of_case(worst.case, noise, epsilon=epsilon))
    if contract.items**2 > _MOST_PAIRS:
        return best, False
    cases: list[tuple[float, NeighbourCase]] = []
    for new in range(1, contract.items):
        shared = contract.nonzero - new
        changed = np.arange(1, int(min(shared, contract.items - new)) + 1)
        # The sum of both parts first: it is a bound, too, and no integral.
        squared = squared_sensitivity(shared=shared, changed=changed, gamma=noise.gamma)
        gaussian = hockey_stick_normal(np.sqrt(squared) / noise.sigma, epsilon)
        changed = changed[infinite_event(noise, new) + gaussian > best]
        if not changed.size:
            continue
        offset = changed / (shared + noise.gamma)
        both = offset_bound(noise, shared=shared, new=new, changed=changed, offset=offset, epsilon=epsilon)
        for s, add, remove in zip(changed.tolist(), both.add.tolist(), both.remove.tolist(), strict=True):
            case = NeighbourCase(shared, new, s, "add")
            cases += [(add, case), (remove, replace(case, direction="remove"))]
    cases.sort(key=lambda case: -case[0])
    for number, (bound, case) in enumerate(cases):
        if bound <= best * (1.0 + _QUADRATURE):
            break
        if number == _MOST_CASES:
            return best, False
        best = max(best, delta_of_case(case, noise, epsilon=epsilon))
    return best, True


def _finite_part(case: NeighbourCase, noise: Noise, *, epsilon: float, smallest: float) -> float:
    """The integral over T of the finite privacy loss, in units of T's standard deviation."""
    j, r, s, adding = case.shared, case.new, case.changed, case.direction == "add"
    posterior = 1.0 / (1.0 / noise.sigma_shared**2 + j / noise.sigma**2)
    spread = math.sqrt(noise.sigma_shared**2 - posterior)
    covariance = s * posterior / noise.sigma**2
    squared = (s - s * s / (noise.gamma + j)) / noise.sigma**2
    slope = covariance / spread
    rest = math.sqrt(max(0.0, squared - slope**2))
    reach = normal_reach(smallest)
    low, high = -reach - slope, reach

    def log_none(t: FloatArray) -> FloatArray:
        return _log_posterior_none_passes(spread * t.ravel(), r, noise, posterior, reach).reshape(t.shape)

    def log_ratio(t: FloatArray) -> FloatArray:
        """The mean of L given T = spread t, plus log g: concave in t."""
        return log_none(t) + slope * (t + slope / 2.0)

    common = shared_noise_breaks(
        np.array([float(r)]), sigma=math.hypot(noise.sigma, math.sqrt(posterior)), sigma_shared=spread,
        tau=noise.tau, low=low, high=high,
    )  # fmt: skip
    level = epsilon if adding else -epsilon
    turns = crossing_breaks(log_ratio, level, np.array([rest]), low, high)
    nodes, weights = panel_nodes(np.concatenate([common, turns], axis=1))
    t = nodes[0]
    log_g = log_none(t)
    shift = slope * (t + slope / 2.0)
    if adding:
        density = np.exp(-0.5 * t**2 - _LOG_ROOT_TWO_PI + log_g)
        return float((weights[0] * density * hockey_stick_normal(rest, epsilon - log_g - shift)).sum())
    density = np.exp(-0.5 * (t + slope) ** 2 - _LOG_ROOT_TWO_PI)
    return float((weights[0] * density * hockey_stick_normal(rest, epsilon + log_g + shift)).sum())


def _log_posterior_none_passes(
    means: FloatArray, r: int, noise: Noise, posterior: float, reach: float
) -> FloatArray:
    """Log g(T) for each T: the average of Phi((tau - Z)/sigma)^r over Z ~ N(T, posterior)."""
    root = math.sqrt(posterior)
    uniform = np.linspace(-reach, reach, int(reach) * 2 + 1)
    u_turn = float(special.ndtri(np.exp2(-1.0 / r))) + np.array([-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0])
    turning = (noise.tau - noise.sigma * u_turn - means[:, None]) / root
    # For a high threshold the mass of "some passes" peaks where both normals meet, not at the mean.
    variance = noise.sigma**2 + posterior
    peak = (noise.tau - means[:, None]) * root / variance + noise.sigma / math.sqrt(variance) * _PEAK_OFFSETS
    rows = np.concatenate([np.broadcast_to(uniform, (means.size, uniform.size)), turning, peak], axis=1)
    x, weights = panel_nodes(np.clip(rows, -reach, reach))
    log_power = log_probability_none_passes(r, (noise.tau - means[:, None] - root * x) / noise.sigma)
    # 1 - E(1 - Phi^r) keeps the digits of a g close to 1; E(Phi^r) those of a small g.
    density = weights * np.exp(-0.5 * x * x - _LOG_ROOT_TWO_PI)
    some = (density * -np.expm1(log_power)).sum(axis=1)
    none = (density * np.exp(log_power)).sum(axis=1)
    return np.asarray(np.where(some < 0.5, np.log1p(-np.minimum(some, 0.5)), np.log(np.maximum(none, 1e-300))))
