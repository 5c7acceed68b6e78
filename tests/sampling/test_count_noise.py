"""The law of a released count against sums over the noise, from its definition, and against real releases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

import dphist
import oracles_simulation as oracle
from dphist.certificate.request import request_for_plan
from dphist.model import LaplaceNoise, LatticeNoise, Noise, Plan
from dphist.planning.utility import LaplaceTails, LatticeTails, Tails, count_noise
from dphist.releasing.noise import CountRows, NoiseSession, Subtracted, Total, begin
from dphist.releasing.result import ARROW
from dphist.report.facts import selection_errors, selection_of
from dphist.sampling.rng import SeededRng

PLAN = dphist.plan(epsilon=1, delta=1e-3, max_items_per_user=1)
GAUSSIAN = LatticeNoise(2, Fraction(40), Fraction(0), 21)
SHARED = LatticeNoise(2, Fraction(36), Fraction(9), 21)
LAPLACE = LaplaceNoise(Fraction(3, 2), 7)
ROUNDING = 2e-12


def sums_above(weight: Callable[[int], Any], reach: int, first: int) -> list[float]:
    """Mass, first and second moment of x >= first, over the sum of all weights; every sum is exact."""
    x = range(-reach, reach + 1)
    weights = [weight(step) for step in x]
    whole = math.fsum(weights)
    return [
        math.fsum(w * step**power for step, w in zip(x, weights, strict=True) if step >= first) / whole
        for power in (0, 1, 2)
    ]


def check(tails: Tails, first: float, expected: list[float], slack: float) -> None:
    at = np.array([float(first)])
    assert [float(one[0]) for one in tails.above(at)] == pytest.approx(expected, rel=slack, abs=1e-300)


@pytest.mark.parametrize("variance", [4.0, 5.3, 61.5, 10_000.0])
def test_a_discrete_gaussian_is_summed(variance: float) -> None:
    sigma = math.sqrt(variance)
    for deviations in (-9.0, -3.0, -0.4, 0.0, 0.3, 1.0, 2.5, 6.0, 9.0):
        first = math.ceil(deviations * sigma)
        expected = sums_above(lambda x: math.exp(-x * x / (2 * variance)), math.ceil(15 * sigma), first)
        check(LatticeTails(variance), first, expected, ROUNDING)
        # Between whole steps there is nothing.
        check(LatticeTails(variance), first - 0.5, expected, ROUNDING)


def test_a_wide_discrete_gaussian_agrees_with_its_sum() -> None:
    """On both sides of the variance from which the Euler-Maclaurin formula is used."""
    x = np.arange(-16_000.0, 16_001.0)
    for variance, slack in ((999_999.0, 1e-11), (1_000_001.0, 1e-10)):
        weights = np.exp(-x * x / (2 * variance))
        whole = math.fsum(weights)
        for first in (-7_000, -1, 0, 1, 2_500, 7_000, 11_000):
            beyond = x >= first
            terms = [math.fsum(weights[beyond] * x[beyond] ** power) / whole for power in (0, 1, 2)]
            check(LatticeTails(variance), first, terms, slack)


@pytest.mark.parametrize("scale", [0.4, 7.3, 40.0])
def test_discrete_laplace_noise_is_summed(scale: float) -> None:
    for first in (-30, -2, 0, 1, 2, 17):
        expected = sums_above(lambda x: math.exp(-abs(x) / scale), math.ceil(60 * scale) + 60, first)
        check(LaplaceTails(scale), first, expected, ROUNDING)


def test_normal_noise_is_integrated() -> None:
    law = count_noise(Noise(2.0, 1.5, 9.0))
    for first in (-3.0, 1.75, 9.0):
        expected = [
            float(mpmath.quad(lambda x, p=power: x**p * mpmath.npdf(x, 0, 2.5), [first, first + 9, mpmath.inf]))
            for power in (0, 1, 2)
        ]
        above = law.tails.above(law.first([10.0 - first]))
        found = [float(one[0]) / law.steps**power for power, one in enumerate(above)]
        assert found == pytest.approx(expected, rel=1e-10)


def test_points_represent_all_steps() -> None:
    for variance in (4.0, 90.0, 1e6):
        steps, weights = LatticeTails(variance).points()
        assert steps.size < 140
        assert np.array_equal(steps, np.rint(steps))
        assert float(weights @ steps**2) == pytest.approx(variance, rel=1e-9)
        # Also for a smooth step, such as a probability.
        smooth = special.ndtr((steps - 700.0) / 900.0)
        exact = special.ndtr(-700.0 / math.sqrt(900.0**2 + variance))
        assert float(weights @ smooth) == pytest.approx(exact, rel=1e-9)


@dataclass(frozen=True)
class GivenNoise:
    """Given noise for each row."""

    steps: Any

    def of(self, _: Any, rows: Any, *, compiled: bool | None = None) -> Any:  # noqa: ARG002
        return self.steps[rows].copy()


@pytest.mark.parametrize("noise", [GAUSSIAN, SHARED, LAPLACE], ids=["gaussian", "shared", "laplace"])
def test_the_least_noise_that_releases_a_count_matches_the_mechanism(noise: LatticeNoise | LaplaceNoise) -> None:
    """Every noise from -60 to 60 for every count from 0 to 30; nothing is random."""
    session = begin(replace(PLAN, noise=noise), SeededRng(1))
    drawn = np.arange(-60, 61)
    shared = getattr(session, "shared", 0)
    for count in range(31):
        out = session.release(np.full(drawn.size, count), draws=[GivenNoise(drawn)])
        passes = drawn + shared >= count_noise(noise).first(count) if count else np.zeros(drawn.size, dtype=bool)
        assert np.array_equal(out.index, np.flatnonzero(passes))
        assert out.values.tolist() == ((drawn + shared)[passes] / noise.lattice + count).tolist()


@pytest.mark.parametrize("rule", ["none", "opposite", "independent"])
def test_the_published_error_of_a_top_k_step_is_enumerated(rule: Any) -> None:
    noise = LatticeNoise(2, Fraction(24), Fraction(6), 15, rule)
    own, shared = oracle.gaussian(24.0), oracle.gaussian(6.0)
    z, w, o = (law.steps.reshape(shape) for law, shape in
               ((own, (-1, 1, 1)), (shared, (1, -1, 1)), (shared, (1, 1, -1))))  # fmt: skip
    weight = own.chance[:, None, None] * shared.chance[None, :, None] * shared.chance[None, None, :]
    error = {"none": z + w + 0 * o, "opposite": z + 0 * w + o, "independent": z + w + o}[rule] / 2
    for above in (1, 6, 9, 14, 40):
        share = np.where(2 * above + z + w > 2 + 15, weight, 0.0)
        chance = share.sum()
        mean = (share * error).sum() / chance
        variance = (share * (error - mean) ** 2).sum() / chance
        law = count_noise(noise).released([above])
        assert [float(moment[0]) for moment in law] == pytest.approx([chance, mean, variance], rel=1e-9, abs=1e-12)


def test_the_count_with_a_chance_is_the_least() -> None:
    for noise in (GAUSSIAN, SHARED, LAPLACE, Noise(3.0, 0.0, 20.5), Noise(2e8, 1e8, 9e9)):
        law = count_noise(noise)
        for chance in (0.01, 0.5, 0.99):
            count = law.passing_count(chance)
            assert law.probability(count) >= chance > law.probability(count - 1)
    assert count_noise(LaplaceNoise(Fraction(1, 10), 0)).passing_count(1e-9) == 1


# The selection shown in a report, where a lower threshold and a top-k step meet.

LOWER, TOP, RUNS = 200, 20, 1_000
# By Hoeffding, a mean of RUNS independent shares is off by more with a probability below 1e-10.
ALLOWED = math.sqrt(math.log(2e10) / (2 * RUNS))


@pytest.fixture(scope="module")
def top_plan() -> Plan:
    return dphist.plan(epsilon=1, delta=1e-6, top=TOP)


def published(plan: Plan, cut: Subtracted, counts: list[int]) -> list[Any]:
    """Values that real sessions, with seeds, publish for each of these counts."""
    found: list[list[float]] = [[] for _ in counts]
    for seed in range(RUNS):
        out = begin(plan, SeededRng(seed), cut).release(np.array(counts))
        for place, value in zip(out.index.tolist(), out.values.tolist(), strict=True):
            found[place].append(value)
    return [np.array(values) for values in found]


@pytest.mark.parametrize("case", ["top-k", "top-k, differences", "few items", "no top-k"])
def test_the_selection_matches_real_releases(top_plan: Plan, case: str) -> None:
    """6 comparisons with a false alarm below 1e-10 each, by Hoeffding's bound or by 6.5 standard errors.

    It fails if a top-k step is shown on the scale that begins at the lower threshold.
    """
    request: dict[str, Any] = {"lower-threshold": LOWER, "top": TOP}
    plan, floor, more = top_plan, 900, 0
    if case == "top-k, differences":
        noise = top_plan.noise
        assert isinstance(noise, LatticeNoise)
        plan, request["offset"] = replace(top_plan, noise=replace(noise, offset="none")), "none"
        more = floor
    elif case == "few items":
        floor = 0  # fewer items than the rank reach the lower threshold
    elif case == "no top-k":
        plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=8)
        request, floor = {"lower-threshold": LOWER}, 0
    selection = selection_of(plan, request_for_plan({"epsilon": 1, "delta": 1e-6, **request}))
    assert selection is not None
    subtracted = 0 if case == "no top-k" else max(floor, LOWER - 1)
    counts, probability, bias, deviation = zip(*selection.points, strict=True)
    places = [counts.index(selection.even), int(np.searchsorted(counts, selection.likely))]
    truth = [counts[place] + subtracted for place in places]
    cut = Subtracted(floor, LOWER, difference=case == "top-k, differences")
    for place, count, seen in zip(places, truth, published(plan, cut, truth), strict=True):
        assert seen.size / RUNS == pytest.approx(probability[place], abs=ALLOWED)
        within = 6.5 * deviation[place] / math.sqrt(seen.size)
        assert seen.mean() - (count - more) == pytest.approx(bias[place], abs=within)
        assert seen.std() == pytest.approx(deviation[place], abs=within)
    if case != "no top-k":
        # On the scale of the lower threshold the same count was thought never to be released.
        assert selection_errors(plan, np.array([selection.likely]), LOWER)[0][0] + ALLOWED < 0.9
        assert f"minus that of the item ranked {TOP + 1}, or minus {LOWER - 1} if that is more" in selection.axis


def test_a_whole_release_matches_its_selection(top_plan: Plan) -> None:
    """One release of 20 items that are released with probability above 1 - 1e-9."""
    selection = selection_of(
        top_plan, request_for_plan({"epsilon": 1, "delta": 1e-6, "lower-threshold": LOWER, "top": TOP})
    )
    assert selection is not None
    law = count_noise(top_plan.noise)
    sure = law.passing_count(1 - 1e-11)
    assert selection.likely <= sure
    counts = [300 + sure] * TOP + [300] + [250, LOWER, LOWER - 1]
    table = pa.table({
        "user": np.concatenate([np.arange(count) for count in counts]),
        "item": np.repeat(np.arange(len(counts)), counts),
    })  # fmt: skip
    release = dphist.release(
        table,
        user="user",
        item="item",
        epsilon=1,
        delta=1e-6,
        top=TOP,
        lower_threshold=LOWER,
        seed=3,
        types="fixed",
    )
    assert release.plan == replace(top_plan, lower_threshold=LOWER)
    assert sorted(item.as_py() for item in release.items) == list(range(TOP))
    # With L - 1 as a second shift, none of them would be.
    assert selection_errors(top_plan, np.array([sure]), LOWER)[0][0] < 1e-9


def test_no_repr_of_the_noise_shows_a_secret() -> None:
    """Tracebacks, logs and notebooks show reprs: of draws and true counts, nothing may be in one."""
    secret, digits = 987654321, "987654321"
    numbers = np.array([secret])
    session = NoiseSession(replace(PLAN, noise=SHARED), SeededRng(1), Subtracted(secret, 5), secret, -secret)
    piece = CountRows(ARROW, (pa.array(numbers),), numbers, (numbers,), secret)
    for holder in (session, session.cut, piece, Total(secret, secret, secret)):
        assert digits not in repr(holder), f"the repr of {type(holder).__name__} shows a draw or a true count"


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 6), st.integers(1, 4),
)  # fmt: skip
def test_a_top_k_step_leaves_k_counts_and_moves_them_by_one(
    others: list[tuple[int, bool]], k: int, lower: int
) -> None:
    """What its certificate relies on: one user moves all counts in one direction, by one at most."""

    def step(counts: np.ndarray[Any, Any]) -> Any:
        counts = np.where(counts < lower, 0, counts)  # the engines remove them
        rank = np.sort(counts)[::-1]
        left = Subtracted(int(rank[k]) if rank.size > k else 0, lower).apply(counts)
        assert np.count_nonzero(left) <= k, "more than k counts get noise"
        return left

    without = np.array([count for count, _ in others])
    moves = step(without + np.array([has for _, has in others])) - step(without)
    assert set(moves) <= {0, 1} or set(moves) <= {0, -1}, "one user moves counts by more than one, or both ways"


class NoNoise:
    """Draws of a count's own noise that are all 0."""

    def of(self, sampler: Any, rows: Any, *, compiled: bool | None = None) -> Any:
        del sampler, compiled
        return np.zeros(rows.size, dtype=np.int64)


@pytest.mark.parametrize("shared", [-3, -2, 0, 1, 4])
def test_the_shared_noise_is_compared_with_the_threshold_and_released(shared: int) -> None:
    """What is released must be what was compared: the certificate is of noisy counts, cut at the threshold."""
    session = NoiseSession(replace(PLAN, noise=SHARED), SeededRng(1), Subtracted(), shared)
    counts = np.arange(1, 25)
    found = session.release(counts, draws=[NoNoise()])
    steps = counts * SHARED.lattice + shared
    passes = steps > SHARED.lattice + SHARED.tau_steps
    assert found.index.tolist() == np.flatnonzero(passes).tolist()
    assert found.values.tolist() == (steps[passes] / SHARED.lattice).tolist()
