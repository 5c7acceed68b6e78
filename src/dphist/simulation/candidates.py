"""The candidates: caps, top-k steps and a cap that is chosen privately, each with its plan and its prediction."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from dphist.calibrate.auto_cap import ChoicePlan, chosen_cap
from dphist.calibrate.planning import plan as make_plan
from dphist.mechanisms.sizes import noisy_sizes
from dphist.releases.choosing import choice_for
from dphist.sampling.tap import SeededTap
from dphist.simulation.notice import NOTICE
from dphist.simulation.population import Population
from dphist.simulation.prediction import BANDS, Totals, mixed, totals_of
from dphist.types import Budget, Plan, html_table, text_table
from dphist.types.checks import positive_count

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


def predicted(kind: Kind, value: int | None, plan: Plan, totals: Totals, population: Population) -> Prediction:
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
    return predicted("cap", cap, plan, totals_of(plan, population, cap=cap), population)


def topped(budget: Budget, top: int, population: Population) -> Prediction:
    """A top-k step."""
    plan = make_plan(epsilon=budget.epsilon, delta=budget.delta, top=top)
    return predicted("top", top, plan, totals_of(plan, population), population)


def chosen(budget: Budget, population: Population) -> Prediction:
    """A cap that is chosen privately, for its share of the budget: all that it takes, by how often it does."""
    planned = choice_for(budget)
    caps = tuple(_shares(planned, population))
    parts = [(share, totals_of(planned.plan(cap), population, cap=cap)) for cap, share in caps]
    commonest = planned.plan(max(caps, key=lambda pair: pair[1])[0])
    found = predicted("auto", None, commonest, mixed(parts), population)
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
