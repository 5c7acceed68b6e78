"""`plan`: from a budget and a contract to a certified plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from operator import attrgetter
from typing import Final, Literal, get_args

import numpy as np
from scipy import special

from dphist.errors import InvalidParameter, NoPlan, NotPrivate, one_of
from dphist.model import (
    ANALYSES,
    LARGEST_SCALE,
    LEAST_SCALE,
    OFFSET_RULES,
    AnalysisName,
    AnyNoise,
    Budget,
    Contract,
    LaplaceNoise,
    LatticeNoise,
    Noise,
    Objective,
    OffsetRule,
    Plan,
    Proof,
    PublicNoise,
)
from dphist.paper.analyses import ANALYSES_BY_NAME, Exact, Gamma, gamma_value
from dphist.paper.bounds import largest_sensitivity_per_sigma, tau_laplace
from dphist.planning.optimum import (
    LEAST_SHARED,
    NO_SUMS,
    Bounds,
    Calibration,
    SumShares,
    check_bounds,
    lattice_and_variances,
    least_total_noise,
    on_lattice,
    share_budget,
    tune_gamma,
)
from dphist.planning.rounds import plan_rounds
from dphist.proof.continuous import certify_family, certify_noise
from dphist.proof.searches import round_up
from dphist.proof.sensitivity import squared_sensitivity_top_k
from dphist.proof.verdict import verdict_of

_MOST_CORRECTIONS: Final = 6
# Shared noise that gains less than this is not worth a finer lattice.
_WORTH_SHARING: Final = 0.9995
# A limit on users drops items: one that lowers the noise of a top-k step by less is not applied.
_WORTH_A_LIMIT: Final = 0.95
LIMIT_ALONE: Final = (
    "The limit on items per user has less noise or a lower threshold than a top-k step, so no count is "
    "subtracted. Of the items that pass the threshold, only the largest are released."
)
_TOP_ALONE: Final = "The top-k step needs less noise than the limit on items per user, which is not applied."
_BOTH: Final = "The limit on items per user lowers the noise of the top-k step: both are applied."


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
    sums: Sequence[tuple[object, ...]] = (),
    weights: Sequence[float] | None = None,
    goal: str | None = None,
) -> Plan:
    """The plan with the lowest threshold, or the least total noise, that is certified (epsilon, delta)-private.

    Without a bound it is the plan of a release in rounds. Otherwise give `max_items_per_user`, `max_nonzero`,
    both, `top` or `public_items`. The certificate always comes from the exact analysis, in ball arithmetic.

    >>> import dphist
    >>> plan = dphist.plan(epsilon=0.35, delta=1e-5, max_nonzero=51914)
    >>> print(f"{plan.mechanism}, threshold {plan.threshold:.2f}, proved delta {plan.proof.delta:.3g}")
    csh, threshold 6988.50, proved delta 1e-05

    Args:
        epsilon: Privacy loss ε, above 0.
        delta: Probability that the ε guarantee may fail.
        max_nonzero: Every possible dataset has at most this many non-zero counts (the k of the paper), which
            allows noise that all counts share.
        max_items_per_user: Each user contributes to at most this many counts.
        top: Release only this many of the largest counts. No bound is needed, because the count after them is
            subtracted from all.
        public_items: Length of a public list of items, all of which are released.
        offset: With `top`: how the subtracted count is released. "opposite" (the default): with the opposite of
            the shared noise, which then cancels; "independent": with noise of its own, as in the paper; or "none".
        noise: "discrete" (the default) can be drawn exactly. "continuous", of the paper's analyses, cannot.
        analysis: "best" and "exact" are dphist's analysis, "gshm-exact", "gshm-add-the-deltas", "csh-tighter" and
            "csh-add-the-deltas" the paper's.
        mechanism: "gaussian", "laplace", or the "best" of both.
        gamma: Variance of each count's own noise divided by that of the shared noise, or "sqrt" for the square
            root of `max_nonzero`. It is tuned unless given.
        minimize: "threshold", or "noise" for the least noise of each count.
        sums: Bounds (low, high) of values to sum as well, or (-norm, norm, columns) of vectors of that Euclidean
            norm.
        weights: Share of the squared sensitivity for each of the `sums`; the counts get the rest. By default the
            total variance is least.
        goal: Without a bound: "accuracy" (the default) spends the budget on counts, "keys" on finding items.

    Raises:
        InvalidParameter: Options contradict each other.
        NoPlan: No noise of this kind is private for this budget.
    """
    budget, objective = Budget(epsilon, delta), one_of("minimize", minimize, get_args(Objective))
    if noise is not None:
        one_of("noise", noise, ("continuous", "discrete"))
    one_of("mechanism", mechanism, ("best", "gaussian", "laplace"))
    tuned = analysis in ("best", "exact") and noise != "continuous" and gamma is None
    bounds = tuple(check_bounds(*one) for one in sums)
    if max_nonzero is max_items_per_user is top is public_items is None:
        if not tuned or mechanism == "laplace" or minimize != "threshold" or offset is not None:
            raise InvalidParameter(
                "without a limit, items are found in rounds: give <--max-items-per-user>, <--max-nonzero> or "
                "top for another mechanism, analysis or noise"
            )
        alone = mechanism == "gaussian"
        return plan_rounds(budget, goal=goal or "accuracy", gaussian=alone, sums=bounds, weights=weights)
    if goal is not None:
        raise InvalidParameter("goal is for plans without a limit")
    if bounds and (not tuned or mechanism == "laplace"):
        raise InvalidParameter("sums need discrete Gaussian noise, by the exact analysis, with gamma tuned")
    if offset is not None and top is None:
        raise InvalidParameter(f"offset = {offset!r} needs top")
    if top is not None or public_items is not None:
        if not tuned or max_nonzero is not None or (top is not None and public_items is not None):
            bound = "<--top>" if top is not None else "<--public-items>"
            others = {
                "<--public-items>": top is not None and public_items is not None,
                "<--max-nonzero>": max_nonzero is not None,
                "<--gamma>, which is tuned": gamma is not None,
                "continuous noise": noise == "continuous",
                f"the analysis {analysis!r}": analysis not in ("best", "exact"),
            }
            given = next(name for name, used in others.items() if used)
            raise InvalidParameter(f"{bound} cannot be used with {given}")
        if mechanism == "laplace":
            raise InvalidParameter(
                "mechanism 'laplace' is for <--max-items-per-user>, not for top or <--public-items>"
            )
        if public_items is not None:
            listed = Contract(public_items, max_items_per_user)
            return public_plan(budget, listed, family_shares(bounds, weights, budget, listed))
        assert top is not None
        topped = top_plan(budget, Contract(top), offset, objective, bounds, weights)
        if max_items_per_user is None:
            return topped
        limited = plan(
            epsilon=epsilon, delta=delta, max_items_per_user=max_items_per_user, minimize=objective,
            mechanism=mechanism, sums=bounds, weights=weights,
        )  # fmt: skip
        both = topped
        if max_items_per_user < top and offset in (None, "opposite"):
            both = top_plan(budget, Contract(top, max_items_per_user), offset, objective, bounds, weights)
        return _best_for_both(topped, limited, both)
    contract = Contract(max_nonzero, max_items_per_user)
    if mechanism == "laplace":
        if not tuned:
            raise InvalidParameter("Laplace noise is discrete and allows no gamma and no other analysis")
        return laplace_plan(budget, contract)
    shares = family_shares(bounds, weights, budget, contract)
    words: tuple[AnalysisName | Literal["best"], ...] = ("best", *ANALYSES)
    given = one_of("analysis", analysis, words)
    name = "exact" if given == "best" else given
    gaussian = _gaussian_plan(budget, contract, noise, name, gamma, objective, shares)
    if mechanism == "best" and tuned and not bounds and laplace_is_better(gaussian, objective):
        return laplace_plan(budget, contract)
    return gaussian


def _best_for_both(topped: Plan, limited: Plan, both: Plan) -> Plan:
    """The best of a top-k step, a limit on users and both together.

    A top-k step has to need less noise than the limit alone. As its threshold is above the count of rank k + 1, it
    can only release more if that is lower too.
    """
    tried = [(both, _BOTH)]
    if not both.total_noise < topped.total_noise * _WORTH_A_LIMIT:
        tried.insert(0, (topped, _TOP_ALONE))
    for made, note in tried:
        if made.total_noise < limited.total_noise and made.threshold < limited.threshold:
            return replace(made, notes=(*made.notes, note))
    return replace(limited, notes=(*limited.notes, LIMIT_ALONE))


def family_shares(
    bounds: Sequence[Bounds], weights: Sequence[float] | None, budget: Budget, contract: Contract
) -> SumShares:
    """How sums and counts share the budget, in every plan except that of a top-k step."""
    return share_budget(
        bounds, weights, lambda extra: least_total_noise(Calibration(Exact(extra=extra), budget, contract))
    )


def _gaussian_plan(
    budget: Budget,
    contract: Contract,
    noise: str | None,
    name: AnalysisName,
    gamma: Gamma | None,
    objective: Objective,
    shares: SumShares = NO_SUMS,
) -> Plan:
    if noise is None:
        noise = "discrete" if name == "exact" else "continuous"
    if noise == "discrete" and name != "exact":
        raise InvalidParameter(f"discrete noise needs the exact analysis, not {name!r}")
    notes: tuple[str, ...] = ()
    if noise == "discrete" and isinstance(gamma, (int, float)):
        number = gamma_value(gamma, contract)
        if number < 1.0:
            raise InvalidParameter(
                f"with discrete noise, gamma must be a whole number of at least 1, not {gamma!r}; "
                "noise='continuous' allows any gamma"
            )
        gamma = float(round(number))
        if gamma != number:
            notes = (f"Gamma is {gamma:g} instead of {number:g}: discrete noise needs a whole number.",)
    ideal = _noise_for(name, budget, contract, _gamma(gamma, name, contract), objective, shares.extra)
    chosen: Noise | LatticeNoise
    if noise == "discrete":
        chosen, certificate = on_lattice(ideal, budget, contract, sums=shares)
        if ideal.sigma_shared > 0.0 and gamma is None:
            # Shared noise was not requested, so it is used only if it is worth the finer lattice it needs.
            alone = Calibration(Exact(extra=shares.extra), budget, contract).best(math.inf, objective)
            without = on_lattice(alone, budget, contract, sums=shares)
            cost = attrgetter("tau" if objective == "threshold" else "total_noise")
            if not cost(chosen) < cost(without[0]) * _WORTH_SHARING:
                chosen, certificate = without
    else:
        chosen, certificate = certify_continuous(ideal, budget, contract)
    return Plan(budget, contract, chosen, name, certificate, (*notes_for(budget, contract, chosen), *notes))


def _gamma(gamma: Gamma | None, name: AnalysisName, contract: Contract) -> float | None:
    """Gamma as a number: infinite without shared noise, None if it is to be tuned."""
    if name.startswith("gshm"):
        if gamma is not None:
            raise InvalidParameter(f"gamma cannot be used with {name}, which has no shared noise")
        return math.inf
    if gamma is None and name == "exact":
        return None
    if contract.max_nonzero is None:
        raise InvalidParameter(f"shared noise ({name}) needs <--max-nonzero>: without that bound it does not help")
    return gamma_value("sqrt" if gamma is None else gamma, contract)


@lru_cache(maxsize=128)
def _noise_for(
    name: AnalysisName,
    budget: Budget,
    contract: Contract,
    gamma: float | None,
    objective: Objective,
    extra: float = 0.0,
) -> Noise:
    if name == "exact" and gamma is None:
        return tune_gamma(Calibration(Exact(extra=extra), budget, contract), objective)
    assert gamma is not None
    return Calibration(ANALYSES_BY_NAME[name], budget, contract).best(gamma, objective)


def certify_continuous(noise: Noise, budget: Budget, contract: Contract) -> tuple[Noise, Proof]:
    """The noise with its certificate; slightly more noise if ball arithmetic rejects what doubles accepted."""
    for attempt in range(_MOST_CORRECTIONS):
        certificate = certify_family(noise, contract, epsilon=budget.epsilon, budget=budget.delta)
        if certificate.delta <= budget.delta:
            return noise, certificate
        more = 1.0 + (1e-9 if attempt == 0 else 1e-8 * 8.0**attempt)
        shared = round_up(noise.sigma_shared * more) if noise.sigma_shared > 0.0 else 0.0
        noise = Noise(round_up(noise.sigma * more), shared, round_up(noise.tau * more * more))
    raise NoPlan(f"no plan near {noise} could be certified for epsilon {budget.epsilon!r}, delta {budget.delta!r}")


def top_plan(
    budget: Budget,
    contract: Contract,
    offset: str | None,
    objective: Objective,
    bounds: Sequence[Bounds],
    weights: Sequence[float] | None,
) -> Plan:
    """The plan of a top-k step; the offset is `opposite` unless another rule is given."""
    rule = one_of("offset", "opposite" if offset is None else offset, OFFSET_RULES)
    if rule == "none":
        if bounds:
            raise InvalidParameter("sums with top need its offset: without it, counts are only differences")
        return _gaussian_plan(budget, contract, None, "exact", None, objective)
    shares = share_budget(bounds, weights, lambda extra: top_k_guess(budget, contract, rule, extra))
    guess = top_k_guess(budget, contract, rule, shares.extra)
    # Only to choose the lattice and to start the search for the limit.
    tau = guess.total_noise * -float(special.ndtri(budget.delta / (1.0 + contract.nonzero)))
    noise, certificate = on_lattice(replace(guess, tau=max(tau, guess.sigma)), budget, contract, rule, shares)
    return Plan(budget, contract, noise, "exact", certificate, notes_for(budget, contract, noise))


def top_k_guess(budget: Budget, contract: Contract, rule: OffsetRule, extra: float) -> Noise:
    """The continuous noise of a top-k step; its tau is meaningless.

    Gamma is a whole number, and shared noise and offset have the same variance. The paper uses sqrt k. With the
    opposite offset, a count has the variance x (1 - x/n)(1 + 1/gamma) of a unit, n = k + 2 gamma, where x is n/2,
    or gamma + m - 1 if that is less. Without a limit of m items this is least at sqrt(k/2), and so is tau,
    since W has the same variance as the offset's noise.
    """
    k, most, limit = int(contract.nonzero), contract.items, contract.user_limit
    if rule == "independent":
        gamma = max(1, round(math.sqrt(k)))
    else:
        tried = np.arange(1.0, math.ceil(math.sqrt(k * (1.0 + 4.0 * extra) / 2.0)) + 1.0)
        whole = k + 2.0 * tried
        moved = whole / 2.0 if limit is None else np.minimum(whole / 2.0, tried + (most - 1.0))
        cost = (moved * (1.0 - moved / whole) + extra * most) * (1.0 + 1.0 / tried)
        gamma = int(tried[np.argmin(cost)])
    squared = squared_sensitivity_top_k(shared=k, gamma=gamma, rule=rule, limit=limit) + extra * most
    sigma = math.sqrt(squared) / largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    return Noise(sigma, sigma / math.sqrt(gamma), sigma, extra)


def public_plan(budget: Budget, contract: Contract, sums: SumShares) -> Plan:
    """The plan with the least noise for a public list of `max_nonzero` items.

    Shared noise helps if a user may have a large part of the list.
    """
    calibration = Calibration(Exact(extra=sums.extra), budget, contract)
    alone = calibration.best(math.inf, "noise")
    quietest = tune_gamma(calibration, "noise")
    if 0.0 < quietest.sigma_shared < LEAST_SHARED:
        quietest = alone  # too little shared noise for a lattice
    lattice = lattice_and_variances(quietest, budget, contract, sums=sums)
    noise = PublicNoise(lattice.lattice, lattice.variance, lattice.variance_shared, sums=lattice.sums)
    certificate = certify_noise(noise, contract, epsilon=budget.epsilon)
    if certificate.delta > budget.delta:
        raise NoPlan(f"no plan near sigma {quietest.sigma!r} could be certified for {budget}")
    return Plan(budget, contract, noise, "exact", certificate, notes_for(budget, contract, noise))


def laplace_plan(budget: Budget, contract: Contract) -> Plan:
    """Laplace noise of exactly the scale m/epsilon, with the least whole threshold."""
    scale = Fraction(contract.items) / Fraction(budget.epsilon)
    limit = int(tau_laplace(m=contract.items, scale=float(scale), delta=budget.delta, discrete=True))
    for candidate in (limit, limit + 1):
        noise = LaplaceNoise(scale, candidate)
        certificate = certify_noise(noise, contract, epsilon=budget.epsilon)
        if certificate.delta <= budget.delta:
            return Plan(budget, contract, noise, "exact", certificate, notes_for(budget, contract, noise))
    raise NotPrivate(f"no limit near {limit} is certified for {budget}")


def laplace_is_better(plan: Plan, objective: Objective) -> bool:
    """Whether Laplace noise has a lower threshold, or a smaller standard deviation, at the same budget."""
    budget, items = plan.budget, plan.contract.items
    if not LEAST_SCALE <= Fraction(items) / Fraction(budget.epsilon) <= LARGEST_SCALE:
        return False  # too narrow or too wide for an exact sampler
    scale = items / budget.epsilon
    if objective == "threshold":
        return tau_laplace(m=items, scale=scale, delta=budget.delta, discrete=True) < plan.tau
    return LaplaceNoise(Fraction(scale), 0).sigma < plan.total_noise


def notes_for(budget: Budget, contract: Contract, noise: AnyNoise) -> tuple[str, ...]:
    notes = list(verdict_of(budget).warnings)
    scale = contract.items / budget.epsilon
    deviation = math.sqrt(2.0) * scale
    unknown_items = noise.mechanism in ("gshm", "csh")
    tau = tau_laplace(m=contract.items, scale=scale, delta=budget.delta)
    if unknown_items and not noise.sums and tau < noise.tau:
        noise_is = "less" if deviation < noise.total_noise else "more"
        notes.append(
            f"Laplace noise of scale {scale:.6g} would have the lower threshold {1.0 + tau:.6g}, with {noise_is} "
            f"noise (standard deviation {deviation:.6g} against {noise.total_noise:.6g})."
        )
    if noise.sigma_shared > 0.0:
        notes.append(
            "All counts share one draw of noise: better for counts, ranks and differences, worse for their sum."
        )
    if noise.mechanism == "top-k":
        notes.append(
            "The count after the largest ones is subtracted before the threshold and released with noise, so that "
            "the counts are not biased; a count must exceed it by the threshold."
        )
    return tuple(notes)
