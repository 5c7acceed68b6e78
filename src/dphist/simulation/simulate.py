"""`simulate`: the utility of candidate plans side by side, with a recommendation, before any budget is spent."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, get_args

from dphist.aliases import JsonObject
from dphist.counting.task import is_stream
from dphist.display import html_grid, text_grid
from dphist.errors import InvalidParameter, one_of, positive_count
from dphist.model import Budget, Plan
from dphist.planning.planner import plan as make_plan
from dphist.planning.rounds import RoundsGoal
from dphist.simulation.population import NOTICE, Population, Zipf, population_of, reading_request, zipf_from
from dphist.simulation.predict import totals_of
from dphist.simulation.rounds import TooLarge, totals_in_rounds

Goal = Literal["accuracy", "keys", "mass"]
# A release in rounds with one of its goals, a limit on the items of a user, or a top-k step.
Kind = Literal["goal", "limit", "top"]
DEFAULT_LIMITS: Final = tuple(sorted({1, *(2**n for n in range(1, 13)), *(3 * 2**n for n in range(11))}))
DEFAULT_TOPS: Final = (10, 100, 1_000, 10_000, 100_000)
# In expected items: means need `_SOME`, tables show nothing below `_SHOWN`, which they round to 0.0, and below
# `_HARDLY_ANY` no candidate is recommended.
_SOME: Final = 1e-3
_SHOWN: Final = 0.05
_HARDLY_ANY: Final = 0.5
_NUMBERS: Final = ("items", "items_deviation", "missing", "mean_error", "relative_error", "bias", "distance")


@dataclass(frozen=True, repr=False)
class Prediction:
    """What one candidate would release: expected values, none of them private.

    `items`: released items, with the standard deviation `items_deviation`. `missing`: the share of all (user,
    item) pairs that are not in released counts, because their item is not released or the limit drops them.
    `mean_error` and `relative_error`: the mean distance of a released count from the true one, including the
    effect of the limit. `bias`: the mean of released minus true. `distance`: the sum of |count - true| over all
    items (count 0 if not released) over the sum of all counts.
    """

    kind: Kind
    value: int | str
    plan: Plan
    items: float
    items_deviation: float
    missing: float
    mean_error: float | None
    relative_error: float | None
    bias: float | None
    distance: float

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `dphist.release` that make this candidate."""
        return {_OPTIONS[self.kind]: self.value}

    @property
    def name(self) -> str:
        """The options in Python syntax."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())

    @property
    def flags(self) -> str:
        """The options in command line syntax."""
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.options.items())

    def __repr__(self) -> str:
        return f"<Prediction for {self.name}: {self.items:,.1f} items. {NOTICE}>"

    def to_dict(self) -> JsonObject:
        return {
            "private": False,
            "notice": NOTICE,
            "option": self.flags,
            "mechanism": self.plan.mechanism,
            # In rounds, counts differ in their noise, and weights are compared with limits.
            "total_noise": None if self.kind == "goal" else self.plan.total_noise,
            "threshold": None if self.kind == "goal" else self.plan.threshold,
            **{name: getattr(self, name) for name in _NUMBERS},
        }

    def cells(self, *, star: bool) -> tuple[str, ...]:
        # Errors of items that are hardly ever released are meaningless.
        none = self.mean_error is None or self.items < _SHOWN
        noise, threshold = self.plan.total_noise, self.plan.threshold
        plan = ("-", "-") if self.kind == "goal" else (f"{noise:,.1f}", f"{threshold:,.1f}")
        return (
            f"{self.kind} {self.value}" + (" *" if star else ""),
            *plan,
            f"{self.items:,.1f}",
            f"{self.items_deviation:,.1f}",
            f"{self.missing:.1%}",
            "-" if none else f"{self.mean_error:,.2f}",
            "-" if none or self.relative_error is None else f"{self.relative_error:.2%}",
            "-" if none or self.bias is None else f"{self.bias:+,.2f}",
            f"{self.distance:.4f}",
        )


_OPTIONS: Final[dict[Kind, str]] = {"goal": "goal", "limit": "max_items_per_user", "top": "top"}


def predict(budget: Budget, population: Population, kind: Kind, value: int | str) -> Prediction:
    """From sums to means, which are None if less than a thousandth of an item is expected."""
    chosen: dict[str, Any] = {_OPTIONS[kind]: value}
    plan = make_plan(epsilon=budget.epsilon, delta=budget.delta, **chosen)
    if kind == "goal":
        totals = totals_in_rounds(plan, population)
    else:
        totals = totals_of(plan, population, limit=None if kind == "top" else int(value))
    released, pairs = totals.released, float(population.counts @ population.number)
    some = released >= _SOME
    return Prediction(
        kind=kind,
        value=value,
        plan=plan,
        items=released,
        items_deviation=math.sqrt(max(0.0, totals.variance)),
        missing=min(1.0, max(0.0, 1.0 - totals.kept / pairs)),
        mean_error=totals.distance / released if some else None,
        relative_error=totals.relative / released if some else None,
        bias=totals.error / released if some else None,
        distance=(totals.missed + totals.distance) / pairs,
    )


def default_limits(largest: int) -> tuple[int, ...]:
    """The standard limits, up to the first that drops nothing."""
    below = tuple(limit for limit in DEFAULT_LIMITS if limit < largest)
    return (*below, *DEFAULT_LIMITS[len(below) : len(below) + 1])


_WANTED: Final = {
    "accuracy": "its published numbers are nearest to the true counts",
    "keys": "it releases the most items",
    "mass": "its counts miss the fewest users",
}
_KINDS: Final[dict[Kind, str]] = {
    "goal": "the default, without a limit",
    "limit": "the best limit",
    "top": "the best top-k step",
}


@dataclass(frozen=True, repr=False)
class Simulation:
    """Predictions for one population and one budget. NOT PRIVATE: never make it from private data.

    Attributes:
        population: The public or synthetic data.
        budget: The ε and δ.
        goal: What the recommendation is for.
        candidates: The predictions, each with its `options`, `items`, `missing`, `mean_error` and `distance`.
        private: Always False.
    """

    population: Population
    budget: Budget
    goal: Goal
    candidates: tuple[Prediction, ...]

    private: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = (
        "candidate", "noise", "threshold", "items", "+-", "missing", "mean error", "relative", "bias", "distance",
    )  # fmt: skip

    @property
    def best(self) -> Prediction:
        """The candidate that is best for the goal."""
        return min(self.candidates, key=self._cost)

    def best_of(self, kind: Kind) -> Prediction | None:
        """The best candidate of a `kind`: goal (in rounds), limit or top."""
        return min((each for each in self.candidates if each.kind == kind), key=self._cost, default=None)

    def _cost(self, candidate: Prediction) -> float:
        costs = {"accuracy": candidate.distance, "keys": -candidate.items, "mass": candidate.missing}
        return costs[self.goal]

    @property
    def hopeless(self) -> bool:
        """Whether no candidate is expected to release an item, so that none is recommended."""
        return max(candidate.items for candidate in self.candidates) < _HARDLY_ANY

    def recommendation(self, *, flags: bool = False) -> str:
        """The recommendation, with its options as keyword arguments or as `flags`."""
        best = self.best
        if self.hopeless:
            most = max(candidate.items for candidate in self.candidates)
            return (
                f"Choose none of them: at most {most:.2g} items are expected to be released. Use more users, a "
                "larger epsilon or delta, or items that more users share."
            )
        others = []
        for kind, label in _KINDS.items():
            other = self.best_of(kind)
            if other is not None and other is not best:
                name = other.flags if flags else other.name
                others.append(f"{label}, {name}, has {self._figure(other)}")
        name = best.flags if flags else best.name
        return (
            f"Choose {name}: of all candidates, {_WANTED[self.goal]} ({self._figure(best)})"
            f"{''.join(f'; {text}' for text in others)}. {name} would publish about {best.items:,.0f} of "
            f"{self.population.items:,} items and {1.0 - best.missing:.1%} of all pairs."
        )

    def _figure(self, candidate: Prediction) -> str:
        if self.goal == "keys":
            return f"{candidate.items:,.0f} items"
        if self.goal == "mass":
            return f"{candidate.missing:.1%} missing"
        return f"a distance of {candidate.distance:.4f}"

    @property
    def title(self) -> str:
        data = self.population
        return (
            f"{data.label}: {data.users:,} users, {data.items:,} items, {data.pairs:,} pairs; "
            f"epsilon = {self.budget.epsilon:g}, delta = {self.budget.delta:g}"
        )

    def table(self) -> list[JsonObject]:
        """One row per candidate, for `pandas.DataFrame`."""
        rows = [{**candidate.to_dict(), "option": candidate.name} for candidate in self.candidates]
        return [{key: value for key, value in row.items() if key != "private"} for row in rows]

    def cells(self) -> list[tuple[str, ...]]:
        best = None if self.hopeless else self.best
        return [candidate.cells(star=candidate is best) for candidate in self.candidates]

    def to_dict(self) -> JsonObject:
        """The keys of `dphist simulate --json`."""
        data = self.population
        return {
            "private": False,
            "notice": NOTICE,
            "population": {
                "name": data.label, "users": data.users, "items": data.items, "pairs": data.pairs,
                "most_items_of_a_user": data.largest, "largest_count": int(data.counts.max()),
            },
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "goal": self.goal,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "recommended": {
                "option": None if self.hopeless else self.best.flags,
                **{kind: getattr(self.best_of(kind), "value", None) for kind in _KINDS},
                "reason": self.recommendation(flags=True),
            },
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<Simulation of {len(self.candidates)} candidates for {self.title}. {NOTICE}>"

    def __str__(self) -> str:
        return "\n".join(
            [NOTICE, self.title, "", text_grid(self.columns, self.cells()), "", self.recommendation()]
        )

    def _repr_html_(self) -> str:
        return html_grid(f"{self.title}. {self.recommendation()}", self.columns, self.cells(), warning=NOTICE)


def simulate(
    input: object = None,
    *,
    epsilon: float,
    delta: float,
    zipf: Zipf | Sequence[float] | str | None = None,
    limits: Sequence[int] | None = None,
    tops: Sequence[int] | None = None,
    goal: str = "accuracy",
    **columns: Any,
) -> Simulation:
    """Predict the utility of releases of this data, for many plans. NOT PRIVATE: use public data only.

    Candidates are the default with both of its goals, `limits` per user and `tops`.

    >>> import dphist
    >>> found = dphist.simulate(zipf=(1.1, 10_000, 50_000), epsilon=1, delta=1e-6, limits=[1, 4, 16], tops=[])
    >>> print(f"{found.best.name}: about {found.best.items:.0f} items")
    goal='accuracy': about 997 items

    Args:
        input: Public data, in any form that `dphist.release` reads.
        epsilon: Privacy loss ε, above 0.
        delta: Probability that the ε guarantee may fail.
        zipf: Synthetic data instead: (exponent, items, users), or with the mean number of items per user.
        limits: Limits per user to try; an empty list for none.
        tops: Top-k steps to try; an empty list for none.
        goal: What to recommend for: "accuracy" of the counts, many "keys", or little missing "mass".
        **columns: What is read, as for `dphist.release`: `user`, `item`, `total`, `table`, `query`, `where`,
            `input_format`, `encoding`, `delimiter`, `decimal` and `null_items`.
    """
    budget, wanted = Budget(epsilon, delta), one_of("goal", goal, get_args(Goal))
    # Checked before any data is read.
    given_limits, given_tops = _whole_numbers("limits", limits), _whole_numbers("tops", tops)
    if (input is None) == (zipf is None):
        which = " or <--zipf>, not both" if zipf is not None else ", or <--zipf> for synthetic data"
        raise InvalidParameter(f"give public data{which}")
    if zipf is None:
        population = _count_population(input, budget, columns)
    elif columns:
        raise InvalidParameter(f"synthetic data has no {next(iter(columns))!r}")
    else:
        population = zipf_from(zipf).population()
    bounds = default_limits(population.largest) if given_limits is None else given_limits
    steps = [top for top in DEFAULT_TOPS if top < population.items] if given_tops is None else given_tops
    candidates = []
    with suppress(TooLarge):
        candidates += [predict(budget, population, "goal", one) for one in get_args(RoundsGoal)]
    candidates += [predict(budget, population, "limit", limit) for limit in bounds]
    candidates += [predict(budget, population, "top", top) for top in steps]
    if not candidates:
        raise InvalidParameter("there is no candidate: give <--limits> or <--tops>")
    return Simulation(population, budget, wanted, tuple(candidates))


def _whole_numbers(name: str, given: Sequence[int] | None) -> list[int] | None:
    return None if given is None else sorted({positive_count(f"each of the {name}", number) for number in given})


def _count_population(source: object, budget: Budget, columns: dict[str, Any]) -> Population:
    allowed = {
        "user", "item", "total", "table", "query", "where", "input_format", "encoding", "delimiter", "decimal",
        "null_items",
    }  # fmt: skip
    request = reading_request(source, budget, "simulate", allowed, columns)
    label = "an Arrow stream" if is_stream(source) else "a frame"
    if isinstance(source, (str, os.PathLike)):
        label = os.path.basename(os.fspath(source))
    return population_of(request.events(), label)
