"""Kinds of neighbours, and the certificate that names the worst of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from dphist.types.tables import html_table, text_table

# What a certificate file says of itself.
FORMAT: Final = "dphist-certificate/1"
Direction = Literal["add", "remove", "either"]


@dataclass(frozen=True)
class NeighbourCase:
    """A kind of neighbours: j counts in both (s of them changed by one) and r in only one of them."""

    shared: float
    new: int
    changed: int
    direction: Direction

    def to_dict(self) -> dict[str, Any]:
        """Plain data; an unbounded number of shared counts is None."""
        shared = None if math.isinf(self.shared) else int(self.shared)
        return {"j": shared, "r": self.new, "s": self.changed, "direction": self.direction}

    def __str__(self) -> str:
        shared = "any number of" if math.isinf(self.shared) else f"{int(self.shared):,}"
        move = {"add": "is added", "remove": "is removed", "either": "is added or removed"}[self.direction]
        return (
            f"a user {move} who has {self.new:,} new counts and changes {self.changed:,} of {shared} shared counts"
        )

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people."""
        shared = "any number" if math.isinf(self.shared) else f"{int(self.shared):,}"
        return [
            ("a user is", {"add": "added", "remove": "removed", "either": "added or removed"}[self.direction]),
            ("counts in both (j)", shared),
            ("of them changed (s)", f"{self.changed:,}"),
            ("counts in one alone (r)", f"{self.new:,}"),
        ]

    def _repr_html_(self) -> str:
        return html_table("Neighbours", self.rows())


@dataclass(frozen=True)
class Certificate:
    """A proof by computation that a plan satisfies (epsilon, delta): `delta` is a rigorous upper bound.

    `delta_lower` is the delta of one kind of neighbours, right to about 1e-9 and not rounded down: the truth lies
    between the two up to that. For continuous noise the kind is `binding_case`. For noise on a lattice it is a
    user with new counts alone, whatever `binding_case` is, so that it may be far below the truth; `binding_case`
    is the worse of the two pure kinds there, and a mixture may be worse than both. 0: none was computed.
    """

    epsilon: float
    delta: float
    analysis: str
    binding_case: NeighbourCase
    delta_lower: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "analysis": self.analysis,
            "binding_case": self.binding_case.to_dict(),
            "delta_lower": self.delta_lower,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people."""
        return [
            ("epsilon", f"{self.epsilon:g}"),
            ("delta, at most", f"{self.delta:.10g}"),
            ("delta, at least", f"{self.delta_lower:.10g}"),
            ("analysis", self.analysis),
            ("worst neighbours", str(self.binding_case)),
        ]

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table("Certificate", self.rows())
