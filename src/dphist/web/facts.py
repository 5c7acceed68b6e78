"""What the page shows: calls of the library, remembered. Plain data comes out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dphist.planning.compare import Comparison, ComparisonRow, Frontier, compare
from dphist.planning.planner import plan as make_plan
from dphist.planning.quick import (
    QuickPlan,
    passing_count,
    quick_comparison,
    quick_frontiers,
    quick_plan,
    release_curve,
)
from dphist.privacy.types import AnyNoise, Plan
from dphist.report.explain import explain
from dphist.report.figure import curve_label, describe, frontiers
from dphist.web.fields import PlanRequest
from dphist.web.recipes import recipes


def quick(request: PlanRequest) -> dict[str, Any]:
    """Everything at once, as estimates in doubles."""
    keywords = request.keywords()
    noise = keywords.pop("noise", None) or "discrete"
    if noise == "continuous":
        # As in `plan`, where Laplace noise is discrete only.
        keywords["mechanism"] = "gaussian"
    found = quick_plan(**keywords, noise=noise)
    comparison = quick_comparison(**_compared(request))
    return {
        "certified": False,
        "plan": found.to_dict(),
        "curve": _curve(found),
        "comparison": _table(comparison, found, request),
        "figure": _figure(comparison, quick_frontiers(comparison)),
        **recipes(request),
    }


@lru_cache(maxsize=128)
def planned(request: PlanRequest) -> Plan:
    """The plan itself, certified."""
    return make_plan(**request.keywords())


def certified(request: PlanRequest) -> dict[str, Any]:
    """The certified plan with its sentences and its curve."""
    found = planned(request)
    return {
        "certified": True,
        "plan": found.to_dict(),
        "rows": found.rows(),
        "advice": explain(found, alternatives=False) if found.noise.kind == "discrete" else [],
        "curve": _curve(found.noise),
        **recipes(request),
    }


def compared(request: PlanRequest) -> dict[str, Any]:
    """All mechanisms side by side, by the library's full analyses."""
    return {"full": True, **_table(_comparison(request), planned(request), request)}


def figure(request: PlanRequest) -> dict[str, Any]:
    """The paper's figure by the library's full analyses."""
    comparison = _comparison(request)
    return {"full": True, **_figure(comparison, frontiers(comparison))}


def _curve(noise: AnyNoise | QuickPlan) -> dict[str, Any]:
    even, likely = passing_count(noise, 0.5), passing_count(noise, 0.99)
    return {"points": release_curve(noise), "even": even, "likely": likely}


def _compared(request: PlanRequest) -> dict[str, Any]:
    """The bounds under which mechanisms are compared: those of a top-k step would have `top` non-zero counts."""
    items = request.max_items_per_user
    nonzero = request.max_nonzero if request.top is None or items is not None else request.top
    return {
        "epsilon": request.epsilon, "delta": request.delta, "max_nonzero": nonzero, "max_items_per_user": items,
    }  # fmt: skip


@lru_cache(maxsize=128)
def _comparison(request: PlanRequest) -> Comparison:
    return compare(**_compared(request))


def _table(comparison: Comparison, found: Plan | QuickPlan, request: PlanRequest) -> dict[str, Any]:
    """The rows of the comparison, and before them the plan's own where none of them is like it."""
    rows = list(comparison.rows)
    if found.mechanism == "top-k":
        gshm = next(row.tau for row in rows if row.analysis == "gshm-exact")
        gamma = (found.sigma / found.sigma_shared) ** 2
        step = ComparisonRow(
            "top-k", "exact, with the offset", gamma, found.total_noise, found.tau, found.tau / gshm
        )
        rows.insert(0, step)
    return {
        "title": comparison.title,
        "rows": [row.to_dict() for row in rows],
        "as_if": None if request.top is None or request.max_items_per_user is not None else request.top,
    }


def _figure(comparison: Comparison, curves: list[Frontier]) -> dict[str, Any]:
    minima = {row.analysis.split(",")[0]: row for row in reversed(comparison.rows)}
    return {
        "title": comparison.title,
        "alt": describe([comparison]),
        "series": [
            {
                "name": curve.analysis,
                "label": curve_label(curve.analysis),
                "points": curve.points,
                "least_noise": curve.least_noise,
                "minimum": (minima[curve.analysis].total_noise, minima[curve.analysis].tau),
            }
            for curve in curves
        ],
    }
