"""Certificates of counts and sums against the exact delta: never below it, and for planned noise no higher."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import ndtr

import dphist
from dphist.privacy.certificate import certify_noise
from dphist.privacy.types import Contract, LatticeNoise, PublicNoise, SumNoise
from oracles_sums import Array, Case, Losses, Mechanism, counts_of, hockey_stick, losses_from, worst_case

KINDS = ("cap", "cap and shared noise", "bounded", "public", "top-k")
EPSILONS = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
VARIANCES = tuple(map(Fraction, ("1/2", "1", "3/2", "4", "10", "30", "75", "200")))


class Trial(NamedTuple):
    """Noise with a contract and an epsilon, and what the oracle says of them."""

    noise: LatticeNoise
    contract: Contract
    epsilon: float
    exact: float
    case: Case

    def delta(self, noise: LatticeNoise | None = None) -> float:
        """The certified delta, also of other noise."""
        return certify_noise(noise or self.noise, self.contract, epsilon=self.epsilon).delta

    def below(self, delta: float) -> bool:
        """Below the exact delta, by more than the noise that the oracle leaves out and rounding can explain."""
        return delta < self.exact * (1 - 1e-12) - 1e-13

    @property
    def aligned(self) -> bool:
        """One step of a count and one of a sum weigh whole multiples of each other, as in plans.

        The weights of a step in the log ratio are lattice/variance and reach/variance.
        """
        weights = [
            (self.noise.lattice / self.noise.variance) / (one.reach / one.variance) for one in self.noise.sums
        ]
        return all(1 in (weight.numerator, weight.denominator) for weight in weights)

    def large(self, least: int) -> bool:
        """All variances at least that."""
        shared = self.noise.variance_shared or least
        return min(self.noise.variance, shared, *(one.variance for one in self.noise.sums)) >= least


def random_sum(random: Random, lattice: int, variance: Fraction, aligned: bool) -> SumNoise:
    while True:
        reach = random.randint(1, 5)
        own = random.choice(VARIANCES)
        if aligned:
            own = reach * variance / lattice * Fraction(random.randint(1, 6)) ** random.choice((1, 1, -1))
        if VARIANCES[0] <= own <= VARIANCES[-1]:
            return SumNoise(Fraction(0), Fraction(1), reach, own)


def random_plan(random: Random, kind: str) -> tuple[LatticeNoise, Contract]:
    lattice, gamma, k = random.choice((2, 4, 6)), random.randint(1, 4), random.randint(1, 3)
    shared = Fraction(random.randint(8, 60 // gamma), 2)
    variance = gamma * shared
    if kind == "cap" or (kind in ("bounded", "public") and random.random() < 0.3):
        shared = Fraction(0)
    aligned = random.random() < 0.6
    sums = tuple(random_sum(random, lattice, variance, aligned) for _ in range(random.randint(1, 2)))
    limit = random.randint(1, int(4 * math.sqrt(variance + shared)) + 1)
    if kind == "public":
        return PublicNoise(lattice, variance, shared, sums=sums), Contract(k, random.randint(1, k))
    if kind == "top-k":
        return LatticeNoise(lattice, variance, shared, limit, "opposite", sums), Contract(k)
    noise = LatticeNoise(lattice, variance, shared, limit, sums=sums)
    if kind == "bounded":
        return noise, Contract(k, random.choice((None, *range(1, k + 1))))
    return noise, Contract(None, k)


def mechanism_of(noise: LatticeNoise) -> Mechanism:
    limit = None if isinstance(noise, PublicNoise) else noise.limit
    sums = tuple((one.reach, one.variance) for one in noise.sums)
    return Mechanism(
        noise.lattice, noise.variance, noise.variance_shared, limit, sums, top_k=noise.offset == "opposite"
    )


def trials(kind: str, count: int, seed: int) -> Iterator[Trial]:
    random = Random(f"{kind} {seed}")
    for _ in range(count):
        noise, contract = random_plan(random, kind)
        epsilon = random.choice(EPSILONS)
        exact, case = worst_case(mechanism_of(noise), contract.max_nonzero, contract.items, epsilon)
        yield Trial(noise, contract, epsilon, exact, case)


@cache
def few(kind: str) -> list[Trial]:
    """Some of each kind; the oracle is slowest for top-k."""
    return list(trials(kind, 20 if kind == "top-k" else 45, 1))


def halved(noise: LatticeNoise) -> LatticeNoise:
    """Sums that are thought to move half as far."""
    return replace(noise, sums=tuple(replace(one, reach=(one.reach + 1) // 2) for one in noise.sums))


# --- the certificates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_never_below_the_exact_delta(kind: str) -> None:
    assert [trial for trial in few(kind) if trial.below(trial.delta())] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2, 12))
def test_never_below_the_exact_delta_at_length(kind: str, seed: int) -> None:
    count = 60 if kind == "top-k" else 200
    assert [trial for trial in trials(kind, count, seed) if trial.below(trial.delta())] == []


# Here the bound for the sums is not worth anything, which must not keep the certificate from being one.
HOPELESS = [
    LatticeNoise(
        6, Fraction(29, 2), Fraction(29, 2), 9, sums=(SumNoise(Fraction(0), Fraction(1), 1, Fraction(30)),)
    ),
    LatticeNoise(
        4, Fraction(59, 2), Fraction(59, 2), 24, sums=(SumNoise(Fraction(0), Fraction(1), 1, Fraction(30)),)
    ),
]


@pytest.mark.parametrize("noise", HOPELESS)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("offset", [False, True])
def test_without_hope_delta_is_one(noise: LatticeNoise, epsilon: float, offset: bool) -> None:
    given = replace(noise, offset="opposite") if offset else noise
    contract = Contract(2) if offset else Contract(None, 3)
    exact, _ = worst_case(mechanism_of(given), contract.max_nonzero, contract.items, epsilon)
    assert exact <= certify_noise(given, contract, epsilon=epsilon).delta <= 1.0


def test_one_sum_with_planned_noise_is_tight() -> None:
    """Where new and changed counts together are not the worst: for one item, or a limit that few pass."""
    plain = [
        trial
        for trial in few("cap")
        if trial.aligned
        and trial.large(16)
        and len(trial.noise.sums) == 1
        and (trial.contract.items == 1 or trial.noise.limit**2 >= 6 * trial.noise.variance)
    ]
    assert len(plain) >= 5
    assert [trial for trial in plain if trial.delta() > 1.01 * trial.exact] == []


@pytest.mark.parametrize("kind", KINDS)
def test_planned_noise_is_mostly_tight(kind: str) -> None:
    ratios = [trial.delta() / trial.exact for trial in few(kind) if trial.aligned and trial.exact > 1e-9]
    assert len(ratios) >= 10
    assert float(np.median(ratios)) < 1.03


# --- the power of these tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_forgotten_sums_would_be_found(kind: str) -> None:
    found = [trial.below(trial.delta(replace(trial.noise, sums=()))) for trial in few(kind)]
    assert sum(found) >= 0.6 * len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_half_the_reach_would_be_found(kind: str) -> None:
    """Even where three is taken for two."""
    halvable = [trial for trial in few(kind) if trial.aligned and min(one.reach for one in trial.noise.sums) > 1]
    found = [trial.below(trial.delta(halved(trial.noise))) for trial in halvable]
    assert len(found) >= 8
    assert sum(found) >= 0.4 * len(found)


# --- a plan with its real numbers --------------------------------------------------------------------------------


def normal_masses(edges: Array, scale: float) -> Array:
    """Of a normal law between the edges, from the side that does not cancel."""
    left, right = edges[:-1] / scale, edges[1:] / scale
    masses: Array = np.where(left < 0, ndtr(right) - ndtr(left), ndtr(-left) - ndtr(-right))
    return masses


def sandwich(one: SumNoise, items: int, block: int) -> tuple[Losses, Losses]:
    """Losses of a sum that moves by its reach for so many items, from below and from above.

    The law of n draws together is proportional to exp(-x^2/(2 n v)) times a theta function that varies by less
    than exp(-9 v) of itself. A weight differs from the integral over its unit interval by at most
    (1 + x^2/(n v))/(24 n v) of itself: with v > 10^12 that is below 10^-11, and normal masses serve. Blocks of
    steps instead of steps are less to look at: a bound from below. From above, all of a block is as bad as its
    last step.
    """
    assert one.variance > 10**12
    scale, shift = math.sqrt(items * one.variance), items * one.reach
    edges: Array = np.arange(-int(9 * scale), shift + int(9 * scale), block).astype(np.float64) - 0.5
    first, second = normal_masses(edges - shift, scale), normal_masses(edges, scale)
    last: Array = ((edges[1:] - 0.5) * one.reach - items * one.reach**2 / 2) / float(one.variance)
    return losses_from(np.log(first / second), first, second), losses_from(last, first, first * np.exp(-last))


def between(noise: LatticeNoise, items: int, epsilon: float) -> tuple[float, float]:
    """The exact delta lies between these, without shared noise and with a cap alone."""
    assert noise.variance_shared == 0
    mechanism = mechanism_of(replace(noise, sums=()))
    found = []
    for changed in range(items + 1):
        always = losses_from(np.zeros(1), np.ones(1), np.ones(1))
        bounds = sandwich(noise.sums[0], changed, 1024) if changed else (always, always)
        for single in range(items - changed + 1):
            counts = counts_of(mechanism, Case(None, changed, single))
            for losses in bounds:
                larger = counts.passed + hockey_stick(counts.first, counts.second, losses, epsilon)
                found.append(max(larger, hockey_stick(counts.second, counts.first, losses, epsilon)))
    return max(found[0::2]), max(found[1::2])


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_a_plan_with_its_real_numbers(epsilon: float) -> None:
    plan = dphist.plan(epsilon=1, delta=1e-3, max_items_per_user=2, sums=[(0, 10)])
    assert isinstance(plan.noise, LatticeNoise)
    low, high = between(plan.noise, 2, epsilon)
    assert low <= high <= 1.001 * low
    delta = certify_noise(plan.noise, plan.contract, epsilon=epsilon).delta
    assert (1 - 1e-9) * low <= delta <= 1.005 * low
    assert epsilon < 1.0 or plan.certificate.delta <= 1e-3
    if epsilon < 1.0:  # beyond, new counts are the worst, or nearly
        assert certify_noise(replace(plan.noise, sums=()), plan.contract, epsilon=epsilon).delta < 0.9 * low
