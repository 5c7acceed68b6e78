"""Certificates of rounds against the oracle: random plans, planned ones, and neighbours that are enumerated."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from mpmath import mpf
from scipy.special import ndtri

import oracles_rounds as oracle
from dphist import model as types
from dphist.errors import InvalidParameter
from dphist.model import Budget, LaplaceNoise, LatticeNoise, RoundsNoise, SumNoise
from dphist.planning.rounds import plan_rounds
from dphist.proof import rounds
from dphist.proof.rounds import certify_rounds, delta_of_gaussian_cost, gaussian_cost_of_rounds
from oracles_rounds import Rounds
from rounds_worlds import random_public, random_tiny, random_world
from scheduling import THOROUGH

INTEGRALS = 1e-7  # relative error of the oracle's integrals, but for that of coarse steps
ENUMERATED = 1e-9  # absolute error of enumeration


def numbers_of(noise: RoundsNoise) -> Rounds:
    """The oracle's form of the same numbers."""
    own: oracle.Laplace | oracle.Gaussian | None = None
    if isinstance(noise.alone, LaplaceNoise):
        own = oracle.Laplace(noise.alone.scale, noise.alone.tau_steps)
    elif isinstance(noise.alone, LatticeNoise):
        own = oracle.Gaussian(noise.alone.lattice, noise.alone.variance, noise.alone.tau_steps)
    return Rounds(
        lattice=noise.lattice,
        variance=noise.variance,
        parts=noise.parts,
        limits=noise.thresholds_steps,
        cuts=noise.cuts,
        sizes=noise.sizes,
        measure=noise.measure,
        most_items=noise.most_items,
        growth=noise.growth,
        alone=own,
        sums=tuple(oracle.Sum(one.reach, one.variance, one.columns) for one in noise.sums),
        shared=noise.shared,
        listed=noise.listed,
    )


def noise_of(numbers: Rounds) -> RoundsNoise:
    """The certificate's form of tiny numbers."""
    return RoundsNoise(
        lattice=numbers.lattice,
        variance=numbers.variance,
        parts=numbers.parts,
        thresholds_steps=numbers.limits,
        cuts=numbers.cuts,
        sizes=numbers.sizes,
        measure=numbers.measure,
        most_items=numbers.most_items,
        growth=numbers.growth,
        sums=tuple(SumNoise(Fraction(-1), Fraction(1), one.reach, one.variance) for one in numbers.sums),
        shared=numbers.shared,
        listed=numbers.listed,
    )


def band(noise: RoundsNoise, epsilon: float) -> tuple[mpf, mpf]:
    """The least delta that a certificate may state, and the delta with sums in place of unions."""
    numbers = numbers_of(noise)
    low, high = (oracle.delta(numbers, epsilon, union=union) for union in (False, True))
    if numbers.alone:
        # Users with one item: that of a found item and that of its number, added.
        cases = oracle.alone_cases(numbers, epsilon)
        later = oracle.passing_union(numbers, [0] * len(numbers.parts))
        high = max(high, numbers.alone.tail(numbers.alone.limit + 1) + later + cases["alone", "add"])
    coarse = 5 * float(max(numbers.parts, default=0) / numbers.variance)
    return low * (1 - INTEGRALS - coarse), high * (1 + mpf("1e-4"))


# Random plans.


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def limits_for(numbers: dict[str, Any], chances: list[float]) -> tuple[int, ...]:
    """Limits that new items exceed about so often, whatever their number."""
    lattice, variance, parts = numbers["lattice"], numbers["variance"], numbers["parts"]
    limits, together, weights = [], 0, 0.0
    for r, (k, chance) in enumerate(zip(parts, chances, strict=True)):
        weights += k * (1 if r == 0 else min(1, numbers["growth"])) * lattice
        together += k
        deviation = math.sqrt(variance / together)
        limits.append(max(1, round(0.5 * weights / together - deviation * ndtri(chance))))
    return tuple(limits)


def random_noise(rng: random.Random) -> RoundsNoise:
    """The first random plan that is one: without too little noise or too much."""
    while True:
        with contextlib.suppress(InvalidParameter):
            return _random_noise(rng)


def _random_noise(rng: random.Random) -> RoundsNoise:
    """Any number of rounds, items and parts, much noise and little, with sums or a group of one or neither."""
    lattice, rounds = rng.choice((64, 100, 512, 4096, 4096, 8192)), rng.randint(1, 5)
    parts = tuple(rng.randint(1, rng.choice((3, 20, 100))) for _ in range(rounds))
    sizes, measure = rng.randint(1, 10), rng.randint(1, 60)
    mu = log_uniform(rng, 0.03, 5)
    whole = sum(parts) + sizes + measure
    variance = Fraction(
        max(round(lattice**2 * whole / mu**2), 64 * max(*parts, sizes, measure)), rng.choice((1, 2))
    )
    numbers: dict[str, Any] = {
        "lattice": lattice,
        "variance": variance,
        "parts": parts,
        "sizes": sizes,
        "measure": measure,
        "most_items": rng.choice((1, 2, 3, 17, 256, 1024)),
        "growth": rng.choice((1, 2, 8, 32)),
    }
    limits = limits_for(numbers, [log_uniform(rng, 1e-13, 1e-3) for _ in parts])
    cuts = tuple(rng.randint(0, limit) for limit in limits[:-1])
    alone: LaplaceNoise | LatticeNoise | None = None
    sums: tuple[SumNoise, ...] = ()
    kind = rng.choice(("several", "laplace", "gaussian", "sums"))
    if kind == "laplace":
        scale = Fraction(rng.randint(1, 80), 8)
        alone = LaplaceNoise(scale, round(float(scale) * rng.uniform(2, 30)))
    elif kind == "gaussian":
        own = Fraction(rng.randint(2**8, 2**15), 8)
        alone = LatticeNoise(rng.choice((2, 10, 40)), own, Fraction(0), round(math.sqrt(own) * rng.uniform(1, 7)))
    elif kind == "sums":
        reach = lattice * rng.randint(1, 64)
        own = max(Fraction(round(reach**2 / log_uniform(rng, 0.003, 3) ** 2)), Fraction(1 << 24))
        sums = (SumNoise(Fraction(-1), Fraction(1), reach, own, rng.choice((1, 1, 5))),)
    return RoundsNoise(**numbers, thresholds_steps=limits, cuts=cuts, alone=alone, sums=sums)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 50))])
def test_the_certificate_is_that_of_the_oracle_for_random_plans(part: int) -> None:
    rng = random.Random(f"plans of rounds {part}")
    for _ in range(100 if THOROUGH or part else 30):
        noise, epsilon = random_noise(rng), rng.choice((log_uniform(rng, 0.01, 10), rng.uniform(0, 2)))
        certified = certify_rounds(noise, epsilon=epsilon).delta
        low, high = band(noise, epsilon)
        assert certified >= min(low, 1 - INTEGRALS), (noise, epsilon)
        if noise.variance / max(noise.parts) > 10**4:
            assert certified <= high + mpf("1e-300"), (noise, epsilon)


KINDS: list[dict[str, Any]] = [
    {},
    {"goal": "keys"},
    {"gaussian": True},
    {"public_items": 12},
    {"public_items": 100_000},
    {"sums": [(0, 10), (-1, 1, 3)]},
    {"public_items": 5, "sums": [(0, 1)]},
]


@pytest.mark.parametrize("kind", KINDS, ids=[" ".join(map(str, kind)) or "default" for kind in KINDS])
@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(1.0, 1e-6), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0.2, 1e-9), (4.0, 0.01)))],
)
def test_the_certificate_is_that_of_the_oracle_for_plans(
    kind: dict[str, Any], epsilon: float, delta: float
) -> None:
    noise = plan_rounds(Budget(epsilon, delta), **kind).noise
    assert isinstance(noise, RoundsNoise)
    for other in (1.0, 0.6, 1.7):
        low, high = band(noise, other * epsilon)
        assert low <= certify_rounds(noise, epsilon=other * epsilon).delta <= high


def test_the_event_does_not_depend_on_the_estimate_that_starts_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = plan_rounds(Budget(1.0, 1e-6)).noise
    assert isinstance(noise, RoundsNoise)
    event = rounds.event_of_rounds(noise)
    estimates = rounds.estimated_events(noise)
    rounds.event_of_rounds.cache_clear()
    monkeypatch.setattr(rounds, "estimated_events", lambda _noise: estimates[::-1])
    assert rounds.event_of_rounds(noise).several == event.several
    rounds.event_of_rounds.cache_clear()


# Errors of one percent.

PERCENT: dict[str, Callable[[RoundsNoise], dict[str, Any]]] = {
    "variance": lambda noise: {"variance": noise.variance * Fraction(101, 100)},
    "lattice": lambda noise: {"lattice": noise.lattice - noise.lattice // 100},
    "limits": lambda noise: {"thresholds_steps": tuple(limit + limit // 100 for limit in noise.thresholds_steps)},
    "last limit": lambda noise: {
        "thresholds_steps": (
            *noise.thresholds_steps[:-1],
            noise.thresholds_steps[-1] + noise.thresholds_steps[-1] // 100,
        )
    },
    "early limit": lambda noise: {
        "thresholds_steps": (
            noise.thresholds_steps[0] + noise.thresholds_steps[0] // 100,
            *noise.thresholds_steps[1:],
        )
    },
    "most items": lambda noise: {"most_items": noise.most_items - 3},
    "a part less": lambda noise: {"parts": (*noise.parts[:-1], noise.parts[-1] - noise.parts[-1] // 100)},
    "measurement": lambda noise: {"measure": noise.measure - noise.measure // 100},
    "sizes": lambda noise: {"sizes": noise.sizes - noise.sizes // 20},
}


@pytest.mark.parametrize("error", PERCENT)
def test_an_error_of_one_percent_is_outside_the_band(error: str) -> None:
    """The comparisons above would show it; the parts are fine enough to have percents."""
    planned = plan_rounds(Budget(1.0, 1e-6)).noise
    assert isinstance(planned, RoundsNoise)
    noise = replace(
        planned,
        variance=50 * planned.variance,
        parts=tuple(50 * part for part in planned.parts),
        sizes=50 * planned.sizes,
        measure=50 * planned.measure,
    )
    low, high = band(noise, 1.0)
    assert low <= certify_rounds(noise, epsilon=1.0).delta <= high
    wrong = certify_rounds(replace(noise, **PERCENT[error](noise)), epsilon=1.0).delta
    assert not low <= wrong <= high, error


# Neighbours.


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lattices that no plan has, but on which all can be enumerated."""
    monkeypatch.setattr(types, "_COARSEST_ROUNDS", 2)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 40))])
def test_the_certificate_is_above_enumerated_neighbours(part: int, coarse: None) -> None:
    rng = random.Random(f"neighbours of rounds {part}")
    for _ in range(50 if THOROUGH or part else 15):
        numbers = random_tiny(rng, least=32, lowest=0)
        noise, world = noise_of(numbers), random_world(rng, numbers)
        assert oracle.allowed(numbers, world)
        # Small ones for little privacy loss, large ones where a step is as large as the noise.
        epsilons = [rng.uniform(0, 2), log_uniform(rng, 0.05, 60)]
        for epsilon, deltas in oracle.enumerated(numbers, world, epsilons).items():
            certified = certify_rounds(noise, epsilon=epsilon).delta
            assert max(deltas.values()) <= certified + ENUMERATED, (noise, world, epsilon)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 8))])
def test_the_certificate_is_above_enumerated_neighbours_of_public_lists(part: int, coarse: None) -> None:
    rng, tried = random.Random(f"public lists {part}"), 0
    while tried < (30 if THOROUGH or part else 4):
        numbers = random_public(rng, least=32)
        try:
            noise = noise_of(numbers)
        except InvalidParameter:
            continue
        tried += 1
        assert gaussian_cost_of_rounds(noise).squared >= oracle.squared_mu(numbers, types.ROUNDING)
        chosen = [rng.randint(1, numbers.most_items) for _ in range(2)]
        bound = rng.randint(-3, numbers.lattice + 3)
        epsilons = [rng.uniform(0, 2), log_uniform(rng, 0.05, 60)]
        for count in range(1, numbers.most_items + 1):
            exact = oracle.enumerated_public(numbers, count, lambda y: chosen[y > bound], epsilons)  # noqa: B023
            for epsilon, deltas in exact.items():
                certified = certify_rounds(noise, epsilon=epsilon).delta
                assert max(deltas.values()) <= certified + ENUMERATED, (noise, count, chosen, epsilon)


def test_a_shared_draw_has_more_noise_than_its_rounding_takes() -> None:
    """On a coarse lattice and a long list a draw is shared only at large limits, where it has enough noise.

    With 40 squared steps at the limit 1, the part of the variance that counts as rounding of the shared draw was
    more than all of it, and the squared move of the measurement below 0.
    """
    numbers: dict[str, Any] = {
        "lattice": 64,
        "variance": Fraction(400_000),
        "parts": (),
        "thresholds_steps": (),
        "cuts": (),
        "sizes": 1000,
        "measure": 10_000,
        "most_items": 1024,
        "growth": 1,
        "listed": 80_920,
    }
    assert certify_rounds(RoundsNoise(**numbers), epsilon=20.0).delta > 0.99
    with pytest.raises(InvalidParameter, match="variances must be between 32"):
        RoundsNoise(**numbers, shared=1000)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 10))])
def test_no_public_list_moves_more_than_the_certificate_states(part: int) -> None:
    """Also lists that no plan has: long ones on coarse lattices, with many shared parts and little noise."""
    rng, tried = random.Random(f"moves of public lists {part}"), 0
    while tried < 20:
        listed, most = round(log_uniform(rng, 1, 10**6)), rng.choice((1, 2, 5, 40))
        shared, sizes, measure = (round(log_uniform(rng, 1, top)) for top in (3000, 1000, 10**4))
        variance = Fraction(round(log_uniform(rng, 32, 10**6) * max(sizes, measure)))
        lattice = rng.choice((64, 100, 512, 4096))
        try:
            noise = RoundsNoise(
                lattice, variance, (), (), (), sizes, measure, min(most, listed), 1, None, shared, (), listed
            )
        except InvalidParameter:
            continue
        tried += 1
        numbers = numbers_of(noise)
        assert rounds.squared_mu(noise) >= oracle.squared_mu(numbers, types.ROUNDING), noise


# Costs in ledgers.


@pytest.mark.parametrize(
    "kind", [{}, {"gaussian": True}, {"public_items": 12}], ids=["laplace", "gaussian", "list"]
)
def test_the_cost_in_a_ledger_is_at_least_the_move_and_the_event(kind: dict[str, Any]) -> None:
    noise = plan_rounds(Budget(1.0, 1e-6), **kind).noise
    assert isinstance(noise, RoundsNoise)
    numbers, cost = numbers_of(noise), gaussian_cost_of_rounds(noise)
    assert cost.squared >= oracle.squared_mu(numbers, types.ROUNDING)
    assert cost.event >= oracle.event(numbers, union=False) * (1 - INTEGRALS)
    if isinstance(noise.alone, LatticeNoise):
        own = noise.alone
        assert cost.squared >= Fraction(own.lattice**2) / (own.variance - types.ROUNDING)
        assert cost.event >= oracle.alone_cases(numbers, 1.0)["nobody", "add"]
    for epsilon in (0.3, 1.0, 2.0):
        booked = delta_of_gaussian_cost(cost.squared, cost.event, epsilon=epsilon)
        assert booked >= oracle.delta(numbers, epsilon, union=False) * (1 - INTEGRALS)
