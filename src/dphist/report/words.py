"""The sentences of a report, in its order. All numbers come from the facts; bounds are rounded up."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import asdict, replace

from dphist import __version__
from dphist.certificate.guarantee import guarantee_facts
from dphist.certificate.numbers import half_width
from dphist.certificate.request import AnyRequest, EventsRequest, HistogramRequest, SketchRequest
from dphist.certificate.schema import Certificate, SumFacts, VectorFacts
from dphist.certificate.sentences import NO_GUARANTEE, caveats, conditions, guarantee, not_covered
from dphist.display import count_items, figure, join_words, printable, upper_figure
from dphist.model import Budget
from dphist.planning.explain import MECHANISMS
from dphist.proof.verdict import guess_words
from dphist.releasing.summary import INTERVALS_OF_NOISE, NOT_PRIVATE, doubts
from dphist.report.facts import WITH_INTERVALS, Facts, Rounds, Selection, Step, digits_of

if TYPE_CHECKING:
    from dphist.aliases import JsonObject

# Odds change by more than a factor of SLACK e^epsilon with a probability of at most DELTAS delta (see `beliefs`).
SLACK: Final = 1.1
DELTAS: Final = 11

Table = tuple[Sequence[str], Sequence[Sequence[str]], int]

# Caveats about the numbers, not about privacy.
_LIMITS: Final = (
    "user-limit", "rounds", "totals", "max-nonzero", "differences", "perhaps-reduced", "reduced", "sketch",
    "sketch-with-offset", "clamped-sums", "selected-sums", "shared-noise",
)  # fmt: skip
BETWEEN: Final = (
    "Each point is a certified upper bound. Between two points only the chord of δ over e^ε is proved, which lies "
    "above the drawn line."
)
_SEEDED: Final = f"{NOT_PRIVATE}, for tests. Anyone who knows or guesses the seed can remove the noise."
_SEEDED_PLAN: Final = "The noise comes from a seed: what was proved holds for the plan only, not for this release."
_RELY: Final = "For that you rely on the people who made the release."


def describe(facts: Facts) -> JsonObject:
    """Everything that a report says except its rows and charts, by the keys of `dphist report --json`."""
    certificate, rounds, rows, stated = facts.origin.certificate, facts.rounds, facts.rows, facts.stated
    texts = {
        "title": _title(facts),
        "lead": _lead(facts),
        "summary": facts.summary.to_dict(),
        "cautions": list(facts.summary.verdict.warnings) if facts.private else [],
        "release": facts.verified.address,
        "written": facts.origin.written,
        "private": facts.private,
        "counts_are": facts.kind,
        "about": describe_source(facts),
        "checks": [*([] if facts.private else [_SEEDED_PLAN]), *facts.verified.checks],
        "signature": facts.verified.signature,
        "signed_by": facts.verified.signed_by,
        "guarantee": guarantee_words(facts),
        "promise": _promise(facts),
        "meaning": [{"label": label, "sentences": sentences} for label, sentences in _meaning(facts)],
        "limits": _limits(facts),
        "epsilon": facts.plan.budget.epsilon,
        "delta": facts.plan.budget.delta,
        "delta_certified": facts.delta_certified,
        "plan": facts.plan.to_dict(),
        "numbers": [dict(zip(("label", "value", "meaning"), one, strict=True)) for one in _numbers(facts)],
        "curve": [{"epsilon": epsilon, "delta": delta} for epsilon, delta in facts.curve],
        "curve_note": _curve_note(facts),
        "selection": None if facts.selection is None else facts.selection.to_dict(),
        "selection_notes": _selection_notes(facts),
        "rounds": None if rounds is None else rounds.to_dict(),
        "rounds_notes": [] if rounds is None else _rounds_notes(rounds),
        "rows": facts.rows.total,
        "rows_notes": _rows_notes(facts),
        "interval": None if rows.width is None else {"share": rows.level, "half_width": rows.width},
        "booking": {key: str(value) for key, value in asdict(stated.booking).items()} if stated.booking else None,
        "not_covered": list_uncovered(facts),
        "certificate": (
            {"place": facts.origin.place, "self_sha256": stated.self_sha256}
            if certificate is not None and isinstance(stated, Certificate)
            else None
        ),
        "certificate_note": None if certificate is not None else _NO_CERTIFICATE,
        "verify": _verify_command(facts),
    }  # fmt: skip
    return {key: make_printable(value) for key, value in texts.items()}


def make_printable(value: object) -> object:
    """Texts from others, without characters that move a cursor, reverse a line or cannot be encoded."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(key): make_printable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_printable(part) for part in value]
    return value


# --- numbers in words


def percent(share: float) -> str:
    """A share of one in percent, with more digits near 0 and 100."""
    near = min(share, 1.0 - share)
    if 0.0 < near < 1e-5:
        return "over 99.999 %" if share > 0.5 else "under 0.001 %"
    digits = 0 if near >= 0.1 else 1 if near >= 0.01 else 3
    return f"{100.0 * share:.{digits}f} %"


def at_most(share: float) -> str:
    """A share of one in percent, rounded up, with more digits near 0 and 100."""
    near = min(share, 1.0 - share)
    if 0.0 < near < 1e-5:
        return "100 %" if share > 0.5 else "0.001 %"
    digits = 1 if near >= 0.01 else 3
    # 55.0 % stays 55.0 % although 0.55 is not exact in binary.
    bound = math.ceil(share * 100.0 * 10**digits - 1e-7) / 10**digits
    return f"{bound:.{digits}f} %" if bound < 100.0 else "100 %"


def one_in(probability: float) -> str:
    """A small probability, rounded up, as 1 in a whole number."""
    if probability < 1e-12:
        return upper_figure(probability, 2)
    return f"1 in {math.floor(1.0 / probability * (1 + 1e-12)):,}"


# --- what a count is


class CountWords(NamedTuple):
    """What a count is: in the title, in the first sentence, without its noise; and a note before the numbers."""

    title: str
    lead: str
    true_value: str
    note: str = ""


_COUNTS: Final = {
    "users": CountWords("Number of {counted} per {what}", "the number of users{limited}", "the true count"),
    "estimates": CountWords(
        "Number of users per {what}", "an estimate of the number of users with its margin of error",
        "the number of users",
    ),
    "differences": CountWords(
        "Differences in the number of users per {what}", "how many more users it has than {ranked}",
        "the true difference",
        "Counts are NOT numbers of users: each is the difference to the count of {ranked}, which is not released. "
        "So the number of users of an item is unknown, and there are no intervals.",
    ),
    "perhaps_reduced": CountWords(
        "Number of users per {what}, possibly reduced", "the number of users, possibly reduced",
        "the true count, possibly reduced",
        "Counts may be lower than the number of users: unless the publisher guaranteed that no possible data has "
        "more than {bound} items, the count after the {bound} largest was subtracted from all counts. It is not "
        "released, so there are no intervals.",
    ),
    "sketch": CountWords(
        "Number of users per {what}, estimated by a sketch", "an estimate of the number of users by a sketch",
        "the counter of the sketch",
        "Counts come from a sketch: apart from noise they may be {way} the number of users, within the limits "
        "given below.",
    ),
}  # fmt: skip


def count_words(facts: Facts) -> CountWords:
    plan, lower = facts.plan, facts.request.lower_threshold
    what, limited = _items_in_words(facts), facts.summary.limit_leaves_out
    # With a lower threshold, at least `lower - 1` is subtracted.
    least = f" (or {lower - 1:,} users, if that is more)" if lower > 1 else ""
    values = {
        "what": what,
        "counted": "counted users" if limited else "users",
        "limited": f" (each counted for at most {count_items(plan.contract.items)})" if limited else "",
        "ranked": f"the item ranked {plan.contract.nonzero + 1:,.0f}{least}",
        "bound": f"{plan.contract.max_nonzero or 0:,}",
        "way": "above" if plan.releases_offset else "below",
    }
    return CountWords(*(text.format(**values) for text in _COUNTS[facts.kind]))


def _items_in_words(facts: Facts) -> str:
    totals = f", with totals over {join_words(facts.request.total)}" if facts.request.total else ""
    return ", ".join(facts.rows.items) + totals


def _also_released(facts: Facts) -> str:
    """The sums and means that are released with the counts."""
    sums = facts.request.aggregates if facts.plan.sums else ()
    names = dict.fromkeys(
        f"the vector {one.vector}" if one.vector else f"the {one.kind} of {one.column}" for one in sums
    )
    if len(names) > 4:
        return f"{len(names)} {' and '.join(dict.fromkeys(one.kind + 's' for one in sums))}"
    return join_words([*names])


def _title(facts: Facts) -> str:
    title, also = count_words(facts).title, _also_released(facts)
    return f"{'' if facts.private else 'NOT PRIVATE: '}{title}{f', with {also}' if also else ''}"


def _lead(facts: Facts) -> str:
    rows, about = facts.rows.total, describe_source(facts)
    made = f"It was made from {about['source']} on {about['created'].partition('T')[0]}."
    if rows == 0:
        public = math.isinf(facts.plan.threshold)
        why = "the public list has no items" if public else "no count passed the threshold"
        return f"This release is empty: {why}. {made}"
    items = "1 item" if rows == 1 else f"each of {rows:,} items"
    what, also = count_words(facts).lead, _also_released(facts)
    noise = "" if facts.kind == "estimates" else ", with noise"
    return f"For {items}, this release gives {what}{f', and {also}' if also else ''}{noise}. {made}"


def describe_source(facts: Facts) -> dict[str, str]:
    """What was released, from what and when, by the keys of --json."""
    stated, request, also = facts.stated, facts.request, _also_released(facts)
    about = {"counted": f"users per {_items_in_words(facts)}{f', with {also}' if also else ''}"}
    if facts.kind not in ("users", "estimates"):
        about["a_count_is"] = f"{count_words(facts).true_value}, plus noise"
    if isinstance(request, SketchRequest):
        about["source"] = f"a sketch ({request.sketch}) with {request.sketch_size:,} counters"
    elif isinstance(request, HistogramRequest):
        about["source"] = "counts that were computed elsewhere"
    asked = request.to_dict()
    for key in ("input", "table", "query", "where", "user", "items", "known", "goal", "dataset"):
        if key in asked:
            value = asked[key]
            about["source" if key == "input" else key] = (
                ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            )
    about |= {"created": stated.created, "made_by": f"dphist {stated.dphist}"}
    if isinstance(stated, Certificate):
        about["sha256"] = stated.output.sha256
    return about


def _rows_notes(facts: Facts) -> list[str]:
    """What the counts and their intervals are, and what intervals do not cover."""
    rows, note = facts.rows, count_words(facts).note
    notes = [note] if note else []
    if rows.intervals is None or not rows.total:
        return notes
    if rows.margins is not None:
        doubtful = doubts(facts.rounds.reason) if facts.rounds else []
        within = f"the number of users is within its margin in {100 * rows.level:g} % of cases."
        return [f"Each count is an estimate{'.' if doubtful else f': {within}'}", *doubtful]
    if rows.width is not None:
        notes.append(f"The {100 * rows.level:g} % interval of a count is the count ± {figure(rows.width)}.")
    return [*notes, INTERVALS_OF_NOISE if facts.summary.limit_leaves_out else "Intervals cover the noise only."]


def warnings(facts: Facts) -> list[tuple[str, str]]:
    """At most three warnings and notes for the top: a weak budget, doubtful margins, why there are few items."""
    summary, top = facts.summary, facts.request.top
    few = summary.why_few
    if not few and top is not None and facts.rows.total < top:
        few = f"{summary.headline}. Mostly hidden: {summary.hidden_words}."
    texts = [*(summary.verdict.warnings if facts.private else ())]
    texts += doubts(facts.rounds.reason) if facts.rounds else []
    return [*(("Warning", text) for text in texts), *([("Note", few)] if few else [])][:3]


# --- the guarantee


def guarantee_words(facts: Facts) -> str:
    return guarantee(facts.plan, facts.request) if facts.private else NO_GUARANTEE


def _promise(facts: Facts) -> list[str]:
    if not facts.private:
        return [_SEEDED]
    # If someone else counted, the guarantee covers only users with as many items as the plan assumes.
    limit = None if not isinstance(facts.request, HistogramRequest) else facts.plan.contract.items
    return [guarantee_words(facts), *promise(facts.plan.budget, limit)]


def promise(budget: Budget, limit: int | None = None) -> list[str]:
    """What an attacker can learn at this budget, for experts.

    `limit`: the guarantee covers users with at most this many items.
    """
    whose = "however many items the person has"
    if limit is not None:
        whose = f"if the person has at most {count_items(limit)}"
    sentences = [guess_sentence(budget, f", whatever else they know and {whose}"), *beliefs(budget)]
    if DELTAS * budget.delta < 1.0:
        factor = f" ≈ {figure(SLACK * math.exp(budget.epsilon))}" if budget.epsilon < 30.0 else ""
        sentences.append(
            f"In terms of odds: with a probability of at most {DELTAS} δ = {upper_figure(DELTAS * budget.delta)} "
            f"they rise by more than a factor of {SLACK:g} e^ε{factor}, and with no larger probability they fall "
            "by more than that."
        )
    return sentences


def guess_sentence(budget: Budget, more: str = "") -> str:
    words = guess_words(budget)
    return f"{words[0].upper()}{words[1:]}{more}."


def move_belief(prior: float, epsilon: float) -> float:
    """The largest belief that is possible when the odds of a `prior` belief are multiplied by e^epsilon."""
    return prior / (prior + (1.0 - prior) * math.exp(-epsilon))


def beliefs(budget: Budget) -> list[str]:
    """How far a suspicion can grow, and how rarely further.

    With the loss L = ln P/Q and s = 1.1: delta >= E[(1 - e^(epsilon - L))^+] >= (1 - 1/s) Pr[L > epsilon + ln s]
    under P, and 1/(1 - 1/s) = 11. Under Q, outcomes that favour P are rarer still. The same holds with P and Q
    swapped.
    """
    rare, most = DELTAS * budget.delta, budget.epsilon + math.log(SLACK)
    if rare >= 1.0:
        return [
            f"δ = {upper_figure(budget.delta, 6)} is too large to limit what someone may learn about a person."
        ]
    little = at_most(move_belief(0.01, most))
    if little == "100 %":
        return ["Someone who is 1 % sure that a given person is in the data can become 100 % sure."]
    return [
        f"Someone who is 1 % sure that a given person is in the data can become at most {little} sure. The chance "
        f"that a release reveals more is at most {one_in(rare)}."
    ]


_AGAINST: Final = {
    "strong": "Anyone who sees this release, whatever else they know. It would look much the same without any one "
    "user, so it hides whether a person is in the data and what they did.",
    "moderate": "Anyone who sees this release, whatever else they know. It would look similar without any one "
    "user, so it partly hides whether a person is in the data and what they did.",
    "weak": "Only weakly against someone who sees this release. It may look clearly different without one user, "
    "and so reveal a lot about them.",
    "very weak": "Hardly anything. This release may show whether a person is in the data and what they did, and "
    "counts may be close to the true ones.",
}


def _meaning(facts: Facts) -> list[tuple[str, list[str]]]:
    """Questions of a privacy officer, answered without symbols."""
    verified = ("What was verified", verified_words(facts))
    if not facts.private:
        return [("Who is protected", [f"Nobody. {_SEEDED}"]), verified]
    # If someone else counted, the guarantee covers only users with as many items as the plan assumes.
    whose = (
        ""
        if not isinstance(facts.request, HistogramRequest)
        else f" who contributed to at most {facts.plan.contract.items:,} of the counts"
    )
    level, codes = facts.summary.verdict.level, guarantee_facts(facts.plan, facts.request).conditions
    assumed = conditions(facts.plan, facts.request, codes)
    return [
        ("Who is protected", [f"Every user in the data{whose}, with all of their data together."]),
        ("Against what", [_AGAINST[level]]),
        (f"How much: {level}", [guess_sentence(facts.plan.budget), *beliefs(facts.plan.budget)]),
        ("What is not covered", [*unprotected(facts), *assumed]),
        verified,
    ]


def unprotected(facts: Facts) -> list[str]:
    """What the guarantee does not protect."""
    return [
        "Other releases of the same data: what they reveal about a person adds up.",
        *caveats(facts.plan, facts.request, ("groups",)),
        "People in general: what the counts show about most users may also be true of someone who is not in the "
        "data.",
    ]


_NO_CERTIFICATE: Final = (
    "This is the report of a release in memory, which has no certificate. release.write(...) writes the release "
    "with its certificate; a report of that file includes it."
)


def verified_words(facts: Facts) -> list[str]:
    verified, written = facts.verified, facts.origin.certificate is not None
    signed = {
        "trusted": f"The release is signed by the expected key, {verified.signed_by}.",
        "valid": f"The release is signed by the key {verified.signed_by}; who owns that key was not checked.",
    }.get(verified.signature, "The release is not signed, so nothing shows who made it.")
    same = "the released data matches the certificate and that " if written else ""
    proof = "the guarantee follows from the noise and the threshold (recomputed without the data)"
    if not facts.private:
        proof = "the numbers of the plan fit together. This does not make noise from a seed private"
    return [
        f"dphist {__version__} verified for this report that {same}{proof}.",
        signed if written else _NO_CERTIFICATE,
        "No file can show that the data was complete and correct, or that the noise was drawn as the certificate "
        f"says. {_RELY}",
    ]


def _curve_note(facts: Facts) -> str:
    notes = ["The mark is the budget of this release; all points hold at once."]
    if not facts.private:
        notes = [
            "NOT PRIVATE: this is the curve of the plan. The noise comes from a seed, so neither the curve nor "
            "the mark holds for this release."
        ]
    what = {"laplace": "Laplace noise", "rounds": "rounds"}.get(facts.plan.mechanism)
    if what is not None:
        notes.append(f"For {what} a point is not always the smallest possible bound.")
    return " ".join(notes)


# --- what the numbers leave out


def _limits(facts: Facts) -> list[str]:
    """What the limit and the threshold do to the numbers, and who is not counted."""
    sentences = caveats(facts.plan, _request_with_effect(facts), _LIMITS)
    sentences += _selection_notes(facts)[:-1] if facts.selection else _selection_notes(facts)
    sentences += _total(facts)
    if isinstance(facts.request, EventsRequest):
        missing = "a user" if facts.request.null_items else "a user or an item"
        hidden = "items not on the list" if _listed(facts) else "users whose items are all below the threshold"
        sentences.append(f"Not counted: rows without {missing}, and {hidden}.")
    return sentences


def list_uncovered(facts: Facts) -> list[str]:
    """What readers might assume, but should not."""
    return [
        *not_covered(facts.plan, _request_with_effect(facts)),
        *_total(facts),
        "The data itself: nothing here shows that it was correct or complete, or that the noise was drawn as the "
        f"certificate says. {_RELY}",
    ]


def _request_with_effect(facts: Facts) -> AnyRequest:
    """The request without a user limit that leaves nothing out because the public list is no longer than it."""
    contract = facts.plan.contract
    whole = facts.plan.noise.public and contract.items == contract.max_nonzero
    if not whole or not isinstance(facts.request, EventsRequest):
        return facts.request
    return replace(facts.request, max_items_per_user=None)


def _listed(facts: Facts) -> bool:
    """Whether the items come from a public list, all of which is released."""
    return math.isinf(facts.plan.threshold)


def _total(facts: Facts) -> list[str]:
    """How far off the sum of all counts is; nothing for a single count."""
    rows, counts = facts.rows.total, facts.stated.counts
    if rows < 2:
        return []
    missing = "" if _listed(facts) else ", and items below the threshold are missing"
    users = f"The sum is not a number of users: a user with several items is counted several times{missing}."
    if facts.rounds is not None:
        return [
            "Totals: the errors of counts are related, so the margin of a sum does not follow from the margins of "
            f"its parts. {users}"
        ]
    covariance, variance = counts.covariance or 0.0, (counts.standard_error or 0.0) ** 2
    error = figure(math.sqrt(max(0.0, rows * (variance - covariance) + rows**2 * covariance)))
    how = f"the noise of one count times the square root of {rows:,}"
    if covariance > 0.0:
        how = f"the square root of {figure(variance - covariance)} n + {figure(covariance)} n² for n = {rows:,}"
    bias = "" if _listed(facts) else (
        " Counts near the threshold are too high on average, so the sum is too high too, by far more than its "
        "noise if there are many of them."
    )  # fmt: skip
    return [
        f"Totals: the noise in the sum of all {rows:,} released counts has a standard error of {error} ({how})."
        f"{bias} {users}"
    ]


def passes(selection: Selection) -> str:
    """What the probabilities are of: if only the largest counts that pass are kept, it is not release."""
    return "release" if selection.largest is None else "passing the threshold"


def _selection_notes(facts: Facts) -> list[str]:
    selection = facts.selection
    if facts.rounds is not None:
        return [_needed_words(facts.rounds)]
    if selection is None:
        return [
            "Every item of the public list is released, whatever its count, so no count is biased. Each count has "
            f"a standard error of {figure(facts.plan.total_noise)}."
        ]
    notes = [
        "The threshold hides items with few users: the probability of "
        f"{passes(selection)} is {selection_words(selection)} ({selection.axis})."
    ]
    if selection.largest is not None:
        notes.append(
            f"Of the items that pass, the {selection.largest:,} with the largest noisy counts are released."
        )
    before = " Intervals cover the noise before this selection." if facts.kind in WITH_INTERVALS else ""
    return [
        *notes,
        f"Counts just above the threshold are too high on average, because noise lifted them over it.{before}",
        "These figures follow from the distribution of the noise, in ordinary floating point. They are not part "
        "of what was verified.",
    ]


def selection_words(selection: Selection) -> str:
    least = "" if selection.unlikely is None else f"at most 1 % up to {selection.unlikely:,}, "
    return f"{least}at least 50 % from {selection.even:,} and at least 99 % from {selection.likely:,}"


# --- the numbers and tables


def _numbers(facts: Facts) -> list[tuple[str, str, str]]:
    """Label, value and meaning of the budget, the mechanism, the noise, the threshold and the bounds."""
    plan, budget, covariance = facts.plan, facts.plan.budget, facts.stated.counts.covariance
    numbers = [
        (
            "Epsilon (ε)", upper_figure(budget.epsilon, 6),
            "Privacy loss: adding or removing one user changes the probability of any outcome by at most a factor "
            "of e^ε, apart from δ. Lower is more private.",
        ),
        (
            "Delta (δ)", upper_figure(budget.delta, 6),
            "How much a probability may change beyond that factor. It does not bound how often more than ε is "
            "revealed. Lower is more private; it should be well below 1 / number of users.",
        ),
    ]  # fmt: skip
    if facts.verified.delta_certified is not None:
        meaning = "Recomputed for this report in ball arithmetic: an upper bound that includes rounding errors."
        numbers.append(("Certified δ", upper_figure(facts.verified.delta_certified, 6), meaning))
    if facts.rounds is not None:
        return [*numbers, *_rounds_numbers(facts, facts.rounds)]
    often = "3 of 4" if plan.mechanism == "laplace" else "2 of 3"
    selected = "" if math.isinf(plan.threshold) else ", before the threshold selects"
    numbers += [
        ("Mechanism", *MECHANISMS[plan.mechanism]),
        (
            "Noise of a count", f"± {figure(half_width(plan, 0.95))}",
            f"95 % of counts are within this of {count_words(facts).true_value}, and about {often} within "
            f"{figure(plan.total_noise)} (one standard deviation){selected}.",
        ),
    ]  # fmt: skip
    if covariance:
        meaning = (
            "Standard deviation of the noise that all counts share. It cancels in differences, not in totals."
        )
        numbers.append(("Shared noise", figure(math.sqrt(covariance)), meaning))
    limit, _, more = facts.summary.limit_words.partition("; ")
    numbers += [*_threshold(facts), ("Items per user", limit, f"{more[:1].upper()}{more[1:]}." if more else "")]
    if plan.contract.max_nonzero is not None:
        label, meaning = "Counts at most", "The analysis assumes that at most this many counts are not zero."
        if plan.mechanism == "known-domain":
            label = "Items of the public list"
        elif facts.request.top is not None:
            label, meaning = "Largest counts", "At most this many counts are released; the next one is subtracted."
        numbers.append((label, f"{plan.contract.max_nonzero:,}", meaning))
    for one in facts.stated.sums or ():
        if isinstance(one, VectorFacts):
            what = f"Standard error of each of {', '.join(one.columns)}; each user's own vector"
            meaning = f"{what} is clipped to a Euclidean norm of {one.norm:g}."
            numbers.append((f"Noise of {one.name}", figure(one.standard_error), meaning))
            continue
        bounds = f"each user's own sum is clamped to {one.low:g} to {one.high:g}"
        if isinstance(one, SumFacts):
            error, what = figure(one.standard_error), f"sum of {one.column}"
        else:
            error = f"{figure(one.own_standard_error)}/n"
            what = f"mean of {one.column} over n users, or slightly more"
        numbers.append((f"Noise of {one.name}", error, f"Standard error of the {what}; {bounds}."))
    return numbers


def _threshold(facts: Facts) -> list[tuple[str, str, str]]:
    counts = facts.stated.counts
    if counts.threshold is None:
        return [("Threshold", "none", "Every item of the public list is released.")]
    meaning = "Only counts that exceed this with their noise are released. That hides items with few users."
    if counts.offset is None:
        return [("Threshold", figure(counts.threshold), meaning)]
    lower = counts.lower_threshold or 1
    parts = f"the offset + {f'{lower - 1:,} + ' if lower > 1 else ''}{figure(facts.plan.noise.threshold)}"
    offset = "The noisy count after the largest ones. It was subtracted from all counts and added back."
    return [
        ("Threshold", figure(counts.threshold), f"{meaning} It is {parts}."),
        ("Offset", figure(counts.offset), offset),
    ]


def tables(facts: Facts) -> dict[str, Table]:
    """The tables of a report: heads, rows, and how many columns are text."""
    rounds, selection, step = facts.rounds, facts.selection, max(1, (len(facts.curve) - 1) // 10)
    curve = [(upper_figure(e, 4), upper_figure(d, 4)) for e, d in facts.curve[::step]]
    found: dict[str, Table] = {"curve": (("ε", "δ"), curve, 0)}
    if selection is not None:
        head = (selection.axis, f"probability of {passes(selection)}", "mean error", "standard deviation")
        digits, points = digits_of(facts.plan.total_noise), selection.points
        rows = [
            (f"{count:,}", percent(p), f"{bias:,.{digits}f}", f"{deviation:,.{digits}f}")
            for count, p, bias, deviation in points[:: max(1, len(points) // 10)]
            if p >= 1e-4
        ]
        found["selection"] = (head, rows, 0)
    if rounds is not None:
        head = ("found by", "items", "evidence needed", "its noise")
        found["found"] = (head, [_cells(one) for one in rounds.steps], 1)
        users = [(label, f"{users:,}") for label, users in zip(rounds.labels, rounds.users, strict=True)]
        found["sizes"] = (("released items of a user", "users, with noise"), users, 1)
    return found


# --- rounds


def _cells(step: Step) -> tuple[str, ...]:
    none = "none"
    return (
        step.name, f"{step.items:,}", none if step.evidence is None else figure(step.evidence),
        none if step.noise is None else figure(step.noise),
    )  # fmt: skip


def _needed_words(rounds: Rounds) -> str:
    if rounds.needed is None:
        return "Every item of the public list is released, however few users have it."
    return (
        f"Items with few users are hidden: with about {count_users(rounds.needed)} an item is found half of the "
        "time. Users with many items count for less until their other items are found."
    )


def count_users(users: int) -> str:
    return "1 user" if users == 1 else f"{users:,} users"


def _rounds_notes(rounds: Rounds) -> list[str]:
    """How the items were found and measured."""
    notes = []
    if rounds.needed is not None:
        first = (
            "Items that were known in advance were not searched for. " if rounds.steps[0].evidence is None else ""
        )
        alone = (
            " Users with one item are a group of their own, whose counts have less noise and are searched first."
            if rounds.alone
            else ""
        )
        notes.append(
            f"{first}Items were found in rounds: each user divides a weight among their items, an item is found "
            "when the evidence of all rounds so far is above the threshold of the round, and what was found or "
            f"is hopeless leaves the lists of all users, so that their other items get more weight. Evidence is "
            f"in users who count in full, and its noise one standard deviation.{alone}"
        )
    notes += [_needed_words(rounds), _limit_words(rounds), *doubts(rounds.reason)]
    return notes


def _limit_words(rounds: Rounds) -> str:
    if rounds.limit == 0:
        return (
            "Nothing was measured after that: the noisy numbers of users show hardly any users of the released "
            "items beside those with one item."
        )
    return (
        f"Then the items were measured with a limit of {count_items(rounds.limit)}, chosen from the noisy numbers "
        f"of users below: users with n > {rounds.limit} of the released items count √({rounds.limit}/n) for each, "
        f"all others 1, and the noise is ±{figure(1.96 * rounds.measured)} (95 %)."
    )


def _rounds_numbers(facts: Facts, rounds: Rounds) -> list[tuple[str, str, str]]:
    """The numbers of a release in rounds, beside its budget."""
    plan, summary = facts.plan, facts.summary
    numbers = [("Mechanism", *MECHANISMS[plan.mechanism])]
    if facts.rows.margins:
        most = f"±{figure(max(facts.rows.margins))}"
        level = f"{100 * facts.rows.level:g} %"
        meaning = f"Half of the counts have a margin of at most this ({level}); the largest is {most}."
        numbers.append(("Margin of a count", f"±{figure(summary.margin)}", meaning))
    if rounds.needed is not None:
        numbers.append(
            ("Users needed", f"about {rounds.needed:,}", "With this many, an item is found half of the time.")
        )
    if rounds.limit:
        full = count_items(rounds.limit)
        meaning = f"Of the noise alone (95 %). Users with up to {full} count in full, others less for each."
        numbers.append(("Noise of the measurement", f"±{figure(1.96 * rounds.measured)}", meaning))
    limit, _, more = summary.limit_words.partition("; ")
    numbers.append(("User limit", limit, f"{more[:1].upper()}{more[1:]}." if more else ""))
    if plan.contract.max_nonzero is not None:
        meaning = "All of them are released, including those with no users."
        numbers.append(("Items of the public list", f"{plan.contract.max_nonzero:,}", meaning))
    return numbers


def _verify_command(facts: Facts) -> str:
    """The command that verifies the release, with file names only, since readers have it in another folder."""
    address = facts.verified.address
    short = address if "://" in address else PurePath(address).name
    return shlex.join(["dphist", "verify", short, *facts.origin.options])
