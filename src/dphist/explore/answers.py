"""The answers of the page: what would be released, commands, the numbers of the plan, a trial release."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from dphist.certificate.numbers import half_width
from dphist.certificate.request import request_for_plan
from dphist.display import count_items, figure, plain_number
from dphist.explore.fields import Law, Question, read_counts, read_question
from dphist.explore.picture import Expected, draw_items, draw_shares
from dphist.model import Budget, Plan
from dphist.planning.compare import ComparisonRow, compare
from dphist.planning.explain import MECHANISMS, explain
from dphist.planning.planner import plan as make_plan
from dphist.planning.rounds import plan_rounds
from dphist.planning.utility import count_noise
from dphist.proof.numerics import FloatArray
from dphist.releasing.summary import Summary, summarize
from dphist.report.charts import largest_counts_chart
from dphist.simulation.population import Population, Zipf
from dphist.simulation.predict import SHOWN, applied_limit, given_population, totals_of, trial
from dphist.simulation.rounds import Forecast, forecast, trial_in_rounds

if TYPE_CHECKING:
    from dphist.aliases import JsonObject

# Placeholders that readers replace with their own names.
_EVENTS: Final = "events.parquet"
_COLUMNS: Final = {"user": "user_id", "item": "item"}
_OUTPUT: Final = {"output": "released.parquet"}
_LIST, _KNOWN, _VALUE = "items.csv", "known.csv", "amount"
# The rows of `dphist compare` in plain words.
_METHODS: Final = {
    "gshm-add-the-deltas": "Gaussian noise, deltas added (the usual analysis)",
    "gshm-exact": "Gaussian noise, exact analysis",
    "csh-add-the-deltas": "Shared noise, gamma = sqrt k, deltas added",
    "csh-tighter": "Shared noise, gamma = sqrt k, the paper's analysis",
    "exact, gamma = sqrt k": "Shared noise, gamma = sqrt k, exact analysis",
    "exact, gamma tuned": "Shared noise, best gamma, exact analysis",
    "discrete theorem, printed": "Shared noise, gamma = sqrt k, the paper's theorem for discrete noise",
    "discrete theorem, tight": "Shared noise, gamma = sqrt k, the same with a tight conversion",
    "scale m/epsilon": "Laplace noise of scale m/epsilon",
    "top": "The most common items, exact analysis (this plan)",
}


# The numbers of a plan, as labelled on the page: of a plan with a limit, and of one in rounds.
NUMBERS: Final = {
    "threshold": ("Threshold", "Threshold of the last round"),
    "total_noise": ("Noise per count (standard deviation)", "Noise of a measurement with a limit of 1 item"),
    "delta_certified": ("Certified δ", "Certified δ"),
    "sigma": ("Separate noise of each count", ""),
    "sigma_shared": ("Noise shared by all counts", ""),
}

_find_plan = lru_cache(maxsize=512)(make_plan)
_find_comparison = lru_cache(maxsize=128)(compare)


@lru_cache(maxsize=32)
def _synthetic(law: Law) -> Population:
    return Zipf(law.exponent, law.items, law.users, law.mean_items, law.spread).population()


def plan_of(question: Question) -> Plan:
    plan = question.plan
    if question.in_rounds and "public_items" in plan:
        budget = Budget(plan["epsilon"], plan["delta"])
        return plan_rounds(budget, public_items=plan["public_items"], sums=plan.get("sums", ()))
    return _find_plan(**plan)


def _data_of(data: Mapping[str, object], question: Question) -> tuple[Population, list[str], int]:
    """Uploaded or synthetic counts, names of the largest, and how many were rounded. Uploads are never cached.

    Of uploaded counts, items per user are those of the form, which matter in rounds only.
    """
    if not data.get("csv"):
        return _synthetic(question.law), [], 0
    items, given, rounded = read_counts(data["csv"])
    counts = np.array(given, dtype=np.int64)
    names = [items[place] for place in np.argsort(-counts, kind="stable")[:SHOWN]]
    per_user = question.law.mean_items if question.in_rounds else 1.0
    return given_population(counts, per_user), names, rounded


# ---- what would be released


def plain_answer(data: Mapping[str, object]) -> JsonObject:
    """The main answer: what would be released, and the certified plan."""
    question = read_question(data)
    plan, population = plan_of(question), _data_of(data, question)[0]
    adjusted = dict(question.adjusted)
    limit = question.plan.get("max_items_per_user")
    if limit is not None and applied_limit(plan, limit) is None:
        adjusted["max_items_per_user"] = "Not used: without a limit the most common items need less noise."
    ahead = forecast(plan, population, question.known) if question.in_rounds else None
    expected, released, shares = expect(plan, population, question) if ahead is None else _from(ahead, population)
    options = {name.replace("_", "-"): value for name, value in _release_keywords(question).items()}
    summary = summarize(
        plan, request_for_plan(options), items=round(released), largest=float(population.counts.max(initial=0.0)),
        findings=None if ahead is None else ahead.findings, margins=None if ahead is None else ahead.margins,
    )  # fmt: skip
    headline = _headline(plan, question.plan.get("top"), summary, shares["cut"])
    where = "the uploaded counts" if data.get("csv") else "this example"
    some = f"all {population.items:,} items"
    if round(released) < population.items:
        some = f"about {released:,.0f} of {population.items:,} items"
    example = f"In {where}, {some} are released."
    pairs_words = _pairs_words(shares)
    return {
        "headline": headline,
        "example": f"{example} {pairs_words}",
        "few": summary.why_few,
        "privacy": f"{summary.privacy_words}.",
        "level": summary.verdict.level,
        "warnings": summary.verdict.warnings,
        "active": "" if data.get("csv") else _active_users(population),
        "delta_used": f"δ = {plain_number(plan.budget.delta)}"
        + ("." if data.get("delta") else f", chosen for {question.law.users:,} users."),
        "short": f"{round(released):,} of {population.items:,} items{_margin(plan, summary).replace(':', ',', 1)}",
        "picture": draw_items(expected, f"{headline} {example}"),
        "shares": draw_shares(shares, pairs_words),
        "adjusted": adjusted,
        "recipes": recipes(question),
        "plan": plan.to_dict(),
        "numbers": {name: labels[question.in_rounds] for name, labels in NUMBERS.items()},
        "mechanism": MECHANISMS[plan.mechanism][0],
        "advice": [
            *explain(plan, alternatives=False),
            *(note for note in summary.warnings if note not in summary.verdict.warnings),
        ],
    }


def expect(plan: Plan, population: Population, question: Question) -> tuple[Expected, float, dict[str, float]]:
    """The expectation for each item, the number of released items, and what happens to all (user, item) pairs.

    If a limit replaces a top-k step, the largest true counts stand in for the largest noisy counts.
    """
    limit = applied_limit(plan, question.plan.get("max_items_per_user"))
    counted, _ = population.under(limit)
    bound = None if plan.releases_offset else plan.contract.max_nonzero or question.plan.get("top")
    kept = population if bound is None else population.first(bound)
    floor = population.count_at(int(plan.contract.nonzero) + 1, limit) if plan.releases_offset else 0.0
    listed = plan.mechanism == "known-domain"
    chance = np.ones(counted.size) if listed else count_noise(plan.noise).probability(counted - floor)
    chance = chance * (kept.number > 0.0)
    expected = Expected(
        population.number, population.counts, counted, chance,
        margin=np.full(counted.size, half_width(plan, 0.95)), threshold=None if listed else floor + plan.threshold,
    )  # fmt: skip
    items, covered = float(chance @ kept.number), float((chance * counted) @ kept.number)
    if not listed:
        totals = totals_of(plan, kept, limit=limit)
        items, covered = min(totals.released, float(bound or math.inf)), totals.kept
    return expected, items, _shares(population, counted, covered)


def _shares(population: Population, counted: FloatArray, covered: float) -> dict[str, float]:
    """What happens to all (user, item) pairs, by the counted users of each item and the covered pairs."""
    pairs = float(population.counts @ population.number)
    released, cut = covered / pairs, max(0.0, 1.0 - float(counted @ population.number) / pairs)
    return {"released": released, "hidden": max(0.0, 1.0 - released - cut), "cut": cut}


def _from(ahead: Forecast, population: Population) -> tuple[Expected, float, dict[str, float]]:
    """The same of a plan in rounds."""
    number, needed = population.number, ahead.findings.needed
    expected = Expected(
        number, population.counts, ahead.kept, ahead.chance, margin=np.nan_to_num(ahead.margin),
        threshold=None if needed is None else float(needed), in_rounds=True,
    )  # fmt: skip
    shares = _shares(population, ahead.kept, float((ahead.chance * ahead.kept) @ number))
    return expected, float(ahead.chance @ number), shares


def _margin(plan: Plan, summary: Summary) -> str:
    """The margin of the counts; empty without counts or if it is not known."""
    words = summary.margin_words
    if plan.noise.in_rounds:
        # Without where to find it in the release.
        words = words.partition(";")[0] if summary.margin > 0.0 else ""
    return f": {words}" if words else ""


def _headline(plan: Plan, top: int | None, summary: Summary, cut: float) -> str:
    margin, least = _margin(plan, summary), summary.hidden_below
    about = "about " if plan.noise.in_rounds else ""
    if least is None:
        return f"All {plan.contract.max_nonzero:,} items of the list are released{margin}."
    if plan.releases_offset and top is not None:
        return (
            f"The {top:,} most common items are released, if they have about {least:,} users more than the item "
            f"of rank {top + 1:,}{margin}."
        )
    which = f"Items with {about}{least:,} users or more{', counted after the limit,' if cut >= 0.005 else ''}"
    only = "" if top is None else f", but only the {top:,} most common"
    return f"{which} are mostly released{only}{margin}."


def _pairs_words(shares: Mapping[str, float]) -> str:
    covered = f"The released counts cover {_percent(shares['released'])} of all (user, item) pairs"
    lost = {"hidden": "belong to hidden items", "cut": "are left out by the limit"}
    parts = [f"{_percent(shares[kind])} {what}" for kind, what in lost.items() if shares[kind] >= 0.0005]
    return f"{covered}; {', '.join(parts)}." if parts else f"{covered}."


def _active_users(population: Population) -> str:
    items, users = np.array(population.sizes, dtype=np.float64).T
    many = items[np.searchsorted(np.cumsum(users), 0.99 * users.sum())]
    return f"1 in 100 users then has about {count_items(int(many))} or more."


# ---- commands and code


def recipes(question: Question) -> dict[str, str]:
    """Commands and Python code for this plan and for a release with it; empty where there is none."""
    keywords = question.plan
    flags = {"sum" if name == "sums" else name: value for name, value in keywords.items()}
    release = {**_COLUMNS, **_release_keywords(question)}
    command, python = shlex.join(["dphist", "plan", *_flags(flags)]), _arguments(keywords)
    if question.in_rounds and "public_items" in keywords:
        # `dphist plan` has no list without a limit: the plan of its release is in rounds.
        command, python = shlex.join(["dphist", "release", _EVENTS, *_flags(release), "--dry-run"]), ""
    release |= _OUTPUT
    return {
        "command": command,
        "python": f"import dphist\n\nplan = dphist.plan({python})\nprint(plan)" if python else "",
        "release_command": shlex.join(["dphist", "release", _EVENTS, *_flags(release)]),
        "release_python": (
            f"import dphist\n\nreleased = dphist.release({_EVENTS!r}, {_arguments(release)})\nprint(released)"
        ),
    }


def _release_keywords(question: Question) -> dict[str, object]:
    """The options of a release with this plan, without files and columns."""
    keywords = question.plan
    options = {name: value for name, value in keywords.items() if name not in ("public_items", "sums")}
    if "public_items" in keywords:
        options["items"] = _LIST
    if question.known:
        options["known"] = _KNOWN
    if "sums" in keywords:
        options["sum"] = [f"{_VALUE}:{_text_of(keywords['sums'])}"]
    return options


def _flags(keywords: Mapping[str, object]) -> list[str]:
    pairs = ((f"--{name.replace('_', '-')}", _text_of(value)) for name, value in keywords.items())
    return [word for pair in pairs for word in pair]


def _text_of(value: object) -> str:
    """A value as on a command line; there is at most one sum."""
    if isinstance(value, tuple):
        return ":".join(map(_text_of, value[0]))
    if isinstance(value, list):
        return str(value[0])
    return plain_number(value) if isinstance(value, float) else str(value)


def _arguments(keywords: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items())


# ---- all numbers


def table_answer(data: Mapping[str, object]) -> JsonObject:
    """All methods side by side, after the plan itself if it is top-k; empty for a list and without a limit."""
    question = read_question(data)
    keywords = question.plan
    if question.in_rounds or "public_items" in keywords:
        listed = "public_items" in keywords
        note = (
            "A known list needs no threshold." if listed else "The other methods need a limit on items per user."
        )
        return {"columns": [], "rows": [], "thresholds": [], "note": note}
    compared = ("epsilon", "delta", "max_nonzero", "max_items_per_user")
    bounds = {name: keywords[name] for name in compared if name in keywords}
    top_alone = "top" in keywords and "max_items_per_user" not in keywords
    if top_alone:
        bounds["max_nonzero"] = keywords["top"]
    rows, found = list(_find_comparison(**bounds).rows), _find_plan(**keywords)
    if found.mechanism == "top-k":
        gshm = next(row.tau for row in rows if row.analysis == "gshm-exact")
        rows.insert(0, ComparisonRow("top-k", "top", found.gamma, found.total_noise, found.tau, found.tau / gshm))
    note = "The lowest threshold is in bold. Rows without a theorem for discrete noise are for "
    note += "continuous noise, which is never released."
    if top_alone:
        note += f" The other rows are for at most {keywords['top']:,} items in the data."
    return {
        "columns": ["method", "threshold", "noise (standard deviation)", "threshold compared with Gaussian noise"],
        "rows": [
            [_METHODS[row.analysis], figure(row.threshold), figure(row.total_noise), _percent(row.ratio_to_gshm)]
            for row in rows
        ],
        "thresholds": [row.threshold for row in rows],
        "note": note,
    }


def trial_answer(data: Mapping[str, object]) -> JsonObject:
    """A trial release of synthetic or uploaded counts, with noise from a seed. Uploads are not kept."""
    question = read_question(data)
    if "public_items" in question.plan:
        why = "There is no trial release: all items of a list are released."
        return {"sentences": [why], "top": [], "svg": "", "words": ""}
    population, names, rounded = _data_of(data, question)
    plan = plan_of(question)
    if question.in_rounds:
        outcome = trial_in_rounds(plan, population, question.seed, known=question.known, names=names)
    else:
        limit = None if data.get("csv") else question.plan.get("max_items_per_user")
        largest = question.plan.get("top")
        outcome = trial(plan, population, question.seed, names=names, largest=largest, limit=limit)
    shown = outcome["top"]
    released = sum(row["released"] is not None for row in shown)
    words = (
        f"{released} of the {len(shown)} largest counts, from {shown[0]['true']:,} down to {shown[-1]['true']:,} "
        "users, are released."
    )
    return {
        **outcome,
        "sentences": _trial_sentences(outcome, rounded),
        "svg": largest_counts_chart(shown, words).svg(inline=True),
        "words": words,
    }


def _trial_sentences(outcome: JsonObject, rounded: int) -> list[str]:
    sentences = [
        f"{outcome['released']:,} of {outcome['items']:,} items are released "
        f"(expected: {outcome['expected']:,.0f}).",
        f"Released items hold {_percent(outcome['share'])} of all (user, item) pairs.",
    ]
    if outcome["mean_absolute_error"] is not None:
        sentences.append(
            f"The mean absolute error of a released count is {outcome['mean_absolute_error']:,.4g} users."
        )
    if outcome.get("within_margin") is not None:
        sentences.append(f"{_percent(outcome['within_margin'])} of the released counts are within their margin.")
    if outcome["cut"]:
        sentences.append(f"{outcome['cut']:,} items beyond the bound k are left out.")
    if rounded:
        sentences.append(f"{rounded:,} uploaded counts had decimals and were rounded to whole numbers.")
    return sentences


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


ANSWERS: Final = {"plain": plain_answer, "trial": trial_answer, "table": table_answer}
