"""Continuous noise: certificates in ball arithmetic, and the exact delta of single cases.

Releases have discrete noise; plans with continuous noise are for comparison with the paper. Doubles only propose
how to partition the mixed cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from flint import acb, arb
from scipy import special

from dphist.errors import InvalidParameter
from dphist.model import AnyNoise, Contract, NeighbourCase, Noise, Proof
from dphist.proof import balls
from dphist.proof.certify import certify_drawn
from dphist.proof.exact import (
    block_offsets,
    delta_family,
    gaussian_case,
    infinite_case,
    infinite_event,
    mixed_blocks,
    offset_bound,
    reach,
    shared_noise_breaks,
    squared_sensitivity,
    sum_bound,
    worst_changed,
)
from dphist.proof.numerics import (
    FloatArray,
    crossing_breaks,
    hockey_stick_normal,
    log_probability_none_passes,
    normal_reach,
    panel_nodes,
)

# The offset bound in balls, from chords: it has no quadrature error.
#
# Each cell of a partition gives an upper bound, for three reasons. delta decreases in g = Pr[no new count passes |
# w], so a lower bound of g is safe. log g is concave, so its chord over a cell is such a lower bound, and the
# normal integral of an exponential has a closed form. H(A, B) = B h(A/B) with h convex, so the average of h over a
# cell, where A/B is exponential in w, is at most that of its chord (Edmundson and Madansky). The error shrinks
# with the square of the cell width. Proof: docs/theory/exact-analysis.md.


@dataclass(frozen=True)
class OffsetCase:
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


def _log_none_passes(case: OffsetCase, x: arb) -> arb:
    noise = case.noise
    u = (arb(noise.tau) - arb(noise.sigma_shared) * x) / arb(noise.sigma)
    # 1 - Phi(-u) would cancel for small u, and Phi(u) would round to one for large u.
    return case.new * (balls.normal_cdf(u).log() if u < 0 else (-balls.normal_cdf(-u)).log1p())


def _mass(low: arb, high: arb) -> arb:
    """Normal mass of a cell, from the tail in which it lies, so that nothing cancels."""
    if low > 0:
        return balls.normal_cdf(-low) - balls.normal_cdf(-high)
    return balls.normal_cdf(high) - balls.normal_cdf(low)


def _chord_without_shared_noise(case: OffsetCase) -> float:
    """The worse direction, in closed form and exact."""
    log_g = _log_none_passes(case, arb(0))
    mu, epsilon = case.mu, arb(case.epsilon)
    if case.changed == 0:
        return balls.upper(1 - log_g.exp())
    add = 1 - log_g.exp() + log_g.exp() * balls.hockey_stick_normal(mu, epsilon - log_g)
    return max(balls.upper(add), balls.upper(balls.hockey_stick_normal(mu, epsilon + log_g)))


def _nodes(case: OffsetCase, count: int) -> list[float]:
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


def offset_bound_upper(case: OffsetCase, cells: int) -> float:
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


# Largest relative excess of the certificate over the fast value where mixed neighbours are the worst.
CERTIFICATE_GAP: Final = 2e-6
# Assumed error of doubles when they propose a partition; a wrong proposal costs time, not privacy.
_DOUBLE_ERROR: Final = 1e-11
# Relative error of the lower bound, which is computed in doubles.
_LOWER_ERROR: Final = 1e-7
_CHORD_LADDER: Final = (150, 600, 2400, 9600)


class BallFamily:
    """Bounds of the parts of delta as balls, for one plan with continuous noise and one epsilon."""

    def __init__(self, noise: Noise, contract: Contract, *, epsilon: float, scale: float) -> None:
        if noise.extra > 0.0:
            raise InvalidParameter("sums can be certified for discrete noise only; use noise='discrete'")
        self.noise, self.contract, self.epsilon = noise, contract, epsilon
        self.scale = min(max(scale, 1e-300), 1.0)
        self.bits = 96 + int(-1.1 * math.log2(self.scale))
        self.sigma, self.shared, self.tau = arb(noise.sigma), arb(noise.sigma_shared), arb(noise.tau)

    def infinite_event(self, count: int) -> arb:
        """Upper enclosure of the probability that one of `count` new counts passes."""
        if self.noise.sigma_shared == 0.0:
            return 1 - balls.normal_cdf(self.tau / self.sigma) ** count
        sqrt2, root = arb(2).sqrt(), (2 * arb.pi()).sqrt()

        def integrand(x: acb, _analytic: bool) -> acb:
            u = (self.tau - self.shared * x) / (self.sigma * sqrt2)
            return (1 - (1 - u.erfc() / 2) ** count) * (-x * x / 2).exp() / root

        far = arb(reach(self.scale))
        inside = balls.integral(integrand, -far, far, absolute=self.scale * 2.0**-70)
        # Outside, the integrand is at most the normal density.
        return inside + 2 * balls.normal_cdf(-far)

    def gaussian(self, shared: float, changed: int) -> arb:
        """Gaussian delta at the sensitivity of `changed` among `shared` counts."""
        s = arb(changed)
        squared = s / self.sigma**2
        if self.noise.sigma_shared > 0.0 and not math.isinf(shared):
            # s - s^2/(gamma + j) with gamma = sigma^2/sigma_shared^2, all in balls.
            squared -= s * s / (self.sigma**2 * ((self.sigma / self.shared) ** 2 + arb(int(shared))))
        return balls.hockey_stick_normal(squared.sqrt(), arb(self.epsilon))

    def gaussian_worst(self, new: int) -> arb:
        """The largest Gaussian delta if at least `new` of the user's counts are new.

        Tries the integers next to the real maximum and one more on each side, so that rounding of gamma does not
        matter.
        """
        shared = self.contract.nonzero - new
        most = int(min(shared, self.contract.items - new))
        if most < 1:
            return arb(0)
        below, above = worst_changed(shared=shared, most=float(most), gamma=self.noise.gamma)
        candidates = {min(most, max(1, int(below) + d)) for d in (-1, 0)} | {
            min(most, int(above) + d) for d in (0, 1)
        }
        worst = arb(0)
        for changed in candidates:
            worst = worst.max(self.gaussian(shared, changed))
        return worst

    def sum_block(self, first: int, last: int) -> float:
        """`exact.sum_bound` for a block of mixed cases."""
        return balls.upper(self.infinite_event(last) + self.gaussian_worst(first))

    def offset_block(self, first: int, last: int, goal: float) -> float:
        """The offset bound for a block of mixed cases, with enough chords to be below `goal` if possible."""
        ends = np.array([first], dtype=np.int64), np.array([last], dtype=np.int64)
        worst = 0.0
        for j, r, s, a in block_offsets(self.noise, self.contract, *ends):
            counts = float(j[0]), int(r[0]), int(s[0])
            case = OffsetCase(self.noise, *counts, float(a[0]), self.epsilon, self.scale)
            # Each offset covers one side of s, so the bound of the block is the larger of the two.
            worst = max(worst, _enough_chords(case, goal))
        return worst


def _enough_chords(case: OffsetCase, goal: float) -> float:
    """The chord bound with more and more chords, until it is below `goal` or clearly cannot be."""
    bound = math.inf
    for count in _CHORD_LADDER:
        finer = offset_bound_upper(case, count)
        # The excess shrinks by a factor of 16 per step: stop if that is not enough.
        hopeless = math.isfinite(bound) and finer - (bound - finer) / 15.0 > goal * (1.0 + 1e-9)
        bound = min(bound, finer)
        if bound <= goal or hopeless:
            break
    return bound


def certify_family(noise: Noise, contract: Contract, *, epsilon: float, budget: float | None = None) -> Proof:
    """Proof of continuous noise at epsilon: a rigorous upper bound of delta.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact doubles of `noise`. If it exceeds a
    given `budget` it may be 1, as the work stops at the first case above the budget.
    Valid for: epsilon >= 0.
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    fast = delta_family(noise, contract, epsilon=epsilon)
    goal = fast.delta * (1.0 + CERTIFICATE_GAP)
    if budget is not None and fast.delta <= budget:
        goal = min(goal, budget)
    family = BallFamily(noise, contract, epsilon=epsilon, scale=fast.delta)
    with balls.precision(family.bits):
        delta = max(
            balls.upper(family.gaussian_worst(0)),
            balls.upper(family.infinite_event(contract.items)),
            _mixed_upper(family, goal, budget),
        )
    attained = max(
        gaussian_case(noise, contract, epsilon=epsilon).delta, infinite_case(noise, contract).delta,
        delta_of_case(fast.case, noise, epsilon=epsilon, smallest=family.scale),
    )  # fmt: skip
    if attained > delta * (1.0 + _LOWER_ERROR):
        raise ArithmeticError(f"the certificate {delta!r} is below the exact delta {attained!r} of {fast.case}")
    return Proof(epsilon, min(1.0, delta), "exact", fast.case, min(delta, attained))


def _mixed_upper(family: BallFamily, goal: float, budget: float | None) -> float:
    """Ball upper bound over all mixed cases 0 < r < m."""
    noise, contract, epsilon = family.noise, family.contract, family.epsilon
    if contract.items < 2:
        return 0.0
    enough = goal * (1.0 - _DOUBLE_ERROR)
    blocks = mixed_blocks(noise, contract, epsilon=epsilon, enough=enough, relative=0.0, growth=4.0)
    sums = sum_bound(noise, contract, blocks.first, blocks.last, epsilon=epsilon, smallest=family.scale)
    worst = 0.0
    for first, last, by_sum in zip(blocks.first.tolist(), blocks.last.tolist(), sums.tolist(), strict=True):
        bound = family.sum_block(first, last) if by_sum <= enough else math.inf
        if bound > goal:
            bound = min(bound, family.offset_block(first, last, goal))
        worst = max(worst, bound)
        if budget is not None and worst > budget:
            return math.inf  # over the budget: skip the remaining blocks
    return worst


def certify_noise(noise: AnyNoise, contract: Contract, *, epsilon: float, budget: float | None = None) -> Proof:
    """Proof of any noise.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact rationals or doubles of `noise`.
    """
    if isinstance(noise, Noise):
        return certify_family(noise, contract, epsilon=epsilon, budget=budget)
    return certify_drawn(noise, contract, epsilon=epsilon, budget=budget)


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
    deviation = math.sqrt(noise.sigma_shared**2 - posterior)
    covariance = s * posterior / noise.sigma**2
    squared = (s - s * s / (noise.gamma + j)) / noise.sigma**2
    slope = covariance / deviation
    rest = math.sqrt(max(0.0, squared - slope**2))
    reach = normal_reach(smallest)
    low, high = -reach - slope, reach

    def log_none(t: FloatArray) -> FloatArray:
        return _log_posterior_none_passes(deviation * t.ravel(), r, noise, posterior, reach).reshape(t.shape)

    def log_ratio(t: FloatArray) -> FloatArray:
        """The mean of L given T = deviation t, plus log g: concave in t."""
        return log_none(t) + slope * (t + slope / 2.0)

    common = shared_noise_breaks(
        np.array([float(r)]), sigma=math.hypot(noise.sigma, math.sqrt(posterior)), sigma_shared=deviation,
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
