"""Estimates against populations with known truth. Random tests state how often a correct estimate fails them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator
from numpy.typing import NDArray

from dphist.planning.estimate import Estimates, Evidence, choose_limit, estimate, size_bounds

Floats = NDArray[np.float64]
BOUNDS = size_bounds(256, listed=256)
ROUNDS = (12.3, 8.1, 6.2, 4.8)
NONE = np.zeros(len(BOUNDS))


def evidence(found_in: list[int] | NDArray[np.int64], **given: object) -> Evidence:
    """Evidence of a release in which nobody has several items, apart from what is given."""
    items = len(found_in)
    plain = Evidence(
        found_in=np.array(found_in, dtype=np.int64), score=np.full(items, np.nan), deviations=ROUNDS, alone=None,
        alone_deviation=0.0, measured=np.full(items, 100.0), sigma=20.0, shared=0.0, limit=4, sizes=NONE,
        sizes_deviation=30.0, bounds=BOUNDS, limits=(58.0, 44.0, 36.0, 29.0), most_items=256,
    )  # fmt: skip
    return replace(plain, **given)  # type: ignore[arg-type]


def covered(found: Estimates, truth: Floats, level: float = 0.95) -> float:
    return float(np.mean(np.abs(found.count - truth) <= found.margin(level)))


# Sizes and limits


def test_bounds_of_sizes_end_at_the_largest_and_have_two_per_power_of_two() -> None:
    assert BOUNDS == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    assert size_bounds(1, 1) == (1,)
    assert size_bounds(2, 2) == (1, 2)
    assert size_bounds(100, 100) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 100)
    # Of a longer list, or without one, users may have more items than count.
    assert size_bounds(4, 5) == size_bounds(4) == (1, 2, 3, 4, 8, 16, 32, 1 << 40)


def test_nobody_is_measured_where_sizes_are_noise() -> None:
    """Fails with probability 1e-9: of 16 normal sums, one is above 3 deviations in 0.91 % of draws; 10 of 100."""
    rng = np.random.default_rng(1)
    limits = [choose_limit(rng.normal(0.0, 30.0, 16), BOUNDS, 30.0, 11.4, 50) for _ in range(100)]
    assert sum(limit > 0 for limit in limits) < 10


def test_limit_is_at_least_one_if_a_measurement_is_needed() -> None:
    assert choose_limit(NONE - 5.0, BOUNDS, 30.0, 11.4, 50) == 0
    assert choose_limit(NONE - 5.0, BOUNDS, 30.0, 11.4, 50, needed=True) >= 1
    assert choose_limit(NONE, BOUNDS, 30.0, 11.4, 0, needed=True) == 0


def test_limit_grows_with_sizes_and_with_precision() -> None:
    small, large = NONE.copy(), NONE.copy()
    small[:3] = 5000.0, 2000.0, 1000.0
    large[6:12] = 1000.0
    assert 0 < choose_limit(small, BOUNDS, 30.0, 11.4, 200) <= 3
    assert choose_limit(small, BOUNDS, 30.0, 11.4, 200) < choose_limit(large, BOUNDS, 30.0, 11.4, 200)
    assert choose_limit(large, BOUNDS, 150.0, 1000.0, 200) < choose_limit(large, BOUNDS, 8.0, 2.9, 200)


def test_numbers_far_larger_than_their_noise_have_finite_margins() -> None:
    """Equations were singular in doubles, or the variance of a factor was slightly below 0."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        most, items = int(rng.choice([3, 256, 1024])), int(rng.choice([2, 10]))
        bounds, size = size_bounds(most), 10.0 ** rng.uniform(2, 11)
        sizes = rng.normal(0.0, size, len(bounds))
        sizes[1:] *= rng.choice([0.0, 1.0])
        deviation = 10.0 ** rng.uniform(-3, 0)
        limit = choose_limit(sizes, bounds, deviation, deviation, items, needed=True)
        found = estimate(
            evidence(
                rng.choice([-1, 1, 4], items), score=np.full(items, 60.0) + rng.exponential(size, items),
                measured=rng.normal(0.0, size, items), sigma=deviation, limit=limit, sizes=sizes,
                sizes_deviation=deviation, bounds=bounds, most_items=most,
            )
        )  # fmt: skip
        assert np.isfinite(found.count).all()
        assert np.isfinite(found.margin(0.95)).all()


# Coverage


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_intervals_of_a_measurement_alone_are_exact(level: float) -> None:
    """Users with one item each: errors are independent and normal. A correct estimate fails in 1e-9 of cases."""
    rng, items = np.random.default_rng(2), 5000
    truth = rng.integers(0, 500, items).astype(np.float64)
    sizes = NONE.copy()
    sizes[0] = truth.sum()
    noisy = sizes + rng.normal(0.0, 30.0, sizes.size)
    seen = evidence([-1] * items, measured=truth + rng.normal(0.0, 20.0, items), limit=1, sizes=noisy)
    # A binomial number is further than 6.2 deviations from its mean in less than 1e-9 of cases.
    most = 6.2 * math.sqrt(level * (1.0 - level) / items)
    assert abs(covered(estimate(seen), truth, level) - level) < most
    for sigma in (14.0, 28.0):
        assert abs(covered(estimate(replace(seen, sigma=sigma)), truth, level) - level) > most


def test_a_shared_draw_widens_all_intervals() -> None:
    own = estimate(evidence([-1] * 3))
    shared = estimate(evidence([-1] * 3, shared=15.0))
    assert own.standard_error == pytest.approx(20.0, rel=0.01)
    assert shared.standard_error == pytest.approx(25.0, rel=0.01)


@cache
def population() -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Pairs of users and items, and users per item: Zipf items, sizes from 1 to 120, two thirds with several."""
    rng = np.random.default_rng(3)
    sizes = np.minimum(1.0 + rng.pareto(1.2, 6000) * 2.0, 120.0).astype(np.int64)
    user = np.repeat(np.arange(sizes.size), sizes)
    weights = (np.arange(2000) + 2.0) ** -0.9
    pairs = np.unique(user * 2000 + rng.choice(2000, user.size, p=weights / weights.sum()))
    return pairs // 2000, pairs % 2000, np.bincount(pairs % 2000, minlength=2000).astype(np.float64)


def release(rng: Generator) -> tuple[Evidence, Floats]:
    """The mechanism of rounds at (1, 1e-6) in floating point, and the truth of the found items."""
    user, item, truth = population()
    number = np.bincount(user)
    ones = np.bincount(item[number[user] == 1], minlength=2000)
    alone = ones + rng.laplace(0.0, 1.0, 2000)
    found_in = np.where((alone > 15.0) & (ones > 0), 0, -2)
    user, item = user[number[user] > 1], item[number[user] > 1]
    alive = found_in < 0
    parts, score, kept = (6, 8, 10, 16), np.zeros(2000), np.full(2000, np.nan)
    first = np.bincount(user[alive[item]], minlength=number.size)
    for r, part in enumerate(parts):
        n = np.bincount(user[alive[item]], minlength=number.size)
        weight = np.minimum(1.0, 1.0 / np.sqrt(np.maximum(n, 1)))
        weight = weight if r == 0 else np.minimum(weight, 8.0 / np.sqrt(np.maximum(first, 1)))
        use = alive[item]
        noise = ROUNDS[0] * math.sqrt(6.0 / part)
        score += part * (np.bincount(item[use], weight[user[use]], 2000) + rng.normal(0.0, noise, 2000))
        pooled = score / sum(parts[: r + 1])
        found = alive & (pooled > (58.0, 44.0, 36.0, 28.7)[r])
        found_in[found], kept[found] = r + 1, pooled[found]
        alive &= ~found & (pooled > (*(x * d for x, d in zip((0.5, 1.5, 2.5), ROUNDS, strict=False)), -np.inf)[r])
    items = np.flatnonzero(found_in >= 0)
    use = found_in[item] >= 0
    n = np.bincount(user[use], minlength=number.size)
    sizes = np.bincount(np.searchsorted(BOUNDS, n[n > 0]), minlength=len(BOUNDS)) + rng.normal(0.0, 30.2, 16)
    limit = choose_limit(sizes, BOUNDS, 30.2, 11.4, items.size)
    weight = np.minimum(1.0, np.sqrt(limit / np.maximum(n, 1)))
    sigma = 11.4 * math.sqrt(limit)
    measured = np.bincount(item[use], weight[user[use]], 2000)[items] + rng.normal(0.0, sigma, items.size)
    seen = evidence(
        found_in[items], score=kept[items], alone=alone[items], alone_deviation=math.sqrt(2.0), measured=measured,
        sigma=sigma, limit=limit, sizes=sizes, sizes_deviation=30.2,
    )  # fmt: skip
    return seen, truth[items]


@cache
def releases() -> list[tuple[Evidence, Floats]]:
    return [release(np.random.default_rng(100 + run)) for run in range(200)]


def mean_covered(**wrong: float) -> float:
    """The mean share of intervals that hold the truth, with deviations that are wrong by these factors."""
    shares = []
    for seen, truth in releases():
        deviations = tuple(d * wrong.get("deviations", 1.0) for d in seen.deviations)
        stated = replace(seen, sigma=seen.sigma * wrong.get("sigma", 1.0), deviations=deviations)
        shares.append(covered(estimate(stated), truth))
    return float(np.mean(shares))


def test_intervals_hold_the_truth_in_releases() -> None:
    """A correct estimate fails with probability below 1e-9.

    Over 2,000 other releases the mean share of a release is 0.966 and its variance 0.0012. With a mean of at least
    0.95 and a variance of at most 0.002, Bernstein's inequality bounds Pr[mean of 200 < 0.875] by
    exp(-200 t^2/(2 (0.002 + t/3))) at t = 0.075, which is 9e-10.
    """
    assert mean_covered() >= 0.875


@pytest.mark.parametrize("wrong", [{"sigma": 0.5}, {"sigma": 0.5, "deviations": 0.5}])
def test_coverage_finds_wrong_deviations(wrong: dict[str, float]) -> None:
    assert mean_covered(**wrong) < 0.875


def test_popular_items_are_not_biased() -> None:
    """The ten largest of each release, whose users have fewer items than others: the mean error is below 2 %."""
    errors = []
    for seen, truth in releases():
        largest = np.argsort(-truth)[:10]
        errors.append(estimate(seen).count[largest].sum() / truth[largest].sum() - 1.0)
    assert abs(np.mean(errors)) < 0.02


def test_estimates_are_closer_than_measurements() -> None:
    ours = measured = 0.0
    for seen, truth in releases()[:50]:
        scored = seen.found_in > 0
        assert seen.measured is not None
        assert seen.alone is not None
        ours += np.abs(estimate(seen).count - truth)[scored].sum()
        measured += np.abs(seen.measured + seen.alone - truth)[scored].sum()
    assert ours < 0.6 * measured


@cache
def measurement_of(most: int, *, told: bool, seed: int) -> tuple[Evidence, Floats]:
    """Users with 2 to 300 items of which at most `most` count, and all items known. Are they `told` apart?"""
    rng = np.random.default_rng(seed)
    tries = np.exp(rng.uniform(math.log(4.0), math.log(400.0), 6000)).astype(np.int64)
    weights = (np.arange(2000) + 3.0) ** -0.9
    pairs = np.unique(
        np.repeat(np.arange(6000), tries) * 2000 + rng.choice(2000, tries.sum(), p=weights / weights.sum())
    )
    pairs = rng.permutation(pairs)
    pairs = pairs[np.argsort(pairs // 2000, kind="stable")]
    user, item = pairs // 2000, pairs % 2000
    truth, have = np.bincount(item, minlength=2000).astype(np.float64), np.bincount(user, minlength=6000)
    counts = np.arange(user.size) - (np.cumsum(have) - have)[user] < most
    user, item, bounds = user[counts], item[counts], size_bounds(most)
    kept = np.bincount(user, minlength=6000)
    users = np.bincount(np.searchsorted(bounds, have if told else kept), minlength=len(bounds))
    sizes = users + rng.normal(0.0, 10.0, len(bounds))
    limit = choose_limit(sizes, bounds, 10.0, 4.0, 2000, needed=True)
    steps = np.bincount(item, np.minimum(1.0, np.sqrt(limit / kept))[user], 2000)
    sigma = 4.0 * math.sqrt(limit)
    seen = evidence(
        [-1] * 2000, measured=steps + rng.normal(0.0, sigma, 2000), sigma=sigma, limit=limit, sizes=sizes,
        sizes_deviation=10.0, bounds=bounds, most_items=most,
    )  # fmt: skip
    return seen, truth


@pytest.mark.parametrize("most", [32, 64, 128])
def test_users_with_more_items_than_count_are_made_up_for(most: int) -> None:
    """Up to two thirds of all pairs do not count. Without the numbers of such users, counts would be too low."""
    for seed in (1, 2):
        seen, truth = measurement_of(most, told=True, seed=seed)
        found, large = estimate(seen), truth > 300.0
        assert abs(np.median(found.count[large] / truth[large]) - 1.0) < 0.1
        assert (np.abs(found.count - truth) <= found.margin(0.95))[large].mean() > 0.9
        untold, _ = measurement_of(most, told=False, seed=seed)
        assert np.median(estimate(untold).count[large] / truth[large]) < {32: 0.6, 64: 0.75, 128: 0.9}[most]


def test_margins_include_users_with_more_items_than_count_who_may_be_hidden_by_noise() -> None:
    """Numbers that may be noise leave counts as they are; clear ones make up for what is left out."""
    bounds = size_bounds(64)

    def found(deviations: float) -> Estimates:
        sizes = np.zeros(len(bounds))
        sizes[2:7], sizes[-2] = 400.0, deviations * 30.0
        seen = evidence(
            [-1] * 200, measured=np.linspace(30.0, 85.0, 200), sigma=3.0, limit=8, sizes=sizes, bounds=bounds,
            most_items=64,
        )  # fmt: skip
        return estimate(seen)

    none, perhaps, clear = found(0.0), found(2.2), found(6.0)
    assert np.allclose(perhaps.count, none.count, rtol=0.02)
    assert (perhaps.margin(0.95) > 1.1 * none.margin(0.95)).all()
    assert (clear.count > 1.1 * none.count).all()
    assert np.array_equal(found(1.0).margin(0.95), none.margin(0.95))


def test_rough_counts_of_users_with_very_many_items_are_said_to_be_rough() -> None:
    assert estimate(measurement_of(128, told=True, seed=1)[0]).reason is None
    reason = estimate(measurement_of(16, told=True, seed=1)[0]).reason
    assert reason is not None
    assert "more than 16 items" in reason


def test_factor_of_the_limit_follows_from_the_sizes() -> None:
    """All users have 16 of 400 items, equally popular: at a limit of 4, weights are half of the users."""
    sizes = NONE.copy()
    sizes[7] = 50_000.0
    truth = np.full(400, 2000.0)
    rng = np.random.default_rng(4)
    noisy = {"measured": truth / 2.0 + rng.normal(0.0, 20.0, 400), "sizes": sizes + rng.normal(0.0, 30.0, 16)}
    found = estimate(evidence([-1] * 400, limit=4, **noisy))
    # Sizes from 13 to 16 are one bucket, so the factor is between 1.8 and 2.
    assert found.count.mean() == pytest.approx(1900.0, rel=0.06)
    assert covered(found, truth) >= 0.9


# Edges


def test_no_items() -> None:
    found = estimate(evidence([]))
    assert found.count.size == found.margin(0.95).size == 0
    assert found.reason is None
    assert estimate(evidence([], measured=None, limit=0)).count.size == 0


@pytest.mark.parametrize("items", [1, 2])
def test_few_items_have_wide_intervals_and_a_reason(items: int) -> None:
    found = estimate(evidence([1, 2][:items], score=np.array([60.0, 46.0])[:items]))
    assert found.count == pytest.approx(100.0, rel=0.1)
    assert (found.margin(0.95) > 30.0).all()
    assert found.reason == "too few items to compare the tastes of users"


def test_without_a_measurement_only_users_with_one_item_are_known() -> None:
    alone = np.array([5.0, 400.0, 80.0])
    seen = evidence([1, 0, -1], measured=None, limit=0, alone=alone, alone_deviation=1.4, sizes_deviation=2.0,
                    score=np.array([40.0, np.nan, np.nan]))  # fmt: skip
    found = estimate(seen)
    assert found.count.tolist() == [45.0, 400.0, 80.0]
    assert np.isnan(found.margin(0.95)).tolist() == [True, False, True]
    assert 1.96 * 1.4 < found.margin(0.95)[1] < 15.0
    assert found.reason == "nothing was measured"
    only = estimate(evidence([0, 0], measured=None, limit=0, alone=alone[:2], alone_deviation=1.4))
    assert only.reason is None


def test_scores_that_are_missing_leave_the_measurement() -> None:
    found = estimate(evidence([1, 2, 3]))
    assert found.count == pytest.approx(100.0, rel=0.01)
    assert found.standard_error == pytest.approx(20.0, rel=0.05)


def test_known_items_may_be_negative_and_found_items_have_a_user() -> None:
    found = estimate(evidence([-1, 1], measured=np.array([-30.0, -500.0]), score=np.array([np.nan, 40.0])))
    assert found.count[0] < 0.0
    assert found.count[1] == 1.0


def test_noise_as_large_as_the_counts_is_a_reason() -> None:
    assert estimate(evidence([-1] * 9, sigma=80.0)).reason == "the noise is as large as the counts"
    assert estimate(evidence([-1] * 9)).reason is None


def test_huge_counts() -> None:
    sizes, counts = np.full(16, 1e12), np.array([1e12, 2e12, 1e10])
    found = estimate(evidence([1, 1, 1], score=counts / 3.0, measured=counts, sizes=sizes))
    assert found.count == pytest.approx(counts, rel=1e-6)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40), st.booleans(), st.booleans())
def test_any_evidence_has_finite_estimates(seed: int, items: int, alone: bool, shared: bool) -> None:
    rng = np.random.default_rng(seed)

    def noisy(size: int) -> Floats:
        return np.asarray(rng.normal(0.0, 1.0, size) * 10.0 ** rng.uniform(-3.0, 9.0))

    found_in = rng.integers(-1, 5, items)
    seen = evidence(
        found_in, score=np.where((found_in > 0) & (rng.random(items) < 0.8), np.abs(noisy(items)), np.nan),
        alone=noisy(items) if alone else None, alone_deviation=1.4 if alone else 0.0, measured=noisy(items),
        sigma=float(10.0 ** rng.uniform(-1.0, 4.0)), shared=9.0 if shared else 0.0, sizes=noisy(16),
        limit=int(rng.choice(BOUNDS)),
    )  # fmt: skip
    found = estimate(seen)
    columns = found.sum_columns(noisy(items), 5.0, 3.0), found.mean_columns(noisy(items), 5.0, -1.0, 7.0)
    for numbers in (found.count, found.margin(0.95), *columns[0], *columns[1]):
        assert np.isfinite(numbers).all()
    assert (found.margin(0.95) > 0.0).all()
    assert 0 <= choose_limit(seen.sizes, BOUNDS, 30.0, seen.sigma, items) <= 256


# Sums and means


def weighted_sums(rng: Generator) -> tuple[Estimates, Floats, Floats, Floats]:
    """All users have 6 of 300 items, 0 to 10 each; the measured sums of value - 5, true sums and true means."""
    items, limit = 300, 3
    users = rng.integers(200, 3000, items).astype(np.float64)
    sizes = NONE.copy()
    sizes[4] = users.sum() / 6.0
    mean = rng.uniform(1.0, 9.0, items)
    weight = math.sqrt(limit / 6.0)
    centred = weight * users * (mean - 5.0) + rng.normal(0.0, 90.0, items)
    seen = evidence(
        [-1] * items, measured=weight * users + rng.normal(0.0, 20.0, items), limit=limit,
        sizes=sizes + rng.normal(0.0, 5.0, 16), sizes_deviation=5.0,
    )  # fmt: skip
    return estimate(seen), centred, users * mean, mean


def test_sums_and_means_are_covered() -> None:
    """Far from failing by chance: each share is above 0.95 in all of 1,000 other draws."""
    found, centred, sums, means = weighted_sums(np.random.default_rng(5))
    total = found.sum_columns(centred, 90.0, 5.0)
    assert np.mean(np.abs(total.value - sums) <= 1.96 * total.standard_error) > 0.85
    mean = found.mean_columns(centred, 90.0, 0.0, 10.0)
    assert np.mean(np.abs(mean.value - means) <= 1.96 * mean.standard_error) > 0.85
    low, high = found.mean_interval(centred, 90.0, 0.0, 10.0, 0.95)
    assert np.mean((low <= means) & (means <= high)) > 0.85
    assert ((low >= 0.0) & (high <= 10.0) & (low <= mean.value) & (mean.value <= high)).all()
    assert np.abs(total.value - sums).sum() < 0.1 * sums.sum()


def test_a_vector_is_a_sum_around_zero() -> None:
    found, centred, _, _ = weighted_sums(np.random.default_rng(6))
    column = found.sum_columns(centred, 90.0)
    assert column.value == pytest.approx(found.factor.value * centred)
    assert (column.standard_error >= found.factor.value * 90.0).all()


def test_means_do_not_depend_on_the_factor() -> None:
    found, centred, _, _ = weighted_sums(np.random.default_rng(7))
    mean = found.mean_columns(centred, 90.0, 0.0, 10.0)
    assert mean.value == pytest.approx(np.clip(5.0 + centred / found.weight.value, 0.0, 10.0))


def test_means_of_items_without_users_stay_within_their_bounds() -> None:
    found = estimate(evidence([-1, -1], measured=np.array([-40.0, 0.0])))
    mean = found.mean_columns(np.array([500.0, -500.0]), 90.0, 0.0, 10.0)
    assert mean.value.tolist() == [10.0, 0.0]
    low, high = found.mean_interval(np.array([500.0, -500.0]), 90.0, 0.0, 10.0, 0.95)
    assert (low >= 0.0).all()
    assert (high <= 10.0).all()
