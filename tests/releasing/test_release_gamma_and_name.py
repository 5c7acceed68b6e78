"""A chosen ratio of own to shared noise, and a name for the input in place of its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import dphist
from dphist.errors import InvalidParameter
from release_commands import command
from release_data import events, resealed

COUNTS = {"tea": 900, "milk": 700, "bread": 500}
BUDGET: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}
FLAGS = ("--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6")


@pytest.mark.parametrize(
    ("gamma", "whole"), [pytest.param(3, 3.0, marks=pytest.mark.slow), (2.6, 3.0), ("sqrt", 7.0)]
)
def test_gamma_is_that_of_the_plan(tmp_path: Path, gamma: Any, whole: float) -> None:
    found = dphist.release(events(COUNTS), **BUDGET, max_nonzero=50, gamma=gamma, output=tmp_path / "out.csv")
    planned = dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=50, gamma=gamma)
    assert found.plan.to_dict() == planned.to_dict()
    assert found.plan.gamma == whole
    assert dphist.verify(tmp_path / "out.csv").verified
    # With another gamma the certificate is of another request.
    certificate = tmp_path / "out.csv.certificate.json"
    document = json.loads(certificate.read_text())
    assert document["request"]["gamma"] == gamma
    document["request"]["gamma"] = 20
    certificate.write_text(resealed(document))
    (problem,) = dphist.verify(tmp_path / "out.csv").problems
    assert "for another request" in problem


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_items_per_user": 3, "gamma": 3}, "gamma needs max_nonzero"),
        ({"top": 3, "gamma": 3}, "gamma needs max_nonzero"),
        ({"max_nonzero": 50, "gamma": 0.5}, "whole number from 1 on"),
        ({"max_nonzero": 50, "gamma": "root"}, "gamma must be a number or sqrt, not 'root'"),
        ({"max_nonzero": 50, "gamma": True}, "gamma"),
        ({"max_nonzero": 50, "gamma": 3, "mechanism": "laplace"}, "no gamma"),
        ({"max_nonzero": 50, "gamma": 3, "sum": "user:0:1"}, "with gamma tuned"),
        ({"max_nonzero": 50, "input_name": " "}, "input_name must have 1 to 200 characters"),
        ({"max_nonzero": 50, "input_name": "x" * 201}, "input_name must have 1 to 200 characters"),
        ({"max_nonzero": 50, "input_name": 7}, "input_name must be a text"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParameter, match=told.replace("(", r"\(")):
        dphist.release(events(COUNTS), **BUDGET, **options)


@pytest.mark.usefixtures("quick_curve")
def test_the_command_takes_both(tmp_path: Path) -> None:
    pq.write_table(events(COUNTS), tmp_path / "a secret project.parquet")
    done = command(
        tmp_path, "release", "a secret project.parquet", *FLAGS, "--max-nonzero", "50", "--gamma", "4",
        "--input-name", "orders of 2026", "--output", "out.csv", "--report", "report.html",
    )  # fmt: skip
    assert done.code == 0, done.err
    certificate = json.loads((tmp_path / "out.csv.certificate.json").read_text())
    assert certificate["request"]["input"] == "orders of 2026"
    assert certificate["plan"]["gamma"] == 4.0
    for written in tmp_path.glob("[or]*"):
        assert "a secret project" not in written.read_text(), written
    assert "It was made from orders of 2026 on " in (tmp_path / "report.html").read_text()
    assert dphist.verify(tmp_path / "out.csv").verified
    bad = command(tmp_path, "release", "a secret project.parquet", *FLAGS, "--max-nonzero", "5", "--gamma", "root")
    assert bad.code == 2
    assert "'root' is not a number or sqrt" in bad.err


def test_frames_have_a_name() -> None:
    found = dphist.release(events(COUNTS), **BUDGET, max_items_per_user=1, input_name="orders of 2026")
    assert found.document()["request"]["input"] == "orders of 2026"
    assert "It was made from orders of 2026 on " in dphist.make_report(found, "text").replace("\n", " ")
