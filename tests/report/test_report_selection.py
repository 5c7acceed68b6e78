"""The probability of release and the error of a released count, as a report tells them, by independent sums."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

import dphist
from dphist.certificate.request import HistogramRequest
from dphist.model import LatticeNoise, Plan
from dphist.report.facts import selection_errors, selection_of


def exact_law(noise: LatticeNoise) -> dict[int, Any]:
    """The law of the sum of both draws, by convolution at many digits."""

    def law(variance: Fraction) -> dict[int, Any]:
        if variance == 0:
            return {0: mpmath.mpf(1)}
        reach = int(9 * math.sqrt(variance)) + 2
        weights = {x: mpmath.exp(-mpmath.mpf(x * x) / (2 * mpmath.mpf(variance.numerator) / variance.denominator))
                   for x in range(-reach, reach + 1)}  # fmt: skip
        whole = mpmath.fsum(weights.values())
        return {x: weight / whole for x, weight in weights.items()}

    own, shared = law(noise.variance), law(noise.variance_shared)
    both: dict[int, Any] = {}
    for a, p in shared.items():
        for b, q in own.items():
            both[a + b] = both.get(a + b, 0) + p * q
    return both


@pytest.mark.parametrize(
    "noise",
    [
        LatticeNoise(2, Fraction(4), Fraction(0), 9),
        LatticeNoise(2, Fraction(40), Fraction(0), 31),
        LatticeNoise(2, Fraction(36), Fraction(4), 30),
    ],
    ids=["rough", "plain", "shared"],
)
def test_probability_and_error_are_those_of_the_discrete_law(noise: LatticeNoise) -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=10)
    plan = Plan(plan.budget, plan.contract, noise, plan.analysis, plan.proof)
    counts = np.array([1, 5, 9, 14, 16, 20, 40])
    law = exact_law(noise)
    found = selection_errors(plan, counts, lower=3)
    for count, *numbers in zip(counts, *found, strict=True):
        passed = {x: p for x, p in law.items() if (int(count) - 2) * 2 + x > 2 + noise.tau_steps}
        whole = mpmath.fsum(passed.values())
        assert numbers[0] == pytest.approx(float(whole) if count >= 3 else 0.0, rel=1e-9, abs=1e-15)
        if whole > 1e-8:
            mean = mpmath.fsum(x * p for x, p in passed.items()) / whole / 2
            second = mpmath.fsum(x * x * p for x, p in passed.items()) / whole / 4
            assert numbers[1] == pytest.approx(float(mean), rel=1e-8, abs=1e-9)
            assert numbers[2] == pytest.approx(float(mpmath.sqrt(second - mean**2)), rel=1e-6)


def test_laplace_noise_in_closed_form() -> None:
    plan = dphist.plan(epsilon=0.5, delta=1e-4, max_items_per_user=1)
    assert plan.mechanism == "laplace"
    q, threshold = math.exp(-0.5), plan.threshold
    counts = np.array([1, int(threshold) - 3, int(threshold), int(threshold) + 1, int(threshold) + 30])
    for count, *numbers in zip(counts, *selection_errors(plan, counts), strict=True):
        law = {x: (1 - q) / (1 + q) * q ** abs(x) for x in range(-300, 301) if count + x > threshold}
        whole = math.fsum(law.values())
        mean = math.fsum(x * p for x, p in law.items()) / whole
        spread = math.sqrt(math.fsum((x - mean) ** 2 * p for x, p in law.items()) / whole)
        assert numbers == pytest.approx([whole, mean, spread], rel=1e-9)


@pytest.mark.parametrize("rule", ["opposite", "independent"])
def test_errors_of_top_k_by_simulation(rule: Any) -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, top=20, offset=rule)
    generator, size = np.random.default_rng(5), 400_000
    own, shared, offset = (generator.normal(0.0, s, size) for s in (plan.sigma, *[plan.sigma_shared] * 2))
    for count in (int(plan.threshold - plan.sigma), int(plan.threshold), int(plan.threshold + 2 * plan.sigma)):
        passed = count + own + shared > plan.threshold
        error = (own + offset if rule == "opposite" else own + shared + offset)[passed]
        probability, bias, deviation = (float(n[0]) for n in selection_errors(plan, np.array([count])))
        spread = 5.0 * plan.total_noise / math.sqrt(passed.sum())
        # The noise that is drawn is discrete: up to half a step of the lattice is its own.
        step = 0.5 / plan.noise.lattice
        assert probability == pytest.approx(passed.mean(), abs=0.004 + step / plan.sigma)
        assert bias == pytest.approx(error.mean(), abs=spread + step)
        assert deviation == pytest.approx(error.std(), abs=spread + step)


def test_marks_of_the_selection() -> None:
    for options in ({"max_items_per_user": 3}, {"max_items_per_user": 1}, {"max_nonzero": 100}, {"top": 30}):
        plan = dphist.plan(epsilon=1.0, delta=1e-6, **options)  # type: ignore[arg-type]
        found = selection_of(plan, HistogramRequest())
        assert found is not None
        assert found.unlikely is not None
        at = selection_errors(plan, np.array([found.unlikely, found.unlikely + 1, found.even - 1, found.even,
                                           found.likely - 1, found.likely]))[0]  # fmt: skip
        assert at[0] < 0.01 <= at[1] <= at[2] < 0.5 <= at[3] <= at[4] < 0.99 <= at[5]
