"""The user's condition on Spark: an expression of Spark SQL about one row and nothing else.

It sees the columns that it names, exactly or else without regard to case, and no others. A text that is no number
is NULL where it is taken for one. A row on which a condition fails all the same is not taken, because an error
would tell of that row. Functions of the user's own are refused: they can remember other rows, and fail. So is any
condition on a frame of Spark Connect, whose server does not show what it makes of it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from dphist.engines.failures import LONGEST, listed
from dphist.engines.sources import demand
from dphist.engines.spark_sources import SparkSource
from dphist.errors import InputError

# Quoted texts and names, and comments: what is in them is no SQL.
QUOTED: Final = re.compile(
    r"""'(?:\\.|''|[^'\\])*'|"(?:\\.|""|[^"\\])*"|`(?:``|[^`])*`|--[^\n]*|/\*.*?\*/""", re.DOTALL
)
# A query in brackets, or a star for all columns. It could let one user decide about rows of another.
QUERY: Final = re.compile(r"\(\s*(select|with|values|table|from|map|reduce)\b|(^|[(,.])\s*\*", re.IGNORECASE)
# These are functions of Spark that need no brackets: no column of such a name would be asked for.
FUNCTIONS: Final = re.compile(r"\b(user|session_user|current_\w+|localtimestamp)\b(?!\s*\()", re.IGNORECASE)
# The first of the names of which Spark says that it does not know it.
NAME: Final = re.compile(r"`((?:[^`]|``)*)`")
WORD: Final = re.compile(r"`((?:[^`]|``)*)`|\b([^\W\d]\w*)\b")
# Expressions that Spark did not bring along itself.
FOREIGN: Final = re.compile(r"UDF|Udf|UserDefined|Hive|Reflection|ApplyFunction|VariableReference|SQLFunction")
MOST_NAMES: Final = 200


def chosen_rows(source: SparkSource, values: list[str], condition: str | None, *, probe: bool) -> Any:
    """A frame of the values c0, c1, ... in the rows that satisfy the condition; NULL is not enough."""
    if source.names is not None:
        demand(source.what, source.names, values)
    if condition is None:
        return _view(source, values, {}, "c", probe=probe)
    _check(condition)
    if not hasattr(source.select(values, True), "_jdf"):
        raise InputError("a condition is not possible through Spark Connect: filter the DataFrame before")
    own = "dphist_"
    while own in condition.casefold():  # so that it cannot name the values as we do
        own += "_"
    named = _named(source, values, condition, own)
    rows = _filtered(_view(source, values, named, own, probe=probe), condition)
    return rows.select(*(rows[f"{own}{k}"].alias(f"c{k}") for k in range(len(values))))


def _check(condition: str) -> None:
    bare = QUOTED.sub(" ", condition)
    if not condition.strip() or ";" in bare:
        raise InputError(f"the condition {condition!r} is not a condition in SQL")
    if QUERY.search(bare):
        raise InputError(f"the condition {condition!r} must be about single rows: no subqueries and no *")


def _without_texts(condition: str) -> str:
    """Without texts and comments; quoted names stay."""
    return QUOTED.sub(lambda found: found[0] if found[0].startswith("`") else " ", condition)


def _view(source: SparkSource, values: list[str], named: dict[str, str], own: str, *, probe: bool) -> Any:
    """The values as `own` 0, 1, ... and the named columns as the condition writes them, and nothing else.

    Without an alias Spark would also find the columns that these were made of.
    """
    wanted = list(dict.fromkeys([*values, *named.values()]))
    frame = source.select(wanted, probe)
    cells = [frame[f"c{wanted.index(value)}"].alias(f"{own}{k}") for k, value in enumerate(values)]
    cells += [frame[f"c{wanted.index(column)}"].alias(written) for written, column in named.items()]
    return frame.select(*cells).alias(f"{own}rows")


def _named(source: SparkSource, values: list[str], condition: str, own: str) -> dict[str, str]:
    """The columns that a condition names, by its spelling: Spark asks for one after the other until it has them.

    The condition is bound to names and types alone, so that what Spark says of it is about them.
    """
    named: dict[str, str] = {}
    for written in FUNCTIONS.findall(_without_texts(condition)):
        # In a file whose columns nobody knows a user is a column, and today is today.
        if written.casefold() in {name.casefold() for name in source.names or ["user"]}:
            named[written] = _column(source, written, named, condition)
    for written in _words(condition):
        # Columns before anything else that may have their names: variables of the session, for example.
        if written not in named and written.casefold() in {name.casefold() for name in source.names or ()}:
            named[written] = _column(source, written, named, condition)
    for _ in range(MOST_NAMES):
        try:
            rows = _filtered(_view(source, values, named, own, probe=True), condition)
            said = _objection(rows)
            asked = None
        except InputError:
            raise
        except Exception as error:
            said, asked = about(error), _asked_for(error)
        if asked is None and not said:
            return named
        if asked is None or asked in named:
            raise InputError(f"the condition {condition!r} cannot be used: {said}")
        named[asked] = _column(source, asked, named, condition)
    raise InputError(f"the condition {condition!r} cannot be used: it names more than {MOST_NAMES} columns")


def _asked_for(error: Exception) -> str | None:
    """The column that Spark does not know; of a field of a structure the structure."""
    if not str(error).startswith("[UNRESOLVED_COLUMN"):
        return None
    told: dict[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    found = NAME.match(told.get("objectName", ""))
    return None if found is None else found[1].replace("``", "`")


def _column(source: SparkSource, written: str, named: dict[str, str], condition: str) -> str:
    """The column that a condition means: the exact one, or else one without regard to case, as SQL has it."""
    known = [written] if source.names is None else source.names
    alike = list(dict.fromkeys(name for name in known if name.casefold() == written.casefold()))
    matches = [written] if written in alike else alike
    if not matches:
        raise InputError(
            f"the condition {condition!r} cannot be used: it names a column that {source.what} does not have; "
            f"the columns are {listed(known)}"
        )
    others = {column for other, column in named.items() if other.casefold() == written.casefold()}
    if len({*matches, *others}) > 1:
        raise InputError(
            f"the condition {condition!r} cannot tell apart the columns {listed(sorted({*alike, *others}))}"
        )
    demand(source.what, known, matches)
    return matches[0]


def _filtered(frame: Any, condition: str) -> Any:
    """The rows that satisfy it. Where it fails it is NULL."""
    from pyspark.sql import Column
    from pyspark.sql import functions as sql

    spark = frame.sparkSession._jvm.org.apache.spark.sql
    plain = spark.classic.ExpressionUtils.expression(sql.expr(condition)._jc)
    tried = spark.catalyst.expressions.TryEval(plain)
    return frame.filter(Column(spark.classic.ExpressionUtils.column(tried)))


def _objection(rows: Any) -> str:
    """What is wrong with a condition that Spark understands; nothing, if it is of the row alone and stays so.

    A task that is run again would see other rows otherwise.
    """
    plan = rows._jdf.queryExecution().analyzed()
    if plan.nodeName() != "Filter" or not plan.subqueries().isEmpty():
        return "it must be about the columns of one row alone"
    kinds = {str(node.get("class", "")).rpartition(".")[2] for node in json.loads(plan.condition().toJSON())}
    if any(FOREIGN.search(kind) for kind in kinds):
        return "functions and variables of your own cannot be in it: filter the DataFrame before"
    if not plan.condition().deterministic():
        return "it must give the same for the same row, whenever it is asked"
    return ""


def _words(condition: str) -> list[str]:
    """What may be a name in a condition, as it is written."""
    found = WORD.findall(_without_texts(condition))
    return list(dict.fromkeys(quoted.replace("``", "`") or plain for quoted, plain in found))


def about(error: Exception) -> str:
    """The first line of what Spark says about an expression, which was bound to names and types alone."""
    line = str(error).strip().split("\n", 1)[0].split(" SQLSTATE", 1)[0]
    line = re.sub(r"\s+", " ", line).rstrip(".; ")
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
