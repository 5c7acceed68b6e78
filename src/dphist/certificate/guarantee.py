"""The guarantee of a release, its conditions and its caveats: as codes, which `sentences.py` spells out."""

from __future__ import annotations

from dphist.certificate.plans import Nonzero, is_difference, is_perhaps_reduced, nonzero_rule, top_k_keeps
from dphist.certificate.request import AnyRequest, HistogramRequest, SketchRequest, is_query
from dphist.certificate.schema import Guarantee
from dphist.model import Plan


def guarantee_facts(plan: Plan, request: AnyRequest) -> Guarantee:
    """The guarantee of a release."""
    return Guarantee(
        epsilon=plan.budget.epsilon,
        delta=plan.budget.delta,
        unit="user",
        neighbours="add-or-remove",
        conditions=conditions_of(plan, request),
    )


def conditions_of(plan: Plan, request: AnyRequest) -> tuple[str, ...]:
    # A user in every count needs no limit where a top-k step, or a guarantee, bounds the counts themselves.
    elsewhere, limited = isinstance(request, HistogramRequest), plan.contract.user_limit is not None
    conditions = {
        "counts-per-user": elsewhere and limited,
        "one-per-count": elsewhere and not limited,
        "item-types": isinstance(request, HistogramRequest),
        "max-nonzero": _relies_on_promise(plan, request),
        "one-update-per-user": isinstance(request, SketchRequest),
        "frame-values": request.types == "text",
        "fixed-types": request.types == "fixed",
        "query": request.query is not None or is_query(request.input),
    }
    return tuple(condition for condition, holds in conditions.items() if holds)


def _relies_on_promise(plan: Plan, request: AnyRequest) -> bool:
    if isinstance(request, HistogramRequest):
        return request.guarantee_max_nonzero
    asked = request.max_nonzero is not None and not top_k_keeps(plan)
    return asked and nonzero_rule(plan, promised=True) is Nonzero.PROMISED


def caveats_of(plan: Plan, request: AnyRequest) -> tuple[str, ...]:
    public = plan.noise.public
    caveats = {
        "other-releases": True,
        "groups": True,
        # A top-k step alone needs no limit on users, and none is applied.
        "user-limit": request.max_items_per_user is not None
        and (request.top is None or plan.contract.user_limit is not None),
        "rounds": plan.noise.in_rounds,
        "totals": bool(request.total),
        "max-nonzero": _relies_on_promise(plan, request),
        "differences": is_difference(plan, request),
        "perhaps-reduced": is_perhaps_reduced(plan, request),
        "reduced": request.max_nonzero is not None and top_k_keeps(plan),
        "sketch-with-offset" if plan.releases_offset else "sketch": isinstance(request, SketchRequest),
        "selection": not public,
        "clamped-sums": bool(plan.sums),
        "selected-sums": any(noise.columns == 1 for noise in plan.sums) and not public,
        "shared-noise": plan.sigma_shared > 0.0,
    }
    return tuple(caveat for caveat, holds in caveats.items() if holds)
