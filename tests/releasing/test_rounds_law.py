"""What the rounds find and measure, in law: against the oracle's probabilities, for counts that are made up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import oracles_rounds as oracle
from dphist.certificate.request import Column
from dphist.counting.task import Choice, Events, RoundsTask
from dphist.model import Budget, LaplaceNoise, LatticeNoise, RoundsNoise
from dphist.planning.rounds import plan_rounds
from dphist.releasing.rounds import Found, find_items, measure_items
from dphist.sampling.rng import SeededRng

Array = NDArray[np.int64]
ITEMS = 30_000
USERS = 10**6
# A share of so many items is within this many deviations, but for one run of a billion.
DEVIATIONS = 6


@dataclass
class Counts:
    """Every item has the same weights as long as it is on the lists; `nobody` are items that no list has."""

    weights: Sequence[int]
    users: Array
    nobody: Array
    known: NDArray[np.bool_]
    found_sizes: Sequence[int] = ()
    items: int = ITEMS
    gone: list[Array] = field(default_factory=list)
    number: int = 0

    @property
    def present(self) -> NDArray[np.bool_]:
        raise AssertionError("the rounds go by weights")

    def alone(self) -> Array:
        return self.users

    def leave(self, gone: Array) -> None:
        self.gone.append(gone)

    def round(self) -> Array:
        weights = np.full(self.items, self.weights[self.number])
        self.number += 1
        weights[np.concatenate([*self.gone, self.nobody])] = 0
        return weights

    def sizes(self, found: Array, bounds: Sequence[int]) -> list[int]:  # noqa: ARG002
        return [USERS] * len(bounds)

    def measure(self, found: Array, limit: int) -> tuple[Array, ...]:  # noqa: ARG002
        return (np.full(found.size, 1000),)

    def rows(self, found: Array) -> list[Any]:  # noqa: ARG002
        return []


def counts(weights: Sequence[int], **more: Any) -> Counts:
    none = np.zeros(0, np.int64)
    given = {"users": np.zeros(ITEMS, np.int64), "nobody": none, "known": np.zeros(ITEMS, bool), **more}
    return Counts(weights, **given)


def near(share: float, chance: float, items: int) -> bool:
    return abs(share - chance) <= DEVIATIONS * math.sqrt(chance * (1 - chance) / items) + 1e-9


# A deviation is 40 to 60 steps; weights are 10 deviations above 0, so nothing is hopeless unless a cut says so.
NOISE = RoundsNoise(
    lattice=64,
    variance=Fraction(60**2 * 9, 2),
    parts=(4, 5, 9),
    thresholds_steps=(640, 620, 612),
    cuts=(0, 0),
    sizes=3,
    measure=7,
    most_items=4,
    growth=2,
)
WEIGHTS = (590, 610, 600)


def numbers_of(noise: RoundsNoise) -> oracle.Rounds:
    return oracle.Rounds(
        noise.lattice, noise.variance, noise.parts, noise.thresholds_steps, noise.cuts, noise.sizes, noise.measure,
        noise.most_items, noise.growth,
    )  # fmt: skip


def test_each_round_finds_as_many_items_as_the_oracle_says() -> None:
    found = find_items(NOISE, counts(WEIGHTS), SeededRng(3))
    before = 0.0
    for rounds in (1, 2, 3):
        numbers = replace(numbers_of(NOISE), parts=NOISE.parts[:rounds], limits=NOISE.thresholds_steps[:rounds])
        chance = float(oracle.passing_summed(numbers, WEIGHTS[:rounds]))
        assert chance - before > 0.05
        share = np.count_nonzero(found.found_in <= rounds) / ITEMS
        assert near(share, chance, ITEMS)
        before = chance
    # Pooled evidence is above the limit of its round, and unbiased but for that.
    for number, limit in enumerate(NOISE.thresholds_steps):
        scores = found.score[found.found_in == number + 1] * NOISE.lattice
        assert scores.min() > limit
    assert (found.alone is None) == (NOISE.alone is None)


def test_hopeless_items_leave_and_do_not_come_back() -> None:
    noise = replace(NOISE, thresholds_steps=(10**6, 10**6, 1), cuts=(595, 0))
    made = counts(WEIGHTS)
    found = find_items(noise, made, SeededRng(4))
    chance = 1 - float(oracle.tail_of(oracle.pooled_law((4,), noise.variance), 4 * (595 - WEIGHTS[0])))
    assert near(len(made.gone[1]) / ITEMS, chance, ITEMS)
    assert not np.isin(found.numbers, made.gone[1]).any()
    # In the last round the limit is far below: all others are found.
    assert found.numbers.size + len(made.gone[1]) == ITEMS


def test_items_that_no_list_has_are_never_found() -> None:
    nobody = np.arange(0, ITEMS, 3)
    noise = replace(NOISE, thresholds_steps=(1, 1, 1), cuts=(0, 0))
    found = find_items(noise, counts((0, 0, 0), nobody=nobody), SeededRng(5))
    assert found.numbers.size == 0
    found = find_items(noise, counts(WEIGHTS, nobody=nobody), SeededRng(5))
    assert not np.isin(found.numbers, nobody).any()


@pytest.mark.parametrize(
    "own",
    [LaplaceNoise(Fraction(3), 4), LatticeNoise(2, Fraction(32), Fraction(0), 7)],
    ids=["laplace", "gaussian"],
)
def test_users_with_one_item_find_only_what_they_have(own: LaplaceNoise | LatticeNoise) -> None:
    noise = replace(NOISE, alone=own, thresholds_steps=(10**6,) * 3)
    users = np.zeros(ITEMS, np.int64)
    users[: ITEMS // 2] = 1
    known = np.zeros(ITEMS, bool)
    known[::100] = True
    made = counts(WEIGHTS, users=users, known=known)
    found = find_items(noise, made, SeededRng(6))
    numbers = found.numbers[found.found_in == 0]
    assert (users[numbers] > 0).all()
    assert not known[numbers].any()
    law = (
        oracle.Laplace(own.scale, own.tau_steps)
        if isinstance(own, LaplaceNoise)
        else oracle.Gaussian(2, Fraction(32), 7)
    )
    candidates = int((users.astype(bool) & ~known).sum())
    assert near(numbers.size / candidates, float(law.tail(own.tau_steps + 1)), candidates)
    # Known items are released whatever happens, and both kinds leave the lists before the first round.
    assert set(found.numbers[found.found_in == -1]) == set(np.flatnonzero(known))
    assert set(made.gone[0]) == set(found.numbers)


def found_first(numbers: Array) -> Found:
    """Items that the first round found."""
    return Found(numbers, np.ones(numbers.size, np.int8), np.full(numbers.size, 50.0), None)


def test_sizes_and_measurement_have_their_noise() -> None:
    plan = plan_rounds(Budget(1.0, 1e-6))
    noise = plan.noise
    assert isinstance(noise, RoundsNoise)
    numbers, sizes = np.arange(ITEMS), []
    for seed in range(40):
        made = counts(())
        measured = measure_items(plan, made, found_first(numbers[:2]), SeededRng(seed))
        sizes += [size - USERS * noise.lattice for size in measured.sizes]
    assert np.mean(np.square(sizes)) == pytest.approx(float(noise.variance / noise.sizes), rel=0.4)
    measured = measure_items(plan, counts(()), found_first(numbers), SeededRng(7))
    assert measured.weights is not None
    draws = measured.weights * noise.lattice - 1000
    variance = float(noise.measure_noise(measured.limit)[0])
    assert variance == float(measured.limit * noise.variance / noise.measure)
    assert np.mean(draws**2) == pytest.approx(variance, rel=DEVIATIONS * math.sqrt(2 / ITEMS))


@pytest.mark.parametrize("shape", [(64, 1, 4), (100, 3, 50), (4096, 8, 256), (8192, 2, 1024)])
def test_engines_weigh_as_the_certificate_assumes(shape: tuple[int, int, int]) -> None:
    lattice, growth, most = shape
    variance = Fraction(10**10)
    noise = RoundsNoise(lattice, variance, (1,), (1,), (), 1, 1, most, growth)
    events = Events("none.parquet", "user", (Column("item", "item"),))
    task = RoundsTask(events, Choice(bytes(32)), most, lattice, growth, alone=False)
    for items in range(1, most + 1):
        assert task.first_weight(items) == noise.first_weight(items)
        assert task.most_weight(items) == noise.largest_later_weight(items)
        assert numbers_of(noise).caps(items) == (noise.first_weight(items),)
        assert items * noise.first_weight(items) ** 2 <= lattice**2
        for limit in (1, 3, most):
            assert items * task.measure_weight(items, limit) ** 2 <= limit * lattice**2
