"""The exceptions of dphist, each of them one clear sentence that repeats the offending value.

DphistError
├── InvalidParameter (also a ValueError)   a number or a name that cannot be right
├── InputError                             events that cannot be read; no value of the data is in the sentence
├── OutputError                            a result that cannot be written, or that would overwrite another
├── NotVerified                            a release that its certificate does not fit or prove
├── NotPrivate                             the plan does not keep the promise it was asked to keep
├── NoPlan                                 no plan exists for what was asked
├── LedgerError                            a ledger that cannot be used: missing, damaged, locked, another's
│   └── OverBudget                         the release does not fit in what is left of the dataset's budget
└── MissingExtra (also an ImportError)     an optional dependency is not installed
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


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
