"""The result of a simulation: candidates side by side, and which of them to take."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from dphist.simulation.candidates import Prediction
from dphist.simulation.notice import NOTICE
from dphist.simulation.population import Population
from dphist.simulation.prediction import in_bands
from dphist.types import Budget, html_grid, text_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Goal = Literal["counts", "keys", "mass"]
GOALS: Final[tuple[Goal, ...]] = get_args(Goal)
_COLUMNS: Final = (
    "candidate", "noise", "threshold", "items", "+-", "missing", "mean error", "relative", "bias", "distance",
)  # fmt: skip
# Expected items below which nothing is recommended.
_HARDLY_ANY: Final = 0.5
# Expected items that are 0.0 in the table.
_SHOWN: Final = 0.05
_WANTED: Final = {
    "counts": "the published counts are nearest to the true ones",
    "keys": "the most items are released",
    "mass": "the released counts miss the fewest users",
}


@dataclass(frozen=True, repr=False)
class Simulation:
    """Predictions for one population and one budget. Nothing of it is private: never make it of private data."""

    population: Population
    budget: Budget
    goal: Goal
    candidates: tuple[Prediction, ...]

    @property
    def private(self) -> bool:
        """Never: true numbers of the data are in it."""
        return False

    @property
    def best(self) -> Prediction:
        """The candidate to take, among caps by number and top-k steps."""
        return self._best([one for one in self.candidates if one.kind != "auto"] or list(self.candidates))

    @property
    def best_cap(self) -> Prediction | None:
        """The best cap by number."""
        return self._best_of("cap")

    @property
    def best_top(self) -> Prediction | None:
        """The best top-k step."""
        return self._best_of("top")

    def _best_of(self, kind: str) -> Prediction | None:
        found = [one for one in self.candidates if one.kind == kind]
        return self._best(found) if found else None

    def _best(self, among: list[Prediction]) -> Prediction:
        """The least of what is wanted little; of equal ones the first."""
        return min(among, key=self._cost)

    def _cost(self, one: Prediction) -> float:
        return {"counts": one.distance, "keys": -one.items, "mass": one.missing}[self.goal]

    @property
    def hopeless(self) -> bool:
        """Whether none of the candidates would release anything to speak of: then none is recommended."""
        return self._most_items < _HARDLY_ANY

    @property
    def _most_items(self) -> float:
        return max(one.items for one in self.candidates)

    @property
    def reason(self) -> str:
        """The recommendation in one sentence."""
        best, others = self.best, []
        if self.hopeless:
            return (
                f"Take none of them: hardly an item would be released (at most "
                f"{self._most_items:.2g} are expected). It takes more users, a larger "
                "epsilon or delta, or items that more users share."
            )
        for label, one in (("the best top-k step", self.best_top), ("the best cap", self.best_cap)):
            if one is not None and one is not best:
                others.append(f"{label}, {one.name}, has {self._figure(one)}")
        chosen = [one for one in self.candidates if one.kind == "auto"]
        others += [f"a cap chosen privately has {self._figure(one)}" for one in chosen]
        against = "" if not others else "; " + ", ".join(others)
        better = any(self._cost(one) < self._cost(best) for one in chosen)
        more = " That is better than all of them, and so may other --caps be." if better else ""
        there = f"of what was tried, there {_WANTED[self.goal]} ({self._figure(best)})"
        kept = (
            f"about {best.items:,.0f} of {self.population.items:,} items and {1.0 - best.missing:.1%} of all pairs"
        )
        return f"Take {best.name}: {there}{against}.{more} {best.name} would publish {kept}."

    def _figure(self, one: Prediction) -> str:
        if self.goal == "keys":
            return f"{one.items:,.0f} items"
        if self.goal == "mass":
            return f"{one.missing:.1%} missing"
        return f"a distance of {one.distance:.4f}"

    @property
    def title(self) -> str:
        """Population and budget in one line."""
        found = self.population
        return (
            f"{found.label}: {found.users:,} users, {found.items:,} items, {found.pairs:,} pairs; "
            f"epsilon = {self.budget.epsilon:g}, delta = {self.budget.delta:g}"
        )

    def table(self) -> list[dict[str, Any]]:
        """A row of plain data for each candidate, as `pandas.DataFrame` takes it, with what it is first."""
        hidden = ("private", "items_by_true_count", "caps")
        return [{k: v for k, v in one.to_dict().items() if k not in hidden} for one in self.candidates]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names above the columns."""
        return _COLUMNS

    def cells(self) -> list[tuple[str, ...]]:
        """The rows as texts; the best has a star."""
        best = None if self.hopeless else self.best
        return [_cells(one, star=one is best) for one in self.candidates]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of `dphist simulate --json`."""
        found = self.population
        return {
            "private": False,
            "notice": NOTICE,
            "population": {
                "name": found.label, "users": found.users, "items": found.items, "pairs": found.pairs,
                "most_items_of_a_user": found.largest, "largest_count": int(found.counts.max()),
                "items_by_true_count": [{"from": low, "items": items} for low, items in in_bands(found)],
            },
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "for": self.goal,
            "candidates": [one.to_dict() for one in self.candidates],
            "recommended": {
                "option": None if self.hopeless else self.best.name,
                "cap": None if self.best_cap is None else self.best_cap.value,
                "top": None if self.best_top is None else self.best_top.value,
                "reason": self.reason,
            },
        }  # fmt: skip

    def figure(self) -> Figure:
        """Items, missing share and errors against the caps, as a figure of matplotlib."""
        drawn: Figure = import_module("dphist.figures").simulation(self)
        return drawn

    def __repr__(self) -> str:
        return f"<Simulation of {len(self.candidates)} candidates for {self.title}. {NOTICE}>"

    def __str__(self) -> str:
        return "\n".join([NOTICE, self.title, "", text_grid(self.columns, self.cells()), "", self.reason])

    def _repr_html_(self) -> str:
        return html_grid(f"{self.title}. {self.reason}", self.columns, self.cells(), warning=NOTICE)


def _cells(one: Prediction, *, star: bool) -> tuple[str, ...]:
    # Errors of what is hardly ever released say nothing.
    none, name = (
        one.mean_error is None or one.items < _SHOWN,
        one.name.removeprefix("--").replace("max-items-per-user", "cap"),
    )
    fixed = one.kind != "auto"
    return (
        name + (" *" if star else ""),
        f"{one.plan.total_noise:,.1f}" if fixed else "-",
        f"{one.plan.threshold:,.1f}" if fixed else "-",
        f"{one.items:,.1f}",
        f"{one.items_deviation:,.1f}",
        f"{one.missing:.1%}",
        "-" if none else f"{one.mean_error:,.2f}",
        "-" if none or one.relative_error is None else f"{one.relative_error:.2%}",
        "-" if none or one.bias is None else f"{one.bias:+,.2f}",
        f"{one.distance:.4f}",
    )
