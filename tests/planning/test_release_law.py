"""End to end: over many runs, released counts have the distribution of the plan.

Each run reads the events again, with secure randomness. The probability of a false alarm is below 1e-9 in total:
each of fewer than 20 statistics may be off by 6.7 of its standard errors, or up to a quantile of its distribution.
Power: noise or a threshold that is wrong by the stated amount is twice as far away, and asserted to be refused.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import dphist
from dphist.model import LaplaceNoise, LatticeNoise
from dphist.releasing.noise import begin
from dphist.sampling.rng import SeededRng
from dphist.sampling.sampler import ExactSampler
from dphist.sampling.table import LaplaceLaw
from release_data import events

# Runs are slow and items are cheap: 20 runs of 200 items see a variance that is 30 % off.
HIGH, ITEMS = 400, 200
ALLOWED = 6.7


def table(plan: dphist.Plan) -> Any:
    """Items that always pass, and as many whose count is at the threshold."""
    at_threshold = round(plan.threshold)
    return at_threshold, events(
        {**{f"high {i}": HIGH for i in range(ITEMS)}, **{f"edge {i}": at_threshold for i in range(ITEMS)}}
    )


def runs_of(options: dict[str, Any], runs: int) -> tuple[dphist.Plan, int, Any, Any]:
    """The plan, the count at the threshold, the high counts by run and item, the share of edges that passed."""
    request: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-3, **options}
    plan = dphist.release(events({"a": 1}), **request).plan
    at_threshold, data = table(plan)
    high, passed = np.empty((runs, ITEMS)), np.empty(runs)
    for run in range(runs):
        out = dphist.release(data, **request)
        found = dict(zip(out.columns[0].to_pylist(), out.counts.tolist(), strict=True))
        high[run] = [found[f"high {i}"] for i in range(ITEMS)]
        passed[run] = sum(str(name).startswith("edge") for name in found) / ITEMS
    return plan, at_threshold, high, passed


def check_law(plan: dphist.Plan, at_threshold: int, high: Any, passed: Any) -> None:
    runs = high.shape[0]
    own, shared = plan.sigma**2, plan.total_noise**2 - plan.sigma**2
    # Within a run the shared draw cancels, which leaves the noise of each count.
    within = high.var(axis=1, ddof=1).mean()
    error = own * math.sqrt(2 / (runs * (ITEMS - 1)))
    assert abs(within - own) < ALLOWED * error
    assert abs(within - 1.3 * own) > ALLOWED * error, "a variance wrong by 30 % would not be noticed"
    means = high.mean(axis=1)
    spread = shared + own / ITEMS
    assert abs(means.mean() - HIGH) < ALLOWED * math.sqrt(spread / runs)
    ratio = means.var(ddof=1) / spread * (runs - 1)
    assert stats.chi2.ppf(1e-11, runs - 1) < ratio < stats.chi2.isf(1e-11, runs - 1)
    check_passing(plan, at_threshold, passed)


def check_passing(plan: dphist.Plan, at_threshold: int, passed: Any) -> None:
    """The share of items at the threshold that pass, given the shared draw, averaged over it."""
    nodes, weights = special.roots_hermitenorm(60)
    weights = weights / weights.sum()
    gap = plan.threshold - at_threshold
    given = special.ndtr(-(gap - plan.sigma_shared * nodes) / plan.sigma)
    mean = float(weights @ given)
    variance = float(weights @ given**2) - mean**2 + float(weights @ (given * (1 - given))) / ITEMS
    error = math.sqrt(variance / len(passed))
    # The discrete distribution and its normal approximation differ by half a step.
    slack = 0.4 / (plan.sigma * plan.noise.lattice) if hasattr(plan.noise, "lattice") else 0.0
    assert abs(passed.mean() - mean) < ALLOWED * error + slack
    off = float(weights @ special.ndtr(-(gap + 1.5 * plan.sigma - plan.sigma_shared * nodes) / plan.sigma))
    assert abs(passed.mean() - off) > ALLOWED * error + slack, "a threshold off by 1.5 sigma would not be noticed"


CASES: list[dict[str, Any]] = [
    {"max_items_per_user": 1, "mechanism": "gaussian"},
    {"max_nonzero": 2 * ITEMS},
    {"max_nonzero": 2 * ITEMS, "max_items_per_user": 40},
    {"top": 2 * ITEMS},
    {"top": 2 * ITEMS, "offset": "independent"},
]


@pytest.mark.usefixtures("plans_once")
@pytest.mark.parametrize("options", [*(pytest.param(CASES[n], marks=pytest.mark.slow) for n in (0, 2)), CASES[3]])
def test_law_of_a_release(options: dict[str, Any]) -> None:
    check_law(*runs_of(options, 20))


@pytest.mark.usefixtures("plans_once")
@pytest.mark.slow
@pytest.mark.parametrize("options", CASES)
def test_law_of_a_release_over_many_runs(options: dict[str, Any]) -> None:
    plan, at_threshold, high, passed = runs_of(options, 600)
    check_law(plan, at_threshold, high, passed)
    # The covariance of two counts is that of the shared noise.
    shared = plan.total_noise**2 - plan.sigma**2
    pairs = np.cov(high[:, 0], high[:, 1])[0, 1]
    error = math.sqrt((plan.total_noise**4 + shared**2) / 600)
    assert abs(pairs - shared) < ALLOWED * error


def asked_variances(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The laws of the tables from which draws are taken, in order; every draw of a release goes through one."""
    asked, sample = list[Any](), ExactSampler._sample

    def recorded(self: ExactSampler, n: int, *more: Any) -> Any:
        if n:
            asked.append(self.table.law)
        return sample(self, n, *more)

    monkeypatch.setattr(ExactSampler, "_sample", recorded)
    return asked


@pytest.mark.parametrize(
    "bound",
    [
        {"max_items_per_user": 3}, {"max_items_per_user": 3, "mechanism": "laplace"},
        {"max_nonzero": 40, "gamma": 6}, {"top": 3},
        {"top": 3, "offset": "independent"}, {"public_items": 2},
        {"max_items_per_user": 3, "sums": [(0, 1), (-2, 5)]}, {"top": 3, "sums": [(0, 1), (-2, 2, 3)]},
    ],
    ids=str,
)  # fmt: skip
def test_noise_is_drawn_with_exactly_the_variance_of_the_plan(
    monkeypatch: pytest.MonkeyPatch, bound: dict[str, Any]
) -> None:
    """Not statistics: which law the sampler is asked for. One per cent less would be a forged certificate."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, **bound)
    noise, asked = plan.noise, asked_variances(monkeypatch)
    counts = np.array([10**7, 10**7])  # users: far above the threshold
    assert begin(plan, SeededRng(1)).release(counts, [counts] * len(plan.summed)).index.size == 2
    if isinstance(noise, LaplaceNoise):
        assert asked == [LaplaceLaw(noise.scale)], "noise of another scale than the certified one was drawn"
        return
    assert isinstance(noise, LatticeNoise)
    shared = [noise.variance_shared] * (2 if plan.releases_offset else 1) if noise.variance_shared else []
    expected = [*shared, noise.variance, *(one.variance for one in plan.sums for _ in range(one.columns))]
    found = [law.variance for law in asked]
    assert found == expected, "noise of another variance than the certified one was drawn"


class NoNoise:
    """Draws that are all 0, to see what is noised."""

    def of(self, sampler: ExactSampler, rows: Any, *, compiled: bool | None = None) -> Any:
        del sampler, compiled
        return np.zeros(rows.size, dtype=np.int64)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-2, 5), (10, 10.5)])
def test_sums_are_centred_so_that_both_ends_of_the_range_move_them_equally(low: float, high: float) -> None:
    """A user at either end moves the sum by half the range. One step off, one end would move it by more."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=2, sums=[(low, high)])
    noise, session, index = plan.sums[0], begin(plan, SeededRng(1)), np.zeros(1, dtype=np.int64)
    half = Fraction(high) / 2 - Fraction(low) / 2
    for users in (1, 7):
        for steps, value in ((0, -half), (2 * noise.reach, half), (noise.reach, 0)):
            counts, sums = np.array([users]), [np.array([users * steps])]
            (found,) = session.noisy_sums(counts, sums, index, [NoNoise()])
            assert found[0] == float(users * value), "a user moves the sum by more than its certified reach"
