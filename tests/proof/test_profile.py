"""The profile of a plan at any epsilon, against enumeration."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

import dphist
import oracles_profile as oracle
from dphist.accounting import Profile
from dphist.accounting.profile import certified_delta
from dphist.model import Contract, LaplaceNoise, LatticeNoise
from scheduling import examples

USERS: tuple[tuple[oracle.Kind, ...], ...] = (
    ("shared",), ("new",), ("shared", "shared"), ("new", "new"), ("shared", "new"),
)  # fmt: skip


def delta_of(noise: LatticeNoise | LaplaceNoise, contract: Contract, epsilon: float) -> float:
    """The certified delta, below zero by the mirror image of a profile."""
    plan = replace(dphist.plan(epsilon=1.0, delta=1e-3, max_items_per_user=1), noise=noise, contract=contract)
    delta = certified_delta(plan)(abs(epsilon))
    return delta if epsilon >= 0.0 else Profile((-epsilon,), (delta,)).delta(epsilon)


@settings(max_examples=examples(25))
@given(
    variance=st.sampled_from([4, 9, 23]),
    limit=st.integers(3, 14),
    items=st.sampled_from([1, 2]),
    epsilon=st.floats(-1.5, 3.0),
)
def test_profile_is_never_below_enumeration(variance: int, limit: int, items: int, epsilon: float) -> None:
    noise = LatticeNoise(2, Fraction(variance), Fraction(0), limit)
    bound = delta_of(noise, Contract(None, items), epsilon)
    step = oracle.gaussian_step(lattice=2, variance=variance, limit=limit, cap=items)
    truth = max(oracle.delta_profile_upper(step, user, epsilon=epsilon) for user in USERS)
    assert bound >= truth * (1.0 - 1e-13)
    # A mixed user may be bounded by the sum of both pure cases.
    assert bound <= min(1.0, 2.0 * truth)


@settings(max_examples=examples(25))
@given(scale=st.floats(0.4, 3.0), limit=st.integers(2, 20), epsilon=st.floats(-1.5, 3.0))
def test_profile_of_laplace_noise_at_any_epsilon(scale: float, limit: int, epsilon: float) -> None:
    bound = delta_of(LaplaceNoise(Fraction(scale), limit), Contract(max_items_per_user=1), epsilon)
    step = oracle.laplace_step(scale=Fraction(scale), limit=limit, cap=1)
    truth = max(oracle.delta_profile_upper(step, user, epsilon=epsilon) for user in USERS[:2])
    assert bound >= truth * (1.0 - 1e-13)
    new = oracle.delta_profile_upper(step, ("new",), epsilon=50.0)
    assert bound <= truth + new + 1e-12
