"""The infinite event and the offset bound, in doubles and as a ball.

The infinite event: a count that only one of two neighbours has passes the threshold. The offset bound: reveal the
shared noise, shifted for one neighbour, and the rest is independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dphist.privacy import balls
from dphist.privacy.normal import hockey_stick_normal, log_probability_none_passes, probability_some_passes
from dphist.privacy.quadrature import crossing_breaks, normal_reach, panel_nodes

# The infinite event: a count that only one of two neighbours has passes the threshold.

FloatArray = NDArray[np.float64]

_TURNING_OFFSETS = np.array([-8.0, -6.0, -4.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0])
_PEAK_OFFSETS = np.array([-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0])


def shared_noise_breaks(
    counts: FloatArray, *, sigma: float, sigma_shared: float, tau: float, low: float, high: float
) -> FloatArray:
    """Breakpoints, in units of sigma_shared, for integrals of Phi((tau - w)/sigma)^count against normals."""
    uniform = np.linspace(low, high, int(np.ceil(high - low)) + 1)
    # Phi^count turns from 1 to 0 around u_turn, within a few units of u.
    u_turn = special.ndtri(np.exp2(-1.0 / counts))[:, None] - _TURNING_OFFSETS
    turning = (tau - sigma * u_turn) / sigma_shared
    # For a high threshold the mass sits where -x^2/2 - u(x)^2/2 peaks, not at the origin.
    variance = sigma**2 + sigma_shared**2
    peak = tau * sigma_shared / variance + (sigma / np.sqrt(variance)) * _PEAK_OFFSETS
    rows = [np.broadcast_to(part, (counts.size, part.shape[-1])) for part in (uniform, turning, peak)]
    return np.asarray(np.clip(np.concatenate(rows, axis=1), low, high), dtype=np.float64)


def infinite_event(
    *, count: ArrayLike, sigma: float, sigma_shared: float, tau: float, smallest: float = 1e-300
) -> FloatArray:
    """Probability that at least one of `count` new counts passes, exactly.

        1 - E over Z_shared of Phi((tau - Z_shared)/sigma)^count

    Guarantee: relative error about 1e-13 for values above `smallest`.
    Valid for: count >= 0 (an array is allowed), sigma > 0, sigma_shared >= 0.
    Source: the exact value that `claim:upperbounddeltainf` bounds.
    """
    counts = np.atleast_1d(np.asarray(count, dtype=np.float64))
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
    """The paper's upper bound of the infinite event, which splits tau between the two noises.

        1 - Phi(tau/(sigma + sigma_shared))^(count + 1)

    Guarantee: an upper bound of `infinite_event`. The paper's sigma_shared is sigma k^(-1/4).
    Valid for: count >= 0, sigma > 0, sigma_shared > 0, tau > 0.
    Source: `claim:upperbounddeltainf`.
    """
    exponent = np.asarray(count, dtype=np.float64) + 1.0
    return probability_some_passes(exponent, tau / (sigma + sigma_shared))


# The offset bound: reveal the shared noise, shifted for one neighbour, and the rest is independent.
#
# For H write (H_i + Z_i, Z_shared); for its neighbour H' write (H'_i + a + Z_i, Z_shared - a). The sums have the
# mechanism's distribution under both, so what bounds these vectors bounds the mechanism. Derivation:
# docs/theory/exact-analysis.md.

_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class OffsetDeltas:
    """The bound in both directions: a user is added (only H has the new counts) or removed."""

    add: FloatArray
    remove: FloatArray

    @property
    def worst(self) -> FloatArray:
        """The larger direction, elementwise."""
        return np.maximum(self.add, self.remove)


def offset_bound(
    *,
    shared: ArrayLike,
    new: ArrayLike,
    changed: ArrayLike,
    offset: ArrayLike,
    sigma: float,
    sigma_shared: float,
    tau: float,
    epsilon: float,
    smallest: float = 1e-300,
    extra: float = 0.0,
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
    j, r, s, a = (
        np.atleast_1d(x)
        for x in np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (shared, new, changed, offset)))
    )
    quiet = np.where(a == 0.0, 0.0, (np.where(np.isinf(j), s, j) - s) * a**2)
    mu = np.sqrt(s * ((1.0 - a) ** 2 + extra) + quiet) / sigma
    if sigma_shared == 0.0:
        return _without_shared_noise(r, mu, u=tau / sigma, epsilon=epsilon)
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

    # H(A, B) = A times the hockey-stick divergence at -ln(A/B): nothing cancels, and it turns where A = B.
    breaks = np.concatenate([common, crossing_breaks(log_ratio, epsilon, mu, low, high)], axis=1)
    x, weights = panel_nodes(breaks)
    p_none = np.exp(log_none(x) - 0.5 * x * x) / _ROOT_TWO_PI
    add = (weights * p_none * hockey_stick_normal(mu[:, None], epsilon - log_ratio(x))).sum(axis=1)
    breaks = np.concatenate([common, crossing_breaks(log_ratio, -epsilon, mu, low, high)], axis=1)
    x, weights = panel_nodes(breaks)
    q = np.exp(-0.5 * (x + alpha[:, None]) ** 2) / _ROOT_TWO_PI
    remove = (weights * q * hockey_stick_normal(mu[:, None], epsilon + log_ratio(x))).sum(axis=1)
    some = infinite_event(count=r, sigma=sigma, sigma_shared=sigma_shared, tau=tau, smallest=smallest)
    return OffsetDeltas(add=some + add, remove=remove)


def _without_shared_noise(r: FloatArray, mu: FloatArray, *, u: float, epsilon: float) -> OffsetDeltas:
    """The same without shared noise: exact, and the terms of the GSHM's exact analysis."""
    log_g = log_probability_none_passes(r, u)
    add = probability_some_passes(r, u) + np.exp(log_g) * hockey_stick_normal(mu, epsilon - log_g)
    return OffsetDeltas(add=add, remove=hockey_stick_normal(mu, epsilon + log_g))


# The offset bound as a ball, from chords alone: no quadrature error, only inequalities.
#
# Three facts make every cell of a partition an upper bound. delta falls when g = Pr[no new count passes | w]
# grows, so a lower bound of g is safe. log g is concave, so its chord over a cell is such a lower bound, and the
# normal integral of an exponential is closed. H(A, B) = B h(A/B) with h convex, so the average of h over a cell,
# A/B being exponential in w, is at most that of the chord of h (Edmundson and Madansky). The error shrinks as the
# square of the cell. Proof: docs/theory/exact-analysis.md.


def reach(scale: float) -> float:
    """Standard deviations beyond which a normal holds far less than `scale`."""
    return math.ceil(-float(special.ndtri_exp(math.log(scale) - 50.0)))


@dataclass(frozen=True)
class Case:
    """One offset bound: neighbours (j, r, s), the offset a, the plan, and the size of delta to expect."""

    shared: float
    new: int
    changed: int
    offset: float
    sigma: float
    sigma_shared: float
    tau: float
    epsilon: float
    scale: float

    @property
    def mu(self) -> arb:
        """Distance of the independent coordinates, in standard deviations."""
        a, s = arb(self.offset), arb(self.changed)
        quiet = arb(0) if self.offset == 0.0 else (arb(int(self.shared)) - s) * a * a
        return (s * (1 - a) ** 2 + quiet).sqrt() / arb(self.sigma)


def _log_none_passes(case: Case, x: arb) -> arb:
    u = (arb(case.tau) - arb(case.sigma_shared) * x) / arb(case.sigma)
    # Far below, 1 - Phi(-u) would cancel to nothing; far above, Phi(u) would round to one.
    return case.new * (balls.normal_cdf(u).log() if u < 0 else (-balls.normal_cdf(-u)).log1p())


def _mass(low: arb, high: arb) -> arb:
    """Normal mass of a cell, taken in the tail where it lies: nothing cancels."""
    if low > 0:
        return balls.normal_cdf(-low) - balls.normal_cdf(-high)
    return balls.normal_cdf(high) - balls.normal_cdf(low)


def _chord_without_shared_noise(case: Case) -> float:
    """Both directions in closed form; exact."""
    log_g = _log_none_passes(case, arb(0))
    mu, epsilon = case.mu, arb(case.epsilon)
    if case.changed == 0:
        return balls.upper(1 - log_g.exp())
    add = 1 - log_g.exp() + log_g.exp() * balls.hockey_stick_normal(mu, epsilon - log_g)
    return max(balls.upper(add), balls.upper(balls.hockey_stick_normal(mu, epsilon + log_g)))


def _nodes(case: Case, count: int) -> list[float]:
    """Cell ends, dense where the integrands are large. Any choice is valid; this one is sharp."""
    alpha, far = case.offset / case.sigma_shared, reach(case.scale)
    x = np.linspace(-far - alpha, far, 4001)
    mu = float(case.mu.mid())
    log_g = log_probability_none_passes(case.new, (case.tau - case.sigma_shared * x) / case.sigma)
    shift = alpha * (x + alpha / 2.0)
    p, q = np.exp(-0.5 * x * x), np.exp(-0.5 * (x + alpha) ** 2)
    mass = -p * np.expm1(log_g)
    mass += p * np.exp(log_g) * hockey_stick_normal(mu, case.epsilon - log_g - shift)
    mass += q * hockey_stick_normal(mu, case.epsilon + log_g + shift)
    # Where every mass underflows any cells will do.
    density: FloatArray = np.cbrt(mass / max(float(mass.max()), 1e-300)) + 2e-3
    cumulative = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    inner = np.interp(np.linspace(0.0, cumulative[-1], count + 1), cumulative, x)
    return [float(end) for end in np.unique(inner)]


def _convex(log_ratio: arb, mu: arb) -> arb:
    """h(X) = X Phi(mu/2 + ln X/mu) - Phi(-mu/2 + ln X/mu), the divergence per unit of B."""
    if mu == 0:
        return (log_ratio.exp() - 1).max(arb(0))
    turn = log_ratio / mu
    return log_ratio.exp() * balls.normal_cdf(mu / 2 + turn) - balls.normal_cdf(turn - mu / 2)


def _cell(mass_a: arb, mass_b: arb, ratios: tuple[arb, arb], values: tuple[arb, arb]) -> arb:
    """Chord bound of the integral of B h(A/B) over a cell, from the cell's masses and its two ends."""
    step = ratios[1] - ratios[0]
    if step.contains(0):
        return values[0].max(values[1]) * mass_b
    return values[0] * mass_b + (values[1] - values[0]) * (mass_a - ratios[0] * mass_b) / step


def offset_bound_upper(case: Case, cells: int) -> float:
    """Upper bound of delta for one case in both directions, by `cells` chords.

    Guarantee: not below the offset bound, hence not below delta; the excess shrinks as 1/cells^2.
    Valid for: epsilon >= 0, sigma_shared >= 0 (0 is closed form and needs offset 0).
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    if case.sigma_shared == 0.0:
        return _chord_without_shared_noise(case)
    alpha, epsilon, mu = arb(case.offset) / arb(case.sigma_shared), arb(case.epsilon), case.mu
    ends = _nodes(case, cells)
    growth = epsilon.exp()
    # Outside the cells both integrands are at most the mass of p (adding) or of q (removing).
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
