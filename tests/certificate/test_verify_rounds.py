"""`verify` against forged certificates of a release in rounds, sealed again and consistent in themselves."""

from __future__ import annotations

import copy
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_verify import Forgery, forged, put

import dphist
from dphist.model import Budget, Plan, RoundsNoise
from release_commands import sized_events
from release_data import plan_facts

WHOLE = Budget(1.0, 1e-6)
ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("forged") / "out.csv"
    dphist.release(sized_events({1: 900, 3: 700, 12: 400}), **ASKED, output=output)
    found = dphist.verify(output)
    assert found.verified, found.problems
    assert found.delta_certified == dphist.plan(epsilon=1.0, delta=1e-6).proof.delta
    return output


def noticed(path: Path, change: Forgery) -> tuple[str, ...]:
    """The problems of a forgery. The certificate is restored afterwards."""
    place = Path(f"{path}.certificate.json")
    original = place.read_text()
    try:
        found = forged(path, change)
    finally:
        place.write_text(original)
    assert not found.verified
    assert all("\n" not in problem for problem in found.problems)
    return found.problems


def stated(document: dict[str, Any], plan: Plan, budget: Budget = WHOLE) -> None:
    """Another plan, with all entries that follow from it."""
    document["plan"] = plan_facts(plan)
    document["guarantee"] |= {"epsilon": budget.epsilon, "delta": budget.delta}


def less(plan: Plan, **change: Any) -> Plan:
    assert isinstance(plan.noise, RoundsNoise)
    return replace(plan, noise=replace(plan.noise, **change))


def own_plan() -> tuple[Plan, RoundsNoise]:
    plan = dphist.plan(epsilon=1.0, delta=1e-6)
    assert isinstance(plan.noise, RoundsNoise)
    return plan, plan.noise


def test_noise_and_thresholds_just_below_the_certified_ones(path: Path) -> None:
    """By 0.1 %: the budget is used up, so that every one of them is above it."""
    plan, noise = own_plan()
    assert noise.alone is not None
    early, late = (limit - limit // 1000 for limit in (noise.thresholds_steps[0], noise.thresholds_steps[-1]))
    changes: list[dict[str, Any]] = [
        {"variance": noise.variance * Fraction(999, 1000)},
        {"thresholds_steps": (early, *noise.thresholds_steps[1:])},
        {"thresholds_steps": (*noise.thresholds_steps[:-1], late)},
        {"sizes": noise.sizes + 1}, {"measure": noise.measure + 1}, {"growth": noise.growth + 1},
        {"alone": replace(noise.alone, tau_steps=noise.alone.tau_steps - 1)},
        {"parts": (*noise.parts[:-1], noise.parts[-1] + 1)},
    ]  # fmt: skip
    for change in changes:
        problems = noticed(path, partial(stated, plan=less(plan, **change)))
        assert any("the plan does not keep its budget" in problem for problem in problems), change


def test_the_plan_of_another_kind_of_release(path: Path) -> None:
    for other in (
        dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=256), dphist.plan(epsilon=0.5, delta=1e-6),
        dphist.plan(epsilon=1.0, delta=1e-6, sums=[(0, 9)]),
    ):  # fmt: skip
        assert noticed(path, partial(stated, plan=other))


@pytest.mark.parametrize("limit", [5, 7, 300, 512])
def test_a_limit_that_no_measurement_has(path: Path, limit: int) -> None:
    """The proof holds for any limit; which of the bounds was chosen is up to the planner of that version."""
    problems = noticed(path, put("findings.limit", limit))
    assert "the certificate's findings are not those of the released items" in problems


FORGERIES: list[tuple[str, Any]] = [
    ("findings", KeyError), ("findings", None), ("findings", {}), ("findings.limit", KeyError),
    ("findings.limit", 10**6), ("findings.limit", "12"), ("findings.found", []), ("findings.found", [1, 2]),
    ("findings.found", [10**6] * 6), ("findings.noisy_sizes_steps", []), ("findings.noisy_sizes_steps", [5]),
    ("findings.noisy_sizes_steps", "many"), ("findings.noisy_sizes_steps", list(range(100_000))),
    ("findings.reason", "x" * 10_000), ("findings.reason", 5), ("findings.needed", -1), ("findings.more", 1),
    ("request.mechanism", "laplace"), ("request.mechanism", "none"), ("request.minimize", "noise"),
    ("request.sum", ["spent:0:5"]), ("request.epsilon", 1e-300), ("request.epsilon", 0.5),
    ("request.epsilon", "1"), ("request.delta", 1e-300), ("request.delta", None), ("request.items", "list.csv"),
    ("request.top", 3), ("request.max-items-per-user", 256), ("request.goal", "both"),
    ("plan.lattice", 4097), ("plan.lattice", 1 << 14), ("plan.most_items", 5), ("plan.max_items_per_user", 255),
    ("plan.max_items_per_user", 10**6), ("plan.max_nonzero", 10), ("plan.parts_of_rounds", [1] * 1000),
    ("plan.parts_of_rounds", []), ("plan.alone", None), ("plan.alone", {}), ("plan.alone.scale", "1/2"),
    ("plan.cuts_steps", [0, 0]), ("plan.thresholds_steps", [1, 1, 1, 1]), ("plan.growth", 0),
    ("plan.growth", 10**9),
    ("plan.part_of_sizes", 0), ("plan.part_of_sizes", 10**9), ("plan.variance_steps", "1"),
    ("plan.variance_steps", "1e9"), ("plan.threshold", 3.0), ("plan.delta_certified", 1e-9),
    ("counts.standard_error", 1.0), ("counts.decimals", 3), ("private", False), ("caveats", []),
]  # fmt: skip
ABSURD: list[Any] = [10**400, -(10**400), 1.0, float("nan"), float("inf"), True, None, "5"]


def test_every_forged_entry_is_detected(path: Path) -> None:
    missed = []
    for place, value in FORGERIES:
        try:
            noticed(path, put(place, copy.deepcopy(value)))
        except AssertionError:
            missed.append((place, value))
    assert missed == []


def test_absurd_numbers_are_detected(path: Path) -> None:
    for value in ABSURD:

        def change(document: dict[str, Any], value: Any = value) -> None:
            document["findings"]["noisy_sizes_steps"][0] = value

        assert noticed(path, change), value
    assert dphist.verify(path).verified


def test_a_public_list_of_another_length(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("item\nitem 0\nitem 1\nnone\n")
    dphist.release(
        sized_events({1: 900, 3: 700}), **ASKED, items=tmp_path / "list.csv", output=tmp_path / "out.csv"
    )
    assert dphist.verify(tmp_path / "out.csv").verified
    for place, value in (("plan.max_nonzero", 4), ("plan.max_nonzero", 10**9), ("plan.shared", 5)):
        assert noticed(tmp_path / "out.csv", put(place, value))
