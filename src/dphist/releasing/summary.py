"""What a reader of a release needs first: how many items, how exact, what is hidden, how private; and warnings.

Everything follows from the plan, the request and the released numbers. The command, `print(release)`, `verify` and
the report all take their words from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.display import count_items, figure, fill, join_words, plain_number
from dphist.planning.utility import ESTIMATES, Correction, Verdict, count_noise, half_width, verdict_of
from dphist.privacy.types import Budget, Plan, PublicNoise
from dphist.releasing.aggregates import aggregates_of, sum_error, sums_with_noise
from dphist.releasing.document import caveats, conditions, is_difference

NOT_PRIVATE: Final = "NOT PRIVATE: the noise was made from a seed"
INTERVALS_OF_NOISE: Final = (
    "Intervals cover noise, not what the user limit leaves out: true numbers of users may be higher."
)
INTERVALS_OF_ESTIMATES: Final = (
    "Intervals of estimates include what the user limit leaves out, as estimated; those of counts do not."
)
ROUGH_ESTIMATES: Final = (
    "Estimates are rough: at this ε the numbers of active users are mostly noise, so what the limit leaves out "
    "was guessed from typical data. Estimates may be off by more than their intervals; counts are not affected."
)
LEVEL: Final = 0.95
_MOST_WARNINGS: Final = 3
# With so few items a release explains itself.
_FEW: Final = 5
# Conditions and caveats that change how the numbers are read, the most important first.
_CONDITIONS: Final = ("one-update-per-user", "query", "max-nonzero", "counts-per-user")
_CAVEATS: Final = (
    "differences", "reduced", "perhaps-reduced", "user-limit", "spread", "estimate", "sketch",
    "sketch-with-offset", "clamped-sums", "shared-noise",
)  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """The first lines about a release: facts as numbers, and in words."""

    headline: str
    margin: float
    margin_words: str
    hidden_below: int | None
    hidden_words: str
    limit_words: str
    limit_leaves_out: bool
    left_out: float | None
    budget: Budget
    verdict: Verdict
    private: bool
    why_few: str
    warnings: tuple[str, ...]

    def rows(self) -> list[tuple[str, str]]:
        """Labels and texts."""
        budget = f"ε = {plain_number(self.budget.epsilon)}, δ = {plain_number(self.budget.delta)} for each user"
        privacy = f"{budget}; {self.verdict.sentence}" if self.private else "none: the noise was made from a seed"
        return [
            ("Margin of error", self.margin_words),
            ("Mostly hidden", self.hidden_words),
            ("User limit", self.limit_words),
            ("Privacy", privacy),
        ]

    def lines(self, table: str) -> list[str]:
        """The whole text: the first lines, the table, and the warnings."""
        width = max(len(label) for label, _ in self.rows())
        found = [self.headline, *(fill(text, f"{label:<{width}}  ") for label, text in self.rows())]
        found += ["", table] if table else []
        notes = [*([self.why_few] if self.why_few else []), *map(self._with_label, self.warnings)]
        found += [line for note in notes for line in ("", fill(note))]
        return found if self.private else [NOT_PRIVATE, *found]

    def _with_label(self, text: str) -> str:
        return f"{'Warning' if text in self.verdict.warnings else 'Note'}: {text}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "headline": self.headline,
            "margin": self.margin,
            "hidden_below": self.hidden_below,
            "left_out": self.left_out,
            "verdict": self.verdict.level if self.private else "not private",
            "rows": [{"label": label, "text": text} for label, text in self.rows()],
            "why_few": self.why_few or None,
            "warnings": list(self.warnings),
        }


def summarize(
    plan: Plan,
    request: Mapping[str, Any],
    budget: Budget,
    *,
    items: int,
    largest: float | None,
    correction: Correction | None = None,
    rough: bool = False,
    private: bool = True,
) -> Summary:
    """The summary of a release of so many `items`, whose `largest` count is this. `rough`: see `Chosen`."""
    verdict = verdict_of(budget, None if is_difference(plan, request) else largest)
    # What only noise and a model have said is not repeated.
    chosen, correction = correction is not None, None if rough else correction
    hidden = _hidden_below(plan, request, correction)
    codes = [code for code in _CAVEATS if code not in (("user-limit", "spread") if chosen else ())]
    warnings = [
        *(verdict.warnings if private else ()),
        *conditions(plan, request, _CONDITIONS),
        *([ROUGH_ESTIMATES] if rough else []),
        *caveats(plan, request, [code for code in codes if code != "estimate" or not rough]),
    ]
    return Summary(
        headline=_headline(plan, request, items),
        margin=half_width(plan, LEVEL),
        margin_words=_margin_words(plan, request, largest, correction),
        hidden_below=hidden,
        hidden_words=_hidden_words(plan, request, hidden, correction),
        limit_words=_limit_words(plan, request, largest, correction, chosen=chosen),
        limit_leaves_out=_drops(plan, request),
        left_out=None if correction is None else 1.0 - 1.0 / correction.factor,
        budget=budget,
        verdict=verdict,
        private=private,
        why_few=_why_few(plan, request, items, hidden),
        warnings=tuple(warnings[:_MOST_WARNINGS]),
    )


def _headline(plan: Plan, request: Mapping[str, Any], items: int) -> str:
    top = request.get("top")
    if top is not None and items < top:
        return f"{items:,} of at most {count_items(top)} stood out"
    if isinstance(plan.noise, PublicNoise):
        return f"{count_items(items)} released, all of a public list"
    return f"{count_items(items)} released"


def _margin_words(
    plan: Plan, request: Mapping[str, Any], largest: float | None, correction: Correction | None
) -> str:
    """The margin of every kind of number that is published."""
    width = half_width(plan, LEVEL)
    parts = [f"±{figure(_two_digits(width))} per count"]
    if correction is not None and largest is not None:
        least = 0.0 if math.isinf(plan.threshold) else plan.threshold
        few, many = _estimate_margins(np.array([min(least, largest), largest]), width, correction)
        parts.append(
            f"±{figure(few)} to ±{figure(many)} per estimate" if many > few else f"±{figure(few)} per estimate"
        )
    parts += [
        f"±{figure(_two_digits(1.96 * sum_error(plan, noise)))} per {one.name}"
        for one, noise in sums_with_noise(plan, aggregates_of(request))
        if one.kind == "sum"
    ]
    return f"{join_words(parts)} (95 %)"


def _estimate_margins(counts: NDArray[Any], width: float, correction: Correction) -> list[float]:
    factors, errors = correction.factors_at(counts), 1.96 * np.abs(counts) * correction.errors_at(counts)
    return [_two_digits(float(one)) for one in np.hypot(width * factors, errors)]


def _two_digits(number: float) -> float:
    """A margin to two digits, rounded up."""
    if number <= 0.0 or not math.isfinite(number):
        return number
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{math.ceil(number / step - 1e-9) * step:.2g}")


def _hidden_below(plan: Plan, request: Mapping[str, Any], correction: Correction | None) -> int | None:
    """The number of users with which an item is as likely to be released as not."""
    if isinstance(plan.noise, PublicNoise):
        return None
    even = count_noise(plan.noise).passing_count(0.5) + int(request.get("lower-threshold", 1)) - 1
    return even if correction is None else math.ceil(even * correction.factor)


def _hidden_words(
    plan: Plan, request: Mapping[str, Any], hidden: int | None, correction: Correction | None
) -> str:
    if hidden is None:
        return "nothing: every item of the list is released"
    if plan.releases_offset or is_difference(plan, request):
        return (
            f"items with fewer than {hidden:,} users more than the item of rank {plan.contract.nonzero + 1:,.0f}"
        )
    if "sketch" in request:
        return f"items with fewer than {hidden:,} in the sketch"
    about = "about " if correction is not None else ""
    counted = "users" if correction is not None or not _drops(plan, request) else "counted users"
    return f"items with fewer than {about}{hidden:,} {counted}"


def _drops(plan: Plan, request: Mapping[str, Any]) -> bool:
    """Whether a limit on the items of a user is applied that can leave something out."""
    most = plan.contract.max_nonzero
    kept_by_top = "top" in request and most is not None
    as_long_as_list = isinstance(plan.noise, PublicNoise) and plan.contract.items == most
    return "max-items-per-user" in request and not kept_by_top and not as_long_as_list


def _limit_words(
    plan: Plan, request: Mapping[str, Any], largest: float | None, correction: Correction | None, *, chosen: bool
) -> str:
    limit, most = plan.contract.items, plan.contract.spread
    if not request:
        return f"{count_items(limit)} per user, as declared by the caller"
    if not _drops(plan, request):
        return "none: every item of every user counts"
    words = f"{count_items(limit)} per user"
    if most is not None:
        words += f" in full; of users with more, up to {most:,} items, each with a smaller weight"
    elif not chosen:
        words += f"; users with more contribute a random {limit:,} of them"
    if not chosen:
        return f"{words} (how much that leaves out is not measured)"
    if correction is None:
        return f"{words}; chosen privately; what it leaves out is not known"
    factors = correction.factors_at([largest or 0.0, 0.0])
    few, many = (round(100.0 * (1.0 - 1.0 / float(factor))) for factor in factors)
    share = f"{few}" if few == many else f"{few} to {many}"
    return f"{words}; chosen privately; lowers counts by about {share} %, which the estimates correct"


def _why_few(plan: Plan, request: Mapping[str, Any], items: int, hidden: int | None) -> str:
    """Why there are so few items, and what to try."""
    if hidden is None or items > _FEW:
        return ""
    if plan.releases_offset or is_difference(plan, request):
        rank = f"{plan.contract.nonzero + 1:,.0f}"
        why = f"An item is released if it has about {hidden:,} users more than the item of rank {rank}."
        tries = ["a smaller top", "a larger ε"]
    else:
        why = f"An item needs about {hidden:,} users to be released."
        tries = [
            "data of more users",
            "coarser items (such as categories, or days instead of seconds)",
            "a larger ε",
        ]
        if request.get("max-items-per-user") == "auto" and request.get("goal") != "keys":
            tries.append("the goal keys")
        elif _drops(plan, request) and plan.contract.items > 1:
            tries.append("a lower limit per user")
    how_many = "No item" if items == 0 else "Only 1 item" if items == 1 else f"Only {items} items"
    passed = "passed the threshold"
    return f"{how_many} {passed}. {why} To get more: {', '.join(tries[:-1])} or {tries[-1]}."


def column_digits(
    plan: Plan, request: Mapping[str, Any], counts: NDArray[Any], columns: Mapping[str, NDArray[Any]]
) -> dict[str, int]:
    """Decimals of each column of numbers: as many as its own error leaves. Whole numbers have none."""
    errors = {}
    # Means of large items are the more exact: one item in ten is larger than this.
    typical = max(1.0, float(np.quantile(counts, 0.9))) if plan.sums and counts.size else 1.0
    for one, noise in sums_with_noise(plan, aggregates_of(request)):
        errors[one.name] = sum_error(plan, noise) if one.kind == "sum" else noise.sigma / typical

    def error_of(name: str) -> float:
        base = next((one for one in sorted(errors, key=len, reverse=True) if name.startswith(one)), None)
        error = plan.total_noise if base is None or name in ESTIMATES else errors[base]
        return error if name.endswith("_standard_error") else 1.96 * error

    return {
        name: 0
        if values.dtype.kind == "i"
        else min(12, max(0, 1 - math.floor(math.log10(max(error_of(name), 1e-12)))))
        for name, values in columns.items()
    }
