"""`plan`: from a budget and a contract to a certified plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dphist.analysis.certificate import certify_family
from dphist.calibrate.adding import add_the_deltas
from dphist.calibrate.analyses import CshTighter, Exact, GshmExact
from dphist.calibrate.gammas import Gamma, gamma_value, whole_gamma
from dphist.calibrate.lattice import on_lattice
from dphist.calibrate.optimum import Calibration, least_total_noise, tuned
from dphist.calibrate.other_plans import laplace_is_better, laplace_plan, notes_for, offset_rule, public_plan
from dphist.calibrate.sums import Bounds, SumShares, checked_bounds, shared_out, total
from dphist.calibrate.top_k import first_guess, top_k_noise
from dphist.errors import InvalidParameter, NoPlan
from dphist.numerics.search import round_up
from dphist.types import (
    ANALYSES,
    AnalysisName,
    Budget,
    Certificate,
    Contract,
    LatticeNoise,
    Noise,
    Objective,
    OffsetRule,
    Plan,
)

_MOST_CORRECTIONS: Final = 6
# Shared noise that gains less than this would only ask for a finer lattice.
_WORTH_SHARING: Final = 0.9995
CAP_ALONE: Final = (
    "The bound on the items of a user needs less noise than a top-k step, so there is no such step. Of the items "
    "that pass the threshold, a release has the largest alone."
)
_TOP_ALONE: Final = "The top-k step needs less noise than the bound on the items of a user, which is not applied."


def plan(
    *,
    epsilon: float,
    delta: float,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    top: int | None = None,
    public_items: int | None = None,
    offset: str | None = None,
    noise: str | None = None,
    analysis: str = "best",
    mechanism: str = "best",
    gamma: Gamma | None = None,
    minimize: str = "threshold",
    sums: Sequence[tuple[object, object]] = (),
    weights: Sequence[float] | None = None,
) -> Plan:
    """The plan with the lowest threshold, or the least total noise, that is provably (epsilon, delta)-private.

    `max_nonzero` bounds the non-zero counts of every possible dataset (the k of the paper) and allows shared
    noise; `max_items_per_user` bounds the counts one user can touch. `top` is for the top-k step, which needs no
    bound: the count after the `top` largest is subtracted from all, and released by the rule `offset`: `opposite`
    to the shared noise, which then cancels; `independent`, as in the paper; or `none`. `public_items` is the
    length of a public list of items, all of which are released. One of the four is needed. `mechanism` is
    `gaussian`, `laplace`, or the `best` of both.
    `noise` is discrete, which can be drawn exactly, unless one of the paper's analyses is asked for: those are for
    continuous noise, which cannot. `analysis` "best" and "exact" use this project's analysis with gamma tuned (or
    as given); the other names are the paper's. Whatever analysis chose the plan, its certificate is the exact one
    in ball arithmetic.
    `sums` are bounds (low, high) of values of which sums are to be released beside the counts. `weights` are their
    shares of the squared sensitivity, of which the counts have the rest; without them the best are taken.

    >>> import dphist
    >>> round(dphist.plan(epsilon=0.35, delta=1e-5, max_nonzero=51914).threshold, 2)
    6988.5
    """
    budget, objective = Budget(epsilon, delta), _objective(minimize)
    if noise not in (None, "continuous", "discrete"):
        raise InvalidParameter(f"noise must be 'continuous' or 'discrete', not {noise!r}")
    if mechanism not in ("best", "gaussian", "laplace"):
        raise InvalidParameter(f"mechanism must be best, gaussian or laplace, not {mechanism!r}")
    ours = analysis in ("best", "exact") and noise != "continuous" and gamma is None
    bounds = tuple(checked_bounds(low, high) for low, high in sums)
    if bounds and (not ours or mechanism == "laplace"):
        raise InvalidParameter(
            "sums need Gaussian noise that is discrete, by the exact analysis, with gamma tuned"
        )
    if top is not None or public_items is not None:
        if not ours or max_nonzero is not None or (top is not None and public_items is not None):
            raise InvalidParameter(
                "top and public_items exclude each other, max_nonzero, gamma, continuous noise and other analyses"
            )
        if mechanism == "laplace":
            raise InvalidParameter("mechanism 'laplace' is for max_items_per_user, not for top or public_items")
        if offset is not None and top is None:
            raise InvalidParameter(f"offset = {offset!r} is for top alone")
        if public_items is not None:
            listed = Contract(public_items, max_items_per_user)
            return public_plan(budget, listed, _family_shares(bounds, weights, budget, listed))
        found = top_plan(budget, Contract(top), offset_rule(offset), objective, bounds, weights)
        if max_items_per_user is None:
            return found
        return _quieter(found, max_items_per_user, mechanism, objective, bounds, weights)
    if offset is not None:
        raise InvalidParameter(f"offset = {offset!r} is for top alone")
    contract = Contract(max_nonzero, max_items_per_user)
    if mechanism == "laplace":
        if not ours:
            raise InvalidParameter("Laplace noise is discrete, and has no gamma and no other analysis")
        return laplace_plan(budget, contract)
    shares = _family_shares(bounds, weights, budget, contract)
    found = _gaussian_plan(budget, contract, noise, _analysis_name(analysis), gamma, objective, shares)
    if mechanism == "best" and ours and not bounds and laplace_is_better(found, objective):
        return laplace_plan(budget, contract)
    return found


def _family_shares(
    bounds: Sequence[Bounds], weights: Sequence[float] | None, budget: Budget, contract: Contract
) -> SumShares | None:
    """The shares of sums beside counts of the family."""
    return shared_out(
        bounds, weights, lambda extra: least_total_noise(Calibration(Exact(extra=extra), budget, contract))
    )


def _gaussian_plan(
    budget: Budget,
    contract: Contract,
    noise: str | None,
    name: AnalysisName,
    gamma: Gamma | None,
    objective: Objective,
    shares: SumShares | None = None,
) -> Plan:
    """A plan of the family, by one of its analyses."""
    if noise is None:
        noise = "discrete" if name == "exact" else "continuous"
    if noise == "discrete" and name != "exact":
        raise InvalidParameter(f"discrete noise has the exact analysis only, not {name!r}")
    notes: tuple[str, ...] = ()
    if noise == "discrete" and isinstance(gamma, (int, float)):
        gamma, notes = whole_gamma(gamma)
    ideal = _noise_for(name, budget, contract, _gamma(gamma, name, contract), objective, total(shares))
    chosen: Noise | LatticeNoise
    if noise == "discrete":
        chosen, certificate = _discrete(ideal, budget, contract, objective, shares, tuned_freely=gamma is None)
    else:
        chosen, certificate = certified(ideal, budget, contract)
    return Plan(budget, contract, chosen, name, certificate, (*notes_for(budget, contract, chosen), *notes))


def top_plan(
    budget: Budget,
    contract: Contract,
    rule: OffsetRule,
    objective: Objective,
    bounds: Sequence[Bounds],
    weights: Sequence[float] | None,
) -> Plan:
    """The top-k step by itself."""
    if rule == "none":
        if bounds:
            raise InvalidParameter("sums beside a top-k step need its offset: the counts would be differences")
        return _gaussian_plan(budget, contract, None, "exact", None, objective)
    shares = shared_out(bounds, weights, lambda extra: first_guess(budget, contract, rule, extra))
    noise, certificate = top_k_noise(budget, contract, rule, shares)
    return Plan(budget, contract, noise, "exact", certificate, notes_for(budget, contract, noise))


def _quieter(
    found: Plan,
    items: int,
    mechanism: str,
    objective: Objective,
    bounds: Sequence[Bounds],
    weights: Sequence[float] | None,
) -> Plan:
    """The top-k step; or the bound on the items of a user by itself, where that needs less noise.

    The joint analysis of both does not hold: one user who raises the count that is subtracted lowers all others,
    however few items that user has (docs/theory/top-k.md).
    """
    capped = plan(
        epsilon=found.budget.epsilon,
        delta=found.budget.delta,
        max_items_per_user=items,
        minimize=objective,
        mechanism=mechanism,
        sums=bounds,
        weights=weights,
    )
    if capped.total_noise <= found.total_noise:
        return replace(capped, notes=(*capped.notes, CAP_ALONE))
    return replace(found, notes=(*found.notes, _TOP_ALONE))


def _discrete(
    ideal: Noise,
    budget: Budget,
    contract: Contract,
    objective: Objective,
    shares: SumShares | None,
    *,
    tuned_freely: bool,
) -> tuple[LatticeNoise, Certificate]:
    """The plan on a lattice; where the shared noise was ours to choose, it must be worth its lattice."""
    found = on_lattice(ideal, budget, contract, sums=shares)
    if ideal.sigma_shared == 0.0 or not tuned_freely:
        return found
    alone = Calibration(Exact(extra=total(shares)), budget, contract).best(math.inf, objective)
    without = on_lattice(alone, budget, contract, sums=shares)

    def cost(plan: tuple[LatticeNoise, Certificate]) -> float:
        return plan[0].tau if objective == "threshold" else plan[0].total_noise

    return found if cost(found) < cost(without) * _WORTH_SHARING else without


def _analysis_name(analysis: str) -> AnalysisName:
    if analysis == "best":
        return "exact"
    for name in ANALYSES:
        if analysis == name:
            return name
    raise InvalidParameter(f"analysis must be one of best, {', '.join(ANALYSES)}, not {analysis!r}")


def _objective(minimize: str) -> Objective:
    if minimize == "threshold":
        return "threshold"
    if minimize == "noise":
        return "noise"
    raise InvalidParameter(f"minimize must be 'threshold' or 'noise', not {minimize!r}")


def _gamma(gamma: Gamma | None, name: AnalysisName, contract: Contract) -> float | None:
    """Gamma as a number: infinite without shared noise, None where it is to be tuned."""
    if name.startswith("gshm"):
        if gamma is not None:
            raise InvalidParameter(f"gamma = {gamma!r} makes no sense with {name}, which has no shared noise")
        return math.inf
    if gamma is None and name == "exact":
        return None
    if contract.max_nonzero is None:
        raise InvalidParameter(f"shared noise ({name}) needs max_nonzero: without that bound it only adds error")
    return gamma_value("sqrt" if gamma is None else gamma, contract)


def _noise_for(
    name: AnalysisName,
    budget: Budget,
    contract: Contract,
    gamma: float | None,
    objective: Objective,
    extra: float = 0.0,
) -> Noise:
    if name == "exact" and gamma is None:
        return tuned(Calibration(Exact(extra=extra), budget, contract), objective)
    assert gamma is not None
    if name.endswith("add-the-deltas"):
        return add_the_deltas(budget, contract, gamma, objective)
    case_analysis = {"exact": Exact(), "gshm-exact": GshmExact(), "csh-tighter": CshTighter()}[name]
    return Calibration(case_analysis, budget, contract).best(gamma, objective)  # type: ignore[arg-type]


def certified(noise: Noise, budget: Budget, contract: Contract) -> tuple[Noise, Certificate]:
    """The plan with its certificate; where the balls refuse what the doubles passed, a hair more noise."""
    for attempt in range(_MOST_CORRECTIONS):
        certificate = certify_family(noise, contract, epsilon=budget.epsilon, budget=budget.delta)
        if certificate.delta <= budget.delta:
            return noise, certificate
        more = 1.0 + (1e-9 if attempt == 0 else 1e-8 * 8.0**attempt)
        shared = round_up(noise.sigma_shared * more) if noise.sigma_shared > 0.0 else 0.0
        noise = Noise(round_up(noise.sigma * more), shared, round_up(noise.tau * more * more))
    raise NoPlan(f"no plan near {noise} could be certified for epsilon {budget.epsilon!r}, delta {budget.delta!r}")
