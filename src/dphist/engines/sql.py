"""The text of the queries: quoting, one spelling per value, the choice of a user's items, public lists."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dphist.errors import InputError
from dphist.types.events import LONGEST_VALUE

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
    can no longer be told apart.
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


def counted_type(kind: str, column: str, is_user: bool) -> str:
    """The type in which values of a column are counted; an error for users that are lists or structures."""
    if UNCOUNTED.search(kind) or (is_user and NESTED.search(kind)):
        raise InputError(f"the column {column!r} holds lists or structures, which cannot be users")
    return kind if kind in KEPT | FLOATS or kind.startswith("DECIMAL(") else "VARCHAR"


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
        # A collation would show one user's spelling for all that it takes for equal; invalid UTF-8 is no text.
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
class Rows:
    """A FROM item with its values: SQL expressions with their DuckDB types and their names in the input.

    So are its `numbers`: columns that are summed.
    """

    relation: str
    values: tuple[tuple[str, str, str], ...]
    carried: tuple[tuple[str, str], ...] = ()
    condition: str | None = None
    with_user: bool = True
    numbers: tuple[tuple[str, str, str], ...] = ()

    def types(self) -> list[str]:
        """The types in which the values are counted; the user is the first of them, if there is one."""
        return [
            counted_type(kind, column, self.with_user and place == 0)
            for place, (_, kind, column) in enumerate(self.values)
        ]

    def select(self, aliases: list[str], needed: list[str]) -> str:
        """Rows of the values, one spelling each, under the aliases; those in `needed` are not NULL.

        The numbers follow as x0, x1, ..., as they are in the input.
        The condition sees the columns it names under their own names and nothing else. It is inside TRY: a row on
        which it fails (a text that is no number) is not taken, because an error would tell of that row.
        """
        own = "dphist_"
        while any(column.casefold().startswith(own) for _, column in self.carried):
            own += "_"
        inner = [f"{expression} AS {own}{k}" for k, (expression, _, _) in enumerate((*self.values, *self.numbers))]
        inner += [f"{expression} AS {name(column)}" for expression, column in self.carried]
        where = "" if self.condition is None else f" WHERE TRY((\n{self.condition}\n))"
        outer = [
            f"{one_spelling(f'{own}{k}', kind)} AS {alias}"
            for k, ((_, kind, _), alias) in enumerate(zip(self.values, aliases, strict=True))
        ]
        outer += [f"{own}{len(aliases) + k} AS x{k}" for k in range(len(self.numbers))]
        rows = f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(inner)} FROM {self.relation}){where}"
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
    is not. A missing value is a hyphen, which is no length.
    """
    parts = [
        f"coalesce(CAST(length(CAST({part} AS VARCHAR)) AS VARCHAR) || ':' || CAST({part} AS VARCHAR), '-')"
        for part in ("u", *items)
    ]
    return f"md5({' || '.join([text(key.hex() + ':'), *parts])})"


def public_list(rows: Rows, types: list[str], null_items: bool) -> str:
    """The query of a public list: entries p0, ..., keys k0, ... in the input's types, and whether one matches.

    An entry that is no value of the input's type matches nothing. Of entries that spell one value ('7' and '007'
    for a number) only one matches, the plainest: counted twice, a user would weigh twice.
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
    distinct = f"SELECT DISTINCT * FROM ({rows.select(entries, [] if null_items else entries)})"
    keyed = f"SELECT *, {', '.join(keys)} FROM ({distinct})"
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
