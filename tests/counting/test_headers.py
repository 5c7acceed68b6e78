"""Files without a header: their first row is a user's data, which no message repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import dphist
from dphist.counting.workspace import header_names, is_data
from dphist.errors import InputError
from release_commands import command

ASKED: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "max_items_per_user": 1}
ROWS = [
    "alice.smith@mail.com,HIV positive",
    "Alice,HIV positive,2024-01-31",
    "HIV positive,-17.5",
    "HIV positive,",
    "HIV positive,HIV positive",
    "HIV positive,b4f0a1de-0c1f-4c3b-9d55-aaaaaaaaaaaa",
    f"HIV positive,{'x' * 65}",
]


def run(folder: Path, *arguments: str) -> str:
    done = command(folder, *arguments)
    assert (done.code, done.out) == (2, "")
    return done.err


@pytest.mark.parametrize("first", ROWS)
def test_a_first_line_of_data_is_not_repeated(tmp_path: Path, first: str) -> None:
    path = tmp_path / "nohead.csv"
    path.write_text(f"{first}\n" * 3)
    asked: tuple[dict[str, Any], ...] = (
        {"user": "user", "item": "item"},
        {"user": "hiv positiv", "item": "mail"},
        {"user": "user", "item": "x=item ||"},
        {"user": "user", "item": "x=upper(item)"},
        {"user": "user", "item": "item", "where": "item = 'tea'"},
        {"user": "user", "item": "item", "query": "SELECT user, item FROM input"},
    )
    for more in asked:
        with pytest.raises(InputError) as caught:
            dphist.release(path, **more, **ASKED)
        assert "HIV" not in str(caught.value)
        assert "alice" not in str(caught.value).lower()


def test_the_command_does_not_suggest_columns_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nohead.csv").write_text(f"{ROWS[0]}\n")
    message = run(tmp_path, "release", "nohead.csv", "--epsilon", "1")
    assert "The first line of nohead.csv looks like data, not like column names: add a header line" in message
    assert "For example" not in message
    assert "HIV" not in message
    assert "mail" not in message
    asked = ["--user=u", "--item=i", "--epsilon=1", "--delta=1e-6", "-o", "o.csv"]
    with (tmp_path / "nohead.csv").open() as given:
        monkeypatch.setattr("sys.stdin", given)
        message = run(tmp_path, "release", "-", "--input-format=csv", *asked)
    assert "standard input has no column 'u', and its first line looks like data" in message
    assert "HIV" not in message


def test_a_column_that_is_named_exactly_is_used(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("user,2024\n" + "".join(f"{user},tea\n" for user in range(900)))
    assert dphist.release(path, user="user", item="2024", **ASKED).items.to_pylist() == ["tea"]
    counted = dphist.release(path, user="user", item='x=upper("2024")', **ASKED)
    assert counted.items.to_pylist() == ["TEA"]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_an_open_quote(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "quote.csv"
    path.write_text(ending.join(['user,"item', "alice,HIV positive", 'bob,"flu"', ""]), newline="")
    with pytest.raises(InputError, match="does not end in its first line: a quote is not closed") as caught:
        dphist.release(path, user="user", item="item", **ASKED)
    assert "HIV" not in str(caught.value)
    assert "HIV" not in run(tmp_path, "release", "quote.csv")


def test_plain_names(tmp_path: Path) -> None:
    for names in (["user", "item"], ["user id", "Suchbegriff"], ["a.b", "_c", "größe"], ["face", "deadbeef"]):
        assert not is_data(header_names(names))
    # A schema declares its names.
    path = tmp_path / "log.parquet"
    pa.parquet.write_table(pa.table({"2024": ["a"], "x" * 300: ["b"]}), path)
    with pytest.raises(InputError, match=r"its columns are '2024', 'x{40}\.\.\.'$"):
        dphist.release(path, user="user", item="item", **ASKED)
