"""Mechanisms and analyses side by side, and ways to release sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Final

from dphist.aliases import JsonObject
from dphist.display import Grid
from dphist.errors import (
    InvalidParameter,
)
from dphist.model import ANALYSES, Budget, Contract, Noise, Plan
from dphist.paper.analyses import ANALYSES_BY_NAME
from dphist.paper.bounds import (
    delta_discrete_csh,
    delta_zcdp,
    delta_zcdp_loose,
    largest_sensitivity_per_sigma,
    rho_discrete_correlated_gaussian,
    tau_laplace,
)
from dphist.paper.figure import Frontier, frontier
from dphist.planning.optimum import Calibration, check_bounds, tune_gamma
from dphist.planning.planner import certify_continuous, plan
from dphist.proof.searches import golden_minimum, least_passing, log_excess

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

    def to_dict(self) -> JsonObject:
        return {**vars(self), "threshold": self.threshold}

    def cells(self) -> tuple[str, ...]:
        numbers = (f"{number:.3f}" for number in (self.total_noise, self.tau, self.threshold))
        gamma = "-" if self.gamma is None else f"{self.gamma:.6g}"
        ratio = f"{self.ratio_to_gshm:.3f}" if self.ratio_to_gshm < 1e6 else "-"
        return (self.mechanism, self.analysis, gamma, *numbers, ratio)


@dataclass(frozen=True)
class Comparison(Grid):
    """All mechanisms and analyses for one budget and one contract. Notebooks show a table.

    Attributes:
        budget: The ε and δ.
        contract: The public bounds.
        rows: Each with `mechanism`, `analysis`, `gamma`, `total_noise`, `tau`, `threshold` and `ratio_to_gshm`,
            its tau relative to that of the exact GSHM.
    """

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

    def to_dict(self, *, curves: bool = False) -> JsonObject:
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
    """Every mechanism and analysis at its lowest threshold, for one budget.

    >>> import dphist
    >>> for row in dphist.compare(epsilon=1, delta=1e-6, max_items_per_user=20).rows:
    ...     print(f"{row.mechanism:<8}{row.analysis:<20}{row.threshold:8.2f}")
    gshm    gshm-add-the-deltas   107.29
    gshm    gshm-exact            101.64
    laplace scale m/epsilon       323.36

    Args:
        epsilon: Privacy loss ε, above 0.
        delta: Probability that the ε guarantee may fail.
        max_nonzero: The most non-zero counts of any dataset, for mechanisms with shared noise.
        max_items_per_user: The most counts that one user contributes to.
    """
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

    Attributes:
        title: The budget and the bounds.
        rows: Each with `way`, `total_noise`, `threshold` and `standard_errors`.
        names: The sums and vectors, in order.
    """

    title: str
    rows: tuple[SumsRow, ...]
    names: tuple[str, ...]

    def to_dict(self) -> JsonObject:
        """The rows by their way."""
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
    """Compare ways to release sums with counts: this project's and the usual ones.

    `recentred` is what `plan` makes of a limit on items per user (GSHM). With `max_nonzero`, `recentred, csh` is
    what it makes of both bounds, with shared noise wherever that lowers the threshold. `standard` is also planned
    jointly, but a user moves a sum by up to the larger of |low| and |high| instead of half the range, and the sum
    has only its own noise. `split` gives the counts and each sum an equal part of epsilon and delta, and releases
    them one after the other. All use the exact analysis.

    >>> import dphist
    >>> for row in dphist.compare_sums(epsilon=1, delta=1e-6, max_items_per_user=20, sums=[(0, 100)]).rows:
    ...     print(f"{row.way:<10} threshold {row.threshold:6.1f}, standard error {row.standard_errors[0]:6.1f}")
    recentred  threshold  122.1, standard error 2044.4
    standard   threshold  143.4, standard error 2671.9
    split      threshold  204.5, standard error 3733.5

    Args:
        epsilon: Privacy loss ε, above 0.
        delta: Probability that the ε guarantee may fail.
        max_items_per_user: The most counts that one user contributes to.
        max_nonzero: The most non-zero counts of any dataset.
        sums: Bounds (low, high) of each sum, or (-norm, norm, columns) of a vector.
        weights: Share of the squared sensitivity for each sum, as for `plan`.
    """
    if not sums:
        raise InvalidParameter("give the bounds (low, high) of at least one sum")
    bounds, items = [check_bounds(*one) for one in sums], Contract(max_nonzero, max_items_per_user).items
    largest = [max(abs(low), abs(high)) for low, high, _ in bounds]
    common: JsonObject = {"max_items_per_user": items, "mechanism": "gaussian"}
    joint: JsonObject = {"epsilon": epsilon, "delta": delta, "weights": weights, **common}
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
