"""Plans as moves of normal noise, with the delta of events: both add up over releases that adapt."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from dphist.accounting.concentrated import event_of_plan, squared_sensitivity
from dphist.privacy.gaussian import rounding_loss, squared_move_of_pure
from dphist.privacy.numerics import fraction_up
from dphist.privacy.rounds import gaussian_cost_of_rounds
from dphist.privacy.types import Contract, LaplaceNoise, LatticeNoise, Noise, Plan, RoundsNoise

# Rounding adds at most this share of a plan's delta to its event.
_NEGLIGIBLE = 2.0**-30


class GaussianCost(NamedTuple):
    """A squared move of normal noise, in deviations, and a bound of the probability of all that it misses."""

    squared: Fraction
    event: float


def gaussian_of_plan(plan: Plan) -> GaussianCost:
    """The cost of a plan in the Gaussian filter.

    Lattice noise is normal noise with a little less variance, rounded: D/(1 - share), see `squared_sensitivity`,
    and the rounding counts as an event. A Laplace count moved by one is a randomised response, and so are all of
    a user's together; the smaller cost counts.

    Guarantee: an upper bound of the squared move, and of the events, by the exact rationals of the plan.
    Source: docs/theory/accounting.md.
    """
    noise, contract, event = plan.noise, plan.contract, event_of_plan(plan)
    if isinstance(noise, LaplaceNoise):
        return GaussianCost(squared_move_of_laplace(noise.scale, contract.items), event)
    if isinstance(noise, RoundsNoise):
        cost = gaussian_cost_of_rounds(noise)
        return GaussianCost(cost.squared, cost.event)
    moved = squared_sensitivity(noise, contract)
    if isinstance(noise, Noise):
        return GaussianCost(moved, event)
    variances = [noise.variance, *([noise.variance_shared] if noise.variance_shared else [])]
    variances += [one.variance for one in noise.sums]
    return rounded(moved, event, min(variances), _moved_draws(noise, contract), plan.budget.delta)


def squared_move_of_laplace(scale: Fraction, items: int) -> Fraction:
    """The squared move for Laplace noise of this scale on `items` counts of a user."""
    return min(items * squared_move_of_pure(1 / scale), squared_move_of_pure(items / scale))


def rounded(moved: Fraction, event: float, variance: Fraction, draws: int, delta: float) -> GaussianCost:
    """The cost of discrete draws with this squared move and least variance, of which so many differ by one user.

    The part of the variance that counts as rounding is the least whole one whose loss is negligible beside
    `delta`. Every draw gives up the same share of its variance.
    """
    part = Fraction(1)
    while draws * rounding_loss(part) > delta * _NEGLIGIBLE:
        part += 1
    part = min(part, variance / 2)
    total = Fraction(event) + draws * Fraction(rounding_loss(part))
    return GaussianCost(moved / (1 - part / variance), fraction_up(total))


def _moved_draws(noise: LatticeNoise, contract: Contract) -> int:
    """The most draws that one user moves: with shared noise all counts, itself and the offset; else the user's."""
    items = contract.items
    columns = items * sum(one.columns for one in noise.sums)
    if noise.variance_shared and contract.max_nonzero is not None:
        return contract.max_nonzero + 2 + columns
    return items + columns
