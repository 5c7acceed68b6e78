"""The exceptions of dphist, each of them one clear sentence that repeats the offending value.

DphistError
├── InvalidParameter (also a ValueError)   a number or a name that cannot be right
├── NotPrivate                             the plan does not keep the promise it was asked to keep
├── NoPlan                                 no plan exists for what was asked
└── MissingExtra (also an ImportError)     an optional dependency is not installed
"""

from __future__ import annotations


class DphistError(Exception):
    """Base of every error that dphist raises on purpose."""


class InvalidParameter(DphistError, ValueError):
    """A parameter is out of range, of the wrong kind, or contradicts another one."""


class NotPrivate(DphistError):
    """A plan that does not satisfy the (epsilon, delta) it was checked against."""


class NoPlan(DphistError):
    """What was asked for has no solution, such as the least noise of an analysis that never attains it."""


class MissingExtra(DphistError, ImportError):
    """An optional part of dphist needs a package that is not installed."""
