"""A report as data: the keys of `dphist report --json`, which docs/report.md explains."""

from __future__ import annotations

from typing import Any, Final

from dphist.report.charts import charts_of
from dphist.report.facts import SEALED, CapSizes, Facts
from dphist.report.rows import Rows

# What a page says in words, by names that stay.
_ABOUT: Final = {
    "counted": "counted", "a count is": "a_count_is", "from": "source", "table": "table", "query": "query",
    "only events with": "where", "column of users": "user", "public list": "items", "dataset": "dataset",
    "made": "created", "by": "made_by", "SHA-256 of the data": "sha256",
}  # fmt: skip
_SEALED: Final = {"certificate": "place", SEALED: "self_sha256"}


def data_of(facts: Facts) -> dict[str, Any]:
    """Everything that a report says but the rows themselves, which are in the release."""
    return {
        "title": facts.title,
        "lead": facts.lead,
        "cautions": list(facts.cautions),
        "release": facts.address,
        "written": facts.written,
        "private": facts.private,
        "counts_are": facts.counts_are,
        "about": {_ABOUT[name]: value for name, value in facts.about if name in _ABOUT},
        "checks": list(facts.checks),
        **dict(zip(("signature", "signed_by"), facts.signature, strict=True)),
        "guarantee": facts.guarantee,
        "promise": list(facts.promise),
        "epsilon": facts.budget.epsilon,
        "delta": facts.budget.delta,
        "delta_certified": facts.delta_proved,
        "plan": facts.plan.to_dict(),
        "numbers": [vars(one) for one in facts.numbers],
        "curve": [{"epsilon": epsilon, "delta": delta} for epsilon, delta in facts.curve],
        "curve_note": facts.curve_note,
        "comparison": [vars(peer) for peer in facts.peers],
        "comparison_note": facts.peers_note,
        "selection": None if facts.selection is None else facts.selection.to_dict(),
        "selection_notes": list(facts.selected),
        "cap_choice": None if facts.sizes is None else _choice(facts.sizes),
        "charts": [{"name": chart.name, "title": chart.title, "words": chart.words} for chart in charts_of(facts)],
        "rows": facts.rows.total,
        "rows_notes": facts.rows.notes,
        "interval": _interval(facts.rows),
        "booking": dict(facts.receipt) or None,
        "not_covered": list(facts.uncovered),
        "certificate": {_SEALED[name]: value for name, value in facts.sealed} or None,
        "certificate_note": facts.uncertified or None,
        "verify": facts.command,
    }


def _interval(rows: Rows) -> dict[str, float] | None:
    """Around each count; none where the release has its own, or where a count is no number of users."""
    return None if rows.width is None else {"share": rows.share, "half_width": rows.width}


def _choice(sizes: CapSizes) -> dict[str, Any]:
    bars = zip(sizes.labels, sizes.users, strict=True)
    return {
        "cap": sizes.cap,
        "standard_deviation": sizes.deviation,
        "noisy_users": [{"items_of_a_user": label, "users": users} for label, users in bars],
    }
