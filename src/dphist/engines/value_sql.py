"""The SQL of sums: rows in whole fine steps, and a user's sum of them in steps. See `types.Value` for the rule.

Sums of floats depend on the order of their rows, and so on those of others; sums of whole numbers do not. Nothing
here can fail because of a value: bounds come before casts.
"""

from __future__ import annotations

import re
from typing import Final

from dphist.engines.sql import FLOATS, WHOLE, one_spelling, text
from dphist.errors import InputError
from dphist.types.values import FINE_LIMIT, FINE_STEPS, Value

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


def refused(column: str) -> InputError:
    """The error of a column that holds no numbers by its type."""
    return InputError(f"the column {column!r} cannot be summed: it holds neither numbers nor text")


def no_number(column: str) -> InputError:
    """The error of true and false in a column that is read as text."""
    return InputError(f"the column {column!r} holds true and false: pass types='fixed' to sum them as 1 and 0")


def number(expression: str, kind: str, column: str) -> str:
    """The number of a value as the nearest double; NULL if it is none. An error if the type has no numbers."""
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
        raise refused(column)
    written = one_spelling(expression if kind == "VARCHAR" else f"CAST({expression} AS VARCHAR)", "VARCHAR")
    return f"CASE WHEN regexp_matches({written}, {text(NUMBER)}) THEN TRY_CAST({written} AS DOUBLE) END"


def fine_steps(x: str, value: Value) -> str:
    """A row's number in fine steps.

    What is no number is sorted out first: `least` and `greatest` would pass over NULL and return a bound.
    """
    scaled = f"{x} * '{value.scale!r}'::DOUBLE + '0.5'::DOUBLE"
    bounded = f"least(greatest({scaled}, '{-FINE_LIMIT}'::DOUBLE), '{FINE_LIMIT}'::DOUBLE)"
    return f"CASE WHEN {x} IS NULL OR isnan({x}) THEN 0 ELSE TRY_CAST(floor({bounded}) AS BIGINT) END"


def steps(fine: str, value: Value) -> str:
    """A user's sum of fine steps for an item, clamped and in steps from the lower bound."""
    lowest, highest = value.lowest, value.lowest + 2 * FINE_STEPS
    clamped = f"CAST(least(greatest({fine}, ({lowest})::HUGEINT), ({highest})::HUGEINT) AS BIGINT)"
    return f"({clamped} - ({lowest}) + {1 << (value.fine_bits - 1)}) >> {value.fine_bits}"
