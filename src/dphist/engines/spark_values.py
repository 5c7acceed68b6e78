"""Sums on Spark: rows in whole fine steps, and a user's sum of them in steps. See `types.Value` and `value_sql`.

A sum of fine steps is kept in two halves, each of which Spark adds up quickly. It is exact for up to 2^38 rows of
one user and item; beyond that it wraps around, which no order of rows changes and no other user.
"""

from __future__ import annotations

from typing import Any, Final

from dphist.engines.spark_types import FLOATS, text
from dphist.engines.value_sql import NUMBER, refused
from dphist.types.values import FINE_LIMIT, FINE_STEPS, Value

NUMBERS: Final = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", *FLOATS})
LOW_BITS: Final = 25
LOW: Final = (1 << LOW_BITS) - 1
# Upper halves beyond this are outside of all bounds, whatever the lower half is.
MOST: Final = FINE_LIMIT >> (LOW_BITS - 1)


def number(column: Any, kind: str, name: str) -> Any:
    """The number of a value as the nearest double; NULL if it is none. An error if the type has no numbers."""
    from pyspark.sql import functions as sql

    if kind in NUMBERS or kind.startswith("decimal("):
        return column.cast("double")
    if kind == "void":
        return sql.lit(None).cast("double")
    if not kind.startswith(("string", "char", "varchar")):
        raise refused(name)
    written = text(column.cast("string"))
    return sql.when(written.rlike(NUMBER), written.try_cast("double"))


def fine_steps(x: Any, value: Value) -> Any:
    """A row's number in fine steps."""
    from pyspark.sql import functions as sql

    scaled = x * sql.lit(value.scale) + sql.lit(0.5)
    bounded = sql.least(sql.greatest(scaled, sql.lit(float(-FINE_LIMIT))), sql.lit(float(FINE_LIMIT)))
    # What is no number is sorted out first: `least` and `greatest` pass over NULL. Within bounds no cast fails.
    return sql.when(x.isNull() | sql.isnan(x), sql.lit(0)).otherwise(sql.floor(bounded).cast("bigint"))


def own_sums(pairs: Any, keys: list[str], values: tuple[Value, ...]) -> Any:
    """Each pair of the keys once, with the user's own sums of fine steps f0, f1, ... in steps, as v0, v1, ..."""
    from pyspark.sql import functions as sql

    halves = []
    for k in range(len(values)):
        fine = pairs[f"f{k}"]
        halves.append(sql.sum(sql.shiftright(fine, LOW_BITS)).alias(f"upper{k}"))
        halves.append(sql.sum(fine.bitwiseAND(sql.lit(LOW))).alias(f"lower{k}"))
    found = pairs.groupBy(*keys).agg(*halves)
    own = [steps(found[f"upper{k}"], found[f"lower{k}"], value).alias(f"v{k}") for k, value in enumerate(values)]
    return found.select(*keys, *own)


def steps(upper: Any, lower: Any, value: Value) -> Any:
    """A user's sum of fine steps for an item, by its two halves, clamped and in steps from the lower bound."""
    from pyspark.sql import functions as sql

    carried = upper + sql.shiftright(lower, LOW_BITS)
    near = sql.least(sql.greatest(carried, sql.lit(-MOST)), sql.lit(MOST))
    fine = near * sql.lit(1 << LOW_BITS) + lower.bitwiseAND(sql.lit(LOW))
    lowest, highest = value.lowest, value.lowest + 2 * FINE_STEPS
    clamped = sql.least(sql.greatest(fine, sql.lit(lowest)), sql.lit(highest))
    half = sql.lit(1 << (value.fine_bits - 1))
    return sql.shiftright(clamped - sql.lit(lowest) + half, value.fine_bits)
