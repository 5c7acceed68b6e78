"""`verify` against forged certificates with a valid seal: every entry must follow from plan and request."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

import dphist
from dphist.certificate.verify import verify_document
from release_data import events, plan_facts, resealed, restate

COUNTS = {"tea": 900, "milk": 700, "bread": 500, "rare": 2}
BUDGET: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}
Forgery = Callable[[dict[str, Any]], None]


def released(folder: Path, **options: Any) -> Path:
    dphist.release(events(COUNTS), **BUDGET, **options, output=folder / "out.csv")
    assert forged(folder / "out.csv", lambda _: None).verified
    return folder / "out.csv"


@pytest.fixture(scope="module")
def release_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A release with these options, made once."""
    return cache(lambda **options: released(tmp_path_factory.mktemp("release"), **options))


def forged(path: Path, change: Forgery) -> dphist.Verification:
    """The verification of a forged certificate with a valid seal; the certificate is restored afterwards."""
    certificate = Path(f"{path}.certificate.json")
    original = certificate.read_text()
    document = json.loads(original)
    change(document)
    certificate.write_text(resealed(document))
    try:
        return dphist.verify(path)
    finally:
        certificate.write_text(original)


def plan_of(**options: Any) -> dict[str, Any]:
    return plan_facts(dphist.plan(epsilon=1.0, delta=1e-6, **options))


def replaced(**options: Any) -> Forgery:
    """The plan of another request, with all entries that follow from it."""

    def change(document: dict[str, Any]) -> None:
        restate(document, plan_of(**options))

    return change


@pytest.mark.parametrize(
    ("asked", "planned"),
    [
        ({"max_items_per_user": 20}, {"max_items_per_user": 5}),
        ({"max_items_per_user": 20}, {"max_nonzero": 5}),
        ({"max_items_per_user": 20}, {"max_nonzero": 50, "max_items_per_user": 20}),
        ({"max_items_per_user": 20}, {"public_items": 4}),
        ({"max_items_per_user": 20}, {"top": 3}),
        ({"top": 3}, {"max_items_per_user": 1}),
        ({"top": 3}, {"top": 2}),
        ({"top": 100}, {"top": 100, "max_items_per_user": 32}),
        ({"top": 100, "max_items_per_user": 33}, {"top": 100, "max_items_per_user": 32}),
        ({"top": 3}, {"top": 3, "offset": "none"}),
        ({"top": 3}, {"top": 3, "offset": "independent"}),
        ({"top": 3, "offset": "none"}, {"max_nonzero": 3, "max_items_per_user": 1}),
        ({"max_nonzero": 6}, {"max_nonzero": 6, "max_items_per_user": 1}),
        ({"max_nonzero": 6}, {"max_nonzero": 5}),
    ],
)
def test_a_plan_for_another_request(release_of: Any, asked: dict[str, Any], planned: dict[str, Any]) -> None:
    assert not forged(release_of(**asked), replaced(**planned)).verified


def test_a_public_list_and_its_plan(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("item\ntea\nmilk\nnone\n")
    path = released(tmp_path, items=tmp_path / "list.csv")
    for planned in ({"public_items": 2}, {"public_items": 3, "max_items_per_user": 1}, {"max_items_per_user": 1}):
        assert not forged(path, replaced(**planned)).verified
    assert dphist.verify(path).verified


def put(place: str, value: Any) -> Forgery:
    def change(document: dict[str, Any]) -> None:
        *above, last = place.split(".")
        for key in above:
            document = document[key]
        if value is KeyError:
            del document[last]
        else:
            document[last] = value

    return change


FORGERIES: list[tuple[str, Any]] = [
    ("guarantee", "It is perfectly private."), ("guarantee", None), ("guarantee.epsilon", 0.5),
    ("guarantee.conditions", []), ("caveats", []), ("private", False),
    ("request.seed", 3), ("request.epsilon", 0.1), ("request", KeyError), ("request", {}), ("counts", KeyError),
    ("counts.threshold", 0), ("counts.threshold", "x"), ("counts.standard_error", 1), ("counts.offset", 5.0),
    ("plan", KeyError), ("plan", 5), ("plan.sigma", 1.0), ("plan.threshold", 10.0), ("plan.mechanism", "csh"),
    ("plan.tau_steps", 10), ("plan.tau_steps", 10**400), ("plan.tau_steps", None), ("plan.lattice", 10**6),
    ("plan.variance_steps", "1e99999999"), ("plan.variance_steps", 10**400), ("plan.variance_steps", "7/0"),
    ("plan.variance_steps", "1" + "0" * 50), ("plan.variance_shared_steps", "100000000000000"),
    ("plan.delta_certified", "0.1"), ("plan.delta_certified", None), ("plan.delta_certified", 1e-9),
    ("plan.certificate", {}), ("plan.epsilon", 0.5), ("plan.delta", 1e-7), ("plan.delta", "x"),
    ("plan.max_items_per_user", 1), ("plan.max_nonzero", 7), ("plan.notes", 4), ("plan.binding_case", {}),
    ("format", "dphist-certificate/1"), ("format", "dphist-certificate/3"),
    ("format", 3), ("output.rows", 7), ("output.sha256", "0"),
]  # fmt: skip


def test_every_forged_entry_is_detected(release_of: Any) -> None:
    path = release_of(max_items_per_user=20)
    for place, value in FORGERIES:
        found = forged(path, put(place, copy.deepcopy(value)))
        assert not found.verified, (place, value)
        assert all("\n" not in problem for problem in found.problems)
    assert dphist.verify(path).verified


def test_counts_that_are_not_numbers_or_too_low(tmp_path: Path) -> None:
    path = released(tmp_path, max_items_per_user=20)
    rows = path.read_text().splitlines()
    for cell in ("abc", "", "NaN", "1.0"):
        path.write_text("\n".join([rows[0], f'"tea",{cell}', *rows[2:]]) + "\n")
        assert not dphist.verify(path).verified


def test_a_histogram_from_elsewhere_names_its_conditions(tmp_path: Path) -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=7)
    written = dphist.release_histogram(["tea"], [900], plan).write(tmp_path / "out.parquet")
    assert written.document()["guarantee"]["conditions"] == ["counts-per-user", "item-types"]
    assert "provided that no user contributes to more than 7 of the counts" in written.guarantee
    assert dphist.verify(tmp_path / "out.parquet").verified


@pytest.mark.parametrize("options", [{"top": 10}, {"top": 10, "offset": "none"}, {"max_nonzero": 10}])
def test_a_top_k_step_over_a_histogram_from_elsewhere_needs_no_limit_on_users(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, **options)
    written = dphist.release_histogram(["tea"], [900], plan).write(tmp_path / "out.parquet")
    assert written.document()["guarantee"]["conditions"] == ["one-per-count", "item-types"]
    assert "provided that no user contributes more than 1 to any of the counts" in written.guarantee
    assert dphist.verify(tmp_path / "out.parquet").verified


def test_a_limit_on_users_beside_a_top_k_step_is_a_condition(tmp_path: Path) -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, top=100, max_items_per_user=32)
    assert plan.releases_offset
    path = tmp_path / "out.csv"
    written = dphist.release_histogram(["tea"], [900], plan).write(path)
    assert "no user contributes to more than 32 of the counts" in written.guarantee
    assert dphist.verify(path).verified
    forgery = put("guarantee.conditions", ["one-per-count", "item-types"])
    assert not forged(path, forgery).verified


@pytest.mark.parametrize("cap", [20, None])
def test_a_promised_bound_is_a_condition(tmp_path: Path, cap: int | None) -> None:
    """Without the bound, delta of the first plan would be five times as large, and of the second 4,000 times."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=100, max_items_per_user=cap)
    path = tmp_path / "out.csv"
    written = dphist.release_histogram(["tea"], [900], plan, guarantee_max_nonzero=True).write(path)
    assert "no possible dataset has more than 100 items" in written.guarantee
    assert "max-nonzero" in written.document()["caveats"]
    assert dphist.verify(path).verified

    def unpromised(document: dict[str, Any]) -> None:
        del document["request"]["guarantee-max-nonzero"]
        document["guarantee"]["conditions"].remove("max-nonzero")

    assert not forged(path, unpromised).verified


def test_a_number_has_one_text(release_of: Any) -> None:
    """-0.0 has the canonical form of 0.0, so that digest and signature would not change."""
    path = release_of(max_items_per_user=20)
    assert not forged(path, lambda document: document["plan"].update(sigma_shared=-0.0)).verified


def test_a_vector_of_very_many_columns_is_refused_at_once(release_of: Any) -> None:
    """Comparing each name with all others would take hours."""
    path = release_of(max_items_per_user=20)
    vector = f"n={','.join(f'c{place}' for place in range(500_000))}:1"
    found = forged(path, lambda document: document["request"].update(vector=[vector]))
    assert "use at most 256" in " ".join(found.problems)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("true_counts", {"rare": 2}),
        ("choice", {"noisy_users": [1, 2, 3], "cap": 2}),
        ("booking", {"ledger": "a" * 32, "dataset": "shop", "entry": 3, "hash": "0" * 64}),
        ("sums", [{"name": "amount_sum"}]),
    ],
)
def test_additional_entries_are_refused(name: str, value: Any, release_of: Any) -> None:
    path = release_of(max_items_per_user=20)
    assert not forged(path, lambda document: document.update({name: value})).verified


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lower-threshold", -200),
        ("max-items-per-user", -5),
        ("max-items-per-user", "auto"),
        ("dataset", "shop"),
        ("weight", [0.5]),
        ("interval", 7),
        ("no-such-key", 1),
    ],
)
def test_impossible_requests_are_refused(name: str, value: Any, release_of: Any) -> None:
    path = release_of(max_items_per_user=20)
    assert not forged(path, lambda document: document["request"].update({name: value})).verified


@pytest.mark.parametrize("options", [{}, {"round": True}, {"top": 3, "max_items_per_user": None}], ids=str)
def test_a_count_just_below_the_threshold(release_of: Any, options: dict[str, Any]) -> None:
    """A forged row need not be far below: no release has a count half a count below the threshold."""
    asked = {"max_items_per_user": 20, **options}
    path = release_of(**{name: value for name, value in asked.items() if value is not None})
    document = json.loads(Path(f"{path}.certificate.json").read_text())
    threshold, whole = document["counts"]["threshold"], options.get("round", False)
    assert threshold > 10
    assert document["counts"]["decimals"] == 0

    def problems(count: float) -> tuple[str, ...]:
        counts = pa.array([count], pa.int64() if whole else pa.float64())
        return verify_document(document, pa.table({"item": ["tea"], "count": counts}), "a").problems

    # A rounded count was at most half above what it is now.
    assert "a count is below the threshold" in problems(math.ceil(threshold - 0.5) - 1)
    assert not problems(math.ceil(threshold) + 1)
    if not whole:
        assert "a count has more decimals than the certificate states" in problems(math.ceil(threshold) + 1.25)


def test_a_count_at_the_threshold_that_is_not_rounded(release_of: Any) -> None:
    """Whole counts are above it, by a step at least."""
    document = json.loads(
        Path(f"{release_of(max_items_per_user=1, mechanism='laplace')}.certificate.json").read_text()
    )
    threshold = document["counts"]["threshold"]
    assert document["counts"]["decimals"] is None
    assert threshold == round(threshold)
    for count, low in ((threshold, True), (threshold + 1.0, False)):
        table = pa.table({"item": ["tea"], "count": [count]})
        assert ("a count is below the threshold" in verify_document(document, table, "a").problems) is low


def test_a_count_that_is_not_rounded(tmp_path: Path) -> None:
    """Counts of a histogram are not rounded: none is at the threshold."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=7)
    document = dphist.release_histogram(["tea"], [900], plan).document()
    for count, problems in (
        (plan.threshold * (1 - 2e-9), ("a count is below the threshold",)), (plan.threshold + 0.01, ()),
    ):  # fmt: skip
        table = pa.table({"item": ["tea"], "count": [count]})
        assert verify_document(document, table, "a").problems == problems


def numbers_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Every number of a document, with its place."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(part, (dict, list)):
            yield from numbers_in(part, (*place, key))
        elif isinstance(part, (int, float)) and not isinstance(part, bool):
            yield (*place, key), part


# A smaller limit is within the plan, a level within the digits of its margin is, and the decoder counts the rows.
NOT_EXACT = {("request", "max-items-per-user"), ("request", "interval"), ("output", "rows")}


@pytest.mark.parametrize(
    "options",
    [
        {"max_items_per_user": 20}, {"max_items_per_user": 2, "interval": 0.95, "standard_error": True},
        {"top": 3}, {"max_nonzero": 40}, {"max_items_per_user": 3, "lower_threshold": 5},
    ],
    ids=str,
)  # fmt: skip
def test_no_number_may_differ_by_a_millionth(release_of: Any, options: dict[str, Any]) -> None:
    """A forger would not claim a delta of 1e-9, but one a little below the true one."""
    path = release_of(**options)
    document = json.loads(Path(f"{path}.certificate.json").read_text())
    types = dict(zip(document["output"]["columns"], document["output"]["types"], strict=True))
    table = pa.csv.read_csv(path, convert_options=pa.csv.ConvertOptions(column_types=types))
    assert not verify_document(document, table, "a").problems
    places = [(place, number) for place, number in numbers_in(document) if place not in NOT_EXACT]
    assert {("plan", "delta_certified"), ("plan", "epsilon"), ("counts", "threshold")} <= {p for p, _ in places}
    for place, number in places:
        *above, last = place
        changed = copy.deepcopy(document)
        part = changed
        for key in above:
            part = part[key]
        for other in (number * (1 + 1e-6), number * (1 - 1e-6)) if isinstance(number, float) else (number + 1,):
            if other != number:
                part[last] = other
                assert verify_document(changed, table, "a").problems, f"{place}: {other} instead of {number}"
