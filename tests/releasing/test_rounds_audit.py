"""Releases in rounds under attack: correct ones are not contradicted, and planted faults do not survive.

Most tests need no statistics: which noise was asked for, what one more user changes, what follows from noisy
numbers. The attacks run the real functions on counts that an adversary chose, many copies at once: items get
independent noise, so each copy of a few items and a user is an independent release. A lower bound on delta is
wrong with probability 1e-10 at most, all of a run together 1e-9. Faults that they contradict show their power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from operator import mul
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from dphist.audit import delta_lower_bound
from dphist.certificate.request import Column
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.task import Events, Resources, RoundsCount, RoundsTask, Value
from dphist.model import Budget, LaplaceNoise, Plan, RoundsNoise
from dphist.planning.estimate import size_bounds
from dphist.planning.rounds import plan_rounds
from dphist.proof.rounds import event_of_rounds
from dphist.releasing import rounds as real
from dphist.sampling.rng import SeededRng
from dphist.sampling.sampler import ExactSampler
from dphist.sampling.table import GaussianLaw, LaplaceLaw
from rounds_counts import GivenCounts, MemoryRounds, task_of
from scheduling import crossed

# A delta that attacks can see.
BUDGET: Final = Budget(0.5, 0.05)
RISK: Final = 0.25e-10
LARGE: Final = 1000
ROUNDS: Final = 5


def noise_of(plan: Plan) -> RoundsNoise:
    assert isinstance(plan.noise, RoundsNoise)
    return plan.noise


@cache
def honest(gaussian: bool = False) -> Plan:
    return plan_rounds(BUDGET, gaussian=gaussian)


# Planted faults: a piece of the module that is replaced by another.
FAULTS: Final = {
    "a list that depends on a true count": (
        "~found & (pooled >= total * noise.cuts[number])",
        "~found & (weights >= noise.cuts[number])",
    ),
    "found items not removed": ("~found & (pooled >= total", "(pooled >= total"),
    "evidence pooled with wrong weights": ("before + part * noisy(", "before + 30 * noisy("),
    "evidence of earlier rounds forgotten": ("before + part * noisy(", "part * noisy("),
    "no noise of users with one item": (
        "steps = noisy(true * noise.alone.lattice, noise_of_group(noise.alone), draws)",
        "steps = true * noise.alone.lattice",
    ),
    "noise of users with one item drawn twice": (
        "users = steps / noise.alone.lattice",
        "users = noisy(true * noise.alone.lattice, noise_of_group(noise.alone), draws) / noise.alone.lattice",
    ),
    "noise of a measurement not scaled by its limit": (
        "noise.measure_noise(limit)[0]",
        "noise.measure_noise(1)[0]",
    ),
    "noise of sums not scaled by the limit": (
        "DiscreteGaussian(limit * part.variance)",
        "DiscreteGaussian(part.variance)",
    ),
    "no shared draw": ("if shared else 0", "if False else 0"),
    "sizes without noise": (
        "noisy(true, DiscreteGaussian(noise.variance / noise.sizes), Fresh(rng)).tolist()",
        "true.tolist()",
    ),
    "an item that nobody with one item has": ("& (users > 0)", "& (users >= 0)"),
    "an item on nobody's list": ("alive[weights > 0], weights[weights > 0]", "alive, weights"),
    "the threshold of users with one item compared with >=": ("(steps > noise.lattice", "(steps >= noise.lattice"),
    "a limit compared with >=": (
        "pooled > total * noise.thresholds_steps",
        "pooled >= total * noise.thresholds_steps",
    ),
}


@cache
def faulty(fault: str) -> Any:
    """The module of releases in rounds with this fault; the real one without a name."""
    if not fault:
        return real
    right, wrong = FAULTS[fault]
    text = Path(real.__file__).read_text()
    assert text.count(right) == 1, f"the fault {fault!r} needs the line that it replaces"
    module = ModuleType(real.__name__)
    exec(compile(text.replace(right, wrong), real.__file__, "exec"), module.__dict__)
    return module


# --- attacks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Copies of a user with `items` items, and what is added to the counts of each, in users.

    Others add `base` in each round, `others` to the measurement and `alone` in the group of users with one item.
    A user of the group of several adds `first` in the first round and `later` in others, else `one`. `bucket` is
    where all other users are in the sizes. `known` items are only measured.
    """

    items: int = 1
    base: tuple[float, ...] = (0.0,) * ROUNDS
    first: float = 0.0
    later: float = 0.0
    others: float = LARGE
    alone: int = 0
    one: int = 0
    several: bool = True
    known: bool = False
    bucket: int = 0


def undecided(noise: RoundsNoise) -> tuple[float, ...]:
    """What others have to add so that an item likely stays until the last round, more so with the user."""
    pooled = [
        noise.pooled_parts(r) * (0.25 * noise.thresholds_steps[r] + 0.75 * noise.cuts[r]) / noise.lattice
        for r in range(noise.rounds - 1)
    ]
    moves = np.diff([0.0, *pooled]) / np.array(noise.parts[:-1])
    return (*moves.tolist(), LARGE)


def near_a_cut() -> Case:
    """An item that leaves after the first round or not, by a hair; the others make sure that it is found then."""
    noise = noise_of(honest())
    return Case(base=(noise.cuts[0] / noise.lattice - 0.5, *(LARGE,) * (ROUNDS - 1)), first=1.0, later=1.0)


def run(
    module: Any, plan: Plan, case: Case, copies: int, rng: SeededRng, *, present: bool
) -> tuple[Any, Any, int]:
    """Published numbers of all copies: by item, the logarithm of how much likelier they are with the user."""
    noise, size = noise_of(plan), copies * case.items
    lattice = noise.lattice

    def steps(users: float) -> Any:
        return np.full(size, math.floor(users * lattice))

    def added(users: float) -> int:
        return math.floor(users * lattice) if present and case.several else 0

    def measured(limit: int) -> tuple[Any, ...]:
        return (steps(case.others) + added(min(1.0, math.sqrt(limit / case.items))),)

    counts = GivenCounts(
        [steps(base) + added(case.later if r else case.first) for r, base in enumerate(case.base)],
        measured,
        lambda buckets: [10 * size * (k == case.bucket) for k in range(buckets)],
        np.full(size, case.alone + case.one * present),
        np.full(size, case.known),
    )
    found = module.find_items(noise, counts, rng)
    result = module.measure_items(plan, counts, found, rng)
    ratio = np.zeros(size)
    if case.several:
        pooled = np.cumsum(np.array(noise.parts) * [math.floor(base * lattice) for base in case.base])
        means = pooled / np.cumsum(noise.parts) / lattice
        places = np.maximum(found.found_in.astype(int), 1) - 1
        deviations = np.array([noise.deviation(r) for r in range(noise.rounds)])[places]
        in_round = found.found_in > real.ALONE
        scored = case.later * (found.score - means[places] - case.later / 2) / deviations**2
        ratio[found.numbers] += np.where(in_round, scored, 0.0)
        if result.weights is not None:
            weight = min(1.0, math.sqrt(result.limit / case.items))
            variance = float(noise.measure_noise(result.limit)[0]) / lattice**2
            ratio[found.numbers] += weight * (result.weights - case.others - weight / 2) / variance
    elif noise.alone is not None and found.alone is not None:
        mean = found.alone - case.alone
        if isinstance(noise.alone, LaplaceNoise):
            ratio[found.numbers] += np.clip(2 * mean - 1, -1, 1) / float(noise.alone.scale)
        else:
            ratio[found.numbers] += (mean - 0.5) / noise.alone.sigma**2
    listed = np.zeros(size, bool)
    listed[found.numbers] = True
    return ratio.reshape(copies, -1).sum(axis=1), listed.reshape(copies, -1), result.limit


def attacked(module: Any, plan: Plan, case: Case, *, copies: int, batches: int = 1, seed: int = 1) -> float:
    """The lower bound on delta from the event that numbers are likelier with the user, by a level.

    A first batch of both sides chooses the level, and whether items have to be listed, in place of likely.
    """
    rng, factor = SeededRng(seed), math.exp(plan.budget.epsilon)

    def likely(present: bool) -> tuple[Any, Any]:
        ratio, listed, _ = run(module, plan, case, copies, rng, present=present)
        return ratio, listed.any(axis=1)

    (ratio, listed), (without, listed_without) = likely(True), likely(False)
    levels = [-math.inf, *np.quantile(ratio, np.linspace(0, 0.999, 300)).tolist()]
    gains = [np.sum(listed & (ratio > e)) - factor * np.sum(listed_without & (without > e)) for e in levels]
    level, hits = levels[int(np.argmax(gains))], [0, 0]
    for _ in range(batches):
        for side, present in enumerate((True, False)):
            ratio, listed = likely(present)
            hits[side] += int(np.count_nonzero(listed & (ratio > level)))
    return delta_lower_bound(hits[0], hits[1], copies * batches, epsilon=plan.budget.epsilon, risk=RISK)


def shared_items(items: int, bucket: int = 0) -> Case:
    """Items that others have, undecided until the last round."""
    weight = 1 / math.sqrt(items)
    return Case(items, undecided(noise_of(honest())), weight, weight, bucket=bucket)


def new_items(items: int) -> Case:
    """Items that nobody else has, with the largest weights that the certificate allows."""
    noise = noise_of(honest())
    first, later = noise.first_weight(items), noise.largest_later_weight(items)
    return Case(items, first=first / noise.lattice, later=later / noise.lattice)


ATTACKS: Final = {
    "an item of others": (shared_items(1), 400_000),
    "sixteen items of others, and a large limit": (shared_items(16, bucket=8), 25_000),
    "many known items": (Case(64, known=True, bucket=12), 4_000),
    "a new item": (new_items(1), 100_000),
    "as many new items as a user may have": (new_items(256), 2_000),
    "an item near a cut": (near_a_cut(), 50_000),
    "a new item of a user with one": (Case(one=1, several=False), 100_000),
    "an item of others, of a user with one": (Case(alone=6, one=1, several=False), 100_000),
}
# Of delta, found by the best attacks.
USED: Final = {"an item of others": 0.4, "a new item of a user with one": 0.5}


@pytest.mark.parametrize("gaussian", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_certificate_is_not_contradicted(attack: str, gaussian: bool) -> None:
    plan, (case, copies) = honest(gaussian), ATTACKS[attack]
    found = attacked(real, plan, case, copies=copies, batches=4)
    assert found <= plan.budget.delta
    if not gaussian:
        assert found >= USED.get(attack, 0.0) * plan.budget.delta


@pytest.mark.slow
def test_the_certificate_is_nearly_used() -> None:
    """Half of delta is found with an item of others; new items are found as often as their bound says."""
    plan = honest()
    assert 0.5 * plan.budget.delta < attacked(real, plan, shared_items(1), copies=400_000, batches=25)
    # The bound holds for all cuts. At a delta that attacks can see, half of the items would leave in time.
    uncut = replace(plan, noise=replace(noise_of(plan), cuts=(0,) * (ROUNDS - 1)))
    event, runs, rng = event_of_rounds(noise_of(uncut)), 120_000, SeededRng(3)
    assert event == event_of_rounds(noise_of(plan))
    hits = sum(
        int(run(real, uncut, new_items(event.items), 2_000, rng, present=True)[1].any(axis=1).sum())
        for _ in range(60)
    )
    spread = 6.7 * math.sqrt(event.several / runs)
    assert 0.9 * event.several - spread < hits / runs < event.several + spread


@pytest.mark.parametrize(
    ("fault", "attack"),
    [
        ("a list that depends on a true count", "an item near a cut"),
        ("no noise of users with one item", "an item of others, of a user with one"),
        ("noise of users with one item drawn twice", "an item of others, of a user with one"),
        ("noise of a measurement not scaled by its limit", "many known items"),
    ],
)
def test_a_fault_is_contradicted(fault: str, attack: str) -> None:
    case, copies = ATTACKS[attack]
    assert attacked(faulty(fault), honest(), case, copies=copies) > honest().budget.delta


def test_too_little_noise_is_contradicted() -> None:
    """A deviation of 0.7 in place of 1, with the certificate of 1."""
    noise = noise_of(honest())
    plan = replace(honest(), noise=replace(noise, variance=noise.variance * Fraction(49, 100)))
    assert attacked(real, plan, shared_items(1), copies=400_000) > plan.budget.delta


def test_sizes_without_noise_are_contradicted() -> None:
    """Buckets get independent noise: each is a copy of one user."""
    plan, buckets = honest(), len(size_bounds(noise_of(honest()).most_items))
    one_item = real.Found(np.zeros(1, np.int64), np.ones(1, np.int8), np.zeros(1), None)

    def bound(module: Any) -> float:
        hits, rng, runs = [0, 0], SeededRng(5), 20
        for side in (0, 1):
            counts = GivenCounts([], lambda _: (np.zeros(1, np.int64),), partial(mul, [6 - side]))
            for _ in range(runs):
                sizes = module.measure_items(plan, counts, one_item, rng).sizes
                hits[side] += int(np.count_nonzero(np.array(sizes) == 6 * noise_of(plan).lattice))
        return delta_lower_bound(hits[0], hits[1], runs * buckets, epsilon=plan.budget.epsilon, risk=RISK)

    assert bound(faulty("sizes without noise")) > 0.5
    assert bound(real) == 0.0


# --- which noise is asked for ---------------------------------------------------------------------------------

KINDS: Final[dict[str, dict[str, Any]]] = {
    "accuracy": {},
    "keys": {"goal": "keys"},
    "gaussian": {"gaussian": True},
    "sums": {"sums": [(0, 1), (-2, 5)]},
    "a vector": {"sums": [(-2, 2, 3)], "goal": "keys"},
    "a list with a shared draw": {"public_items": 40},
    "a list without one": {"public_items": 100_000, "sums": [(0, 1)]},
}


@cache
def plan_of(kind: str) -> Plan:
    return plan_rounds(Budget(1.0, 1e-6), **KINDS[kind])


@contextmanager
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, int]]]:
    """No noise, and the law and the number of all draws that were asked for."""
    asked = list[tuple[Any, int]]()

    def sample(self: ExactSampler, n: int, *_: Any) -> Any:
        asked.append((self.table.law, n))
        return np.zeros(n, np.int64)

    with monkeypatch.context() as patch:
        patch.setattr(ExactSampler, "_sample", sample)
        yield asked


PER_ROUND: Final = 3


def without_noise(plan: Plan, bucket: int) -> GivenCounts:
    """Some items are known; and some are found by users with one item, in each round, and never."""
    noise = noise_of(plan)
    items = PER_ROUND * (noise.rounds + 3)
    found = np.repeat(np.arange(-1, noise.rounds + 2), PER_ROUND)
    if noise.listed:
        found[:] = -1
    rounds = [
        np.where(found == r + 1, 10 * noise.thresholds_steps[0], noise.thresholds_steps[-1]).astype(np.int64)
        for r in range(noise.rounds)
    ]
    alone = np.where(found == 0, 10**5, 0) if noise.alone is not None else None
    if noise.alone is None:
        found[found == 0] = noise.rounds + 1
    columns = 1 + len(plan.summed)
    return GivenCounts(
        rounds,
        lambda _: (np.full(items, 5 * noise.lattice),) * columns,
        lambda buckets: [10**6 * (k == bucket) for k in range(buckets)],
        alone,
        found == -1,
    )


def expected_draws(plan: Plan, limit: int) -> list[tuple[Any, int]]:
    """The law and the number of all draws, from the plan alone."""
    noise = noise_of(plan)
    groups = noise.rounds + 3 - (noise.alone is not None)  # of items that the first round counts
    several = groups - 1 if noise.rounds else 0
    draws: list[tuple[Any, int]] = []
    if noise.alone is not None:
        laplace = isinstance(noise.alone, LaplaceNoise)
        law = (
            LaplaceLaw(noise.alone.scale)
            if isinstance(noise.alone, LaplaceNoise)
            else GaussianLaw(noise.alone.variance)
        )
        assert laplace == (plan is not plan_of("gaussian"))
        draws.append((law, PER_ROUND * (noise.rounds + 3)))
    draws += [
        (GaussianLaw(noise.variance / part), PER_ROUND * (several - r)) for r, part in enumerate(noise.parts)
    ]
    draws.append((GaussianLaw(noise.variance / noise.sizes), len(size_bounds(noise.most_items, noise.listed))))
    own, shared = noise.measure_noise(limit)
    found = PER_ROUND * (noise.rounds + 1 + (noise.alone is not None) if noise.rounds else 3)
    draws.append((GaussianLaw(own), found))
    draws += [(GaussianLaw(shared), 1)] if shared else []
    draws += [(GaussianLaw(limit * one.variance), found) for one in noise.sums for _ in range(one.columns)]
    return sorted(draws, key=repr)


def draws_of(
    module: Any, monkeypatch: pytest.MonkeyPatch, plan: Plan, bucket: int
) -> tuple[list[tuple[Any, int]], int]:
    counts = without_noise(plan, bucket)
    with silent(monkeypatch) as asked:
        found = module.find_items(noise_of(plan), counts, SeededRng(1))
        measured = module.measure_items(plan, counts, found, SeededRng(1))
    return sorted(asked, key=repr), measured.limit


@pytest.mark.parametrize("bucket", [0, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_every_draw_has_the_variance_of_the_plan(monkeypatch: pytest.MonkeyPatch, kind: str, bucket: int) -> None:
    """And every number its own, once. One per cent less would be a forged certificate."""
    asked, limit = draws_of(real, monkeypatch, plan_of(kind), bucket)
    assert (limit > 1) == (bucket > 0)
    assert asked == expected_draws(plan_of(kind), limit)
    assert bool(noise_of(plan_of(kind)).measure_noise(limit)[1]) == (
        kind == "a list with a shared draw" and limit > 1
    )


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("no noise of users with one item", "accuracy"),
        ("noise of users with one item drawn twice", "gaussian"),
        ("noise of a measurement not scaled by its limit", "keys"),
        ("noise of sums not scaled by the limit", "sums"),
        ("no shared draw", "a list with a shared draw"),
        ("sizes without noise", "accuracy"),
    ],
)
def test_a_fault_asks_for_other_noise(monkeypatch: pytest.MonkeyPatch, fault: str, kind: str) -> None:
    asked, limit = draws_of(faulty(fault), monkeypatch, plan_of(kind), bucket=6)
    assert asked != expected_draws(plan_of(kind), limit)


# --- what follows from noisy numbers --------------------------------------------------------------------------


def everything(module: Any, plan: Plan, counts: GivenCounts) -> list[Any]:
    """What is published, and what left the lists when."""
    found = module.find_items(noise_of(plan), counts, SeededRng(1))
    measured = module.measure_items(plan, counts, found, SeededRng(1))
    arrays = [found.numbers, found.found_in, found.score, found.alone, measured.weights, *measured.sums]
    lists = [None if array is None else array.tolist() for array in arrays]
    return [*lists, measured.sizes, measured.limit, counts.left]


def follows_from_noisy_numbers(module: Any, monkeypatch: pytest.MonkeyPatch, seed: int) -> bool:
    """Whether other true counts with noise that makes the same noisy numbers are published in the same way."""
    plan, rng, items = honest(), np.random.default_rng(seed), 40
    noise = noise_of(plan)
    seen = list[Any]()

    def numbers() -> GivenCounts:
        rounds = [rng.integers(1, 20 * noise.lattice, items) for _ in noise.parts]
        measured, sizes = rng.integers(1, 10**6, items), rng.integers(0, 500, 99).tolist()
        return GivenCounts(rounds, lambda _: (measured,), lambda n: sizes[:n], rng.integers(1, 9, items))

    def drawn(true: Any, *_: Any) -> Any:
        step = noise.lattice if seen else 1
        seen.append(true + rng.integers(-5 * step, 10 * step, true.size))
        return seen[-1]

    with monkeypatch.context() as patch, silent(monkeypatch):
        patch.setattr(module, "noisy", drawn)
        first = everything(module, plan, numbers())
        again = iter(list(seen))

        def repeated(true: Any, *_: Any) -> Any:
            noisy = next(again)
            return noisy if noisy.size == true.size else np.zeros_like(true)

        patch.setattr(module, "noisy", repeated)
        try:
            return first == everything(module, plan, numbers())
        except StopIteration:
            return False


def test_lists_and_results_depend_on_noisy_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(follows_from_noisy_numbers(real, monkeypatch, seed) for seed in range(20))


@pytest.mark.parametrize(
    "fault", ["a list that depends on a true count", "no noise of users with one item", "sizes without noise"]
)
def test_a_fault_makes_results_depend_on_true_counts(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    assert not any(follows_from_noisy_numbers(faulty(fault), monkeypatch, seed) for seed in range(3))


def found_without_noise(
    module: Any, monkeypatch: pytest.MonkeyPatch, rounds: list[Any], alone: Any = None, noise: int = 0
) -> tuple[dict[int, int], dict[int, float], list[tuple[int, ...]]]:
    """Where items were found and their evidence, and what left, if all draws are `noise`."""
    counts = GivenCounts([np.array(one) for one in rounds], lambda _: (), lambda _: [], alone)
    with monkeypatch.context() as patch:
        patch.setattr(ExactSampler, "_sample", lambda _, n, *__: np.full(n, noise))
        found = module.find_items(noise_of(honest()), counts, SeededRng(1))
    numbers = found.numbers.tolist()
    return (
        dict(zip(numbers, found.found_in.tolist(), strict=True)),
        dict(zip(numbers, found.score.tolist(), strict=True)),
        counts.left,
    )


def items_at_limits() -> tuple[list[Any], Any]:
    """Items 0 to 4 are at the limit of a round, 5 to 9 above; 10 is at that of users with one item, 11 above."""
    noise = noise_of(honest())
    assert noise.alone is not None
    weights = [
        *noise.thresholds_steps,
        *(limit + 1 for limit in noise.thresholds_steps),
        noise.thresholds_steps[-1],
        noise.thresholds_steps[-1],
    ]
    return [weights] * ROUNDS, np.array([0] * 2 * ROUNDS + [noise.alone.tau_steps + 1, noise.alone.tau_steps + 2])


def test_an_item_at_a_limit_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits decrease, so an item at the limit of a round is above that of the next."""
    found, _, _ = found_without_noise(real, monkeypatch, *items_at_limits())
    assert found == {0: 2, 1: 3, 2: 4, 3: 5, 5: 1, 6: 2, 7: 3, 8: 4, 9: 5, 11: 0}


@pytest.mark.parametrize(
    "fault", ["the threshold of users with one item compared with >=", "a limit compared with >="]
)
def test_a_fault_finds_an_item_at_a_limit(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    right, _, _ = found_without_noise(real, monkeypatch, *items_at_limits())
    assert found_without_noise(faulty(fault), monkeypatch, *items_at_limits())[0] != right


def test_evidence_is_pooled_by_parts_and_what_is_found_or_hopeless_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    found, score, left = found_without_noise(real, monkeypatch, *uneven_items())
    assert found == {0: 1, 1: 3, 3: 4}  # and 4 is hopeless in the fourth
    assert score == {item: pytest.approx(pooled, rel=1e-12) for item, pooled in uneven_evidence().items()}
    # Before the first round, and after each but the last.
    assert left[:4] == [(), (0, 2), (), (1,)]


def uneven_items() -> tuple[list[Any]]:
    """Item 0 is found in the first round, 1 in the third, 2 is hopeless in the first, 3 is found last, 4 never."""
    noise = noise_of(honest())
    first, half = noise.cuts[0], [limit // 2 for limit in noise.thresholds_steps]
    return ([
        [noise.thresholds_steps[0] + 1, first + 7, first - 1, first, half[0]],
        [10**9, 2 * noise.cuts[1] + 99, 10**9, 2 * noise.cuts[1], half[1]],
        [10**9, 10 * noise.thresholds_steps[2], 10**9, 2 * noise.cuts[2] + 456, half[2]],
        [10**9, 10**9, 10**9, 10 * noise.thresholds_steps[3], 1],
        [10**9] * 5,
    ],)  # fmt: skip


def uneven_evidence() -> dict[int, float]:
    noise, (rounds,) = noise_of(honest()), uneven_items()

    def pooled(item: int, last: int) -> float:
        parts = noise.parts[: last + 1]
        whole = sum(k * int(w[item]) for k, w in zip(parts, rounds, strict=False))
        return whole / sum(parts) / noise.lattice

    return {0: pooled(0, 0), 1: pooled(1, 2), 3: pooled(3, 3)}


@pytest.mark.parametrize(
    "fault",
    ["evidence pooled with wrong weights", "evidence of earlier rounds forgotten", "found items not removed"],
)
def test_a_fault_pools_otherwise_or_leaves_other_items(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    right = found_without_noise(real, monkeypatch, *uneven_items())
    assert found_without_noise(faulty(fault), monkeypatch, *uneven_items()) != right


def test_an_item_that_nobody_of_the_group_has_is_never_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if noise is far above all thresholds. Item 0 is on no list, 1 on those of users with several items."""
    rounds, alone = [[0, 1]] * ROUNDS, np.zeros(2, np.int64)
    huge = 10**9
    assert found_without_noise(real, monkeypatch, rounds, alone, huge)[0] == {1: 1}
    for fault, expected in (
        ("an item that nobody with one item has", {0: 0, 1: 0}),
        ("an item on nobody's list", {0: 1, 1: 1}),
    ):
        assert found_without_noise(faulty(fault), monkeypatch, rounds, alone, huge)[0] == expected


# --- what one more user changes -------------------------------------------------------------------------------

Opened = AbstractContextManager[RoundsCount]
# From the items whose weights the user moved in a round and all items, to the items that leave after it.
Schedule = Callable[[int, set[Any], list[Any]], set[Any]]


@dataclass
class Side:
    """One of two neighbours, with numbers by the names of items."""

    counts: RoundsCount

    def __post_init__(self) -> None:
        (column,) = self.counts.rows(np.arange(self.counts.items))
        self.names = column.to_pylist()
        self.number = {name: place for place, name in enumerate(self.names)}

    def leave(self, names: set[Any]) -> None:
        self.counts.leave(np.array(sorted(self.number[name] for name in names if name in self.number), np.int64))

    def by_name(self, values: Any) -> dict[Any, int]:
        return dict(zip(self.names, values.tolist(), strict=True))

    def measure(self, names: list[Any], limit: int) -> list[dict[Any, int]]:
        known = [name for name in names if name in self.number]
        columns = self.counts.measure(np.array([self.number[name] for name in known], np.int64), limit)
        return [dict(zip(known, column.tolist(), strict=True)) for column in columns]

    def sizes(self, names: list[Any], bounds: tuple[int, ...]) -> list[int]:
        found = np.array([self.number[name] for name in names if name in self.number], np.int64)
        return list(self.counts.sizes(found, bounds))


def moved(more: dict[Any, int], less: dict[Any, int]) -> dict[Any, int]:
    changes = {name: value - less.get(name, 0) for name, value in more.items()}
    return {name: change for name, change in changes.items() if change}


def problem_of_user(
    task: RoundsTask, both: tuple[Opened, Opened], schedule: Schedule, limits: tuple[int, ...]
) -> str:
    """How one more user changes more than the certificate covers; empty if not.

    `both` are counts with the user and without. Squared lengths are compared as whole numbers.
    """
    square, bounds = task.lattice**2, size_bounds(task.most_items)
    with both[0] as more, both[1] as less:
        sides = Side(more), Side(less)
        alone = moved(*(side.by_name(side.counts.alone()) for side in sides))
        if alone and (not task.alone or list(alone.values()) != [1]):
            return "a user with one item counts more than once"
        gone, on_lists, found = set[Any](), set[Any](), set[Any]()
        for number in range(4):
            rounds = [side.by_name(side.counts.round()) for side in sides]
            if any(one.get(name, 0) for one in rounds for name in gone):
                return "items that left still have a weight"
            weights = moved(*rounds)
            if alone and weights:
                return "a user is in both groups"
            if any(weight < 0 for weight in weights.values()) or sum(w * w for w in weights.values()) > square:
                return "weights exceed the squared length"
            if number == 0:
                on_lists, first = set(weights), len(weights)
                if first > task.most_items:
                    return "a user has more items than the limit"
            if not set(weights) <= on_lists:
                return "a user has items that were not on the list before"
            if any(w * w * first > (task.growth * task.lattice) ** 2 for w in weights.values()):
                return "weights exceed the growth cap"
            leaves = schedule(number, set(weights), sides[0].names)
            for side in sides:
                side.leave(leaves)
            gone, on_lists, found = gone | leaves, set(weights) - leaves, found | leaves
        names = sorted(found, key=repr)
        changes = np.subtract(sides[0].sizes(names, bounds), sides[1].sizes(names, bounds))
        if sorted(changes[changes != 0].tolist()) not in ([], [1]):
            return "a user is in several sizes"
        for limit in limits:
            columns = [moved(*pair) for pair in zip(*(side.measure(names, limit) for side in sides), strict=True)]
            if alone and any(columns):
                return "a user is in both groups"
            if sum(w * w for w in columns[0].values()) > limit * square:
                return "measured weights exceed the squared length"
            if problem := problem_of_sums(task, columns[0], columns[1:], limit):
                return problem
    return ""


def problem_of_sums(task: RoundsTask, weights: dict[Any, int], columns: list[dict[Any, int]], limit: int) -> str:
    vectors = dict[Any, list[int]]()
    for place, value in enumerate(task.values):
        vectors.setdefault(("sum", place) if value.vector is None else ("vector", value.vector), []).append(place)
    for places in vectors.values():
        half = task.values[places[0]].half_steps
        squares = {
            name: sum(columns[place].get(name, 0) ** 2 for place in places)
            for name in {name for place in places for name in columns[place]}
        }
        if not set(squares) <= set(weights):
            return "a sum changes where the weight does not"
        if any(s * task.lattice**2 > (half * weights[name]) ** 2 for name, s in squares.items()):
            return "a sum changes by more than its share"
        if sum(squares.values()) > limit * half**2:
            return "measured sums exceed the squared length"
    return ""


def nothing_leaves(*_: Any) -> set[Any]:
    return set()


def all_but_one_leave(_: int, on_list: set[Any], __: list[Any]) -> set[Any]:
    """So weights grow as fast as they may."""
    return set(sorted(on_list, key=repr)[1:])


def every_third_leaves(number: int, _: set[Any], names: list[Any]) -> set[Any]:
    return {name for place, name in enumerate(sorted(names, key=repr)) if place % 3 == number}


def all_leave_at_last(number: int, _: set[Any], names: list[Any]) -> set[Any]:
    return set(names) if number == 3 else set()


SCHEDULES: Final = (nothing_leaves, all_but_one_leave, every_third_leaves, all_leave_at_last)
LIMITS: Final = (1, 3, 16)
# Small, so that adversaries are large.
SMALL: Final[dict[str, Any]] = {"most_items": 16, "growth": 2}

# Users with few and many items, of others and new, with rows that repeat and with missing values.
SHARED: Final = [f"item {n}" for n in range(30)]
NEW: Final = [f"new {n}" for n in range(40)]
ADVERSARIES: Final[dict[str, list[str | None]]] = {
    "one item": ["item 0"],
    "one item in many rows": ["item 0"] * 50 + [None],
    "one new item": ["new 0"],
    "two items": ["item 0", "new 0"],
    "as many as the limit": [*SHARED[:8], *NEW[:8]],
    "one more": [*SHARED[:8], *NEW[:9]],
    "far more": [*SHARED, *NEW],
    "only new ones": [*NEW[:16]],
    "many rows": [*SHARED[:5] * 7, "item 1", "new 1"],
}  # fmt: skip


def others() -> list[tuple[str, str]]:
    rng = np.random.default_rng(1)
    rows = [(f"user {u}", SHARED[i]) for u in range(60) for i in rng.choice(30, 1 + u % 7, replace=False)]
    return [*rows, *((f"single {u}", SHARED[u % 4]) for u in range(20))]


def events_of(rows: list[tuple[str, Any]]) -> Events:
    """With values that are as large as they may be, larger, or missing."""
    spent = [(-1000.0, 9.0, 1e300, float("nan"), 4.0)[place % 5] for place in range(len(rows))]
    users, items = ([row[place] for row in rows] for place in (0, 1))
    table = pa.table({"user": users, "item": items, "spent": spent, "more": [2 - value for value in spent]})
    return Events(table, "user", (Column.parse("item"),))


def on_duckdb(engine: DuckDBEngine, task: RoundsTask, rows: list[tuple[str, Any]]) -> Opened:
    return engine.rounds(replace(task, events=events_of(rows)))


SUMS: Final = (
    Value("spent", Fraction(0), Fraction(9)),
    Value("spent", Fraction(-5), Fraction(5), vector=1),
    Value("more", Fraction(-5), Fraction(5), vector=1),
)


@pytest.mark.parametrize(("adversary", "kind"), crossed(list(ADVERSARIES), ["alone", "sums", "known", "listed"]))
def test_one_user_changes_duckdb_by_no_more_than_the_certificate_covers(adversary: str, kind: str) -> None:
    noise, engine = noise_of(honest()), DuckDBEngine(Resources(threads=1))
    listed = pa.table({"item": [*SHARED[::2], "new 1", "nobody's"]})
    more: dict[str, Any] = {"alone": kind in ("alone", "known")}
    if kind in ("known", "listed"):
        more |= {"known": Events(listed, "item", (Column.parse("item"),)), "listed": kind == "listed"}
    if kind in ("sums", "listed"):
        more["values"] = SUMS
    task = replace(task_of(noise), **SMALL, **more)
    rows = others()
    with_user = [*rows, *(("adversary", item) for item in ADVERSARIES[adversary])]
    with engine:
        for schedule in SCHEDULES if kind != "listed" else [all_leave_at_last]:
            both = on_duckdb(engine, task, with_user), on_duckdb(engine, task, rows)
            assert problem_of_user(task, both, schedule, LIMITS) == ""


def problem_in_memory(fault: str, adversary: str, schedule: Schedule) -> str:
    task = replace(task_of(noise_of(honest())), **SMALL)
    places = {name: place for place, name in enumerate([*SHARED, *NEW])}

    def counts(rows: list[tuple[str, Any]]) -> Opened:
        pairs = sorted({(user, places[item]) for user, item in rows if item is not None})
        users = {user: number for number, user in enumerate(sorted({user for user, _ in pairs}))}
        user, item = [users[user] for user, _ in pairs], [item for _, item in pairs]
        return nullcontext(MemoryRounds(user, item, len(places), task, fault=fault))

    rows = others()
    with_user = [*rows, *(("adversary", item) for item in ADVERSARIES[adversary])]
    return problem_of_user(task, (counts(with_user), counts(rows)), schedule, LIMITS)


@pytest.mark.parametrize(
    ("fault", "adversary", "schedule", "problem"),
    [
        ("", "far more", all_but_one_leave, ""),
        ("a list that depends on a true count", "as many as the limit", nothing_leaves, "squared length"),
        ("N drawn afresh in every round", "far more", nothing_leaves, "not on the list before"),
        ("the growth cap ignored", "as many as the limit", all_but_one_leave, "growth cap"),
        ("a user in both groups", "one item", nothing_leaves, "both groups"),
        ("found items not removed", "as many as the limit", all_but_one_leave, "that left still have a weight"),
    ],
)
def test_a_fault_of_counting_changes_too_much(
    fault: str, adversary: str, schedule: Schedule, problem: str
) -> None:
    found = problem_in_memory(fault, adversary, schedule)
    assert problem in found
    assert bool(found) == bool(fault)
