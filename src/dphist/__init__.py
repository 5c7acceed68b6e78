"""dphist: how many users per item, under (epsilon, delta)-differential privacy.

    >>> import dphist
    >>> plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=10)
    >>> round(plan.threshold, 2)
    70.44

Names load when they are first used, so that `import dphist` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dphist import accounting, figures, ledger, opendp, signatures, sketch
    from dphist.calibrate.certification import Certification, certify, delta_at, epsilon_at, profile
    from dphist.calibrate.comparison import Comparison, Frontier, compare, frontier, tau_for_noise
    from dphist.calibrate.planning import plan
    from dphist.calibrate.sums_comparison import SumsComparison, compare_sums
    from dphist.errors import (
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
    from dphist.releases.events import release
    from dphist.releases.histogram import release_histogram
    from dphist.releases.result import Release
    from dphist.releases.verify import Verification, verify
    from dphist.report.explain import explain
    from dphist.report.figure import comparison_figure
    from dphist.report.making import make_report
    from dphist.simulation.result import Simulation
    from dphist.simulation.run import simulate
    from dphist.types import Budget, Certificate, Contract, NeighbourCase, Noise, Plan

_HOMES = {
    "dphist.calibrate.certification": ("Certification", "certify", "delta_at", "epsilon_at", "profile"),
    "dphist.calibrate.comparison": ("Comparison", "Frontier", "compare", "frontier", "tau_for_noise"),
    "dphist.calibrate.planning": ("plan",),
    "dphist.calibrate.sums_comparison": ("SumsComparison", "compare_sums"),
    "dphist.errors": (
        "DphistError",
        "InputError",
        "InvalidParameter",
        "LedgerError",
        "MissingExtra",
        "NoPlan",
        "NotPrivate",
        "NotVerified",
        "OutputError",
        "OverBudget",
    ),
    "dphist.releases.events": ("release",),
    "dphist.releases.histogram": ("release_histogram",),
    "dphist.releases.result": ("Release",),
    "dphist.releases.verify": ("Verification", "verify"),
    "dphist.report.explain": ("explain",),
    "dphist.report.figure": ("comparison_figure",),
    "dphist.report.making": ("make_report",),
    "dphist.simulation.result": ("Simulation",),
    "dphist.simulation.run": ("simulate",),
    "dphist.types": ("Budget", "Certificate", "Contract", "NeighbourCase", "Noise", "Plan"),
}
# Parts of the package that are used by their own name, such as dphist.sketch.MisraGries.
_SUBMODULES = ("accounting", "figures", "ledger", "opendp", "signatures", "sketch")
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Budget",
    "Certificate",
    "Certification",
    "Comparison",
    "Contract",
    "DphistError",
    "Frontier",
    "InputError",
    "InvalidParameter",
    "LedgerError",
    "MissingExtra",
    "NeighbourCase",
    "NoPlan",
    "Noise",
    "NotPrivate",
    "NotVerified",
    "OutputError",
    "OverBudget",
    "Plan",
    "Release",
    "Simulation",
    "SumsComparison",
    "Verification",
    "accounting",
    "certify",
    "compare",
    "compare_sums",
    "comparison_figure",
    "delta_at",
    "epsilon_at",
    "explain",
    "figures",
    "frontier",
    "ledger",
    "make_report",
    "opendp",
    "plan",
    "profile",
    "release",
    "release_histogram",
    "signatures",
    "simulate",
    "sketch",
    "tau_for_noise",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"dphist.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dphist' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
