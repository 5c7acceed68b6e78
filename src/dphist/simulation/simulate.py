"""`simulate`: the utility of candidate plans before privacy is spent, side by side, with a recommendation."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from dphist.display import html_grid, html_table, text_grid, text_table
from dphist.errors import InvalidParameter, positive_count
from dphist.planning.auto_cap import ChoicePlan, chosen_cap
from dphist.planning.planner import plan as make_plan
from dphist.privacy.types import Budget, Plan
from dphist.releasing.request import Request
from dphist.releasing.soundness import choice_for
from dphist.sampling.mechanisms import noisy_sizes
from dphist.sampling.tap import SeededTap
from dphist.simulation.population import NOTICE, Population, Zipf, caps_to_try, population_of, zipf_from
from dphist.simulation.predict import BANDS, Totals, in_bands, mixed, totals_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# The candidates: caps, top-k steps and a cap that is chosen privately, each with its plan and its prediction.

Kind = Literal["cap", "top", "auto"]
DEFAULT_TOPS: Final = (10, 100, 1_000, 10_000, 100_000)
# Enough to know which caps a private choice takes: the noise moves it between neighbours.
_TRIALS: Final = 64


@dataclass(frozen=True, repr=False)
class Prediction:
    """What one candidate would release: expectations, none of them private.

    `items` are released, with the standard deviation `items_deviation`. `missing` is the share of all (user, item)
    pairs that are in no released count: their item is not released, or the cap has dropped them. `mean_error` and
    `relative_error` are the mean distance of a released count from the true one, cap included; `bias` is the mean
    of released less true. `distance` is the sum of |published - true| over all items, those that are not published
    as zero, over the sum of all counts. `caps` are what a private choice takes, with their chances.
    """

    kind: Kind
    value: int | None
    plan: Plan
    items: float
    items_deviation: float
    missing: float
    mean_error: float | None
    relative_error: float | None
    bias: float | None
    distance: float
    bands: tuple[tuple[int, float], ...]
    caps: tuple[tuple[int, float], ...] = ()

    @property
    def name(self) -> str:
        """The option of `dphist release`."""
        if self.kind == "top":
            return f"--top {self.value}"
        return f"--max-items-per-user {'auto' if self.value is None else self.value}"

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people."""
        bands = [f"{low:,} users or more: {items:,.1f}" for low, items in self.bands if items >= 0.05]
        told = [
            ("items released", f"{self.items:,.1f} +- {self.items_deviation:,.1f}"),
            ("of items with", "; ".join(bands) or "-"),
            ("share of pairs missing", f"{self.missing:.1%}"),
            ("mean error", "-" if self.mean_error is None else f"{self.mean_error:,.2f}"),
            ("relative error", "-" if self.relative_error is None else f"{self.relative_error:.2%}"),
            ("bias", "-" if self.bias is None else f"{self.bias:+,.2f}"),
            ("distance", f"{self.distance:.4f}"),
        ]
        caps = ", ".join(f"{cap:,} ({chance:.0%})" for cap, chance in self.caps)
        return [*told, ("caps taken", caps)] if caps else told

    def __repr__(self) -> str:
        return f"<Prediction for {self.name}: {self.items:,.1f} items. {NOTICE}>"

    def __str__(self) -> str:
        return f"{NOTICE}\n" + text_table([("candidate", self.name), *self.rows()])

    def _repr_html_(self) -> str:
        return html_table(f"Predicted for {self.name}", self.rows(), warning=NOTICE)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        fixed = self.kind != "auto"
        return {
            "private": False,
            "notice": NOTICE,
            "option": self.name,
            "mechanism": self.plan.mechanism if fixed else None,
            "total_noise": self.plan.total_noise if fixed else None,
            "threshold": self.plan.threshold if fixed else None,
            "items": self.items,
            "items_deviation": self.items_deviation,
            "missing": self.missing,
            "mean_error": self.mean_error,
            "relative_error": self.relative_error,
            "bias": self.bias,
            "distance": self.distance,
            "items_by_true_count": [{"from": low, "items": items} for low, items in self.bands],
            **({"caps": [{"cap": cap, "chance": chance} for cap, chance in self.caps]} if self.caps else {}),
        }


def make_prediction(
    kind: Kind, value: int | None, plan: Plan, totals: Totals, population: Population
) -> Prediction:
    """From sums to means; where less than a thousandth of an item is expected there are none."""
    released, pairs = totals.released, float(population.counts @ population.number)
    some = released >= 1e-3
    return Prediction(
        kind,
        value,
        plan,
        released,
        math.sqrt(max(0.0, totals.variance)),
        min(1.0, max(0.0, 1.0 - totals.kept / pairs)),
        totals.distance / released if some else None,
        totals.relative / released if some else None,
        totals.error / released if some else None,
        (totals.missed + totals.distance) / pairs,
        tuple(zip(BANDS, totals.bands.tolist(), strict=True)),
    )


def capped(budget: Budget, cap: int, population: Population) -> Prediction:
    """A cap by number."""
    plan = make_plan(epsilon=budget.epsilon, delta=budget.delta, max_items_per_user=cap)
    return make_prediction("cap", cap, plan, totals_of(plan, population, cap=cap), population)


def topped(budget: Budget, top: int, population: Population) -> Prediction:
    """A top-k step."""
    plan = make_plan(epsilon=budget.epsilon, delta=budget.delta, top=top)
    return make_prediction("top", top, plan, totals_of(plan, population), population)


def predict_chosen_cap(budget: Budget, population: Population) -> Prediction:
    """A cap that is chosen privately, for its share of the budget: all that it takes, by how often it does."""
    planned = choice_for(budget)
    caps = tuple(_shares(planned, population))
    parts = [(share, totals_of(planned.plan(cap), population, cap=cap)) for cap, share in caps]
    commonest = planned.plan(max(caps, key=lambda pair: pair[1])[0])
    found = make_prediction("auto", None, commonest, mixed(parts), population)
    return Prediction(**{**vars(found), "caps": caps})


def _shares(planned: ChoicePlan, population: Population) -> list[tuple[int, float]]:
    """Which caps are chosen how often. The draws come from a seed: nothing here is private anyway."""
    tap, sizes = SeededTap(1), population.buckets(planned.choice.caps)
    caps = Counter(chosen_cap(planned, noisy_sizes(planned.choice, sizes, tap)) for _ in range(_TRIALS))
    return [(cap, number / _TRIALS) for cap, number in sorted(caps.items())]


def tops_to_try(items: int, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """The numbers that were given; else the usual ones below the number of items."""
    if given is not None:
        return tuple(sorted({positive_count("each of the tops", top) for top in given}))
    return tuple(top for top in DEFAULT_TOPS if top < items)


# The result of a simulation: candidates side by side, and which of them to take.

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


def simulate(
    source: Any = None,
    *,
    epsilon: float,
    delta: float,
    zipf: Zipf | Sequence[float] | str | None = None,
    caps: Sequence[int] | None = None,
    tops: Sequence[int] | None = None,
    auto: bool = True,
    goal: str = "counts",
    **columns: Any,
) -> Simulation:
    """Predict what releases of this data would be worth, for many plans; NOT PRIVATE, for public data alone.

    `source` is what `dphist.release` takes, of data that is public, with `user` and `item` and, if need be,
    `table`, `query`, `where`, `input_format` and `null_items`. In its place `zipf` is (exponent, items, users) or
    (exponent, items, users, mean items of a user). Candidates are `caps`, `tops` (an empty list for none of them)
    and, with `auto`, a cap that is chosen privately. `goal` says what is recommended: the `counts` nearest to the
    truth, the most `keys`, or the least missing `mass`.

    >>> import dphist
    >>> made_up = dphist.simulate(zipf=(1.1, 10_000, 50_000), epsilon=1, delta=1e-6, auto=False)
    >>> made_up.private
    False
    """
    budget, wanted = Budget(epsilon, delta), _goal(goal)
    # What is wrong with these is said before anything is read.
    caps_to_try(1, caps)
    tops_to_try(1, tops)
    if (source is None) == (zipf is None):
        raise InvalidParameter("give public data or a law for made-up data (zipf), and not both")
    if zipf is None:
        population = _count_population(source, budget, caps, columns)
    else:
        if columns:
            raise InvalidParameter(f"made-up data has no {next(iter(columns))!r}")
        population = zipf_from(zipf).population(caps)
    return Simulation(population, budget, wanted, _candidates(population, budget, caps, tops, auto))


def _count_population(
    source: Any, budget: Budget, caps: Sequence[int] | None, columns: dict[str, Any]
) -> Population:
    allowed = {"user", "item", "table", "query", "where", "input_format", "null_items"}
    for name in columns:
        if name not in allowed:
            raise InvalidParameter(f"simulate has no {name!r}")
    for name in ("user", "item"):
        if columns.get(name) is None:
            raise InvalidParameter(f"the column of the {name} must be given")
    given = {name: value for name, value in columns.items() if value is not None}
    # As a release reads it, so that the same columns mean the same.
    request = Request(
        input=source, epsilon=budget.epsilon, delta=budget.delta, max_items_per_user=1, engine="duckdb", **given
    )
    label = os.path.basename(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "a frame"
    return population_of(request.events(), label, caps)


def _candidates(
    population: Population, budget: Budget, caps: Sequence[int] | None, tops: Sequence[int] | None, auto: bool
) -> tuple[Prediction, ...]:
    found = [capped(budget, cap, population) for cap in caps_to_try(population.largest, caps)]
    if auto:
        found.append(predict_chosen_cap(budget, population))
    found += [topped(budget, top, population) for top in tops_to_try(population.items, tops)]
    if not found:
        raise InvalidParameter("there is no candidate: give caps, tops or auto")
    return tuple(found)


def _goal(goal: str) -> Goal:
    for one in GOALS:
        if goal == one:
            return one
    raise InvalidParameter(f"the goal must be one of {', '.join(GOALS)}, not {goal!r}")
