"""The columns of numbers that are published, wherever noise was added: in this process or on executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dphist.releases.accuracy import added_columns
from dphist.releases.aggregates import Aggregate, Published, published_sums
from dphist.releases.request import Request
from dphist.types import Plan


def count_column(request: Mapping[str, Any], table: Any) -> str:
    """How the counts of a release are called: as it was asked for; those of a histogram are its last column."""
    return str(request.get("count-name", "count") if request else table.column_names[-1])


@dataclass(frozen=True)
class Columns:
    """The columns of numbers in the output: how they are called and what they say."""

    count: str
    error: bool
    interval: float | None
    rounded: bool
    aggregates: tuple[Aggregate, ...] = ()

    @classmethod
    def of(cls, request: Request) -> Columns:
        """Those that were asked for."""
        return cls(
            request.count_name, request.standard_error, request.interval, request.round, request.aggregates()
        )

    def numbers(
        self, values: NDArray[np.float64], sums: Sequence[NDArray[np.float64]], plan: Plan
    ) -> dict[str, NDArray[Any]]:
        """The columns by their names, for these noisy counts and sums."""
        noisy, added = added_columns(
            values, plan, self.count, error=self.error, interval=self.interval, rounded=self.rounded
        )
        beside = published_sums(values, sums, plan, self.aggregates, Published(self.error, self.interval))
        return {self.count: noisy, **added, **beside}
