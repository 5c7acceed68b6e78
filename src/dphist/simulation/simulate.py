"""`simulate`: the utility of candidate plans before privacy is spent, side by side, with a recommendation."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from dphist.display import html_grid, html_table, text_grid, text_table
from dphist.errors import InvalidParameter, positive_count
from dphist.planning.auto_cap import choose_plan, excess_of
from dphist.planning.planner import Excess
from dphist.planning.planner import plan as make_plan
from dphist.privacy.types import Budget, Plan
from dphist.releasing.document import choice_for
from dphist.releasing.noise import noisy_sizes
from dphist.releasing.request import Request
from dphist.sampling.tap import SeededTap
from dphist.simulation.population import NOTICE, Population, Zipf, caps_to_try, population_of, zipf_from
from dphist.simulation.predict import BANDS, Totals, in_bands, mixed, totals_of

# What a recommendation is for.
Goal = Literal["counts", "keys", "mass"]
GOALS: Final[tuple[Goal, ...]] = get_args(Goal)

# The candidates: limits that drop or spread the excess, top-k steps and a limit that is chosen privately, each
# with its plan and its prediction.

Kind = Literal["cap", "spread", "top", "auto"]
DEFAULT_TOPS: Final = (10, 100, 1_000, 10_000, 100_000)
# Enough to know which limits a private choice takes: the noise moves it between neighbours.
_TRIALS: Final = 64
# Expected items from which on means over them are given.
_SOME: Final = 1e-3


@dataclass(frozen=True, repr=False)
class Prediction:
    """What one candidate would release: expectations, none of them private.

    `items` are released, with the standard deviation `items_deviation`. `missing` is the share of all (user, item)
    pairs that are not in released counts: their item is not released, the limit has dropped them, or spread has
    lowered their weight. `mean_error` and `relative_error` are the mean distance of a released count from the true
    one, limit included; `bias` is the mean of released less true. `distance` is the sum of |count - true| over all
    items, those that are not published as zero, over the sum of all counts. `estimate_distance` is the same for
    estimates, which are counts times `correction`. `bands` are released items by true counts, and `estimate_bias`
    is the mean of (estimate - true)/true over them. `limits` are what a private choice takes, with their chances.
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
    correction: float
    estimate_distance: float
    bands: tuple[tuple[int, float], ...]
    estimate_bias: tuple[tuple[int, float | None], ...]
    limits: tuple[tuple[int, Excess, float], ...] = ()

    @property
    def name(self) -> str:
        """The option of `dphist release`."""
        if self.kind == "top":
            return f"--top {self.value}"
        limit = f"--max-items-per-user {'auto' if self.value is None else self.value}"
        return f"{limit} --excess spread" if self.kind == "spread" else limit

    @property
    def published_distance(self) -> float:
        """Of the estimates, which a release has if its limit is chosen privately; else of the counts."""
        return self.estimate_distance if self.kind == "auto" else self.distance

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people."""
        bands = [f"{low:,} users or more: {items:,.1f}" for low, items in self.bands if items >= 0.05]
        errors = [f"{low:,} users or more: {bias:+.1%}" for low, bias in self.estimate_bias if bias is not None]
        told = [
            ("items released", f"{self.items:,.1f} +- {self.items_deviation:,.1f}"),
            ("of items with", "; ".join(bands) or "-"),
            ("share of pairs missing", f"{self.missing:.1%}"),
            ("mean error", "-" if self.mean_error is None else f"{self.mean_error:,.2f}"),
            ("relative error", "-" if self.relative_error is None else f"{self.relative_error:.2%}"),
            ("bias", "-" if self.bias is None else f"{self.bias:+,.2f}"),
            ("distance", f"{self.distance:.4f}"),
            ("distance of estimates", f"{self.estimate_distance:.4f}, with the correction {self.correction:.4g}"),
            ("bias of estimates of", "; ".join(errors) or "-"),
        ]
        limits = ", ".join(f"{limit:,} {excess} ({chance:.0%})" for limit, excess, chance in self.limits)
        return [*told, ("limits taken", limits)] if limits else told

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
            "correction": self.correction,
            "estimate_distance": self.estimate_distance,
            "items_by_true_count": [
                {"from": low, "items": items, "estimate_bias": bias}
                for (low, items), (_, bias) in zip(self.bands, self.estimate_bias, strict=True)
            ],
            **({"caps": [dict(zip(("cap", "excess", "chance"), one, strict=True)) for one in self.limits]}
               if self.limits else {}),
        }  # fmt: skip


def make_prediction(
    kind: Kind, value: int | None, plan: Plan, totals: Totals, population: Population
) -> Prediction:
    """From sums to means; where less than a thousandth of an item is expected there are none."""
    released, pairs = totals.released, float(population.counts @ population.number)
    some = released >= _SOME
    bands = totals.bands.tolist()
    errors = [
        error / items if items >= _SOME else None
        for error, items in zip(totals.estimate_errors.tolist(), bands, strict=True)
    ]
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
        correction=totals.factor,
        estimate_distance=(totals.missed + totals.estimate) / pairs,
        bands=tuple(zip(BANDS, bands, strict=True)),
        estimate_bias=tuple(zip(BANDS, errors, strict=True)),
    )


def capped(budget: Budget, cap: int, population: Population, excess: Excess = "drop") -> Prediction:
    """A limit by number."""
    plan = make_plan(epsilon=budget.epsilon, delta=budget.delta, max_items_per_user=cap, excess=excess)
    kind: Kind = "cap" if excess == "drop" else "spread"
    return make_prediction(kind, cap, plan, totals_of(plan, population, cap=cap), population)


def topped(budget: Budget, top: int, population: Population) -> Prediction:
    """A top-k step."""
    plan = make_plan(epsilon=budget.epsilon, delta=budget.delta, top=top)
    return make_prediction("top", top, plan, totals_of(plan, population), population)


def predict_chosen_limit(budget: Budget, population: Population, goal: Goal = "counts") -> Prediction:
    """A limit that is chosen privately, for its share of the budget: all that it takes, by how often it does.

    The draws come from a seed: nothing here is private anyway. The correction is that of each draw.
    """
    planned = choice_for(budget, goal="keys" if goal == "keys" else "accuracy")
    tap, sizes = SeededTap(1), population.buckets(planned.choice.caps)
    draws = [choose_plan(planned, noisy_sizes(planned.choice, sizes, tap)) for _ in range(_TRIALS)]
    parts = [
        (1.0 / _TRIALS, totals_of(plan, population, cap=plan.contract.items, correction=correction))
        for plan, correction in draws
    ]
    taken = Counter((plan.contract.items, excess_of(plan)) for plan, _ in draws)
    commonest = planned.plan(*taken.most_common(1)[0][0])
    found = make_prediction("auto", None, commonest, mixed(parts), population)
    limits = tuple((limit, excess, number / _TRIALS) for (limit, excess), number in sorted(taken.items()))
    return replace(found, limits=limits)


def tops_to_try(items: int, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """The numbers that were given; else the usual ones below the number of items."""
    if given is not None:
        return tuple(sorted({positive_count("each of the tops", top) for top in given}))
    return tuple(top for top in DEFAULT_TOPS if top < items)


# The result of a simulation: candidates side by side, and which of them to take.

_COLUMNS: Final = (
    "candidate", "noise", "threshold", "items", "+-", "missing", "mean error", "relative", "bias", "distance",
    "estimate",
)  # fmt: skip
_BIAS_COLUMNS: Final = ("true count from", "items", "released", "bias of estimates")
# Expected items below which nothing is recommended.
_HARDLY_ANY: Final = 0.5
# Expected items that are 0.0 in the table.
_SHOWN: Final = 0.05
_WANTED: Final = {
    "counts": "the published numbers are nearest to the true counts",
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
        """The candidate to take."""
        return self._best(list(self.candidates))

    @property
    def best_cap(self) -> Prediction | None:
        """The best limit by number that drops the excess."""
        return self._best_of("cap")

    @property
    def best_spread(self) -> Prediction | None:
        """The best limit by number that spreads the excess."""
        return self._best_of("spread")

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
        return {"counts": one.published_distance, "keys": -one.items, "mass": one.missing}[self.goal]

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
        kinds = (
            ("the best limit that drops", self.best_cap),
            ("the best limit that spreads", self.best_spread),
            ("the best top-k step", self.best_top),
            ("a limit chosen privately", self._best_of("auto")),
        )
        for label, one in kinds:
            if one is not None and one is not best:
                name = "" if one.kind == "auto" else f", {one.name},"
                others.append(f"{label}{name} has {self._figure(one)}")
        against = "" if not others else "; " + ", ".join(others)
        there = f"of what was tried, there {_WANTED[self.goal]} ({self._figure(best)})"
        kept = (
            f"about {best.items:,.0f} of {self.population.items:,} items and {1.0 - best.missing:.1%} of all pairs"
        )
        return f"Take {best.name}: {there}{against}. {best.name} would publish {kept}."

    def _figure(self, one: Prediction) -> str:
        if self.goal == "keys":
            return f"{one.items:,.0f} items"
        if self.goal == "mass":
            return f"{one.missing:.1%} missing"
        return f"a distance of {one.published_distance:.4f}{' for its estimates' if one.kind == 'auto' else ''}"

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

    @property
    def bias_title(self) -> str:
        """What `bias_cells` are."""
        return (
            f"Estimates ({self.best.correction:.4g} * count) with {self.best.name}: mean of "
            "(estimate - true)/true over the released items, by true count"
        )

    @property
    def bias_columns(self) -> tuple[str, ...]:
        """Names above the columns of `bias_cells`."""
        return _BIAS_COLUMNS

    def bias_cells(self) -> list[tuple[str, ...]]:
        """For the best candidate: how far its estimates are off on average, by true counts."""
        rows = zip(in_bands(self.population), self.best.bands, self.best.estimate_bias, strict=True)
        return [
            (f"{low:,}", f"{items:,}", f"{released:,.1f}", "-" if bias is None else f"{bias:+.1%}")
            for (low, items), (_, released), (_, bias) in rows
            if items and released >= _SHOWN
        ]

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
                "spread": None if self.best_spread is None else self.best_spread.value,
                "top": None if self.best_top is None else self.best_top.value,
                "reason": self.reason,
            },
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<Simulation of {len(self.candidates)} candidates for {self.title}. {NOTICE}>"

    def __str__(self) -> str:
        bias = [] if self.hopeless else [self.bias_title, text_grid(self.bias_columns, self.bias_cells()), ""]
        found = text_grid(self.columns, self.cells())
        return "\n".join([NOTICE, self.title, "", found, "", *bias, self.reason])

    def _repr_html_(self) -> str:
        return html_grid(f"{self.title}. {self.reason}", self.columns, self.cells(), warning=NOTICE)


def _cells(one: Prediction, *, star: bool) -> tuple[str, ...]:
    # Errors of what is hardly ever released say nothing.
    none, fixed = one.mean_error is None or one.items < _SHOWN, one.kind != "auto"
    name = f"{one.kind} {one.value}" if fixed else "auto"
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
        f"{one.estimate_distance:.4f}",
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
    (exponent, items, users, mean items of a user). Candidates are limits (`caps`) that drop the excess and that
    spread it, `tops` (an empty list for none of them) and, with `auto`, a limit that is chosen privately. `goal`
    says what is recommended: the `counts` nearest to the truth, the most `keys`, or the least missing `mass`.

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
        population = _count_population(source, budget, columns)
    else:
        if columns:
            raise InvalidParameter(f"made-up data has no {next(iter(columns))!r}")
        population = zipf_from(zipf).population()
    return Simulation(population, budget, wanted, _candidates(population, budget, caps, tops, auto, wanted))


def _count_population(source: Any, budget: Budget, columns: dict[str, Any]) -> Population:
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
    return population_of(request.events(), label)


def _candidates(
    population: Population,
    budget: Budget,
    caps: Sequence[int] | None,
    tops: Sequence[int] | None,
    auto: bool,
    goal: Goal,
) -> tuple[Prediction, ...]:
    limits = caps_to_try(population.largest, caps)
    found = [capped(budget, limit, population) for limit in limits]
    # Where no user has more items there is nothing to spread.
    found += [capped(budget, limit, population, "spread") for limit in limits if limit < population.largest]
    if auto:
        found.append(predict_chosen_limit(budget, population, goal))
    found += [topped(budget, top, population) for top in tops_to_try(population.items, tops)]
    if not found:
        raise InvalidParameter("there is no candidate: give caps, tops or auto")
    return tuple(found)


def _goal(goal: str) -> Goal:
    for one in GOALS:
        if goal == one:
            return one
    raise InvalidParameter(f"the goal must be one of {', '.join(GOALS)}, not {goal!r}")
