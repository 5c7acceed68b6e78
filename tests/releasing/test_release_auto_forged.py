"""`verify` against forged certificates of a chosen limit, sealed again and consistent in themselves."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_verify import Forgery, forged, put

import dphist
from dphist.privacy.types import Budget, Plan
from dphist.releasing.document import choice_for, plan_facts
from release_commands import sized_events
from release_data import restate

WHOLE = Budget(1.0, 1e-6)
ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("forged") / "out.csv"
    dphist.release(
        sized_events({1: 900, 3: 700, 12: 400}), **ASKED, max_items_per_user="auto", mechanism="laplace",
        output=output,
    )  # fmt: skip
    found = dphist.verify(output)
    assert found.verified, found.problems
    assert found.delta_certified == plans().certificate.delta
    return output


@cache
def plans() -> Any:
    return choice_for(WHOLE, mechanism="laplace")


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
    restate(document, json.loads(json.dumps(plan_facts(plan))), budget)


def other_cap(document: dict[str, Any]) -> int:
    return next(cap for cap in (1, 2, 3) if cap != document["choice"]["cap"])


NOT_CHOSEN = "the user limit does not follow from the noisy numbers of users in the certificate"


def test_another_limit_with_its_plan(path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["choice"]["cap"] = other_cap(document)
        stated(document, plans().plan(other_cap(document)))

    assert NOT_CHOSEN in noticed(path, change)


def test_the_plan_of_another_limit(path: Path) -> None:
    problems = noticed(path, lambda document: stated(document, plans().plan(other_cap(document))))
    assert {NOT_CHOSEN, "a count is below the threshold"} & set(problems)


def test_noisy_numbers_that_give_another_limit(path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        many = document["choice"]["noisy_users"]
        document["choice"]["noisy_users"] = [*[0] * (len(many) - 4), 100_000, 0, 0, 0]
        assert document["choice"]["cap"] < 100

    assert NOT_CHOSEN in noticed(path, change)


def test_the_whole_budget_for_the_release(path: Path) -> None:
    """The plan of the same limit, as if the choice had cost nothing."""

    def change(document: dict[str, Any]) -> None:
        cap = document["choice"]["cap"]
        stated(document, dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=cap, mechanism="laplace"))

    assert noticed(path, change)


def test_the_guarantee_of_the_release_without_the_choice(path: Path) -> None:

    def change(document: dict[str, Any]) -> None:
        stated(document, plans().plan(document["choice"]["cap"]), plans().budget_of_release)

    assert "the certificate's entry 'guarantee' is not that of its plan and request" in noticed(path, change)


def test_a_chosen_limit_as_a_fixed_one(path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["request"]["max-items-per-user"] = document["choice"]["cap"]
        stated(document, plans().plan(document["choice"]["cap"]))

    assert noticed(path, change)


def test_another_share_of_the_budget_with_the_same_plan(path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["request"]["cap-share"] = 0.2
        other = choice_for(WHOLE, share=0.2, mechanism="laplace")
        document["choice"] |= json.loads(json.dumps(other.to_dict()))

    assert noticed(path, change)


FORGERIES: list[tuple[str, Any]] = [
    ("choice", KeyError), ("choice", None), ("choice", {}),
    ("choice.cap", KeyError), ("choice.cap", 5), ("choice.cap", "12"),
    ("choice.share", 0.3), ("choice.share", 1e-300), ("choice.share", KeyError),
    ("request.cap-share", 0.3), ("request.cap-share", 1e-300),
    ("request.cap-share", "x"), ("request.cap-share", 5e-324), ("request.mechanism", "gaussian"),
    ("request.mechanism", "none"), ("request.minimize", "nothing"),
    ("request.sum", ["spent:0:5"]), ("request.epsilon", 1e-300), ("request.epsilon", 1e300),
    ("request.epsilon", 0.5), ("request.epsilon", "1"), ("request.delta", 1e-300), ("request.delta", 0.99999),
    ("request.delta", None), ("request.items", "list.csv"), ("request.top", 3), ("request.weight", [0.5]),
    ("request.max-items-per-user", "Auto"), ("request.max-items-per-user", 4096),
    ("request.max-items-per-user", KeyError), ("request.max-items-per-user", None),
    ("choice.caps", [1]), ("choice.variance", "1"),
    ("choice.variance", "1/0"), ("choice.epsilon_of_release", 0.5),
    ("choice.delta_of_release", 1e-9), ("choice.certificate", {}), ("choice.certificate.delta", 1e-9),
    ("choice.certificate.epsilon", 0.1), ("choice.certificate.analysis", "none"), ("choice.more", 1),
    ("choice.noisy_users", []), ("choice.noisy_users", [5]),
    ("choice.noisy_users", "many"), ("choice.noisy_users", list(range(100_000))),
]  # fmt: skip
ABSURD: list[Any] = [10**400, -(10**400), 1.0, float("nan"), float("inf"), True, None, "5"]


def test_every_forged_entry_is_detected(path: Path) -> None:
    for place, value in FORGERIES:
        assert noticed(path, put(place, copy.deepcopy(value))), (place, value)


def test_absurd_numbers_are_detected(path: Path) -> None:
    for value in ABSURD:

        def change(document: dict[str, Any], value: Any = value) -> None:
            document["choice"]["noisy_users"][0] = value

        assert noticed(path, change), value
    assert dphist.verify(path).verified


def test_a_public_list_of_another_length(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("item\nitem 0\nitem 1\nnone\n")
    dphist.release(
        sized_events({1: 900, 3: 700}), **ASKED, max_items_per_user="auto", items=tmp_path / "list.csv",
        output=tmp_path / "out.csv",
    )  # fmt: skip
    assert dphist.verify(tmp_path / "out.csv").verified
    for place, value in (("plan.max_nonzero", 4), ("plan.max_nonzero", 10**9), ("choice.caps", [1, 2, 3, 4])):
        assert noticed(tmp_path / "out.csv", put(place, value))
