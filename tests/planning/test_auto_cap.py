"""The certificate of a privately chosen limit: against enumeration, within the budget, and at every epsilon."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dphist
import oracles_auto_cap as oracle
from dphist.errors import InvalidParameter
from dphist.planning.auto_cap import (
    ChoicePlan,
    certify_choice,
    choice_curve,
    choose_plan,
    largest_of_all,
    plan_choice,
    variance_of_sizes,
)
from dphist.privacy.certificate import certify_noise, delta_adaptive_upper, delta_profile_upper
from dphist.privacy.types import Budget, CapChoice, Contract, LaplaceNoise, LatticeNoise, Plan
from scheduling import THOROUGH, examples

ONE, TWO = Contract(max_items_per_user=1), Contract(max_items_per_user=2)
Release = tuple[LatticeNoise | LaplaceNoise, Contract]
USERS: dict[str, tuple[oracle.Kind, ...]] = {
    "one shared": ("shared",),
    "one new": ("new",),
    "two shared": ("shared", "shared"),
    "two new": ("new", "new"),
    "one of each": ("shared", "new"),
}


def twin(release: Release) -> oracle.Step:
    """The same release for the oracle."""
    noise, contract = release
    if isinstance(noise, LaplaceNoise):
        return oracle.laplace_step(scale=noise.scale, limit=noise.limit, cap=contract.items)
    return oracle.gaussian_step(
        lattice=noise.lattice, variance=noise.variance, limit=noise.limit, cap=contract.items
    )


def certified(variance: Fraction, releases: list[Release], epsilon: float, nodes: int = 40) -> float:
    """The certificate with other, arbitrarily dense nodes."""
    spread = 1.0 / math.sqrt(variance)
    points = [epsilon + spread * z for z in np.linspace(-7.0, 3.0, nodes)]
    profiles = [[(x, delta_profile_upper(*release, epsilon=x)) for x in points] for release in releases]
    envelope = [max(together) for together in zip(*profiles, strict=True)]
    return delta_adaptive_upper(variance, envelope, epsilon=epsilon)


@settings(max_examples=examples(25))
@given(
    variance=st.sampled_from([4, 9, 23]),
    limit=st.integers(3, 14),
    items=st.sampled_from([1, 2]),
    epsilon=st.floats(-1.5, 3.0),
)
def test_profile_is_never_below_enumeration(variance: int, limit: int, items: int, epsilon: float) -> None:
    release: Release = (LatticeNoise(2, Fraction(variance), Fraction(0), limit), Contract(None, items))
    bound = delta_profile_upper(*release, epsilon=epsilon)
    truths = [oracle.delta_profile_upper(twin(release), kinds, epsilon=epsilon) for kinds in USERS.values()]
    assert bound >= max(truths) * (1.0 - 1e-13)
    # A mixed user may be bounded by the sum of both pure cases.
    assert bound <= 1.0
    assert bound <= 2.0 * max(truths)


@settings(max_examples=examples(25))
@given(scale=st.floats(0.4, 3.0), limit=st.integers(2, 20), epsilon=st.floats(-1.5, 3.0))
def test_profile_of_laplace_noise_at_any_epsilon(scale: float, limit: int, epsilon: float) -> None:
    release: Release = (LaplaceNoise(Fraction(scale), limit), ONE)
    bound = delta_profile_upper(*release, epsilon=epsilon)
    truth = max(
        oracle.delta_profile_upper(twin(release), USERS[user], epsilon=epsilon)
        for user in ("one shared", "one new")
    )
    assert bound >= truth * (1.0 - 1e-13)
    # The chord is attained except for the delta of new counts.
    new = oracle.delta_profile_upper(twin(release), ("new",), epsilon=50.0)
    assert bound <= truth + new + 1e-12


@settings(max_examples=examples(20))
@given(
    sizes=st.fractions(1, 12, max_denominator=8),
    first=st.tuples(st.sampled_from([4, 7, 16]), st.integers(4, 12)),
    second=st.tuples(st.sampled_from([6, 14, 40]), st.integers(4, 16)),
    epsilon=st.floats(0.05, 2.5),
    user=st.sampled_from(sorted(USERS)),
)
def test_adaptive_certificate_is_never_below_enumeration(
    sizes: Fraction, first: tuple[int, int], second: tuple[int, int], epsilon: float, user: str
) -> None:
    releases: list[Release] = [
        (LatticeNoise(2, Fraction(first[0]), Fraction(0), first[1]), ONE),
        (LatticeNoise(2, Fraction(second[0]), Fraction(0), second[1]), TWO),
    ]
    truth = oracle.delta_adaptive_upper(
        [twin(release) for release in releases], USERS[user], sizes, epsilon=epsilon
    )
    for nodes in (3, 40):
        assert certified(sizes, releases, epsilon, nodes) >= truth * (1.0 - 1e-13)


def test_certifying_each_limit_separately_is_not_enough() -> None:
    """Two releases whose profiles cross: choosing between them can be worse than either of them."""
    releases: list[Release] = [
        (LaplaceNoise(Fraction(6, 5), 60), ONE),
        (LatticeNoise(2, Fraction(16), Fraction(0), 40), ONE),
    ]
    variance, epsilon = Fraction(8), 1.5
    truth = oracle.delta_adaptive_upper([twin(each) for each in releases], ("shared",), variance, epsilon=epsilon)
    apart = [certified(variance, [each], epsilon, 160) for each in releases]
    assert truth > 1.3 * max(apart)
    assert truth <= certified(variance, releases, epsilon, 160) <= 1.03 * truth


@pytest.mark.parametrize(("variance", "own"), [(Fraction(3), 20), (Fraction(50), 60), (Fraction(450), 100)])
def test_adaptive_certificate_is_tight(variance: Fraction, own: int) -> None:
    release: Release = (LatticeNoise(2, Fraction(own), Fraction(0), 60), ONE)
    truth = oracle.delta_adaptive_upper([twin(release)], ("shared",), variance, epsilon=1.0)
    assert truth <= certified(variance, [release], 1.0, 80) <= 1.01 * truth


@pytest.mark.parametrize("heights", [(-4.0,), (3.0,), (0.0,), (-0.3, 0.2)])
def test_few_nodes_are_safe(heights: tuple[float, ...]) -> None:
    """The profile beyond the nodes, on either side, is bounded too."""
    release: Release = (LatticeNoise(2, Fraction(20), Fraction(0), 14), ONE)
    variance, epsilon = Fraction(30), 0.7
    points = [epsilon + z / math.sqrt(variance) for z in heights]
    nodes = [(x, delta_profile_upper(*release, epsilon=x)) for x in points]
    bound = delta_adaptive_upper(variance, nodes, epsilon=epsilon)
    for kinds in (("shared",), ("new",)):
        truth = oracle.delta_adaptive_upper([twin(release)], kinds, variance, epsilon=epsilon)
        assert bound >= truth


def test_nodes_are_checked() -> None:
    for nodes in ([], [(1.0, 0.1), (0.5, 0.2)], [(1.0, 0.1), (1.0, 0.1)]):
        with pytest.raises(InvalidParameter):
            delta_adaptive_upper(Fraction(4), nodes, epsilon=1.0)


def plan_of(epsilon: float, delta: float, cap: int) -> Plan:
    return dphist.plan(epsilon=epsilon, delta=delta, max_items_per_user=cap)


CAPS = (1, 2, 8, 32, 128, 512)


@cache
def planned(epsilon: float = 1.0, delta: float = 1e-6, caps: tuple[int, ...] = CAPS) -> ChoicePlan:
    return plan_choice(Budget(epsilon, delta), plan_of, caps=caps)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        *((1.0, 1e-6), (0.01, 1e-3), (30.0, 1e-12)),
        *(pytest.param(*budget, marks=pytest.mark.slow) for budget in ((0.1, 1e-5), (0.5, 0.05), (5.0, 1e-9))),
    ],
)
def test_plans_are_within_the_budget_and_use_it(epsilon: float, delta: float) -> None:
    found = planned(epsilon, delta, CAPS)
    assert 0.95 * delta <= found.certificate.delta <= delta
    assert found.certificate.epsilon == epsilon
    assert found.certificate.delta_lower <= found.certificate.delta
    assert found.budget_of_release.epsilon <= epsilon
    assert found.budget_of_release.delta < delta
    for cap in CAPS:
        plan = found.plan(cap)
        assert plan.contract.items == cap
        assert plan.budget.delta == found.budget_of_release.delta
        if not isinstance(plan.noise, LaplaceNoise):
            assert plan.budget == found.budget_of_release
            # The choice costs the release little.
            assert plan.total_noise <= 1.06 * plan_of(epsilon, delta, cap).total_noise


def test_denser_nodes_give_nearly_the_same_certificate() -> None:
    """With many more nodes the bound is slightly lower, and still above the delta of the worst plan alone."""
    found = planned()
    epsilon, variance = found.budget.epsilon, found.choice.variance
    releases = [(plan.noise, plan.contract) for plan in (found.plan(cap) for cap in (2, 32, 512))]
    closer = certified(variance, releases, epsilon, 40)  # type: ignore[arg-type]
    alone = max(certify_noise(*release, epsilon=epsilon).delta for release in releases)
    assert alone < closer <= found.certificate.delta
    assert closer >= 0.95 * found.certificate.delta


def test_certificate_refuses_a_plan_of_the_whole_budget() -> None:
    found = planned()
    greedy = [plan_of(1.0, 1e-6, cap) for cap in CAPS]
    assert certify_choice(found.choice.variance, greedy, found.budget).delta > 1e-6
    # One bad plan among good ones is refused.
    mixed = [*found.plans[:-1], greedy[-1]]
    assert certify_choice(found.choice.variance, mixed, found.budget).delta > 1e-6


def test_planning_is_deterministic() -> None:
    again = plan_choice(Budget(1.0, 1e-6), plan_of, caps=CAPS)
    assert again == planned()
    assert again.to_dict() == planned().to_dict()


def test_other_releases_can_follow() -> None:
    """A public list, which has no threshold, and a top-k step, which does not need the limit."""

    def public(epsilon: float, delta: float, cap: int) -> Plan:
        return dphist.plan(epsilon=epsilon, delta=delta, public_items=100, max_items_per_user=cap)

    def top(epsilon: float, delta: float, cap: int) -> Plan:
        return dphist.plan(epsilon=epsilon, delta=delta, top=50, max_items_per_user=cap)

    for make, caps in ((public, (2, 100)), (top, (2, 30))):
        found = plan_choice(Budget(1.0, 1e-6), make, caps=caps)
        assert 0.95e-6 <= found.certificate.delta <= 1e-6
        sizes = [0] * (len(caps) + 1)
        sizes[0] = 100_000
        assert choose_plan(found, sizes)[0] == found.plans[0]


def test_bad_requests() -> None:
    budget = Budget(1.0, 1e-6)
    for share in (0.0, -0.1, 0.6, math.nan):
        with pytest.raises(InvalidParameter):
            plan_choice(budget, plan_of, share=share)
    with pytest.raises(InvalidParameter, match="no plan on offer"):
        planned().plan(7)


def test_variance_is_the_stated_share() -> None:
    mu = 1.0 / plan_of(1.0, 1e-6, 100).sigma * 10.0
    for share in (0.01, 0.02, 0.2):
        variance = variance_of_sizes(Budget(1.0, 1e-6), share)
        assert 1.0 / variance == pytest.approx(share * mu * mu, rel=2e-3)
        assert 1.0 / variance <= share * mu * mu * (1.0 + 1e-4)


def test_curve_of_choice_and_release_against_enumeration() -> None:
    """At every epsilon, also below the budget's: never below the worst user's divergence, and close to it."""
    variance, release, usual = Fraction(20), Budget(1.5, 0.0051), planned(1.5, 0.005, (1, 2))
    # So coarse that all outcomes can be enumerated, and each nearly (1.5, 0.0051)-private.
    noises = (LatticeNoise(2, Fraction(10), Fraction(0), 8), LatticeNoise(2, Fraction(20), Fraction(0), 12))
    made = zip(usual.plans, noises, (ONE, TWO), strict=True)
    plans = tuple(replace(plan, noise=noise, contract=contract) for plan, noise, contract in made)
    chosen = replace(
        usual,
        choice=CapChoice((1, 2), variance),
        budget_of_release=release,
        plans=plans,
        certificate=certify_choice(variance, plans, Budget(1.5, 0.01)),
    )
    # Near the budget's epsilon, users with shared and with new items are equally bad: the bound takes the worse of
    # them at each loss of the sizes, but a user is only one of them.
    slack = {1.5: 1.3, **({0.0: 1.05, 1.1: 1.05, 2.0: 1.05} if THOROUGH else {})}
    steps = [twin((noise, plan.contract)) for noise, plan in zip(noises, plans, strict=True)]
    for epsilon, delta in zip(slack, choice_curve(chosen, list(slack)), strict=True):
        truth = max(oracle.delta_adaptive_upper(steps, user, variance, epsilon=epsilon) for user in USERS.values())
        assert truth * (1.0 - 1e-13) <= delta <= slack[epsilon] * truth, (epsilon, delta / truth)


def test_curve_of_a_public_list_keeps_falling() -> None:
    """There are no new counts: above the budget's epsilon it falls like that of a Gaussian."""
    found = plan_choice(
        Budget(1.0, 1e-6),
        lambda epsilon, delta, cap: dphist.plan(
            epsilon=epsilon, delta=delta, public_items=8, max_items_per_user=cap
        ),
        caps=(1, 8),
    )
    epsilons = [0.0, 0.6, 1.0, 1.5, 2.0]
    for epsilon, delta in list(zip(epsilons, choice_curve(found, epsilons), strict=True))[1:]:
        own = certify_choice(found.choice.variance, found.plans, Budget(epsilon, delta)).delta
        assert own * 0.9 <= delta <= own * 1.5, epsilon


def test_caps_at_very_large_epsilons() -> None:
    for epsilon in (20.0, 800.0):
        found = planned(epsilon, 1e-6, (1, 8))
        assert 0.9e-6 <= found.certificate.delta <= 1e-6
        # Laplace noise that narrow cannot be drawn.
        assert {plan.mechanism for plan in found.plans} == {"gshm"}
        curve = choice_curve(found, [0.0, 0.5 * epsilon, epsilon])
        assert 1.0 >= curve[0] >= curve[1] > curve[2] == found.certificate.delta


@pytest.mark.parametrize("first", [0, 2], ids=["all", "gaussian"])
def test_skipped_evaluations_are_never_the_largest(first: int) -> None:
    plans = planned().plans[first:]
    points = [-0.1, 0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 1.0, 1.1, 2.0]
    for (x, bound), point in zip(largest_of_all(plans, points), points, strict=True):
        largest = max(delta_profile_upper(plan.noise, plan.contract, epsilon=point) for plan in plans)
        assert x == point
        # One bound for many plans is slightly above the largest of them.
        assert largest <= bound <= 1.01 * largest, (x, bound / largest)


def test_curve_passes_its_certificate() -> None:
    found = planned()
    epsilons = [0.0, 0.5, 0.9, 1.0, 1.02, 2.0]
    curve = choice_curve(found, epsilons)
    assert curve[3] == found.certificate.delta
    assert all(after <= before for before, after in pairwise(curve))
    for epsilon, delta in zip(epsilons[1:], curve[1:], strict=True):
        # With nodes for this epsilon only.
        own = certify_choice(found.choice.variance, found.plans, Budget(epsilon, delta)).delta
        assert 0.97 * own <= delta <= 1.03 * own
