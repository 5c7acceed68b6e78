"""The SQL of the embedded engine, from values in one spelling to the histogram.

Sums of floats depend on the order of their rows, and so on those of other users; sums of whole numbers do not. So
rows are added up in whole fine steps (see `events.Value`). Nothing here can fail because of a value: bounds come
before casts, and casts are TRY_CAST.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dphist.counting.task import FINE_LIMIT, FINE_STEPS, LONGEST_VALUE, Events, Value
from dphist.counting.workspace import LOOKS_LIKE_DATA, column_list, is_data, short_name
from dphist.errors import InputError

FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})
WHOLE: Final = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
)
LONG: Final = frozenset({"BIGINT", "UBIGINT", "HUGEINT", "UHUGEINT"})
# Doubles hold every whole number below this, and not those above.
EXACT: Final = 2**53
# Types that are counted and handed on as they are; other plain ones become text.
KEPT: Final = WHOLE | {
    "BOOLEAN", "VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS",
    "TIMESTAMP WITH TIME ZONE",
}  # fmt: skip
NESTED: Final = re.compile(r"\]$|^(STRUCT|MAP)\b")
UNCOUNTED: Final = re.compile(r"^(UNION|VARIANT)\b")
COUNT: Final = "users"


def name(identifier: str) -> str:
    """A quoted identifier."""
    return '"' + identifier.replace('"', '""') + '"'


def text(value: str) -> str:
    """A quoted string."""
    return "'" + value.replace("'", "''") + "'"


def as_text(expression: str, kind: str) -> str:
    """The text of a value, by a rule about that value alone: 5, 5.0 and '5' are one text.

    A library that infers types from values turns whole numbers into floats, or into text, when a single row asks
    for it. Here that changes nothing about the other rows. Numbers of 2^53 and more are missing: as floats they
    cannot be distinguished.
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
    if kind == "BLOB":
        # Arrow reads text as bytes where a single cell is not UTF-8.
        return f"coalesce(TRY(decode({expression})), lower(hex({expression})))"
    return f"CAST({expression} AS VARCHAR)"


def text_column(expression: str, kind: str) -> tuple[str, str]:
    """A column read as text, and its type; lists and structures become text later, as JSON."""
    found = as_text(expression, kind)
    return (found, kind if found == expression else "VARCHAR")


def short(expression: str, otherwise: str | None = None) -> str:
    """A text of at most `LONGEST_VALUE` bytes (or what is made of it); a longer one is missing.

    CASE computes a branch for its own rows alone: texts that are computed take memory that DuckDB does not count.
    """
    return f"CASE WHEN strlen({expression}) <= {LONGEST_VALUE} THEN {otherwise or expression} END"


def one_spelling(expression: str, kind: str) -> str:
    """Equal values in one form: floats have two zeros and many NaNs, which engines group differently."""
    if kind in FLOATS:
        return (
            f"CASE WHEN isnan({expression}) THEN 'nan'::{kind} WHEN {expression} = 0 THEN 0::{kind} "
            f"ELSE {expression} END"
        )
    if kind == "VARCHAR":
        # A collation would show one user's spelling for all that it takes for equal; invalid UTF-8 is not text.
        return short(expression, f"TRY(decode(encode({expression})))")
    if kind == "BLOB":
        return f"CASE WHEN octet_length({expression}) <= {LONGEST_VALUE} THEN {expression} END"
    if kind in KEPT or kind.startswith("DECIMAL("):
        return expression
    if NESTED.search(kind):
        # As JSON, which is one text for one value; a plain cast would be the same for ['a, b'] and ['a', 'b'].
        # Text inside that is not UTF-8 makes no JSON at all.
        return short(f"nullif(TRY(CAST(to_json({expression}) AS VARCHAR)), '')")
    return short(f"CAST({expression} AS VARCHAR)")


@dataclass(frozen=True)
class Opened:
    """A FROM item, and the SQL expression and type of each wanted column. `before` is run before it is read.

    `again` where a second look costs next to nothing beside the count.
    """

    relation: str
    columns: dict[str, tuple[str, str]]
    before: str = "USE memory"
    again: bool = False


@dataclass(frozen=True)
class Source:
    """An input. Its columns are found by their exact names; DuckDB's own names ignore case.

    `names` is None where any name may be a column (JSON). `open(wanted)` gives the wanted columns.
    """

    what: str
    names: Sequence[str] | None
    open: Callable[[list[str]], Opened]


def describe(connection: Any, relation: str) -> list[tuple[str, str]]:
    """DuckDB's names and types of a FROM item."""
    rows = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return [(str(row[0]), str(row[1])) for row in rows]


def demand(what: str, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise `InputError` if a wanted column does not exist, or exists twice."""
    times = Counter(names)
    for column in wanted:
        if times[column] == 0 and is_data(names):
            raise InputError(f"{what} has no column {column!r}, and its first line {LOOKS_LIKE_DATA}")
        if times[column] == 0:
            near = difflib.get_close_matches(column.lower(), [one.lower() for one in times], n=1, cutoff=0.5)
            meant = [repr(short_name(one)) for one in times if near and one.lower() == near[0]]
            hint = f" (did you mean {' or '.join(meant)}?)" if meant else ""
            raise InputError(f"{what} has no column {column!r}{hint}; its columns are {column_list(names)}")
        if times[column] > 1:
            raise InputError(f"{what} has {times[column]} columns with the name {column!r}")


@dataclass(frozen=True)
class Rows:
    """A FROM item with its values: SQL expressions with their DuckDB types and their names in the input.

    So are its `numbers`: columns that are summed.
    """

    relation: str
    values: tuple[tuple[str, str, str], ...]
    with_user: bool = True
    numbers: tuple[tuple[str, str, str], ...] = ()

    def types(self) -> list[str]:
        """The types in which the values are counted; the user is the first of them, if there is one."""
        for place, (_, kind, column) in enumerate(self.values):
            if UNCOUNTED.search(kind) or (self.with_user and place == 0 and NESTED.search(kind)):
                raise InputError(f"the column {column!r} holds lists or structures, which cannot be users")
        return [
            kind if kind in KEPT | FLOATS or kind.startswith("DECIMAL(") else "VARCHAR"
            for _, kind, _ in self.values
        ]

    def select(self, aliases: list[str], needed: list[str]) -> str:
        """Rows of the values, one spelling each, under the aliases; those in `needed` are not NULL.

        The numbers follow as x0, x1, ..., as they are in the input.
        """
        inner = [f"{written} AS dphist_{k}" for k, (written, _, _) in enumerate((*self.values, *self.numbers))]
        outer = [
            f"{one_spelling(f'dphist_{k}', kind)} AS {alias}"
            for k, ((_, kind, _), alias) in enumerate(zip(self.values, aliases, strict=True))
        ]
        outer += [f"dphist_{len(aliases) + k} AS x{k}" for k in range(len(self.numbers))]
        rows = f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(inner)} FROM {self.relation})"
        present = " AND ".join(f"{alias} IS NOT NULL" for alias in needed)
        return f"SELECT * FROM ({rows}) WHERE {present}" if present else rows


def fast_order(key: bytes, items: list[str]) -> str:
    """A keyed order of a user's items by DuckDB's own hash.

    Nested single-argument hashes: its hash of several arguments combines them so badly that some pairs of items
    are never chosen together.
    """
    a, b, c = (int.from_bytes(key[k : k + 8], "little") for k in (0, 8, 16))
    item = f"hash({items[-1]})"
    for other in reversed(items[:-1]):
        item = f"hash(xor(hash({other}), hash(xor({item}, {c}::UBIGINT))))"
    return f"hash(xor(hash(xor({item}, hash(xor(hash(u), {a}::UBIGINT)))), {b}::UBIGINT))"


def portable_order(key: bytes, items: list[str]) -> str:
    """A keyed order that any SQL engine can repeat: MD5 of the key and the values' texts, each with its length.

    The text of whole numbers, strings, booleans, dates and times without a zone is the same on all; that of floats
    is not. A missing value is a hyphen, which is not a length.
    """
    parts = [
        f"coalesce(CAST(length(CAST({part} AS VARCHAR)) AS VARCHAR) || ':' || CAST({part} AS VARCHAR), '-')"
        for part in ("u", *items)
    ]
    return f"md5({' || '.join([text(key.hex() + ':'), *parts])})"


def public_entries(rows: Rows, null_items: bool) -> str:
    """The query of the different entries of a public list: p0, p1, ..."""
    entries = [f"p{k}" for k in range(len(rows.values))]
    return f"SELECT DISTINCT * FROM ({rows.select(entries, [] if null_items else entries)})"


def public_list(rows: Rows, null_items: bool, types: list[str]) -> str:
    """The query of a public list: entries p0, ..., keys k0, ... in the input's types, and whether one matches.

    An entry that is not a value of the input's type matches nothing. Of entries that spell one value ('7' and
    '007' for a number) only one matches, the plainest: counted twice, a user would weigh twice.
    """
    entries = [f"p{k}" for k in range(len(types))]
    keys = [
        f"{one_spelling(_cast(p, own, kind), kind)} AS k{k}"
        for k, (p, own, kind) in enumerate(zip(entries, rows.types(), types, strict=True))
    ]
    same = [
        f"(({p} IS NULL) OR (k{k} IS NOT NULL AND {lossless(p, own, f'k{k}', kind)}))"
        for k, (p, own, kind) in enumerate(zip(entries, rows.types(), types, strict=True))
    ]
    chosen = [f"k{k}" for k in range(len(types))]
    plain = [
        f"(CAST({k} AS VARCHAR) IS DISTINCT FROM CAST({p} AS VARCHAR))"
        for k, p in zip(chosen, entries, strict=True)
    ]
    first = (
        f"row_number() OVER (PARTITION BY possible, {', '.join(chosen)} ORDER BY {', '.join(plain + entries)}) = 1"
    )
    cleared = ", ".join(f"CASE WHEN matched THEN {k} END AS {k}" for k in chosen)
    keyed = f"SELECT *, {', '.join(keys)} FROM ({public_entries(rows, null_items)})"
    tested = f"SELECT *, coalesce({' AND '.join(same)}, FALSE) AS possible FROM ({keyed})"
    return (
        f"SELECT {', '.join(entries)}, {cleared}, matched FROM "
        f"(SELECT *, possible AND {first} AS matched FROM ({tested}))"
    )


def _cast(entry: str, own: str, kind: str) -> str:
    """An entry in the input's type."""
    return as_text(entry, own) if kind == "VARCHAR" else f"TRY_CAST({entry} AS {kind})"


def lossless(entry: str, own: str, key: str, kind: str) -> str:
    """Whether the cast of an entry to the input's type kept its value: '7.5' is not the whole number 8."""
    if own == kind:
        return "TRUE"
    if own != "VARCHAR":
        return f"TRY_CAST({key} AS {own}) = {entry}"
    if kind in WHOLE or kind.startswith("DECIMAL("):
        return f"TRY_CAST({entry} AS DOUBLE) = CAST({key} AS DOUBLE)"
    if kind == "DATE":
        return f"TRY_CAST({entry} AS TIMESTAMP) = CAST({key} AS TIMESTAMP)"
    return "TRUE"


# Spaces and digits are spelled out: engines differ in what \s, \d and $ stand for. No part of it can begin
# where another could go on, so that a long text is matched in one pass.
BLANKS: Final = r"[ \t\n\r\f\x0B]*"
NUMBER: Final = rf"\A{BLANKS}[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?{BLANKS}\z"
# Whole numbers and decimals that a double may not hold.
LARGE: Final = frozenset({"HUGEINT", "UHUGEINT", "BIGNUM"})
TEXTS: Final = re.compile(r"^(VARCHAR|JSON|\"NULL\"|ENUM\(.*\))$", re.DOTALL)
DECIMAL: Final = re.compile(r"DECIMAL\((\d+),\d+\)")
# Decimals of so many digits are exact doubles but for their point, and dividing by its power rounds once.
EXACT_DIGITS: Final = 15


def not_summable(column: str) -> InputError:
    """The error of a column whose type has no numbers."""
    return InputError(f"the column {column!r} cannot be summed: it holds neither numbers nor text")


def no_number(column: str) -> InputError:
    """The error of true and false in a column that is read as text."""
    return InputError(f"the column {column!r} holds true and false: pass types='fixed' to sum them as 1 and 0")


def number(expression: str, kind: str, column: str) -> str:
    """The number of a value as the nearest double; NULL if it has none. An error if the type has none."""
    if kind in FLOATS | WHOLE:
        return f"CAST({expression} AS DOUBLE)"
    if kind == "BOOLEAN":
        return f"CAST(CAST({expression} AS TINYINT) AS DOUBLE)"
    decimal = DECIMAL.fullmatch(kind)
    if decimal is not None and int(decimal[1]) <= EXACT_DIGITS:
        return f"CAST({expression} AS DOUBLE)"
    if decimal is not None or kind in LARGE:
        # By way of text: DuckDB's own cast of large numbers rounds more than once.
        return f"TRY_CAST(CAST({expression} AS VARCHAR) AS DOUBLE)"
    if TEXTS.match(kind) is None:
        raise not_summable(column)
    written = one_spelling(expression if kind == "VARCHAR" else f"CAST({expression} AS VARCHAR)", "VARCHAR")
    return f"CASE WHEN regexp_matches({written}, {text(NUMBER)}) THEN TRY_CAST({written} AS DOUBLE) END"


def fine_steps(x: str, value: Value) -> str:
    """A row's number in fine steps.

    NULL and NaN are sorted out first: `least` and `greatest` would pass over NULL and return a bound.
    """
    scaled = f"{x} * '{value.scale!r}'::DOUBLE + '0.5'::DOUBLE"
    bounded = f"least(greatest({scaled}, '{-FINE_LIMIT}'::DOUBLE), '{FINE_LIMIT}'::DOUBLE)"
    return f"CASE WHEN {x} IS NULL OR isnan({x}) THEN 0 ELSE TRY_CAST(floor({bounded}) AS BIGINT) END"


def steps(fine: str, value: Value) -> str:
    """A user's sum of fine steps for an item, clamped and in steps from the lower bound."""
    lowest, highest = value.lowest, value.lowest + 2 * FINE_STEPS
    clamped = f"CAST(least(greatest({fine}, ({lowest})::HUGEINT), ({highest})::HUGEINT) AS BIGINT)"
    return f"({clamped} - ({lowest}) + {1 << (value.fine_bits - 1)}) >> {value.fine_bits}"


ITEMS: Final = "items"
# Items are alike if the mean size of their users differs by less than a thirtieth.
_ALIKE: Final = 32


def value_names(values: tuple[Value, ...]) -> list[str]:
    """The columns of the sums in a histogram."""
    return [f"v{k}" for k in range(len(values))]


@dataclass(frozen=True)
class Pairs:
    """Users `u` and items `i0`, `i1`, ..., with repeats: what all queries begin with.

    With `listed` (a table of keys k0, k1, ... and entries p0, p1, ...) only keys of it are among them.
    """

    events: Events
    rows: Rows
    listed: str | None = None
    values: tuple[Value, ...] = ()

    @property
    def items(self) -> list[str]:
        """The item's columns."""
        return [f"i{k}" for k in range(len(self.events.items))]

    @property
    def equal(self) -> str:
        """How a column of an item is compared with that of a key."""
        return "IS NOT DISTINCT FROM" if self.events.null_items else "="

    def with_repeats(self) -> str:
        """The query of all pairs, as often as they occur."""
        columns = ["u", *self.items]
        source = self.rows.select(columns, ["u"] if self.events.null_items else columns)
        if self.listed is None:
            return source
        match = " AND ".join(f"e.{item} {self.equal} l.k{k}" for k, item in enumerate(self.items))
        return (
            f"SELECT * FROM ({source}) AS e SEMI JOIN (SELECT * FROM {self.listed} WHERE matched) AS l ON {match}"
        )

    def once(self) -> str:
        """Each pair once, with the user's own sums for the item in steps, v0, v1, ..."""
        columns = ", ".join(["u", *self.items])
        if not self.values:
            return f"SELECT DISTINCT {columns} FROM ({self.with_repeats()})"
        numbers = ", ".join(f"{number(f'x{k}', *kind)} AS x{k}" for k, (_, *kind) in enumerate(self.rows.numbers))
        places = {column: f"x{k}" for k, (_, _, column) in enumerate(self.rows.numbers)}
        fine = ", ".join(f"{fine_steps(places[v.column], v)} AS f{k}" for k, v in enumerate(self.values))
        sums = ", ".join(f"sum(f{k}) AS s{k}" for k in range(len(self.values)))
        own = ", ".join(f"{steps(f's{k}', value)} AS v{k}" for k, value in enumerate(self.values))
        rows = f"SELECT {columns}, {fine} FROM (SELECT {columns}, {numbers} FROM ({self.with_repeats()}))"
        return f"SELECT {columns}, {own} FROM (SELECT {columns}, {sums} FROM ({rows}) GROUP BY {columns})"


Weights = tuple[tuple[int, int], ...]


def histogram(
    pairs: Pairs, cap: int | None, order: str, lower: int, few_repeats: bool = False, weights: Weights = ()
) -> tuple[str, list[str]]:
    """The query of the counts, and the names of its item columns. Few repeats change its speed, never its result.

    A public list is applied before a user's items are chosen, and every entry is in the result. Sums follow the
    count; which items of a user are chosen does not depend on them.
    """
    items, listed, sums = pairs.items, pairs.listed, value_names(pairs.values)
    columns = ", ".join(items)
    source, where, users = pairs.once(), "", "count(*)"
    if weights:
        source, users = weighted_pairs(pairs, order, weights), "CAST(sum(weight) AS BIGINT)"
    elif cap is not None:
        # A user's items are ranked once each, however often they occur. Equal rows share their dense rank: where
        # there are few of them this spares making the rows distinct first.
        rank = "row_number"
        if few_repeats:
            source, rank, users = pairs.with_repeats(), "dense_rank", "count(DISTINCT u)"
        source = f"SELECT *, {rank}() OVER (PARTITION BY u ORDER BY {order}, {columns}) AS place FROM ({source})"
        where = f" WHERE place <= {cap}"
    # At most 2^21 a user: no sum leaves 64 bits.
    totals = [f"{users} AS {COUNT}", *(f"CAST(sum({v}) AS BIGINT) AS {v}" for v in sums)]
    counts = f"SELECT {columns}, {', '.join(totals)} FROM ({source}){where} GROUP BY {columns}"
    if listed is None:
        return (counts if lower <= 1 else f"{counts} HAVING {COUNT} >= {lower}"), items
    match = " AND ".join(["l.matched = c.matched", *(f"l.k{k} {pairs.equal} c.{i}" for k, i in enumerate(items))])
    entries = [f"p{k}" for k in range(len(items))]
    found = ", ".join(f"coalesce(c.{name}, 0) AS {name}" for name in (COUNT, *sums))
    return (
        f"SELECT {', '.join(f'l.{p}' for p in entries)}, {found} FROM {listed} AS l "
        f"LEFT JOIN (SELECT *, TRUE AS matched FROM ({counts})) AS c ON {match}"
    ), entries


def weighted_pairs(pairs: Pairs, order: str, weights: Weights) -> str:
    """The query of the items that users keep, with the user's `weight` in steps and the weighted parts of sums.

    Only users with more items than the last level has are ranked: there are few of them.
    """
    columns, (most, least), sums = ", ".join(pairs.items), weights[-1], value_names(pairs.values)
    numbers = f"SELECT u, count(*) AS {ITEMS} FROM dphist_pairs GROUP BY u"
    many = f"SELECT u FROM dphist_users WHERE {ITEMS} > {most}"
    rank = f"row_number() OVER (PARTITION BY u ORDER BY {order}, {columns})"
    ranked = f"SELECT *, {rank} AS place FROM dphist_pairs SEMI JOIN ({many}) USING (u)"
    parts = [
        f"{weighted_sum(v, value, weights, '//')} AS {v}" for v, value in zip(sums, pairs.values, strict=True)
    ]
    own = ", ".join([*pairs.items, *sums])
    return (
        f"WITH dphist_pairs AS MATERIALIZED ({pairs.once()}), "
        f"dphist_users AS MATERIALIZED (SELECT u, {ITEMS}, {weight(weights)} AS weight FROM ({numbers})) "
        f"SELECT {', '.join([columns, 'weight', *parts])} FROM ("
        f"SELECT {own}, weight FROM dphist_pairs JOIN dphist_users USING (u) WHERE {ITEMS} <= {most} UNION ALL "
        f"SELECT {own}, CAST({least} AS BIGINT) AS weight FROM ({ranked}) WHERE place <= {most})"
    )


def weight(weights: Weights) -> str:
    """A user's weight in steps, by the number of their items; DuckDB and Spark read it alike."""
    levels = "".join(f"WHEN {ITEMS} <= {items} THEN {level} " for items, level in weights)
    return f"CAST(CASE {levels}ELSE {weights[-1][1]} END AS BIGINT)"


def weighted_sum(v: str, value: Value, weights: Weights, divide: str) -> str:
    """What a user's sum v adds with their `weight`; see `Task`. `divide` is the division of whole numbers.

    v weight is rounded instead of (v - half_steps) weight, and the whole number half_steps weight / unit is
    subtracted afterwards: nothing that is divided is negative, so every engine rounds down.
    """
    unit = weights[0][1]
    return f"(2 * {v} * weight + {unit}) {divide} {2 * unit} - ({value.half_steps} * weight) {divide} {unit}"


def repeats(pairs: Pairs) -> str:
    """The query of how many rows there are, and how many of them differ, for one user in 256."""
    source = replace(pairs, listed=None).with_repeats()
    sample = f"WITH s AS MATERIALIZED (SELECT * FROM ({source}) WHERE hash(u) % 256 = 0) "
    return f"{sample}SELECT (SELECT count(*) FROM s), (SELECT count(*) FROM (SELECT DISTINCT * FROM s))"


def sizes(pairs: Pairs) -> str:
    """The query of how many users have how many different items: one row for each number of items."""
    own = f"SELECT u, count(*) AS {ITEMS} FROM ({pairs.once()}) GROUP BY u"
    return f"SELECT {ITEMS}, count(*) AS {COUNT} FROM ({own}) GROUP BY {ITEMS}"


def pairs_with_sizes(pairs: Pairs) -> str:
    """The query of all different pairs: the item's columns, and how many items the user of the pair has."""
    columns = ", ".join(pairs.items)
    return f"SELECT {columns}, count(*) OVER (PARTITION BY u) AS {ITEMS} FROM ({pairs.once()})"


def users_by_size(pairs: Pairs, source: str) -> str:
    """The query of pairs of groups of like items, by the number of items that the users of the pairs have.

    Items of a group have the same number of users, whose sizes have nearly the same mean logarithm (`alike`).
    """
    item = f"(PARTITION BY {', '.join(pairs.items)})"
    each = (
        f"SELECT {ITEMS}, count(*) OVER item AS {COUNT}, round({_ALIKE} * avg(ln({ITEMS})) OVER item) AS alike "
        f"FROM {source} WINDOW item AS {item}"
    )
    return f"SELECT {COUNT}, alike, {ITEMS}, count(*) AS pairs FROM ({each}) GROUP BY {COUNT}, alike, {ITEMS}"
