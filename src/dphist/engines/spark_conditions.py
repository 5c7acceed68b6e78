"""The user's condition on Spark: an expression of Spark SQL about one row and nothing else."""

from __future__ import annotations

import re
from typing import Any, Final

from dphist.engines.failures import LONGEST, listed
from dphist.engines.sources import demand
from dphist.errors import InputError

# Quoted texts and names, and comments: what is in them is no SQL.
QUOTED: Final = re.compile(
    r"""'(?:\\.|''|[^'\\])*'|"(?:\\.|""|[^"\\])*"|`(?:``|[^`])*`|--[^\n]*|/\*.*?\*/""", re.DOTALL
)
# A part of a query begins with one of these; such a condition could let one user decide about rows of another.
QUERY: Final = re.compile(r"\b(select|with|values|table|from\s+\S+\s+select)\b|\*\s*\)", re.IGNORECASE)
MOST_NAMES: Final = 200


def checked(condition: str) -> str:
    """The condition, on lines of its own; one sentence if it is none, or a query."""
    bare = QUOTED.sub(" ", condition)
    if not bare.strip() and not condition.strip():
        raise InputError(f"the condition {condition!r} is not a condition in SQL")
    if QUERY.search(bare) or ";" in bare:
        raise InputError(f"the condition {condition!r} must be about single rows: no subqueries and no *")
    return condition


def filtered(frame: Any, condition: str, what: str) -> Any:
    """The rows that satisfy the condition; NULL is not enough. What Spark says is about names and types alone."""
    plain = checked(condition)
    try:
        rows = frame.filter(plain)
        steady = _deterministic(rows) or not _deterministic(frame)
    except Exception as error:
        said = about(error)
    else:
        if not steady:
            # A task that is run again would see other rows.
            raise InputError(
                f"the condition {condition!r} must give the same for the same row, whenever it is asked"
            )
        return rows
    if said.startswith("[UNRESOLVED_COLUMN"):
        said = f"it names a column that {what} does not have; the columns are {listed(list(frame.columns))}"
    raise InputError(f"the condition {condition!r} cannot be used: {said}")


def _deterministic(frame: Any) -> bool:
    """Whether Spark takes a frame for one; a frame that a server keeps does not tell."""
    if not hasattr(frame, "_jdf"):
        return True
    return bool(frame._jdf.queryExecution().analyzed().deterministic())


def about(error: Exception) -> str:
    """The first line of what Spark says about an expression, which was bound to names and types alone."""
    line = str(error).strip().split("\n", 1)[0].split(" SQLSTATE", 1)[0]
    line = re.sub(r"\s+", " ", line).rstrip(".; ")
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def filtered_objects(lines: Any, values: list[str], condition: str | None, what: str) -> Any:
    """Lines of JSON as the wanted columns c0, c1, ...: every key is a column, whether any row has it or not.

    What a row has itself comes before what the name of its folder says.
    """
    names = list(dict.fromkeys([*values, *([] if condition is None else _named(checked(condition), lines))]))
    frame = _objects(lines, names)
    demand(what, frame.columns, values)
    rows = frame if condition is None else filtered(frame, condition, what)
    places = [names.index(value) for value in values]
    numbered = rows.toDF(*(f"n{k}" for k in range(len(names))))
    return numbered.select(*(numbered[f"n{place}"].alias(f"c{k}") for k, place in enumerate(places)))


def _objects(lines: Any, names: list[str]) -> Any:
    from pyspark.sql import functions as sql
    from pyspark.sql.types import StringType, StructField, StructType

    keys = StructType([StructField(name, StringType()) for name in names])
    folders = lines.columns[1:]
    numbered = lines.toDF(*(f"f{k}" for k in range(len(lines.columns))))
    parsed = numbered.select("*", sql.from_json(numbered["f0"], keys, {"mode": "PERMISSIVE"}).alias("object"))
    cells = []
    for k, name in enumerate(names):
        own = sql.col("object").getField(name)
        from_folder = [parsed[f"f{folders.index(name) + 1}"]] if name in folders else []
        cells.append(sql.coalesce(own, *from_folder).alias(f"n{k}"))
    return parsed.select(*cells).toDF(*names)


def _named(condition: str, lines: Any) -> list[str]:
    """The names that a condition uses: Spark asks for one after the other until it has them all."""
    names: list[str] = []
    for _ in range(MOST_NAMES):
        try:
            # A name that is there already serves a condition that names nothing.
            _objects(lines, names or ["value"]).filter(condition)
        except Exception as error:
            asked: dict[str, str] = getattr(error, "getMessageParameters", dict)() or {}
            name = str(asked.get("objectName", "")).strip("`").replace("``", "`")
            if not str(error).startswith("[UNRESOLVED_COLUMN") or not name or name in names:
                return names
            names.append(name.partition("`.`")[0])
        else:
            return names
    return names
