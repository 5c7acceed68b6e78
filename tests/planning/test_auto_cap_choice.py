"""The choice of a limit: noisy sizes, the sizes estimated from them, and the resulting plan and correction."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

import dphist
from dphist.errors import DphistError, InvalidParameter
from dphist.planning import auto_cap
from dphist.planning.auto_cap import (
    ChoicePlan,
    Levels,
    Sizes,
    choose_plan,
    estimate_sizes,
    levels_of,
    plan_choice,
    predicted_loss,
)
from dphist.planning.optimum import check_bounds
from dphist.planning.planner import contract_of, family_shares, public_plan
from dphist.planning.utility import Correction
from dphist.privacy.types import (
    DEFAULT_CAPS,
    Budget,
    CapChoice,
    Contract,
    LatticeNoise,
    Plan,
    PublicNoise,
    caps_up_to,
)
from dphist.releasing.noise import noisy_sizes
from dphist.sampling.tap import SeededTap
from scheduling import examples

CHOICE = CapChoice(DEFAULT_CAPS, Fraction(4462, 5))
PLAN = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=2)
Ints = np.ndarray[Any, np.dtype[np.int64]]


@cache
def planned() -> ChoicePlan:
    """Plans that drop the excess, at epsilon 1 and delta 1e-6."""
    return plan_choice(
        Budget(1.0, 1e-6),
        lambda epsilon, delta, cap: dphist.plan(epsilon=epsilon, delta=delta, max_items_per_user=cap),
    )


def limit(noisy: Any) -> int:
    return choose_plan(planned(), noisy)[0].contract.items


def cap(items: int) -> Levels:
    return ((items, 1.0),)


def spread(squared_length: int, most: int) -> Levels:
    """The weight sqrt(M/n) for every n from M to N."""
    return tuple((n, math.sqrt(squared_length / n)) for n in range(squared_length, most + 1))


def known(items: Any, users: Any, errors: Any = ()) -> Sizes:
    """Sizes with given errors, or without any."""
    rows = np.array(errors, dtype=float).reshape(-1, len(items))
    return Sizes(np.array(items, dtype=float), np.array(users, dtype=float), rows)


def offer(noise: float, threshold: float, contract: Contract) -> Plan:
    """A plan with this noise and threshold; minus infinity for a public list."""
    steps, own = 2048, Fraction(round((2048 * noise) ** 2))
    if math.isinf(threshold):
        return replace(PLAN, noise=PublicNoise(steps, own, Fraction(0)), contract=contract)
    return replace(
        PLAN, noise=LatticeNoise(steps, own, Fraction(0), round(steps * (threshold - 1.0))), contract=contract
    )


def buckets(items: Ints, choice: CapChoice = CHOICE) -> list[int]:
    place = np.searchsorted(np.array(choice.caps), items)
    return [int(n) for n in np.bincount(place, minlength=choice.buckets)]


def noisy(items: Ints, rng: np.random.Generator, choice: CapChoice = CHOICE) -> list[int]:
    counts = np.array(buckets(items, choice)) + rng.normal(0.0, math.sqrt(choice.variance), choice.buckets)
    return [int(n) for n in np.rint(counts)]


def true_correction(items: Ints, levels: Levels) -> float:
    """By its definition, one user at a time."""
    weighted = 0.0
    for n in items.tolist():
        kept = min(n, levels[-1][0])
        weighted += kept * next(weight for limit, weight in levels if limit >= kept)
    return float(items.sum()) / weighted


levels_strategy = st.one_of(
    st.integers(1, 50).map(cap),
    st.tuples(st.integers(1, 20), st.integers(0, 60)).map(lambda pair: spread(pair[0], sum(pair))),
    # Few levels: a weight is that of the first level that is large enough.
    st.just(((4, 1.0), (9, 0.66), (30, 0.36))),
)


@pytest.mark.parametrize(
    ("caps", "variance"),
    [
        ((), Fraction(4)),
        ((2, 2), Fraction(4)),
        ((0, 2), Fraction(4)),
        ([1, 2], Fraction(4)),
        ((1, 2), Fraction(1, 2)),
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


@given(items=st.lists(st.integers(1, 200), min_size=1, max_size=30), levels=levels_strategy)
def test_correction_of_known_sizes(items: list[int], levels: Levels) -> None:
    sizes, users = np.unique(np.array(items), return_counts=True)
    exact = known(sizes, users)
    factor, error = exact.correction(levels)
    assert factor == pytest.approx(true_correction(np.array(items), levels), rel=1e-12)
    assert error == 0.0
    if max(items) <= levels[0][0] or len(set(items)) == 1:
        assert exact.unevenness(levels) == pytest.approx(0.0, abs=1e-7)


def test_correction_where_each_bucket_is_one_size() -> None:
    """Caps 1, 2, 3, 4 and a million users: noise of one and the smoothness move the correction by under 1e-4."""
    choice = CapChoice((1, 2, 3, 4), Fraction(1))
    counts = [400_000, 300_000, 200_000, 100_000, 0]
    items = np.repeat(np.arange(1, 6), counts)
    for levels in (cap(1), cap(2), spread(1, 4), spread(2, 8)):
        found, _ = estimate_sizes(choice, counts).correction(levels)
        assert found == pytest.approx(true_correction(items[::1000], levels), rel=1e-4)
        assert found > 1.01


@given(
    users=st.lists(st.floats(0.0, 1e6), min_size=3, max_size=3).filter(lambda users: sum(users) > 1.0),
    squared_length=st.integers(1, 30),
    most=st.integers(0, 60),
)
def test_more_weight_needs_less_correction(users: list[float], squared_length: int, most: int) -> None:
    sizes = known((1.0, 10.0, 100.0), users)
    corrections = [
        sizes.correction(levels)[0]
        for levels in (
            cap(squared_length),
            spread(squared_length, squared_length + most),
            spread(squared_length + 1, squared_length + most + 1),
            cap(squared_length + most + 1),
        )
    ]
    assert corrections[0] >= corrections[1] * (1.0 - 1e-12)
    assert corrections[1] >= corrections[2] * (1.0 - 1e-12)
    assert corrections[2] >= corrections[3] * (1.0 - 1e-12) >= 1.0 - 1e-12


def test_error_of_the_correction_against_simulation() -> None:
    """The deviation over 20,000 draws is known to 0.5 %: a false alarm at 7 standard errors has 3e-12."""
    rng = np.random.default_rng(3)
    items, users = np.array([1.0, 5.0, 40.0, 300.0]), np.array([9000.0, 4000.0, 900.0, 80.0])
    errors = np.array([[30.0, 0.0, 0.0, 0.0], [0.0, 25.0, -8.0, 0.0], [5.0, 4.0, 10.0, 1.5]])
    seen = known(items, users, errors)
    levels = spread(4, 64)
    weights = np.array([n / true_correction(np.array([n]), levels) for n in (1, 5, 40, 300)])
    draws = users + rng.normal(size=(20_000, 3)) @ errors
    moved = (draws @ items) / (draws @ weights)
    assert seen.correction(levels)[1] == pytest.approx(float(moved.std()), rel=7.0 * 0.005)


@pytest.mark.parametrize(
    "levels",
    [
        spread(4, 64),
        cap(12),
        *(pytest.param(levels, marks=pytest.mark.slow) for levels in (spread(1, 16), spread(16, 256))),
    ],
)
def test_correction_from_noisy_sizes(levels: Levels) -> None:
    """Log-normal sizes: every draw is within 6 of its standard errors, and these are small."""
    rng = np.random.default_rng(4)
    items = np.maximum(1, rng.lognormal(2.3, 1.0, 50_000)).astype(np.int64)
    truth = true_correction(items, levels)
    for _ in range(examples(20)):
        sizes = estimate_sizes(CHOICE, noisy(items, rng))
        factor, error = sizes.correction(levels)
        assert 0.0 < error < 0.1 * truth
        assert abs(factor - truth) <= 6.0 * error
        assert sizes.total == pytest.approx(50_000, rel=0.02)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed % 3 == 1 else ()) for seed in range(12)]
)
def test_the_fit_is_no_worse_than_that_of_scipy(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For noise alone, ordinary users and two kinds of users, with little and with much noise."""
    rng = np.random.default_rng(seed)
    kinds = (np.zeros(0, np.int64), rng.geometric(0.3, 20_000),
             np.concatenate((rng.geometric(0.5, 9_000), np.full(700, 90))))  # fmt: skip
    choice = CapChoice(DEFAULT_CAPS, Fraction(10 ** (seed // 3 + 1)))
    fits: list[Any] = []

    def compare(terms: Any, start: Any) -> Any:
        found = fit(terms, start)
        other = optimize.least_squares(
            lambda x: terms(x)[0], start, lambda x: terms(x)[1],  # type: ignore[misc]
            method="lm", ftol=1e-14, xtol=1e-14, gtol=1e-14, max_nfev=1000,
        )  # fmt: skip
        fits.append((found, terms(found), other))
        return found

    fit = auto_cap._least_squares
    monkeypatch.setattr(auto_cap, "_least_squares", compare)
    estimate_sizes(choice, noisy(kinds[seed % 3], rng, choice))
    [(found, (left, rows, _), other)] = fits
    assert left @ left <= 2.0 * other.cost * (1.0 + 1e-12)
    assert found == pytest.approx(other.x, abs=1e-4)
    # At a minimum the residuals are orthogonal to all directions.
    assert np.all(np.abs(rows.T @ left) <= 1e-10 * np.linalg.norm(rows, axis=0) * np.linalg.norm(left))


@settings(max_examples=examples(30), deadline=None)
@given(
    caps=st.sampled_from([(1,), (1, 2), (5, 20, 100), (1, 2, 3, 4, 6, 8, 10), DEFAULT_CAPS]),
    variance=st.sampled_from([Fraction(1), Fraction(892), Fraction(10**9), Fraction(10**16)]),
    data=st.data(),
)
def test_no_noisy_sizes_break_the_choice(caps: tuple[int, ...], variance: Fraction, data: st.DataObject) -> None:
    choice = CapChoice(caps, variance)
    count = st.one_of(st.just(0), st.integers(-(10**4), 10**4), st.integers(-(10**12), 10**12))
    counts = data.draw(st.lists(count, min_size=choice.buckets, max_size=choice.buckets))
    sizes = estimate_sizes(choice, counts)
    for plan in (
        offer(1.6, 17.0, Contract(None, 1)),
        offer(14.9, 80.0, Contract(None, 12, 192)),
        offer(60.0, 300.0, Contract(100, 100)),
        offer(14.9, -math.inf, Contract(1000, 12)),
    ):
        correction, error = sizes.correction(levels_of(plan))
        assert 1.0 <= correction < math.inf
        assert 0.0 <= error < math.inf
        for goal in ("accuracy", "keys"):
            assert 0.0 <= predicted_loss(plan, sizes, goal) < math.inf
    assert np.array_equal(estimate_sizes(choice, counts).users, sizes.users)


@given(
    noise=st.floats(0.5, 100.0),
    threshold=st.floats(3.0, 600.0),
    more=st.floats(1.01, 3.0),
    goal=st.sampled_from(["accuracy", "keys"]),
)
def test_more_noise_or_a_higher_threshold_is_worse(noise: float, threshold: float, more: float, goal: Any) -> None:
    sizes = known((2.0, 20.0, 200.0), (30_000.0, 10_000.0, 500.0), ((10.0, 10.0, 5.0),))
    contract = Contract(None, 8, 128)
    loss = predicted_loss(offer(noise, threshold, contract), sizes, goal)
    assert predicted_loss(offer(more * noise, threshold, contract), sizes, goal) >= loss
    # An item released with an error above 1 is worse for accuracy than one that is not released.
    if goal == "keys" or threshold > 2.0 * noise:
        assert predicted_loss(offer(noise, more * threshold, contract), sizes, goal) > loss


def test_a_public_list_has_no_keys_to_gain() -> None:
    sizes = known((2.0, 20.0, 200.0), (30_000.0, 10_000.0, 500.0))
    short, long = Contract(500, 12), Contract(5000, 12)
    keys, accuracy = (predicted_loss(offer(15.0, -math.inf, short), sizes, goal) for goal in ("keys", "accuracy"))
    assert keys == accuracy
    # A longer list has smaller counts, for which noise is worse.
    quiet, loud = (predicted_loss(offer(noise, -math.inf, long), sizes, "accuracy") for noise in (15.0, 30.0))
    assert accuracy < quiet < loud


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda _: np.ones(100_000, dtype=np.int64), {1}),
        (lambda _: np.full(100_000, 20, dtype=np.int64), {24}),
        # Estimates correct for dropped items, so a limit need not cover all users.
        (lambda rng: rng.geometric(0.2, 100_000), {8, 12, 16}),
        (lambda rng: rng.integers(1, 100, 100_000), {48, 64, 96}),
        # A few thousand users with far more items than all others are seen.
        (lambda rng: np.concatenate((rng.geometric(0.5, 100_000), rng.integers(500, 700, 5_000))), {768}),
        (lambda rng: np.maximum(1, rng.lognormal(2.9, 0.77, 200_000)).astype(np.int64), {32, 48, 64}),
    ],
    ids=["one", "twenty", "geometric", "uniform", "two kinds", "log-normal"],
)
def test_choice_suits_the_sizes(make: Any, allowed: set[int]) -> None:
    tap, sizes = SeededTap(5), buckets(make(np.random.default_rng(8)))
    assert {limit(noisy_sizes(planned().choice, sizes, tap)) for _ in range(examples(20))} <= allowed


def test_choice_without_users() -> None:
    assert limit([0] * CHOICE.buckets) == 1
    assert limit([-1000] * CHOICE.buckets) == 1
    with pytest.raises(InvalidParameter, match="noisy sizes"):
        limit([1, 2])


def test_noise_alone_makes_no_huge_users() -> None:
    """Ten thousand users with few items: noise in the buckets of thousands of items must not raise the limit."""
    rng = np.random.default_rng(5)
    items = rng.geometric(0.4, 10_000)
    for _ in range(examples(90)):
        counts = noisy(items, rng)
        assert limit(counts) <= 24
        assert estimate_sizes(CHOICE, counts).pairs == pytest.approx(float(items.sum()), rel=0.1)


def test_users_of_a_separate_kind_are_seen() -> None:
    rng = np.random.default_rng(6)
    items = np.concatenate((rng.geometric(0.5, 100_000), rng.integers(500, 700, 5_000)))
    sizes = estimate_sizes(CHOICE, noisy(items, rng))
    assert sizes.pairs == pytest.approx(float(items.sum()), rel=0.1)
    huge = sum(users for n, users in zip(sizes.items, sizes.users, strict=True) if n > 256)
    assert huge == pytest.approx(5_000, rel=0.1)


# Noise and threshold at epsilon 1, delta 1e-6, with 2 % of the budget for the sizes.
OFFERS = (
    offer(1.636, 17.0, Contract(None, 1)),
    offer(14.9, 79.9, Contract(None, 12)),
    offer(34.4, 193.5, Contract(None, 64)),
    offer(4.3, 23.3, Contract(None, 1, 16)),
    offer(14.9, 86.4, Contract(None, 12, 192)),
    offer(34.4, 208.7, Contract(None, 64, 1024)),
)


@pytest.mark.parametrize(
    ("make", "goal", "best"),
    [
        (lambda _: np.ones(100_000, dtype=np.int64), "keys", {0}),
        (lambda rng: np.maximum(1, rng.lognormal(3.6, 1.1, 5_000)).astype(np.int64), "accuracy", {4, 5}),
        (lambda rng: np.maximum(1, rng.lognormal(3.6, 1.1, 5_000)).astype(np.int64), "keys", {4}),
        (lambda rng: rng.geometric(0.2, 100_000), "keys", {3}),
        (lambda rng: rng.geometric(0.2, 5_000), "accuracy", {3}),
        # With many users, different tastes matter more than noise.
        (lambda rng: np.maximum(1, rng.lognormal(3.6, 1.1, 500_000)).astype(np.int64), "accuracy", {5}),
    ],
)
def test_choice_suits_the_goal(make: Any, goal: Any, best: set[int]) -> None:
    rng = np.random.default_rng(7)
    items = make(rng)
    counts = np.array(buckets(items))
    for _ in range(examples(15)):
        drawn = np.rint(counts + rng.normal(0.0, math.sqrt(CHOICE.variance), counts.size)).astype(int)
        sizes = estimate_sizes(CHOICE, drawn.tolist())
        assert int(np.argmin([predicted_loss(plan, sizes, goal) for plan in OFFERS])) in best


@cache
def drawn_alike(users: int, seed: int) -> tuple[Ints, Ints]:
    """Pairs of users who all draw from one law of items, each a number of times of its own; each pair once."""
    rng = np.random.default_rng(seed)
    draws = np.maximum(1, rng.lognormal(2.0, 1.0, users)).astype(np.int64)
    who = np.repeat(np.arange(users), draws)
    what = np.minimum(rng.zipf(1.3, who.size), 10**6)
    pairs = np.unique(np.stack((who, what), axis=1), axis=0)
    return pairs[:, 0], np.unique(pairs[:, 1], return_inverse=True)[1]


@pytest.mark.parametrize("levels", [((4, 1.0),), ((4, 1.0), (8, 0.7), (16, 0.5), (64, 0.25))])
def test_common_items_have_a_smaller_factor(levels: Levels) -> None:
    """Where users draw from one law, estimates of common items are half as wrong as by one factor for all."""
    users, items = drawn_alike(20_000, 3)
    numbers = np.bincount(users)
    truth = np.bincount(items)
    sizes = known(*np.unique(numbers, return_counts=True))
    limits, weights = (np.array(column) for column in zip(*levels, strict=True))
    kept = np.minimum(numbers, limits[-1])
    weight = weights[np.searchsorted(limits, kept)] * kept / numbers
    counts = np.bincount(items, weight[users])  # what is expected of a random choice of kept items
    found = sizes.corrections(levels)
    assert found.factor == pytest.approx(sizes.correction(levels)[0], rel=0.02)
    assert all(np.diff(found.factors) <= 0.0)
    assert found.factors[-1] >= 1.0
    common = np.argsort(-truth)[:30]
    estimates = counts[common] * found.factors_at(counts[common])
    alike = counts[common] * found.factor
    assert np.abs(alike / truth[common] - 1.0).max() > 0.2
    assert np.abs(estimates / truth[common] - 1.0).max() < 0.5 * np.abs(alike / truth[common] - 1.0).max()


@pytest.mark.parametrize("cap", [3, 8, 24, 48])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.108078, 3.64425e-10), (0.7, 3.1e-7)])
def test_spread_with_sums_is_certified_to_the_last_digit(cap: int, epsilon: float, delta: float) -> None:
    # The first budget is a part of epsilon 0.15 and delta 1e-9, for which there was no plan with a cap of 24.
    budget, range_of_sum = Budget(epsilon, delta), (Fraction(0), Fraction(1))
    shares = family_shares([check_bounds(*range_of_sum)], None, Budget(0.15, 1e-9), Contract(None, 1))
    made = public_plan(budget, contract_of(55, cap, True), shares)
    assert delta * (1 - 1e-7) < made.certificate.delta <= delta


def test_no_user_has_more_items_than_a_public_list() -> None:
    """The bucket beyond the list is empty, whatever its noise: a limit of the whole list drops nothing."""
    choice = CapChoice((1, 2, 4, 10), Fraction(900))
    for beyond in (-80, 0, 90):
        sizes = estimate_sizes(choice, [0, 0, 0, 500, beyond], most=10)
        assert max(sizes.items) <= 10
        found = sizes.corrections(cap(10))
        assert set(found.factors) == {1.0}
        assert max(found.errors) < 1e-9
    one = estimate_sizes(CapChoice((1,), Fraction(900)), [5, 5], most=1)
    assert set(one.corrections(cap(1)).factors) == {1.0}


def test_corrections_of_nothing_and_of_bad_tables() -> None:
    levels: Levels = ((4, 1.0), (16, 0.5))
    assert known((1.0, 10.0), (0.0, 0.0)).corrections(levels).to_dict() == {
        "counts": [0.0], "factors": [1.0], "standard_errors": [0.0],
    }  # fmt: skip
    single = known((1.0,), (1000.0,)).corrections(levels)
    assert set(single.factors) == {1.0}
    for bad in (
        ((), (), ()),
        ((1.0, 1.0), (2.0, 2.0), (0.0, 0.0)),
        ((1.0,), (0.5,), (0.0,)),
        ((1.0,), (math.inf,), (0.0,)),
    ):
        with pytest.raises(InvalidParameter):
            Correction(*bad)


def test_the_error_of_each_factor_is_that_of_moved_sizes() -> None:
    """To first order: the table of sizes that are moved by a small part of one error, at the same counts."""
    levels: Levels = ((4, 1.0), (8, 0.7), (64, 0.25))
    sizes = known(
        (1.0, 5.0, 40.0, 300.0), (5000.0, 3000.0, 900.0, 50.0), ((0.0, 60.0, 0.0, 0.0), (10.0, 0.0, 20.0, -5.0))
    )
    found = sizes.corrections(levels)
    counts = np.array(found.counts[::4])
    moved = []
    for row in sizes.errors:
        other = known(sizes.items, sizes.users + 0.001 * row).corrections(levels)
        fine = np.interp(counts, other.counts, other.factors) - np.interp(counts, found.counts, found.factors)
        moved.append(1000.0 * fine)
    # Tables have six digits, and the factor is interpolated between them.
    assert np.hypot(*moved) == pytest.approx(found.errors_at(counts), rel=0.25, abs=0.01)
