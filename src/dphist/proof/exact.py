"""The exact privacy of the whole family (sigma, sigma_shared, tau) under a contract (k, m).

Neighbours differ by (j, r, s): j counts are non-zero in both, s of them change by one, and r counts are 1 in one
dataset and 0 in the other. First the infinite event and the offset bound, in doubles and in balls; then the worst
case over all neighbours, and the exact delta of one class of neighbours, which is a lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dphist.model import Contract, NeighbourCase, Noise
from dphist.proof.numerics import (
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


def reach(scale: float) -> float:
    """Standard deviations beyond which a normal law holds far less than `scale`."""
    return math.ceil(-float(special.ndtri_exp(math.log(scale) - 50.0)))


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
