"""The exceptions of dphist, each one clear sentence; optional packages; and checks of single numbers."""

from __future__ import annotations

import math
from importlib import import_module
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


# The exceptions of dphist, each of them one clear sentence that repeats the offending value.
#
# DphistError
# ├── InvalidParameter (also a ValueError)   a number or a name that cannot be right
# ├── InputError                             events that cannot be read; no value of the data is in the sentence
# ├── OutputError                            a result that cannot be written, or that would overwrite another
# ├── NotVerified                            a release that its certificate does not fit or prove
# ├── NotPrivate                             the plan does not keep the promise it was asked to keep
# ├── NoPlan                                 no plan exists for what was asked
# ├── LedgerError                            a ledger that cannot be used: missing, damaged, locked, another's
# │   └── OverBudget                         the release does not fit in what is left of the dataset's budget
# └── MissingExtra (also an ImportError)     an optional dependency is not installed


class DphistError(Exception):
    """Base of every error that dphist raises on purpose.

    If a release fails after it was booked in a ledger, `booking` says which budget stays spent: ledger_file,
    ledger, dataset, entry, hash, epsilon, delta, state, written and summary. `release` is the result, if only
    writing it failed: `error.release.write(NAME)` writes it elsewhere without a new booking. Exceptions of other
    kinds, such as KeyboardInterrupt, have both attributes then too.
    """

    booking: Mapping[str, Any] | None = None
    release: Any = None


class InvalidParameter(DphistError, ValueError):
    """A parameter is out of range, of the wrong kind, or contradicts another one."""


class InputError(DphistError):
    """The events cannot be read: no such file, no such column, a damaged file, no memory left."""


class OutputError(DphistError):
    """The result cannot be written, or something is in its place already."""


class NotVerified(DphistError):
    """A release that `dphist verify` finds fault with, where something was to be made of it."""


class NotPrivate(DphistError):
    """A plan that does not satisfy the (epsilon, delta) it was checked against."""


class NoPlan(DphistError):
    """What was asked for has no solution, such as the least noise of an analysis that never attains it."""


class LedgerError(DphistError):
    """The ledger cannot be used: it is missing, damaged or locked, or does not know the dataset."""


class OverBudget(LedgerError):
    """A release that does not fit in the dataset's total budget; nothing was booked."""


class MissingExtra(DphistError, ImportError):
    """An optional part of dphist needs a package that is not installed."""


# Packages that only some inputs and outputs need.


def postgres_driver() -> Any:
    """The driver of PostgreSQL, for reading and for writing."""
    try:
        return import_module("adbc_driver_postgresql.dbapi")
    except ImportError:
        raise MissingExtra("PostgreSQL needs a driver: pip install 'dphist[postgres]'") from None


def package(name: str) -> Any:
    """A package that only some inputs need, loaded when one of them comes."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(f"this needs the package {name}: pip install {name}") from None


def is_spark_frame(value: object) -> bool:
    """Whether it is a DataFrame of Spark, in whatever way it talks to its cluster.

    By the names of its classes: whoever has no such frame need not load Spark to learn it.
    """
    names = {(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__}
    return ("pyspark", "DataFrame") in names


SMALLEST_DELTA: Final = 1e-300
LARGEST_EPSILON: Final = 800.0
LARGEST_COUNT: Final = 10**12
SMALLEST_SIZE: Final = 1e-30
LARGEST_SIZE: Final = 1e30


def finite_number(name: str, value: object) -> float:
    """The value as a float, or one sentence saying why not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidParameter(f"{name} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidParameter(f"{name} is too large for a number: {len(str(value))} digits") from None
    if not math.isfinite(number):
        raise InvalidParameter(f"{name} must be a finite number, not {value!r}")
    return number


def positive_number(name: str, value: object) -> float:
    """The value as a float above zero."""
    number = finite_number(name, value)
    if number <= 0.0:
        raise InvalidParameter(f"{name} must be greater than zero, not {value!r}")
    return number


def sized_number(name: str, value: object) -> float:
    """The value as a float above zero, of a size whose square and ratios stay in range."""
    number = positive_number(name, value)
    if not SMALLEST_SIZE <= number <= LARGEST_SIZE:
        raise InvalidParameter(f"{name} must be between {SMALLEST_SIZE:g} and {LARGEST_SIZE:g}, not {value!r}")
    return number


def positive_count(name: str, value: object) -> int:
    """The value as an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidParameter(f"{name} must be a whole number, not {value!r}")
    count = int(value)
    if not 1 <= count <= LARGEST_COUNT:
        raise InvalidParameter(f"{name} must be between 1 and {LARGEST_COUNT}, not {count}")
    return count
