"""The noisy sizes of a chosen cap, and what is chosen from them."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

import dphist
from dphist.errors import DphistError, InvalidParameter
from dphist.planning.auto_cap import ChoicePlan, choose_plan, estimate_sizes, plan_choice
from dphist.privacy.types import DEFAULT_CAPS, Budget, CapChoice, Plan, caps_up_to
from dphist.releasing.noise import noisy_sizes
from dphist.sampling.tap import SeededTap
from scheduling import THOROUGH


def plan_of(epsilon: float, delta: float, cap: int) -> Plan:
    return dphist.plan(epsilon=epsilon, delta=delta, max_items_per_user=cap)


def limit(found: ChoicePlan, noisy: Any) -> int:
    return choose_plan(found, noisy)[0].contract.items


@cache
def planned() -> ChoicePlan:
    return plan_choice(Budget(1.0, 1e-6), plan_of)


@pytest.mark.parametrize(
    ("caps", "variance"),
    [
        ((), Fraction(4)),
        ((2, 2), Fraction(4)),
        ((3, 2), Fraction(4)),
        ((0, 2), Fraction(4)),
        ((1.5,), Fraction(4)),
        ([1, 2], Fraction(4)),
        ((1, 2), Fraction(1, 2)),
        ((1, 2), 4.0),
    ],
)
def test_bad_choices(caps: Any, variance: Any) -> None:
    with pytest.raises(DphistError):
        CapChoice(caps, variance)


def test_usual_caps() -> None:
    assert DEFAULT_CAPS[:8] == (1, 2, 3, 4, 6, 8, 12, 16)
    assert DEFAULT_CAPS[-1] == 4096
    assert caps_up_to(None) == caps_up_to(10_000) == DEFAULT_CAPS
    assert caps_up_to(10) == (1, 2, 3, 4, 6, 8, 10)
    assert caps_up_to(1) == (1,)


def noise_looks_right(draws: np.ndarray[Any, np.dtype[np.float64]], variance: float) -> bool:
    """Mean and mean square within 7 standard errors: a false alarm below 1e-10, each."""
    n = draws.size
    return bool(
        abs(draws.mean()) <= 7.0 * math.sqrt(variance / n)
        and abs((draws**2).mean() / variance - 1.0) <= 7.0 * math.sqrt(2.0 / n)
    )


def test_noise_of_sizes() -> None:
    """Every bucket, empty or not, gets noise of its own; the test would see a deviation that is 5 % off."""
    choice = CapChoice(DEFAULT_CAPS, Fraction(4462, 5))
    sizes = [1000 * (i % 3) for i in range(choice.buckets)]
    tap = SeededTap(11)
    draws = np.array([noisy_sizes(choice, sizes, tap) for _ in range(4000)], dtype=np.float64) - sizes
    variance = float(choice.variance)
    assert noise_looks_right(draws, variance)
    assert not noise_looks_right(1.05 * draws, variance)
    assert not noise_looks_right(draws + 1.0, variance)
    # Each bucket by itself, and each pair of neighbours: their correlations are within 7 standard errors.
    assert np.abs((draws**2).mean(axis=0) / variance - 1.0).max() <= 7.0 * math.sqrt(2.0 / 4000)
    assert np.abs((draws[:, 1:] * draws[:, :-1]).mean(axis=0) / variance).max() <= 7.0 / math.sqrt(4000)


def test_true_sizes_are_checked_and_not_repeated() -> None:
    choice = CapChoice((1, 2), Fraction(4))
    for bad in ([1, 2], [1, 2, 3, 4], [12345, -1, 0], [1.5, 2.0, 3.0]):
        with pytest.raises(InvalidParameter) as error:
            noisy_sizes(choice, bad, SeededTap(1))  # type: ignore[arg-type]
        assert "12345" not in str(error.value)


def buckets(items: np.ndarray[Any, np.dtype[np.int64]], caps: tuple[int, ...] = DEFAULT_CAPS) -> list[int]:
    return [int(n) for n in np.bincount(np.searchsorted(np.array(caps), items), minlength=len(caps) + 1)]


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda _: np.ones(100_000, dtype=np.int64), {1}),
        (lambda _: np.full(100_000, 20, dtype=np.int64), {24}),
        # Estimates correct for what a limit drops, so it need not cover everybody.
        (lambda rng: rng.geometric(0.2, 100_000), {8, 12, 16}),
        (lambda rng: rng.integers(1, 100, 100_000), {48, 64, 96}),
        # A few thousand users of a kind of their own show, far from all others.
        (lambda rng: np.concatenate((rng.geometric(0.5, 100_000), rng.integers(500, 700, 5_000))), {768}),
        (lambda rng: np.maximum(1, rng.lognormal(2.9, 0.77, 200_000)).astype(np.int64), {32, 48, 64}),
    ],
    ids=["one", "twenty", "geometric", "uniform", "two kinds", "log-normal"],
)
def test_choice_suits_the_sizes(make: Any, allowed: set[int]) -> None:
    found, tap = planned(), SeededTap(5)
    sizes = buckets(make(np.random.default_rng(8)))
    chosen = {limit(found, noisy_sizes(found.choice, sizes, tap)) for _ in range(20 if THOROUGH else 10)}
    assert chosen <= allowed


def test_choice_is_a_function_of_the_noisy_sizes() -> None:
    found = planned()
    noisy = noisy_sizes(found.choice, buckets(np.random.default_rng(2).geometric(0.05, 30_000)), SeededTap(3))
    assert len({limit(found, list(noisy)) for _ in range(3)}) == 1
    assert limit(found, [0] * found.choice.buckets) == 1
    assert limit(found, [-1000] * found.choice.buckets) == 1


def test_noise_alone_makes_no_huge_users() -> None:
    """Ten thousand users with few items: noise in the buckets of thousands of items must not raise the cap."""
    found, tap = planned(), SeededTap(7)
    sizes = buckets(np.random.default_rng(4).geometric(0.4, 10_000))
    caps = [limit(found, noisy_sizes(found.choice, sizes, tap)) for _ in range(100 if THOROUGH else 50)]
    assert max(caps) <= 24
    seen = estimate_sizes(found.choice, noisy_sizes(found.choice, sizes, tap))
    assert seen.pairs == pytest.approx(25_000, rel=0.1)
