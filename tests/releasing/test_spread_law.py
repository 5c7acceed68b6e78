"""One release with spread, of many items with known users: noise, threshold and sums follow the plan's law.

Noise comes from the secure tap. A statistic is off by 6.5 standard errors with probability 8e-11. There are fewer
than ten, so false alarms are below 1e-9. The tests assert that noise wrong by 10 % or unweighted users would fail.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import special, stats

import dphist
from dphist.counting.task import Value
from dphist.privacy.types import LatticeNoise
from sum_cases import own_steps

ALLOWED = 6.5
LIGHT, HEAVY = 2.5, 9.99
"""The amounts of users with one item, and with eight."""
# Items; users of each with one item; users of each with eight items, whose weight is a half.
HIGH = (10_000, 5, 14)
EDGES = [(2_000, 1, 5), (2_000, 3, 1), (2_000, 0, 5), (2_000, 2, 5)]
REQUEST: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 4.0, "delta": 0.01, "max_items_per_user": 2}


def make_events(groups: list[tuple[int, int, int]]) -> tuple[Any, list[range]]:
    """Events of items 0, 1, ... in blocks of eight, and the items of each group."""
    users, items, amounts, places = [], [], [], []
    next_item = next_user = 0
    for size, light, heavy in groups:
        own = np.arange(next_item, next_item + size)
        users.append(next_user + np.arange(size * light))
        items.append(np.repeat(own, light))
        next_user += size * light
        users.append(next_user + np.repeat(np.arange(size // 8 * heavy), 8))
        items.append(np.repeat(own.reshape(-1, 8), heavy, axis=0).ravel())
        next_user += size // 8 * heavy
        amounts += [np.full(size * light, LIGHT), np.full(size * heavy, HEAVY)]
        places.append(range(next_item, next_item + size))
        next_item += size
    table = pa.table(
        {"user": np.concatenate(users), "item": np.concatenate(items), "amount": np.concatenate(amounts)}
    )
    return table.take(pa.array(np.random.default_rng(1).permutation(table.num_rows))), places


def mean_fits(steps: Any, variance: float) -> bool:
    return bool(abs(steps.mean()) < ALLOWED * math.sqrt(variance / steps.size))


def variance_fits(steps: Any, variance: float) -> bool:
    """For the mean square around zero, with the fourth moment of normal noise."""
    return bool(abs((steps**2).mean() / variance - 1) < ALLOWED * math.sqrt(2 / steps.size))


def shape_fits(steps: Any, deviation: float, law: Any) -> bool:
    """A chi-square test with twenty equally likely parts; false alarms 1e-10."""
    ends = law.ppf(np.arange(1, 20) / 20) * deviation
    # Steps are whole, so shift them by half a step, away from the edges.
    found = np.bincount(np.searchsorted(np.floor(ends) + 0.5, steps), minlength=20)
    edges = np.concatenate([[-np.inf], (np.floor(ends) + 0.5) / deviation, [np.inf]])
    expected = np.diff(law.cdf(edges)) * steps.size
    return bool(((found - expected) ** 2 / expected).sum() < stats.chi2.isf(1e-10, 19))


def check_law(steps: Any, variance: Fraction) -> None:
    """Whole steps of noise follow the discrete Gaussian, which is normal here up to 1e-5."""
    assert (steps == np.rint(steps)).all()
    assert variance > 10**5
    spread = float(variance)
    assert mean_fits(steps, spread)
    assert variance_fits(steps, spread)
    assert shape_fits(steps, math.sqrt(spread), stats.norm)
    for wrong in (0.9, 1.1):
        assert not variance_fits(steps, spread * wrong**2), "noise that is off by 10 % would not be noticed"
    # Laplace noise of the same variance.
    assert not shape_fits(steps, math.sqrt(spread), stats.laplace(scale=math.sqrt(0.5)))


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("sums", [[], ["amount:0:10"]], ids=["counts", "sums"])
def test_noise_threshold_and_sums_follow_the_plan(sums: list[str]) -> None:
    events, (high, *edges) = make_events([HIGH, *EDGES])
    released = dphist.release(events, **REQUEST, excess="spread", sum=sums)
    noise = released.plan.noise
    assert isinstance(noise, LatticeNoise)
    (unit, half) = (next(level.weight for level in released.plan.levels if level.items >= n) for n in (1, 8))
    assert (unit, half) == (noise.lattice, noise.lattice // 2)
    items = np.array(released.items, dtype=np.int64)
    order = np.argsort(items)
    items, steps = items[order], released.counts[order] * noise.lattice

    # Items that always pass show all noise.
    assert (items[: len(high)] == np.asarray(high)).all()
    own = steps[: len(high)]
    _, light, heavy = HIGH
    check_law(own - (light * unit + heavy * half), noise.variance)
    assert not mean_fits(own - (light + heavy) * unit, float(noise.variance)), "users are weighted"

    # Items near the threshold: how many pass.
    for (size, light, heavy), group in zip(EDGES, edges, strict=True):
        passed = int(((items >= group.start) & (items < group.stop)).sum())
        for count, fits in ((light * unit + heavy * half, True), ((light + heavy) * unit, False)):
            least = noise.limit + noise.lattice + 0.5 - count
            chance = special.ndtr(-least / math.sqrt(noise.variance))
            law = stats.binom(size, chance)
            near = min(law.cdf(passed), law.sf(passed - 1)) > 4e-11
            if fits:
                assert near
            elif heavy > 1:
                assert not near, "users are weighted"

    for one, around in zip(released.plan.sums, released.sums, strict=True):
        value = Value("amount", one.low, one.high, one.reach)
        assert one.reach == value.half_steps == 2**20
        parts = [
            (2 * (own_steps([amount], value) - one.reach) * weight + unit) // (2 * unit)
            for amount, weight in ((LIGHT, unit), (HEAVY, half))
        ]
        _, light, heavy = HIGH
        moved = np.rint(around[order][: len(high)] / float(one.step))
        check_law(moved - (light * parts[0] + heavy * parts[1]), one.variance)
        unweighted = light * parts[0] + heavy * 2 * parts[1]
        assert not mean_fits(moved - unweighted, float(one.variance)), "sums are weighted"
        # The published sum is the centred sum plus the middle of the range for each noisy user.
        total = released.to_arrow().column("amount_sum").to_numpy()
        assert total == pytest.approx(released.sums[0] + 5.0 * released.counts, rel=1e-12)


@pytest.mark.usefixtures("unrounded")
def test_an_estimate_is_the_count_times_its_factor_in_the_certificate() -> None:
    events, _ = make_events([(80, 400, 300)])
    released = dphist.release(
        events, user="user", item="item", epsilon=1.0, delta=1e-6, excess="spread", sum=["amount:0:10"],
        standard_error=True, interval=0.9,
    )  # fmt: skip
    assert len(released) == 80
    assert released.chosen is not None
    assert released.plan.contract.spread is not None
    stated = released.document()["choice"]["correction"]
    table = released.to_arrow()
    columns = {name: table.column(name).to_numpy() for name in table.column_names[1:]}
    count, estimate = columns["count"], columns["estimate"]
    factor, error = (np.interp(count, stated["counts"], stated[name]) for name in ("factors", "standard_errors"))
    assert (factor >= 1.0).all()
    assert ((error > 0.0) & (error < 0.5)).all()
    assert (estimate == count * factor).all()
    assert (columns["amount_sum_estimate"] == columns["amount_sum"] * factor).all()
    noise = released.plan.total_noise
    assert columns["count_standard_error"] == pytest.approx(noise, rel=1e-12)
    expected = np.sqrt((noise * factor) ** 2 + (count * error) ** 2)
    assert columns["estimate_standard_error"] == pytest.approx(expected, rel=1e-12)
    z = float(stats.norm.ppf(0.95))
    assert columns["estimate_high"] - estimate == pytest.approx(z * expected, rel=1e-3)
    assert estimate - columns["estimate_low"] == pytest.approx(z * expected, rel=1e-3)
