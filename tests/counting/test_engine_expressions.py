"""Computed items, queries over files, and SQL that is refused because it uses more than one row."""

from __future__ import annotations

import contextlib
import datetime
import json
import sqlite3
import traceback
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import dphist
from dphist.certificate.request import Column
from dphist.counting.task import Resources, RoundsTask, Task, Value
from dphist.errors import InputError
from engine_cases import (
    EMBEDDED,
    WITHOUT_CLUSTER,
    Factory,
    RoundsFactory,
    by_engine,
    histogram,
    is_spark,
    rows_of,
    task,
)
from scheduling import crossed

SECRET = "S3CR3T-cell"


def rows() -> Any:
    return pa.table({
        "user": [1, 2, 3, 4, 5, 6],
        "query": ["Tea", "tea", "milk", SECRET, "Milk", None],
        "day": [datetime.date(2024, 1 + k % 2, 3 + k) for k in range(6)],
        "n": [1, 2, 3, 10, 20, 30],
    })  # fmt: skip


def computed(source: Any, *items: str, **more: Any) -> Task:
    """A task with items as on the command line."""
    wanted = task(source, **more)
    return replace(wanted, events=replace(wanted.events, items=tuple(map(Column.parse, items))))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same rows in every format that both engines read."""
    folder = tmp_path_factory.mktemp("sources")
    pa.parquet.write_table(rows(), folder / "log.parquet")
    pa.csv.write_csv(rows(), folder / "log.csv")
    lines = [json.dumps({key: value if value is None else str(value) for key, value in row.items()})
             for row in rows().to_pylist()]  # fmt: skip
    (folder / "log.jsonl").write_text("\n".join(lines))
    return {kind: folder / f"log.{kind}" for kind in ("parquet", "csv", "jsonl")} | {"frame": rows()}


def refusal(engine: Factory, wanted: Task) -> str:
    """The error of a count, after checking that it contains no data."""
    with pytest.raises(InputError) as caught:
        histogram(engine, wanted)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value.with_flags


COMPUTED = ["parquet", "csv", "jsonl", "frame", "frame as text"]


@WITHOUT_CLUSTER
def test_a_check_refuses_what_a_count_refuses(engine: Factory, sources: dict[str, Any]) -> None:
    for wanted in (
        computed(rows(), "q=sum(n)"),
        computed(rows(), "q=nofunction(n)"),
        task(sources["csv"], items="query", where="n IN (SELECT 1)"),
        computed(rows(), "q=lower(nope)"),
    ):
        with pytest.raises(InputError) as caught:
            engine(Resources()).check(wanted)
        assert caught.value.with_flags == refusal(engine, wanted)


@WITHOUT_CLUSTER
def test_sql_may_have_braces(engine: Factory, sources: dict[str, Any]) -> None:
    items = ("q=regexp_replace(query, '[A-Z]e{1}', '{}')", "r='{0}{what}{' || n")
    found = histogram(engine, computed(sources["csv"], *items, where="query <> '{1}' AND n < '3'"))
    assert found == {
        ("{}a", "{0}{what}{1"): 1,
        ("tea", "{0}{what}{2"): 1,
        ("Milk", "{0}{what}{20"): 1,
        (SECRET, "{0}{what}{10"): 1,
    }


@EMBEDDED
def test_an_error_repeats_a_query_with_braces(engine: Factory, tmp_path: Path) -> None:
    path, query = tmp_path / "x.sqlite", "SELECT '{0}{what}' AS item, nothing FROM log"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute('CREATE TABLE log ("user", item)')
    with pytest.raises(InputError) as caught:
        engine(Resources()).check(task(path, query=query))
    assert "'{0}" in str(caught.value)
    assert str(caught.value).endswith("is not valid SQL")


@by_engine("kind", COMPUTED, ["csv"], COMPUTED)
def test_items_are_computed(engine: Factory, sources: dict[str, Any], kind: str) -> None:
    month = (
        "date_format(CAST(day AS DATE), 'yyyy-MM')" if is_spark(engine) else "strftime(CAST(day AS DATE), '%Y-%m')"
    )
    as_text, source = kind == "frame as text", sources[kind.split()[0]]
    more = {"as_text": as_text}
    months = histogram(engine, computed(source, "q=lower(query)", f"month={month}", **more))
    assert months == {
        ("tea", "2024-01"): 1, ("tea", "2024-02"): 1, ("milk", "2024-01"): 2, (SECRET.lower(), "2024-02"): 1,
    }  # fmt: skip
    both = histogram(
        engine, computed(source, "q=lower(query)", "n", "m=upper(query)", where="query = 'Tea'", **more)
    )
    assert both == {("tea", 1 if kind in ("parquet", "frame") else "1", "TEA"): 1}


@by_engine("kind", COMPUTED[:4], ["jsonl"], COMPUTED[:4])
def test_an_expression_that_fails_on_a_row_is_a_missing_item(
    engine: Factory, sources: dict[str, Any], kind: str
) -> None:
    source = sources[kind]
    assert histogram(engine, computed(source, "q=CAST(query AS INT)", null_items=True)) == {None: 6}
    part = "CASE WHEN CAST(n AS INT) = 10 THEN CAST(query AS INT) ELSE 7 END"
    assert histogram(engine, computed(source, f"q={part}")) == {7: 5}


REPEATED_CASTS: list[dict[str, Any]] = [
    {"items": ["s=CASE WHEN CAST(n AS INT) > 5 THEN 'hi' WHEN CAST(n AS INT) > 2 THEN 'mid' ELSE 'lo' END"]},
    {"items": ["s=strftime(CAST(day AS DATE), '%Y') || '/' || quarter(CAST(day AS DATE))"]},
    {"items": ["s=CAST(n AS DOUBLE) * CAST(n AS DOUBLE)"]},
    {"items": ["y=year(CAST(day AS DATE))", "m=month(CAST(day AS DATE))"]},
    {"items": ["n=CAST(n AS INT)", "same=CAST(n AS INT)", "next=CAST(n AS INT) + 1"]},
    {"items": ["item"], "where": "CAST(n AS INT) > 1 AND CAST(n AS INT) < 9 AND CAST(n AS INT) <> 4"},
    {"items": ["item"], "where": "CAST(n AS INT) * CAST(n AS INT) BETWEEN CAST(n AS INT) AND 40"},
    {"items": ["d=CAST(day AS DATE)"], "where": "CAST(day AS DATE) > DATE '2020-01-01'"},
    {
        "items": ["y", "q"],
        "query": "SELECT user, year(CAST(day AS DATE)) AS y, quarter(CAST(day AS DATE)) AS q FROM input "
        "WHERE CAST(day AS DATE) > DATE '2020-01-01'",
    },
]


@EMBEDDED
@pytest.mark.parametrize(
    ("asked", "more"),
    crossed(REPEATED_CASTS, [{}, {"null_items": True}, {"summed": True}, {"sizes": True}]),
    ids=str,
)
def test_one_row_that_cannot_be_cast_changes_nothing_for_others(
    engine: RoundsFactory, tmp_path: Path, asked: dict[str, Any], more: dict[str, Any]
) -> None:
    good = "".join(f"{k},{'abc'[k % 3]},202{k % 4}-0{1 + k % 9}-11,{k % 10}\n" for k in range(40))
    paths = [tmp_path / "good.csv", tmp_path / "bad.csv"]
    for path, row in zip(paths, ("", f"victim,{SECRET},{SECRET},{SECRET}\n"), strict=True):
        path.write_text(f"user,item,day,n\n{good}{row}")
    given = {key: value for key, value in asked.items() if key != "items"}
    given |= {"null_items": True} if "null_items" in more else {}
    if "summed" in more and "query" not in asked:
        given["values"] = (Value("n", Fraction(0), Fraction(8)),)
    wanted = [computed(path, *asked["items"], max_items_per_user=2, **given) for path in paths]
    if "sizes" in more:
        found = []
        for one in wanted:
            in_rounds = RoundsTask(one.events, one.choice, 256, 4096, 8, alone=False)
            with engine(Resources()).rounds(in_rounds) as counted:
                found.append(counted.sizes(np.arange(counted.items), [1, 2, 256]))
        assert found[0] == found[1]
        assert sum(found[0]) > 0
        return
    before, after = (rows_of(engine, one) for one in wanted)
    missing = [row for row in after if row not in before]
    # Only the item of the victim is missing.
    assert before
    assert [row for row in before if row not in after] == []
    assert len(missing) <= ("null_items" in more and "where" not in asked and "query" not in asked)


@WITHOUT_CLUSTER
def test_a_column_takes_precedence_over_an_expression(engine: Factory) -> None:
    table = pa.table({"user": [1, 2], "lower(item)": ["A", "B"], "item": ["C", "D"]})
    assert histogram(engine, computed(table, "x=lower(item)")) == {"A": 1, "B": 1}
    assert histogram(engine, computed(table.drop(["lower(item)"]), "x=lower(item)")) == {"c": 1, "d": 1}


NOT_OF_ONE_ROW = [
    "sum(n)", "count(*)", "row_number() OVER ()", "(SELECT 1)", "max(n) OVER (PARTITION BY query)",
    "query) FROM x --",
    "*", "n IN (SELECT n FROM input)", "random()", "now()", "n + ", "nofunction(n)", "(n))", "",
    "lower(query);",
    "current_timestamp()", "x || query",
]  # fmt: skip


@by_engine("expression", NOT_OF_ONE_ROW, NOT_OF_ONE_ROW[::3], NOT_OF_ONE_ROW)
def test_expressions_that_use_more_than_a_row_are_refused(engine: Factory, expression: str) -> None:
    wanted = computed(rows(), "q=lower(query)")
    refusal(engine, replace(wanted, events=replace(wanted.events, items=(Column("q", expression),))))


@EMBEDDED
@pytest.mark.parametrize(
    "expression",
    [
        "nextval('s')", "(current_date)::VARCHAR", "today()", "age(CAST(day AS TIMESTAMP))", "uuid()",
        "ago(INTERVAL 1 DAY)",
        "current_setting('threads')", "#1 + 1", "$1", "unnest([n])", "(FROM read_csv('/etc/passwd'))",
        "COLUMNS(*)",
        "getvariable('x')", "current_query()", "list(n)", "current_localtimestamp()", "current_localtime()",
        "localtimestamp", "user()", "session_user", "txid_current()", "main.lower(query)",
    ],
)  # fmt: skip
def test_functions_that_change_or_read_more_than_a_row_are_refused(engine: Factory, expression: str) -> None:
    refusal(engine, computed(rows(), f"q={expression}"))


# Each can raise an error that TRY does not catch, or exhaust memory.
FAIL_ON_A_ROW = [
    "CAST(day AS TIMESTAMP) AT TIME ZONE query", "timezone(query, CAST(day AS TIMESTAMP))",
    "CAST(day AS TIMESTAMP) AT TIME ZONE 'Mars/Phobos'", "query LIKE 'a' ESCAPE query",
    "query LIKE 'Te!' ESCAPE '!'", "time_bucket(to_days(CAST(n AS INT)), CAST(day AS TIMESTAMP))",
    "time_bucket(INTERVAL 0 DAY, CAST(day AS TIMESTAMP))", "date_part(query, CAST(day AS DATE))",
    "date_part('timezone', CAST(day AS DATE))", "date_trunc(query, CAST(day AS DATE))",
    "datediff(query, CAST(day AS DATE), CAST(day AS DATE))",
    "date_diff(lower(query), CAST(day AS DATE), CAST(day AS DATE))",
    "datesub(query, CAST(day AS DATE), CAST(day AS DATE))", "array_length([query], CAST(n AS INT))",
    "array_length([query], 2)", "json_deserialize_sql(query)", "to_json(query)::BIT", "to_json(query)::BIGNUM",
    "make_timestamp(CAST(n AS BIGINT))", "variant_bytes_to_variant(encode(query))",
    "weekday(CAST(n || ' days' AS INTERVAL))", "repeat(query, 1000)", "lpad(query, CAST(n AS INT), 'x')",
    "lpad(query, 2000000000, 'x')", "len(range(CAST(n AS BIGINT)))", "printf('%*d', CAST(n AS INT), 5)",
    "printf('%99999999d', CAST(n AS INT))", "format('{:{}}', 5, CAST(n AS INT))", "replace(query, 'e', query)",
    "list_transform([query], lambda x: x || query)", "error(query)",
    "replace(query, 'e', '" + 99 * "x" + "')", "levenshtein(query, reverse(query))", "levenshtein('a', query)",
    "replace(replace(query, 'e', 'xxxxxx'), 'x', 'eeeeee')", "printf('" + 60 * "%1$s" + "', query)",
    "regexp_replace(query, '', '" + 20 * "x" + "', 'g')",
    "array_to_string(string_split(query, ''), '" + 99 * "," + "')",
    "bin(hex(bin(query)))", "concat_ws(" + 20 * "query, " + "query)",
    "CAST(ARRAY[" + 20 * "query, " + "query] AS VARCHAR)",
    # Each row of 8 KB would take hours.
    "len(list_filter(string_split(query, ''), lambda c: levenshtein(query, '" + 99 * "x" + "') > 3))",
    "len(filter(string_split(query, ''), lambda c: len(filter(string_split(query, ''), lambda d: c = d)) > 1))",
    *(path % step for step in ("$..[*]..[*]", "$.**", "x..y") for path in (
        "CAST(json_extract(query, '%s') AS VARCHAR)", "json_exists(query, '%s')", "query->>'%s'", "query->'%s'",
        "json_value(query, '$.a' || '%s')",
    )),
    "json_extract(query, [" + 20 * "'$', " + "'$'])", "json_extract_string(query, query)", "query->query",
]  # fmt: skip


@WITHOUT_CLUSTER
def test_no_value_longer_than_an_item_reaches_an_expression(engine: Factory) -> None:
    longest = 8192 * "x"
    texts = pa.table({"user": [1, 2, 3], "text": ["ab", longest, longest + "x"]})
    assert histogram(engine, computed(texts, "n=length(text)")) == {2: 1, 8192: 1}
    assert histogram(engine, computed(texts, "n=length(text)", null_items=True)) == {2: 1, 8192: 1, None: 1}
    assert histogram(engine, task(texts, items="user", where="length(text) > 100")) == {2: 1}


@EMBEDDED
@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.binary(), pa.struct([("a", pa.string())])])
def test_no_list_or_bytes_longer_than_an_item_reach_an_expression(engine: Factory, kind: pa.DataType) -> None:
    wrap = (lambda text: text.encode()) if kind == pa.binary() else (lambda text: [text])
    wrap = wrap if not pa.types.is_struct(kind) else (lambda text: {"a": text})
    values = pa.table({"user": [1, 2], "v": pa.array([wrap("ab"), wrap(8193 * "x")], kind)})
    assert histogram(engine, computed(values, "there=v IS NOT NULL")) == {True: 1, False: 1}


@EMBEDDED
@pytest.mark.parametrize(
    "expression", ["range(10000000000)", "list_sum(range(10000000000))", "repeat('a', 10000000000)"]
)
def test_constants_are_not_computed_before_functions_are_refused(engine: Factory, expression: str) -> None:
    # DuckDB would need 80 GB for them.
    assert "is not supported" in refusal(engine, computed(rows(), f"q={expression}"))


@EMBEDDED
@pytest.mark.parametrize("expression", [
    "true IN (query, INTERVAL 1 DAY)", "query = 'none' AND DATE '2020-01-01' IN (query, TIME '10:00')",
    "CASE true WHEN query THEN 1 WHEN INTERVAL 1 DAY THEN 2 END",
])  # fmt: skip
def test_casts_that_fail_when_a_query_begins_are_found_by_the_check(engine: Factory, expression: str) -> None:
    with pytest.raises(InputError, match="Unimplemented type for cast"):
        engine(Resources()).check(computed(rows(), f"q={expression}"))


@EMBEDDED
@pytest.mark.parametrize("expression", FAIL_ON_A_ROW)
def test_expressions_that_one_row_could_make_fail_are_refused(engine: Factory, expression: str) -> None:
    refusal(engine, computed(rows(), f"q={expression}", as_text=True))
    if FAIL_ON_A_ROW.index(expression) % 4 == 0:
        refusal(engine, task(rows(), items="query", where=f"({expression}) IS NOT NULL", as_text=True))


@EMBEDDED
@pytest.mark.parametrize("expression", FAIL_ON_A_ROW[::8])
def test_expressions_that_one_row_could_make_fail_are_refused_in_queries(
    engine: Factory, sources: dict[str, Any], expression: str
) -> None:
    source = sources["csv"]
    refusal(engine, task(source, query=f"SELECT user, {expression} AS item FROM input"))
    refusal(engine, task(source, query=f"SELECT user, query AS item FROM input WHERE ({expression}) IS NULL"))


@EMBEDDED
def test_functions_with_valid_constants(engine: Factory, sources: dict[str, Any]) -> None:
    source = sources["csv"]
    for expression, expected in {
        "date_part('month', CAST(day AS DATE))": {1: 3, 2: 3},
        "extract(year FROM CAST(day AS DATE))": {2024: 6},
        "hour(CAST(day AS TIMESTAMP) AT TIME ZONE 'Asia/Tokyo')": {15: 6},
        "strftime(time_bucket(INTERVAL 1 MONTH, CAST(day AS DATE)), '%m')": {"01": 3, "02": 3},
        "lpad(n, 2, '0')": {"01": 1, "02": 1, "03": 1, "10": 1, "20": 1, "30": 1},
        "printf('%03d', CAST(n AS INT) // 10)": {"000": 3, "001": 1, "002": 1, "003": 1},
        "replace(lower(query), 'tea', 'x')": {"x": 2, "milk": 2, SECRET.lower(): 1},
    }.items():
        assert histogram(engine, computed(source, f"q={expression}")) == expected, expression


@EMBEDDED
def test_the_time_selects_rows_but_is_not_an_item(engine: Factory, sources: dict[str, Any]) -> None:
    source = sources["csv"]
    for now in ("now()", "current_date", "today()", "current_timestamp"):
        chosen = task(source, items="query", where=f"query = 'Tea' AND CAST(day AS DATE) < {now}")
        assert histogram(engine, chosen) == {"Tea": 1}
        refusal(engine, computed(source, f"q=CAST({now} AS VARCHAR)"))
    for changing in ("getvariable('x')", "current_setting('threads')", "user()", "current_localtimestamp()"):
        refusal(engine, task(source, items="query", where=f"{changing} IS NULL"))


@EMBEDDED
def test_errors_suggest_a_cast_or_a_name(engine: Factory, sources: dict[str, Any]) -> None:
    source = sources["csv"]
    assert "write CAST(day AS DOUBLE) or CAST(day AS DATE)" in refusal(
        engine, computed(source, "month=strftime(day, '%Y-%m')")
    )
    assert '--item "NAME=lower(query)"' in refusal(engine, computed(source, "lower(query)"))
    assert "has no column 'qury' (did you mean 'query'?); its columns are" in refusal(
        engine, computed(source, "q=qury")
    )
    assert "has no column 'two words'" in refusal(engine, computed(source, "q=two words"))
    twice = pa.table({"user": [1], "a": ["x"], "A": ["y"]})
    assert "cannot tell apart" in refusal(engine, computed(twice, "q=lower(a)", "p=upper(A)"))
    assert histogram(engine, computed(twice, "q=lower(A)")) == {"y": 1}


@EMBEDDED
@pytest.mark.parametrize(
    "condition", ["n > 10", "10 < n", "n = 10", "n <> 1.5", "n IN (1, 2)", "n BETWEEN 1 AND 3", "n = -1"]
)
def test_comparing_text_with_numbers_is_refused(engine: Factory, condition: str) -> None:
    message = refusal(engine, task(rows(), items="query", where=condition, as_text=True))
    assert "write CAST(n AS DOUBLE)" in message
    histogram(engine, task(rows(), items="query", where=condition))


@EMBEDDED
def test_text_is_compared_after_a_cast(engine: Factory, sources: dict[str, Any]) -> None:
    for kind in ("csv", "jsonl"):
        assert "write CAST(n AS DOUBLE)" in refusal(engine, task(sources[kind], items="query", where="n > 10"))
    for condition, expected in {
        "CAST(n AS DOUBLE) > 19": {"Milk": 1},
        "n::INT BETWEEN 2 AND 3": {"tea": 1, "milk": 1},
        "n IN ('1', '2')": {"Tea": 1, "tea": 1},
    }.items():
        assert histogram(engine, task(sources["csv"], items="query", where=condition)) == expected


def test_a_missing_cast_is_an_error_before_planning(
    sources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sources["csv"]
    monkeypatch.setattr("dphist.releasing.run.plan_request", lambda *_: pytest.fail("it was planned"))
    with pytest.raises(InputError, match=r"write CAST\(n AS DOUBLE\)"):
        dphist.release(
            source, user="user", item="query", where="n > 1", epsilon=1, delta=1e-6, max_items_per_user=1
        )


QUERIES = {
    "SELECT user, lower(query) AS item FROM input": {"tea": 2, "milk": 2, SECRET.lower(): 1},
    "SELECT user, lower(query) AS item FROM log WHERE CAST(n AS INT) < 4": {"tea": 2, "milk": 1},
    'FROM input SELECT "user", query AS item WHERE query IS NOT NULL AND query <> \'tea\'': {
        "Tea": 1, "milk": 1, SECRET: 1, "Milk": 1,
    },
    "SELECT t.user, t.query || '!' AS item FROM input AS t WHERE t.query LIKE '%ea' -- ": {"Tea!": 1, "tea!": 1},
    "SELECT user, CAST(query AS INT) AS item FROM input": {},
    "SELECT user, CASE WHEN CAST(n AS INT) > 9 THEN 'x' ELSE 'y' END AS item FROM INPUT;": {"x": 3, "y": 3},
}  # fmt: skip


@EMBEDDED
def test_queries_over_files(engine: Factory, tmp_path: Path, sources: dict[str, Any]) -> None:
    for query, expected in QUERIES.items():
        for kind in ("parquet", "csv", "jsonl"):
            assert histogram(engine, task(sources[kind], query=query)) == expected, (query, kind)
    every = task(sources["parquet"], items="query", query="SELECT * FROM input", where="n < 3")
    assert histogram(engine, every) == {"Tea": 1, "tea": 1}
    assert "write the columns instead of *" in refusal(engine, task(sources["jsonl"], query="SELECT * FROM input"))
    assert "'x' is not a table" in refusal(
        engine, task(sources["parquet"], items="query", query="SELECT x.* FROM input")
    )
    aliased = task(sources["parquet"], items="query", query="SELECT t.* FROM input AS t WHERE t.n < 3")
    assert histogram(engine, aliased) == {"Tea": 1, "tea": 1}
    # A computed item of a query, and a computed column of a query in a condition.
    query = "SELECT user, lower(query) AS q, CAST(n AS INT) AS n FROM input"
    assert histogram(engine, computed(sources["csv"], "first=left(q, 1)", query=query, where="n > 2")) == {
        "m": 2, "s": 1,
    }  # fmt: skip
    folder = tmp_path / "several"
    folder.mkdir()
    for name in ("a", "b"):
        pa.parquet.write_table(rows(), folder / f"{name}.parquet")
    assert histogram(engine, task(folder, query="SELECT user, 1 AS item FROM input")) == {1: 6}


@EMBEDDED
@pytest.mark.parametrize(
    "query",
    [
        "SELECT user, query AS item FROM input LIMIT 3", "SELECT DISTINCT user, query AS item FROM input",
        "SELECT a.user, b.query AS item FROM input a, input b",
        "SELECT user, query AS item FROM input JOIN input b USING (user)",
        "WITH x AS (FROM input) SELECT user, query AS item FROM x",
        "SELECT user, query AS item FROM (FROM input)",
        "SELECT user, query AS item FROM input UNION ALL SELECT user, query FROM input",
        "SELECT user, (SELECT max(query) FROM input) AS item FROM input",
        "SELECT user, max(query) AS item FROM input GROUP BY user",
        "SELECT user, max(query) AS item FROM input GROUP BY ALL",
        "SELECT 1 AS user, max(query) AS item FROM input",
        "SELECT user, max(query) OVER () AS item FROM input",
        "SELECT user, query AS item FROM input ORDER BY n",
        "SELECT user, query AS item FROM input USING SAMPLE 2",
        "SELECT user, query AS item FROM input TABLESAMPLE 10%",
        "SELECT user, query AS item FROM input QUALIFY row_number() OVER () = 1",
        "SELECT user, unnest([query]) AS item FROM input",
        "SELECT user, query AS item FROM input WHERE n > (SELECT avg(n) FROM input)",
        "SELECT user, query AS item FROM input WHERE EXISTS (FROM input WHERE user = 777)",
        "SELECT user, query AS item FROM input HAVING count(*) > 1",
        "SELECT user, query AS item FROM input OFFSET 1",
        "SELECT user, query AS item FROM read_csv('/etc/passwd')",
        "SELECT user, query AS item FROM '/etc/passwd'",
        "SELECT user, query AS item FROM main.input", "SELECT user, query AS item FROM other",
        "SELECT 1; SELECT 2", "",
        "SELECT user, random() AS item FROM input",
        "SELECT user, query AS item FROM input WHERE random() < 0.5",
        "SELECT user, query AS item FROM input t(a, b)", "VALUES (1, 2)", "DESCRIBE input", "DROP TABLE x",
        "SELEC",
        "SELECT COLUMNS(*) FROM input", "SELECT * EXCLUDE (day) FROM input",
        "SELECT user, query, lower(query) AS query FROM input",
        "SELECT user, $1 AS item FROM input", "SELECT user, nope AS item FROM input",
        "PIVOT input ON query USING count(*)",
        "SELECT user, query AS item FROM input, LATERAL (SELECT user)",
        "SELECT user, now() AS item FROM input",
        "SELECT user, sum(n) FILTER (n > 1) AS item FROM input",
        "SELECT user, query AS item FROM input, range(3)",
    ],
)  # fmt: skip
def test_queries_that_use_more_than_a_row_are_refused(
    engine: Factory, sources: dict[str, Any], query: str
) -> None:
    refusal(engine, task(sources["parquet"], query=query))


def test_expressions_and_queries_are_in_the_certificate(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"user": range(400), "word": ["Tea", "tea"] * 200}), tmp_path / "log.parquet")
    query = "SELECT user, word FROM log WHERE word IS NOT NULL"
    result = dphist.release(
        tmp_path / "log.parquet", user="user", item="word=lower(word)", query=query, epsilon=1, delta=1e-6,
        max_items_per_user=1, output=tmp_path / "out.csv",
    )  # fmt: skip
    assert result.to_pandas()["word"].tolist() == ["tea"]
    assert result.document()["request"]["item"] == ["word=lower(word)"]
    assert result.document()["request"]["query"] == query
    assert dphist.verify(tmp_path / "out.csv").verified


def test_relations_in_and_out() -> None:
    with duckdb.connect() as connection:
        connection.register("given", pa.table({"user": range(600), "word": ["Tea", "milk"] * 300}))
        connection.execute("CREATE TABLE log AS FROM given")
        asked: dict[str, Any] = {"user": "user", "item": "word", "epsilon": 1, "delta": 1e-6}
        relation = connection.sql("SELECT user, lower(word) AS word FROM log WHERE user < 500")
        found = dphist.release(relation, **asked)
        assert "frame holds for one user" in found.guarantee
        assert "the query returns for one user" in found.guarantee
        native = found.to_native()
        assert isinstance(native, duckdb.DuckDBPyRelation)
        assert sorted(native.columns) == ["count", "margin", "word"]
        assert sorted(row[0] for row in native.fetchall()) == ["milk", "tea"]
        released = found.to_duckdb(connection)
        assert connection.sql("SELECT word FROM released WHERE count > 100 ORDER BY 1").fetchall() == [
            ("milk",), ("tea",),
        ]  # fmt: skip
        assert released.to_arrow_table().num_rows == 2
        counts = connection.sql("SELECT word AS item, count(DISTINCT user) AS count FROM log GROUP BY 1")
        plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=1)
        assert isinstance(dphist.release_histogram(counts, plan=plan).to_native(), duckdb.DuckDBPyRelation)
