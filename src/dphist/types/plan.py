"""The plan: everything about a release that affects privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from dphist.types.certificate import Certificate
from dphist.types.contract import Budget, Contract
from dphist.types.noise import LaplaceNoise, LatticeNoise, Noise
from dphist.types.sums import SumNoise
from dphist.types.tables import html_table, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AnyNoise = Noise | LatticeNoise | LaplaceNoise
AnalysisName = Literal["exact", "gshm-add-the-deltas", "gshm-exact", "csh-add-the-deltas", "csh-tighter"]
Objective = Literal["threshold", "noise"]
ANALYSES: Final[tuple[AnalysisName, ...]] = get_args(AnalysisName)


@dataclass(frozen=True)
class Plan:
    """Everything about a release that affects privacy, decided before any data is read."""

    budget: Budget
    contract: Contract
    noise: AnyNoise
    analysis: AnalysisName
    certificate: Certificate
    notes: tuple[str, ...] = ()

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise drawn for each count."""
        return self.noise.sigma

    @property
    def sigma_shared(self) -> float:
        """Standard deviation of the one draw added to all counts."""
        return self.noise.sigma_shared

    @property
    def gamma(self) -> float:
        """sigma^2/sigma_shared^2."""
        return self.noise.gamma

    @property
    def tau(self) -> float:
        """Threshold less one."""
        return self.noise.tau

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater."""
        return self.noise.threshold

    @property
    def total_noise(self) -> float:
        """Standard deviation of a released count."""
        return self.noise.total_noise

    @property
    def mechanism(self) -> str:
        """`gshm`, `csh`, `top-k`, `known-domain` or `laplace`."""
        return self.noise.mechanism

    @property
    def releases_offset(self) -> bool:
        """Whether what a top-k step subtracts is released with noise."""
        return self.mechanism == "top-k"

    @property
    def sums(self) -> tuple[SumNoise, ...]:
        """The sums beside the counts, with their noise."""
        return self.noise.sums if isinstance(self.noise, LatticeNoise) else ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of `dphist plan --json`; an infinite gamma is None."""
        return {
            "mechanism": self.mechanism,
            "analysis": self.analysis,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "delta_certified": self.certificate.delta,
            "max_nonzero": self.contract.max_nonzero,
            "max_items_per_user": self.contract.items,
            **self.noise.to_dict(),
            "binding_case": self.certificate.binding_case.to_dict(),
            "certificate": self.certificate.to_dict(),
            "notes": list(self.notes),
        }

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people."""
        nonzero = "no bound" if self.contract.max_nonzero is None else f"{self.contract.max_nonzero:,}"
        public = self.mechanism == "known-domain"
        gamma = "infinite" if math.isinf(self.gamma) else f"{self.gamma:.6g}"
        return [
            (
                "mechanism",
                f"{self.mechanism} with {self.noise.kind} noise, chosen by the analysis '{self.analysis}'",
            ),
            ("budget", f"epsilon {self.budget.epsilon:g}, delta {self.budget.delta:g}"),
            ("items in the public list" if public else "non-zero counts at most", nonzero),
            ("items per user at most", f"{self.contract.items:,}"),
            # In full: a rounded sigma or threshold would be another plan, and not a certified one.
            ("noise of each count", f"{self.sigma!r}"),
            ("shared noise", f"{self.sigma_shared!r} (gamma {gamma})"),
            ("total noise", f"{self.total_noise:.6g}"),
            ("threshold", "none" if math.isinf(self.threshold) else f"{self.threshold!r} (1 + tau)"),
            *(
                (
                    f"sum of values from {float(one.low):g} to {float(one.high):g}",
                    f"noise {one.sigma:.6g}, and {float(one.middle):g} times the noise of the count",
                )
                for one in self.sums
            ),
            ("certified delta", f"{self.certificate.delta:.6g}"),
            ("worst neighbours", str(self.certificate.binding_case)),
        ]

    def figure(self) -> Figure:
        """Its profile, and which counts are released, as a figure of matplotlib."""
        # By name: what draws is to the right of all that is drawn.
        drawn: Figure = import_module("dphist.figures").plan(self)
        return drawn

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table("Plan", self.rows())
