"""The offset bound as a ball, from chords alone: no quadrature error, only inequalities.

Three facts make every cell of a partition an upper bound. delta falls when g = Pr[no new count passes | w]
grows, so a lower bound of g is safe. log g is concave, so its chord over a cell is such a lower bound, and
the normal integral of an exponential is closed. H(A, B) = B h(A/B) with h convex, so the average of h over a
cell, A/B being exponential in w, is at most that of the chord of h (Edmundson and Madansky). The error
shrinks as the square of the cell. Proof: docs/theory/exact-analysis.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb
from numpy.typing import NDArray
from scipy import special

from dphist.numerics import balls
from dphist.numerics.normal import hockey_stick_normal, log_probability_none_passes

FloatArray = NDArray[np.float64]


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


def _without_shared_noise(case: Case) -> float:
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
        return _without_shared_noise(case)
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
