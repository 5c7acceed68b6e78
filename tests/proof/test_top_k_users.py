"""A top-k step with a limit on the items of a user: its certificates against an oracle that enumerates."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import pytest

from dphist.accounting import gaussian_of_plan
from dphist.accounting.concentrated import squared_sensitivity
from dphist.certificate.plans import sketch_problem
from dphist.model import Contract, LatticeNoise, OffsetRule, Plan, SumNoise
from dphist.paper.bounds import delta_gaussian
from dphist.planning.planner import plan
from dphist.proof import balls, lattice
from dphist.proof import certify_lattice as certificates
from dphist.proof.certify_lattice import certify_lattice
from dphist.proof.lattice import TopKMove, moves_top_k
from dphist.proof.sensitivity import squared_sensitivity_top_k
from oracles_top_k import gaussian_sensitivity_squared
from oracles_top_k_users import exact_delta


@dataclass(frozen=True)
class Case:
    k: int
    limit: int | None
    noise: LatticeNoise
    epsilon: float

    def certified(self) -> float:
        return certify_lattice(self.noise, Contract(self.k, self.limit), epsilon=self.epsilon).delta

    def exact(self) -> tuple[float, float]:
        noise, shared = self.noise, self.noise.variance_shared
        assert noise.offset != "none"
        worst = exact_delta(
            k=self.k, m=self.limit, lattice=noise.lattice, variance=noise.variance, variance_shared=shared,
            variance_offset=shared, limit=noise.tau_steps, epsilon=self.epsilon, offset=noise.offset,
            sums=tuple((one.reach, one.variance) for one in noise.sums),
        )  # fmt: skip
        return worst.delta, worst.error


def case(
    k: int, limit: int | None, shared: Fraction | int, gamma: int, tau: int, epsilon: float,
    rule: OffsetRule = "opposite", steps: int = 2, sums: tuple[tuple[int, int], ...] = (),
) -> Case:  # fmt: skip
    variance = Fraction(shared)
    values = tuple(SumNoise(Fraction(0), Fraction(1), reach, Fraction(of_sum)) for reach, of_sum in sums)
    return Case(k, limit, LatticeNoise(steps, variance * gamma, variance, tau, rule, values), epsilon)


def random_cases(seed: int, number: int) -> Iterator[Case]:
    """Little noise, coarse lattices and limits near 0 are the most adversarial."""
    draw = random.Random(seed)
    while number:
        k, gamma = draw.choice([1, 1, 2, 2, 3]), draw.choice([1, 1, 2, 3, 4])
        limit = draw.choice([None, *range(1, k + 1)])
        shared = Fraction(draw.choice([4, 5, draw.randrange(4, 30)]), draw.choice([1, 1, 3]))
        if shared < 4 or shared * gamma > 60:
            continue
        tau = draw.choice([1, 2, draw.randrange(1, 10), draw.randrange(5, 60)])
        epsilon = draw.choice([0.0, 0.1, 0.5, 1.0, 2.0, draw.uniform(0, 3)])
        rule: OffsetRule = draw.choice(["opposite", "opposite", "opposite", "independent"])
        yield case(k, limit, shared, gamma, tau, epsilon, rule, steps=draw.choice([2, 2, 4, 6, 10]))
        number -= 1


def random_cases_of_sums(seed: int, number: int) -> Iterator[Case]:
    """Few counts beside which the sums matter, mostly with a limit below them."""
    draw = random.Random(seed)
    for _ in range(number):
        k = draw.choice([1, 2, 2, 2, 3])
        limit = draw.choice([None, *range(1, k + 1), *range(1, k)])
        gamma = draw.choice([1, 2]) if k < 3 else 1
        sums = [
            (draw.randint(1, 5), draw.choice([4, 6, 9, 30]))
            for _ in range(draw.choice([1, 1, 2]) if k == 1 else 1)
        ]
        tau, epsilon = draw.choice([1, 8, 30, 60]), draw.choice([0.0, 0.2, 1.0, draw.uniform(0, 3)])
        rule: OffsetRule = draw.choice(["opposite", "opposite", "opposite", "independent"])
        steps = draw.choice([2, 4, 10])
        yield case(k, limit, draw.choice([4, 5]), gamma, tau, epsilon, rule, steps, tuple(sums))


# Where one part of the proof alone is the worst, and its certificate therefore nearly exact.
LIMITED = case(3, 1, 5, 4, 60, 0.5)  # c changes, and no count is touched
TOUCHED = case(3, 2, 6, 1, 60, 0.5, steps=10)  # c changes, and one count is touched
CHANGED = case(3, 2, 6, 3, 60, 0.5, steps=10)
VANISHING = case(3, 1, 12, 1, 14, 2.0)  # more counts vanish than a user has items
ODD = case(1, None, 8, 1, 60, 0.5, steps=6)
SUMS = case(2, 1, 5, 1, 60, 0.5, steps=4, sums=((3, 6),))  # c stays, as then more sums move
SUMS_FALLING = case(2, 2, 5, 2, 60, 0.5, steps=4, sums=((1, 30),))
NAMED = (LIMITED, TOUCHED, CHANGED, VANISHING, ODD, SUMS, SUMS_FALLING)


def check(one: Case) -> None:
    exact, error = one.exact()
    assert one.certified() >= exact - error, one


@pytest.mark.parametrize("one", NAMED)
def test_named_cases(one: Case) -> None:
    check(one)


def test_no_certificate_is_below_the_exact_delta() -> None:
    for one in random_cases(1, 40):
        check(one)


def test_no_certificate_of_sums_is_below_the_exact_delta() -> None:
    for one in random_cases_of_sums(1, 150):
        check(one)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_no_certificate_is_below_the_exact_delta_in_many_cases(seed: int) -> None:
    for one in (*random_cases(100 + seed, 150), *random_cases_of_sums(100 + seed, 60)):
        check(one)


# Wrong certificates are found out.

Moves = Callable[..., list[list[TopKMove]]]


def without_a_move_of_c(**numbers: object) -> list[list[TopKMove]]:
    return [cover for cover in moves_top_k(**numbers) if not cover[0].rises]  # type: ignore[arg-type]


def with_one_item_less(**numbers: object) -> list[list[TopKMove]]:
    """As if the user also had to touch a second count that is not shared."""
    fewer = numbers | {"limit": numbers["limit"] - 1}  # type: ignore[operator]
    return moves_top_k(**fewer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "wrong"),
    [(CHANGED, without_a_move_of_c), (CHANGED, with_one_item_less), (TOUCHED, with_one_item_less)],
)
def test_neighbours_that_are_left_out_are_found(monkeypatch: pytest.MonkeyPatch, one: Case, wrong: Moves) -> None:
    monkeypatch.setattr(lattice, "moves_top_k", wrong)
    exact, error = one.exact()
    assert one.certified() < exact - error


def test_a_limit_does_not_bound_the_counts_that_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (certificates, lattice):
        monkeypatch.setattr(module, "contract_of_new", lambda _, contract: contract)
    exact, error = VANISHING.exact()
    assert VANISHING.certified() < exact - error


@pytest.mark.parametrize("one", [TOUCHED, CHANGED, ODD])
def test_a_percent_less_noise_is_found(one: Case) -> None:
    """These certificates are nearly exact, so that they do not hold for slightly less noise."""
    exact, error = one.exact()
    more = LatticeNoise(
        one.noise.lattice, one.noise.variance * Fraction(102, 100), one.noise.variance_shared * Fraction(102, 100),
        one.noise.tau_steps, one.noise.offset,
    )  # fmt: skip
    assert certify_lattice(more, Contract(one.k, one.limit), epsilon=one.epsilon).delta < exact - error


# The squared sensitivity.


@pytest.mark.parametrize("rule", ["opposite", "independent", "none"])
def test_the_squared_sensitivity_is_that_of_the_worst_neighbours(rule: OffsetRule) -> None:
    for k, gamma in product((1, 2, 3, 8), (1, 3)):
        shared = gamma**-0.5
        for limit in (None, *range(1, k)):
            bound = float(squared_sensitivity_top_k(shared=k, gamma=gamma, rule=rule, limit=limit))
            # Of k shared counts, `up` rise; or all but `touched` fall with c.
            up = [(n, 0) for n in range((limit or k) + 1)]
            down = [(k - touched, -1) for touched in range(k + 1 if limit is None else limit)]
            exact = max(
                float(gaussian_sensitivity_squared(k, moved, change, 1.0, shared, shared, rule))
                for moved, change in up + down
            )
            assert exact <= bound * (1 + 1e-12)
            if rule == "opposite":
                assert bound == pytest.approx(exact, rel=1e-12)


def squared(move: TopKMove, steps: int, gamma: int) -> int:
    common = sum(one**2 for one in move.of_shared_noise(steps, "opposite"))
    others = move.shared - move.touched
    return move.touched * (steps - move.step) ** 2 + others * move.step**2 + gamma * common


@pytest.mark.parametrize("extra", [Fraction(1, 8), Fraction(1, 2), Fraction(3)])
@pytest.mark.parametrize("steps", [None, 2, 10, 200])
def test_the_squared_sensitivity_with_sums_is_at_least_that_of_all_users(
    extra: Fraction, steps: int | None
) -> None:
    """Each at the best of all real offsets."""
    for k, gamma in product(range(1, 12), (1, 2, 3)):
        for limit in (None, *range(1, k)):
            bound = squared_sensitivity_top_k(
                shared=k, gamma=gamma, rule="opposite", limit=limit, lattice=steps, extra=extra
            )
            for rises in (0, 1):
                for touched in range((k if limit is None else limit - rises) + 1):
                    moved = touched + gamma * rises
                    assert moved - Fraction(moved**2, k + 2 * gamma) + extra * touched <= bound


@pytest.mark.parametrize("sums", [False, True])
def test_a_cover_covers_all_users(sums: bool) -> None:
    """Each user's squared move, at the step that covers them, is at most that of the cover.

    Sums move with the touched counts, so that with them no move covers users who touch more counts.
    """
    for shared, gamma, limit, steps in product((0, 1, 2, 5, 8), (1, 3), (None, 1, 2, 4), (2, 4, 10, 14)):
        for new in range(3):
            covers = moves_top_k(
                shared=shared, new=new, limit=limit, gamma=gamma, rule="opposite", lattice=steps, sums=sums
            )
            by_move = {cover[0].rises: cover for cover in covers}
            for rises in (False, True):
                most = shared if limit is None else min(shared, limit - 1 if rises else limit - new)
                for touched in range(most + 1):
                    first, *others = by_move[rises]
                    for moves in [[first], others or [first]]:
                        covering = [
                            move
                            for move in moves
                            if (2 * move.step <= steps and touched <= move.touched)
                            or (2 * move.step >= steps and touched >= move.touched and not sums)
                        ]
                        assert covering
                        for move in covering:
                            own = TopKMove(rises, shared, touched, move.step)
                            assert squared(own, steps, gamma) <= squared(move, steps, gamma)


# Plans.


def planned(top: int, limit: int | None = None, **options: object) -> Plan:
    return plan(epsilon=1.0, delta=1e-6, top=top, max_items_per_user=limit, **options)  # type: ignore[arg-type]


def test_both_bounds_are_used_where_that_is_best() -> None:
    both, alone = planned(1000, 250), planned(1000)
    capped = plan(epsilon=1.0, delta=1e-6, max_items_per_user=250)
    assert (both.mechanism, both.contract) == ("top-k", Contract(1000, 250))
    assert both.proof.delta <= 1e-6
    assert both.total_noise < 0.88 * alone.total_noise
    assert both.total_noise < 0.92 * capped.total_noise
    assert both.threshold < min(alone.threshold, capped.threshold)


@pytest.mark.parametrize(
    ("limit", "mechanism", "items"), [(5, "gshm", 5), (25, "gshm", 25), (32, "top-k", 32), (45, "top-k", 100)]
)
def test_the_better_plan_for_a_limit(limit: int, mechanism: str, items: int) -> None:
    """A limit is not applied if it hardly lowers the noise; a top-k step is not if it would hide more items."""
    made = planned(100, limit)
    assert (made.mechanism, made.contract.items) == (mechanism, items)


def test_a_sketch_keeps_no_limit_on_users() -> None:
    assert sketch_problem(planned(100), 20) is None
    assert sketch_problem(planned(100, 32), 20) is not None


def test_the_papers_offset_and_differences_have_no_joint_plan() -> None:
    for rule in ("independent", "none"):
        assert planned(1000, 400, offset=rule).contract in (Contract(1000), Contract(None, 400))


def test_sums_with_both_bounds() -> None:
    both, alone = (planned(1000, limit, sums=[(0, 10)]) for limit in (250, None))
    assert both.contract == Contract(1000, 250)
    assert both.sums[0].sigma < 0.7 * alone.sums[0].sigma
    assert both.total_noise < 0.9 * alone.total_noise


@pytest.mark.parametrize(("k", "limit"), [(6, None), (6, 1), (6, 2), (7, 3), (7, None), (40, 12)])
def test_the_certificate_of_sums_is_that_of_the_worst_neighbours(k: int, limit: int | None) -> None:
    """On a fine lattice, without new counts, against continuous noise at the distance of each pair."""
    steps, gamma, extra, epsilon = 600, 2, Fraction(3, 4), 1.0
    variance = Fraction(9 * k * steps**2)
    reach = 1 << 10
    value = SumNoise(Fraction(-1), Fraction(1), reach, reach**2 * variance / (extra * steps**2))
    noise = LatticeNoise(steps, variance, variance / gamma, 10**9, "opposite", (value,))
    assert noise.extra == extra
    family = lattice.TopKFamily(noise, Contract(k, limit), epsilon=epsilon, scale=1e-9)
    with balls.precision(128):
        certified = balls.upper(family.gaussian_worst(0))
    whole, worst, half = k + 2 * gamma, Fraction(0), Fraction(0)
    for touched in range((limit or k) + 1):
        for moved in [touched] + [touched + gamma] * (limit is None or touched < limit):
            worst = max(worst, moved - Fraction(moved**2, whole) + extra * touched)
            half = max(half, Fraction(whole, 4) + extra * touched)
    least, most = (
        delta_gaussian(sensitivity=math.sqrt(squared), sigma=3 * math.sqrt(k), epsilon=epsilon)
        for squared in (worst, half)
    )
    assert least * (1 - 1e-6) <= certified <= most * (1 + 1e-6)
    if limit is not None:
        assert certified <= least * 1.001


@pytest.mark.parametrize("k", [1, 3, 5])
def test_an_odd_number_of_counts_needs_the_least_noise(k: int) -> None:
    """By the exact squared sensitivity (n - 1/n)/4 instead of n/4."""
    made = planned(k)
    assert isinstance(made.noise, LatticeNoise)
    whole = k + 2 * made.gamma
    least = squared_sensitivity(made.noise, made.contract) * made.noise.squared_sigma
    assert float(least) == pytest.approx((whole - 1 / whole) / 4, rel=1e-3)
    assert least < Fraction(int(whole), 4)


def test_a_ledger_books_a_coarse_lattice_in_full() -> None:
    """At least the squared move of each user, at the best of its whole steps."""
    for k, gamma, steps in product((1, 2, 3, 6, 9), (1, 2, 5), (2, 4, 6, 10)):
        for extra, limit in product((Fraction(0), Fraction(3, 2)), (None, *range(1, k))):
            sums = (SumNoise(Fraction(0), Fraction(1), 2, 4 * 100 * gamma / (extra * steps**2)),) if extra else ()
            noise = LatticeNoise(steps, Fraction(100 * gamma), Fraction(100), 5, "opposite", sums)
            assert noise.extra == extra
            booked = squared_sensitivity(noise, Contract(k, limit)) * noise.squared_sigma
            for rises in (False, True):
                for touched in range((k if limit is None else limit - rises) + 1):
                    moves = (TopKMove(rises, k, touched, step) for step in range(steps + 1))
                    least = min(squared(move, steps, gamma) for move in moves)
                    assert Fraction(least, steps**2) + extra * touched <= booked


def test_a_limit_lowers_the_price_in_a_ledger() -> None:
    both = planned(1000, 250)
    noise = both.noise
    assert isinstance(noise, LatticeNoise)
    assert noise.gamma_whole is not None
    # x - x^2/n with x = m - 1 + gamma, n = k + 2 gamma, against n/4; a little more, as offsets are on the lattice.
    moved, whole = 249 + noise.gamma_whole, 1000 + 2 * noise.gamma_whole
    limited = squared_sensitivity(noise, both.contract) * noise.squared_sigma
    assert 0 <= limited - Fraction(moved * (whole - moved), whole) < Fraction(limited, 1000)
    assert squared_sensitivity(noise, Contract(1000)) * noise.squared_sigma == Fraction(whole, 4)
    cost, alone = gaussian_of_plan(both), gaussian_of_plan(replace(both, contract=Contract(1000)))
    assert cost.squared < 0.79 * alone.squared
    assert certify_lattice(noise, Contract(1000), epsilon=1.0).delta > 3e-6, "the plan needs the limit"
