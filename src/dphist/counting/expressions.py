"""SQL that the user writes about single rows: conditions, items that are computed, and queries over files.

Each output row must be a function of one input row, or one user could decide about the rows of another. DuckDB's
own parser says what a text is; whatever is not known to be about one row is refused. Everything is bound against
the names and types of columns alone, before any row is read, and evaluated inside TRY: where it fails on a row (a
text that is not a number) it is NULL, because an error would tell of that row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dphist.counting.frames import Opened, Source
from dphist.counting.sql import name, text_column
from dphist.counting.task import Column
from dphist.counting.workspace import about_sql, column_list, name_list
from dphist.errors import InputError

# Parts of an expression that see more than one row, or what is not in the row.
_NOT_OF_ONE_ROW: Final = ("SUBQUERY", "WINDOW", "PARAMETER", "STAR", "POSITIONAL_REFERENCE", "DEFAULT")
# Words and functions that change from one pass over the events to the next. TRY refuses volatile functions itself.
_CHANGING_WORD: Final = re.compile(r"current_\w+|local\w+|session_user|user", re.IGNORECASE)
_CHANGING_MACROS: Final = frozenset({"ago", "current_user", "current_role", "current_catalog", "session_user"})
# In JSON every name may be a key; only a text with one of these is taken for an expression.
CALL_OR_CAST: Final = re.compile(r"\(|::")
_NUMBERS: Final = ("INTEGER", "DECIMAL", "FLOAT", "DOUBLE", "NUMERIC")
_ONE_ROW_ONLY: Final = (
    "over files it must be SELECT expressions FROM input WHERE condition, so that each row comes from one row of "
    "the input: no joins, subqueries, WITH, UNION, aggregates, GROUP BY, window functions, DISTINCT, ORDER BY, "
    "LIMIT or samples"
)


def title_of(kind: str, written: str) -> str:
    """A condition, an expression or a query as a sentence names it."""
    return f"the {kind} {written!r}"


def serialize(connection: Any, query: str) -> dict[str, Any]:
    """DuckDB's parse of a query, without positions in the text."""
    rows = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    tree: dict[str, Any] = json.loads(rows[0][0], object_hook=_without_places)
    return tree


def _without_places(node: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if not key.startswith("query_location")}


def parse(connection: Any, expression: str) -> tuple[dict[str, Any], list[Any]]:
    """DuckDB's parse of a query with an expression in WHERE; and the expression, taken out."""
    # On lines of its own, so that a comment in it ends before ours.
    tree = serialize(connection, f"SELECT 1 FROM t WHERE TRY((\n{expression}\n))")
    try:
        return tree, tree["statements"][0]["node"]["where_clause"].pop("children")
    except (KeyError, IndexError, TypeError, AttributeError):
        return tree, []


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a parse."""
    if isinstance(tree, dict):
        yield tree
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes_of(value)


def check(connection: Any, expression: str, kind: str) -> list[dict[str, Any]]:
    """The nodes of an expression, after making sure that it is one expression, on one row, and nothing else."""
    bad = f"{title_of(kind, expression)} is not {'an' if kind == 'expression' else 'a'} {kind} in SQL"
    if not expression.strip():
        raise InputError(bad)
    query, parts = parse(connection, expression)
    if query.get("error"):
        raise InputError(f"{bad}: {about_sql(Exception(query.get('error_message', 'syntax error')))}")
    # What is left of the query must be ours.
    if len(parts) != 1 or query != parse(connection, "TRUE")[0]:
        raise InputError(bad)
    found = list(nodes_of(parts))
    if any(node.get("class") in _NOT_OF_ONE_ROW for node in found):
        raise InputError(f"{title_of(kind, expression)} must be about single rows: no subqueries and no *")
    return found


def columns_of(connection: Any, expression: str, names: Sequence[str] | None, kind: str) -> list[str]:
    """The input's columns that an expression names: exactly, or else without regard to case, as SQL has it."""
    found: dict[str, str] = {}
    for node in check(connection, expression, kind):
        if node.get("class") == "COLUMN_REF":
            written = str(node["column_names"][0])
            alike = [one for one in names or [written] if one.casefold() == written.casefold()]
            matches = [written] if written in alike else alike
            if len(matches) > 1 or (matches and found.get(written.casefold(), matches[0]) != matches[0]):
                raise _cannot_tell(title_of(kind, expression), alike)
            if matches:
                found[written.casefold()] = matches[0]
    return list(found.values())


def _cannot_tell(title: str, alike: Sequence[str]) -> InputError:
    return InputError(f"{title} cannot tell apart the columns {name_list(list(alike))}")


def bind(
    connection: Any, expression: str, types: Mapping[str, str], names: Sequence[str] | None, kind: str
) -> str:
    """The type of an expression, bound against columns without rows: errors are about names and types alone."""
    title = title_of(kind, expression)
    typed = [f"CAST(NULL AS {one}) AS {name(column)}" for column, one in types.items()] or ["1"]
    rows = f"(SELECT {', '.join(typed)} LIMIT 0)"
    tried = f"TRY((\n{expression}\n))"
    texts = [column for column, one in types.items() if one == "VARCHAR"]
    _refuse_text_as_number(check(connection, expression, kind), texts, title)
    try:
        # In WHERE, where aggregates and window functions are errors.
        where = tried if kind == "condition" else f"({tried}) IS NULL"
        connection.execute(f"EXPLAIN SELECT 1 FROM {rows} WHERE {where}").fetchall()
        return str(connection.execute(f"DESCRIBE SELECT {tried} AS x FROM {rows}").fetchall()[0][1])
    except Exception as error:
        reason = about_sql(error)
    if "volatile" in reason:
        reason = "it must give the same for the same row, whenever it is evaluated"
    elif "WHERE clause cannot contain" in reason:
        reason = "it must be about single rows: no aggregates and no window functions"
    known = "" if names is None else f". The columns are {column_list(list(names or types))}"
    hint = _cast_hint(texts) if "VARCHAR" in reason else ""
    raise InputError(f"{title} cannot be used: {reason}{known}{hint}")


def _refuse_text_as_number(nodes: Sequence[dict[str, Any]], texts: Sequence[str], title: str) -> None:
    """Raise `InputError` where text is compared with a number: as texts, '10' is below '9' and is not '10.0'."""
    within = [one for node in nodes if node.get("class") == "LAMBDA" for one in nodes_of(node["lhs"])]
    parameters = {str(one["column_names"][0]).casefold() for one in within if one.get("class") == "COLUMN_REF"}
    found = {column.casefold(): column for column in texts if column.casefold() not in parameters}
    for node in nodes:
        if node.get("class") not in ("COMPARISON", "BETWEEN") and node.get("type") != "COMPARE_IN":
            continue
        sides = [side for value in node.values() for side in (value if isinstance(value, list) else [value])]
        sides = [side for side in sides if isinstance(side, dict)]
        named = [str(side["column_names"][0]) for side in sides if side.get("class") == "COLUMN_REF"]
        column = next((found[one.casefold()] for one in named if one.casefold() in found), None)
        literals = [side.get("literal") or {} for side in sides if side.get("class") == "CONSTANT"]
        if column is not None and any(literal.get("kind") in _NUMBERS for literal in literals):
            raise InputError(
                f"{title} compares {column!r}, which is text, with a number: write {_cast(column, 'DOUBLE')}, or "
                "put the number in quotes to compare texts"
            )


def _cast(column: str, kind: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_]\w*", column)
    return f"CAST({column if plain else name(column)} AS {kind})"


def _cast_hint(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    first = texts[0]
    return (
        f". {first!r} is text, as all columns of CSV, JSON and frames are: write {_cast(first, 'DOUBLE')} or "
        f"{_cast(first, 'DATE')}, or pass types='fixed' for a frame"
    )


# Columns that are computed.


def refuse_changing(connection: Any, expression: str, names: Sequence[str]) -> None:
    """Raise `InputError` for a value that depends on when it is computed: the events are read more than once."""
    rows = connection.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability = 'CONSISTENT_WITHIN_QUERY'"
    ).fetchall()
    changing = {str(row[0]) for row in rows} | _CHANGING_MACROS
    known = {column.casefold() for column in names}
    for node in check(connection, expression, "expression"):
        called = str(node.get("function_name", "")).lower()
        word = str(node["column_names"][0]) if node.get("class") == "COLUMN_REF" else ""
        now = called in changing or (called == "age" and len(node.get("arguments", ())) == 1)
        if now or (word.casefold() not in known and _CHANGING_WORD.fullmatch(word)):
            raise InputError(
                f"{title_of('expression', expression)} must give the same for the same row, whenever it is "
                f"evaluated: {called or word} does not"
            )


def is_computed(connection: Any, source: Source, column: Column) -> bool:
    """Whether an item is an expression in SQL. A column of the input always wins."""
    if column.name == column.source:
        if source.names is not None and column.source not in source.names and "(" in column.source:
            raise InputError(
                f"{source.what} has no column {column.source!r}; give an expression a name, as in "
                f'--item "NAME={column.source}"'
            )
        return False
    if source.names is None:
        return CALL_OR_CAST.search(column.source) is not None
    if column.source in source.names:
        return False
    query, parts = parse(connection, column.source)
    if query.get("error"):
        raise InputError(
            f"{source.what} has no column {column.source!r}, and it is not an expression in SQL either: "
            f"{about_sql(Exception(query.get('error_message', 'syntax error')))}. The columns are "
            f"{column_list(source.names)}"
        )
    # A name alone is a column, which does not exist.
    return [part.get("class") for part in parts] != ["COLUMN_REF"]


def with_items(connection: Any, source: Source, items: Sequence[Column], *, as_text: bool) -> Source:
    """The source with a further column for each item that is an expression, under the expression's own text."""
    expressions = {one.source: one.source for one in items if is_computed(connection, source, one)}
    if not expressions:
        return source
    computed = computed_source(connection, source, expressions, None, keep=True, as_text=as_text)
    names = None if source.names is None else [*source.names, *expressions]
    return replace(computed, names=names)


def computed_source(
    connection: Any,
    source: Source,
    expressions: Mapping[str, str],
    condition: str | None,
    *,
    keep: bool,
    as_text: bool = False,
) -> Source:
    """A source of expressions by their names, of the rows that satisfy a condition.

    With `keep` it has the columns of the source as well. The expressions see columns as text if `as_text`.
    """
    names = source.names
    named = {one: columns_of(connection, written, names, "expression") for one, written in expressions.items()}
    needed = [] if condition is None else columns_of(connection, condition, names, "condition")
    for one, written in expressions.items():
        refuse_changing(connection, written, named[one] if names is None else names)

    def open_computed(wanted: list[str]) -> Opened:
        chosen = [one for one in wanted if one in expressions]
        plain = [one for one in wanted if keep and one not in expressions]
        seen = list(dict.fromkeys([*needed, *(column for one in chosen for column in named[one])]))
        for column in seen:
            alike = [other for other in seen if other.casefold() == column.casefold()]
            if len(alike) > 1:
                raise _cannot_tell(title_of("expression", expressions[chosen[0]]), alike)
        opened = source.open(list(dict.fromkeys([*plain, *seen])))
        typed = {c: text_column(*opened.columns[c]) if as_text else opened.columns[c] for c in seen}
        types = {column: kind for column, (_, kind) in typed.items()}
        if condition is not None:
            bind(connection, condition, {c: types[c] for c in needed}, names, "condition")
        kinds = {
            one: bind(connection, expressions[one], {c: types[c] for c in named[one]}, names, "expression")
            for one in chosen
        }
        own = "dphist_"
        while any(column.casefold().startswith(own) for column in seen):
            own += "_"
        inner = [f"{opened.columns[column][0]} AS {own}{k}" for k, column in enumerate(plain)]
        inner += [f"{written} AS {name(column)}" for column, (written, _) in typed.items()]
        outer = [f"{own}{k}" for k in range(len(plain))]
        outer += [f"TRY((\n{expressions[one]}\n)) AS {own}x{k}" for k, one in enumerate(chosen)]
        where = "" if condition is None else f" WHERE TRY((\n{condition}\n))"
        # A constant needs no column, and there is one row of it for each row of the input.
        rows = f"SELECT {', '.join(inner) or '1'} FROM {opened.relation}"
        columns = {column: (f"{own}{k}", opened.columns[column][1]) for k, column in enumerate(plain)}
        columns |= {one: (f"{own}x{k}", _known(kinds[one])) for k, one in enumerate(chosen)}
        return replace(opened, relation=f"(SELECT {', '.join(outer)} FROM ({rows}){where})", columns=columns)

    return Source(source.what, list(expressions), open_computed)


def _known(kind: str) -> str:
    """The type of a column; NULL alone is text, as an empty column is."""
    return "VARCHAR" if kind == '"NULL"' else kind


# Queries over files.


def query_source(connection: Any, source: Source, query: str, tables: Sequence[str]) -> Source:
    """The source that a query makes of another one, row by row. `tables` are the names of that one in FROM."""
    title = title_of("query", query)
    tree = serialize(connection, query)
    if tree.get("error"):
        reason = about_sql(Exception(tree.get("error_message", "syntax error")))
        raise InputError(
            f"{title} is not a SELECT" if "SELECT statements" in reason else f"{title} cannot be used: {reason}"
        )
    node = _only_rows(connection, tree, title)
    table, known = node["from_table"], [one.casefold() for one in tables]
    if str(table["table_name"]).casefold() not in known:
        raise InputError(
            f"{title} reads {table['table_name']!r}: the input is called {tables[0]}, as in FROM {tables[0]}"
        )
    called = {str(table["table_name"]).casefold(), str(table["alias"]).casefold()} - {""}
    own = {column.casefold() for column in source.names or ()}
    for one in nodes_of([node["select_list"], node["where_clause"]]):
        parts = one.get("column_names") if one.get("class") == "COLUMN_REF" else None
        if parts and len(parts) > 1 and parts[0].casefold() in called and parts[0].casefold() not in own:
            one["column_names"] = parts[1:]
    columns: list[tuple[str, str]] = []
    for item in node["select_list"]:
        if item.get("class") == "STAR":
            columns += [(column, name(column)) for column in _all_columns(item, source, title)]
            continue
        written = _text_of(connection, {**item, "alias": ""}, title)
        last = item["column_names"][-1] if item.get("class") == "COLUMN_REF" else written
        columns.append((item.get("alias") or last, written))
    named = [column for column, _ in columns]
    twice = next((column for column in named if named.count(column) > 1), None)
    if twice is not None:
        raise InputError(f"{title} returns two columns with the name {twice!r}: give one another name with AS")
    where = node["where_clause"]
    condition = None if where is None else _text_of(connection, where, title)
    return computed_source(connection, source, dict(columns), condition, keep=False)


def _only_rows(connection: Any, tree: dict[str, Any], title: str) -> dict[str, Any]:
    """The node of a plain SELECT from one table: all else in its parse is as in the plainest query of all."""
    plainest = serialize(connection, "SELECT 1 FROM t")
    wanted = plainest["statements"][0]["node"]
    statements = tree.get("statements", [])
    node = statements[0]["node"] if len(statements) == 1 else {}
    table, base = node.get("from_table") or {}, wanted["from_table"]
    free = ("select_list", "where_clause", "from_table")
    names = ("alias", "table_name", "qualified_name")
    same = {k: v for k, v in node.items() if k not in free} == {k: v for k, v in wanted.items() if k not in free}
    same = same and {k: v for k, v in table.items() if k not in names} == {
        k: v for k, v in base.items() if k not in names
    }
    rest = [{k: v for k, v in one.items() if k != "node"} for one in statements]
    if not same or rest != [{k: v for k, v in one.items() if k != "node"} for one in plainest["statements"]]:
        raise InputError(f"{title} cannot be used: {_ONE_ROW_ONLY}")
    return node


def _all_columns(star: dict[str, Any], source: Source, title: str) -> Sequence[str]:
    """The columns that * stands for."""
    plain = {key for key, value in star.items() if value} <= {"class", "type", "relation_name"}
    if not plain or source.names is None:
        reason = (
            "write the columns instead of *" if plain else "write the columns instead of * with EXCLUDE or REPLACE"
        )
        raise InputError(f"{title} cannot be used: {reason}")
    return source.names


def _text_of(connection: Any, item: dict[str, Any], title: str) -> str:
    """The SQL of a parsed expression; an error unless DuckDB reads it as the very same expression."""
    tree = serialize(connection, "SELECT 1")
    tree["statements"][0]["node"]["select_list"] = [item]
    rows = connection.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchall()
    written = str(rows[0][0]).removeprefix("SELECT ")
    again = serialize(connection, f"SELECT {written}")
    if again != tree:
        raise InputError(f"{title} cannot be used: it has an expression that DuckDB cannot write as text")
    return written
