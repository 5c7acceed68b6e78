"""Discrete noise: every sum and bound against its oracle, the certificate against exact enumeration, plans."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from flint import arb
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles_discrete as oracle
from dphist.accounting.profile import delta_at, epsilon_at
from dphist.errors import InvalidParameter
from dphist.model import Contract, LatticeNoise
from dphist.paper.bounds import delta_discrete_csh, delta_zcdp, delta_zcdp_loose, rho_discrete_correlated_gaussian
from dphist.planning.planner import plan
from dphist.proof import balls
from dphist.proof.balls import shift_divergence, tail
from dphist.proof.certify_lattice import certify_lattice
from dphist.proof.continuous import certify_family
from dphist.proof.lattice import DiscreteFamily
from dphist.proof.tails import discrete_gaussian_tail, infinite_event_discrete, infinite_event_discrete_upper
from scheduling import examples


@pytest.mark.parametrize("variance", [0.0625, 0.3, 4.0, 900.0, 4095.0, 4097.0, 40000.0])
def test_tail(variance: float) -> None:
    for height in (-3.0, -0.5, 0.0, 0.5, 2.0, 6.0, 12.0):
        n = round(height * math.sqrt(variance))
        truth = float(oracle.discrete_gaussian_tail(n=n, variance=variance))
        assert float(discrete_gaussian_tail(n, variance=variance)) == pytest.approx(truth, rel=1e-12)
        if variance >= 4.0:
            with balls.precision(160):
                ball = tail(n, arb(variance))
                assert arb(truth) * (1 - arb(2) ** -50) <= ball.upper()
                assert ball.lower() <= arb(truth) * (1 + arb(2) ** -50)
                assert ball.rad() <= arb(truth) * arb("1e-11")


@settings(max_examples=examples(25))
@given(variance=st.floats(4.0, 3000.0), shift=st.integers(1, 40), epsilon=st.floats(0.0, 4.0))
def test_divergence_of_a_shift(variance: float, shift: int, epsilon: float) -> None:
    truth = float(oracle.delta_discrete_shift(variance=variance, shift=shift, epsilon=epsilon))
    with balls.precision(160):
        ball = shift_divergence(variance=arb(variance), shift=shift, epsilon=arb(epsilon))
        upper = balls.upper(ball)
    assert upper >= truth * (1.0 - 1e-14)
    assert upper == pytest.approx(truth, rel=1e-8, abs=1e-30)


@settings(max_examples=examples(8))
@given(
    count=st.sampled_from([1, 3, 50, 10**5]),
    variance=st.floats(4.0, 400.0),
    share=st.sampled_from([0.0, 0.1, 1.0]),
    height=st.floats(0.5, 8.0),
)
def test_infinite_event(count: int, variance: float, share: float, height: float) -> None:
    shared = variance * share
    limit = max(1, round(height * math.sqrt(variance + shared)))
    numbers: dict[str, Any] = {"count": count, "variance": variance, "variance_shared": shared, "limit": limit}
    truth = float(oracle.infinite_event_discrete(**numbers))
    assert infinite_event_discrete(**numbers) == pytest.approx(truth, rel=1e-10)
    if share == 0.0 or shared >= 4.0:
        noise = LatticeNoise(
            2, Fraction(variance), Fraction(variance) * Fraction(share).limit_denominator(10), limit
        )
        with balls.precision(200):
            family = DiscreteFamily(noise, Contract(count), epsilon=0.1, scale=truth)
            upper = balls.upper(family.infinite_event(count))
        assert truth * (1.0 - 1e-10) <= upper <= truth * (1.0 + 1e-9)


@pytest.mark.parametrize("k", [1, 10, 400])
@pytest.mark.parametrize("sigma", [2.0, 25.0])
def test_the_papers_recipe(k: int, sigma: float) -> None:
    tau = 9.0 * sigma
    assert infinite_event_discrete_upper(k=k, sigma=sigma, tau=tau) == pytest.approx(
        float(oracle.infinite_event_discrete_upper(k=k, sigma=sigma, tau=tau)), rel=1e-9
    )
    for tight in (False, True):
        truth = float(oracle.delta_discrete_csh(k=k, sigma=sigma, tau=tau, epsilon=1.3, tight=tight))
        value = delta_discrete_csh(k=k, sigma=sigma, tau=tau, epsilon=1.3, tight=tight)
        assert value == pytest.approx(truth, rel=1e-8)


@given(rho=st.floats(1e-6, 5.0), epsilon=st.floats(0.01, 20.0))
def test_zcdp_conversions(rho: float, epsilon: float) -> None:
    loose, tight = delta_zcdp_loose(rho=rho, epsilon=epsilon), delta_zcdp(rho=rho, epsilon=epsilon)
    assert tight <= loose * (1.0 + 1e-9)
    if loose > 1e-290:
        assert loose == pytest.approx(float(oracle.delta_zcdp_loose(rho=rho, epsilon=epsilon)), rel=1e-9)
    assert rho_discrete_correlated_gaussian(k=9, sigma=2.0) == float(
        oracle.rho_discrete_correlated_gaussian(k=9, sigma=2.0)
    )


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.3])
def test_tight_zcdp_conversion(rho: float) -> None:
    for epsilon in (0.1, 0.35, 2.0):
        truth = float(oracle.delta_zcdp(rho=rho, epsilon=epsilon))
        if truth > 1e-290:
            assert delta_zcdp(rho=rho, epsilon=epsilon) == pytest.approx(truth, rel=1e-8)


SMALL = [
    # lattice, variance, gamma (0 for no shared noise), limit, k, m, epsilon
    (2, 16, 1, 14, 2, 2, 0.3),
    (2, 16, 2, 12, 2, 1, 0.3),
    (2, 24, 0, 15, 2, 2, 0.5),
    (4, 40, 2, 22, 3, 1, 0.4),
    pytest.param(4, 40, 4, 18, 3, 2, 0.1, marks=pytest.mark.slow),
    pytest.param(6, 36, 1, 20, 2, 2, 0.0, marks=pytest.mark.slow),
]
# All shared counts change, and the coefficients of the combination are above one.
ALL_CHANGED = [
    (30, Fraction(52), Fraction(4), 25, 1, 8.792312137461709),
    (20, Fraction(75, 2), Fraction(25, 4), 60, 1, 2.9999129370185607),
    pytest.param(12, Fraction(17), Fraction(17, 4), 15, 3, 1.0, marks=pytest.mark.slow),
    (10, Fraction(85, 4), Fraction(17, 4), 21, 2, 0.18125275006740837),
    (10, Fraction(99, 2), Fraction(11, 2), 60, 1, 7.089),
    (4, Fraction(111, 2), Fraction(37, 4), 39, 1, 1.99926),
]


def enumerated_delta(noise: LatticeNoise, k: int, m: int, epsilon: float) -> float:
    """The largest delta over all neighbours, each by enumeration of the lattice."""
    return max(
        float(
            oracle.delta_discrete_case(
                j=k - r, r=r, s=s, lattice=noise.lattice, variance=noise.variance,
                variance_shared=noise.variance_shared, limit=noise.tau_steps, epsilon=epsilon, direction=direction,
            )
        )
        for r in range(m + 1)
        for s in range(min(k, m) - r + 1)
        for direction in ("add", "remove")
    )  # fmt: skip


@pytest.mark.parametrize(("lattice", "variance", "shared", "limit", "k", "epsilon"), ALL_CHANGED)
def test_certificate_when_every_shared_count_changes(
    lattice: int, variance: Fraction, shared: Fraction, limit: int, k: int, epsilon: float
) -> None:
    noise = LatticeNoise(lattice, variance, shared, limit)
    truth = enumerated_delta(noise, k, k, epsilon)
    assert truth * (1.0 - 1e-9) <= certify_lattice(noise, Contract(k), epsilon=epsilon).delta <= truth * 2.5


@pytest.mark.parametrize(("k", "m", "gamma"), [(None, 100, None), (1000, 150, 30)])
def test_large_deltas_of_many_changed_counts(k: int | None, m: int, gamma: int | None) -> None:
    variance = Fraction(16 * 10**6) if gamma is None else Fraction(64 * 30 * 30 * 22)
    noise = LatticeNoise(4, variance, Fraction(0) if gamma is None else variance / gamma, 10**5)
    ideal = certify_family(noise.continuous(), Contract(k, m), epsilon=0.001).delta
    certified = certify_lattice(noise, Contract(k, m), epsilon=0.001).delta
    assert 0.999 * ideal <= certified <= 1.2 * ideal


def test_deep_tails_stay_sharp() -> None:
    with balls.precision(700):
        for variance, z in ((400, 20), (5000, 20), (10**5, 26)):
            ball = tail(round(z * math.sqrt(variance)), arb(variance))
            assert ball.rad() <= ball.mid() * arb(2) ** -30
        # So far out in so wide a law that only the two integrals give a bound.
        wide = tail(30 * 10**5, arb(10**10))
        assert wide.rad() <= wide.mid() * arb("1e-3")


@pytest.mark.slow
def test_large_deltas_have_discrete_plans() -> None:
    assert plan(epsilon=0.5, delta=0.1, max_nonzero=5, noise="discrete").proof.delta <= 0.1


def test_tiny_deltas_have_discrete_plans() -> None:
    assert plan(epsilon=1.0, delta=1e-150, max_nonzero=2, noise="discrete").proof.delta <= 1e-150


@pytest.mark.parametrize(("lattice", "variance", "gamma", "limit", "k", "m", "epsilon"), SMALL)
def test_certificate_against_enumeration(
    lattice: int, variance: int, gamma: int, limit: int, k: int, m: int, epsilon: float
) -> None:
    shared = Fraction(variance, gamma) if gamma else Fraction(0)
    noise = LatticeNoise(lattice, Fraction(variance), shared, limit)
    truth = enumerated_delta(noise, k, m, epsilon)
    result = certify_lattice(noise, Contract(k, m), epsilon=epsilon)
    assert truth * (1.0 - 1e-9) <= result.delta <= truth * 1.35
    assert result.delta_lower <= truth * (1.0 + 1e-9)


@pytest.mark.parametrize("step", [0, 1, 3])
def test_ranges_cover_every_changed_count_in_them(step: int) -> None:
    noise = LatticeNoise(16, Fraction(230 * 256 * 12), Fraction(230 * 256), 9000)
    with balls.precision(128):
        family = DiscreteFamily(noise, Contract(4000, 200), epsilon=0.4, scale=1e-6)
        for low, high in ((1, 3), (40, 80), (100, 150)):
            bound = family._changed_range(4000, low, high, step)
            for changed in range(low, high + 1, 7):
                exact = balls.upper(family._delta_of_changed(4000, changed, step))
                assert exact <= balls.upper(bound)
        assert balls.upper(bound) <= 1.5 * balls.upper(family._delta_of_changed(4000, 150, step))


PLANS = [
    # epsilon, delta, k, m
    (0.35, 1e-5, 10, 10),
    (0.35, 1e-5, 1000, 100),
    (1.0, 1e-6, None, 10),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            (0.35, 1e-5, 51914, 51914),
            (0.35, 1e-5, 1000, 500),
            (0.35, 1e-5, 10**6, 10**6),
            (0.35, 1e-5, 10**7, 10**7),
            (1.0, 1e-6, None, 50),
            (3.0, 1e-9, 200, 200),
        )
    ),
]


@pytest.mark.parametrize(("epsilon", "delta", "k", "m"), PLANS)
def test_discrete_plans_cost_nothing(epsilon: float, delta: float, k: int | None, m: int) -> None:
    ideal = plan(epsilon=epsilon, delta=delta, max_nonzero=k, max_items_per_user=m, noise="continuous")
    real = plan(epsilon=epsilon, delta=delta, max_nonzero=k, max_items_per_user=m, noise="discrete")
    assert real.proof.delta <= delta
    assert real.total_noise <= ideal.total_noise * 1.002
    assert real.tau <= ideal.tau * 1.002


def test_a_discrete_plan_shows_the_exact_noise() -> None:
    data = plan(epsilon=0.35, delta=1e-5, max_nonzero=10, noise="discrete").to_dict()
    assert data["noise"] == "discrete"
    assert Fraction(data["variance_steps"]) == Fraction(data["variance_shared_steps"]) * int(data["gamma"])
    assert data["tau"] == data["tau_steps"] / data["lattice"]
    assert data["sigma"] == math.sqrt(Fraction(data["variance_steps"])) / data["lattice"]


def test_profile_of_a_discrete_plan() -> None:
    made = plan(epsilon=0.5, delta=1e-5, max_nonzero=3, noise="discrete")
    assert delta_at(made, 0.5) <= 1e-5
    epsilon = epsilon_at(made, 1e-4)
    assert epsilon < 0.5
    assert delta_at(made, epsilon) <= 1e-4


@pytest.mark.parametrize(
    ("lattice", "variance", "shared", "limit", "message"),
    [
        (3, 16, 4, 9, "lattice must be an even number"),
        (2, 2, 0, 9, "variances must be at least 4"),
        (2, 16, 5, 9, "whole multiple"),
        (2, 16, -1, 9, "variances must be at least 4"),
        (2, 16, 4, 0, "tau_steps must be at least 1"),
    ],
)
def test_bad_lattices(lattice: int, variance: int, shared: int, limit: int, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        LatticeNoise(lattice, Fraction(variance), Fraction(shared), limit)


def test_discrete_noise_has_the_exact_analysis_only() -> None:
    with pytest.raises(InvalidParameter, match="needs the exact analysis"):
        plan(epsilon=1.0, delta=1e-6, max_nonzero=5, noise="discrete", analysis="csh-tighter")
    with pytest.raises(InvalidParameter, match="noise must be 'continuous' or 'discrete', not 'pink'"):
        plan(epsilon=1.0, delta=1e-6, max_nonzero=5, noise="pink")


def test_one_new_and_one_changed_count_are_worst_for_two_items() -> None:
    """A user with two items may have one of each kind: 0.1525, above 0.1448 of two new or two changed counts."""
    noise = LatticeNoise(4, Fraction(160), Fraction(160), 24)
    mixed = float(
        oracle.delta_discrete_case(
            j=9, r=1, s=1, lattice=4, variance=160, variance_shared=160, limit=24, epsilon=0.05, direction="add"
        )
    )
    certified = certify_lattice(noise, Contract(10, 2), epsilon=0.05).delta
    assert certified >= mixed * (1 - 1e-9), "mixed neighbours are not in the certificate of m = 2"
