"""Analyses side by side: compare plans, trace frontiers, certify given noise, compute privacy profiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple

from dphist.display import Grid, Listing
from dphist.errors import (
    LARGEST_EPSILON,
    InvalidParameter,
    NotPrivate,
    finite_number,
    one_of,
    positive_count,
    positive_number,
)
from dphist.planning.optimum import (
    ANALYSES_BY_NAME,
    PAPER_ANALYSES,
    Analysis,
    Calibration,
    check_bounds,
    least_tau,
    tune_gamma,
)
from dphist.planning.planner import Gamma, certify_continuous, gamma_value, plan
from dphist.privacy.continuous import certify_noise, delta_of_all_cases
from dphist.privacy.exact import delta_family
from dphist.privacy.paper import (
    delta_discrete_csh,
    delta_zcdp,
    delta_zcdp_loose,
    largest_sensitivity_per_sigma,
    rho_discrete_correlated_gaussian,
    tau_laplace,
)
from dphist.privacy.searches import golden_minimum, least_passing, log_excess, round_up
from dphist.privacy.types import ANALYSES, Budget, Certificate, Contract, Noise, Plan

# The paper's theorem for discrete noise, with its printed conversion from zCDP and with the tight one.
DISCRETE_ROWS: Final = {"discrete theorem, printed": False, "discrete theorem, tight": True}
# The analyses of the paper's figure, in the order of its legend.
FIGURE: Final = ("gshm-add-the-deltas", "gshm-exact", "csh-add-the-deltas", "csh-tighter", "exact")
# The search for the theorem's best noise: the logarithm of what is added to the least noise, relatively.
_STRETCH: Final = (-9.0, 1.0)


@dataclass(frozen=True)
class ComparisonRow:
    """One mechanism under one analysis, at its least threshold."""

    mechanism: str
    analysis: str
    gamma: float | None
    total_noise: float
    tau: float
    ratio_to_gshm: float

    @property
    def threshold(self) -> float:
        return 1.0 + self.tau

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "threshold": self.threshold}

    def cells(self) -> tuple[str, ...]:
        numbers = (f"{number:.3f}" for number in (self.total_noise, self.tau, self.threshold))
        gamma = "-" if self.gamma is None else f"{self.gamma:.6g}"
        ratio = f"{self.ratio_to_gshm:.3f}" if self.ratio_to_gshm < 1e6 else "-"
        return (self.mechanism, self.analysis, gamma, *numbers, ratio)


@dataclass(frozen=True)
class Comparison(Grid):
    """All mechanisms and analyses for one budget and one contract."""

    budget: Budget
    contract: Contract
    rows: tuple[ComparisonRow, ...]
    texts: ClassVar[int] = 2
    # The last column is tau relative to that of the exact GSHM.
    columns: ClassVar[tuple[str, ...]] = (
        "mechanism", "analysis", "gamma", "total noise", "tau", "threshold", "to GSHM",
    )  # fmt: skip

    @property
    def title(self) -> str:
        nonzero = "" if self.contract.max_nonzero is None else f", k = {self.contract.max_nonzero}"
        items = f", m = {self.contract.items}"
        return f"epsilon = {self.budget.epsilon:g}, delta = {self.budget.delta:g}{nonzero}{items}"

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """The rows; with `curves`, also the least tau by noise for each analysis of the paper's figure."""
        return {
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "max_nonzero": self.contract.max_nonzero,
            "max_items_per_user": self.contract.items,
            "rows": [row.to_dict() for row in self.rows],
            **({"curves": [asdict(curve) for curve in frontiers(self)]} if curves else {}),
        }

    def cells(self) -> list[tuple[str, ...]]:
        return [row.cells() for row in self.rows]


def compare(
    *,
    epsilon: float,
    delta: float,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
) -> Comparison:
    """Every mechanism and analysis at its lowest threshold, for one budget."""
    budget, contract = Budget(epsilon, delta), Contract(max_nonzero, max_items_per_user)

    def best(analysis: str, gamma: float) -> Noise:
        return Calibration(ANALYSES_BY_NAME[analysis], budget, contract).best(gamma, "threshold")

    plans = [("gshm", name, best(name, math.inf)) for name in ("gshm-add-the-deltas", "gshm-exact")]
    gshm = plans[-1][2]
    if contract.max_nonzero is not None:
        gamma = math.sqrt(contract.max_nonzero)
        tuned = tune_gamma(Calibration(ANALYSES_BY_NAME["exact"], budget, contract), "threshold")
        plans += [("csh", name, best(name, gamma)) for name in ("csh-add-the-deltas", "csh-tighter")]
        plans += [
            ("csh", name, certify_continuous(noise, budget, contract)[0])
            for name, noise in (("exact, gamma = sqrt k", best("exact", gamma)), ("exact, gamma tuned", tuned))
        ]
        plans += [
            ("csh", name, discrete_theorem(budget, contract, tight)) for name, tight in DISCRETE_ROWS.items()
        ]
    rows = [
        ComparisonRow(
            name, analysis, noise.gamma if noise.sigma_shared else None, noise.total_noise, noise.tau,
            noise.tau / gshm.tau,
        )
        for name, analysis, noise in plans
    ]  # fmt: skip
    scale = contract.items / budget.epsilon
    tau = tau_laplace(m=contract.items, scale=scale, delta=budget.delta)
    noise = math.sqrt(2.0) * scale
    rows.append(ComparisonRow("laplace", "scale m/epsilon", None, noise, tau, tau / gshm.tau))
    return Comparison(budget, contract, tuple(rows))


def discrete_theorem(budget: Budget, contract: Contract, tight: bool) -> Noise:
    """The noise of least tau by the paper's theorem for discrete noise with gamma = sqrt k."""
    epsilon, delta, k = budget.epsilon, budget.delta, int(contract.nonzero)
    convert = delta_zcdp if tight else delta_zcdp_loose

    def excess_of_noise(sigma: float) -> float:
        return log_excess(convert(rho=rho_discrete_correlated_gaussian(k=k, sigma=sigma), epsilon=epsilon), delta)

    least = least_passing(excess_of_noise, math.sqrt(k) / epsilon, relative=1e-9)

    def best_tau(stretch: float) -> float:
        sigma = least * (1.0 + math.exp(stretch))

        def excess(tau: float) -> float:
            return log_excess(delta_discrete_csh(k=k, sigma=sigma, tau=tau, epsilon=epsilon, tight=tight), delta)

        return least_passing(excess, 8.0 * sigma, relative=1e-7)

    stretch, tau = golden_minimum(best_tau, *_STRETCH, tolerance=1e-3)
    sigma = least * (1.0 + math.exp(stretch))
    return Noise(sigma, sigma * k**-0.25, tau)


@dataclass(frozen=True)
class Frontier:
    """Points of total noise and the least tau under one analysis; below `least_noise` there is none."""

    analysis: str
    least_noise: float
    points: tuple[tuple[float, float], ...]


@lru_cache(maxsize=32)
def frontiers(comparison: Comparison) -> tuple[Frontier, ...]:
    """The curves of the paper's figure, which take seconds."""
    budget, contract = comparison.budget, comparison.contract
    shared = math.inf if contract.max_nonzero is None else math.sqrt(contract.max_nonzero)
    largest = 1.3 * max(row.total_noise for row in comparison.rows if row.analysis in ANALYSES)
    return tuple(
        frontier(
            epsilon=budget.epsilon, delta=budget.delta, analysis=name, max_nonzero=contract.max_nonzero,
            max_items_per_user=contract.max_items_per_user, gamma=None if name.startswith("gshm") else shared,
            largest_noise=largest,
        )
        for name in FIGURE
        if name.startswith("gshm") or math.isfinite(shared)
    )  # fmt: skip


def tau_for_noise(
    *,
    epsilon: float,
    delta: float,
    sigma: float,
    sigma_shared: float = 0.0,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    analysis: str = "exact",
) -> float:
    """The least tau for a given noise, by one analysis; infinite if the noise is too small."""
    budget, contract = Budget(epsilon, delta), Contract(max_nonzero, max_items_per_user)
    noise = Noise(positive_number("sigma", sigma), sigma_shared, 1.0)
    chosen = _checked_analysis(analysis, contract, noise.sigma_shared)
    return least_tau(chosen, contract, budget, sigma=noise.sigma, sigma_shared=noise.sigma_shared)


def _checked_analysis(analysis: str, contract: Contract, sigma_shared: float) -> Analysis:
    one_of("analysis", analysis, ANALYSES)
    if analysis.startswith("gshm") and sigma_shared > 0.0:
        raise InvalidParameter(f"{analysis} has no shared noise, but sigma_shared is {sigma_shared!r}")
    if analysis.startswith("csh") and (sigma_shared == 0.0 or contract.max_nonzero is None):
        raise InvalidParameter(f"{analysis} needs max_nonzero and a sigma_shared above 0, not {sigma_shared!r}")
    return ANALYSES_BY_NAME[analysis]


def frontier(
    *,
    epsilon: float,
    delta: float,
    analysis: str,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    gamma: Gamma | None = None,
    largest_noise: float | None = None,
    points: int = 40,
) -> Frontier:
    """The curve of the paper's figure: the least tau by total noise, from the least noise to `largest_noise`.

    By default it ends at 1.6 times the least noise. Without `gamma` there is no shared noise.
    """
    budget, contract = Budget(epsilon, delta), Contract(max_nonzero, max_items_per_user)
    if positive_count("points", points) < 2:
        raise InvalidParameter(f"a frontier needs at least 2 points, not {points}")
    ratio = math.inf if gamma is None else gamma_value(gamma, contract)
    shared_per_sigma = 1.0 / math.sqrt(ratio)
    chosen = _checked_analysis(analysis, contract, shared_per_sigma)
    least = Calibration(chosen, budget, contract).least_sigma(ratio)
    if not chosen.adds_deltas:
        least *= 1.0 + 1e-9
    total, widest = math.hypot(1.0, shared_per_sigma), 1.6
    if largest_noise is not None:
        widest = max(1.0, positive_number("largest_noise", largest_noise) / (least * total))
    curve = []
    for i in range(points):
        # Dense near the least noise, where the curves of added deltas are steep.
        sigma = least * (1.0 + (widest - 1.0) * (i / (points - 1)) ** 2)
        tau = least_tau(chosen, contract, budget, sigma=sigma, sigma_shared=sigma * shared_per_sigma)
        if math.isfinite(tau):
            curve.append((sigma * total, tau))
    return Frontier(analysis, least * total, tuple(curve))


@dataclass(frozen=True)
class SumsRow:
    way: str
    total_noise: float
    threshold: float
    standard_errors: tuple[float, ...]


@dataclass(frozen=True)
class SumsComparison(Grid):
    """Noise and threshold of the counts, and the standard error of each sum, for several ways to release them.

    The standard error of a vector is that of each of its columns.
    """

    title: str
    rows: tuple[SumsRow, ...]
    names: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {row.way: {**vars(row), "standard_errors": list(row.standard_errors)} for row in self.rows}

    @property
    def columns(self) -> tuple[str, ...]:
        return ("way", "noise", "threshold", *(f"error of {name}" for name in self.names))

    def cells(self) -> list[tuple[str, ...]]:
        return [
            (
                row.way, f"{row.total_noise:.4g}", f"{row.threshold:.5g}",
                *(f"{error:.5g}" for error in row.standard_errors),
            )
            for row in self.rows
        ]  # fmt: skip


def compare_sums(
    *,
    epsilon: float,
    delta: float,
    max_items_per_user: int | None = None,
    max_nonzero: int | None = None,
    sums: Sequence[tuple[object, ...]],
    weights: Sequence[float] | None = None,
) -> SumsComparison:
    """The errors of sums beside counts, for this project's method and the usual ones.

    `recentred` is what `plan` makes of a limit on items per user (GSHM). With `max_nonzero`, `recentred, csh` is
    what it makes of both bounds, with shared noise wherever that lowers the threshold. `standard` is also planned
    jointly, but a user moves a sum by up to the larger of |low| and |high| instead of half the range, and the sum
    has only its own noise. `split` gives the counts and each sum an equal part of epsilon and delta, and releases
    them one after the other. All use the exact analysis. `sums` and `weights` are as for `plan`.
    """
    if not sums:
        raise InvalidParameter("give the bounds (low, high) of at least one sum")
    bounds, items = [check_bounds(*one) for one in sums], Contract(max_nonzero, max_items_per_user).items
    largest = [max(abs(low), abs(high)) for low, high, _ in bounds]
    common: dict[str, Any] = {"max_items_per_user": items, "mechanism": "gaussian"}
    joint: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "weights": weights, **common}
    ours = plan(sums=bounds, **joint)
    both = [] if max_nonzero is None else [plan(sums=bounds, max_nonzero=max_nonzero, **joint)]
    around = [(-most, most, one.columns) for most, one in zip(largest, bounds, strict=True)]
    standard = plan(sums=around, **joint)
    parts = 1 + len(bounds)
    counts = plan(epsilon=epsilon / parts, delta=delta / parts, **common)
    per_sigma = largest_sensitivity_per_sigma(epsilon=epsilon / parts, delta=delta / parts)
    alone = tuple(float(most) * math.sqrt(items) / per_sigma for most in largest)

    def row(way: str, made: Plan) -> SumsRow:
        errors = (math.hypot(one.sigma, float(one.middle) * made.total_noise) for one in made.sums)
        return SumsRow(way, made.total_noise, made.threshold, tuple(errors))

    rows = [row("recentred", ours), *(row("recentred, csh", made) for made in both), row("standard", standard)]
    rows.append(SumsRow("split", counts.total_noise, counts.threshold, alone))
    kinds = ["sum" if one.columns == 1 else "vector" for one in bounds]
    names = [f"the {kinds[0]}"] if len(kinds) == 1 else [f"{kind} {k}" for k, kind in enumerate(kinds, start=1)]
    given = {
        "epsilon": epsilon,
        "delta": delta,
        "max_nonzero": max_nonzero,
        "max_items_per_user": max_items_per_user,
    }
    title = ", ".join(f"{name} = {value:g}" for name, value in given.items() if value is not None)
    return SumsComparison(title, tuple(rows), tuple(names))


_SURELY_BROKEN: Final = 1.0 - 1e-12


@dataclass(frozen=True)
class Certification(Listing):
    """Upper bounds of delta of given noise, by analysis; that of `exact` is the certificate's.

    `delta_lower` is a lower bound, and `delta_exact` the value itself if it was asked for and could be computed.
    """

    noise: Noise
    contract: Contract
    certificate: Certificate
    delta: dict[str, float] = field(hash=False)
    delta_lower: float
    delta_exact: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The keys of `dphist certify --json`."""
        return {
            "mechanism": self.noise.mechanism,
            "epsilon": self.certificate.epsilon,
            "max_nonzero": self.contract.max_nonzero,
            "max_items_per_user": self.contract.items,
            **self.noise.to_dict(),
            "delta": dict(self.delta),
            "delta_lower": self.delta_lower,
            "delta_exact": self.delta_exact,
            "binding_case": self.certificate.binding_case.to_dict(),
        }

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("tau", f"{self.noise.tau!r}"),
            ("delta, at most", f"{self.certificate.delta:.10g} (certified)"),
            (
                ("delta, at least", f"{self.delta_lower:.10g}")
                if self.delta_exact is None
                else ("delta, exact", f"{self.delta_exact:.10g} (to 9 digits)")
            ),
            *((f"bound {name}", f"{value:.10g}") for name, value in self.delta.items() if name != "exact"),
            ("worst neighbours", str(self.certificate.binding_case)),
        ]

    @property
    def title(self) -> str:
        return f"delta at epsilon = {self.certificate.epsilon:g}"


def certify(
    *,
    epsilon: float,
    sigma: float,
    tau: float | None = None,
    sigma_shared: float | None = None,
    gamma: Gamma | None = None,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    delta: float | None = None,
    exact: bool = False,
) -> Certification:
    """Bounds of delta at epsilon for given noise and threshold, under every analysis that applies.

    The bound of `exact` is certified in ball arithmetic; it is the value itself unless mixed neighbours are the
    worst. With `exact`, all neighbours are tried to find the value, which may take minutes. Raises `NotPrivate` if
    the certified bound exceeds `delta`, or 1 - 1e-12 without `delta`. Without `tau`, it is the least one that is
    certified for `delta`.
    """
    least, given = tau is None, 1.0 if tau is None else tau
    noise, contract = _given_plan(sigma, given, sigma_shared, gamma, max_nonzero, max_items_per_user)
    epsilon = Budget(epsilon, 0.5 if delta is None else delta).epsilon
    if least:
        noise = _with_least_tau(noise, contract, epsilon, delta)
    certificate = certify_noise(noise, contract, epsilon=epsilon, budget=delta)
    if certificate.delta > (_SURELY_BROKEN if delta is None else delta):
        certificate = certify_noise(noise, contract, epsilon=epsilon)
        raise NotPrivate(
            f"the plan (sigma {noise.sigma:g}, shared {noise.sigma_shared:g}, tau {noise.tau:g}) is not private: "
            f"at epsilon = {epsilon:g} its delta is {certificate.delta!r}"
            + ("" if delta is None else f", above {delta!r}")
        )
    deltas = {"exact": certificate.delta}
    if noise.sigma_shared == 0.0 or contract.max_nonzero is not None:
        for name in (name for name in PAPER_ANALYSES if name.startswith(noise.mechanism)):
            deltas[name] = min(1.0, PAPER_ANALYSES[name].delta(contract, noise, epsilon))
    lower, value = certificate.delta_lower, None
    if exact:
        found, complete = delta_of_all_cases(noise, contract, epsilon=epsilon)
        lower = max(lower, min(found, certificate.delta))
        value = lower if complete else None
    return Certification(noise, contract, certificate, deltas, lower, value)


def _with_least_tau(noise: Noise, contract: Contract, epsilon: float, delta: float | None) -> Noise:
    if delta is None:
        raise InvalidParameter("give --tau, or --delta for the least tau")
    exact, budget = ANALYSES_BY_NAME["exact"], Budget(epsilon, delta)
    tau = least_tau(exact, contract, budget, sigma=noise.sigma, sigma_shared=noise.sigma_shared)
    if math.isinf(tau):
        raise NotPrivate(f"no tau is enough: the noise is too small for epsilon = {epsilon:g}, delta = {delta:g}")
    # It was found in doubles.
    for step in (1e-9, 4e-9, 1.6e-8):
        noise = replace(noise, tau=round_up(tau))
        if certify_noise(noise, contract, epsilon=epsilon, budget=delta).delta <= delta:
            break
        tau *= 1.0 + step
    return noise


class _GivenPlan(NamedTuple):
    noise: Noise
    contract: Contract


def _given_plan(
    sigma: float,
    tau: float,
    sigma_shared: float | None = None,
    gamma: Gamma | None = None,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
) -> _GivenPlan:
    contract = Contract(max_nonzero, max_items_per_user)
    if sigma_shared is not None and gamma is not None:
        raise InvalidParameter(f"give sigma_shared ({sigma_shared!r}) or gamma ({gamma!r}), not both")
    if gamma is not None:
        sigma_shared = positive_number("sigma", sigma) / math.sqrt(gamma_value(gamma, contract))
    return _GivenPlan(Noise(sigma, 0.0 if sigma_shared is None else sigma_shared, tau), contract)


def delta_at(plan: Plan | _GivenPlan, epsilon: float) -> float:
    """delta at epsilon, which may be 0, of a fixed plan: a certified upper bound."""
    number = finite_number("epsilon", epsilon)
    if not 0.0 <= number <= LARGEST_EPSILON:
        raise InvalidParameter(f"epsilon must be between 0 and {LARGEST_EPSILON:g}, not {epsilon!r}")
    return certify_noise(plan.noise, plan.contract, epsilon=number).delta


def epsilon_at(plan: Plan | _GivenPlan, delta: float) -> float:
    """The least epsilon, up to rounding, at which a fixed plan is certified for delta.

    Raises `NotPrivate` if no epsilon is enough: new counts pass the threshold with a larger probability.
    """
    target = Budget(1.0, delta).delta
    floor = delta_at(plan, LARGEST_EPSILON)
    if floor > target:
        raise NotPrivate(f"no epsilon reaches delta = {delta!r}: delta stays at {floor:.10g}")
    if delta_at(plan, 0.0) <= target:
        return 0.0

    def excess(epsilon: float) -> float:
        # Doubles are quicker where they are available.
        if isinstance(plan.noise, Noise):
            return log_excess(delta_family(plan.noise, plan.contract, epsilon=epsilon).delta, target)
        return log_excess(certify_noise(plan.noise, plan.contract, epsilon=epsilon).delta, target)

    epsilon = round_up(least_passing(excess, 1.0, relative=1e-10))
    step = 1e-9
    while epsilon < LARGEST_EPSILON:
        if delta_at(plan, epsilon) <= target:
            return epsilon
        step *= 4.0
        epsilon = round_up(epsilon * (1.0 + step))
    return LARGEST_EPSILON


def profile(plan: Plan, epsilons: Iterable[float]) -> list[tuple[float, float]]:
    """The privacy profile as (epsilon, certified delta) pairs."""
    return [(float(epsilon), delta_at(plan, epsilon)) for epsilon in epsilons]


def profile_of(*, epsilons: Iterable[float], deltas: Iterable[float], **noise: Any) -> list[tuple[float, float]]:
    """The privacy profile of given noise, with the options of `certify`: (epsilon, delta) pairs, by epsilon.

    Epsilon is infinite for a delta that no epsilon reaches.
    """
    given = _given_plan(**noise)
    pairs = [(float(epsilon), delta_at(given, epsilon)) for epsilon in epsilons]
    for delta in deltas:
        try:
            pairs.append((epsilon_at(given, delta), float(delta)))
        except NotPrivate:
            pairs.append((math.inf, float(delta)))
    if not pairs:
        raise InvalidParameter("a privacy profile needs at least one --epsilon or --delta")
    return sorted(pairs)
