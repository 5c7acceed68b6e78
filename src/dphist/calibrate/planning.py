"""`plan`: from a budget and a contract to a certified plan."""

from __future__ import annotations

import math
from typing import Final, Literal

from dphist.analysis.certificate import certify_family
from dphist.analysis.csh import delta_csh_add_the_deltas, tau_csh_add_the_deltas
from dphist.analysis.gaussian import largest_sensitivity_per_sigma
from dphist.analysis.gshm import delta_gshm_add_the_deltas, tau_gshm_add_the_deltas
from dphist.analysis.laplace import tau_laplace
from dphist.calibrate.analyses import CshTighter, Exact, GshmExact
from dphist.calibrate.lattice import on_lattice
from dphist.calibrate.optimum import Calibration, tuned
from dphist.errors import InvalidParameter, NoPlan, NotPrivate
from dphist.numerics.search import golden_minimum, round_up
from dphist.types import (
    ANALYSES,
    AnalysisName,
    Budget,
    Certificate,
    Contract,
    LatticeNoise,
    Noise,
    Objective,
    Plan,
    positive_number,
)

Gamma = float | Literal["sqrt"]
_MOST_CORRECTIONS: Final = 6
# Beyond, one of the two noises is nothing beside the other.
LEAST_GAMMA: Final = 0.01
LARGEST_GAMMA: Final = 1e15
# Shared noise that gains less than this would only ask for a finer lattice.
_WORTH_SHARING: Final = 0.9995


def plan(
    *,
    epsilon: float,
    delta: float,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    noise: str | None = None,
    analysis: str = "best",
    gamma: Gamma | None = None,
    minimize: str = "threshold",
) -> Plan:
    """The plan with the lowest threshold, or the least total noise, that is provably (epsilon, delta)-private.

    `max_nonzero` bounds the non-zero counts of every possible dataset (the k of the paper) and allows shared
    noise; `max_items_per_user` bounds the counts one user can touch. At least one of them is needed.
    `noise` is discrete, which can be drawn exactly, unless one of the paper's analyses is asked for: those are for
    continuous noise, which cannot. `analysis` "best" and "exact" use this project's analysis with gamma tuned (or
    as given); the other names are the paper's. Whatever analysis chose the plan, its certificate is the exact one
    in ball arithmetic.

    >>> import dphist
    >>> round(dphist.plan(epsilon=0.35, delta=1e-5, max_nonzero=51914).threshold, 2)
    6988.5
    """
    budget, contract = Budget(epsilon, delta), Contract(max_nonzero, max_items_per_user)
    if noise not in (None, "continuous", "discrete"):
        raise InvalidParameter(f"noise must be 'continuous' or 'discrete', not {noise!r}")
    name, objective = _analysis_name(analysis), _objective(minimize)
    if noise is None:
        noise = "discrete" if name == "exact" else "continuous"
    if noise == "discrete" and name != "exact":
        raise InvalidParameter(f"discrete noise has the exact analysis only, not {analysis!r}")
    ideal = _noise_for(name, budget, contract, _gamma(gamma, name, contract), objective)
    chosen: Noise | LatticeNoise
    if noise == "discrete":
        chosen, certificate = _discrete(ideal, budget, contract, objective, tuned_freely=gamma is None)
    else:
        chosen, certificate = certified(ideal, budget, contract)
    return Plan(budget, contract, chosen, name, certificate, _notes(budget, contract, chosen))


def _discrete(
    ideal: Noise, budget: Budget, contract: Contract, objective: Objective, *, tuned_freely: bool
) -> tuple[LatticeNoise, Certificate]:
    """The plan on a lattice; where the shared noise was ours to choose, it must be worth its lattice."""
    found = on_lattice(ideal, budget, contract)
    if ideal.sigma_shared == 0.0 or not tuned_freely:
        return found
    without = on_lattice(Calibration(Exact(), budget, contract).best(math.inf, objective), budget, contract)

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


def gamma_value(gamma: Gamma, contract: Contract) -> float:
    """Gamma as a number, with `sqrt` meaning the paper's sqrt(max_nonzero)."""
    if isinstance(gamma, str):
        if gamma != "sqrt":
            raise InvalidParameter(f"gamma must be 'sqrt' or a number, not {gamma!r}")
        if contract.max_nonzero is None:
            raise InvalidParameter("gamma = 'sqrt' is the root of max_nonzero, which is not given")
        return math.sqrt(contract.max_nonzero)
    number = positive_number("gamma", gamma)
    if not LEAST_GAMMA <= number <= LARGEST_GAMMA:
        raise InvalidParameter(f"gamma must be between {LEAST_GAMMA:g} and {LARGEST_GAMMA:g}, not {gamma!r}")
    return number


def _noise_for(
    name: AnalysisName, budget: Budget, contract: Contract, gamma: float | None, objective: Objective
) -> Noise:
    if name == "exact" and gamma is None:
        return tuned(Calibration(Exact(), budget, contract), objective)
    assert gamma is not None
    if name.endswith("add-the-deltas"):
        return add_the_deltas(budget, contract, gamma, objective)
    case_analysis = {"exact": Exact(), "gshm-exact": GshmExact(), "csh-tighter": CshTighter()}[name]
    return Calibration(case_analysis, budget, contract).best(gamma, objective)  # type: ignore[arg-type]


def add_the_deltas(budget: Budget, contract: Contract, gamma: float, objective: Objective) -> Noise:
    """The least threshold by adding the deltas: of the GSHM for infinite gamma, otherwise of the CSH."""
    least = least_sigma_add_the_deltas(budget, contract, gamma)
    if objective == "noise":
        raise NoPlan(
            "adding the deltas has no plan of least noise: "
            f"the threshold grows without bound as sigma nears {least:.10g}"
        )

    def tau_at(stretch: float) -> float:
        return tau_add_the_deltas(budget, contract, gamma, least * (1.0 + stretch))

    stretch, _ = golden_minimum(tau_at, 1e-6, 2.0, tolerance=1e-9)
    sigma = round_up(least * (1.0 + stretch))
    shared = 0.0 if math.isinf(gamma) else round_up(sigma / math.sqrt(gamma))
    tau = round_up(_tau_for_noise(budget, contract, sigma, shared))
    while _delta_add_the_deltas(budget, contract, Noise(sigma, shared, tau)) > budget.delta:
        tau = round_up(tau * (1.0 + 1e-12))
    return Noise(sigma, shared, tau)


def least_sigma_add_the_deltas(budget: Budget, contract: Contract, gamma: float) -> float:
    """The sigma at which the Gaussian part alone spends the whole delta."""
    largest = largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    if math.isinf(gamma):
        return math.sqrt(contract.items) / largest
    return math.sqrt(contract.nonzero + gamma) / 2.0 / largest


def tau_add_the_deltas(budget: Budget, contract: Contract, gamma: float, sigma: float) -> float:
    """The least tau at this sigma by adding the deltas; infinite where sigma is too small."""
    return _tau_for_noise(budget, contract, sigma, 0.0 if math.isinf(gamma) else sigma / math.sqrt(gamma))


def _tau_for_noise(budget: Budget, contract: Contract, sigma: float, sigma_shared: float) -> float:
    try:
        if sigma_shared == 0.0:
            return tau_gshm_add_the_deltas(
                m=contract.items, sigma=sigma, epsilon=budget.epsilon, delta=budget.delta
            )
        return tau_csh_add_the_deltas(
            k=int(contract.nonzero), sigma=sigma, sigma_shared=sigma_shared, epsilon=budget.epsilon,
            delta=budget.delta,
        )  # fmt: skip
    except NotPrivate:
        return math.inf


def _delta_add_the_deltas(budget: Budget, contract: Contract, noise: Noise) -> float:
    if noise.sigma_shared == 0.0:
        return delta_gshm_add_the_deltas(
            m=contract.items, sigma=noise.sigma, tau=noise.tau, epsilon=budget.epsilon
        )
    return delta_csh_add_the_deltas(
        k=int(contract.nonzero), sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=noise.tau,
        epsilon=budget.epsilon,
    )  # fmt: skip


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


def _notes(budget: Budget, contract: Contract, noise: Noise | LatticeNoise) -> tuple[str, ...]:
    """What a person should know beside the numbers."""
    notes = []
    scale = contract.items / budget.epsilon
    tau = tau_laplace(m=contract.items, scale=scale, delta=budget.delta)
    deviation = math.sqrt(2.0) * scale
    if tau < noise.tau:
        noise_is = "less" if deviation < noise.total_noise else "more"
        notes.append(
            f"Laplace noise of scale {scale:.6g} would have the lower threshold {1.0 + tau:.6g}, with {noise_is} "
            f"noise (standard deviation {deviation:.6g} against {noise.total_noise:.6g})."
        )
    if noise.sigma_shared > 0.0:
        notes.append(
            "All counts share one draw of noise: good for counts, ranks and differences, bad for their sum."
        )
    return tuple(notes)
