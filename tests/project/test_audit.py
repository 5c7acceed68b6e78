"""The audit detects the faults it claims to detect, and does not contradict correct certificates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Final, Literal

import numpy as np
import pytest
from scipy import special, stats

from dphist import Contract, InvalidParameter, Plan, plan
from dphist.audit import (
    MOST_ITEMS,
    Attack,
    AuditResult,
    BoolArray,
    PlannedMechanism,
    Run,
    Score,
    audit,
    delta_lower_bound,
    finest_bit,
    simulate,
    through_protocol,
    worst_cases,
)
from dphist.model import LatticeNoise, Proof
from dphist.paper.bounds import delta_correlated_gaussian
from dphist.proof.tails import infinite_event_discrete
from dphist.releasing.noise import FloatArray, IntArray, Released
from dphist.sampling.rng import Rng, SeededRng
from mechanism_conformance import kolmogorov_bound, kolmogorov_distance
from scheduling import crossed

EPSILON, DELTA, K = 1.0, 0.05, 10
RUNS = 1_000_000


@cache
def honest() -> Plan:
    """A CSH with a budget at which all faults are visible."""
    return plan(epsilon=EPSILON, delta=DELTA, max_nonzero=K, noise="discrete")


@cache
def honest_gshm() -> Plan:
    return plan(epsilon=EPSILON, delta=DELTA, max_items_per_user=K, noise="discrete")


def lattice_noise(made: Plan) -> LatticeNoise:
    assert isinstance(made.noise, LatticeNoise)
    return made.noise


def sensitivity_squared(noise: LatticeNoise, changed: int) -> float:
    """D(j, s) of analysis.md, section 3, with j = k; in units of one."""
    return (changed - changed**2 / (noise.gamma + K)) / noise.sigma**2


def infinite(noise: LatticeNoise) -> float:
    return infinite_event_discrete(
        count=K,
        variance=float(noise.variance),
        variance_shared=float(noise.variance_shared),
        limit=noise.tau_steps,
    )


def wrong_sign(noise: LatticeNoise) -> LatticeNoise:
    """The least threshold whose infinite event is delta PLUS delta_gauss."""
    gauss = delta_correlated_gaussian(dimension=K, gamma=noise.gamma, sigma=noise.sigma, epsilon=EPSILON)
    low, high = 1, noise.tau_steps * 4
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if infinite(replace(noise, tau_steps=middle)) <= DELTA + gauss else (middle, high)
        )
    return replace(noise, tau_steps=high)


def scaled(noise: LatticeNoise, square: Fraction) -> LatticeNoise:
    return replace(noise, variance=noise.variance * square, variance_shared=noise.variance_shared * square)


# Each fault with enough runs to detect it.
FAULTS = {
    "tau halved": 8_000,
    "noise too small by 10 %": RUNS,
    "no shared draw": 24_000,
    "wrong sign": 200_000,
    "wrong sign, 20 % more noise": RUNS,
}


@cache
def faults() -> dict[str, LatticeNoise]:
    noise = lattice_noise(honest())
    return {
        "tau halved": replace(noise, tau_steps=noise.tau_steps // 2),
        "noise too small by 10 %": scaled(noise, Fraction(81, 100)),
        "no shared draw": replace(noise, variance_shared=Fraction(0)),
        "wrong sign": wrong_sign(noise),
        "wrong sign, 20 % more noise": wrong_sign(scaled(noise, Fraction(144, 100))),
    }


def claims(noise: LatticeNoise) -> PlannedMechanism:
    """A mechanism that draws this noise but has the honest plan's certificate."""
    return PlannedMechanism(replace(honest(), noise=noise))


@dataclass(frozen=True)
class ByProtocol:
    """The same through the protocol alone, without the fast path."""

    inner: PlannedMechanism

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def contract(self) -> Contract:
        return self.inner.contract

    @property
    def proof(self) -> Proof:
        return self.inner.proof

    def begin(self, rng: Rng) -> Run:
        return self.inner.begin(rng)


# --- faults ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "seed"), crossed(list(FAULTS), [1, 2]))
def test_fault_is_detected(fault: str, seed: int) -> None:
    """By the next test, missed with probability below 1e-3; the seeds make it certain."""
    result = audit(claims(faults()[fault]), rng=SeededRng(seed), runs=FAULTS[fault])
    assert result.contradicts
    assert "CONTRADICTS" in str(result)


@pytest.mark.parametrize("fault", FAULTS)
def test_power_by_theory(fault: str) -> None:
    """Hits as unlucky as 1 in 4,000 on both sides still contradict: the power is above 0.9995.

    The event is the best one for normal noise with these parameters, or the infinite event.
    """
    noise, sessions = faults()[fault], FAULTS[fault] // 4
    mu = math.sqrt(max(sensitivity_squared(noise, s) for s in range(K + 1)))
    gauss = (special.ndtr(mu / 2 - EPSILON / mu), special.ndtr(-mu / 2 - EPSILON / mu))
    bounds = []
    for p, q in (gauss, (infinite(noise), 0.0)):
        hits = int(stats.binom.ppf(1 / 4000, sessions, p))
        others = int(stats.binom.isf(1 / 4000, sessions, q))
        bounds.append(delta_lower_bound(hits, others, sessions, epsilon=EPSILON, risk=0.5e-9))
    assert max(bounds) > DELTA


@pytest.mark.parametrize("fault", ["tau halved", pytest.param("no shared draw", marks=pytest.mark.slow)])
def test_fault_is_detected_through_the_protocol(fault: str) -> None:
    assert audit(ByProtocol(claims(faults()[fault])), rng=SeededRng(3), runs=FAULTS[fault]).contradicts


# --- correct certificates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "delta", "k", "m"),
    [
        (1.0, 0.05, 10, 10),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in (
            (0.5, 0.02, None, 3), (1.0, 0.02, 5, 5), (2.0, 0.01, 10, 10), (1.0, 0.05, 20, 5),
        )),
    ],
)  # fmt: skip
def test_correct_plan_is_not_contradicted(epsilon: float, delta: float, k: int | None, m: int) -> None:
    """False alarm at most 1e-9 for each. The plans are tight, so a good attack finds most of delta."""
    made = plan(epsilon=epsilon, delta=delta, max_nonzero=k, max_items_per_user=m, noise="discrete")
    result = audit(PlannedMechanism(made), rng=SeededRng(11), runs=RUNS)
    assert not result.contradicts
    assert result.delta_lower > 0.75 * delta
    assert "does not contradict" in str(result)


@pytest.mark.parametrize(
    ("rates", "risk"), crossed([(0.3, 0.1), (0.5, 0.01), (0.9, 0.3), (0.05, 0.0)], [0.05, 1e-3, 1e-6])
)
def test_bound_is_valid(rates: tuple[float, float], risk: float) -> None:
    """Exactly: the total probability of all hits for which the bound is above the truth."""
    n = 24
    p, q = rates
    truth = p - math.e * q
    hits = stats.binom.pmf(np.arange(n + 1), n, p)
    others = stats.binom.pmf(np.arange(n + 1), n, q)
    wrong = sum(
        hits[a] * others[b]
        for a in range(n + 1)
        for b in range(n + 1)
        if delta_lower_bound(a, b, n, epsilon=1.0, risk=risk) > max(truth, 0.0)
    )
    assert wrong <= 2 * risk


def test_bound_at_the_ends() -> None:
    assert delta_lower_bound(0, 0, 100, epsilon=1.0, risk=0.01) == 0.0
    assert delta_lower_bound(100, 100, 100, epsilon=0.0, risk=0.01) == 0.0
    # 1 - risk^(1/n) bounds the probability of an event without a hit.
    expected = 0.01**0.01 - (1 - 0.01**0.01)
    assert delta_lower_bound(100, 0, 100, epsilon=0.0, risk=0.01) == pytest.approx(expected)


def test_only_an_epsilon_of_at_least_the_certificates_contradicts() -> None:
    certificate = honest().proof
    result = AuditResult("csh", 0.5, 0.2, "a case", "added", 0.99, 10_000, certificate)
    assert not result.contradicts
    assert replace(result, epsilon=2.0).contradicts


def test_seeded_audit_repeats() -> None:
    first, second = (audit(PlannedMechanism(honest()), rng=SeededRng(5), runs=20_000) for _ in range(2))
    assert first == second


# --- floating point -------------------------------------------------------------------------------------------

# A generator of doubles reaches only some of them. Where the reachable values of count + noise have gaps, a
# released value reveals which counts it cannot have come from.
# Source: Mironov 2012 for Laplace noise; Jin, McMurtry, Rubinstein and Ohrimenko 2022 for Gaussian noise.

# (values, count) -> whether the mechanism can turn the count into exactly that value.
Reachable = Callable[[FloatArray, int], BoolArray]

_GRID: Final = 2.0**-53
_NEAREST = np.arange(-4.0, 5.0)  # the rounding of ndtr and ndtri moves the preimage by a grid point or two


def from_inverse_cdf(sigma: float) -> Reachable:
    """Values fl(count + fl(sigma * ndtri(u))) for u a multiple of 2^-53: the textbook method."""

    def reachable(values: FloatArray, count: int) -> BoolArray:
        middle = np.rint(special.ndtr((values - count) / sigma) / _GRID)
        preimages = np.clip((middle[..., None] + _NEAREST) * _GRID, _GRID, 1.0 - _GRID)
        return np.asarray((count + sigma * special.ndtri(preimages) == values[..., None]).any(axis=-1))

    return reachable


def from_single_precision(sigma: float) -> Reachable:
    """Values fl(count + fl(sigma * z)) for z of 24 bits: single-precision normals added to double counts."""

    def reachable(values: FloatArray, count: int) -> BoolArray:
        middle = ((values - count) / sigma).astype(np.float32)
        neighbours = (np.nextafter(middle, np.float32(-np.inf)), middle, np.nextafter(middle, np.float32(np.inf)))
        tries = [count + sigma * z.astype(np.float64) == values for z in neighbours]
        return np.asarray(np.logical_or.reduce(tries))

    return reachable


def reachability_case(contract: Contract, *, count: int, reachable: Reachable) -> Attack:
    """A user in all of m counts: H has `count` everywhere, H' one less (at least 1).

    The score is 1 if some value is reachable from H but not from H', and -1 in the opposite case.
    """
    items = min(contract.items, MOST_ITEMS)

    def score(values: FloatArray) -> FloatArray:
        seen = ~np.isnan(values)
        mine, theirs = (np.zeros(values.shape, dtype=bool) for _ in range(2))
        mine[seen], theirs[seen] = reachable(values[seen], count), reachable(values[seen], count - 1)
        ours, not_ours = (mine & ~theirs).any(axis=1), (theirs & ~mine).any(axis=1)
        return np.asarray(ours.astype(np.float64) - not_ours)

    def fit(_values: FloatArray, _values_neighbour: FloatArray) -> Score:
        return score

    name = f"reachable from counts of {count} or of {count - 1}"
    return Attack(name, (count,) * items, (count - 1,) * items, fit)


Generator = Literal["inverse cdf", "single precision", "numpy doubles"]


@dataclass(frozen=True)
class FloatMechanism:
    """The naive GSHM: count + sigma * normal, in doubles; without a threshold on a known domain."""

    plan: Plan
    generator: Generator
    known_domain: bool = False

    @property
    def name(self) -> str:
        return f"float gshm, {self.generator}"

    @property
    def contract(self) -> Contract:
        return self.plan.contract

    @property
    def proof(self) -> Proof:
        return self.plan.proof

    def begin(self, rng: Rng) -> FloatSession:
        return FloatSession(self, rng)

    def normals(self, n: int, rng: Rng) -> FloatArray:
        if self.generator == "inverse cdf":
            uniform = (rng.words(n) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            return np.asarray(special.ndtri(np.maximum(uniform, 2.0**-53)))
        source = np.random.Generator(np.random.SFC64(int(rng.words(1)[0])))
        if self.generator == "single precision":
            return source.standard_normal(n, dtype=np.float32).astype(np.float64)
        return source.standard_normal(n)


@dataclass(frozen=True)
class FloatSession:
    mechanism: FloatMechanism
    rng: Rng

    def release(self, counts: IntArray) -> Released:
        present = np.arange(counts.size) if self.mechanism.known_domain else np.flatnonzero(counts)
        values = counts[present] + self.mechanism.plan.sigma * self.mechanism.normals(present.size, self.rng)
        passed = values > (-np.inf if self.mechanism.known_domain else self.mechanism.plan.threshold)
        return Released(present[passed], values[passed])


def float_cases(generator: Generator) -> list[Attack]:
    made = honest_gshm()
    reachable = (from_inverse_cdf if generator == "inverse cdf" else from_single_precision)(made.sigma)
    return [
        reachability_case(made.contract, count=count, reachable=reachable)
        for count in (2, math.ceil(made.threshold))
    ]


@pytest.mark.parametrize("generator", ["inverse cdf", "single precision"])
def test_floats_with_a_threshold_are_detected(generator: Generator) -> None:
    """They exceed delta by a factor of ten, so 16,000 runs are plenty."""
    mechanism = FloatMechanism(honest_gshm(), generator)
    result = audit(mechanism, rng=SeededRng(7), runs=16_000, more_cases=float_cases(generator))
    assert result.contradicts
    assert result.delta_lower > 0.5
    assert "reachable" in result.case


def test_numpy_doubles_on_a_known_domain_are_detected_by_their_bits() -> None:
    """Mironov's observation: bits finer than those of the larger noise reveal the smaller count."""
    result = audit(
        FloatMechanism(honest_gshm(), "numpy doubles", known_domain=True), rng=SeededRng(8), runs=10_000
    )
    assert result.contradicts
    assert "finest bit" in result.case


@pytest.mark.parametrize("generator", ["inverse cdf", "single precision"])
def test_float_attacks_do_not_contradict_lattice_noise(generator: Generator) -> None:
    result = audit(
        PlannedMechanism(honest_gshm()), rng=SeededRng(9), runs=50_000, more_cases=float_cases(generator)
    )
    assert not result.contradicts


def test_finest_bit() -> None:
    values = np.array([[1.0, np.nan], [0.75, 4.0], [np.nan, np.nan], [0.0, -(2.0**-60)], [3 * 2.0**-50, 1.0]])
    assert finest_bit(values).tolist() == [0.0, 2.0, -np.inf, 60.0, 50.0]


def test_reachable_values_are_recognised() -> None:
    """Every value made from a count is reachable from it."""
    for generator, reachable in (("inverse cdf", from_inverse_cdf), ("single precision", from_single_precision)):
        mechanism = FloatMechanism(honest_gshm(), generator)  # type: ignore[arg-type]
        values = 12 + honest_gshm().sigma * mechanism.normals(20_000, SeededRng(1))
        assert reachable(honest_gshm().sigma)(values, 12).all()


# --- simulation -----------------------------------------------------------------------------------------------


def test_fast_path_has_the_distribution_of_the_protocol() -> None:
    """Distances of every count and of their mean; false alarm 1e-10. Wrong noise is detected."""
    counts, runs = (1, 8, 0, 9, 1000), 8_000
    bound = kolmogorov_bound(runs, len(counts) + 1)
    other = through_protocol(PlannedMechanism(honest()), [counts], runs, SeededRng(22))

    def distance(fast: PlannedMechanism) -> float:
        one = simulate(fast, counts, runs, SeededRng(21))
        sums = kolmogorov_distance(np.nansum(one, axis=1), np.nansum(other, axis=1))
        return max(sums, *(kolmogorov_distance(one[:, i], other[:, i]) for i in range(len(counts))))

    assert distance(PlannedMechanism(honest())) <= bound
    noise = lattice_noise(honest())
    assert distance(claims(scaled(noise, Fraction(64, 100)))) > bound
    assert distance(claims(replace(noise, variance_shared=Fraction(0)))) > bound


def test_subclass_goes_through_the_protocol() -> None:
    class Silent(PlannedMechanism):
        def begin(self, rng: Rng) -> Run:  # type: ignore[override]  # noqa: ARG002
            return SilentSession()

    class SilentSession:
        def release(self, counts: IntArray) -> Released:  # noqa: ARG002
            return Released(np.zeros(0, dtype=np.int64), np.zeros(0))

    assert np.isnan(simulate(Silent(honest()), (1000,), 5, SeededRng(1))).all()


# --- parameters and cases -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"runs": 100}, {"confidence": 1.0}, {"confidence": 0.0}, {"epsilon": -1.0}, {"epsilon": math.nan}]
)
def test_bad_parameters(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter):
        audit(PlannedMechanism(honest()), rng=SeededRng(1), **wrong)  # type: ignore[arg-type]


def test_a_plan_without_a_bound_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="give max_items_per_user or max_nonzero"):
        PlannedMechanism(plan(epsilon=EPSILON, delta=DELTA))


@pytest.mark.parametrize(
    "contract", [Contract(1, 1), Contract(None, 1), Contract(60_000, 50_000), Contract(30, 3)]
)
def test_cases_keep_the_contract(contract: Contract) -> None:
    for case in worst_cases(contract):
        counts, neighbour = np.array(case.counts), np.array(case.neighbour)
        assert set(np.unique(counts - neighbour)) <= {0, 1}
        assert (counts - neighbour).sum() <= contract.items
        assert np.count_nonzero(counts) <= contract.nonzero
