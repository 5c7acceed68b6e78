"""The fields of the page, what it needs to start, and the file that leads a browser to it; without a server."""

from __future__ import annotations

import json
import sys
import tempfile
import webbrowser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from dphist.errors import InvalidParameter, MissingExtra
from dphist.web.answers import answer
from dphist.web.invitation import Invitation
from dphist.web.server import _open, listener_on, serve

pytest.importorskip("starlette", reason="no Starlette: pip install -e '.[dev]'")

from dphist.web.app import FILES

FIELDS = {"epsilon": "1", "delta": "1e-6", "max_items_per_user": "20"}
LAW = {"items": "1000", "users": "100000", "exponent": "1", "mean_items": "5"}
NONSENSE: list[Any] = [
    "", " ", "NaN", "nan", "inf", "-inf", "Infinity", "1e999", "-1e999", "-1", "-0.5", "0", "one", "1,5", "1_000",
    "0x10", "1e", "--1", "٣", "½", "１", "💥", "\ud800", "\u0000", "1; drop table", "<script>alert(1)</script>",
    "9" * 39, "9" * 5000, True, None, [], {}, [1], {"a": 1}, float("nan"), float("inf"), -5, 10**400,
]  # fmt: skip
NUMBERS = ("epsilon", "delta", "max_nonzero", "max_items_per_user", "top", "gamma", "seed", *LAW)
WORDS = ("mechanism", "noise", "minimize", "spread")


@pytest.mark.parametrize("name", [*NUMBERS, *WORDS])
def test_nonsense_in_every_field_is_one_sentence(name: str) -> None:
    whole = {**FIELDS, "max_nonzero": "", **LAW}
    if name == "gamma":
        whole["max_nonzero"] = "100"
    for value in NONSENSE:
        if name in WORDS and value in ("", " ", None):
            continue  # nothing chosen is the default
        if name in ("max_nonzero", "max_items_per_user", "top", "gamma", "seed") and value in ("", " ", None):
            continue  # nothing given is no bound
        kind = "simulate" if name in (*LAW, "seed", "spread") else "quick"
        found = answer(kind, {**whole, name: value})
        if name == "exponent" and value == "0":
            continue  # all items alike
        assert set(found) == {"error", "field"}, (name, value)
        assert found["field"] == name, (name, value, found)
        assert len(found["error"]) < 200
        assert "\n" not in found["error"]


@pytest.mark.parametrize(
    ("fields", "field", "part"),
    [
        ({"epsilon": "1", "delta": "1e-6"}, "max_nonzero", "give a bound"),
        ({**FIELDS, "top": "5", "max_nonzero": "5"}, "top", "leave one of the two empty"),
        ({**FIELDS, "top": "5", "noise": "continuous"}, "top", "discrete"),
        ({**FIELDS, "gamma": "3"}, "gamma", "needs a bound"),
        ({**FIELDS, "max_nonzero": "9"}, "max_items_per_user", "must not exceed"),
        ({**FIELDS, "max_nonzero": "90", "gamma": "3", "mechanism": "laplace"}, "mechanism", "no gamma"),
        ({**FIELDS, "max_nonzero": "90", "gamma": "1e-9"}, "gamma", "between 0.01"),
        ({**FIELDS, "max_nonzero": "90", "gamma": "0.5"}, "gamma", "whole number from 1 on"),
        ({**FIELDS, "epsilon": "801"}, "epsilon", "800"),
        ({**FIELDS, "delta": "1"}, "delta", "1"),
        ({**FIELDS, "max_nonzero": "1.5"}, "max_nonzero", "whole number"),
        ({**FIELDS, "max_nonzero": str(10**12 + 1)}, "max_nonzero", "1000000000000"),
    ],
)
def test_what_does_not_go_together(fields: dict[str, str], field: str, part: str) -> None:
    for kind in ("quick", "plan"):
        found = answer(kind, fields)
        assert found["field"] == field
        assert part in found["error"]


def test_a_gamma_that_no_lattice_holds_is_told_at_its_field() -> None:
    for fields in ({"gamma": "1e15"}, {"gamma": "1e6", "epsilon": "800"}):
        found = answer("plan", {"epsilon": "1", "delta": "1e-6", "max_nonzero": "100", **fields})
        assert found["field"] == "gamma"
        assert "no lattice could hold it" in found["error"]


def test_odd_but_right_numbers_are_answered() -> None:
    for fields in (
        {"epsilon": ".5", "delta": "1E-6", "max_items_per_user": "1e3"},
        {"epsilon": 1, "delta": 1e-6, "max_items_per_user": 20},
        {"epsilon": "800", "delta": "1e-300", "max_items_per_user": "1"},
        {"epsilon": "1e-3", "delta": "0.9", "max_nonzero": "1"},
        {"epsilon": "1", "delta": "1e-6", "max_nonzero": "9", "gamma": "0.5", "noise": "continuous"},
        {"epsilon": " 2 ", "delta": "1e-9", "max_nonzero": str(10**12)},
        {"epsilon": "1e-6", "delta": "1e-12", "top": str(10**12)},
    ):
        found = answer("quick", fields)
        assert "error" not in found, found
        json.dumps(found, allow_nan=False)


# ---- the command


def test_the_server_needs_its_extra_and_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidParameter, match="between 0 and 65535"):
        serve(port=70_000, browser=False)
    with listener_on(0) as taken:
        taken.listen()
        with pytest.raises(InvalidParameter, match="cannot be used: Address already in use"):
            serve(port=taken.getsockname()[1], browser=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dphist\[web\]'"):
        serve(port=0, browser=False)


def test_an_invitation_works_once_in_time_and_for_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def written(seconds: float) -> tuple[Invitation, str]:
        invitation = Invitation(seconds=seconds)
        invitation.written("http://127.0.0.1:1")
        (path,) = tmp_path.glob("*/*")
        return invitation, path.read_text().partition("?code=")[2].partition('"')[0]

    used, code = written(60.0)
    assert len(code) > 40
    assert [used.takes(given) for given in ("", code + "x", "\ud800", code, code)] == [
        False,
        False,
        False,
        True,
        False,
    ]
    assert list(tmp_path.iterdir()) == []
    late, code = written(-1.0)
    assert not late.takes(code)
    late.withdraw()
    assert list(tmp_path.iterdir()) == []
    withdrawn, code = written(60.0)
    withdrawn.withdraw()
    assert not withdrawn.takes(code)
    # Without a folder for it there is no file and no browser, but a sentence; the printed address is there.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail(address))
    _open(Invitation(), "http://127.0.0.1:1")
    assert "No browser was opened: [Errno 2]" in capsys.readouterr().err


def test_the_page_is_in_the_package_and_needs_nothing_from_elsewhere() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in (files("dphist.web") / "page").iterdir()}
    assert set(found) == set(FILES)
    for text in found.values():
        own = text.replace("http://www.w3.org/2000/svg", "")
        assert not any(word in own for word in ("http://", "https://", "//cdn", "innerHTML", '"/static', '"/api'))


def test_the_wheel_would_hold_the_page() -> None:
    root = Path(__file__).resolve().parents[2]
    assert 'packages = ["src/dphist"]' in (root / "pyproject.toml").read_text()
    assert not any("page" in line for line in (root / ".gitignore").read_text().splitlines())
