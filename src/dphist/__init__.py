"""dphist: how many users per item, under (epsilon, delta)-differential privacy.

    >>> import dphist
    >>> plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=10)
    >>> round(plan.threshold, 2)
    70.44

Modules load when one of their names is first used, so that `import dphist` is fast.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

# As in `typing`, which is not imported: a signal during imports would print a traceback of Python.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from dphist import accounting, ledger, opendp, signatures, sketch
    from dphist.accounting.profile import delta_at, epsilon_at, profile
    from dphist.certificate.verify import Verification, verify
    from dphist.errors import (
        AlreadyRunning,
        DphistError,
        InputError,
        InvalidParameter,
        LedgerError,
        MissingExtra,
        NoPlan,
        NotPrivate,
        NotVerified,
        OutputError,
        OverBudget,
    )
    from dphist.model import Budget, Contract, NeighbourCase, Noise, Plan, Proof
    from dphist.paper.certification import Certification, certify
    from dphist.planning.compare import Comparison, SumsComparison, compare, compare_sums
    from dphist.planning.explain import explain
    from dphist.planning.planner import plan
    from dphist.releasing.histogram import release_histogram
    from dphist.releasing.result import Release
    from dphist.releasing.run import release
    from dphist.releasing.series import Series, series
    from dphist.releasing.series_plan import SeriesPlan, plan_series
    from dphist.report.charts import chart
    from dphist.report.render import make_report
    from dphist.session import Session
    from dphist.simulation.check import Check, check
    from dphist.simulation.simulate import Simulation, simulate


__version__ = "1.0.0"


def _renew_locks() -> None:
    """A forked child must not wait for a lock that a thread of its parent held."""
    if "dphist.proof.balls" in sys.modules:
        sys.modules["dphist.proof.balls"].renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


# The module of each public name, for `__getattr__`; the imports above are for type checkers.
_HOMES = {
    "dphist.errors": (
        "AlreadyRunning", "DphistError", "InputError", "InvalidParameter", "LedgerError", "MissingExtra", "NoPlan",
        "NotPrivate", "NotVerified", "OutputError", "OverBudget",
    ),
    "dphist.accounting.profile": ("delta_at", "epsilon_at", "profile"),
    "dphist.paper.certification": ("Certification", "certify"),
    "dphist.planning.compare": ("Comparison", "SumsComparison", "compare", "compare_sums"),
    "dphist.planning.planner": ("plan",),
    "dphist.model": ("Budget", "Contract", "NeighbourCase", "Noise", "Plan", "Proof"),
    "dphist.releasing.histogram": ("release_histogram",),
    "dphist.releasing.result": ("Release",),
    "dphist.releasing.run": ("release",),
    "dphist.releasing.series": ("Series", "series"),
    "dphist.releasing.series_plan": ("SeriesPlan", "plan_series"),
    "dphist.certificate.verify": ("Verification", "verify"),
    "dphist.report.charts": ("chart",),
    "dphist.report.render": ("make_report",),
    "dphist.planning.explain": ("explain",),
    "dphist.session": ("Session",),
    "dphist.simulation.check": ("Check", "check"),
    "dphist.simulation.simulate": ("Simulation", "simulate"),
}  # fmt: skip
# Public submodules, such as dphist.sketch.
_SUBMODULES = ("accounting", "ledger", "opendp", "signatures", "sketch")
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AlreadyRunning", "Budget", "Certification", "Check", "Comparison", "Contract", "DphistError",
    "InputError", "InvalidParameter", "LedgerError", "MissingExtra", "NeighbourCase", "NoPlan", "Noise",
    "NotPrivate", "NotVerified", "OutputError", "OverBudget", "Plan", "Proof", "Release", "Series", "SeriesPlan",
    "Session", "Simulation", "SumsComparison", "Verification",
    "accounting", "certify", "chart", "check", "compare", "compare_sums", "delta_at", "epsilon_at", "explain",
    "ledger", "make_report", "opendp", "plan", "plan_series", "profile", "release",
    "release_histogram", "series", "signatures", "simulate", "sketch", "verify",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"dphist.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dphist' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
