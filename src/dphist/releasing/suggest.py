"""What to suggest for a release with missing options: the columns of its input, and the likeliest of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

from dphist.certificate.request import Column
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.task import Events
from dphist.counting.workspace import LOOKS_LIKE_DATA, is_data, short_name
from dphist.errors import DphistError, flag
from dphist.outputs.target import local_paths
from dphist.releasing.request import STREAM

_MOST_COLUMNS: Final = 40
# Common names of user and item columns, the likeliest first.
_USERS: Final = (
    "user", "customer", "client", "member", "visitor", "person", "patient", "account", "device", "uid",
)  # fmt: skip
_ITEMS: Final = (
    "item", "query", "product", "page", "url", "word", "term", "search", "title", "tag", "category", "event",
    "country", "city", "name",
)  # fmt: skip
# Columns that are rarely counted.
_RARELY: Final = re.compile(
    r"(^|_)(id|day|date|time|timestamp|ts|at|amount|price|count|value|rating)$", re.IGNORECASE
)


def describe_missing(values: Mapping[str, object], missing: Sequence[str]) -> tuple[str, dict[str, str]]:
    """A sentence about the missing options and the columns of the input, and a value for each option.

    Without values if they cannot be guessed, or if the command must not be repeated.
    """
    names = ("INPUT" if name == "input" else f"<{flag(name)}>" for name in missing)
    sentence = f"missing: {', '.join(names)}"
    columns: list[str] = []
    if {"user", "item"} & set(missing):
        columns, about = _columns(values)
        sentence += f". {about}" if about else ""
    # Spark settings may be secrets.
    if is_data(columns) or "input" in missing or values.get("spark_conf"):
        return sentence, {}
    return sentence, {"epsilon": "1", "delta": "1e-6", "output": "counts.csv", **_guess(columns, values)}


def _columns(values: Mapping[str, object]) -> tuple[list[str], str]:
    """The columns of a local input, from its header or schema, and a sentence about them."""
    source = values.get("input")
    if values.get("engine") == "spark" or not any(local_paths(source)) or source == STREAM:
        return [], ""
    table, query, form, encoding, delimiter = (
        value if isinstance(value, str) else None
        for value in map(values.get, ("table", "query", "input_format", "encoding", "delimiter"))
    )
    try:
        events = Events(
            source, "user", (Column("item", "item"),), table, query, file_format=form, encoding=encoding,
            delimiter=delimiter,
        )  # fmt: skip
        names = DuckDBEngine().columns(events)
    except DphistError as error:
        return [], error.marked[:1].upper() + error.marked[1:]
    if names is None:
        return [], ""
    what = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the input"
    if is_data(names):
        return names, f"The first line of {what} {LOOKS_LIKE_DATA}"
    shown = [short_name(name) for name in names[:_MOST_COLUMNS]]
    shown = [name if re.fullmatch(r"\w+", name) else repr(name) for name in shown]
    more = f" and {len(names) - _MOST_COLUMNS} more" if len(names) > _MOST_COLUMNS else ""
    return names, f"Columns of {what}: {', '.join(shown)}{more}"


def _guess(columns: Sequence[str], values: Mapping[str, object]) -> dict[str, str]:
    def first(words: Sequence[str], names: Sequence[str]) -> str | None:
        return next((name for word in words for name in names if word in name.lower()), None)

    user = values.get("user") or first(_USERS, columns) or next(iter(columns), "USER")
    others = [name for name in columns if name != user]
    likely = [name for name in others if not _RARELY.search(name)] or others
    return {"user": str(user), "item": first(_ITEMS, likely) or next(iter(likely), "ITEM")}
