"""The exact privacy of the whole family (sigma, sigma_shared, tau) under a contract (k, m).

Neighbours differ by (j, r, s): j counts are non-zero in both, s of them changed by one, r counts are 1 in one and
0 in the other. Beside every upper bound there is the exact delta of one kind of neighbours, a lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dphist.privacy.noise import Noise
from dphist.privacy.normal import hockey_stick_normal, log_probability_none_passes
from dphist.privacy.offset import OffsetDeltas, infinite_event, offset_bound, shared_noise_breaks
from dphist.privacy.quadrature import crossing_breaks, normal_reach, panel_nodes
from dphist.privacy.search import Blocks, IntArray, bound_over_blocks
from dphist.privacy.types import Contract, NeighbourCase

# The squared sensitivity of the family when no count is new, and the number of changed counts behind it.

FloatArray = NDArray[np.float64]


def squared_sensitivity(*, shared: ArrayLike, changed: ArrayLike, gamma: float, extra: float = 0.0) -> FloatArray:
    """Squared sensitivity, in units of sigma^2, when `changed` of `shared` noisy counts move by one.

        (1 + extra) s - s^2/(gamma + j)     (j = shared, s = changed; infinite j or gamma give (1 + extra) s)

    `extra` is what the sums beside a changed count add, in the same units.

    Guarantee: exact: v^T Sigma^-1 v sigma^2 for Sigma = sigma^2 I + sigma_shared^2 11^T.
    Source: beyond the paper, whose min(sqrt j, sqrt(j + sqrt k)/2) in `lem:difference-for-j-sparse` bounds it.
    """
    s = np.asarray(changed, dtype=np.float64)
    alone = s if extra == 0.0 else (1.0 + extra) * s
    return np.asarray(alone - s * s / (gamma + np.asarray(shared, dtype=np.float64)), dtype=np.float64)


def worst_changed(
    *, shared: ArrayLike, most: ArrayLike, gamma: float, extra: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """The two integers s next to (1 + extra)(gamma + j)/2, from below and above, as far as `most` allows.

    `squared_sensitivity` rises up to the first and falls from the second on, so that no other s is worse.
    With the offset a = s/(gamma + j) of either of them, the offset bound covers all s on its own side.
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


# The exact privacy of the whole family (sigma, sigma_shared, tau) under a contract (k, m).
#
# Neighbours differ by (j, r, s): j counts are non-zero in both, s of them changed by one, r counts are 1 in one
# and 0 in the other; s <= j, j + r <= k, r + s <= m. More shared or more new counts never lower delta, so only
# j = k - r matters. Derivation: docs/theory/exact-analysis.md.


@dataclass(frozen=True)
class CaseDelta:
    """A value of delta and the neighbours that give it."""

    delta: float
    case: NeighbourCase


def gaussian_case(noise: Noise, contract: Contract, *, epsilon: float) -> CaseDelta:
    """Exact delta when no count is new (r = 0): the Gaussian mechanism at the largest sensitivity.

    Guarantee: exact: neighbours come as near to it as one likes, as their shared counts grow.
    Source: beyond the paper; `lem:standard-gaussian-mechanism` with the exact sensitivity.
    """
    most = float(contract.items)
    there = {"shared": contract.nonzero, "gamma": noise.gamma, "extra": noise.extra}
    squared = float(largest_squared_sensitivity(most=most, **there))
    below, above = worst_changed(most=most, **there)
    candidates = (float(above), float(below))
    changed = max(candidates, key=lambda s: float(squared_sensitivity(changed=s, **there)))
    delta = float(hockey_stick_normal(math.sqrt(squared) / noise.sigma, epsilon))
    return CaseDelta(delta, NeighbourCase(contract.nonzero, 0, int(changed), "either"))


def infinite_case(noise: Noise, contract: Contract, *, smallest: float = 1e-300) -> CaseDelta:
    """Exact delta when a user brings only new counts (r = m): the infinite event.

    Guarantee: exact for every epsilon >= 0, attained by a pair of neighbours.
    Source: beyond the paper; the exact value behind `claim:upperbounddeltainf`.
    """
    items = contract.items
    delta = infinite_event(
        count=items, sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=noise.tau, smallest=smallest
    )
    return CaseDelta(float(delta[0]), NeighbourCase(contract.nonzero - items, items, 0, "add"))


def block_offsets(
    noise: Noise, contract: Contract, first: IntArray, last: IntArray
) -> list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]:
    """(j, r, s, a) of the offset bounds that together cover all neighbours with first <= r <= last.

    More shared counts and more new counts dominate, hence j = k - first and r = last. The offset
    a = s/(j + gamma) of the integer s below (1 + extra)(j + gamma)/2 covers all smaller s, that of the next one
    all larger.
    """
    j = contract.nonzero - first.astype(np.float64)
    most = np.minimum(j, contract.items - first.astype(np.float64))
    below, above = worst_changed(shared=j, most=most, gamma=noise.gamma, extra=noise.extra)
    r, span, half = last.astype(np.float64), j + noise.gamma, (1.0 + noise.extra) / 2.0
    # mu^2 is linear in s with slope 1 + extra - 2a: the clamps keep its sign right whatever the division rounded.
    a_below = np.minimum(below / span, half)
    a_above = np.where(above > below, np.maximum(above / span, half), a_below)
    return [(j, r, below, a_below), (j, r, above, a_above)]


def sum_bound(
    noise: Noise, contract: Contract, first: IntArray, last: IntArray, *, epsilon: float, smallest: float
) -> FloatArray:
    """The simplest upper bound for blocks of cases: infinite event plus Gaussian delta.

        Pr[some of r passes] + delta_gaussian(sqrt(max over s of D(j, s)), epsilon),  j = k - first, r = last

    Guarantee: an upper bound in both directions.
    Source: beyond the paper; the idea of `thm:privacy-tighter-analysis` with exact ingredients.
    """
    j = contract.nonzero - first.astype(np.float64)
    most = np.minimum(j, contract.items - first.astype(np.float64))
    squared = largest_squared_sensitivity(shared=j, most=most, gamma=noise.gamma, extra=noise.extra)
    some = infinite_event(
        count=last, sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=noise.tau, smallest=smallest
    )
    return np.asarray(some + hockey_stick_normal(np.sqrt(squared) / noise.sigma, epsilon))


def mixed_blocks_upper(
    noise: Noise, contract: Contract, first: IntArray, last: IntArray, *, epsilon: float, smallest: float
) -> OffsetDeltas:
    """Upper bounds of delta for blocks of mixed cases, by the offset bound."""
    both = [
        offset_bound(
            shared=j, new=r, changed=s, offset=a, sigma=noise.sigma, sigma_shared=noise.sigma_shared,
            tau=noise.tau, epsilon=epsilon, smallest=smallest, extra=noise.extra,
        )
        for j, r, s, a in block_offsets(noise, contract, first, last)
    ]  # fmt: skip
    return OffsetDeltas(
        add=np.maximum(both[0].add, both[1].add), remove=np.maximum(both[0].remove, both[1].remove)
    )


def mixed_blocks(
    noise: Noise,
    contract: Contract,
    *,
    epsilon: float,
    enough: float,
    relative: float = 1e-7,
    growth: float = 1.5,
) -> Blocks:
    """Upper bounds for all mixed cases 0 < r < m, refined as far as they exceed `enough`."""
    smallest = max(enough, 1e-300)

    def upper(first: IntArray, last: IntArray) -> FloatArray:
        bounds = sum_bound(noise, contract, first, last, epsilon=epsilon, smallest=smallest)
        # The offset bound is never larger, but an integral: compute it only where the sum does not do.
        unclear = bounds > enough
        if unclear.any():
            bounds[unclear] = mixed_blocks_upper(
                noise, contract, first[unclear], last[unclear], epsilon=epsilon, smallest=smallest
            ).worst
        return bounds

    return bound_over_blocks(upper, 1, contract.items - 1, enough=enough, relative=relative, growth=growth)


def delta_family(noise: Noise, contract: Contract, *, epsilon: float, relative: float = 1e-7) -> CaseDelta:
    """Delta of the family at epsilon, the maximum over all neighbours and both directions.

    Guarantee: an upper bound (in doubles); exact when the worst case is not mixed. Where it is mixed, as for an
    epsilon small against delta or a small gamma, it was above the exact value by 0.7 % in the median and 10 % at
    worst.
    Valid for: epsilon >= 0.
    Source: beyond the paper, which leaves it open (`sec:conclusion`); docs/theory/exact-analysis.md.
    """
    ends = (
        gaussian_case(noise, contract, epsilon=epsilon),
        infinite_case(noise, contract),
    )
    worst = max(ends, key=lambda end: end.delta)
    if contract.items < 2:
        return worst
    blocks = mixed_blocks(noise, contract, epsilon=epsilon, enough=worst.delta, relative=relative)
    if blocks.maximum <= worst.delta:
        return worst
    return CaseDelta(blocks.maximum, mixed_case(noise, contract, blocks.argument, epsilon=epsilon))


def mixed_case(noise: Noise, contract: Contract, new: int, *, epsilon: float) -> NeighbourCase:
    """The worst neighbours among those with `new` new counts, as the offset bound sees them."""
    one = np.array([new], dtype=np.int64)
    worst: list[tuple[float, NeighbourCase]] = []
    for j, r, s, a in block_offsets(noise, contract, one, one):
        both = offset_bound(
            shared=j, new=r, changed=s, offset=a, sigma=noise.sigma, sigma_shared=noise.sigma_shared,
            tau=noise.tau, epsilon=epsilon, extra=noise.extra,
        )  # fmt: skip
        worst.append((float(both.add[0]), NeighbourCase(float(j[0]), new, int(s[0]), "add")))
        worst.append((float(both.remove[0]), NeighbourCase(float(j[0]), new, int(s[0]), "remove")))
    return max(worst, key=lambda pair: pair[0])[1]


_PEAK_OFFSETS = np.array([-4.0, -2.0, 0.0, 2.0, 4.0])
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def delta_of_case(case: NeighbourCase, noise: Noise, *, epsilon: float, smallest: float = 1e-60) -> float:
    """Exact delta of neighbours (j, r, s) in the case's direction.

    The shared counts tell of Z_shared only through its posterior mean T, and the log likelihood ratio L is
    linear in them; given T, L is normal and the inner integral is closed:

        delta_add    = Pr[some new passes] + E over T of (g(T) - e^(epsilon - L))_+
        delta_remove = E over T of (e^-L - e^epsilon g(T))_+ ,
        g(T) = E over N(T, V) of Phi((tau - Z)/sigma)^r,  V = 1/(1/sigma_shared^2 + j/sigma^2)

    Guarantee: exact up to quadrature (relative error about 1e-9) for values above `smallest`. Neighbours come as
    near to it as one likes, as their shared counts grow; hence a lower bound of delta.
    Valid for: epsilon >= 0.
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    values = {
        direction: _one_direction(case, noise, epsilon=epsilon, adding=direction == "add", smallest=smallest)
        for direction in (("add", "remove") if case.direction == "either" else (case.direction,))
    }
    return max(values.values())


def _one_direction(case: NeighbourCase, noise: Noise, *, epsilon: float, adding: bool, smallest: float) -> float:
    j, r, s = case.shared, case.new, case.changed
    some = float(infinite_event(count=r, sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=noise.tau)[0])
    if r == 0:
        squared = s - s * s / (noise.gamma + j)
        return float(hockey_stick_normal(math.sqrt(squared) / noise.sigma, epsilon))
    if s == 0 and adding:
        return some
    if noise.sigma_shared == 0.0 or math.isinf(j) or j == 0:
        # The shared noise is absent, known exactly or seen by nobody: the offset bound with a = 0 is exact,
        # except that nobody can tell anything from no shared count.
        if j == 0:
            return some if adding else max(0.0, 1.0 - math.exp(epsilon) * (1.0 - some))
        both = offset_bound(
            shared=j, new=r, changed=s, offset=0.0, sigma=noise.sigma, sigma_shared=noise.sigma_shared,
            tau=noise.tau, epsilon=epsilon,
        )  # fmt: skip
        return float(both.add[0] if adding else both.remove[0])
    return (some if adding else 0.0) + _finite_part(case, noise, epsilon=epsilon, adding=adding, smallest=smallest)


def _finite_part(case: NeighbourCase, noise: Noise, *, epsilon: float, adding: bool, smallest: float) -> float:
    """The integral over T of the finite privacy loss, in units of T's standard deviation."""
    j, r, s = case.shared, case.new, case.changed
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
    # For a far threshold the mass of "some passes" peaks where both normals meet, not at the mean.
    variance = noise.sigma**2 + posterior
    peak = (noise.tau - means[:, None]) * root / variance + noise.sigma / math.sqrt(variance) * _PEAK_OFFSETS
    rows = np.concatenate([np.broadcast_to(uniform, (means.size, uniform.size)), turning, peak], axis=1)
    x, weights = panel_nodes(np.clip(rows, -reach, reach))
    log_power = log_probability_none_passes(r, (noise.tau - means[:, None] - root * x) / noise.sigma)
    # 1 - E(1 - Phi^r) keeps the digits of a g close to 1; the sum itself those of a small g.
    density = weights * np.exp(-0.5 * x * x - _LOG_ROOT_TWO_PI)
    some = (density * -np.expm1(log_power)).sum(axis=1)
    none = (density * np.exp(log_power)).sum(axis=1)
    return np.asarray(np.where(some < 0.5, np.log1p(-np.minimum(some, 0.5)), np.log(np.maximum(none, 1e-300))))
