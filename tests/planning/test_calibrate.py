"""Plans: the numbers to reach, what every plan must satisfy, and which options go together."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dphist
import oracles
from dphist.accounting.profile import delta_at, epsilon_at, profile
from dphist.certificate.plans import certificate_of
from dphist.errors import InvalidParameter, NoPlan, NotPrivate
from dphist.model import ANALYSES, Budget, Contract, LaplaceNoise, LatticeNoise, Noise
from dphist.paper.bounds import tau_laplace
from dphist.paper.certification import certify
from dphist.paper.figure import frontier, tau_for_noise
from dphist.planning import planner
from dphist.planning.compare import compare
from dphist.planning.optimum import NO_SUMS, lattice_and_variances, on_lattice
from dphist.planning.planner import certify_continuous
from dphist.planning.planner import plan as make_plan
from dphist.planning.utility import count_noise
from dphist.proof.continuous import certify_family, certify_noise
from dphist.proof.exact import delta_family
from scheduling import crossed, examples

# These numbers are for continuous noise; tests/proof/test_discrete.py compares discrete plans with them.
plan = partial(make_plan, noise="continuous")

# epsilon, k, analysis, gamma -> total noise, tau; delta = 1e-5. The minimum of adding the deltas is flat: its
# noise was checked as a root of the derivative with 50 digits.
NUMBERS = [
    (0.35, 10, "gshm-add-the-deltas", None, 31.841, 157.591),
    (0.35, 51914, "gshm-add-the-deltas", None, 2268.464, 14673.325),
    (0.35, 10, "gshm-exact", None, 30.848, 146.633),
    (0.35, 51914, "gshm-exact", None, 2222.636, 13913.455),
    (0.35, 10, "csh-add-the-deltas", None, 20.951, 141.764),
    (0.35, 51914, "csh-add-the-deltas", None, 1139.210, 7839.860),
    (0.35, 10, "csh-tighter", None, 20.301, 131.946),
    (0.35, 51914, "csh-tighter", None, 1116.196, 7433.866),
    (0.35, 10, "exact", "sqrt", 20.260, 96.304),
    (0.35, 51914, "exact", "sqrt", 1116.196, 6987.260),
    (0.35, 10, "best", None, 20.246, 96.237),
    (0.35, 51914, "best", None, 1116.196, 6987.260),
    (0.349, 51914, "gshm-exact", None, 2228.483, 13950.051),
    (0.349, 51914, "csh-add-the-deltas", None, 1142.208, 7860.543),
    (0.349, 51914, "csh-tighter", None, 1119.132, 7453.420),
    (0.349, 51914, "exact", "sqrt", 1119.132, 7005.638),
    (0.349, 51914, "best", None, 1119.132, 7005.638),
]


@pytest.mark.parametrize(
    ("epsilon", "k", "analysis", "gamma", "noise", "tau"),
    [
        pytest.param(*row, marks=() if row[0] == 0.35 and (row[1] == 10 or row[3] == "sqrt") else pytest.mark.slow)
        for row in NUMBERS
    ],
)
def test_numbers_to_reach(epsilon: float, k: int, analysis: str, gamma: None, noise: float, tau: float) -> None:
    result = plan(epsilon=epsilon, delta=1e-5, max_nonzero=k, analysis=analysis, gamma=gamma)
    assert round(result.total_noise, 3) == noise
    assert round(result.tau, 3) == tau
    assert result.proof.delta <= 1e-5


# (k, m) -> tau over the GSHM's at the same m, gamma tuned for the threshold.
RATIOS = {
    (51914, 51914): 0.502, (10, 10): 0.656, (1000, 500): 0.729, (1000, 250): 0.881, (1000, 100): 0.958,
    (1000, 10): 0.998, (100, 50): 0.774, (100, 25): 0.912, (100, 10): 0.976, (2, 2): 0.816, (100, 100): 0.550,
}  # fmt: skip


@pytest.mark.parametrize(
    ("k", "m"), [pytest.param(*pair, marks=pytest.mark.slow if n % 2 else ()) for n, pair in enumerate(RATIOS)]
)
def test_ratio_to_the_gshm(k: int, m: int) -> None:
    ours = plan(epsilon=0.35, delta=1e-5, max_nonzero=k, max_items_per_user=m)
    gshm = plan(epsilon=0.35, delta=1e-5, max_items_per_user=m, analysis="gshm-exact")
    assert round(ours.tau / gshm.tau, 3) == RATIOS[k, m]


budgets = st.builds(
    lambda epsilon, log_delta: Budget(epsilon, 10.0**log_delta), st.floats(0.05, 8.0), st.floats(-12.0, -3.0)
)


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    k = draw(st.sampled_from([1, 2, 3, 5, 8, 20, 137, 4000, 10**6, 10**9]))
    return Contract(k, draw(st.integers(1, k)))


@settings(max_examples=examples(25))
@given(budget=budgets, contract=contracts(), minimize=st.sampled_from(["threshold", "noise"]))
def test_every_plan_is_certified_and_never_worse_than_the_gshm(
    budget: Budget, contract: Contract, minimize: str
) -> None:
    numbers: dict[str, Any] = {"epsilon": budget.epsilon, "delta": budget.delta}
    ours = plan(**numbers, max_nonzero=contract.max_nonzero, max_items_per_user=contract.items, minimize=minimize)
    gshm = plan(**numbers, max_items_per_user=contract.items, analysis="gshm-exact", minimize=minimize)
    assert ours.proof.delta <= budget.delta
    assert ours.proof.delta_lower <= ours.proof.delta
    assert isinstance(ours.noise, Noise)
    assert delta_family(ours.noise, contract, epsilon=budget.epsilon).delta <= budget.delta
    if minimize == "threshold":
        assert ours.tau <= gshm.tau
    else:
        assert ours.total_noise <= gshm.total_noise


@settings(max_examples=examples(10))
@given(budget=budgets, k=st.sampled_from([2, 9, 300, 10**5]))
def test_plans_are_sharp(budget: Budget, k: int) -> None:
    """With a threshold or noise lower by 0.1 %, a real pair of neighbours exceeds the budget."""
    ours = plan(epsilon=budget.epsilon, delta=budget.delta, max_nonzero=k)
    contract = ours.contract
    lower = Noise(ours.sigma, ours.sigma_shared, ours.tau * 0.999)
    quieter = Noise(ours.sigma * 0.999, ours.sigma_shared * 0.999, ours.tau)
    for broken in (lower, quieter):
        result = certify_family(broken, contract, epsilon=budget.epsilon)
        assert result.delta_lower > budget.delta


@pytest.mark.parametrize(("analysis", "k"), crossed(ANALYSES, [1, 7, 51914]))
def test_every_analysis_is_within_its_own_bound(analysis: str, k: int) -> None:
    result = plan(epsilon=0.7, delta=1e-6, max_nonzero=k, analysis=analysis)
    numbers: dict[str, Any] = {"sigma": result.sigma, "sigma_shared": result.sigma_shared, "tau": result.tau}
    own = certify(epsilon=0.7, **numbers, max_nonzero=k, delta=1e-6)
    if analysis in own.delta:
        assert own.delta[analysis] <= 1e-6
    assert own.delta["exact"] <= min(own.delta.values()) * (1.0 + 1e-6)


def test_the_order_of_the_analyses() -> None:
    for k in (2, 30):
        names = ("exact", "csh-tighter", "csh-add-the-deltas")
        taus = [plan(epsilon=0.35, delta=1e-5, max_nonzero=k, analysis=name, gamma="sqrt").tau for name in names]
        assert taus == sorted(taus)


def test_the_independent_oracle_accepts_the_plan_and_refuses_a_lower_threshold() -> None:
    best = plan(epsilon=0.35, delta=1e-5, max_nonzero=51914)
    noise = {"sigma": best.sigma, "sigma_shared": best.sigma_shared}
    assert oracles.infinite_event(count=51914, tau=best.tau, **noise) <= 1e-5
    assert oracles.infinite_event(count=51914, tau=best.tau * 0.9999, **noise) > 1e-5


def test_mixtures_that_bind_raise_the_threshold() -> None:
    """Tiny epsilon with a large delta: the pure cases alone would allow a lower threshold."""
    result = plan(epsilon=0.01, delta=0.05, max_nonzero=6, gamma=2.0)
    pure = Noise(result.sigma, result.sigma_shared, result.tau * 0.995)
    contract = result.contract
    assert dphist.proof.exact.gaussian_case(pure, contract, epsilon=0.01).delta <= 0.05
    assert dphist.proof.exact.infinite_case(pure, contract).delta <= 0.05
    assert delta_family(pure, contract, epsilon=0.01).delta > 0.05
    assert result.proof.delta <= 0.05


def test_least_noise_is_below_that_of_the_least_threshold() -> None:
    quiet = plan(epsilon=1.0, delta=1e-6, max_nonzero=50, max_items_per_user=12, minimize="noise")
    low = plan(epsilon=1.0, delta=1e-6, max_nonzero=50, max_items_per_user=12)
    assert quiet.total_noise <= low.total_noise
    assert low.tau <= quiet.tau


def test_adding_the_deltas_has_no_least_noise() -> None:
    with pytest.raises(NoPlan, match="grows without bound"):
        plan(epsilon=1.0, delta=1e-6, max_nonzero=5, analysis="csh-add-the-deltas", minimize="noise")


@pytest.mark.parametrize(("epsilon", "delta"), crossed([1e-3, 1.0, 100.0, 800.0], [1e-300, 1e-100, 0.5, 0.99]))
def test_extreme_budgets(epsilon: float, delta: float) -> None:
    result = plan(epsilon=epsilon, delta=delta, max_items_per_user=3)
    assert result.proof.delta <= delta
    assert math.isfinite(result.tau)


def test_profile_and_its_inverse() -> None:
    best = plan(epsilon=0.35, delta=1e-5, max_nonzero=10)
    curve = profile(best, [0.0, 0.2, 0.35, 5.0])
    deltas = [delta for _, delta in curve]
    assert deltas == sorted(deltas, reverse=True)
    assert delta_at(best, 0.35) <= 1e-5
    epsilon = epsilon_at(best, 1e-3)
    assert delta_at(best, epsilon) <= 1e-3 < delta_at(best, epsilon * (1.0 - 1e-5))
    assert epsilon_at(best, 0.5) == 0.0
    with pytest.raises(NotPrivate, match="no epsilon reaches delta = 1e-07: delta stays at"):
        epsilon_at(best, 1e-7)
    with pytest.raises(InvalidParameter, match="between 0 and 800"):
        delta_at(best, -0.1)


def test_frontier_passes_and_rises_from_the_least_noise() -> None:
    curve = frontier(epsilon=0.35, delta=1e-5, analysis="exact", max_nonzero=10, gamma=3.0, points=12)
    taus = [tau for _, tau in curve.points]
    assert taus == sorted(taus)
    assert curve.points[0][0] == pytest.approx(20.246, abs=1e-3)
    for noise, tau in curve.points[::4]:
        sigma = noise / math.sqrt(1.0 + 1.0 / 3.0)
        result = certify(epsilon=0.35, sigma=sigma, gamma=3.0, tau=tau * (1 + 1e-9), max_nonzero=10, delta=1e-5)
        assert result.delta["exact"] <= 1e-5


def test_tau_for_noise() -> None:
    numbers: dict[str, Any] = {"epsilon": 0.35, "delta": 1e-5, "max_nonzero": 10}
    assert math.isinf(tau_for_noise(sigma=1.0, sigma_shared=1.0, **numbers))
    tau = tau_for_noise(sigma=40.0, sigma_shared=9.0, **numbers)
    assert certify(epsilon=0.35, sigma=40.0, sigma_shared=9.0, tau=tau, max_nonzero=10).delta["exact"] <= 1e-5
    with pytest.raises(InvalidParameter, match="has no shared noise"):
        tau_for_noise(sigma=40.0, sigma_shared=9.0, analysis="gshm-exact", **numbers)
    with pytest.raises(InvalidParameter, match="needs max_nonzero"):
        tau_for_noise(sigma=40.0, analysis="csh-tighter", epsilon=0.35, delta=1e-5, max_items_per_user=3)


def test_comparison_has_all_rows_and_says_the_ratio() -> None:
    table = compare(epsilon=0.35, delta=1e-5, max_nonzero=10)
    by_name = {row.analysis: row for row in table.rows}
    assert by_name["exact, gamma tuned"].ratio_to_gshm == pytest.approx(0.656, abs=5e-4)
    assert by_name["csh-tighter"].ratio_to_gshm == pytest.approx(0.900, abs=5e-4)
    assert [row.mechanism for row in table.rows] == ["gshm", "gshm", *["csh"] * 6, "laplace"]
    without_k = compare(epsilon=0.35, delta=1e-5, max_items_per_user=4)
    assert [row.mechanism for row in without_k.rows] == ["gshm", "gshm", "laplace"]


def test_laplace_is_recommended_where_it_wins() -> None:
    assert any("Laplace" in note for note in plan(epsilon=1.0, delta=1e-6, max_items_per_user=1).notes)
    assert not any("Laplace" in note for note in plan(epsilon=1.0, delta=1e-6, max_items_per_user=50).notes)


def test_the_printed_plan_is_the_certified_plan() -> None:
    """The numbers on the screen are not rounded: they pass when they are typed back."""
    shown = dict(plan(epsilon=0.35, delta=1e-5, max_nonzero=7).rows())
    sigma, shared = float(shown["noise of each count"]), float(shown["shared noise"].split()[0])
    tau = float(Decimal(shown["threshold"].split()[0]) - 1)
    typed = certify(epsilon=0.35, sigma=sigma, sigma_shared=shared, tau=tau, max_nonzero=7, delta=1e-5)
    assert typed.delta["exact"] <= 1e-5


def test_the_published_threshold_is_never_below_the_certified_one() -> None:
    for tau in (1e-9, 0.1, 6987.259647, 1.0 / 3.0, 123456789.123456):
        assert Fraction(Noise(1.0, 0.0, tau).threshold) - 1 >= Fraction(tau)


def test_a_target_just_above_the_infinite_event_is_answered() -> None:
    best = plan(epsilon=1.0, delta=1e-6, max_nonzero=10)
    floor = dphist.proof.exact.infinite_case(best.noise, best.contract).delta  # type: ignore[arg-type]
    with pytest.raises(NotPrivate, match="no epsilon reaches"):
        epsilon_at(best, math.nextafter(floor, 0.0))
    target = floor * (1.0 + 1e-9)
    assert delta_at(best, epsilon_at(best, target)) <= target


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 1}, "at least 2 points"),
        ({"points": 2.5}, "points must be a whole number"),
        ({"largest_noise": math.nan}, "largest_noise must be a finite number"),
        ({"analysis": "bogus-add-the-deltas"}, "analysis must be 'exact' or 'gshm"),
        ({"gamma": "root"}, "gamma must be 'sqrt' or a number"),
    ],
)
def test_bad_frontiers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        frontier(
            **{"epsilon": 1.0, "delta": 1e-5, "analysis": "exact", "max_nonzero": 5, "gamma": "sqrt", **options}
        )


def test_huge_numbers_and_results_that_hash() -> None:
    with pytest.raises(InvalidParameter, match="too large"):
        plan(epsilon=10**400, delta=1e-5, max_nonzero=5)
    assert isinstance(hash(certify(epsilon=1.0, sigma=30.0, tau=165.0, max_items_per_user=50)), int)


TEN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "max_nonzero": 10}


@pytest.mark.parametrize(
    "wrong",
    [
        {"top": 10, "max_nonzero": 10},
        {"top": 10, "gamma": 2.0},
        {"top": 10, "mechanism": "laplace"},
        {"max_nonzero": 10, "gamma": 2.0, "mechanism": "laplace"},
        {"max_nonzero": 10, "mechanism": "other"},
        {"max_nonzero": 10, "minimize": "other"},
        {"minimize": "noise"},
        {"mechanism": "laplace"},
        {"goal": "keys", "top": 10},
        {"goal": "other"},
    ],
    ids=str,
)
def test_options_that_do_not_go_together(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        make_plan(epsilon=1.0, delta=1e-6, **wrong)


@pytest.mark.parametrize("gamma", [1.0, 1.4, 12.5, 40.0])
def test_a_given_gamma_is_used(gamma: float) -> None:
    """Discrete noise rounds it to a whole number, with a note."""
    found = make_plan(**TEN, gamma=gamma)
    assert (found.sigma / found.sigma_shared) ** 2 == pytest.approx(round(gamma))
    assert any(note.startswith("Gamma is ") for note in found.notes) == (gamma != round(gamma))
    ideal = make_plan(**TEN, gamma=gamma, noise="continuous")
    assert (ideal.sigma / ideal.sigma_shared) ** 2 == pytest.approx(gamma)


@pytest.mark.parametrize("gamma", [0.3, 0.01])
def test_a_gamma_below_one_is_for_continuous_noise(gamma: float) -> None:
    with pytest.raises(InvalidParameter, match="gamma must be a whole number of at least 1"):
        make_plan(**TEN, gamma=gamma)
    ideal = make_plan(**TEN, gamma=gamma, noise="continuous")
    assert (ideal.sigma / ideal.sigma_shared) ** 2 == pytest.approx(gamma)


def test_a_gamma_that_leaves_no_shared_noise_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="gamma = 1e\\+12 leaves too little shared noise"):
        make_plan(**TEN, gamma=1e12)


def test_laplace_thresholds_beyond_the_whole_doubles() -> None:
    law: dict[str, Any] = {"m": 10**12, "scale": 1e18, "delta": 1e-12}
    assert tau_laplace(**law, discrete=True) > 2**53
    assert tau_laplace(**law, discrete=True) == pytest.approx(tau_laplace(**law), rel=1e-9)


def test_release_probabilities_rise_from_nothing_to_certainty() -> None:
    for bounds in ({"max_nonzero": 10}, {"max_items_per_user": 1}, {"top": 100}):
        found = make_plan(epsilon=1.0, delta=1e-6, **bounds)  # type: ignore[arg-type]
        spread = math.hypot(found.sigma, found.sigma_shared)
        low = max(1, round(found.threshold - 4 * spread))
        chances = (
            count_noise(found.noise).probability(np.arange(low, round(found.threshold + 4 * spread))).tolist()
        )
        assert chances == sorted(chances)
        assert chances[0] < 0.02
        assert chances[-1] > 0.98
    with pytest.raises(InvalidParameter, match="has no threshold"):
        count_noise(make_plan(epsilon=1.0, delta=1e-6, public_items=10).noise)


@pytest.mark.parametrize(
    "bound",
    [
        *({"top": top, "offset": rule} for top in (1, 2, 5) for rule in ("opposite", "independent", "none")),
        {"max_items_per_user": 1}, {"max_nonzero": 1},
        {"max_nonzero": 12}, {"max_nonzero": 12, "gamma": 3}, {"max_nonzero": 12, "noise": "continuous"},
        {"public_items": 5}, {"max_items_per_user": 2, "sums": [(0, 1)]},
        {"max_items_per_user": 4, "mechanism": "laplace"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (0.1, 1e-3)])
def test_no_plan_is_above_its_delta_by_any_share(bound: dict[str, Any], epsilon: float, delta: float) -> None:
    """Certified again without a budget, in which the search could have been generous."""
    plan = make_plan(epsilon=epsilon, delta=delta, **bound)
    again = certify_noise(plan.noise, plan.contract, epsilon=epsilon).delta
    assert plan.proof.delta <= delta, f"accepted at {plan.proof.delta / delta} times its delta"
    assert again <= delta, f"accepted at {again / delta} times its delta"


def test_noise_half_a_per_cent_above_delta_is_not_accepted() -> None:
    """What the search proposes and what others give are compared with delta itself, without a tolerance."""
    ideal, drawn = (
        make_plan(epsilon=0.5, delta=1e-5, max_nonzero=12, noise=kind) for kind in ("continuous", "discrete")
    )
    assert isinstance(ideal.noise, Noise)
    contract, above = ideal.contract, Budget(0.5, ideal.proof.delta / 1.005)
    with pytest.raises(NoPlan):
        pytest.fail(f"accepted above its delta: {certify_continuous(ideal.noise, above, contract)}")
    noise, certificate = on_lattice(ideal.noise, above, contract)
    assert certificate.delta <= above.delta, f"accepted at {certificate.delta / above.delta} times its delta"
    again = certify_noise(noise, contract, epsilon=0.5).delta
    assert again <= above.delta, f"accepted at {again / above.delta} times its delta"
    assert isinstance(drawn.noise, LatticeNoise)
    above = Budget(0.5, drawn.proof.delta / 1.005)
    with pytest.raises(NotPrivate):
        pytest.fail(f"accepted above its delta: {certificate_of(drawn.noise, contract, above)}")


def test_a_public_list_with_slightly_less_noise_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search proposes noise whose delta is within the budget; what it proposes is compared all the same."""
    budget, contract = Budget(0.5, 1e-5), Contract(5, 5)
    proposed = lattice_and_variances

    def reduce(noise: Any) -> Any:
        variance, shared = noise.variance * 9999 / 10000, noise.variance_shared * 9999 / 10000
        return replace(noise, variance=variance, variance_shared=shared)

    ratio = (
        certify_noise(reduce(planner.public_plan(budget, contract, NO_SUMS).noise), contract, epsilon=0.5).delta
        / 1e-5
    )
    assert 1.0001 < ratio < 1.01
    monkeypatch.setattr(planner, "lattice_and_variances", lambda *given, **more: reduce(proposed(*given, **more)))
    with pytest.raises(NoPlan):
        pytest.fail(f"accepted above its delta: {planner.public_plan(budget, contract, NO_SUMS)}")


def test_a_laplace_threshold_slightly_too_low_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a scale of 400, one less raises delta by a quarter of a per cent."""
    budget, contract = Budget(0.0025, 1e-5), Contract(None, 1)
    expected = planner.laplace_plan(budget, contract).noise
    assert isinstance(expected, LaplaceNoise)
    below = certify_noise(replace(expected, tau_steps=expected.tau_steps - 1), contract, epsilon=0.0025).delta
    assert 1e-5 < below < 1.004e-5
    monkeypatch.setattr(planner, "tau_laplace", lambda **_: expected.tau_steps - 1)
    found = planner.laplace_plan(budget, contract)
    assert found.noise == expected, f"accepted at {found.proof.delta / budget.delta} times its delta"
