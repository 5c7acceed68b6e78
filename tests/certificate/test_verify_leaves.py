"""Every entry of a certificate is checked: each is changed or removed, and the certificate sealed again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from generator.certificates import is_declared

import dphist
from dphist.certificate.reading import read_release
from dphist.certificate.text import SEAL
from dphist.certificate.verify import verify_document
from release_data import events, resealed
from report_cases import KINDS

Place = tuple[Any, ...]
# Statements of the publisher that no file can prove, as listed in docs/outputs.md.
STATED: set[Place] = {
    ("created",), ("dphist",), ("output", "name"), ("request", "input"), ("request", "user"), ("request", "where"),
    ("request", "items"), ("booking", "ledger"), ("booking", "entry"), ("booking", "hash"),
}  # fmt: skip
# Options that select rows or guide the search for a plan. They may also be removed.
WISHES = ("where", "null-items", "mechanism", "goal", "minimize", "weight")
# In these formats columns are text, and the certificate gives their types; only types of numbers are checked.
TEXT_KINDS = ("csv", "tsv", "jsonl", "duckdb", "sqlite")


def leaves(data: Any, place: Place = ()) -> Iterator[Place]:
    """The place of every value, including objects and lists."""
    if place:
        yield place
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield from leaves(value, (*place, key))


def at(document: Any, place: Place) -> Any:
    for step in place:
        document = document[step]
    return document


def is_inside_a_row(document: Any, place: Place) -> bool:
    """Whether it is in a long list, and not the first, second or last value."""
    row = at(document, place[:-1])
    return isinstance(row, list) and len(row) > 4 and 1 < place[-1] < len(row) - 1


def others(value: Any) -> list[Any]:
    """Other values, of the same and of other types."""
    if isinstance(value, bool):
        return [not value, int(value), None]
    if isinstance(value, int):
        return [value + 1, -value - 1, float(value), True, str(value), None, 10**400]
    if isinstance(value, float):
        return [value * 1.5 + 1e-3, value / 2 - 1e-9, int(value), str(value), None, 1e308]
    if isinstance(value, str):
        return [value + "1", "", value.upper() + "x", [value], {"a": value}, None, 1]
    if value is None:
        return [0, 1.0, "", False, []]
    if isinstance(value, list):
        return [[*value, *value, 1], [], {}, None, value[1:], value[::-1], [value]]
    return [{**value, "unknown": 1}, {}, [], None, [value]]


def forgeries(document: dict[str, Any], place: Place, number: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The document without this value, and with others: all of them, or two that depend on `number`."""
    values = others(at(document, place))
    for value in values if number is None else [values[0], values[1 + number % (len(values) - 1)]]:
        if json.dumps(value) != json.dumps(at(document, place)):
            made = copy.deepcopy(document)
            at(made, place[:-1])[place[-1]] = value
            yield repr(value)[:60], made
    made = copy.deepcopy(document)
    del at(made, place[:-1])[place[-1]]
    yield "removed", made


def is_stated(place: Place, value: Any, document: dict[str, Any]) -> bool:
    """Whether `verify` accepts this other value."""
    if place[:2] == ("output", "types") and len(place) == 3:
        number = document["output"]["types"][place[2]] in ("double", "int64")
        return document["output"]["kind"] in TEXT_KINDS and isinstance(value, str) and not number
    if place[:2] == ("request", "item") and len(place) == 3:
        # The name of the input column is stated; its name in the release is checked.
        return str(value).startswith("thing=")
    if place[:2] in {("findings", "noisy_sizes_steps"), ("findings", "sizes_up_to"), ("plan", "cuts_steps")}:
        # Noisy numbers may be anything, and what is hopeless does not matter for privacy.
        return isinstance(value, list | int) and not isinstance(value, bool)
    if place[:2] in {("findings", "needed"), ("findings", "reason"), ("findings", "limit")}:
        return True
    if place == ("request", "interval"):  # margins follow from numbers that are not published
        return "findings" in document and isinstance(value, float) and 0.0 < value < 1.0
    if place == ("findings", "found"):
        return bool(sum(value) == sum(document["findings"]["found"]))
    return place in STATED or (place[0] == "request" and place[1] in WISHES)


def passed(path: Path, document: dict[str, Any], *, every: bool) -> list[tuple[Place, str]]:
    """The forgeries that are verified."""
    certificate = Path(f"{path}.certificate.json")
    certificate.write_text(resealed(document))
    assert dphist.verify(path).verified
    table = read_release(str(path)).table

    def is_verified(made: dict[str, Any], place: Place) -> bool:
        if not every and place[0] != "output":
            return verify_document(made, table, str(path)).verified  # without reading the data again
        certificate.write_text(resealed(made))
        return dphist.verify(path).verified

    found = []
    for number, place in enumerate(leaves({key: value for key, value in document.items() if key != SEAL})):
        if not every and is_inside_a_row(document, place):
            continue
        for what, made in forgeries(document, place, None if every else number):
            if is_verified(made, place):
                found.append((place, what))
                if what == "removed":
                    assert place[:2] in {("request", wish) for wish in WISHES}, place
                else:
                    assert is_stated(place, at(made, place), document), (place, what)
    # An invalid seal.
    for value in ("", "0" * 64, None, 5):
        certificate.write_text(json.dumps({**document, SEAL: value}))
        assert not dphist.verify(path).verified
    return found


def everything(folder: Path) -> Path:
    """A release with most options."""
    dphist.ledger.Ledger.init(folder / "budget.ledger", "shop", epsilon=5.0, delta=1e-5)
    table = events({f"item {place}": 2000 - 90 * place for place in range(8)}, items_per_user=2)
    dphist.release(
        table.append_column("amount", pa.array([place % 50 for place in range(table.num_rows)])), user="user",
        item=["thing=item"], epsilon=1.0, delta=1e-6, max_items_per_user=2, sum=["amount:0:100", "b=amount:0:7"],
        mean=["amount:0:100"], where="amount >= 0", types="fixed", standard_error=True, interval=0.9,
        count_name="users", lower_threshold=3, weight=[0.1, 0.2], ledger=folder / "budget.ledger", dataset="shop",
        null_items=True, output=folder / "out.csv",
    )  # fmt: skip
    return folder / "out.csv"


def rounded(folder: Path) -> Path:
    dphist.release(
        events({"tea": 900, "milk": 700}), user="user", item="item", epsilon=1.0, delta=1e-6, max_items_per_user=1,
        mechanism="laplace", round=True, interval=0.95, standard_error=True, minimize="noise",
        output=folder / "a.tsv",
    )  # fmt: skip
    return folder / "a.tsv"


def rounds(folder: Path) -> Path:
    dphist.release(
        events({"tea": 900, "milk": 700}), user="user", item="item", epsilon=1.0, delta=1e-6,
        output=folder / "rounds.csv",
    )  # fmt: skip
    return folder / "rounds.csv"


def rounds_with_sums(folder: Path) -> Path:
    table = events({f"item {place}": 2000 - 90 * place for place in range(8)}, items_per_user=4)
    dphist.release(
        table.append_column("amount", pa.array([place % 50 for place in range(table.num_rows)])), user="user",
        item="item", epsilon=1.0, delta=1e-6, goal="keys", standard_error=True, interval=0.9, sum=["amount:0:100"],
        mean=["amount:0:100"], output=folder / "sums.csv",
    )  # fmt: skip
    return folder / "sums.csv"


def top(folder: Path) -> Path:
    dphist.release(
        events({"tea": 900, "milk": 700, "rare": 20}), user="user", item="item", epsilon=1.0, delta=1e-6, top=2,
        offset="independent", output=folder / "top.csv",
    )  # fmt: skip
    return folder / "top.csv"


CASES = {
    "rounds": rounds, "top-k": top, "rounds with sums": rounds_with_sums, "everything": everything,
    "rounded": rounded, "sketch": KINDS["sketch"], "histogram": KINDS["histogram"],
    "known-domain": KINDS["known-domain"], "csh": KINDS["csh"],
}  # fmt: skip
SLOW = {"rounds with sums", "rounded", "csh"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES]
)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_entry(every: bool, name: str, tmp_path: Path) -> None:
    path = CASES[name](tmp_path)
    document = json.loads(Path(f"{path}.certificate.json").read_text())
    found = passed(path, document, every=every)
    assert {("dphist",), ("output", "name")} <= {place for place, _ in found}, "statements can be anything"
    for place, _ in found:
        assert is_declared(*map(str, place)), f"docs/reference/certificate.md calls {place} checked"
