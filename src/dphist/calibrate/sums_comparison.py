"""Sums beside counts, three ways: recentred and planned together, planned together, and one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dphist.analysis.gaussian import largest_sensitivity_per_sigma
from dphist.calibrate.planning import plan
from dphist.calibrate.sums import checked_bounds
from dphist.errors import InvalidParameter
from dphist.types import Plan, html_grid


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
    bounds = [checked_bounds(low, high) for low, high in sums]
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
