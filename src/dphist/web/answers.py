"""From a kind of question and the fields of the page to an answer: what the worker process runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dphist.errors import DphistError, InvalidParameter
from dphist.privacy.types import Plan
from dphist.simulation.predict import totals_of
from dphist.simulation.trial import TrialData, trial, zipf_population
from dphist.web import facts
from dphist.web.fields import PlanRequest, WrongField, choice_of, number_of, plan_request, text_of, whole_of
from dphist.web.uploads import upload_from

_LARGEST_SEED: Final = 2**31


def simulated(request: PlanRequest, data: Mapping[str, object]) -> dict[str, Any]:
    """A trial release on a Zipf law or on uploaded counts."""
    if request.noise == "continuous":
        raise WrongField("noise", "continuous noise cannot be drawn: choose discrete noise to simulate a release")
    population, rounded = _population(request, data)
    seed = whole_of(data, "seed") if text_of(data, "seed") else 1
    if seed > _LARGEST_SEED:
        raise WrongField("seed", f"seed must be at most {_LARGEST_SEED}, not {seed}")
    plan = facts.planned(request)
    return {
        "simulation": True,
        "seed": seed,
        "rounded": rounded,
        **trial(plan, population, seed, request.top),
        "missing": _missing(plan, population, request.top),
    }


def _missing(plan: Plan, data: TrialData, largest: int | None) -> float:
    """The share of pairs that `simulate` calls missing: of items not released, or dropped by a cap; expected."""
    # Where a cap serves in place of a top-k step, the largest counts are taken for those that noise has largest.
    bound, population = plan.contract.max_nonzero or largest, data.population
    if bound is not None and not plan.releases_offset:
        population = population.first(bound)
    kept = totals_of(plan, population, cap=data.cap).kept
    return min(1.0, max(0.0, 1.0 - kept / data.population.pairs))


def _population(request: PlanRequest, data: Mapping[str, object]) -> tuple[TrialData, int]:
    """The population, and how many of its counts were rounded."""
    if data.get("csv"):
        upload = upload_from(data["csv"])
        return upload.data, upload.rounded
    users = whole_of(data, "users")
    if users > 10**9:
        raise WrongField("users", f"users must be at most a thousand million, not {users}")
    items, exponent, mean = whole_of(data, "items"), number_of(data, "exponent"), number_of(data, "mean_items")
    spread = choice_of(data, "spread", ("geometric", "same"))
    try:
        law = zipf_population(
            items=items, users=users, exponent=exponent, mean_items=mean,
            spread="same" if spread == "same" else "geometric", cap=request.max_items_per_user,
        )  # fmt: skip
    except InvalidParameter as error:
        raise WrongField(str(error).split(" ", 1)[0], str(error)) from None
    return law, 0


_KINDS: Final[dict[str, Callable[[PlanRequest], dict[str, Any]]]] = {
    "quick": facts.quick,
    "plan": facts.certified,
    "compare": facts.compared,
    "figure": facts.figure,
}
KINDS: Final = (*_KINDS, "simulate")


def answer(kind: str, data: object) -> dict[str, Any]:
    """The answer, or {"error": sentence, "field": name}."""
    try:
        request = plan_request(data)
        if kind == "simulate":
            assert isinstance(data, Mapping)
            return simulated(request, data)
        return _KINDS[kind](request)
    except WrongField as error:
        return {"error": str(error), "field": error.field}
    except DphistError as error:
        # Whether a gamma leaves enough shared noise for a lattice is known only when the noise is.
        about_gamma = isinstance(error, InvalidParameter) and str(error).startswith("gamma ")
        return {"error": str(error), "field": "gamma" if about_gamma else None}
