"""`compare`: every mechanism and analysis side by side, the frontier of tau against noise, and sums three ways."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dphist.display import html_grid, text_grid
from dphist.errors import InvalidParameter, positive_count, positive_number
from dphist.planning.optimum import (
    Calibration,
    CaseAnalysis,
    CshTighter,
    Exact,
    GshmExact,
    add_the_deltas,
    least_sigma_add_the_deltas,
    least_tau,
    tau_add_the_deltas,
    tune_gamma,
)
from dphist.planning.planner import Gamma, certify_continuous, gamma_value, plan
from dphist.planning.sums import check_bounds
from dphist.privacy.laplace import tau_laplace
from dphist.privacy.paper import largest_sensitivity_per_sigma
from dphist.privacy.types import ANALYSES, Budget, Contract, Noise, Plan, gamma_from

# `compare`: every mechanism and analysis side by side, and the frontier of tau against noise.

_CASE_ANALYSES: Final[dict[str, CaseAnalysis]] = {
    "exact": Exact(),
    "gshm-exact": GshmExact(),
    "csh-tighter": CshTighter(),
}
# The name of the row of users whose items beyond the limit count less; its noise is discrete.
SPREAD_ROW: Final = "exact, excess spread"
_COLUMNS: Final = ("mechanism", "analysis", "gamma", "total noise", "tau", "threshold", "to GSHM")


@dataclass(frozen=True)
class ComparisonRow:
    """One mechanism under one analysis, at its least threshold."""

    mechanism: str
    analysis: str
    gamma: float | None
    total_noise: float
    tau: float
    ratio: float

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater."""
        return 1.0 + self.tau

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "mechanism": self.mechanism,
            "analysis": self.analysis,
            "gamma": None if self.gamma is None or math.isinf(self.gamma) else self.gamma,
            "total_noise": self.total_noise,
            "tau": self.tau,
            "threshold": self.threshold,
            "ratio_to_gshm": self.ratio,
        }

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        gamma = "-" if self.gamma is None or math.isinf(self.gamma) else f"{self.gamma:.6g}"
        return (
            self.mechanism,
            self.analysis,
            gamma,
            f"{self.total_noise:.3f}",
            f"{self.tau:.3f}",
            f"{self.threshold:.3f}",
            f"{self.ratio:.3f}" if self.ratio < 1e6 else "-",
        )


@dataclass(frozen=True)
class Comparison:
    """All mechanisms and analyses for one budget and one contract."""

    budget: Budget
    contract: Contract
    rows: tuple[ComparisonRow, ...]

    @property
    def title(self) -> str:
        """Budget and contract in one line."""
        nonzero = "" if self.contract.max_nonzero is None else f", k = {self.contract.max_nonzero}"
        items = f", m = {self.contract.items}"
        return f"epsilon = {self.budget.epsilon:g}, delta = {self.budget.delta:g}{nonzero}{items}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names; the last is the threshold's tau relative to the exact GSHM's."""
        return _COLUMNS

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "max_nonzero": self.contract.max_nonzero,
            "max_items_per_user": self.contract.items,
            "rows": [row.to_dict() for row in self.rows],
        }

    def __str__(self) -> str:
        grid = text_grid(self.columns, (row.cells() for row in self.rows), left=2)
        return f"{self.title}\n\n{grid}"

    def _repr_html_(self) -> str:
        return html_grid(self.title, self.columns, (row.cells() for row in self.rows))


def compare(
    *,
    epsilon: float,
    delta: float,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
) -> Comparison:
    """Every mechanism and analysis at its least threshold, for one budget and one contract.

    With `max_items_per_user` also the plan with the same limit and excess = "spread".
    """
    budget, contract = Budget(epsilon, delta), Contract(max_nonzero, max_items_per_user)
    gshm = Calibration(GshmExact(), budget, contract).best(math.inf, "threshold")
    plans: list[tuple[str, str, Noise]] = [
        ("gshm", "gshm-add-the-deltas", add_the_deltas(budget, contract, math.inf, "threshold")),
        ("gshm", "gshm-exact", gshm),
    ]
    if contract.max_nonzero is not None:
        gamma = math.sqrt(contract.max_nonzero)
        exact = Calibration(Exact(), budget, contract)
        plans += [
            ("csh", "csh-add-the-deltas", add_the_deltas(budget, contract, gamma, "threshold")),
            ("csh", "csh-tighter", Calibration(CshTighter(), budget, contract).best(gamma, "threshold")),
            (
                "csh",
                "exact, gamma = sqrt k",
                certify_continuous(exact.best(gamma, "threshold"), budget, contract)[0],
            ),
            ("csh", "exact, gamma tuned", certify_continuous(tune_gamma(exact, "threshold"), budget, contract)[0]),
        ]
    rows = [
        ComparisonRow(name, analysis, noise.gamma, noise.total_noise, noise.tau, noise.tau / gshm.tau)
        for name, analysis, noise in plans
    ]
    if contract.max_items_per_user is not None and contract.items < contract.nonzero:
        # Without max_nonzero: with shared noise each of the weights would take seconds.
        found = plan(epsilon=epsilon, delta=delta, max_items_per_user=max_items_per_user, excess="spread")
        numbers = found.gamma, found.total_noise, found.tau, found.tau / gshm.tau
        rows.append(ComparisonRow(found.mechanism, SPREAD_ROW, *numbers))
    return Comparison(budget, contract, (*rows, laplace_row(budget, contract, gshm.tau)))


def laplace_row(budget: Budget, contract: Contract, gshm_tau: float) -> ComparisonRow:
    """Continuous Laplace noise, in closed form."""
    scale = contract.items / budget.epsilon
    tau = tau_laplace(m=contract.items, scale=scale, delta=budget.delta)
    return ComparisonRow("laplace", "scale m/epsilon", None, math.sqrt(2.0) * scale, tau, tau / gshm_tau)


@dataclass(frozen=True)
class Frontier:
    """The least tau for each total noise under one analysis, and the noise below which there is none."""

    analysis: str
    least_noise: float
    points: tuple[tuple[float, float], ...]


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
    """The least tau for a given noise, by one analysis; infinite where that noise is too small."""
    budget, contract = Budget(epsilon, delta), Contract(max_nonzero, max_items_per_user)
    noise = Noise(positive_number("sigma", sigma), sigma_shared, 1.0)
    _check_fits(analysis, contract, noise.sigma_shared)
    return _tau(analysis, budget, contract, noise)


def _check_fits(analysis: str, contract: Contract, sigma_shared: float) -> None:
    if analysis not in ANALYSES:
        raise InvalidParameter(f"analysis must be one of {', '.join(ANALYSES)}, not {analysis!r}")
    if analysis.startswith("gshm") and sigma_shared > 0.0:
        raise InvalidParameter(f"{analysis} has no shared noise, but sigma_shared is {sigma_shared!r}")
    if analysis.startswith("csh") and (sigma_shared == 0.0 or contract.max_nonzero is None):
        raise InvalidParameter(f"{analysis} needs max_nonzero and a sigma_shared above 0, not {sigma_shared!r}")


def _tau(analysis: str, budget: Budget, contract: Contract, noise: Noise) -> float:
    if analysis in _CASE_ANALYSES:
        return least_tau(
            _CASE_ANALYSES[analysis], contract, budget, sigma=noise.sigma, sigma_shared=noise.sigma_shared
        )
    return tau_add_the_deltas(budget, contract, gamma_from(noise.sigma, noise.sigma_shared), noise.sigma)


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
    """The curve of the paper's figure: least tau against total noise, from the least noise to `largest_noise`.

    By default it ends at 1.6 times the least noise. Without gamma there is no shared noise.
    """
    budget, contract = Budget(epsilon, delta), Contract(max_nonzero, max_items_per_user)
    if positive_count("points", points) < 2:
        raise InvalidParameter(f"a frontier needs at least 2 points, not {points}")
    ratio = math.inf if gamma is None else gamma_value(gamma, contract)
    shared_per_sigma = 1.0 / math.sqrt(ratio)
    _check_fits(analysis, contract, shared_per_sigma)
    if analysis in _CASE_ANALYSES:
        least = Calibration(_CASE_ANALYSES[analysis], budget, contract).least_sigma(ratio) * (1.0 + 1e-9)
    else:
        least = least_sigma_add_the_deltas(budget, contract, ratio)
    total = math.hypot(1.0, shared_per_sigma)
    widest = (
        1.6
        if largest_noise is None
        else max(1.0, positive_number("largest_noise", largest_noise) / (least * total))
    )
    curve = []
    for i in range(points):
        # Dense near the least noise, where the curves of added deltas shoot up.
        sigma = least * (1.0 + (widest - 1.0) * (i / (points - 1)) ** 2)
        tau = _tau(analysis, budget, contract, Noise(sigma, sigma * shared_per_sigma, 1.0))
        if math.isfinite(tau):
            curve.append((sigma * total, tau))
    return Frontier(analysis, least * total, tuple(curve))


@dataclass(frozen=True)
class SumsRow:
    """One way: the noise and threshold of the counts, and the standard error of each sum."""

    way: str
    total_noise: float
    threshold: float
    standard_errors: tuple[float, ...]


@dataclass(frozen=True)
class SumsComparison:
    """The ways side by side."""

    rows: tuple[SumsRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {row.way: {**vars(row), "standard_errors": list(row.standard_errors)} for row in self.rows}

    @property
    def columns(self) -> tuple[str, ...]:
        """Names above the columns."""
        sums = len(self.rows[0].standard_errors)
        errors = ["error of the sum"] if sums == 1 else [f"error of sum {k + 1}" for k in range(sums)]
        return ("way", "noise", "threshold", *errors)

    def cells(self) -> list[tuple[str, ...]]:
        """The rows as texts."""
        return [
            (
                row.way, f"{row.total_noise:.4g}", f"{row.threshold:.5g}",
                *(f"{error:.5g}" for error in row.standard_errors),
            )
            for row in self.rows
        ]  # fmt: skip

    def __str__(self) -> str:
        width = max(len(row.way) for row in self.rows)
        return "\n".join(
            f"{row.way:<{width}}  noise {row.total_noise:.4g}, threshold {row.threshold:.5g}, "
            "standard error of sums " + ", ".join(f"{error:.5g}" for error in row.standard_errors)
            for row in self.rows
        )

    def _repr_html_(self) -> str:
        return html_grid("Sums beside counts", self.columns, self.cells())


def compare_sums(
    *, epsilon: float, delta: float, max_items_per_user: int, sums: Sequence[tuple[object, object]]
) -> SumsComparison:
    """The errors of sums beside counts: as this project plans them, and as is usual.

    `recentred` is what `plan` makes. `standard` is planned together too, but a user moves a sum by up to the
    larger of |low| and |high| in place of half the range, and the sum has all its noise to itself. `split` gives
    the counts and each sum an equal part of epsilon and of delta, and releases them one after the other.
    All three are by the exact analysis.
    """
    if not sums:
        raise InvalidParameter("there is nothing to compare without sums")
    bounds = [check_bounds(low, high) for low, high in sums]
    largest = [max(abs(low), abs(high)) for low, high in bounds]
    common: dict[str, Any] = {"max_items_per_user": max_items_per_user, "mechanism": "gaussian"}
    ours = plan(epsilon=epsilon, delta=delta, sums=bounds, **common)
    standard = plan(epsilon=epsilon, delta=delta, sums=[(-most, most) for most in largest], **common)
    parts = 1 + len(bounds)
    counts = plan(epsilon=epsilon / parts, delta=delta / parts, **common)
    per_sigma = largest_sensitivity_per_sigma(epsilon=epsilon / parts, delta=delta / parts)
    alone = tuple(float(most) * math.sqrt(max_items_per_user) / per_sigma for most in largest)
    return SumsComparison(
        (
            _row(
                "recentred",
                ours,
                tuple(math.hypot(s.sigma, float(s.middle) * ours.total_noise) for s in ours.sums),
            ),
            _row("standard", standard, tuple(s.sigma for s in standard.sums)),
            _row("split", counts, alone),
        )
    )


def _row(way: str, found: Plan, errors: tuple[float, ...]) -> SumsRow:
    return SumsRow(way, found.total_noise, found.threshold, errors)
