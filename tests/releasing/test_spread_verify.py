"""Certificates of releases with spread: every kind is verified, and careful forgeries are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_release_auto_forged import noticed
from test_verify import Forgery, put

import dphist
from dphist.errors import InvalidParameter, NotPrivate
from dphist.privacy.types import Contract, Plan
from dphist.releasing.document import certify_again, plan_facts, plan_from
from release_commands import sized_events
from release_data import events, resealed, restate

BUDGET: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}
COUNTS = {f"item {place}": 2000 - 90 * place for place in range(8)}


def release(folder: Path, table: Any = None, **options: Any) -> Path:
    table = events(COUNTS, items_per_user=4) if table is None else table
    table = table.append_column("amount", pa.array([place % 50 for place in range(table.num_rows)]))
    path = folder / "out.csv"
    dphist.release(table, **BUDGET, excess="spread", **options, output=path)
    found = dphist.verify(path)
    assert found.verified, found.problems
    return path


def document_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(Path(f"{path}.certificate.json").read_text()))


@pytest.fixture(scope="module")
def explicit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return release(tmp_path_factory.mktemp("explicit"), max_items_per_user=2)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users have up to forty items, so that the correction factor is above 1."""
    table = sized_events({1: 900, 12: 400, 40: 200})
    return release(tmp_path_factory.mktemp("chosen"), table.select(["user", "item"]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_items_per_user": 2}, {"max_items_per_user": 2, "spread": 32}),
        ({"max_items_per_user": 2, "sum": ["amount:0:100"], "mean": ["amount:0:100"]}, {"spread": 32}),
        ({"max_items_per_user": 2, "items": "list.csv"}, {"max_nonzero": 9, "spread": 9}),
        pytest.param(
            {"max_items_per_user": 2, "max_nonzero": 20}, {"max_nonzero": 20, "spread": 20}, marks=pytest.mark.slow
        ),
        ({"max_items_per_user": 9, "max_nonzero": 8}, {"max_items_per_user": 8, "max_nonzero": 8, "spread": 8}),
    ],
)
def test_releases_with_spread_are_verified(
    tmp_path: Path, options: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list.csv").write_text("item\n" + "\n".join([*COUNTS, "nobody has this"]) + "\n")
    monkeypatch.chdir(tmp_path)
    found = document_of(release(tmp_path, **options))
    assert found["request"]["excess"] == "spread"
    assert {name: found["plan"][name] for name in expected} == expected


@pytest.mark.parametrize("limit", [7, pytest.param(2, marks=pytest.mark.slow)])
def test_a_broken_promise_releases_nothing(limit: int) -> None:
    """With spread, max_nonzero is always a promise: no top-k step enforces it."""
    asked: dict[str, Any] = {**BUDGET, "max_items_per_user": limit, "excess": "spread"}
    assert len(dphist.release(events(COUNTS, items_per_user=4), **asked, max_nonzero=7)) == 0
    found = dphist.release(events(COUNTS, items_per_user=4), **asked, max_nonzero=8)
    assert len(found) == 8
    assert "max-nonzero" in found.document()["guarantee"]["conditions"]


NO_RELEASE = "the certificate's plan spreads the items of a user as no release does"


def test_laplace_noise_has_no_spread() -> None:
    """The weights bound the squared length of a user's change, and Laplace noise needs a bound on the sum."""
    plain = planned(max_items_per_user=3, mechanism="laplace")
    plan = replace(plain, contract=Contract(None, 3, spread=48))
    for refused in (
        lambda: certify_again(plan),
        lambda: plan_from(json.loads(json.dumps(plan_facts(plan)))),
        lambda: dphist.release_histogram(["a"], [50], plan),
    ):
        with pytest.raises(InvalidParameter, match="spread"):
            refused()
    assert plan_from(json.loads(json.dumps(plan_facts(plain)))).contract == plain.contract


def state_plan(plan: Plan) -> Forgery:
    """Another plan, with its own certified delta and all entries that follow from it."""
    data = json.loads(json.dumps(plan_facts(certify_again(plan))))
    return lambda document: restate(document, data)


def planned(**options: Any) -> Plan:
    return dphist.plan(epsilon=1.0, delta=1e-6, **options)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("fewer items", lambda plan: replace(plan, contract=Contract(None, 2, spread=16))),
        ("no spread at all", lambda _: planned(max_items_per_user=2, mechanism="gaussian")),
        ("a smaller limit", lambda _: planned(max_items_per_user=1, excess="spread")),
        ("spread from fewer items", lambda plan: replace(plan, contract=Contract(None, 1, spread=32))),
        ("a bound on all items", lambda plan: replace(plan, contract=Contract(32, 2, spread=32))),
    ],
)
def test_another_consistent_plan_is_refused(explicit: Path, name: str, other: Callable[[Plan], Plan]) -> None:
    """Each of these plans is private, but not the plan of this request."""
    right = planned(max_items_per_user=2, excess="spread")
    plan = certify_again(other(right))
    if plan.contract.spread not in (None, 16 * plan.contract.items):
        data = json.loads(json.dumps(plan_facts(plan)))
        assert NO_RELEASE in noticed(explicit, put("plan", data)), name
        return
    problems = noticed(explicit, state_plan(plan))
    assert "the plan relies on bounds that were not requested, or is for another request" in problems, name


@pytest.mark.parametrize(
    "other",
    [
        lambda plan: replace(plan, contract=Contract(None, 2, spread=33)),
        lambda plan: replace(plan, noise=replace(plan.noise, limit=plan.noise.limit - 1)),
        lambda plan: replace(plan, noise=replace(plan.noise, variance=plan.noise.variance * Fraction(99, 100))),
        lambda plan: replace(plan, noise=replace(plan.noise, lattice=plan.noise.lattice + 2)),
    ],
)
def test_less_noise_or_more_items_than_the_certificate_covers(
    explicit: Path, other: Callable[[Plan], Plan]
) -> None:
    """The threshold is minimal: a step less, or an item more, exceeds the budget."""
    plan = other(planned(max_items_per_user=2, excess="spread"))
    with pytest.raises(NotPrivate):
        certify_again(plan)
    problems = noticed(explicit, put("plan", json.loads(json.dumps(plan_facts(plan)))))
    assert NO_RELEASE in problems or any("does not keep its budget" in problem for problem in problems)


FORGERIES: list[tuple[str, Any]] = [
    ("plan.spread", 31), ("plan.spread", 64), ("plan.spread", KeyError), ("plan.spread", None),
    ("plan.spread", "32"),
    ("plan.lattice", 256), ("plan.lattice", 1024), ("plan.max_items_per_user", 1), ("plan.limit_steps", 1),
    ("request.excess", "drop"), ("request.excess", KeyError), ("request.excess", "both"),
    ("request.max-items-per-user", 1), ("request.max-items-per-user", 3), ("request.goal", "keys"),
    ("request.max-items-per-user", "auto"), ("choice", {}),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value"), FORGERIES)
def test_single_forged_entries(explicit: Path, place: str, value: Any) -> None:
    assert noticed(explicit, put(place, value))


# --- estimates ----------------------------------------------------------------------------------------


def rewrite(
    path: Path, change: Callable[[dict[str, float]], None], factor: float | None = None
) -> tuple[str, ...]:
    """The problems after changing the numbers of a release and its digest, and its correction factor if given."""
    certificate = Path(f"{path}.certificate.json")
    originals = path.read_bytes(), certificate.read_text()
    names, *rows = (line.split(",") for line in path.read_text().splitlines())
    try:
        for row in rows:
            numbers = dict(zip(names[1:], map(float, row[1:]), strict=True))
            change(numbers)
            row[1:] = [repr(number) for number in numbers.values()]
        path.write_text("".join(",".join(row) + "\n" for row in [names, *rows]))
        document = json.loads(originals[1])
        document["output"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        if factor is not None:
            correction = document["choice"]["correction"]
            correction["factors"] = [number * factor for number in correction["factors"]]
        certificate.write_text(resealed(document))
        return dphist.verify(path).problems
    finally:
        path.write_bytes(originals[0])
        certificate.write_text(originals[1])


def test_forged_estimates_are_refused(chosen: Path) -> None:
    document = document_of(chosen)
    assert document["choice"]["excess"] == "spread"
    assert document["choice"]["correction"]["factors"][0] > 1.05
    assert rewrite(chosen, lambda numbers: None) == ()  # noqa: ARG005

    def inflate(numbers: dict[str, float]) -> None:
        numbers['"estimate"'] *= 1.01

    (problem,) = rewrite(chosen, inflate)
    assert problem == "the column 'estimate' does not follow from the plan and the column before it"
    # With a factor to match, the noisy numbers contradict it.
    problems = rewrite(chosen, inflate, factor=1.01)
    assert problems[0] == "the user limit does not follow from the noisy numbers of users in the certificate"
    assert rewrite(chosen, lambda numbers: numbers.update(dict.fromkeys(numbers, 1e308)))
    assert noticed(
        chosen, put("choice.correction.factors", [1e308] * len(document["choice"]["correction"]["factors"]))
    )
    assert noticed(chosen, put("choice.excess", "drop"))
    assert noticed(chosen, put("choice.goal", "keys"))
    assert noticed(chosen, put("request.excess", "drop"))
    assert noticed(chosen, put("request.goal", "keys"))
