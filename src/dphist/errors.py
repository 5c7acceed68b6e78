"""The exceptions of dphist, each one a clear sentence with the offending value, and checks of single numbers."""

from __future__ import annotations

import math
import re
from importlib import import_module
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Word = TypeVar("Word", bound=str)


# Messages name options as flags. Text in quotes is a value of the user, and a command is to be typed as it is.
_LITERAL: Final = (
    r"""(?<!\w)'(?:\\.|[^'\\])*'|(?<!\w)"(?:\\.|[^"\\])*"|"""
    r"\bdphist (?:audit|certify|keygen|ledger|plan|release|report|simulate|sketch|verify)\b[^;,:]*"
)
_FLAG: Final = (
    r"(?<![^\s(])--(?P<name>[a-z]+(?:-[a-z]+)*)"
    r"(?: (?P<value>auto|none|spread|laplace|spark|-|[A-Z]+(?:[=:][A-Z]+)*))?"
    r"(?=[\s,;:)]|\.?\s|\.?$)"
)


def replace_names(pattern: str, replacement: Callable[[re.Match[str]], str], message: str) -> str:
    """Replace names of options in a message, but nothing in its quotes and in commands that it shows.

    The pattern has a group `name`.
    """
    return re.sub(
        f"{_LITERAL}|{pattern}", lambda found: replacement(found) if found["name"] else found[0], message
    )


def with_keywords(message: str) -> str:
    """A message with keyword arguments instead of flags."""
    return replace_names(_FLAG, _keyword, message)


def _keyword(found: re.Match[str]) -> str:
    """--engine spark as engine='spark'."""
    name, value = found["name"].replace("-", "_"), found["value"]
    if value is not None:
        return f"{name}={value!r}"
    return "force=True" if name == "force" else name


class DphistError(Exception):
    """Base of every error that dphist raises on purpose.

    `str` names options as keyword arguments, and `with_flags` as the command does, which also shows an `example`.

    If a release fails after it was booked in a ledger, `booking` says which budget stays spent: ledger_file,
    ledger, dataset, entry, hash, epsilon, delta, state, written and summary. If only writing failed, `release` is
    the result: `error.release.write(NAME)` writes it elsewhere without a new booking. Other exceptions, such as
    KeyboardInterrupt, then have both attributes as well.
    """

    booking: Mapping[str, Any] | None = None
    release: Any = None
    example: str = ""

    def __str__(self) -> str:
        return with_keywords(self.with_flags)

    @property
    def with_flags(self) -> str:
        """The message as it was written, with flags such as --max-items-per-user."""
        return super().__str__()


class InvalidParameter(DphistError, ValueError):
    """A parameter is out of range, of the wrong kind, or contradicts another one."""


class InputError(DphistError):
    """The events cannot be read: a missing file or column, a damaged file, no memory. No value is repeated."""


class OutputError(DphistError):
    """The result cannot be written, or would replace something."""


class NotVerified(DphistError):
    """A release that does not match its certificate, or whose certificate proves nothing."""


class NotPrivate(DphistError):
    """The plan does not satisfy the (epsilon, delta) it was checked against."""


class NoPlan(DphistError):
    """No plan exists for the request, such as the least noise of an analysis that never attains it."""


class LedgerError(DphistError):
    """The ledger cannot be used: it is missing, damaged or locked, or has no such dataset."""


class OverBudget(LedgerError):
    """The release does not fit the remaining budget of the dataset; nothing was booked."""


class AlreadyRunning(LedgerError):
    """Another run of the same id is going on; nothing was booked and nothing was drawn."""


class MissingExtra(DphistError, ImportError):
    """An optional package is not installed."""


def postgres_driver() -> Any:
    """The driver for PostgreSQL."""
    try:
        return import_module("adbc_driver_postgresql.dbapi")
    except ImportError:
        raise MissingExtra("PostgreSQL needs a driver: pip install 'dphist[postgres]'") from None


def package(name: str) -> Any:
    """An optional package."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(f"this needs the package {name}: pip install {name}") from None


def is_spark_frame(value: object) -> bool:
    """Whether it is a Spark DataFrame, classic or Connect. Decided by class names, without importing Spark."""
    names = {(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__}
    return ("pyspark", "DataFrame") in names


SMALLEST_DELTA: Final = 1e-300
LARGEST_EPSILON: Final = 800.0
LARGEST_COUNT: Final = 10**12
SMALLEST_SIZE: Final = 1e-30
LARGEST_SIZE: Final = 1e30


def finite_number(name: str, value: object) -> float:
    """The value as a float."""
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
    """The value as a float above zero whose square and ratios stay in range."""
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


def one_of(name: str, value: object, words: tuple[Word, ...]) -> Word:
    """The value if it is one of the words."""
    for word in words:
        if value == word:
            return word
    raise InvalidParameter(f"{name} must be {' or '.join(map(repr, words))}, not {value!r}")
