"""The squared sensitivity of a top-k step, which certificates do not need: they use its moves."""

from __future__ import annotations

from fractions import Fraction

from dphist.model import OffsetRule
from dphist.proof.lattice import TopKMove, moves_top_k


def squared_sensitivity_top_k(
    *,
    shared: int,
    gamma: int,
    rule: OffsetRule,
    limit: int | None = None,
    lattice: int | None = None,
    extra: Fraction | float = 0,
) -> Fraction | float:
    """Largest squared sensitivity, in units of 1/sigma^2, of `shared` counts and their offset.

        opposite:     max of x - x^2/n over whole x <= m and gamma <= x <= gamma + m - 1,  n = j + 2 gamma
                      n/4 without a limit m on a user's items, but (n - 1/n)/4 if n is odd
        independent:  (j + 5 gamma)/4

    A `lattice` restricts the offsets to its steps. The sums of t touched counts add `extra` t; for more of these
    than n/2 the offset is half a count.

    Guarantee: an upper bound. By the opposite rule without sums it is attained, if the offsets are not restricted.
    Valid for: offset noise of the variance of the shared noise, sigma^2/gamma.
    Source: `sec:top-k`, whose sqrt(k + 5 sqrt k) is the independent rule at gamma = sqrt k; the other goes beyond.
    """
    steps = lattice or 2 * (shared + 2 * gamma)
    covers = moves_top_k(shared=shared, new=0, limit=limit, gamma=gamma, rule=rule, lattice=steps, sums=extra > 0)

    def squared(move: TopKMove) -> Fraction | float:
        counts = move.touched * (steps - move.step) ** 2 + (shared - move.touched) * move.step**2
        others = gamma * sum(one**2 for one in move.of_shared_noise(steps, rule))
        return Fraction(counts + others, steps**2) + extra * move.touched

    return max(min(squared(first), max(map(squared, others or [first]))) for first, *others in covers)
