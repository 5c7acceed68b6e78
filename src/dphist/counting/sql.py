"""The SQL of the embedded engine, from input values to the histogram.

No value can make a query fail: values are clamped before casts, and casts are TRY_CAST. Sums are sums of integer
steps (see `task.Value`), because a sum of floats depends on the order of rows, and so on other users.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dphist.counting.task import (
    FINE_LIMIT,
    FINE_STEPS,
    LONGEST_VALUE,
    Choice,
    Events,
    Value,
    vectors_of,
)
from dphist.counting.workspace import LOOKS_LIKE_DATA, column_list, is_data, short_name
from dphist.errors import InputError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})
WHOLE: Final = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
)
LONG: Final = frozenset({"BIGINT", "UBIGINT", "HUGEINT", "UHUGEINT"})
# A double represents every integer below this exactly.
EXACT: Final = 2**53
# Types that are counted as they are; other scalar types become text.
KEPT: Final = WHOLE | {
    "BOOLEAN", "VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS",
    "TIMESTAMP WITH TIME ZONE",
}  # fmt: skip
NESTED: Final = re.compile(r"\]$|^(STRUCT|MAP)\b")
UNCOUNTED: Final = re.compile(r"^(UNION|VARIANT)\b")
DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
COUNT: Final = "users"
ITEMS: Final = "items"


def name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def as_text(expression: str, kind: str) -> str:
    """A value as text that depends on this value alone: 5, 5.0 and '5' have the same text.

    Libraries that infer types turn a whole column into floats or text because of a single row; that must not
    change other rows. Numbers from 2^53 are missing, because floats do not distinguish them.
    """
    if kind == "VARCHAR" or NESTED.search(kind) or UNCOUNTED.search(kind):
        return expression
    if kind in FLOATS:
        return (
            f"CASE WHEN abs({expression}) < {EXACT} AND {expression} = trunc({expression}) "
            f"THEN CAST(CAST({expression} AS BIGINT) AS VARCHAR) "
            f"WHEN abs({expression}) < {EXACT} OR NOT isfinite({expression}) "
            f"THEN CAST({expression} AS VARCHAR) END"
        )
    if kind in LONG:
        return (
            f"CASE WHEN {expression} > -{EXACT} AND {expression} < {EXACT} THEN CAST({expression} AS VARCHAR) END"
        )
    if decimal := DECIMAL.fullmatch(kind):
        # Libraries infer the number of decimals too: 1.5 would be 1.50 because of another row.
        digits = f"CAST({expression} AS VARCHAR)"
        plain = f"rtrim(rtrim({digits}, '0'), '.')" if int(decimal[2]) else digits
        return f"CASE WHEN abs(CAST({expression} AS DOUBLE)) < {EXACT} THEN {plain} END"
    if kind == "BLOB":
        # Arrow reads a text column as bytes if a single cell is not UTF-8.
        return f"coalesce(TRY(decode({expression})), lower(hex({expression})))"
    return f"CAST({expression} AS VARCHAR)"


def text_column(expression: str, kind: str) -> tuple[str, str]:
    """A column read as text, and its type; lists and structures become JSON text later."""
    column = as_text(expression, kind)
    return column, kind if column == expression else "VARCHAR"


def limit_length(expression: str, result: str | None = None) -> str:
    """The result for a text of at most `LONGEST_VALUE` bytes, by default that text; NULL for a longer one.

    CASE computes it for the short texts only: DuckDB's memory limit does not cover computed texts.
    """
    return f"CASE WHEN strlen({expression}) <= {LONGEST_VALUE} THEN {result or expression} END"


def normalize(expression: str, kind: str) -> str:
    """One form for equal values: engines differ in how they group the two zeros and many NaNs of floats."""
    if kind in FLOATS:
        return (
            f"CASE WHEN isnan({expression}) THEN 'nan'::{kind} WHEN {expression} = 0 THEN 0::{kind} "
            f"ELSE {expression} END"
        )
    if kind == "VARCHAR":
        # Without its collation, which would show one user's spelling for all; invalid UTF-8 is NULL.
        return limit_length(expression, f"TRY(decode(encode({expression})))")
    if kind == "BLOB":
        return f"CASE WHEN octet_length({expression}) <= {LONGEST_VALUE} THEN {expression} END"
    if kind in KEPT or kind.startswith("DECIMAL("):
        return expression
    if NESTED.search(kind):
        # As JSON: a cast would not distinguish ['a, b'] from ['a', 'b']. Invalid UTF-8 inside gives ''.
        return limit_length(f"nullif(TRY(CAST(to_json({expression}) AS VARCHAR)), '')")
    return limit_length(f"CAST({expression} AS VARCHAR)")


@dataclass(frozen=True)
class Opened:
    """A FROM item with the SQL expression and type of each wanted column.

    `readers` are other connections that produce its rows at the moment, to be interrupted with this one.
    """

    relation: str
    columns: dict[str, tuple[str, str]]
    readers: Sequence[DuckDBPyConnection] = ()


@dataclass(frozen=True)
class Source:
    """An input whose columns are found by their exact names (DuckDB ignores case).

    `names` is None if any name may be a column (JSON).
    """

    what: str
    names: Sequence[str] | None
    open: Callable[[list[str]], Opened]


def describe(connection: DuckDBPyConnection, relation: str) -> list[tuple[str, str]]:
    """Names and types of the columns of a FROM item."""
    rows = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return [(str(row[0]), str(row[1])) for row in rows]


def require_columns(what: str, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise `InputError` if a wanted column is missing or ambiguous."""
    times = Counter(names)
    for column in wanted:
        if times[column] == 0 and is_data(names):
            raise InputError(f"{what} has no column {column!r}, and its first line {LOOKS_LIKE_DATA}")
        if times[column] == 0:
            near = difflib.get_close_matches(column.lower(), [name.lower() for name in times], n=1, cutoff=0.5)
            meant = [repr(short_name(name)) for name in times if near and name.lower() == near[0]]
            hint = f" (did you mean {' or '.join(meant)}?)" if meant else ""
            if "," in column and all(part.strip() in times for part in column.split(",")):
                hint = " (give each column on its own)"
            raise InputError(f"{what} has no column {column!r}{hint}; its columns are {column_list(names)}")
        if times[column] > 1:
            raise InputError(f"{what} has {times[column]} columns with the name {column!r}")


@dataclass(frozen=True)
class Relation:
    """A FROM item, its counted `values` (the user first, unless it is a public list) and its summed `numbers`.

    Each value or number is an SQL expression, its DuckDB type and the name of the column.
    """

    relation: str
    values: tuple[tuple[str, str, str], ...]
    with_user: bool = True
    numbers: tuple[tuple[str, str, str], ...] = ()

    def types(self) -> list[str]:
        """The types in which the values are counted."""
        for place, (_, kind, column) in enumerate(self.values):
            if UNCOUNTED.search(kind) or (self.with_user and place == 0 and NESTED.search(kind)):
                raise not_a_user(column)
        return [
            kind if kind in KEPT | FLOATS or kind.startswith("DECIMAL(") else "VARCHAR"
            for _, kind, _ in self.values
        ]

    def select(self, aliases: list[str], needed: list[str]) -> str:
        """The normalized values under the aliases, those in `needed` not NULL; then the numbers x0, x1, ..."""
        inner = [f"{value} AS dphist_{k}" for k, (value, _, _) in enumerate((*self.values, *self.numbers))]
        outer = [
            f"{normalize(f'dphist_{k}', kind)} AS {alias}"
            for k, ((_, kind, _), alias) in enumerate(zip(self.values, aliases, strict=True))
        ]
        outer += [f"dphist_{len(aliases) + k} AS x{k}" for k in range(len(self.numbers))]
        rows = f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(inner)} FROM {self.relation})"
        present = " AND ".join(f"{alias} IS NOT NULL" for alias in needed)
        return f"SELECT * FROM ({rows}) WHERE {present}" if present else rows


def item_order(choice: Choice, items: list[str]) -> str:
    """The keyed order in which a user's items are chosen."""
    return (portable_order if choice.portable else fast_order)(choice.key, items)


def fast_order(key: bytes, items: list[str]) -> str:
    """A keyed order of a user's items by DuckDB's hash.

    Single-argument hashes are nested: the hash of several arguments mixes so badly that some pairs of items would
    never be chosen together.
    """
    a, b, c = (int.from_bytes(key[k : k + 8], "little") for k in (0, 8, 16))
    item = f"hash({items[-1]})"
    for other in reversed(items[:-1]):
        item = f"hash(xor(hash({other}), hash(xor({item}, {c}::UBIGINT))))"
    return f"hash(xor(hash(xor({item}, hash(xor(hash(u), {a}::UBIGINT)))), {b}::UBIGINT))"


def portable_order(key: bytes, items: list[str]) -> str:
    """A keyed order for DuckDB and Spark: MD5 of the key and the values as text with their lengths.

    Both write integers, strings, booleans, dates and times without a zone alike, but not floats. A missing
    value is a hyphen.
    """
    parts = [
        f"coalesce(CAST(length(CAST({part} AS STRING)) AS STRING) || ':' || CAST({part} AS STRING), '-')"
        for part in ("u", *items)
    ]
    return f"md5({' || '.join([text(key.hex() + ':'), *parts])})"


# The type of the column that marks totals.
MARK: Final = "BOOLEAN"


def total_columns(events: Events, keys: Sequence[str]) -> list[str]:
    """The item columns of each pair and of the totals that follow from it, and their mark.

    In the SQL of DuckDB and Spark, from rows that are repeated with `made` from 0, for the pair itself, to the
    number of totals: a total has no value in its column. A row depends on nothing but the one that it is made of.
    """
    number = {place: made for made, place in enumerate(events.totalled, start=1)}
    values = [
        f"CASE WHEN made = {number[k]} THEN NULL ELSE {key} END AS {key}" if k in number else key
        for k, key in enumerate(keys)
    ]
    return [*values, f"made > 0 AS i{len(keys)}"]


def numbers_of_made(events: Events) -> str:
    """The values of `made` for `total_columns`."""
    return ", ".join(map(str, range(1 + len(events.totals))))


def public_entries(rows: Relation, listed: Events) -> str:
    """The query of the distinct entries p0, p1, ... of a public list.

    With totals, the last column is their mark, and an entry is left out if it can be neither an item nor a total.
    """
    entries = [f"p{k}" for k in range(len(rows.values))]
    if not listed.totals:
        return f"SELECT DISTINCT * FROM ({rows.select(entries, [] if listed.null_items else entries)})"
    *items, mark = entries
    columns = f"{', '.join(items)}, TRY_CAST({mark} AS {MARK}) AS {mark}"
    empty = [f"CAST({item} IS NULL AS INT)" for item in items]
    of_totals = " + ".join(empty[place] for place in listed.totalled)
    if listed.null_items:
        possible = f"CASE WHEN {mark} THEN {of_totals} = 1 ELSE NOT {mark} END"
    else:
        possible = f"{' + '.join(empty)} = CAST({mark} AS INT) AND {of_totals} = CAST({mark} AS INT)"
    return f"SELECT DISTINCT * FROM (SELECT {columns} FROM ({rows.select(entries, [])})) WHERE {possible}"


def public_list(rows: Relation, listed: Events, types: list[str]) -> str:
    """The query of a public list: entries p0, ..., their keys k0, ... in the input's types, and `matched`.

    An entry that is not a value of the input's type does not match. Of several spellings of one value ('7' and
    '007' for a number) only the canonical one matches: otherwise a user would count twice.
    """
    entries, keys = [f"p{k}" for k in range(len(types))], [f"k{k}" for k in range(len(types))]
    own_types = [*rows.types()[:-1], MARK] if listed.totals else rows.types()
    columns = list(zip(entries, keys, own_types, types, strict=True))
    cast = [
        f"{normalize(as_text(entry, own) if kind == 'VARCHAR' else f'TRY_CAST({entry} AS {kind})', kind)} AS {key}"
        for entry, key, own, kind in columns
    ]
    same = [
        f"(({entry} IS NULL) OR ({key} IS NOT NULL AND {is_lossless(entry, own, key, kind)}))"
        for entry, key, own, kind in columns
    ]
    order = [f"(CAST({k} AS VARCHAR) IS DISTINCT FROM CAST({p} AS VARCHAR))" for p, k, *_ in columns] + entries
    first = f"row_number() OVER (PARTITION BY possible, {', '.join(keys)} ORDER BY {', '.join(order)}) = 1"
    matching = ", ".join(f"CASE WHEN matched THEN {key} END AS {key}" for key in keys)
    with_keys = f"SELECT *, {', '.join(cast)} FROM ({public_entries(rows, listed)})"
    tested = f"SELECT *, coalesce({' AND '.join(same)}, FALSE) AS possible FROM ({with_keys})"
    return (
        f"SELECT {', '.join(entries)}, {matching}, matched FROM "
        f"(SELECT *, possible AND {first} AS matched FROM ({tested}))"
    )


def is_lossless(entry: str, own: str, key: str, kind: str) -> str:
    """Whether the cast of an entry to the input's type kept its value: '7.5' is not 8."""
    if own == kind or (own, kind) == ("BLOB", "VARCHAR"):  # bytes that are not text have their digits as a key
        return "TRUE"
    if own != "VARCHAR":
        return f"TRY_CAST({key} AS {own}) = {entry}"
    if kind in WHOLE or DECIMAL.fullmatch(kind):
        return f"TRY_CAST({entry} AS DOUBLE) = CAST({key} AS DOUBLE)"
    if kind == "DATE":
        return f"TRY_CAST({entry} AS TIMESTAMP) = CAST({key} AS TIMESTAMP)"
    return "TRUE"


# Engines differ in \s, \d and $, so they are spelled out. No backtracking: a long text is matched in one pass.
BLANKS: Final = r"[ \t\n\r\f\x0B]*"
NUMBER: Final = rf"\A{BLANKS}[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?{BLANKS}\z"
# With a decimal comma, dots separate groups of three digits: 12.5 is not a number, rather than 125.
NUMBER_WITH_COMMA: Final = (
    rf"\A{BLANKS}[+-]?(([0-9]{{1,3}}(\.[0-9]{{3}})+|[0-9]+)(,[0-9]*)?|,[0-9]+)([eE][+-]?[0-9]+)?{BLANKS}\z"
)
LARGE: Final = frozenset({"HUGEINT", "UHUGEINT", "BIGNUM"})
TEXTS: Final = re.compile(r"^(VARCHAR|JSON|\"NULL\"|ENUM\(.*\))$", re.DOTALL)
# The digits of such a decimal are an exact double, and dividing by the power of its point rounds once.
EXACT_DIGITS: Final = 15


def not_a_user(column: str) -> InputError:
    return InputError(f"the column {column!r} holds lists or structures, which cannot be users")


def not_summable(column: str) -> InputError:
    return InputError(f"the column {column!r} cannot be summed: it holds neither numbers nor text")


def boolean_as_text(column: str) -> InputError:
    return InputError(f"the column {column!r} holds true and false: pass types='fixed' to sum them as 1 and 0")


def number(expression: str, kind: str, column: str, decimal_sign: str | None = None) -> str:
    """The value as the nearest double; NULL if it is not a number. An error if the type is not numeric or text.

    The decimal sign is that of numbers in text.
    """
    if kind in FLOATS | WHOLE:
        return f"CAST({expression} AS DOUBLE)"
    if kind == "BOOLEAN":
        return f"CAST(CAST({expression} AS TINYINT) AS DOUBLE)"
    decimal = DECIMAL.fullmatch(kind)
    if decimal is not None and int(decimal[1]) <= EXACT_DIGITS:
        return f"CAST({expression} AS DOUBLE)"
    if decimal is not None or kind in LARGE:
        # Through text: DuckDB's cast of large numbers rounds more than once.
        return f"TRY_CAST(CAST({expression} AS VARCHAR) AS DOUBLE)"
    if TEXTS.match(kind) is None:
        raise not_summable(column)
    value = normalize(expression if kind == "VARCHAR" else f"CAST({expression} AS VARCHAR)", "VARCHAR")
    form, plain = NUMBER, value
    if decimal_sign == ",":
        form, plain = NUMBER_WITH_COMMA, f"replace(replace({value}, '.', ''), ',', '.')"
    return f"CASE WHEN regexp_matches({value}, {text(form)}) THEN TRY_CAST({plain} AS DOUBLE) END"


def fine_steps(x: str, value: Value) -> str:
    """A row's number in fine steps, in the SQL of DuckDB and Spark.

    NULL comes first: `least` and `greatest` ignore it and return a bound.
    """
    scaled = f"{x} * '{value.scale!r}'::DOUBLE + '0.5'::DOUBLE"
    bounded = f"least(greatest({scaled}, '{-FINE_LIMIT}'::DOUBLE), '{FINE_LIMIT}'::DOUBLE)"
    return f"CASE WHEN {x} IS NULL OR isnan({x}) THEN 0 ELSE TRY_CAST(floor({bounded}) AS BIGINT) END"


def steps(fine: str, value: Value, whole: str) -> str:
    """A user's sum of fine steps for an item, clamped, in steps above the lower bound.

    In the SQL of DuckDB and Spark; the sum has the type `whole`.
    """
    lowest, highest = value.lowest, value.lowest + 2 * FINE_STEPS
    clamped = f"CAST(least(greatest({fine}, ({lowest})::{whole}), ({highest})::{whole}) AS BIGINT)"
    return f"({clamped} - ({lowest}) + {1 << (value.fine_bits - 1)}) >> {value.fine_bits}"


def clip_vectors(values: Sequence[Value]) -> list[list[str]]:
    """From a user's sums c0, c1, ... (doubles within 2^50) to steps v0, v1, ... of the columns of vectors.

    In layers of SQL for DuckDB and Spark, each with the columns of the one before it: see `task.Value`.
    """
    layers: list[list[str]] = [[], [], [], [], []]
    most = f"'{FINE_STEPS - 2.0**-10!r}'::DOUBLE"
    for norm, places in enumerate(vectors_of(values)):
        value, half = values[places[0]], "'0.5'::DOUBLE"
        fine = f"'{float(1 << value.fine_bits)!r}'::DOUBLE"
        layers[0].append(f"sqrt({' + '.join(f'c{k} * c{k}' for k in places)}) AS n{norm}")
        for k in places:
            clipped = f"CASE WHEN n{norm} > {most} THEN c{k} * ({most} / n{norm}) ELSE c{k} END"
            layers[1].append(f"({clipped}) / {fine} AS g{k}")
            layers[2].append(f"CAST(floor(g{k} + {half}) AS BIGINT) AS r{k}")
            inwards = f"CAST(CASE WHEN g{k} < 0 THEN ceil(g{k}) ELSE floor(g{k}) END AS BIGINT)"
            layers[4].append(f"CASE WHEN q{norm} <= {value.half_steps**2} THEN r{k} ELSE {inwards} END AS v{k}")
        layers[3].append(f"{' + '.join(f'r{k} * r{k}' for k in places)} AS q{norm}")
    return layers if layers[0] else []


def bounded(fine: str, whole: str) -> str:
    """A user's sum of fine steps, of the type `whole`, within 2^50 on either side, as a double."""
    return f"CAST(least(greatest({fine}, ({-FINE_LIMIT})::{whole}), ({FINE_LIMIT})::{whole}) AS DOUBLE)"


def own_sums(fine: Sequence[str], values: Sequence[Value], whole: str) -> list[str]:
    """A user's sums of fine steps in steps, as v0, v1, ...; those of vectors bounded, as c0, c1, ..."""
    return [
        f"{steps(one, value, whole)} AS v{k}" if value.vector is None else f"{bounded(one, whole)} AS c{k}"
        for k, (one, value) in enumerate(zip(fine, values, strict=True))
    ]


def sum_names(values: tuple[Value, ...]) -> list[str]:
    """The columns of the sums in a histogram."""
    return [f"v{k}" for k in range(len(values))]


@dataclass(frozen=True)
class Pairs:
    """Users `u` and items `i0`, `i1`, ..., the start of all queries.

    `listed` is the table of a public list (see `public_list`); items that do not match it are left out.
    """

    events: Events
    rows: Relation
    listed: str | None = None
    values: tuple[Value, ...] = ()

    @property
    def items(self) -> list[str]:
        return [f"i{k}" for k in range(len(self.events.items) + bool(self.events.totals))]

    @property
    def equal(self) -> str:
        return "IS NOT DISTINCT FROM" if self.events.can_be_null else "="

    def with_repeats(self) -> str:
        """The query of all pairs, including repeated ones."""
        events = self.events
        keys = [f"i{k}" for k in range(len(events.items))]
        source = self.rows.select(["u", *keys], ["u"] if events.null_items else ["u", *keys])
        if events.totals:
            numbers = [f"x{k}" for k in range(len(self.rows.numbers))]
            made = f"SELECT *, unnest([{numbers_of_made(events)}]) AS made FROM ({source})"
            source = f"SELECT {', '.join(['u', *total_columns(events, keys), *numbers])} FROM ({made})"
        if self.listed is None:
            return source
        match = " AND ".join(f"e.{item} {self.equal} l.k{k}" for k, item in enumerate(self.items))
        return (
            f"SELECT * FROM ({source}) AS e SEMI JOIN (SELECT * FROM {self.listed} WHERE matched) AS l ON {match}"
        )

    def once(self) -> str:
        """The query of distinct pairs, with the user's sums for the item in steps, v0, v1, ..."""
        columns = ", ".join(["u", *self.items])
        if not self.values:
            return f"SELECT DISTINCT {columns} FROM ({self.with_repeats()})"
        sign = self.events.decimal
        numbers = ", ".join(
            f"{number(f'x{k}', kind, column, sign)} AS x{k}"
            for k, (_, kind, column) in enumerate(self.rows.numbers)
        )
        places = {column: f"x{k}" for k, (_, _, column) in enumerate(self.rows.numbers)}
        fine = ", ".join(f"{fine_steps(places[v.column], v)} AS f{k}" for k, v in enumerate(self.values))
        totals = ", ".join(f"sum(f{k}) AS s{k}" for k in range(len(self.values)))
        sums = ", ".join(own_sums([f"s{k}" for k in range(len(self.values))], self.values, "HUGEINT"))
        rows = f"SELECT {columns}, {fine} FROM (SELECT {columns}, {numbers} FROM ({self.with_repeats()}))"
        once = f"SELECT {columns}, {sums} FROM (SELECT {columns}, {totals} FROM ({rows}) GROUP BY {columns})"
        layers = clip_vectors(self.values)
        for layer in layers:
            once = f"SELECT *, {', '.join(layer)} FROM ({once})"
        return f"SELECT {columns}, {', '.join(sum_names(self.values))} FROM ({once})" if layers else once


def histogram(pairs: Pairs, limit: int | None, order: str, lower: int) -> tuple[str, list[str]]:
    """The query of counts and sums, and the names of its item columns.

    A public list is applied before a user's items are chosen, and every entry is in the result. The choice of
    items does not depend on the sums.
    """
    items, listed, sums = pairs.items, pairs.listed, sum_names(pairs.values)
    columns = ", ".join(items)
    source, where = pairs.once(), ""
    if limit is not None:
        rank = f"row_number() OVER (PARTITION BY u ORDER BY {order}, {columns})"
        source = f"SELECT *, {rank} AS place FROM ({source})"
        where = f" WHERE place <= {limit}"
    # At most 2^21 per user: no sum exceeds 64 bits.
    totals = [f"count(*) AS {COUNT}", *(f"CAST(sum({v}) AS BIGINT) AS {v}" for v in sums)]
    counts = f"SELECT {columns}, {', '.join(totals)} FROM ({source}){where} GROUP BY {columns}"
    if listed is None:
        return (counts if lower <= 1 else f"{counts} HAVING {COUNT} >= {lower}"), items
    match = " AND ".join(["l.matched = c.matched", *(f"l.k{k} {pairs.equal} c.{i}" for k, i in enumerate(items))])
    entries = [f"p{k}" for k in range(len(items))]
    numbers = ", ".join(f"coalesce(c.{name}, 0) AS {name}" for name in (COUNT, *sums))
    return (
        f"SELECT {', '.join(f'l.{p}' for p in entries)}, {numbers} FROM {listed} AS l "
        f"LEFT JOIN (SELECT *, TRUE AS matched FROM ({counts})) AS c ON {match}"
    ), entries


def weighted_sum(v: str, value: Value, unit: int, divide: str) -> str:
    """A user's sum v times `weight`/`unit`, as `RoundsCount` defines it; `divide` divides integers.

    The integer half_steps weight / unit is subtracted after dividing: engines round negative quotients
    differently.
    """
    if value.vector is not None:
        return f"(CASE WHEN {v} < 0 THEN -1 ELSE 1 END) * ((abs({v}) * weight) {divide} {unit})"
    return f"(2 * {v} * weight + {unit}) {divide} {2 * unit} - ({value.half_steps} * weight) {divide} {unit}"


def pairs_with_sizes(pairs: Pairs) -> str:
    """The query of distinct pairs: the item columns, and the number of items of the pair's user."""
    columns = ", ".join(pairs.items)
    return f"SELECT {columns}, count(*) OVER (PARTITION BY u) AS {ITEMS} FROM ({pairs.once()})"


def users_by_size(pairs: Pairs, source: str) -> str:
    """The query of the number of pairs by groups of similar items and by the number of items of the pair's user.

    Items of a group have the same number of users, whose numbers of items have nearly the same mean logarithm
    (within 1/32: `alike`).
    """
    item = f"(PARTITION BY {', '.join(pairs.items)})"
    rows = (
        f"SELECT {ITEMS}, count(*) OVER item AS {COUNT}, round(32 * avg(ln({ITEMS})) OVER item) AS alike "
        f"FROM {source} WINDOW item AS {item}"
    )
    return f"SELECT {COUNT}, alike, {ITEMS}, count(*) AS pairs FROM ({rows}) GROUP BY {COUNT}, alike, {ITEMS}"
