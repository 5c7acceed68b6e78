"""What the page shows for a request: the certified plan, the comparison, charts, a trial release. Plain data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np

from dphist.explore.fields import BOUNDS, BUDGET, NOISE, POPULATION, WrongField, read_fields
from dphist.explore.uploads import read_counts
from dphist.planning.compare import Comparison, ComparisonRow, compare
from dphist.planning.explain import explain
from dphist.planning.planner import plan as make_plan
from dphist.privacy.types import Plan
from dphist.report.charts import Chart, chart, largest_counts_chart
from dphist.simulation.predict import totals_of
from dphist.simulation.trial import TrialData, given_population, trial, zipf_population

# What only the reader knows, under names that can be searched and replaced.
_EVENTS: Final = "events.parquet"
_COLUMNS: Final = {"user": "user_id", "item": "item"}
_OUTPUT: Final = {"output": "released.parquet"}
_COLUMN_ORDER: Final = ("mechanism", "analysis", "threshold", "to GSHM", "total noise", "tau", "gamma")


@lru_cache(maxsize=128)
def _find_plan(**keywords: Any) -> Plan:
    return make_plan(**keywords)


@lru_cache(maxsize=128)
def _find_comparison(**keywords: Any) -> Comparison:
    return compare(**keywords)


def plan_answer(data: Mapping[str, object]) -> dict[str, Any]:
    """The certified plan with its sentences, and the commands and code that make it."""
    keywords = _plan_keywords(data)
    found = _find_plan(**keywords)
    return {
        "plan": found.to_dict(),
        "rows": found.rows(),
        "advice": [*(explain(found, alternatives=False) if found.noise.kind == "discrete" else []), *found.notes],
        "recipes": recipes(keywords),
    }


def _plan_keywords(data: Mapping[str, object]) -> dict[str, Any]:
    keywords = read_fields(data, (*BUDGET, *BOUNDS, *NOISE))
    if not keywords.keys() & {"max_nonzero", "max_items_per_user", "top"}:
        raise WrongField("max_nonzero", "enter at least one of k, m and K")
    if "excess" in keywords and "max_nonzero" in keywords:
        # With shared noise each weight has a certificate that takes seconds.
        raise WrongField("excess", "with k, use the command line for excess = 'spread': it may take minutes")
    gamma, nonzero = keywords.get("gamma"), keywords.get("max_nonzero", 0)
    # Otherwise a certificate takes minutes.
    if isinstance(gamma, float) and gamma < nonzero / 1000:
        raise WrongField(
            "gamma", f"gamma must be at least {nonzero / 1000:g} here, a thousandth of k, not {gamma:g}"
        )
    return keywords


def recipes(keywords: dict[str, Any]) -> dict[str, str]:
    """The commands and the Python code of this plan and of a release with it.

    Continuous noise is an ideal that is never drawn, so it has no release.
    """
    found = {
        "command": shlex.join(["dphist", "plan", *_flags(keywords)]),
        "python": f"import dphist\n\nplan = dphist.plan({_arguments(keywords)})\nprint(plan)",
    }
    if "noise" in keywords:
        return found
    release = {**_COLUMNS, **keywords, **_OUTPUT}
    return {
        **found,
        "release_command": shlex.join(["dphist", "release", _EVENTS, *_flags(release)]),
        "release_python": (
            f"import dphist\n\nreleased = dphist.release({_EVENTS!r}, {_arguments(release)})\nprint(released)"
        ),
    }


def _flags(keywords: dict[str, Any]) -> list[str]:
    pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in keywords.items())
    return [word for pair in pairs for word in pair]


def _arguments(keywords: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in keywords.items())


def table_answer(data: Mapping[str, object]) -> dict[str, Any]:
    """All mechanisms side by side, and first the plan's own row where it is a top-k step."""
    keywords = _plan_keywords(data)
    comparison, found = _find_comparison(**_comparison_keywords(keywords)), _find_plan(**keywords)
    rows = list(comparison.rows)
    if found.mechanism == "top-k":
        gshm = next(row.tau for row in rows if row.analysis == "gshm-exact")
        numbers = found.gamma, found.total_noise, found.tau, found.tau / gshm
        rows.insert(0, ComparisonRow("top-k", "exact, with the offset", *numbers))
    order = [comparison.columns.index(name) for name in _COLUMN_ORDER]
    note = f"{comparison.title}, continuous noise. The lowest threshold is in bold."
    if _is_top_alone(keywords):
        note += f" The other rows are for at most {keywords['top']:,} items in the data."
    return {
        "columns": _COLUMN_ORDER,
        "rows": [[row.cells()[place] for place in order] for row in rows],
        "thresholds": [row.threshold for row in rows],
        "note": note,
    }


def _is_top_alone(keywords: dict[str, Any]) -> bool:
    return "top" in keywords and "max_items_per_user" not in keywords


def _comparison_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """The budget and bounds under which mechanisms are compared; top-k alone is compared with k = K."""
    found = {name: keywords[name] for name in ("epsilon", "delta")}
    found |= {name: keywords[name] for name in ("max_nonzero", "max_items_per_user") if name in keywords}
    return {**found, "max_nonzero": keywords["top"]} if _is_top_alone(keywords) else found


def figure_answer(data: Mapping[str, object]) -> dict[str, Any]:
    """The paper's figure for this budget and these bounds."""
    return _chart_answer(chart(_find_comparison(**_comparison_keywords(_plan_keywords(data)))))


def curve_answer(data: Mapping[str, object]) -> dict[str, Any]:
    """The probability of release by the number of users of an item."""
    return _chart_answer(chart(_find_plan(**_plan_keywords(data)), "release"))


def limit_answer(data: Mapping[str, object]) -> dict[str, Any]:
    """What the items of a user count; nothing without a bound on them."""
    found = _find_plan(**_plan_keywords(data))
    if found.contract.max_items_per_user is None:
        return {"svg": "", "words": ""}
    return _chart_answer(chart(found, "limit"))


def _chart_answer(one: Chart) -> dict[str, Any]:
    return {"svg": one.svg(inline=True), "words": one.words}


def trial_answer(data: Mapping[str, object]) -> dict[str, Any]:
    """A trial release of Zipf or uploaded counts, with noise from a seed. Nothing is kept."""
    keywords, law = _plan_keywords(data), read_fields(data, POPULATION)
    if "noise" in keywords:
        raise WrongField("noise", "continuous noise cannot be drawn: choose discrete noise for a trial release")
    seed, rounded = law.pop("seed"), 0
    if data.get("csv"):
        upload = read_counts(data["csv"])
        rounded = upload.rounded
        population = given_population(np.array(upload.counts, dtype=np.int64), upload.items)
    else:
        law.setdefault("spread", "geometric")
        population = zipf_population(**law, cap=keywords.get("max_items_per_user"))
    found, top = _find_plan(**keywords), keywords.get("top")
    outcome = trial(found, population, seed, top)
    outcome["missing"] = _missing_share(found, population, top)
    largest = outcome["top"]
    released = sum(row["released"] is not None for row in largest)
    words = (
        f"{released} of the {len(largest)} largest counts, from {largest[0]['true']:,} down to "
        f"{largest[-1]['true']:,} users, are released."
    )
    return {
        **outcome,
        "sentences": _trial_sentences(outcome, rounded),
        **_chart_answer(largest_counts_chart(largest, words)),
    }


def _trial_sentences(outcome: dict[str, Any], rounded: int) -> list[str]:
    sentences = [
        f"{outcome['released']:,} of {outcome['items']:,} items are released "
        f"(expected: {outcome['expected']:,.0f}).",
        f"Released items hold {_percent(outcome['share'])} of all (user, item) pairs.",
    ]
    if outcome["kept"] < 0.9995:
        sentences.append(f"The bounds keep {_percent(outcome['kept'])} of the pairs.")
    sentences.append(f"A release is expected to miss {_percent(outcome['missing'])} of the pairs.")
    if outcome["mean_absolute_error"] is not None:
        sentences.append(
            f"The mean absolute error of a released count is {outcome['mean_absolute_error']:,.4g} users."
        )
    if outcome["cut"]:
        sentences.append(f"{outcome['cut']:,} items beyond the bound k are left out.")
    if rounded:
        sentences.append(f"{rounded:,} uploaded counts had decimals and were rounded to whole numbers.")
    return sentences


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _missing_share(plan: Plan, data: TrialData, largest: int | None) -> float:
    """The share of pairs that `simulate` calls missing: of items not released, or dropped by a cap; expected."""
    # Where a cap serves in place of a top-k step, the largest counts are taken for those that noise makes largest.
    bound, population = plan.contract.max_nonzero or largest, data.population
    if bound is not None and not plan.releases_offset:
        population = population.first(bound)
    kept = totals_of(plan, population, cap=data.cap).kept
    return min(1.0, max(0.0, 1.0 - kept / data.population.pairs))


ANSWERS: Final = {
    "plan": plan_answer,
    "curve": curve_answer,
    "limit": limit_answer,
    "trial": trial_answer,
    "table": table_answer,
    "figure": figure_answer,
}
