"""Vectors beside counts: their certificate against brute force, their plans, and what is refused."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import pytest
from flint import arb

import dphist
from dphist.accounting.concentrated import squared_sensitivity
from dphist.errors import InvalidParameter
from dphist.model import Contract, LatticeNoise, PublicNoise, SumNoise
from dphist.proof import balls
from dphist.proof.balls import shift_divergence
from dphist.proof.continuous import certify_noise
from dphist.proof.lattice import cover_vector
from oracles import delta_gaussian
from oracles_vectors import renyi_of_order_two, vector_divergence
from scheduling import crossed

REACH, VARIANCE, LATTICE, OWN = 1 << 11, Fraction(1 << 24), 2, Fraction(64)


def vector(columns: int = 2, reach: int = REACH, variance: Fraction = VARIANCE) -> SumNoise:
    return SumNoise(Fraction(-1), Fraction(1), reach, variance, columns)


def certified(noise: tuple[SumNoise, ...], epsilon: float) -> float:
    one = PublicNoise(LATTICE, OWN, Fraction(0), sums=noise)
    return certify_noise(one, Contract(1, 1), epsilon=epsilon).delta


def moves(count: int) -> list[tuple[int, int]]:
    """Whole vectors of a norm of at most REACH: on the axes, as long as can be in other directions, and inside."""
    generator, found = random.Random(5), [(REACH, 0), (0, -REACH)]
    while len(found) < count:
        first = generator.randrange(-REACH, REACH + 1)
        longest = math.isqrt(REACH**2 - first**2)
        found.append((first, generator.choice([longest, -longest, generator.randrange(longest + 1)])))
    return found


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_no_direction_exceeds_the_certificate(epsilon: float) -> None:
    """Brute force over the noise, to about 1e-12: no vector of the norm is worse, and the longest are as bad."""
    bound = certified((vector(),), epsilon)
    exact = [
        vector_divergence(
            lattice=LATTICE, variance=float(OWN), vector=float(VARIANCE), moves=move, epsilon=epsilon
        )
        for move in moves(6)
    ]
    assert max(exact) <= bound * (1 + 1e-11)
    assert max(exact) > bound * (1 - 1e-5)
    # Power: a norm half a percent longer than certified is caught, in any direction.
    for move in ((-1455, 1455), (0, 2058)):
        longer = vector_divergence(
            lattice=LATTICE, variance=float(OWN), vector=float(VARIANCE), moves=move, epsilon=epsilon
        )
        assert bound < longer


def test_a_vector_counts_once_and_not_once_per_column() -> None:
    """The squared sensitivity is that of the norm, by brute force: Renyi divergences of order 2 add up."""
    for columns in (2, 7):
        noise = PublicNoise(LATTICE, OWN, Fraction(0), sums=(vector(columns),))
        price = float(squared_sensitivity(noise, Contract(1, 1)))
        counts = renyi_of_order_two(float(OWN), LATTICE)
        worst = max(counts + sum(renyi_of_order_two(float(VARIANCE), part) for part in move) for move in moves(12))
        assert worst <= price * (1 + 1e-9)
        assert worst > price * (1 - 1e-3)


@pytest.mark.parametrize("reach", [1, 16, REACH, 1 << 20])
@pytest.mark.parametrize("ratio", [Fraction(1), Fraction(4, 2**13 + 1), Fraction(12345, 64)])
def test_what_the_proof_of_the_cover_needs(reach: int, ratio: Fraction) -> None:
    """In exact fractions: the conditions of the theorem in docs/theory/sums.md, and what it costs."""
    counts = VARIANCE * ratio / reach
    reach_of_sum, variance = cover_vector(vector(reach=reach), counts)
    finer = Fraction(reach_of_sum, reach)
    # Rounding a normal draw of variance U has the variance that is left, and it is at least one squared step.
    normal = variance * Fraction(reach_of_sum, reach_of_sum - 1) / finer**2
    assert VARIANCE - normal >= VARIANCE / 2**24 >= 1
    # The sum's own rounding is at least as wide.
    assert variance / reach_of_sum >= VARIANCE / 2**24
    assert normal > VARIANCE * (1 - Fraction(1, 10**5))
    # The integer combination of draws keeps its small coefficient.
    assert ratio.numerator % (reach_of_sum * counts / variance).numerator == 0


BOUNDS: list[dict[str, Any]] = [
    {"max_items_per_user": 1}, {"max_items_per_user": 30}, {"max_nonzero": 400}, {"top": 60}, {"public_items": 40},
    {"max_nonzero": 300, "max_items_per_user": 150},
    {"max_items_per_user": 512},
]  # fmt: skip


@pytest.mark.parametrize(("bound", "columns"), crossed(BOUNDS, [2, 256]))
def test_a_vector_costs_as_much_as_a_sum_of_its_norm(bound: dict[str, Any], columns: int) -> None:
    """With the same share: the noise of each column is that of one sum from -NORM to NORM, to 1e-6."""
    budget: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "weights": [0.2, 0.3], **bound}
    with_vector = dphist.plan(sums=[(0, 3), (-5, 5, columns)], **budget)
    with_sum = dphist.plan(sums=[(0, 3), (-5, 5)], **budget)
    assert with_vector.proof.delta <= 1e-6
    assert with_vector.sigma == pytest.approx(with_sum.sigma, rel=1e-6)
    assert with_vector.threshold == pytest.approx(with_sum.threshold, rel=1e-3)
    assert with_vector.sums[1].sigma == pytest.approx(with_sum.sums[1].sigma, rel=1e-6)
    # The same noise is never certified with less than the sum of the same reach.
    noise = with_vector.noise
    assert isinstance(noise, LatticeNoise)
    flat = [SumNoise(one.low, one.high, one.reach, one.variance) for one in noise.sums]
    for epsilon in (0.5, 1.0):
        both = [
            certify_noise(
                type(noise)(**{**vars(noise), "sums": sums}), with_vector.contract, epsilon=epsilon
            ).delta
            for sums in (noise.sums, tuple(flat))
        ]
        assert both[1] <= both[0] <= both[1] * (1 + 1e-4)


def test_the_best_share_of_a_vector_counts_all_its_columns() -> None:
    def cost(**options: Any) -> float:
        plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=20, sums=[(-1, 1, 9)], **options)
        return plan.total_noise**2 + 9 * plan.sums[0].sigma ** 2

    best = cost()
    # The closed form without shared noise: the count has 1 and nine columns sqrt 9.
    assert best == pytest.approx(cost(weights=[0.75]), rel=1e-3)
    assert all(best < cost(weights=[weight]) for weight in (0.3, 0.5, 0.65, 0.85, 0.95))


def test_divergences_of_very_fine_steps_are_near_the_normal_one() -> None:
    """Finer steps than a ball can tell apart give a number, or the trivial bound, and never too little."""
    normal = float(delta_gaussian(sensitivity=0.25, sigma=1.0, epsilon=0.5))
    with balls.precision(150):
        for steps in (10**6, 10**12, 10**21, 10**25, 10**30):
            found = shift_divergence(variance=arb(16 * steps**2), shift=steps, epsilon=arb(0.5))
            assert balls.upper(found) == pytest.approx(normal, rel=1e-5)
        far = shift_divergence(variance=arb(16) * arb(10) ** 200, shift=10**100, epsilon=arb(0.5))
        assert balls.upper(far) == 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columns": 0}, "1 to 256 columns"),
        ({"columns": 257}, "1 to 256 columns"),
        ({"low": Fraction(0)}, "must be -NORM and NORM"),
        ({"reach": 1 << 21}, "reach of at most"),
        ({"variance": Fraction((1 << 24) - 1)}, "variance of at least"),
    ],
)
def test_noise_that_is_not_covered_is_refused(given: dict[str, Any], said: str) -> None:
    """A forged certificate cannot have a vector outside of what the proof covers."""
    with pytest.raises(InvalidParameter, match=said):
        SumNoise(**{**vars(vector()), **given})


@pytest.mark.parametrize(
    ("bounds", "said"),
    [((-1, 2, 2), "-NORM and NORM"), ((-1, 1, 0), "columns"), ((-1, 1, 257), "256"), ((1, -1, 2), "LOW < HIGH")],
)
def test_bounds_of_vectors(bounds: tuple[int, int, int], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=5, sums=[bounds])
