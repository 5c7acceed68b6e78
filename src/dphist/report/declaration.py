"""The declaration that a publisher signs: the facts of a release on one page, and what only people can confirm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dphist.certificate.schema import Certificate
from dphist.display import figure, printable, shorten
from dphist.planning.explain import MECHANISMS
from dphist.report import words
from dphist.report.facts import Facts

# Longer values, such as conditions, would not fit on one page; the report has them in full.
_LONGEST: Final = 120

BLANKS: Final = ("Publisher", "Recipients", "Purpose", "Period of the data")
SIGNATURE: Final = ("Name", "Function", "Place and date", "Signature")
CONFIRMED: Final = (
    "The data was complete and correct, and the user column identifies each person.",
    "The noise was drawn as the certificate says, and no other run was made and discarded.",
    "No setting (budget, limits, conditions, lists of items) was chosen by looking at the data.",
    "Other releases of the same people's data are in the ledger above, or were added up separately.",
)


@dataclass(frozen=True)
class Declaration:
    """Answers with their labels, then blanks, what is confirmed by signing, and the fields of the signature."""

    facts: tuple[tuple[str, tuple[str, ...]], ...]
    blanks: tuple[str, ...] = BLANKS
    confirmed: tuple[str, ...] = CONFIRMED
    signature: tuple[str, ...] = SIGNATURE

    def to_dict(self) -> dict[str, object]:
        return {
            "facts": [{"label": label, "sentences": list(sentences)} for label, sentences in self.facts],
            "blanks": list(self.blanks),
            "confirmed": list(self.confirmed),
            "signature": list(self.signature),
        }


def declaration_of(facts: Facts) -> Declaration | None:
    """None if nothing can be declared: the noise was seeded, or there is no certificate to refer to."""
    stated = facts.stated
    if not facts.private or facts.origin.certificate is None or not isinstance(stated, Certificate):
        return None
    answers = (
        ("What is published", _published(facts, stated)),
        ("Guarantee", (words.guarantee_words(facts),)),
        ("Unit of privacy", (_unit(facts),)),
        (f"Protection: {facts.summary.verdict.level}", (*facts.summary.verdict.warnings, *_protection(facts))),
        ("Noise and threshold", _noise(facts)),
        ("Not protected", tuple(words.unprotected(facts))),
        ("Checked", (_checked(facts),)),
        ("Booked", (_booked(stated),)),
        ("Certificate", (f"{facts.origin.place}, self_sha256 {stated.self_sha256}",)),
        ("SHA-256 of the data", (stated.output.sha256,)),
    )
    return Declaration(tuple((label, tuple(map(printable, sentences))) for label, sentences in answers))


def _published(facts: Facts, stated: Certificate) -> tuple[str, ...]:
    about = words.describe_source(facts)
    rows = facts.rows.total
    counted = f"{rows:,} {'count' if rows == 1 else 'counts'} ({about['counted']})"
    made = f"made from {shorten(about['source'], _LONGEST)} on {about['created'].partition('T')[0]}"
    more = [
        f"{label}: {shorten(about[key], _LONGEST)}."
        for key, label in (("table", "Table"), ("query", "Query"), ("where", "Condition"))
        if key in about
    ]
    note = words.count_words(facts).note
    return (
        f"{counted} in {stated.output.name}, {made} by {about['made_by']}.",
        *([note] if note else []),
        *more,
    )


def _unit(facts: Facts) -> str:
    column = words.describe_source(facts).get("user")
    named = f", identified by {shorten(column, _LONGEST)}" if column else ""
    return f"One user{named}: the guarantee compares the data with and without all data of any one of them."


def _protection(facts: Facts) -> tuple[str, ...]:
    budget = facts.plan.budget
    return (words.guess_sentence(budget), *words.beliefs(budget))


def _noise(facts: Facts) -> tuple[str, ...]:
    mechanism, how = MECHANISMS[facts.plan.mechanism]
    threshold = facts.stated.counts.threshold
    exact = [] if facts.rounds else [f"Standard deviation for a count: {figure(facts.plan.total_noise)}."]
    exact += [] if threshold is None else [f"Threshold: {figure(threshold)}."]
    rows = dict(facts.summary.rows())
    kept = (f"{label}: {rows[label]}." for label in ("Margin of error", "Mostly hidden", "User limit"))
    return (f"{mechanism[:1].upper()}{mechanism[1:]}. {how}", *exact, *kept)


def _checked(facts: Facts) -> str:
    return " ".join(words.verified_words(facts)[:2])


def _booked(stated: Certificate) -> str:
    booking = stated.booking
    if not booking:
        return "Not in a ledger: other releases of the same data have to be added up separately."
    return (
        f"Entry {booking.entry} of the dataset {booking.dataset} in the ledger {booking.ledger}, with the hash "
        f"{booking.hash}."
    )
