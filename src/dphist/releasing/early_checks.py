"""What is wrong with a request and quickly noticed: missing files, columns and flags, outputs, ledgers.

The command asks this before anything large is imported. `run` checks all of it again, and more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dphist.counting.task import Choice, Column, Events, Resources, Task
from dphist.counting.workspace import LOOKS_LIKE_DATA, is_data, short_name
from dphist.errors import DphistError
from dphist.releasing.protected import local_paths
from dphist.releasing.request import STREAM, Request, flag, options

_MOST_COLUMNS: Final = 40
# To look into more files than this is not quick.
_MOST_FILES: Final = 20
# What columns of users and of items are often called, the likeliest first.
_USERS: Final = (
    "user",
    "customer",
    "client",
    "member",
    "visitor",
    "person",
    "patient",
    "account",
    "device",
    "uid",
)
_ITEMS: Final = (
    "item", "query", "product", "page", "url", "word", "term", "search", "title", "tag", "category", "event",
    "country", "city", "name",
)  # fmt: skip
# Columns that are seldom counted.
_SELDOM: Final = re.compile(
    r"(^|_)(id|day|date|time|timestamp|ts|at|amount|price|count|value|rating)$", re.IGNORECASE
)


def check_early(request: Request) -> None:
    """Raise for a missing input, an output that cannot be written, an unknown ledger or a missing column."""
    files: list[str] = []
    if request.engine_name == "duckdb" and request.input != STREAM:
        from dphist.counting.files import matching_files

        files = [file for path in local_paths(request.input) for file in matching_files(path)]
    _check_output(request)
    if request.ledger is not None and "\0" not in os.fspath(request.ledger):
        from dphist.ledger import Ledger

        assert request.dataset is not None
        Ledger.open(os.fspath(request.ledger)).account(request.dataset)
    if 0 < len(files) <= _MOST_FILES:
        from dphist.counting.duckdb import DuckDBEngine

        folder = None if request.temp_folder is None else Path(request.temp_folder)
        engine = DuckDBEngine(Resources(request.memory, request.threads, folder))
        engine.check(Task(request.events(), Choice(bytes(32))))


def _check_output(request: Request) -> None:
    # A release with an id may be there already.
    if request.output in (None, STREAM) or request.id is not None:
        return
    from dphist.outputs.write import check_target, target_of

    assert request.output is not None
    target = target_of(request.output, request.output_table, request.output_format)
    if target.kind not in ("folder", "postgresql"):
        check_target(target, force=request.force, columns=request.output_columns())


def missing_options(values: Mapping[str, Any], *, output: bool) -> list[str]:
    """What is required and has no value, `output` perhaps among it."""
    required = ["input", *(one.name for one in options() if one.required), *(["output"] if output else [])]
    return [name for name in required if values.get(name) is None]


def missing_sentence(values: Mapping[str, Any], missing: Sequence[str]) -> tuple[str, list[str]]:
    """One sentence about all missing options, with the columns of the input; and flags that would do, if any."""
    sentence = f"missing: {', '.join('INPUT' if name == 'input' else flag(name) for name in missing)}"
    columns, about = _columns(values) if {"user", "item"} & set(missing) else (None, "")
    if is_data(columns or []):
        return f"{sentence}. {about}", []
    guessed = {"epsilon": "1", "delta": "1e-6", "output": "counts.csv", "input": "INPUT"}
    guessed |= _guess(columns or [], values)
    example = [word for name in missing for word in ("-o" if name == "output" else flag(name), guessed[name])]
    return f"{sentence}. {about}" if about else sentence, example


def _columns(values: Mapping[str, Any]) -> tuple[list[str] | None, str]:
    """The columns of an input of this computer, by its header or schema; and a sentence about them."""
    source = values.get("input")
    if values.get("engine") == "spark" or not any(local_paths(source)) or source == STREAM:
        return None, ""
    from dphist.counting.duckdb import DuckDBEngine

    table, query, form = (
        value if isinstance(value, str) else None for value in map(values.get, ("table", "query", "input_format"))
    )
    try:
        events = Events(source, "user", (Column("item", "item"),), table, query, file_format=form)
        names = DuckDBEngine().columns(events)
    except DphistError as error:
        return None, error.with_flags[:1].upper() + error.with_flags[1:]
    what = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the input"
    if names is None:
        return None, ""
    if is_data(names):
        return names, f"The first line of {what} {LOOKS_LIKE_DATA}"
    shown = [short_name(name) for name in names[:_MOST_COLUMNS]]
    shown = [name if re.fullmatch(r"\w+", name) else repr(name) for name in shown]
    more = f" and {len(names) - _MOST_COLUMNS} more" if len(names) > _MOST_COLUMNS else ""
    return names, f"Columns of {what}: {', '.join(shown)}{more}"


def _guess(columns: Sequence[str], values: Mapping[str, Any]) -> dict[str, str]:
    """Columns that may be the user and the item, by their names."""

    def first(words: Sequence[str], names: Sequence[str]) -> str | None:
        return next((name for word in words for name in names if word in name.lower()), None)

    user = values.get("user") or first(_USERS, columns) or next(iter(columns), "USER")
    others = [name for name in columns if name != user]
    likely = [name for name in others if not _SELDOM.search(name)] or others
    return {"user": str(user), "item": first(_ITEMS, likely) or next(iter(likely), "ITEM")}
