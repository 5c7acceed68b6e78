"""Plans as moves of normal noise, with the delta of events: both add up over releases that adapt."""

from __future__ import annotations

from fractions import Fraction
from functools import singledispatch

from dphist.accounting.concentrated import event_of_plan, squared_sensitivity
from dphist.model import ROUNDING, AnyNoise, Contract, LaplaceNoise, LatticeNoise, Noise, Plan, RoundsNoise
from dphist.proof.gaussian import rounding_loss, squared_move_of_pure
from dphist.proof.rounds import GaussianCost, gaussian_cost_of_rounds
from dphist.proof.searches import fraction_up

# Rounding adds at most this share of a plan's delta to its event.
_NEGLIGIBLE = 2.0**-30


def gaussian_of_plan(plan: Plan) -> GaussianCost:
    """The cost of a plan in the Gaussian filter.

    Lattice noise is normal noise with a little less variance, rounded: D/(1 - share), see `squared_sensitivity`,
    and the rounding counts as an event. A Laplace count moved by one is a randomised response, and so are all of
    a user's together; the smaller cost counts.

    The result has `squared`, the squared move of normal noise, and `event`, a delta; both add up over releases.

    Guarantee: an upper bound of the squared move, and of the events, by the exact rationals of the plan.
    Source: docs/theory/accounting.md.

    >>> import dphist
    >>> from dphist.accounting import gaussian_of_plan
    >>> cost = gaussian_of_plan(dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20))
    >>> print(f"mu^2 {float(cost.squared):.4f}, event {cost.event:.2e}")
    mu^2 0.0560, event 9.97e-07

    Args:
        plan: The plan.
    """
    return cost_of_noise(plan.noise, plan)


@singledispatch
def cost_of_noise(noise: AnyNoise, _plan: Plan) -> GaussianCost:
    raise TypeError(noise)


@cost_of_noise.register(Noise)
def _of_continuous(noise: Noise, plan: Plan) -> GaussianCost:
    return GaussianCost(squared_sensitivity(noise, plan.contract), event_of_plan(plan))


@cost_of_noise.register(LaplaceNoise)
def _of_laplace(noise: LaplaceNoise, plan: Plan) -> GaussianCost:
    return GaussianCost(squared_move_of_laplace(noise.scale, plan.contract.items), event_of_plan(plan))


def squared_move_of_laplace(scale: Fraction, items: int) -> Fraction:
    """The squared move for Laplace noise of this scale on `items` counts of a user."""
    return min(items * squared_move_of_pure(1 / scale), squared_move_of_pure(items / scale))


@cost_of_noise.register(RoundsNoise)
def _of_rounds(noise: RoundsNoise, _plan: Plan) -> GaussianCost:
    cost = gaussian_cost_of_rounds(noise)
    draws = (noise.most_items + noise.listed + 1) * (noise.rounds + 2 + sum(one.columns for one in noise.sums))
    return GaussianCost(cost.squared, _with_rounding(cost.event, draws, Fraction(ROUNDING)))


@cost_of_noise.register(LatticeNoise)
def _of_lattice(noise: LatticeNoise, plan: Plan) -> GaussianCost:
    """The part of the least variance that counts as rounding is whole, and its loss negligible beside `delta`.

    Every draw gives up the same share of its variance.
    """
    variances = [noise.variance, *([noise.variance_shared] if noise.variance_shared else [])]
    least = min([*variances, *(one.variance for one in noise.sums)])
    draws, part = _moved_draws(noise, plan.contract), Fraction(1)
    while draws * rounding_loss(part) > plan.budget.delta * _NEGLIGIBLE:
        part += 1
    part = min(part, least / 2)
    moved = squared_sensitivity(noise, plan.contract) / (1 - part / least)
    return GaussianCost(moved, _with_rounding(event_of_plan(plan), draws, part))


def _with_rounding(event: float, draws: int, part: Fraction) -> float:
    """The event, and the loss of treating this part of the variance of each draw as rounding."""
    return fraction_up(Fraction(event) + draws * Fraction(rounding_loss(part)))


def _moved_draws(noise: LatticeNoise, contract: Contract) -> int:
    """The most draws that one user moves: with shared noise all counts, itself and the offset; else the user's."""
    items = contract.items
    columns = items * sum(one.columns for one in noise.sums)
    if noise.variance_shared and contract.max_nonzero is not None:
        return contract.max_nonzero + 2 + columns
    return items + columns
