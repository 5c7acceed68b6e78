"""The user's condition: it must be a condition on one row and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dphist.engines.failures import about_sql, listed
from dphist.engines.sql import name
from dphist.errors import InputError


def statement(condition: str) -> str:
    """The condition where it will stand: on lines of its own, so that a comment in it ends before ours."""
    return f"SELECT 1 FROM t WHERE TRY((\n{condition}\n))"


def tree_of(connection: Any, query: str) -> dict[str, Any]:
    """DuckDB's own parse of a query."""
    rows = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    parsed: dict[str, Any] = json.loads(rows[0][0])
    return parsed


def without_places(node: Any) -> Any:
    """A parse without the positions in the text."""
    if isinstance(node, dict):
        return {key: without_places(value) for key, value in node.items() if not key.startswith("query_location")}
    return [without_places(value) for value in node] if isinstance(node, list) else node


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a parse."""
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from nodes(value)


def taken(parsed: dict[str, Any]) -> dict[str, Any]:
    """The condition of a parsed query, taken out of it: what is left must be ours."""
    statements = parsed.get("statements") or [{}]
    clause = statements[0].get("node", {}).pop("where_clause", None)
    return clause if isinstance(clause, dict) else {}


def condition_of(connection: Any, condition: str) -> Any:
    """The parse of a condition, after making sure that it is one condition and not more."""
    bad = f"the condition {condition!r} is not a condition in SQL"
    if not condition.strip():
        raise InputError(bad)
    parsed = tree_of(connection, statement(condition))
    if parsed.get("error"):
        raise InputError(f"{bad}: {about_sql(Exception(parsed.get('error_message', 'syntax error')))}")
    shape, expected = (without_places(tree) for tree in (parsed, tree_of(connection, statement("TRUE"))))
    clause, model = taken(shape), taken(expected)
    children = clause.pop("children", [])
    model.pop("children", None)
    if shape != expected or clause != model or len(children) != 1:
        raise InputError(bad)
    for node in nodes(children):
        if node.get("class") in ("SUBQUERY", "WINDOW", "PARAMETER", "STAR"):
            # Such a condition could let one user decide about the rows of another.
            raise InputError(f"the condition {condition!r} must be about single rows: no subqueries and no *")
    return children[0]


def columns_of(connection: Any, condition: str, names: Sequence[str] | None) -> list[str]:
    """The input's columns that a condition names: exactly, or else without regard to case, as SQL has it."""
    found: dict[str, str] = {}
    for node in nodes(condition_of(connection, condition)):
        if node.get("class") == "COLUMN_REF":
            written = str(node["column_names"][0])
            alike = [one for one in names or [written] if one.casefold() == written.casefold()]
            matches = [written] if written in alike else alike
            if len(matches) > 1 or (matches and found.get(written.casefold(), matches[0]) != matches[0]):
                raise InputError(f"the condition {condition!r} cannot tell apart the columns {listed(alike)}")
            if matches:
                found[written.casefold()] = matches[0]
    return list(found.values())


def bind(connection: Any, condition: str, types: dict[str, str], names: Sequence[str] | None) -> None:
    """Bind a condition against columns without rows: what DuckDB says then is about names and types alone."""
    typed = [f"CAST(NULL AS {kind}) AS {name(column)}" for column, kind in types.items()] or ["1"]
    try:
        connection.execute(
            f"EXPLAIN SELECT 1 FROM (SELECT {', '.join(typed)} LIMIT 0) WHERE TRY((\n{condition}\n))"
        ).fetchall()
        return
    except Exception as error:
        said = about_sql(error)
    if "Referenced column" in said:
        said = f"it names a column that does not exist; the columns are {listed(list(names or types))}"
    if "explicit cast is required" in said:
        said += (
            ". Columns of CSV, JSON and frames are text: write CAST(column AS DOUBLE), or pass types='fixed' for "
            "a frame"
        )
    raise InputError(f"the condition {condition!r} cannot be used: {said}")
