"""Every mechanism passes the conformance suite, and every fault fails its check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dphist import InvalidParameter, plan
from dphist.audit import PlannedMechanism
from dphist.model import Contract, NeighbourCase, Proof
from dphist.releasing.noise import IntArray, Released
from dphist.sampling.rng import Rng, SeededRng
from dphist.sampling.sampler import DiscreteGaussian, DiscreteLaplace, ExactSampler
from idealised import IdealisedMechanism
from mechanism_conformance import (
    STUDENT_BOUND,
    CheckResult,
    ConformanceReport,
    check_mechanism,
    kolmogorov_bound,
    kolmogorov_distance,
    student,
)

RUNS = 10_000
OWN = np.random.default_rng()
CERTIFICATE = Proof(1.0, 0.01, "exact", NeighbourCase(10, 0, 6, "either"), 0.01)
CONTRACT = Contract(10, 10)
VARIANCE, COVARIANCE, THRESHOLD = 125.0, 25.0, 30.0
Edit = Callable[[Released, IntArray], Released]


@dataclass
class Toy:
    """Noise of variance 100, shared noise of variance 25, threshold 30; correct unless it has a `fault`."""

    name: str = "toy"
    contract: Contract = CONTRACT
    proof: Proof = CERTIFICATE
    noise: ExactSampler = field(default_factory=lambda: DiscreteGaussian(100))
    shared: ExactSampler = field(default_factory=lambda: DiscreteGaussian(25))
    threshold: float = THRESHOLD
    fault: str = ""
    edit: Edit | None = None
    kept: int | None = None
    stock: dict[int, tuple[Rng, list[IntArray]]] = field(default_factory=dict)

    def take(self, sampler: ExactSampler, n: int, rng: Rng) -> IntArray:
        """Draws from a stock, made in bulk for each rng: these tests begin a million sessions."""
        owner, stock = self.stock.get(id(sampler), (None, [np.zeros(0, dtype=np.int64)]))
        if owner is not rng or stock[0].size < n:
            stock = [sampler.draw(1 << 16, rng)]
            self.stock[id(sampler)] = (rng, stock)
        taken, stock[0] = stock[0][:n], stock[0][n:]
        return taken.copy()

    def begin(self, rng: Rng) -> ToySession:
        if self.kept is None or self.fault != "one draw for all sessions":
            self.kept = 6 if self.fault == "one draw for all sessions" else int(self.take(self.shared, 1, rng)[0])
        return ToySession(self, self.kept, rng)


@dataclass
class ToySession:
    toy: Toy
    shared: int
    rng: Rng

    def release(self, counts: IntArray) -> Released:
        toy = self.toy
        if toy.fault == "a draw for each batch":
            self.shared = int(toy.take(toy.shared, 1, self.rng)[0])
        present = np.arange(counts.size) if toy.fault == "zeros too" else np.flatnonzero(counts)
        noise = toy.take(toy.noise, present.size, self.rng) + self.shared
        if toy.fault == "the first goes without":
            noise[:1] = 0
        if toy.fault == "biased":
            noise += 2
        if toy.fault == "randomness of its own":
            noise += OWN.integers(-1, 2, size=noise.size)
        values = counts[present] + noise
        passed = values >= toy.threshold if toy.fault == "not strict" else values > toy.threshold
        released = Released(present[passed], values[passed].astype(np.float64))
        return released if toy.edit is None else toy.edit(released, counts)


def check(
    toy: Toy,
    *,
    variance: float | None = VARIANCE,
    covariance: float | None = COVARIANCE,
    threshold: float | None = THRESHOLD,
    known_domain: bool = False,
    only: str | None = None,
) -> ConformanceReport:
    return check_mechanism(
        toy,
        rng=SeededRng(1),
        runs=RUNS,
        variance=variance,
        covariance=covariance,
        threshold=threshold,
        known_domain=known_domain,
        only=only,
    )


@pytest.mark.parametrize(
    ("options", "only"),
    [
        ({"max_items_per_user": 5, "mechanism": "gaussian"}, "shape"),
        ({"max_items_per_user": 5, "mechanism": "gaussian"}, "cut"),
        *(
            pytest.param(options, None, marks=pytest.mark.slow)
            for options in (
                {"max_items_per_user": 5, "mechanism": "gaussian"},
                {"max_nonzero": 10, "mechanism": "gaussian"},
                {"max_nonzero": 1, "mechanism": "gaussian"},
                {"max_items_per_user": 1, "mechanism": "laplace"},
                {"public_items": 10**6},
                {"max_nonzero": 10, "noise": "continuous"},
            )
        ),
    ],
    ids=str,
)
def test_planned_mechanisms_conform(options: dict[str, Any], only: str | None) -> None:
    """False alarm below 1e-9 for each. For the moments of planned noise, see also `test_mechanisms.py`."""
    made = plan(epsilon=1.0, delta=1e-5, **options)
    public = "public_items" in options
    report = check_mechanism(
        IdealisedMechanism(made) if "noise" in options else PlannedMechanism(made),
        rng=SeededRng(2),
        runs=RUNS,
        variance=made.total_noise**2,
        covariance=made.sigma_shared**2,
        threshold=None if public else made.threshold,
        known_domain=public,
        only=only,
    )
    assert report.passed, str(report)
    assert "conforms" in str(report)


def test_toy_conforms() -> None:
    report = check(Toy())
    assert report.passed, str(report)


@pytest.mark.slow
def test_laplace_noise_conforms() -> None:
    """The suite estimates fourth moments, so noise need not be normal. Variance 1/(2 sinh(1/(2 scale))^2)."""
    scale = 7.0
    variance = 1 / (2 * np.sinh(1 / (2 * scale)) ** 2)
    report = check(Toy(noise=DiscreteLaplace(7)), variance=float(variance) + 25.0)
    assert report.passed, str(report)


def test_known_domain_conforms() -> None:
    """Everything is released, including zeros."""
    toy = Toy(threshold=-np.inf, fault="zeros too")
    assert check(toy, threshold=None, known_domain=True, only="shape").passed
    assert check(toy, threshold=None, only="shape").failures == ("zero counts released",)
    assert "counts withheld on a known domain" in check(Toy(), known_domain=True, only="shape").failures


COVARIANCES = {"covariance within a batch", "covariance across batches"}
FORM = "releases out of order, out of range or not finite"


@pytest.mark.parametrize(
    ("toy", "failing", "group"),
    [
        # A scale wrong by 10 %, of either noise, and by 5 %, of the larger one.
        *(
            pytest.param(
                Toy(noise=DiscreteGaussian(v)), {"variance of a count"}, "moments", marks=pytest.mark.slow
            )
            for v in (81, 121)
        ),
        (Toy(noise=DiscreteGaussian(Fraction("90.25"))), {"variance of a count"}, "moments"),
        *(
            pytest.param(toy, COVARIANCES, "moments", marks=pytest.mark.slow)
            for toy in (
                Toy(shared=DiscreteGaussian(36)),
                Toy(noise=DiscreteGaussian(125), shared=DiscreteGaussian(Fraction(1, 16))),
            )
        ),
        pytest.param(Toy(fault="biased"), {"mean of the noise"}, "moments", marks=pytest.mark.slow),
        (
            Toy(fault="a draw for each batch"),
            {"one shared draw for all batches", "covariance across batches"},
            "moments",
        ),
        pytest.param(
            Toy(fault="one draw for all sessions"),
            {"a fresh draw for each session", "mean of the noise"},
            "moments",
            marks=pytest.mark.slow,
        ),
        (Toy(fault="zeros too"), {"zero counts released"}, "shape"),
        (Toy(fault="not strict"), {"values released at or below the threshold"}, "cut"),
        pytest.param(
            Toy(threshold=THRESHOLD / 2),
            {"values released at or below the threshold"},
            "cut",
            marks=pytest.mark.slow,
        ),
        (Toy(fault="the first goes without"), {"effect of the input's order"}, "cut"),
        (Toy(fault="randomness of its own"), {"values that the rng's words do not determine"}, "rng"),
        (
            Toy(proof=replace(CERTIFICATE, delta=1.0)),
            {"certificate: epsilon and delta in range"},
            "certificate",
        ),
        (
            Toy(proof=replace(CERTIFICATE, delta=0.0)),
            {"certificate: epsilon and delta in range"},
            "certificate",
        ),
        (Toy(edit=lambda out, _: Released(out.index[::-1], out.values[::-1])), {FORM}, "shape"),
        (Toy(edit=lambda out, _: Released(out.index, out.values * np.nan)), {FORM}, "shape"),
    ],
    ids=lambda value: min(value) if isinstance(value, set) else getattr(value, "fault", value) or "",
)
def test_fault_fails_its_check(toy: Toy, failing: set[str], group: str) -> None:
    report = check(toy, only=group)
    assert not report.passed
    assert failing <= set(report.failures), str(report)
    assert "DOES NOT CONFORM" in str(report)


def test_withheld_counts_without_a_threshold() -> None:
    assert "non-zero counts withheld without a threshold" in check(Toy(), threshold=None, only="cut").failures


def test_too_few_runs_are_rejected() -> None:
    with pytest.raises(InvalidParameter, match="runs must be at least"):
        check_mechanism(Toy(), rng=SeededRng(1), runs=100)


def test_nan_never_passes() -> None:
    assert not CheckResult("x", float("nan"), 1.0).passed
    assert not CheckResult("x", student(np.array([1.0, np.nan]), 1.0), STUDENT_BOUND).passed
    assert student(np.ones(5), 1.0) == 0.0
    assert student(np.ones(5), 2.0) == np.inf


@pytest.mark.slow
def test_student_bound_keeps_its_false_alarm() -> None:
    """The tail formula of STUDENT_BOUND, at z = 3, where a simulation can check it."""
    generator = np.random.default_rng(4)
    squares = generator.laplace(size=(20_000, 2000)) ** 2
    scores = (squares.mean(axis=1) - 2.0) / (squares.std(axis=1, ddof=1) / np.sqrt(2000))
    observed = float((np.abs(scores) > 3.0).mean())
    claimed = 0.00135 * (1 + np.exp(6.6 * 27 / (3 * np.sqrt(2000))))
    assert observed < 1.5 * claimed
    assert 0.62e-15 * (1 + np.exp(6.6 * STUDENT_BOUND**3 / (3 * np.sqrt(10_000)))) < 1e-10


def test_kolmogorov_distance_detects_a_shift() -> None:
    generator = np.random.default_rng(5)
    one, other = generator.normal(size=(2, 20_000))
    bound = kolmogorov_bound(20_000, 1)
    assert kolmogorov_distance(one, other) < bound < kolmogorov_distance(one, other + 0.2)
    withheld = np.where(other < -1.0, np.nan, other)
    assert kolmogorov_distance(np.where(one < -1.0, np.nan, one), withheld) < bound
    assert kolmogorov_distance(one, withheld) > bound
