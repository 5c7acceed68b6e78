"""Forged certificates: no string in one, key or value, is interpreted as more than text."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dphist
from dphist.certificate.text import SEAL
from dphist.report.charts import report_charts
from dphist.report.facts import gather_facts, refuse_unverified
from dphist.report.render import render
from release_data import events, resealed
from report_cases import BUDGET, COUNTS, Page, booked, run

NASTY = "\x1b]0;x\x07\x9b31m\u202e</script><script>hacked</script>|`\n# x\r[a](b)"
# Invisible characters that a terminal or a reader would obey; only line ends are allowed.
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
Place = tuple[Any, ...]
KEY = object()


def strings(data: Any, place: Place = ()) -> Iterator[Place]:
    """The paths of all texts in a document; the first and the last key of each object too, marked by KEY."""
    if isinstance(data, dict):
        for number, (key, value) in enumerate(data.items()):
            if number in (0, len(data) - 1):
                yield (*place, key, KEY)
            yield from strings(value, (*place, key))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from strings(value, (*place, number))
    elif isinstance(data, str):
        yield place


def changed(document: dict[str, Any], place: Place) -> dict[str, Any]:
    """The document with a nasty text in this place."""
    made: Any = copy.deepcopy(document)
    is_key = place[-1] is KEY
    *above, last = place[:-1] if is_key else place
    inside = made
    for step in above:
        inside = inside[step]
    if is_key:
        inside[NASTY] = inside.pop(last)
    else:
        inside[last] = f"{inside[last]}{NASTY}"
    return dict(made)


def seal(path: Path, document: dict[str, Any]) -> None:
    Path(f"{path}.certificate.json").write_text(resealed(document))


def check_output(path: Path) -> None:
    facts = gather_facts(path)
    text = render(facts)
    assert not UNSEEN.search(text), UNSEEN.search(text)
    text.encode()
    page = Page(text)
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert json.loads(page.download) == json.loads(Path(f"{path}.certificate.json").read_text())
    assert "<script>hacked" not in text
    for chart in report_charts(facts):
        assert not UNSEEN.search(chart.svg())
    for words in (["verify"], ["verify", "--json"], ["report", "--json"]):
        shown = run(path.parent, *words, path.name)
        assert shown.returncode == 0, shown.stderr
        assert not UNSEEN.search(shown.stdout + shown.stderr)


def everything(folder: Path) -> Path:
    """A release with a booking, sums and all options that are texts."""
    dphist.ledger.Ledger.init(folder / "budget.ledger", "shop", epsilon=5.0, delta=1e-5)
    table = events(COUNTS, items_per_user=2)
    dphist.release(
        table.append_column("amount", pa.array([1.0] * table.num_rows)), **BUDGET, max_items_per_user=2,
        sum=["amount:0:100"], where="amount > 0", types="fixed", ledger=folder / "budget.ledger", dataset="shop",
        output=folder / "out.csv",
    )  # fmt: skip
    return folder / "out.csv"


@pytest.mark.usefixtures("quick_curve")
def test_no_text_of_a_certificate_is_interpreted(tmp_path: Path) -> None:
    """Each text is forged by itself and resealed; then all at once that `verify` accepts."""
    path = everything(tmp_path)
    document = json.loads(Path(f"{path}.certificate.json").read_text())
    passed: list[Place] = []
    for place in strings({key: value for key, value in document.items() if key != SEAL}):
        seal(path, changed(document, place))
        found = dphist.verify(path)
        assert not UNSEEN.search(str(found).replace("\n", ""))
        if found.verified:
            passed.append(place)
        else:
            with pytest.raises(dphist.NotVerified) as refused:
                refuse_unverified(found)
            assert not UNSEEN.search(str(refused.value)), place
    for place in passed:
        document = changed(document, place)
    seal(path, document)
    free = {place[-1] for place in passed}
    # Only texts that follow from nothing else can be forged.
    assert {"input", "name", "user", "where"} <= free
    assert not {"guarantee", "ledger", "hash", "mechanism", "sha256", "format", KEY} & free
    assert dphist.verify(path).verified
    check_output(path)


def test_a_forged_booking_is_noticed(tmp_path: Path) -> None:
    path = booked(tmp_path)
    document = json.loads(Path(f"{path}.certificate.json").read_text())
    assert dphist.verify(path).verified
    for change in (
        {"note": "and all is well"}, {"entry": "1"}, {"entry": 0}, {"entry": True}, {"hash": "0"},
        {"ledger": "mine"}, {"hash": 5},
    ):  # fmt: skip
        seal(path, {**document, "booking": {**document["booking"], **change}})
        found = dphist.verify(path)
        (problem,) = found.problems
        assert problem.startswith("the certificate is invalid: "), change
        assert "`$.booking" in problem


def test_names_of_files_do_not_move_the_cursor() -> None:
    found = dphist.Verification("a\x1b[2J.csv", ("b\x07",), ("c\u202e\ud800",), False, None)
    assert not UNSEEN.search(str(found))
    assert r"a\x1b[2J.csv is NOT verified." in str(found)
