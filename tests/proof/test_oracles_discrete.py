"""The oracles for discrete noise against brute force from the definitions, and in their continuous limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

import oracles as o
import oracles_discrete as d
import oracles_family as f
from scheduling import crossed

VARIANCES = (Fraction(1, 16), Fraction(1, 3), 2, 30, 10**5)
DIRECTIONS = ("add", "remove")
SMALL: dict[str, Any] = {"lattice": 2, "variance": Fraction(5, 2), "variance_shared": Fraction(4, 3), "limit": 5}


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    """Fifty digits for the arithmetic of the checks."""
    with mp.workdps(50):
        yield


def close(x: Any, y: Any, tolerance: float = 1e-40) -> bool:
    """Relative agreement."""
    return bool(abs(x - y) <= tolerance * max(abs(x), abs(y)))


def masses(variance: Any, reach: int) -> dict[int, mpf]:
    """The mass function from its definition on -reach..reach, normalised there."""
    weights = {x: mp.exp(-(mpf(x) ** 2) / (2 * o.real(variance))) for x in range(-reach, reach + 1)}
    total = mp.fsum(weights.values())
    return {x: weight / total for x, weight in weights.items()}


# The law.


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_normaliser_by_poisson_summation_and_the_total_mass(variance: Any) -> None:
    assert close(d.normaliser_summed(variance), d.normaliser_poisson(variance))
    reach = d.reach_of(variance)
    if reach < 1000:
        total = mp.fsum(d.discrete_gaussian_pmf(x=x, variance=variance) for x in range(-reach, reach + 1))
        assert close(total, 1)


@pytest.mark.parametrize("variance", VARIANCES)
def test_tails_are_symmetric_and_step_by_the_mass(variance: Any) -> None:
    scale = int(mp.ceil(mp.sqrt(o.real(variance))))
    for n in (-3 * scale, -1, 0, 1, 2, 4 * scale, 20 * scale, 60 * scale):
        tail = d.discrete_gaussian_tail(n=n, variance=variance)
        following = d.discrete_gaussian_tail(n=n + 1, variance=variance)
        mass = d.discrete_gaussian_pmf(x=n, variance=variance)
        assert close(tail, following + mass)
        assert abs(1 - tail - d.discrete_gaussian_tail(n=1 - n, variance=variance)) < mpf("1e-45")
        assert close(mass, d.discrete_gaussian_pmf(x=-n, variance=variance))
    zero = d.discrete_gaussian_pmf(x=0, variance=variance)
    assert close(d.discrete_gaussian_tail(n=0, variance=variance), (1 + zero) / 2)


def test_a_tail_by_hand() -> None:
    """Variance 1/(2 ln 2): the weight of x is 2^(-x^2)."""
    variance = 1 / (2 * mp.log(2))
    weights = [mpf(2) ** -(x * x) for x in range(15)]
    expected = mp.fsum(weights[2:]) / (2 * mp.fsum(weights) - 1)
    assert close(d.discrete_gaussian_tail(n=2, variance=variance), expected)


@pytest.mark.parametrize("n", [1, 700, 9_000, 90_000])
def test_euler_maclaurin_agrees_with_the_sum_where_both_work(n: int) -> None:
    with mp.workdps(80):
        assert close(d.upper_sum_euler_maclaurin(n, 10**6), d.upper_sum_brute(n, 10**6), 1e-55)


def test_huge_variances_keep_the_identities() -> None:
    variance, n = 10**12, 5 * 10**6
    step = d.discrete_gaussian_tail(n=n, variance=variance) - d.discrete_gaussian_tail(n=n + 1, variance=variance)
    assert close(step, d.discrete_gaussian_pmf(x=n, variance=variance), 1e-40)
    normal = o.normal_cdf(-(n - mpf(1) / 2) / 10**6)
    assert close(d.discrete_gaussian_tail(n=n, variance=variance), normal, 1e-10)


def test_sums_are_discrete_gaussians_from_four_steps_on_if_they_are_unweighted() -> None:
    """Two equal ones of deviation 4 agree with the doubled variance to 1e-60; 19 X + Y is far from any."""
    with mp.workdps(80):
        law = masses(16, 80)
        ratios = []
        for n in range(11):
            mass = mp.fsum(law[x] * law[n - x] for x in range(-60, 61))
            ratios.append(mass / d.discrete_gaussian_pmf(x=n, variance=32))
        assert max(abs(ratio - 1) for ratio in ratios) < mpf("1e-60")
        skewed = [mp.fsum(law[x] * law[n - 19 * x] for x in range(-3, 4)) for n in (0, 10)]
        nominal = [d.discrete_gaussian_pmf(x=n, variance=16 * (19**2 + 1)) for n in (0, 10)]
        assert skewed[0] / nominal[0] > 1.5
        assert skewed[1] / nominal[1] < 0.6


# The infinite event.


@pytest.mark.parametrize("limit", [-3, 0, 7, Fraction(47, 2), 60])
def test_the_infinite_event_of_one_count_is_a_convolution(limit: Any) -> None:
    own, shared = masses(6, 150), masses(2, 150)
    top = int(limit // 1)
    sums = [own[x] * shared[n - x] for n in range(top + 1, top + 120) for x in range(n - 60, min(150, n + 60) + 1)]
    value = d.infinite_event_discrete(count=1, variance=6, variance_shared=2, limit=limit)
    assert close(value, mp.fsum(sums), 1e-30)


@pytest.mark.parametrize(("count", "limit"), [(2, 3), (5, 4), (40, 0)])
def test_the_infinite_event_is_its_definition(count: int, limit: int) -> None:
    own, shared = masses(Fraction(3, 2), 40), masses(Fraction(1, 16), 12)
    none = [mass * mp.fsum(m for x, m in own.items() if x <= limit - w) ** count for w, mass in shared.items()]
    value = d.infinite_event_discrete(
        count=count, variance=Fraction(3, 2), variance_shared=Fraction(1, 16), limit=limit
    )
    assert close(value, 1 - mp.fsum(none), 1e-35)


def test_the_infinite_event_without_shared_noise_and_without_counts() -> None:
    tail = d.discrete_gaussian_tail(n=31, variance=9)
    value = d.infinite_event_discrete(count=7, variance=9, variance_shared=0, limit=Fraction(61, 2))
    with mp.workdps(90):
        assert close(value, 1 - (1 - tail) ** 7)
    assert d.infinite_event_discrete(count=0, variance=9, variance_shared=3, limit=1) == 0
    tiny = d.infinite_event_discrete(count=7, variance=9, variance_shared=mpf("1e-3"), limit=Fraction(61, 2))
    assert close(tiny, value, 1e-30)


def test_the_infinite_event_keeps_its_relative_precision_when_tiny() -> None:
    """Given Z_shared, two counts rarely pass together, so the event is linear in the number of counts."""
    one = d.infinite_event_discrete(count=1, variance=25, variance_shared=9, limit=200)
    assert mpf("1e-270") < one < mpf("1e-250")
    for count in (2, 9):
        many = d.infinite_event_discrete(count=count, variance=25, variance_shared=9, limit=200)
        assert close(many, count * one, 1e-45)


def test_the_infinite_event_approaches_the_normal_one() -> None:
    """With the half-step correction the difference is of second order in the step."""
    errors = []
    for steps in (10, 20, 40):
        value = d.infinite_event_discrete(
            count=5, variance=steps**2, variance_shared=Fraction(steps**2, 4), limit=4 * steps
        )
        exact = o.infinite_event(count=5, sigma=steps, sigma_shared=mpf(steps) / 2, tau=4 * steps + mpf(1) / 2)
        errors.append(abs(value / exact - 1))
    assert errors[-1] < mpf("2e-3")
    assert all(3.5 < coarse / fine < 4.5 for coarse, fine in itertools.pairwise(errors))


@pytest.mark.parametrize(("k", "sigma", "tau"), [(1, 3, 9), (2, 3, 10), (10, 8, 40), (81, 5, 32), (81, 5.5, 31.3)])
def test_the_split_bound_is_above_the_infinite_event(k: int, sigma: Any, tau: Any) -> None:
    variance = 4 * mpf(sigma) ** 2
    exact = d.infinite_event_discrete(
        count=k, variance=variance, variance_shared=variance / mp.sqrt(k), limit=2 * mpf(tau)
    )
    assert exact < d.infinite_event_discrete_upper(k=k, sigma=sigma, tau=tau) < 1


def test_the_split_bound_at_a_fourth_power_has_exact_limits() -> None:
    """k = 81: 2 tau/4 and 2 tau 3/4 are the integers 16 and 48 at tau = 32."""
    shared = 1 - d.discrete_gaussian_tail(n=17, variance=Fraction(100, 9))
    single = 1 - d.discrete_gaussian_tail(n=49, variance=100)
    assert close(d.infinite_event_discrete_upper(k=81, sigma=5, tau=32), 1 - shared * single**81, 1e-35)


# The route of the paper.


def _least_over_alpha(rho: mpf, epsilon: mpf) -> mpf:
    """The bound of the tight conversion as published, minimised over ever finer grids of ln(alpha - 1)."""

    def bound(x: mpf) -> mpf:
        a = 1 + mp.exp(x)
        return mp.exp((a - 1) * (a * rho - epsilon)) * (1 - 1 / a) ** a / (a - 1)

    centre, step = mpf(0), mpf(1)
    for _ in range(16):
        centre = min((centre + n * step for n in range(-20, 21)), key=bound)
        step /= 4
    return min(bound(centre), mpf(1))


@pytest.mark.parametrize(
    ("epsilon", "rho"),
    crossed([0, Fraction(7, 20), 1, 4, 10], [Fraction(1, 1000), Fraction(1, 20), Fraction(1, 2), 3]),
)
def test_the_tight_conversion(epsilon: Any, rho: Any) -> None:
    """At most the loose one, the least bound over alpha, and at least what a normal law of that rho needs."""
    tight, loose = d.delta_zcdp(rho=rho, epsilon=epsilon), d.delta_zcdp_loose(rho=rho, epsilon=epsilon)
    r, eps = o.real(rho), o.real(epsilon)
    assert tight <= loose <= 1
    assert tight >= o.delta_gaussian(sensitivity=mp.sqrt(2 * r), sigma=1, epsilon=eps)
    assert close(tight, _least_over_alpha(r, eps), 1e-12)
    if epsilon > rho:
        assert close(r + 2 * mp.sqrt(r * mp.log(1 / loose)), eps)
    else:
        assert loose == 1


def test_the_noise_of_the_recipe_at_k_51914() -> None:
    """All of delta = 1e-5 for zCDP, eps 0.35: 1578 is the least integer sigma; the tight conversion: 1218."""
    for conversion, sigma in ((d.delta_zcdp_loose, 1578), (d.delta_zcdp, 1218)):
        enough, little = (
            conversion(rho=d.rho_discrete_correlated_gaussian(k=51914, sigma=s), epsilon=Fraction(7, 20))
            for s in (sigma, sigma - 1)
        )
        assert enough <= mpf("1e-5") < little


def _least_threshold(sigma: Any) -> Fraction:
    """The least multiple of 1/2 between 175 and 225 that meets delta = 1e-5 at k = 10, eps = 0.35."""
    low, high = 350, 450
    while high - low > 1:
        middle = (low + high) // 2
        delta = d.delta_discrete_csh(
            k=10, sigma=sigma, tau=Fraction(middle, 2), epsilon=Fraction(7, 20), tight=False
        )
        low, high = (low, middle) if delta <= mpf("1e-5") else (middle, high)
    return Fraction(high, 2)


@pytest.mark.slow
def test_the_best_threshold_of_the_recipe_at_k_10() -> None:
    best = min((_least_threshold(Fraction(n, 5)), n) for n in range(120, 141))
    assert Fraction(395, 2) <= best[0] <= 198
    assert 125 < best[1] < 133


# Exact divergences.


@pytest.mark.parametrize(
    ("epsilon", "shift", "variance"), crossed([-1, 0, Fraction(1, 2), 3], [1, 2, 5], [Fraction(1, 16), 2, 30])
)
def test_the_divergence_of_a_shift(epsilon: Any, shift: int, variance: Any) -> None:
    law, factor = masses(variance, 150), mp.exp(o.real(epsilon))
    gains = [law.get(x - shift, mpf(0)) - factor * law[x] for x in range(-150, 151)]
    expected = mp.fsum(gain for gain in gains if gain > 0)
    value = d.delta_discrete_shift(variance=variance, shift=shift, epsilon=epsilon)
    assert close(value, expected)
    assert value == d.delta_discrete_shift(variance=variance, shift=-shift, epsilon=epsilon)


@pytest.mark.parametrize(
    ("variance", "tolerance"), [(10**4, 2e-3), pytest.param(10**6, 2e-5, marks=pytest.mark.slow)]
)
def test_the_divergence_of_a_shift_approaches_the_normal_one(variance: int, tolerance: float) -> None:
    sigma = mp.sqrt(variance)
    shift = int(sigma) // 2
    value = d.delta_discrete_shift(variance=variance, shift=shift, epsilon=1)
    assert close(value, o.delta_gaussian(sensitivity=shift, sigma=sigma, epsilon=1), tolerance)
    assert d.delta_discrete_shift(variance=10**4, shift=0, epsilon=1) == 0


def test_discrete_noise_may_need_a_little_more_delta() -> None:
    """One count in steps of 1/2 at the sigma that the continuous mechanism needs for 1e-5 at eps 0.35."""
    sigma = mpf("9.75497533870442385442")
    assert close(o.delta_gaussian(sensitivity=1, sigma=sigma, epsilon=mpf("0.35")), mpf("1e-5"), 1e-15)
    value = d.delta_discrete_shift(variance=4 * sigma**2, shift=2, epsilon=mpf("0.35"))
    assert close(value, mpf("1.0013876e-5"), 1e-7)


def enumerated(*, j: int, r: int, s: int, epsilon: Any, direction: str, reach: int, reach_shared: int) -> mpf:
    """delta_discrete_case for SMALL over the whole lattice of outputs, every quantity from its definition.

    In long doubles: sums of at most 12,167 outputs by 19 shared draws, right to 1e-15.
    """
    own, shared = masses(SMALL["variance"], 60), masses(SMALL["variance_shared"], reach_shared)
    none = {w: mp.fsum(m for x, m in own.items() if x <= SMALL["limit"] - w) ** r for w in shared}
    shape = (2 * reach + 1,) * j
    p, q = np.zeros(shape, dtype=np.longdouble), np.zeros(shape, dtype=np.longdouble)
    for w, mass in shared.items():
        still = [d.to_long(own[n - w]) for n in range(-reach, reach + 1)]
        moved = [d.to_long(own[n + SMALL["lattice"] - w]) for n in range(-reach, reach + 1)]
        p += d.to_long(mass * none[w]) * reduce(np.multiply.outer, [np.array(still)] * j)
        q += d.to_long(mass) * reduce(np.multiply.outer, [np.array(moved)] * s + [np.array(still)] * (j - s))
    factor = d.to_long(mp.exp(o.real(epsilon)))
    total = mpf(str(np.maximum(p - factor * q if direction == "add" else q - factor * p, 0).sum()))
    some = 1 - mp.fsum(shared[w] * none[w] for w in shared)
    return total + some if direction == "add" else total


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("j", "r", "s", "epsilon"),
    [(1, 1, 1, 1), (1, 3, 0, Fraction(1, 10)), (2, 0, 1, 2), (2, 2, 1, 1), (2, 1, 2, 3)],
)
def test_a_case_is_the_sum_over_all_outputs(j: int, r: int, s: int, epsilon: Any, direction: str) -> None:
    wide = {1: (36, 12), 2: (20, 9)}[j]
    expected = enumerated(j=j, r=r, s=s, epsilon=epsilon, direction=direction, reach=wide[0], reach_shared=wide[1])
    value = d.delta_discrete_case(j=j, r=r, s=s, epsilon=epsilon, direction=direction, **SMALL)
    assert close(value, expected, {1: 1e-13, 2: 1e-11}[j])


def test_a_case_of_three_counts_is_the_sum_over_all_outputs() -> None:
    expected = enumerated(j=3, r=2, s=2, epsilon=1, direction="add", reach=11, reach_shared=6)
    value = d.delta_discrete_case(j=3, r=2, s=2, epsilon=1, direction="add", **SMALL)
    assert close(value, expected, 1e-6)


@pytest.mark.parametrize("variance", [2, 30, 120])
@pytest.mark.parametrize("lattice", [1, 2, 3])
def test_a_single_changed_count_is_a_shift(variance: int, lattice: int) -> None:
    for direction in DIRECTIONS:
        value = d.delta_discrete_case(
            j=1, r=0, s=1, lattice=lattice, variance=variance, variance_shared=0, limit=0, epsilon=1,
            direction=direction,
        )  # fmt: skip
        expected = d.delta_discrete_shift(variance=variance, shift=lattice, epsilon=1)
        assert abs(value - expected) <= expected * mpf("1e-14") + mpf("1e-24")


def test_new_counts_alone_are_a_coin() -> None:
    some = d.infinite_event_discrete(count=4, variance=9, variance_shared=3, limit=6)
    keys: dict[str, Any] = {"j": 0, "r": 4, "s": 0, "lattice": 2, "variance": 9, "variance_shared": 3, "limit": 6}
    assert close(d.delta_discrete_case(**keys, epsilon=1, direction="add"), some, 1e-17)
    removed = d.delta_discrete_case(**keys, epsilon=mpf("0.01"), direction="remove")
    assert close(removed, 1 - mp.exp(mpf("0.01")) * (1 - some), 1e-15)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_more_shared_or_new_counts_never_lower_delta(direction: str) -> None:
    def delta(j: int, r: int, s: int) -> mpf:
        return d.delta_discrete_case(j=j, r=r, s=s, epsilon=Fraction(6, 5), direction=direction, **SMALL)

    for s in (0, 1, 2):
        table = [[delta(j, r, s) for r in range(4)] for j in range(s, s + 4)]
        for row in table:
            assert all(x <= y + mpf("1e-17") for x, y in itertools.pairwise(row))
        for upper, lower in itertools.pairwise(table):
            assert all(x <= y + mpf("1e-17") for x, y in zip(upper, lower, strict=True))


@pytest.mark.parametrize(
    ("case", "direction"),
    [
        ((1, 2, 1), "add"),
        *(
            pytest.param(case, direction, marks=pytest.mark.slow)
            for case, direction in itertools.product([(1, 2, 1), (2, 1, 1), (3, 0, 2), (5, 0, 3)], DIRECTIONS)
            if (case, direction) != ((1, 2, 1), "add")
        ),
    ],
)
def test_a_case_approaches_the_continuous_one(case: tuple[int, int, int], direction: str) -> None:
    """Noise 1.5, shared 1 and threshold 4 in counts, in steps of 1/lattice: second order in the step."""
    j, r, s = case
    epsilon, errors = Fraction(1, 2), []
    for lattice in (4, 8):
        value = d.delta_discrete_case(
            j=j, r=r, s=s, lattice=lattice, variance=Fraction(9 * lattice**2, 4), variance_shared=lattice**2,
            limit=4 * lattice, epsilon=epsilon, direction=direction,
        )  # fmt: skip
        tau = 4 + mpf(1) / (2 * lattice)
        exact = f.delta_case(
            j=j, r=r, s=s, sigma=mpf("1.5"), sigma_shared=1, tau=tau, epsilon=epsilon, direction=direction
        )
        errors.append(abs(value / exact - 1))
    assert errors[0] < mpf("5e-3")
    assert errors[1] < mpf("1.3e-3")


@pytest.mark.parametrize(
    ("parameters", "tight"),
    [
        *crossed([(1, 2, 6), (2, 3, 8)], [True, False]),
        *(pytest.param((3, 4, 14), tight, marks=pytest.mark.slow) for tight in (True, False)),
    ],
)
def test_the_theorem_of_the_paper_is_above_every_case(parameters: tuple[int, int, int], tight: bool) -> None:
    k, sigma, tau = parameters
    variance = 4 * sigma**2
    for epsilon in (Fraction(1, 2), 2):
        bound = d.delta_discrete_csh(k=k, sigma=sigma, tau=tau, epsilon=epsilon, tight=tight)
        for j, direction in itertools.product(range(k + 1), DIRECTIONS):
            for s in range(j + 1):
                exact = d.delta_discrete_case(
                    j=j, r=k - j, s=s, lattice=2, variance=variance, variance_shared=variance / mp.sqrt(k),
                    limit=2 * tau, epsilon=epsilon, direction=direction,
                )  # fmt: skip
                assert exact <= bound
