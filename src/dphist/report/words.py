"""The sentences of a report and of a plan. Bounds are rounded up; everything else follows from the facts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from dphist.display import count_items, figure, join_words, printable, upper_figure
from dphist.planning.explain import MECHANISMS
from dphist.planning.utility import Correction, half_width
from dphist.privacy.types import Budget, LaplaceNoise, Plan
from dphist.releasing.document import NO_GUARANTEE, caveats, guarantee, not_covered
from dphist.releasing.summary import INTERVALS_OF_ESTIMATES, INTERVALS_OF_NOISE, NOT_PRIVATE, ROUGH_ESTIMATES
from dphist.report.facts import Facts, LimitChoice, Offer, Selection, digits_of

# By how much a factor may exceed e^epsilon, and how many delta that costs: 1/(1 - 1/1.1) = 11.
SLACK: Final = 1.1
DELTAS: Final = 11

ABOUT: Final = {
    "counted": "Counted", "a_count_is": "A count is", "source": "From", "table": "Table",
    "query": "Query", "where": "Only events with", "user": "User column", "items": "Public list",
    "dataset": "Dataset", "created": "Created", "made_by": "Made by", "sha256": "SHA-256 of the data",
}  # fmt: skip
# Caveats that say what happens to the numbers.
_LIMITS: Final = (
    "user-limit", "spread", "max-nonzero", "differences", "perhaps-reduced", "reduced", "sketch",
    "sketch-with-offset", "clamped-sums", "weighted-sums", "selected-sums", "shared-noise",
)  # fmt: skip
CURVE: Final = (
    "A release has a curve of guarantees: for every epsilon, a delta for which it is proved to be (epsilon, "
    "delta)-differentially private. Lower is safer."
)
BETWEEN: Final = (
    "Each point is a certified upper bound, computed in ball arithmetic. Between two points only the chord of "
    "delta over e^epsilon is proved, which lies above the drawn line."
)
VERIFYING: Final = (
    "The certificate holds every number that the proof needs. Anyone can recompute the proof with the Python "
    "package dphist, without the data that was counted:"
)


# --- numbers in words


def percent(share: float) -> str:
    """A share of one in percent, with more digits near its ends."""
    near = min(share, 1.0 - share)
    if 0.0 < near < 1e-5:
        return "over 99.999 %" if share > 0.5 else "under 0.001 %"
    digits = 0 if near >= 0.1 else 1 if near >= 0.01 else 3
    return f"{100.0 * share:.{digits}f} %"


def at_most(share: float) -> str:
    """An upper bound on a share of one in percent: never less than it is, with more digits near the ends."""
    near = min(share, 1.0 - share)
    if 0.0 < near < 1e-5:
        return "100 %" if share > 0.5 else "0.001 %"
    digits = 1 if near >= 0.01 else 3
    # A number that was rounded to its digits already is not raised by what a double cannot hold.
    bound = math.ceil(share * 100.0 * 10**digits - 1e-7) / 10**digits
    return f"{bound:.{digits}f} %" if bound < 100.0 else "100 %"


def one_in(probability: float) -> str:
    """A small probability as one in at least so many."""
    if probability < 1e-12:
        return upper_figure(probability, 2)
    return f"1 in {math.floor(1.0 / probability * (1 + 1e-12)):,}"


# --- what a count is


class CountWords(NamedTuple):
    """What a count is: in the title, in the first sentence, without its noise, and what must be said before it."""

    title: str
    lead: str
    true_value: str
    note: str = ""


_COUNTS: Final = {
    "users": CountWords("Number of {counted} per {what}", "the number of users{limited}", "the true count"),
    "weighted": CountWords(
        "Number of users per {what}, weighted", "a weighted number of users", "the true weighted count",
        "A count here is weighted, so it may be lower than the number of users. {limit}",
    ),
    "differences": CountWords(
        "Differences in the number of users per {what}", "how many more users there are than for {ranked}",
        "the true difference",
        "A count here is NOT a number of users: it is the difference to the count of {ranked}, which is not "
        "released. The number of users of an item cannot be computed from it, and it has no interval.",
    ),
    "perhaps_reduced": CountWords(
        "Number of users per {what}, possibly reduced",
        "the number of users, possibly less a number that was subtracted from all counts,",
        "the true count, possibly reduced",
        "A count here may be less than the number of users: unless it was promised that no possible data has more "
        "than {bound} items, the count after the {bound} largest was subtracted from all counts, and it is not "
        "released. So there are no intervals.",
    ),
    "sketch": CountWords(
        "Number of users per {what}, estimated by a sketch", "about how many users there are",
        "the counter of the sketch",
        "A count here comes from a sketch: besides the noise, it may be {way} the number of users, by how much at "
        "most is said below. Intervals cover the noise only.",
    ),
}  # fmt: skip


def count_words(facts: Facts) -> CountWords:
    """What a count of this release is."""
    plan, lower = facts.plan, facts.request.get("lower-threshold", 1)
    what, limited = ", ".join(facts.rows.items), facts.summary.limit_leaves_out
    # Of counts from a lower threshold on, at least what is below it is subtracted.
    least = f" (or to {lower - 1:,}, if that is more)" if lower > 1 else ""
    values = {
        "what": what,
        "counted": "counted users" if limited else "users",
        "limited": f" who were counted, for at most {count_items(plan.contract.items)} each," if limited else "",
        "limit": _limit_sentence(plan),
        "ranked": f"the item ranked {plan.contract.nonzero + 1:,.0f}{least}",
        "bound": f"{plan.contract.max_nonzero or 0:,}",
        "way": "above" if plan.releases_offset else "below",
    }
    found = CountWords(*(text.format(**values) for text in _COUNTS[facts.kind]))
    if facts.correction is None:
        return found
    lead = "an estimate of the number of users, and the count behind it,"
    return found._replace(title=f"Number of users per {what}", lead=lead, note="")


def _also_released(sums: Sequence[Mapping[str, Any]]) -> str:
    """What is released beside the counts, in a few words."""
    if len(sums) > 4:
        kinds = [f"{one['kind']}s" for one in sums]
        return f"{len(sums)} {' and '.join(dict.fromkeys(kinds))}"
    return join_words([f"the {one['kind']} of {one['column']}" for one in sums])


def _title(facts: Facts) -> str:
    also = _also_released(facts.document.get("sums", ()))
    found = count_words(facts).title + (f", with {also}" if also else "")
    return found if facts.private else f"NOT PRIVATE: {found}"


def _lead(facts: Facts) -> str:
    rows, also, known = facts.rows.total, _also_released(facts.document.get("sums", ())), _about(facts)
    items = "1 item" if rows == 1 else f"each of {rows:,} items"
    found = f"gives {count_words(facts).lead} for {items}{f', and {also}' if also else ''}, with noise."
    if rows == 0:
        public = math.isinf(facts.plan.threshold)
        found = f"is empty: {'the list had no items' if public else 'no count passed the threshold'}."
    return f"This release {found} It was made from {known['source']} on {known['created'].partition('T')[0]}."


def _about(facts: Facts) -> dict[str, str]:
    """What was released, from what and when, by the keys of --json."""
    document, request, also = facts.document, facts.request, _also_released(facts.document.get("sums", ()))
    found = {"counted": "users per " + ", ".join(facts.rows.items) + (f", with {also}" if also else "")}
    if facts.kind != "users":
        found["a_count_is"] = f"{count_words(facts).true_value}, plus noise"
    if "sketch" in request:
        found["source"] = f"a sketch ({request['sketch']}) with {request['sketch-size']:,} counters"
    elif not request:
        found["source"] = "counts that were computed elsewhere"
    keys = {"input": "source", **{key: key for key in ("table", "query", "where", "user", "items", "dataset")}}
    for key, name in keys.items():
        if key in request:
            value = request[key]
            found[name] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    found |= {"created": str(document.get("created")), "made_by": f"dphist {document.get('dphist')}"}
    if "output" in document:
        found["sha256"] = str(document["output"].get("sha256"))
    return found


def _rows_notes(facts: Facts) -> list[str]:
    """What the counts and their intervals are, and what intervals do not cover."""
    rows, note, (_, interval) = facts.rows, count_words(facts).note, facts.rows.main
    found = [note] if note else []
    if interval is None or not rows.total:
        return found
    if rows.estimated:
        assumed = "Estimates suppose that users with many items choose the same items as others."
        return [*found, INTERVALS_OF_ESTIMATES, assumed]
    if rows.width is not None:
        found.append(f"The {100 * rows.level:g} % interval of a count is the count ± {figure(rows.width)}.")
    return [*found, INTERVALS_OF_NOISE if facts.summary.limit_leaves_out else "Intervals cover the noise."]


def _factors_of(facts: Facts, correction: Correction) -> str:
    """What counts are multiplied by, with standard errors: most for rare items, least for the largest count."""
    found = [
        f"{figure(float(correction.factors_at(count)))} ± {float(correction.errors_at(count)):.2g}"
        for count in (0.0, max(facts.rows.counts, default=0.0))
    ]
    return found[0] if found[0] == found[1] else f"{found[0]} for rare items, {found[1]} for the largest count"


# --- the guarantee


def _guarantee_of(facts: Facts) -> str:
    return guarantee(facts.plan, facts.request, facts.budget) if facts.private else NO_GUARANTEE


def _promise_of(facts: Facts) -> list[str]:
    """What the guarantee means, in words."""
    if not facts.private:
        return [f"{NOT_PRIVATE}. Anyone who knows or guesses the seed can remove the noise."]
    condition = _guarantee_of(facts).partition(", provided that ")[2]
    # Where someone else counted, the guarantee covers users with no more items than the plan assumes.
    limit = None if facts.request else facts.plan.contract.items
    return [
        *promise(facts.budget, facts.curve[0][1], limit),
        *([f"This rests on what no proof can show: that {condition}"] if condition else []),
    ]


def promise(budget: Budget, delta_at_zero: float, limit: int | None = None) -> list[str]:
    """What an attacker can learn at this budget. `delta_at_zero` bounds the total variation between neighbours.

    `limit`: the guarantee covers users with at most so many items.
    """
    epsilon, delta = budget.epsilon, budget.delta
    e, d = upper_figure(epsilon, 6), upper_figure(delta, 6)
    factor = f"e^{e}" + (f" ≈ {upper_figure(math.exp(epsilon), 4)}" if epsilon < 30.0 else "")
    # The best guess from even odds is right with (1 + total variation)/2; epsilon alone allows more.
    exponent = math.exp(-epsilon)
    guess = min((1.0 + delta_at_zero) / 2.0, (1.0 + delta * exponent) / (1.0 + exponent))
    whose, user = "however many items that person has", "any one user"
    if limit is not None:
        whose = f"if that person has at most {count_items(limit)}"
        user += f" who has at most {count_items(limit)}"
    return [
        f"This release is (epsilon = {e}, delta = {d})-differentially private at the user level: adding or "
        f"removing all data of {user} changes the probability of any outcome by at most a factor of {factor}, "
        f"plus {d} ({one_in(delta)}).",
        "Suppose someone thinks that a certain person is as likely as not to be in the data. Without this release "
        f"they guess right in 50 % of cases; with it in at most {at_most(guess)}, whatever else they know and "
        f"{whose}.",
        _beliefs(epsilon, delta),
    ]


def move_belief(prior: float, epsilon: float) -> float:
    """Where a belief can go at most when its odds are multiplied by e^epsilon."""
    return prior / (prior + (1.0 - prior) * math.exp(-epsilon))


def _beliefs(epsilon: float, delta: float) -> str:
    """How far a belief can go, and how rarely further.

    With the loss L = ln P/Q and s = 1.1: delta >= E[(1 - e^(epsilon - L))^+] >= (1 - 1/s) Pr[L > epsilon + ln s],
    under P, and the more so under Q, where what speaks for P is rarer still; and so for what speaks for Q.
    """
    rare = DELTAS * delta
    if rare >= 1.0:
        return f"delta = {upper_figure(delta, 6)} is so large that it does not limit how far a belief can change."
    most = epsilon + math.log(SLACK)
    near = f" (about {figure(math.exp(most))})" if epsilon < 30.0 else ""
    return (
        f"In terms of beliefs: the odds that the person is in the data rise by more than a factor of {SLACK:g} "
        f"e^epsilon{near} with a probability of at most {DELTAS} delta = {upper_figure(rare)} ({one_in(rare)}), "
        "and fall by more than that with no larger probability. Apart from that rare case, a belief of 1 % "
        f"becomes at most {at_most(move_belief(0.01, most))} and a belief of 50 % at most "
        f"{at_most(move_belief(0.5, most))}. This bounds one unlucky release; how often a guess is right, above, "
        "is the average over all possible releases."
    )


def warnings(facts: Facts) -> list[tuple[str, str]]:
    """What a reader must see before the numbers: a weak budget, rough estimates, and why there are few items."""
    summary, top = facts.summary, facts.request.get("top")
    few = summary.why_few
    if not few and top is not None and facts.rows.total < top:
        few = f"{summary.headline}. Mostly hidden: {summary.hidden_words}."
    found = [*(summary.verdict.warnings if facts.private else ())]
    found += [one for one in summary.warnings if one == ROUGH_ESTIMATES]
    return [*(("Warning", one) for one in found), *([("Note", few)] if few else [])][:3]


# What a release at each level does against someone who sees it.
_AGAINST: Final = {
    "strong": "Anyone who sees this release, whatever else they know: it would look much the same without any one "
    "user, so it hides whether a person is in the data, and what they did.",
    "moderate": "Anyone who sees this release, whatever else they know: it would look similar without any one "
    "user, so it partly hides whether a person is in the data, and what they did.",
    "weak": "Only weakly against someone who sees this release: it may look clearly different without one user, "
    "and so tell a good deal about them.",
    "very weak": "Hardly against anything: this release may show whether a person is in the data and what they "
    "did, and counts may be close to the true ones.",
}


def _meaning(facts: Facts) -> list[tuple[str, list[str]]]:
    """What a privacy officer asks, and the answers, without symbols."""
    if not facts.private:
        return [
            (
                "Who is protected",
                [f"Nobody. {NOT_PRIVATE}, for tests: anyone who knows or guesses the seed can remove the noise."],
            ),
            ("What was verified", _verified_words(facts)),
        ]
    # Where someone else counted, the guarantee covers users with no more items than the plan assumes.
    whose = "" if facts.request else f" who contributed to at most {facts.plan.contract.items:,} of the counts"
    condition = _guarantee_of(facts).partition(", provided that ")[2]
    not_safe = [
        "Other releases of the same data: what they tell about a person adds to what this one tells.",
        *caveats(facts.plan, facts.request, ("groups",)),
        "People in general: what the counts show of many users may also hold for someone who is not among them.",
        *([f"The guarantee rests on what no proof can show: that {condition}"] if condition else []),
    ]
    return [
        (
            "Who is protected",
            [f"Every user in the data{whose}, with all of their data together, not each row by itself."],
        ),
        ("Against what", [_AGAINST[facts.summary.verdict.level]]),
        (f"How much: {facts.summary.verdict.level}", _belief_words(facts.budget)),
        ("What is not covered", not_safe),
        ("What was verified", _verified_words(facts)),
    ]


def _belief_words(budget: Budget) -> list[str]:
    """How far a belief can go, by `_beliefs`, for readers without mathematics."""
    rare, most = DELTAS * budget.delta, budget.epsilon + math.log(SLACK)
    if rare >= 1.0:
        return ["No limit can be given for what someone may learn about a person: delta is too large."]
    half, little = at_most(move_belief(0.5, most)), at_most(move_belief(0.01, most))
    if little == "100 %":
        return ["Someone who is 1 % sure that a certain person is in the data can become 100 % sure."]
    return [
        f"Someone who is 50 % sure that a certain person is in the data can become at most {half} sure from this "
        f"release, and someone who is 1 % sure at most {little}.",
        f"The chance that a release tells more than that is at most {one_in(rare)}. How often a guess is right, "
        "above, is the average over all possible releases.",
    ]


def _verified_words(facts: Facts) -> list[str]:
    from dphist import __version__

    verified, written = facts.verified, facts.origin.certificate is not None
    signed = {
        "trusted": f"The release is signed by the expected key, {verified.signed_by}.",
        "valid": f"The release is signed by the key {verified.signed_by}; whose key that is was not checked.",
    }.get(verified.signature, "The release is not signed: nothing shows who made it.")
    same = "the released data are those that the certificate describes, and " if written else ""
    proof = "the guarantee follows from the plan's noise and threshold, recomputed without the data"
    if not facts.private:
        proof = "the plan's numbers fit together. This does not make noise from a seed private"
    return [
        f"Verified by dphist {__version__} when this report was made: {same}{proof}.",
        signed if written else _certificate_note(facts),
        "Not verified, because no file can show it: that the data was complete and correct, and that the noise "
        "was drawn as the certificate says. For that you rely on the people who made the release.",
    ]


def _limits(facts: Facts) -> list[str]:
    """What the limit and the threshold do to the numbers, and who is not counted."""
    found = caveats(facts.plan, _request_with_effect(facts), _LIMITS)
    if facts.correction is not None:
        found.append(
            "The estimate is the count times a factor that makes up for what the limit on users leaves out: "
            f"{_factors_of(facts, facts.correction)} (one standard error). The factor follows from the noisy "
            "numbers of users by number of items. It supposes that users with many items choose the same items as "
            "others: intervals of estimates cover the noise of the count and of the factor, and no interval "
            "covers how far users with many items choose differently."
        )
    found += _selection_notes(facts)[:-1] if facts.selection else _selection_notes(facts)
    if facts.rows.total > 1:
        found.append(_total(facts.plan, facts.document["counts"], facts.rows.total))
    if facts.request and "sketch" not in facts.request:
        rows = "a user" if facts.request.get("null-items") else "a user or an item"
        hidden = "users all of whose items are below the threshold" if facts.selection else "items not on the list"
        found.append(f"Not counted: rows without {rows}, and {hidden}.")
    return found


def _checks(facts: Facts) -> list[str]:
    """What was verified; what was proved of a plan does not hold for noise from a seed."""
    seeded = "The noise comes from a seed: what was proved holds for the plan only, not for this release."
    return [*([] if facts.private else [seeded]), *facts.verified.checks]


def _curve_note(facts: Facts) -> str:
    choice = facts.verified.choice
    notes = ["The mark is the budget of this release; all points hold at once."]
    if choice is not None:
        notes.append(
            "The curve covers the noisy numbers that chose the limit and the release together, whichever limit "
            "they choose; for a release with this limit alone it would be lower."
        )
    if not facts.private:
        notes = [
            "NOT PRIVATE: this is the curve of the plan. The noise comes from a seed, so neither the curve nor "
            "the mark holds for this release."
        ]
    if any(isinstance(one.noise, LaplaceNoise) for one in (choice.plans if choice else (facts.plan,))):
        notes.append("For Laplace noise a point is not always the smallest possible bound.")
    return " ".join(notes)


# --- the numbers


def _numbers(facts: Facts) -> list[dict[str, str]]:
    """Mechanism, budget, noise, threshold and bounds: `label`, `value` and `meaning` of each."""
    plan, budget, counts = facts.plan, facts.budget, facts.document["counts"]
    mechanism, said = MECHANISMS[plan.mechanism]
    found = [
        (
            "Epsilon", upper_figure(budget.epsilon, 6),
            "The privacy loss: with or without one user, the probability of any outcome changes by a factor of at "
            "most e^epsilon, except for delta. Lower is safer.",
        ),
        (
            "Delta", upper_figure(budget.delta, 6),
            "What may be added to a probability beyond that factor. It does not bound how often more is learned. "
            "Lower is safer; it should be well below one over the number of users.",
        ),
    ]  # fmt: skip
    if facts.verified.delta_certified is not None:
        meaning = "Recomputed for this report in ball arithmetic: an upper bound, whatever the rounding."
        found.append(("Delta, as proved", upper_figure(facts.verified.delta_certified, 6), meaning))
    often = "3 of 4" if isinstance(plan.noise, LaplaceNoise) else "2 of 3"
    selected = "" if math.isinf(plan.threshold) else ", before the threshold selects"
    within = figure(half_width(plan, 0.95))
    found += [
        ("Mechanism", mechanism, said),
        (
            "Noise of a count", f"± {within}",
            f"95 % of counts are within this of {count_words(facts).true_value}, about {often} within "
            f"{figure(plan.total_noise)} (one standard deviation){selected}.",
        ),
    ]  # fmt: skip
    if counts["covariance"] != 0.0:
        meaning = (
            "Standard deviation of the noise that all counts share. It cancels in differences, not in totals."
        )
        found.append(("Shared noise", figure(math.sqrt(counts["covariance"])), meaning))
    limit, _, more = facts.summary.limit_words.partition("; ")
    found += [*_threshold(facts), ("Items per user", limit, f"{more[:1].upper()}{more[1:]}." if more else "")]
    if (correction := facts.correction) is not None:
        meaning = (
            "A count times this estimates the number of users, less for common items. With its standard error: "
            f"{_factors_of(facts, correction)}."
        )
        found.append(("Factor of estimates", figure(correction.factor), meaning))
    if plan.contract.max_nonzero is not None:
        label, meaning = "Counts at most", "The analysis assumes that at most this many counts are not zero."
        if plan.mechanism == "known-domain":
            label = "Items of the public list"
        elif "top" in facts.request:
            label, meaning = "Largest counts", "At most this many counts are released; the next one is subtracted."
        found.append((label, f"{plan.contract.max_nonzero:,}", meaning))
    for one in facts.document.get("sums", ()):
        bounds = f"each user's own sum clamped to {one['low']:g} to {one['high']:g}"
        if one["kind"] == "sum":
            error, what = figure(one["standard_error"]), f"Standard error of the sum of {one['column']}"
        else:
            error = f"{figure(one['own_standard_error'])}/n"
            what = f"Standard error, possibly a little more, of the mean of {one['column']} over n users"
        found.append((f"Noise of {one['name']}", error, f"{what}, {bounds}."))
    return [dict(zip(("label", "value", "meaning"), one, strict=True)) for one in found]


def _threshold(facts: Facts) -> list[tuple[str, str, str]]:
    counts = facts.document["counts"]
    if counts["greater_than"] is None:
        return [("Threshold", "none", "Every item of the public list is released.")]
    meaning = "A count is released only if it exceeds this with its noise. That hides items of few users."
    if counts["offset"] is None:
        return [("Threshold", figure(counts["greater_than"]), meaning)]
    lower = counts["lower_threshold"]
    removed = f"{lower - 1:,} + " if lower > 1 else ""
    parts = f" It is the offset + {removed}{figure(facts.plan.threshold)}."
    offset = "The noisy count after the largest ones, which was subtracted from all counts and added back."
    return [
        ("Threshold", figure(counts["greater_than"]), meaning + parts),
        ("Offset", figure(counts["offset"]), offset),
    ]


def _limit_sentence(plan: Plan) -> str:
    """What happens to the items of a user beyond the limit."""
    limit, most = plan.contract.items, plan.contract.spread
    beyond = f"{count_items(limit)}{' on the list' if plan.mechanism == 'known-domain' else ''}"
    if limit == plan.contract.max_nonzero:
        return "The limit is not below the length of the list, so it leaves nothing out."
    if most is None:
        return f"Users with more than {beyond} contribute a random {limit:,} of them."
    all_count = most == plan.contract.max_nonzero
    return (
        f"Users with more than {beyond} count less for each of them: weight from 1 down to "
        f"{plan.least_weight:.2g} at {count_items(most)}."
        f"{'' if all_count else f' Of more than {count_items(most)}, a random {most:,} count.'}"
    )


# --- the tables, the threshold, and what is not covered


def tables(facts: Facts) -> dict[str, tuple[Sequence[str], Sequence[Sequence[str]], int]]:
    """The tables of a report: heads, rows, and how many columns are words."""
    points, choice, selection = facts.curve, facts.choice, facts.selection
    curve = [(upper_figure(e, 4), upper_figure(d, 4)) for e, d in points[:: max(1, (len(points) - 1) // 10)]]
    found: dict[str, tuple[Sequence[str], Sequence[Sequence[str]], int]] = {
        "curve": (("epsilon", "delta"), curve, 0),
    }
    if selection is not None:
        passing = "released with" if selection.largest is None else "passes with"
        head = (selection.axis, passing, "too high by", "deviation")
        digits, by_count = digits_of(facts.plan.total_noise), selection.by_count()
        rows = [
            (f"{count:,}", percent(p), f"{bias:,.{digits}f}", f"{deviation:,.{digits}f}")
            for count, p, bias, deviation in by_count[:: max(1, len(by_count) // 10)]
            if p >= 1e-4
        ]
        found["selection"] = (head, rows, 0)
    if choice is not None:
        users = [(label, f"{users:,}") for label, users in zip(choice.labels, choice.users, strict=True)]
        found["choice"] = (("items of a user", "users, with noise"), users, 1)
    if choice is not None and choice.offers:
        offers = [
            (
                f"{one.limit:,}", one.excess, figure(one.noise), _threshold_words(one.threshold),
                _loss(choice, one),
            )
            for one in choice.offers
        ]  # fmt: skip
        loss = _LOSSES[_measure(choice)][0]
        found["offers"] = (("limit", "excess", "noise", "threshold", loss), offers, 2)
    return found


def _threshold_words(threshold: float | None) -> str:
    return "none" if threshold is None else figure(threshold)


def passes(selection: Selection) -> str:
    """What has the probability: where only the largest of those that pass are kept, it is not release."""
    return "is released" if selection.largest is None else "passes the threshold"


def _selection_notes(facts: Facts) -> list[str]:
    found = facts.selection
    if found is None:
        return [
            "Every item of the public list is released, whatever its count: nothing is selected and no count is "
            f"biased. Each count has a standard error of {figure(facts.plan.total_noise)}."
        ]
    least = "" if found.unlikely is None else f", and of at most 1 % up to {found.unlikely:,}"
    intervals = " The intervals in the table describe the noise before this selection."
    return [
        f"The threshold hides items of few users: an item {passes(found)} with a probability of at least 50 % "
        f"from {found.even:,} on ({found.axis}), of at least 99 % from {found.likely:,} on{least}.",
        *(
            []
            if found.largest is None
            else [f"Of those that pass, only the {found.largest:,} with the largest noisy counts are released."]
        ),
        "Counts that barely passed are too high on average, because the noise lifted them."
        + (intervals if facts.kind in ("users", "weighted", "sketch") else ""),
        "These figures follow from the distribution of the noise, in ordinary floating point. They help readers "
        "and are not part of what was verified.",
    ]


def _request_with_effect(facts: Facts) -> Mapping[str, Any]:
    """The request without a limit that takes nothing away: not below the length of the public list."""
    contract = facts.plan.contract
    if facts.plan.mechanism != "known-domain" or contract.items != contract.max_nonzero:
        return facts.request
    return {key: value for key, value in facts.request.items() if key != "max-items-per-user"}


def list_uncovered(facts: Facts) -> list[str]:
    """What a reader might assume and should not."""
    plan, rows = facts.plan, facts.rows.total
    found = not_covered(plan, _request_with_effect(facts))
    if rows > 1:
        found.append(_total(plan, facts.document["counts"], rows))
    return [
        *found,
        "The data itself: nothing here shows that it was correct or complete, or that the noise was drawn as the "
        "certificate says. For that you rely on the people who made the release.",
    ]


def _total(plan: Plan, counts: Mapping[str, Any], rows: int) -> str:
    """How far off a sum of counts is."""
    covariance, variance = counts["covariance"], counts["standard_error"] ** 2
    error = figure(math.sqrt(max(0.0, rows * (variance - covariance) + rows**2 * covariance)))
    how = (
        f"the square root of {figure(variance - covariance)} n + {figure(covariance)} n² with n = {rows:,}"
        if covariance > 0.0
        else f"the noise of one count times the square root of {rows:,}"
    )
    if math.isinf(plan.threshold):
        return (
            f"Totals: the sum of all {rows:,} released counts has a standard error of {error}, {how}. It is not a "
            "number of users: a user with several items is in several counts."
        )
    return (
        f"Totals: before selection, the noise in the sum of all {rows:,} released counts has a standard error of "
        f"{error}, {how}. But every count near the threshold adds its bias, so the sum of the released counts is "
        "too high on average, by far more than that where many are near. It is not a number of users: a user with "
        "several items is in several counts, and items below the threshold are in none."
    )


# What each goal makes as small as possible: a name for a column, and in words.
_LOSSES: Final = {
    "accuracy": (
        "predicted error",
        "the smallest error of all estimates together (the sum of |estimate - true count| over all items, divided "
        "by the sum of the true counts; an item that is not released counts as an estimate of 0)",
    ),
    "keys": ("users needed", "the smallest number of users that an item needs on average to be released"),
}


_WAYS: Final = {
    "drop": "drop (the items beyond it are left out)",
    "spread": "spread (with more items, each counts less)",
}


def _limit_notes(facts: Facts) -> list[str]:
    """What the limit does to users with many items, and how it was chosen."""
    found, contract = facts.choice, facts.plan.contract
    if found is None:
        return [] if contract.spread is None else [_limit_sentence(facts.plan)]
    notes = [
        _limit_sentence(facts.plan),
        f"The limit {found.cap:,} with {_WAYS[found.excess]} was chosen from the noisy numbers of users by number "
        f"of items; the noise of each has a standard deviation of {figure(found.deviation)}.",
    ]
    if not found.offers:
        return notes
    best, *others = found.offers
    listed = join_words([f"{_loss(found, one)} for {one.limit:,} with {one.excess}" for one in others])
    measure = _measure(found)
    goal = found.goal if measure == found.goal else f"{found.goal}, but all items of a public list are released"
    return [
        *notes,
        f"The goal was {goal}: {_LOSSES[measure][1]}. By the noisy numbers this is {_loss(found, best)} for "
        f"{best.limit:,} with {best.excess}, the smallest of the {found.plans_on_offer} plans on offer"
        f"{f'; others are {listed}' if listed else ''}. These predictions come from a model of typical data and "
        "may be wrong; privacy does not depend on them.",
    ]


def _measure(found: LimitChoice) -> str:
    """Which loss was predicted: from a public list all items are released, whatever the goal."""
    return "accuracy" if found.offers[0].threshold is None else found.goal


def _loss(found: LimitChoice, offer: Offer) -> str:
    return f"{100.0 * offer.loss:.1f} %" if _measure(found) == "accuracy" else figure(offer.loss)


def _certificate_note(facts: Facts) -> str:
    """Why a release in memory has no certificate to download."""
    if facts.origin.certificate is not None:
        return ""
    return (
        "This report is of a release in memory, and a certificate belongs to a file: release.write(...) writes "
        "both, and a report of that file includes it."
    )


def _verify_command(facts: Facts) -> str:
    """The command that verifies the release; a file by its name alone, since it will be somewhere else."""
    address = facts.verified.address
    short = address if "://" in address else PurePath(address).name
    return shlex.join(["dphist", "verify", short, *facts.origin.options])


def describe(facts: Facts) -> dict[str, Any]:
    """Everything that a report says except its rows and charts, by the keys of `dphist report --json`."""
    certificate, choice, rows = facts.origin.certificate, facts.choice, facts.rows
    found = {
        "title": _title(facts),
        "lead": _lead(facts),
        "summary": facts.summary.to_dict(),
        "cautions": list(facts.summary.verdict.warnings) if facts.private else [],
        "release": facts.verified.address,
        "written": facts.origin.written,
        "private": facts.private,
        "counts_are": facts.kind,
        "about": _about(facts),
        "checks": _checks(facts),
        "signature": facts.verified.signature,
        "signed_by": facts.verified.signed_by,
        "guarantee": _guarantee_of(facts),
        "promise": _promise_of(facts),
        "meaning": [{"label": label, "sentences": sentences} for label, sentences in _meaning(facts)],
        "limits": _limits(facts),
        "epsilon": facts.budget.epsilon,
        "delta": facts.budget.delta,
        "delta_certified": facts.delta_certified,
        "plan": facts.plan.to_dict(),
        "numbers": _numbers(facts),
        "curve": [{"epsilon": epsilon, "delta": delta} for epsilon, delta in facts.curve],
        "curve_note": _curve_note(facts),
        "selection": None if facts.selection is None else facts.selection.to_dict(),
        "selection_notes": _selection_notes(facts),
        "cap_choice": None if choice is None else {
            "cap": choice.cap,
            "standard_deviation": choice.deviation,
            "noisy_users": [
                {"items_of_a_user": label, "users": users}
                for label, users in zip(choice.labels, choice.users, strict=True)
            ],
            "excess": choice.excess,
            "goal": choice.goal,
            "correction": None if facts.correction is None else facts.correction.to_dict(),
            "offers": [vars(offer) for offer in choice.offers],
        },
        "limit_notes": _limit_notes(facts),
        "rows": facts.rows.total,
        "rows_notes": _rows_notes(facts),
        "interval": None if rows.width is None else {"share": rows.level, "half_width": rows.width},
        "booking": {key: str(value) for key, value in facts.document.get("booking", {}).items()} or None,
        "not_covered": list_uncovered(facts),
        "certificate": (
            None if certificate is None
            else {"place": facts.origin.place, "self_sha256": str(facts.document["self_sha256"])}
        ),
        "certificate_note": _certificate_note(facts) or None,
        "verify": _verify_command(facts),
    }  # fmt: skip
    return {key: make_printable(value) for key, value in found.items()}


def make_printable(value: Any) -> Any:
    """Texts that others wrote, without what moves a cursor, turns a line round or cannot be encoded."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(key): make_printable(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_printable(one) for one in value]
    return value
