"""zCDP and Renyi differential privacy of plans, with the delta for new counts that neither can express."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import singledispatch

from dphist.accounting.profile import delta_at
from dphist.errors import LARGEST_EPSILON, InvalidParameter
from dphist.model import AnyNoise, Contract, LaplaceNoise, LatticeNoise, Noise, Plan, RoundsNoise
from dphist.proof.rounds import gaussian_cost_of_rounds, squared_mu
from dphist.proof.searches import fraction_up
from dphist.proof.sensitivity import squared_sensitivity_top_k


@dataclass(frozen=True)
class Concentrated:
    """delta-approximate rho-zCDP; both add up over releases."""

    rho: float
    delta: float


@dataclass(frozen=True)
class RenyiCurve:
    """Renyi privacy of every order a > 1, except with probability `delta`: a slope + a/(a-1) log_rest.

    With `pure_items`, the first part is that of this many randomised responses of `pure_epsilon` each.
    """

    slope: float
    delta: float
    log_rest: float = 0.0
    pure_epsilon: float = 0.0
    pure_items: int = 0

    def epsilon(self, order: float) -> float:
        """Upper bound of the Renyi epsilon of an order above 1."""
        if not order > 1.0:
            raise InvalidParameter(f"order must be greater than 1, not {order!r}")
        gaussian = self.slope * order
        if self.pure_items:
            e = self.pure_epsilon
            # (e^(a e) + e^((1-a) e))/(1 + e^e), with the larger power factored out.
            log_sum = order * e + math.log1p(math.exp((1.0 - 2.0 * order) * e)) - e - math.log1p(math.exp(-e))
            gaussian = min(gaussian, self.pure_items * log_sum / (order - 1.0))
        return (gaussian + self.log_rest * order / (order - 1.0)) * (1.0 + 1e-12)


def zcdp_of_plan(plan: Plan) -> Concentrated:
    """delta0-approximate rho-zCDP of a plan.

        rho = D/2  without shared noise;   (sqrt(D/2) + sqrt(h))^2,  h = -log(1 - delta0), with it

    D is the squared sensitivity per variance, delta0 the probability that a new count passes the threshold.
    For Laplace noise, whose losses are m randomised responses of 1/scale, rho = m/(2 scale^2). For rounds it is
    that of the worse group of users.

    The result has `rho` and `delta`, which both add up over releases.

    Guarantee: an upper bound of rho, rounded up from the exact rationals, with a certified delta0.
    Source: Bun and Steinke 2016 (definition 8.1, proposition 3.3), Canonne, Kamath and Steinke 2020 (theorem 4);
    the conditioned noise is derived in docs/theory/accounting.md.

    >>> import dphist
    >>> from dphist.accounting import zcdp_of_plan
    >>> cost = zcdp_of_plan(dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20))
    >>> print(f"rho {cost.rho:.4f}, delta {cost.delta:.2e}")
    rho 0.0280, delta 9.97e-07

    Args:
        plan: The plan.
    """
    curve = renyi_of_plan(plan)
    if curve.log_rest == 0.0:
        return Concentrated(curve.slope, curve.delta)
    root = math.sqrt(curve.slope) + math.sqrt(curve.log_rest)
    return Concentrated(root * root * (1.0 + 1e-14), curve.delta)


def renyi_of_plan(plan: Plan) -> RenyiCurve:
    """The Renyi curve of a plan, with an approximate delta0.

        a D/2  without shared noise;   a D/2 - a/(a-1) log(1 - delta0)  with it

    The result has `epsilon(order)`, the Renyi epsilon, and `delta`.

    Guarantee: an upper bound for every order a > 1, with a certified delta0.
    Source: as for `zcdp_of_plan`.

    >>> import dphist
    >>> from dphist.accounting import renyi_of_plan
    >>> curve = renyi_of_plan(dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20))
    >>> print(f"order 8: epsilon {curve.epsilon(8):.4f}, except with probability {curve.delta:.2e}")
    order 8: epsilon 0.2241, except with probability 9.97e-07

    Args:
        plan: The plan.
    """
    return renyi_of_noise(plan.noise, plan)


@singledispatch
def renyi_of_noise(noise: AnyNoise, _plan: Plan) -> RenyiCurve:
    raise TypeError(noise)


@renyi_of_noise.register(Noise)
@renyi_of_noise.register(LatticeNoise)
def _renyi_of_gaussian(noise: Noise | LatticeNoise, plan: Plan) -> RenyiCurve:
    delta = event_of_plan(plan)
    slope = fraction_up(squared_sensitivity(noise, plan.contract) / 2)
    shared = noise.sigma_shared > 0.0 and delta > 0.0
    return RenyiCurve(slope, delta, -math.log1p(-delta) * (1.0 + 1e-14) if shared else 0.0)


@renyi_of_noise.register(LaplaceNoise)
def _renyi_of_laplace(noise: LaplaceNoise, plan: Plan) -> RenyiCurve:
    items = plan.contract.items
    slope = fraction_up(Fraction(items) / (2 * noise.scale**2))
    return RenyiCurve(slope, event_of_plan(plan), pure_epsilon=fraction_up(1 / noise.scale), pure_items=items)


@renyi_of_noise.register(RoundsNoise)
def _renyi_of_rounds(noise: RoundsNoise, _plan: Plan) -> RenyiCurve:
    cost = gaussian_cost_of_rounds(noise)
    moved = cost.squared / 2
    if isinstance(noise.alone, LaplaceNoise):
        moved = max(squared_mu(noise) / 2, 1 / (2 * noise.alone.scale**2))
    # Where a count of users with one item may be published in two ways, each is conditioned on one of them.
    rest = 0.0 if noise.alone is None else -math.log1p(-cost.event) * (1.0 + 1e-14)
    return RenyiCurve(fraction_up(moved), cost.event, rest)


def event_of_plan(plan: Plan) -> float:
    """Upper bound of the probability that a new count of a user passes the threshold."""
    return 0.0 if plan.noise.public else delta_at(plan, LARGEST_EPSILON)


def squared_sensitivity(noise: Noise | LatticeNoise, contract: Contract) -> Fraction:
    """The squared sensitivity D of a plan without new counts, each move divided by the variance of its draw.

        (m (1-c)^2 + (k - m + gamma) c^2 + extra m)/sigma^2,  least over whole steps 0 <= c <= (1 + extra)/2

    The shared draw moves by c and the draw of each count by the rest. With such a c fewer changed counts move
    less, so one c covers them all. A top-k step has that of `squared_sensitivity_top_k`. Sums beside the m changed
    counts add `extra` each.

    Guarantee: exact rational; an upper bound over all neighbours without new counts.
    Source: as `squared_sensitivity` and `squared_sensitivity_top_k` of the privacy package.
    """
    return (_of_counts(noise, contract) + Fraction(noise.extra) * contract.items) / noise.squared_sigma


@singledispatch
def _of_counts(noise: AnyNoise, _contract: Contract) -> Fraction:
    """The part of the counts, in units of 1/sigma^2."""
    raise TypeError(noise)


@_of_counts.register(Noise)
def _of_continuous_counts(noise: Noise, contract: Contract) -> Fraction:
    items = contract.items
    if noise.sigma_shared == 0.0 or contract.max_nonzero is None:
        return Fraction(items)
    gamma = (Fraction(noise.sigma) / Fraction(noise.sigma_shared)) ** 2
    best = min(Fraction(1, 2), items / (contract.max_nonzero + gamma))
    return items * (1 - best) ** 2 + (contract.max_nonzero - items + gamma) * best**2


@_of_counts.register(LatticeNoise)
def _of_counts_on_lattice(noise: LatticeNoise, contract: Contract) -> Fraction:
    items, gamma_whole = contract.items, noise.gamma_whole
    if gamma_whole is None or contract.max_nonzero is None:
        return Fraction(items)
    if noise.offset != "none":
        squared = squared_sensitivity_top_k(
            shared=contract.max_nonzero, gamma=gamma_whole, rule=noise.offset, limit=contract.user_limit,
            lattice=noise.lattice,
        )  # fmt: skip
        return Fraction(squared)
    rest = contract.max_nonzero - items + gamma_whole
    most = min(noise.lattice, math.floor(noise.lattice * (1 + noise.extra) / 2))
    near = min(most, noise.lattice * items // (rest + items))
    moves = {Fraction(step, noise.lattice) for step in (0, near, min(most, near + 1), most)}
    return min(items * (1 - c) ** 2 + rest * c**2 for c in moves)
