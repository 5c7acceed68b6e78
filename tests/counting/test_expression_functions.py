"""TRY catches every error of a supported function or cast; otherwise one row could fail a release.

This detects a new version of DuckDB in which a supported function raises another error, or does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dphist.counting.duckdb import connect_duckdb
from dphist.counting.expressions import CONSTANT_ARGUMENTS, FUNCTIONS, TYPES, bind
from dphist.counting.sql import name
from dphist.counting.task import Resources
from dphist.errors import InputError

# Expressions that `bind` accepts, for some types.
ACCEPTED: set[str] = set()
# Edge values by type, the first ones for the quick test.
VALUES = {
    "VARCHAR": [
        "''", "'abc'", "'99999999999999999999'", "'%Y'", "'[1'", "'24:00:00'", "'5000000-01-01'", "'infinity'",
        r"'\'", "'{\"a\": 1}'", "'$.a'", "NULL",
    ],
    "BIGINT": ["0", "-1", "9223372036854775807", "5", "-9223372036854775808", "NULL"],
    "INTEGER": ["0", "-1", "2147483647", "5", "-2147483648", "NULL"],
    "DOUBLE": ["-1.5", "'nan'", "'inf'", "1e308", "0", "NULL"],
    "DATE": ["'2020-01-31'", "'infinity'", "'5000000-01-01'", "'5000-01-01 (BC)'", "'-infinity'", "NULL"],
    "TIMESTAMP": ["'2020-01-31 10:00'", "'infinity'", "'290000-01-01'", "'1000-01-01'", "'1969-01-01'", "NULL"],
    "TIMESTAMP WITH TIME ZONE": ["'2020-01-31 10:00'", "'infinity'", "'290000-01-01'", "'1969-01-01'", "NULL"],
    "TIMESTAMP_NS": ["'2020-01-31 10:00'", "'infinity'", "'1680-01-01'", "NULL"],
    "TIME": ["'00:00'", "'24:00:00'", "NULL"],
    "INTERVAL": ["'1 day'", "'2000000000 months'", "'-9223372036854775807 microseconds'", "'0 days'", "NULL"],
    "BOOLEAN": ["true", "false", "NULL"],
    "BLOB": [r"'\xAA'", "''", "NULL"],
    "VARCHAR[]": ["[]", "['a', NULL]", "['zz']", "NULL"],
    "BIGINT[]": ["[]", "[1, NULL]", "[9223372036854775807, 1]", "NULL"],
    "BIGINT[][]": ["[]", "[[1], NULL]", "NULL"],
    "DECIMAL(18,3)": ["0", "999999999999999.999", "-1", "NULL"],
    "HUGEINT": ["0", "170141183460469231731687303715884105727", "-1", "NULL"],
    "UUID": ["'00000000-0000-0000-0000-000000000000'", "NULL"],
    "JSON": ["'{\"a\": 1}'", "'[1]'", "'\"x\"'", "'1e400'", "NULL"],
    "STRUCT(a VARCHAR)": ["{'a': 'x'}", "{'a': NULL}", "NULL"],
    'STRUCT("year" BIGINT, "month" BIGINT, "day" BIGINT)': [
        "{'year': 2020, 'month': 13, 'day': 1}", "{'year': 9999999999999, 'month': 1, 'day': 1}", "NULL",
    ],
    "MAP(VARCHAR, INTEGER)": ["map(['a'], [1])", "map([], [])", "NULL"],
}  # fmt: skip
# The types to try for generic parameter types, the first ones in the quick test.
STAND_FOR = {
    "MACRO": ["VARCHAR", "BIGINT", "DATE", "BIGINT[]"],
    "ANY": ["VARCHAR", "BIGINT", "DATE", "JSON"], "T": ["VARCHAR", "BIGINT", "DATE"], "K": ["VARCHAR"],
    "V": ["INTEGER"], "T[]": ["VARCHAR[]", "BIGINT[]"], "ANY[]": ["VARCHAR[]", "BIGINT[]"],
    "T[][]": ["BIGINT[][]"],
    "DECIMAL": ["DECIMAL(18,3)"], "FLOAT": ["DOUBLE"], "SMALLINT": ["INTEGER"], "TINYINT": ["INTEGER"],
    "DOUBLE[]": ["BIGINT[]"], "TIMESTAMP_S": ["TIMESTAMP"], "TIMESTAMP_MS": ["TIMESTAMP"], "UBIGINT": ["BIGINT"],
    "UINTEGER": ["BIGINT"], "USMALLINT": ["BIGINT"], "UTINYINT": ["BIGINT"], "UHUGEINT": ["HUGEINT"],
    "STRUCT": ["STRUCT(a VARCHAR)"], "MAP(K, V)": ["MAP(VARCHAR, INTEGER)"],
    "MAP(ANY, ANY)": ["MAP(VARCHAR, INTEGER)"], "K[]": ["VARCHAR[]"], "V[]": ["BIGINT[]"],
}  # fmt: skip
# Types that no column has and no cast makes.
UNREACHABLE = (
    "BIT", "BIGNUM", "GEOMETRY", "LAMBDA", "TUPLE", "TIME_NS", "TIME WITH TIME ZONE", "TIMESTAMPTZ_NS", "ENUM",
)  # fmt: skip
# Calls with their own syntax, or with a constant.
SPECIAL: dict[str, tuple[str, list[str]]] = {
    "position": ("position(a0 IN a1)", ["VARCHAR", "VARCHAR"]),
    "struct_extract": ("struct_extract(a0, 'a')", ["STRUCT(a VARCHAR)"]),
    "struct_pack": ("{'x': a0}", ["VARCHAR"]),
    "strptime": ("strptime(a0, ['%Y-%m-%d', '%H:%M:%S'])", ["VARCHAR"]),
    "try_strptime": ("try_strptime(a0, '%Y-%m-%d')", ["VARCHAR"]),
    "to_json": ("to_json(a0)", ["DATE"]),
    "cardinality": ("cardinality(a0)", ["MAP(VARCHAR, INTEGER)"]),
}
CONSTANTS = {
    "timezone": ["'UTC'", "'America/New_York'", "'Mars/Phobos'", "''", "NULL"],
    "time_bucket": ["INTERVAL 1 DAY", "INTERVAL 1 MONTH", "INTERVAL 0 DAY", "INTERVAL -1 HOUR", "NULL"],
    "array_length": ["1", "2", "0"], "array_to_string": ["','", "''"], "lpad": ["0", "5", "-1"],
    "rpad": ["0", "5", "-1"], "printf": ["'%s'", "'%02d'", "'%d %s'"], "format": ["'{}'", "'{:>5}'", "'{:d}'"],
    "json": ["'$.a'", "'$.*'", "'a'", "'/a/0'", "0", "-1"],
    "levenshtein": ["'abd'", "''"], "replace": ["''", "'x'"], "regexp_replace": ["''", r"'\1x'", "'g'"],
}  # fmt: skip
UNITS = [
    "'month'", "'week'", "'timezone'", "'nonsense'", "'year'", "'day'", "'hour'", "'minute'", "'second'",
    "'quarter'", "'dow'", "'isodow'", "'doy'", "'decade'", "'century'", "'millennium'", "'epoch'", "'era'",
    "'timezone_hour'", "'yearweek'", "'isoyear'", "'microseconds'", "'julian'",
]  # fmt: skip


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("functions")
    with connect_duckdb(Resources(threads=1), folder) as opened:
        yield opened


def signatures(connection: Any, names: frozenset[str]) -> dict[str, list[list[str]]]:
    """The parameter types of each overload of the functions."""
    found: dict[str, list[list[str]]] = {}
    rows = connection.execute(
        "SELECT DISTINCT function_name, parameter_types, varargs, function_type, parameters "
        "FROM duckdb_functions() WHERE function_type IN ('scalar', 'macro') ORDER BY ALL"
    ).fetchall()
    for called, types, more, kind, parameters in rows:
        if called in names:
            own = ["MACRO"] * len(parameters) if kind == "macro" else [*types, *([more] * 2 if more else [])]
            found.setdefault(called, []).append(own)
    return found


def table_of(connection: Any, types: tuple[str, ...], thorough: bool) -> str:
    """A table of edge values of these types, in columns a0, a1, ..."""
    title = f"{'many' if thorough else 'few'}: {', '.join(types)}"
    cells = [[f"CAST({value} AS {kind})" for value in VALUES[kind][: 12 if thorough else 3]] for kind in types]
    rows = ", ".join(f"({', '.join(row)})" for row in islice(product(*cells), 150 if thorough else 30))
    columns = ", ".join(f"a{k}" for k in range(len(types)))
    values = f"(VALUES {rows}) AS t({columns})" if types else "(SELECT 1)"
    connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {name(title)} AS FROM {values}")
    return name(title)


def escaped(connection: Any, expression: str, types: list[str], thorough: bool) -> str | None:
    """The error of an expression of a0, a1, ... over edge values; "" if there is none, None if it is refused."""
    table = table_of(connection, tuple(types), thorough)
    message = ""
    try:
        connection.execute(f"SELECT CAST(TRY(({expression})) AS VARCHAR) FROM {table}").fetchall()
    except (duckdb.BinderException, duckdb.ParserException):
        return None
    except Exception as error:
        message = f"{expression} of {types}: {type(error).__name__} {str(error)[:200]}"
    try:
        if message or expression not in ACCEPTED:
            names = {f"a{k}": kind for k, kind in enumerate(types)}
            bind(connection, expression, names, list(names), "expression")
            ACCEPTED.add(expression)
    except InputError:
        return None
    return message


def choices_of(types: list[str], thorough: bool) -> Iterator[list[str]]:
    if not any(one in kind for kind in types for one in UNREACHABLE):
        choices = [
            [kind] if kind in VALUES else STAND_FOR[kind][: None if thorough or kind == "MACRO" else 1]
            for kind in types
        ]
        yield from map(list, product(*choices))


def call(called: str, count: int) -> str:
    given = [f"a{k}" for k in range(count)]
    if called.isidentifier():
        return f"{called}({', '.join(given)})"
    return f"{called} {given[0]}" if count == 1 else f"{given[0]} {called} {given[1]}"


def all_escapes(connection: Any, thorough: bool) -> list[str]:
    found: list[str | None] = []
    used = set()
    for called, forms in signatures(connection, FUNCTIONS).items():
        for types in forms:
            for chosen in choices_of(types, thorough):
                found.append(escaped(connection, call(called, len(chosen)), chosen, thorough))
                used |= set() if found[-1] is None else {called}
    for called, (text, chosen) in SPECIAL.items():
        found.append(escaped(connection, text, chosen, thorough))
        used |= set() if found[-1] is None else {called}
    # Every function was tried.
    assert FUNCTIONS - used == set()
    for called, forms in signatures(connection, frozenset(CONSTANT_ARGUMENTS)).items():
        places = CONSTANT_ARGUMENTS[called]
        for types in forms:
            like = "json" if called == "->>" or called.startswith("json_") else called
            constants = CONSTANTS.get(like, UNITS if thorough else UNITS[:4])
            for chosen, constant in product(choices_of(types, thorough), constants):
                given = [constant if k in places else f"a{k}" for k in range(len(chosen))]
                others = [kind for k, kind in enumerate(chosen) if k not in places]
                text = f"{name(called)}({', '.join(given)})"
                for new, old in enumerate(k for k in range(len(chosen)) if k not in places):
                    text = text.replace(f"a{old}", f"a{new}")
                found.append(escaped(connection, text, others, thorough))
                used |= set() if found[-1] is None else {called}
                if not places:
                    break
    for kind, target in product(
        VALUES if thorough else ["VARCHAR", "JSON", "DOUBLE"],
        TYPES - {"LIST", "STRUCT"} | {"VARCHAR[]", "BIGINT[]", "STRUCT(a INTEGER)"},
    ):
        found.append(escaped(connection, f"CAST(a0 AS {target})", [kind], thorough))
        if thorough:
            for other in VALUES:
                found.append(escaped(connection, f"CAST(TRY_CAST(a0 AS {other}) AS {target})", [kind], thorough))
    if thorough:
        pairs = ["a0 = a1", "a0 IN (a1, a1)", "a0 BETWEEN a1 AND a1", "coalesce(a0, a1)", "a0[a1]", "a0[a1:a1]",
                 "a0 SIMILAR TO a1", "a0 IS DISTINCT FROM a1", "CASE a0 WHEN a1 THEN a0 END", "a0 AT TIME ZONE a1",
                 "a0 LIKE a1 ESCAPE a1", "a0 -> a1", "a0 COLLATE NOCASE < a1"]  # fmt: skip
        operators = [f"a0 {one} a1" for one in sorted(FUNCTIONS) if not one.isidentifier() and one not in "~@"]
        for left, right, form in product(VALUES, VALUES, pairs + operators):
            found.append(escaped(connection, form, [left, right], thorough))
    return [one for one in found if one]


def test_supported_functions_raise_no_other_error(connection: Any) -> None:
    assert all_escapes(connection, thorough=False) == []


@pytest.mark.slow
def test_supported_functions_with_many_values(connection: Any) -> None:
    assert all_escapes(connection, thorough=True) == []
