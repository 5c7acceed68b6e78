"""The types of Spark: in which form a column is counted, and how a value is written for a hash."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from dphist.engines.sql import EXACT
from dphist.errors import InputError
from dphist.types.events import LONGEST_VALUE

# Types of Spark that are counted as they are, with the type that DuckDB has for them.
KEPT: Final = {
    "boolean": "BOOLEAN", "tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT",
    "date": "DATE", "timestamp": "TIMESTAMP WITH TIME ZONE", "timestamp_ntz": "TIMESTAMP", "binary": "BLOB",
}  # fmt: skip
FLOATS: Final = {"float": "FLOAT", "double": "DOUBLE"}
# All fields, and times to the last digit, whatever the session's zone is.
JSON: Final = {
    "ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}  # fmt: skip
NESTED: Final = ("array", "struct", "map")


@dataclass(frozen=True)
class Counted:
    """A column in the form in which it is counted; `kind` is the type that DuckDB has for it."""

    column: Any
    kind: str


def counted(column: Any, kind: str, name: str, *, is_user: bool) -> Counted:
    """One form for equal values, as the embedded engine has it; types that few programs know become text."""
    from pyspark.sql import functions as sql

    if kind == "binary":
        return Counted(short(column), KEPT[kind])
    if kind in KEPT:
        return Counted(column, KEPT[kind])
    if kind.startswith("decimal("):
        return Counted(column, kind.upper())
    if kind in FLOATS:
        # Floats have two zeros and many NaNs, which engines group differently.
        plain = sql.when(column == 0, sql.lit(0.0)).when(sql.isnan(column), sql.lit(float("nan")))
        return Counted(plain.otherwise(column).cast(kind), FLOATS[kind])
    if kind.startswith((*NESTED, "variant")):
        if is_user or kind.startswith("variant"):
            raise InputError(f"the column {name!r} holds lists or structures, which cannot be users")
        return Counted(short(text(sql.to_json(column, JSON))), "VARCHAR")
    return Counted(short(text(column.cast("string"))), "VARCHAR")


def short(column: Any) -> Any:
    """A text or bytes of at most `LONGEST_VALUE` bytes; a longer one is missing, as with the embedded engine."""
    from pyspark.sql import functions as sql

    return sql.when(sql.octet_length(column) <= LONGEST_VALUE, column)


def as_text(column: Any, kind: str) -> Any:
    """The text of a value, by a rule about that value alone: see `dphist.engines.sql.as_text`."""
    from pyspark.sql import functions as sql

    exact = sql.abs(column) < sql.lit(EXACT)
    if kind in FLOATS:
        whole = sql.when(exact & (column == sql.floor(column)), column.cast("bigint").cast("string"))
        found = whole.when(exact, column.cast("string"))
        for name in ("nan", "inf", "-inf"):
            found = found.when(column == sql.lit(float(name)), sql.lit(name))
        return found
    if kind in ("bigint", "decimal(20,0)"):
        return sql.when((column > sql.lit(-EXACT)) & (column < sql.lit(EXACT)), column.cast("string"))
    if kind in ("timestamp", "timestamp_ntz"):
        # In UTC, whatever the session's zone is, and without zeros at the end of the fraction.
        local = sql.to_utc_timestamp(column, sql.current_timezone()) if kind == "timestamp" else column
        found = sql.date_format(local, "yyyy-MM-dd HH:mm:ss.SSSSSS")
        zone = sql.lit("+00" if kind == "timestamp" else "")
        return sql.concat(sql.regexp_replace(found, r"\.?0*$", ""), zone)
    if kind == "binary":
        return sql.coalesce(sql.try_validate_utf8(column.cast("string")), sql.lower(sql.hex(column)))
    return column if kind.startswith((*NESTED, "variant")) else column.cast("string")


def text(column: Any) -> Any:
    """Text as bytes have it: a collation would show one user's spelling for all; invalid UTF-8 is no text."""
    from pyspark.sql import functions as sql

    return sql.try_validate_utf8(sql.collate(column, "UTF8_BINARY"))


def written(column: Any, kind: str) -> Any:
    """A value as text, different values differently and whatever the session's settings; NULL stays NULL."""
    from pyspark.sql import functions as sql

    if kind == "binary":
        return sql.hex(column)
    if kind == "timestamp":
        return sql.unix_micros(column).cast("string")
    if kind == "date":
        return sql.unix_date(column).cast("string")
    return column.cast("string")


def joined(parts: list[Any]) -> Any:
    """Texts joined so that no two rows of texts give the same: each with its length, a missing one as a hyphen."""
    from pyspark.sql import functions as sql

    told = [
        sql.coalesce(sql.concat(sql.length(part).cast("string"), sql.lit(":"), part), sql.lit("-"))
        for part in parts
    ]
    return reduce(sql.concat, told)


def portable_order(key: bytes, user: Any, items: list[Any]) -> Any:
    """The keyed order that every engine repeats: see `dphist.engines.sql.portable_order`."""
    from pyspark.sql import functions as sql

    values = [column.cast("string") for column in (user, *items)]
    return sql.md5(sql.concat(sql.lit(key.hex() + ":"), joined(values)).cast("binary"))


def fast_order(key: bytes, user: Any, items: list[Any]) -> Any:
    """A keyed order by Spark's own hash, each value hashed from where the last one left off.

    The hash passes over missing values, so that which of them are missing is hashed too. The key stands in Spark's
    plan for whoever may read it. That is no secret given away: privacy needs the choice of a user's items to
    depend on that user alone, and it does for any key.
    """
    from pyspark.sql import functions as sql

    a, b = (int.from_bytes(key[k : k + 8], "little", signed=True) for k in (0, 8))
    missing = [column.isNull() for column in items]
    return sql.xxhash64(sql.lit(a), user, sql.lit(b), *items, *missing)


def digest(columns: list[tuple[Any, str]], count: Any) -> Any:
    """SHA-256 of an item and its count, by which a key makes the noise of this very count."""
    from pyspark.sql import functions as sql

    parts = [written(column, kind) for column, kind in columns]
    return sql.unhex(sql.sha2(joined([*parts, count.cast("string")]).cast("binary"), 256))
