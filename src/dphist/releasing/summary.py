"""The first lines about a release: how many items, how precise, what is hidden, how private; and warnings.

Everything follows from the plan, the request and the released numbers. The command, `print(release)`, `verify` and
the report share these words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from dphist.aliases import JsonObject, Numbers
from dphist.certificate.aggregates import sums_with_noise
from dphist.certificate.numbers import count_decimals, half_width, sum_error
from dphist.certificate.plans import is_difference
from dphist.certificate.request import AnyRequest, HistogramRequest, SketchRequest
from dphist.certificate.schema import Findings
from dphist.certificate.sentences import caveats, conditions
from dphist.display import count_items, figure, fill, join_words, plain_number
from dphist.model import Budget, Plan
from dphist.planning.utility import count_noise
from dphist.proof.verdict import Verdict, guess_words, verdict_of
from dphist.releasing.plausibility import NOTHING

NOT_PRIVATE: Final = "NOT PRIVATE: the noise was made from a seed"
_NO_PRIVACY: Final = "none: the noise was made from a seed"
INTERVALS_OF_NOISE: Final = (
    "Intervals cover noise, not what the user limit leaves out: true numbers of users may be higher."
)
LEVEL: Final = 0.95
_MOST_WARNINGS: Final = 3
# With at most this many items, the summary explains why.
_FEW: Final = 5
# Conditions and caveats that change how to read the numbers, the most important first.
_CONDITIONS: Final = ("one-update-per-user", "query", "max-nonzero", "counts-per-user", "one-per-count")
_CAVEATS: Final = (
    "differences", "reduced", "perhaps-reduced", "user-limit", "sketch", "sketch-with-offset", "clamped-sums",
    "shared-noise",
)  # fmt: skip


@dataclass(frozen=True)
class Summary:
    headline: str
    margin: float
    margin_words: str
    hidden_below: int | None
    hidden_words: str
    limit_words: str
    limit_leaves_out: bool
    budget: Budget
    verdict: Verdict
    private: bool
    why_few: str
    warnings: tuple[str, ...]
    query_condition: str | None  # one of the warnings: a query may combine rows of several users
    alarms: tuple[str, ...] = ()  # those of the warnings that say that numbers may not be what was meant

    def rows(self) -> list[tuple[str, str]]:
        privacy = f"{self._budget_words()} ({self.verdict.level})" if self.private else _NO_PRIVACY
        return [
            ("Margin of error", self.margin_words),
            ("Mostly hidden", self.hidden_words),
            ("User limit", self.limit_words),
            ("Privacy", privacy),
        ]

    @property
    def privacy_words(self) -> str:
        """What the budget guarantees, in full."""
        return f"{self._budget_words()}: {guess_words(self.budget)}" if self.private else _NO_PRIVACY

    def _budget_words(self) -> str:
        return f"ε = {plain_number(self.budget.epsilon)}, δ = {plain_number(self.budget.delta)} for each user"

    def lines(self, table: str) -> list[str]:
        """The whole text, with the table of released rows in its place."""
        width = max(len(label) for label, _ in self.rows())
        lines = [self.headline, *(fill(text, f"{label:<{width}}  ") for label, text in self.rows())]
        lines += ["", table] if table else []
        notes = [self.why_few] if self.why_few else []
        for text in self.warnings:
            serious = text in (*self.verdict.warnings, *self.alarms, self.query_condition)
            notes.append(f"{'Warning' if serious else 'Note'}: {text}")
        lines += [line for note in notes for line in ("", fill(note))]
        return lines if self.private else [NOT_PRIVATE, *lines]

    def to_dict(self) -> JsonObject:
        return {
            "headline": self.headline,
            "margin": self.margin,
            "hidden_below": self.hidden_below,
            "verdict": self.verdict.level if self.private else "not private",
            "rows": [{"label": label, "text": text} for label, text in self.rows()],
            "why_few": self.why_few or None,
            "warnings": list(self.warnings),
        }


def summarize(
    plan: Plan,
    request: AnyRequest,
    *,
    items: int,
    largest: float | None,
    private: bool = True,
    findings: Findings | None = None,
    margins: Numbers | None = None,
    alarms: Sequence[str] = (),
) -> Summary:
    """The summary of a release with this many `items` and this `largest` count.

    A release in rounds has `findings`, and a margin for each count. `alarms` are warnings about its numbers.
    """
    alarms = (*([] if items else [NOTHING]), *alarms)
    if findings is not None:
        return _of_rounds(
            plan, request, findings, margins, items=items, largest=largest, private=private, alarms=alarms
        )
    verdict = verdict_of(plan.budget, None if is_difference(plan, request) else largest)
    hidden = _hidden_below(plan, request)
    notes = caveats(plan, request, _CAVEATS)
    return _with_warnings(plan, request, verdict, notes, private=private, alarms=alarms)(
        headline=_headline(plan, request, items),
        margin=half_width(plan, LEVEL),
        margin_words=_margin_words(plan, request),
        hidden_below=hidden,
        hidden_words=_hidden_words(plan, request, hidden),
        limit_words=_limit_words(plan, request),
        limit_leaves_out=_drops(plan, request),
        why_few=_why_few(plan, request, items, hidden),
    )


def _with_warnings(
    plan: Plan, request: AnyRequest, verdict: Verdict, notes: list[str], *, private: bool, alarms: tuple[str, ...]
) -> Callable[..., Summary]:
    """A summary with its budget, its verdict and its warnings, the most important ones first."""
    of_budget = verdict.warnings if private else ()
    warnings = (*alarms, *of_budget, *conditions(plan, request, _CONDITIONS), *notes)
    query = next(iter(conditions(plan, request, ["query"])), None)
    return partial(
        Summary, budget=plan.budget, verdict=verdict, private=private, warnings=warnings[:_MOST_WARNINGS],
        query_condition=query, alarms=alarms,
    )  # fmt: skip


def _of_rounds(
    plan: Plan,
    request: AnyRequest,
    findings: Findings,
    margins: Numbers | None,
    *,
    items: int,
    largest: float | None,
    private: bool,
    alarms: tuple[str, ...],
) -> Summary:
    verdict, public = verdict_of(plan.budget, largest), request.items is not None
    most = int(plan.contract.items)
    margin = 0.0 if margins is None or not margins.size else float(np.median(margins))
    hidden = None if public else findings.needed
    words = "nothing: every item of the list is released"
    words = words if hidden is None else f"items with fewer than about {hidden:,} users"
    why_few = ""
    if hidden is not None and items <= _FEW:
        how_many = f"Only {count_items(items)} passed" if items else "No item passed"
        tries = ["data of more users", "coarser items (such as categories, or days instead of seconds)"]
        tries += ["a larger ε or the goal keys" if request.goal != "keys" else "a larger ε"]
        why_few = (
            f"{how_many} the threshold. An item needs about {hidden:,} users to be released. To get more: "
            f"{tries[0]}, {tries[1]}, {tries[2]}."
        )
    limit = f"none up to {count_items(most)}; of users with more, a random {most:,} count"
    limit = "none" if public and items <= most else limit
    notes = [*doubts(findings.reason), *caveats(plan, request, ["clamped-sums", "shared-noise"])]
    return _with_warnings(plan, request, verdict, notes, private=private, alarms=alarms)(
        headline=f"{count_items(items)} released{', all of a public list' if public else ''}",
        margin=margin,
        margin_words=_margins_in_words(margins),
        hidden_below=hidden,
        hidden_words=words,
        limit_words=limit,
        limit_leaves_out=False,
        why_few=why_few,
    )


def doubts(reason: str | None) -> list[str]:
    """Why margins cannot be trusted, if so."""
    return [] if reason is None else [f"Do not rely on the margins: {reason}."]


def _margins_in_words(margins: Numbers | None) -> str:
    """From the usual margin to the largest, which is that of the most popular items."""
    if margins is None or not margins.size:
        return "in the column margin (95 %)"
    usual, most = (_two_digits(float(number)) for number in (np.median(margins), margins.max()))
    if most <= usual:
        return f"±{figure(usual)} per count (95 %)"
    return f"±{figure(usual)} for half of the counts (95 %); ±{figure(most)} at most"


def _headline(plan: Plan, request: AnyRequest, items: int) -> str:
    top = request.top
    if top is not None and items < top:
        return f"{items:,} of at most {count_items(top)} stood out"
    if plan.noise.public:
        return f"{count_items(items)} released, all of a public list"
    return f"{count_items(items)} released"


def _margin_words(plan: Plan, request: AnyRequest) -> str:
    """The 95 % margin of every kind of number that is published."""
    parts = [f"±{figure(_two_digits(half_width(plan, LEVEL)))} per count"]
    parts += dict.fromkeys(
        f"±{figure(_two_digits(1.96 * sum_error(plan, noise)))} per {aggregate.label}"
        for aggregate, noise in sums_with_noise(plan, request.aggregates)
        if aggregate.kind != "mean"
    )
    words = f"{join_words(parts)} (95 %)"
    if _may_reduce(plan, request):
        rank = f"{plan.contract.nonzero + 1:,.0f}"
        words += f" of noise; if there is an item of rank {rank}, all counts are also lower by its count"
    return words


def _two_digits(number: float) -> float:
    """Rounded up to two digits."""
    if number <= 0.0 or not math.isfinite(number):
        return number
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{math.ceil(number / step - 1e-9) * step:.2g}")


def _hidden_below(plan: Plan, request: AnyRequest) -> int | None:
    """The smallest number of users for which an item is released with probability 1/2."""
    if plan.noise.public:
        return None
    return count_noise(plan.noise).passing_count(0.5) + request.lower_threshold - 1


def _hidden_words(plan: Plan, request: AnyRequest, hidden: int | None) -> str:
    if hidden is None:
        return "nothing: every item of the list is released"
    counted = "counted users" if _drops(plan, request) else "users"
    if plan.releases_offset or is_difference(plan, request):
        rank = f"{plan.contract.nonzero + 1:,.0f}"
        return f"items with fewer than {hidden:,} {counted} more than the item of rank {rank}"
    if isinstance(request, SketchRequest):
        return f"items with fewer than {hidden:,} in the sketch"
    return f"items with fewer than {hidden:,} {counted}"


def _drops(plan: Plan, request: AnyRequest) -> bool:
    """Whether a limit is applied that can leave items of a user out."""
    top_k = request.top is not None and plan.contract.user_limit is None
    whole_list = plan.noise.public and plan.contract.user_limit is None
    return request.max_items_per_user is not None and not top_k and not whole_list


def _limit_words(plan: Plan, request: AnyRequest) -> str:
    limit = plan.contract.items
    if isinstance(request, HistogramRequest):
        return f"{count_items(limit)} per user, as declared by the caller"
    if not _drops(plan, request):
        return "none: every item of every user counts"
    return (
        f"{count_items(limit)} per user; users with more contribute a random {limit:,} of them (how much that "
        "leaves out is not measured)"
    )


def _may_reduce(plan: Plan, request: AnyRequest) -> bool:
    """Whether the count of rank K + 1 may have been subtracted from all counts and is not released."""
    return bool(caveats(plan, request, ["reduced", "perhaps-reduced"]))


def _why_few(plan: Plan, request: AnyRequest, items: int, hidden: int | None) -> str:
    """Why there are so few items, and what to try."""
    # A release that is as large as it may be has no lack of items that the threshold could explain.
    if hidden is None or items > _FEW or items >= (request.top or plan.contract.nonzero):
        return ""
    if plan.releases_offset or is_difference(plan, request):
        rank = f"{plan.contract.nonzero + 1:,.0f}"
        why = f"An item is released if it has about {hidden:,} users more than the item of rank {rank}."
        # A larger top subtracts a smaller count, and a smaller top needs less noise: which is better is secret.
        other = "a larger or a smaller top" if plan.contract.nonzero > 1 else "a larger top"
        tries = [*([other] if request.top is not None else []), "data of more users", "a larger ε"]
    else:
        why = f"An item needs about {hidden:,} users to be released."
        if _may_reduce(plan, request):
            why = (
                f"An item needs about {hidden:,} users to be released, or that many more than the item of rank "
                f"{plan.contract.nonzero + 1:,.0f} if there is one."
            )
        tries = [
            "data of more users",
            "coarser items (such as categories, or days instead of seconds)",
            "a larger ε",
        ]
        if _drops(plan, request) and plan.contract.items > 1:
            tries.append("a lower limit per user, or none")
    how_many = f"Only {count_items(items)}" if items else "No item"
    return f"{how_many} passed the threshold. {why} To get more: {', '.join(tries[:-1])} or {tries[-1]}."


def column_digits(
    plan: Plan, request: AnyRequest, counts: Numbers, columns: Mapping[str, Numbers]
) -> dict[str, int]:
    """Decimals to show of each column of numbers: as many as its own error justifies. Whole numbers have none."""
    # Means of large items are more precise: one item in ten is larger than this.
    typical = max(1.0, float(np.quantile(counts, 0.9))) if plan.sums and counts.size else 1.0
    errors = {
        aggregate.name: noise.sigma / typical if aggregate.kind == "mean" else sum_error(plan, noise)
        for aggregate, noise in sums_with_noise(plan, request.aggregates)
    }

    def digits_of(name: str, values: Numbers) -> int:
        if values.dtype.kind == "i":
            return 0
        # The longest name of which this is a derived column, such as amount_sum_low.
        base = max((known for known in errors if name.startswith(known)), key=len, default=None)
        error = plan.total_noise if base is None else errors[base]
        shown = error if name.endswith("_standard_error") else 1.96 * error
        digits = min(12, max(0, 1 - math.floor(math.log10(max(shown, 1e-12)))))
        # Counts are rounded, their standard errors to two decimals more.
        most = (count_decimals(plan) or 0) + (2 if name.endswith("_standard_error") else 0)
        return digits if base is not None else min(digits, most)

    return {name: digits_of(name, values) for name, values in columns.items()}
