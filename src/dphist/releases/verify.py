"""`verify`: recompute the guarantee of a release from its certificate alone, and notice what was changed."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from dphist.calibrate.auto_cap import ChoicePlan, chosen_cap
from dphist.errors import DphistError
from dphist.releases.aggregates import aggregates_of, summed, sums_facts
from dphist.releases.choosing import Chosen, choice_for
from dphist.releases.columns import count_column
from dphist.releases.document import NO_GUARANTEE, counts_facts, guarantee, not_covered, plan_from
from dphist.releases.fitting import fits, is_receipt
from dphist.releases.printing import printable, raised
from dphist.releases.request import AUTO, request_from
from dphist.releases.soundness import certified
from dphist.signatures import NO_TRUST, NOT_SIGNED, Signed, Status, Trust, examine
from dphist.types import FORMAT, Budget, Plan, html_table

if TYPE_CHECKING:
    from dphist.outputs.readback import Readback

SEEDED: Final = "the noise was made from a seed, so that nobody is protected"
# All that a certificate says.
KNOWN: Final = frozenset(
    {
        "format", "dphist", "created", "private", "guarantee", "not_covered", "request", "plan", "counts", "sums",
        "choice", "booking", "output", "signature", "self_sha256",
    }
)  # fmt: skip
OUTPUT: Final = frozenset({"name", "kind", "sha256", "columns", "types", "rows", "files", "escape_formulas"})


@dataclass(frozen=True)
class Verification:
    """What was checked and found. Without a problem its guarantee holds.

    `signature` is trusted if it is by the public key that was given. `signed_by` is the fingerprint of its key.
    """

    address: str
    checks: tuple[str, ...]
    problems: tuple[str, ...]
    private: bool
    delta_certified: float | None
    signature: Status = "missing"
    signed_by: str | None = None
    # The plans of all caps on offer, where one was chosen and the choice was found to be as it should be.
    choice: ChoicePlan | None = field(default=None, repr=False, compare=False)

    @property
    def verified(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of `dphist verify --json`."""
        return {
            "address": self.address,
            "verified": self.verified,
            "private": self.private,
            "delta_certified": self.delta_certified,
            "signature": self.signature,
            "signed_by": self.signed_by,
            "checks": list(self.checks),
            "problems": list(self.problems),
        }

    def __str__(self) -> str:
        # A certificate may have been written by anybody, and so may the names of files.
        lines = [f"ok       {check}" for check in self.checks]
        lines += [f"PROBLEM  {problem}" for problem in self.problems]
        if self.verified:
            lines.append(f"{self.address} is verified.")
        else:
            lines.append(f"{self.address} is NOT verified.")
        return "\n".join(map(printable, lines))

    def _repr_html_(self) -> str:
        rows = [("ok", check) for check in self.checks] + [("PROBLEM", problem) for problem in self.problems]
        return html_table(f"{self.address} is {'' if self.verified else 'NOT '}verified", rows)


def verify(
    address: str | os.PathLike[str],
    *,
    table: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
    not_before: str | datetime | None = None,
) -> Verification:
    """Check a release against its certificate: that neither was changed, and that its numbers prove its promise.

    With `public_key`, the file of a key, both must be signed by it under the name that the release has, and made
    at `not_before` or later. Without it, a release that was changed on purpose and resealed may pass.

    The certificate shows by which numbers the noise was to be drawn, and the proof is computed anew from them.
    That the noise was indeed drawn so is the word of whoever made the release.
    """
    trust = Trust.of(public_key, not_before)
    return read_and_verify(address, table=table, certificate=certificate, trust=trust)[0]


def read_and_verify(
    address: str | os.PathLike[str],
    *,
    table: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    trust: Trust = NO_TRUST,
) -> tuple[Verification, Readback]:
    """The same, with the release that was looked at: what is shown of it is then what was verified."""
    from dphist.outputs.readback import read_release
    from dphist.outputs.targets import without_password

    found = read_release(address, table, certificate)
    examined = Examination(found.problems, examine(found.document, address, table, trust))
    if not found.problems:
        unsigned = " (not signed: who wrote them is not shown)" if examined.signed.status == "missing" else ""
        examined.checks.insert(0, f"data and certificate match their digests: no accidental change{unsigned}")
    if found.document is not None:
        examined.attempt(found.document, found.table)
    return examined.verification(without_password(os.fspath(address))), found


class Examination:
    """What is checked and found of one certificate."""

    def __init__(self, problems: Sequence[str], signed: Signed = NOT_SIGNED) -> None:
        self.checks: list[str] = list(signed.checks)
        self.problems = [*problems, *signed.problems]
        self.private = False
        self.delta: float | None = None
        self.choice: ChoicePlan | None = None
        self.signed = signed

    def attempt(self, document: dict[str, Any], table: Any) -> None:
        """Look at a certificate of which nothing is known."""
        try:
            self.document(document, table)
        except (TypeError, ValueError, KeyError, ArithmeticError, AttributeError, DphistError) as error:
            self.problems.append(f"the certificate cannot be understood ({type(error).__name__})")

    def verification(self, address: str) -> Verification:
        """What was found, under the name of the release."""
        return Verification(
            address, tuple(self.checks), tuple(self.problems), self.private, self.delta, self.signed.status,
            self.signed.fingerprint, self.choice,
        )  # fmt: skip

    def document(self, document: dict[str, Any], table: Any) -> None:
        """Everything that a certificate says is computed anew from its plan and its request."""
        if document.get("format") != FORMAT:
            self.problems.append(f"the certificate is not of the format {FORMAT}")
            return
        request, counts = document.get("request"), document.get("counts")
        if not isinstance(request, dict) or not isinstance(counts, dict):
            self.problems.append("the certificate lacks the request or what is known of the counts")
            return
        self.private = document.get("private") is True and "seed" not in request
        if not self.private:
            self.problems.append(SEEDED)
        plan = self._plan(document.get("plan"))
        if plan is None or not self._known(document):
            return
        # What is quick comes first: to repeat a choice takes seconds.
        self._counts(plan, counts, request, table)
        self._sums(plan, document, table)
        self._booking(document)
        if set(self.problems) - {SEEDED} and request.get("max-items-per-user") == AUTO:
            return
        budget = self._choice(plan, document) if request.get("max-items-per-user") == AUTO else plan.budget
        self._request(plan, request, table, budget)
        self._statements(plan, document, budget)

    def _known(self, document: dict[str, Any]) -> bool:
        """Whether there is nothing in the certificate that no release says, and the request is possible."""
        request, found = document["request"], len(self.problems)
        output = document.get("output", {})
        named = {"database"} if "signature" in document else set()
        more = output.keys() - OUTPUT - named or output.get("escape_formulas", True) is not True
        if document.keys() - KNOWN or more or {"input-name", "sign"} & request.keys():
            self.problems.append("the certificate says more than a release does")
        if ("choice" in document) != (request.get("max-items-per-user") == AUTO):
            self.problems.append("the certificate has the choice of a cap that was not asked for, or lacks it")
        if request and "sketch" not in request:
            try:
                request_from({name: value for name, value in request.items() if name != "dataset"})
            except DphistError as error:
                self.problems.append(f"there is no such request: {error}")
        return len(self.problems) == found

    def _booking(self, document: dict[str, Any]) -> None:
        """That a booking is one of the dataset that was asked for. The ledger itself is not here."""
        receipt, dataset = document.get("booking"), document["request"].get("dataset")
        if (receipt is None) != (dataset is None) or (receipt is not None and receipt.get("dataset") != dataset):
            self.problems.append("the certificate names a booking of another dataset, or none")
        elif receipt is not None and not is_receipt(receipt):
            self.problems.append("the certificate's booking is not one that a ledger makes")
        elif receipt is not None:
            self.checks.append(
                f"a booking is named, entry {receipt['entry']} of the ledger {receipt['ledger']}: look it up "
                f"with dphist ledger show LEDGER --expect {receipt['hash']}"
            )

    def _plan(self, data: Any) -> Plan | None:
        """The plan with the delta of its own numbers, computed anew; its other numbers must follow from them."""
        try:
            claimed = plan_from(data)
            proved = certified(claimed)
        except DphistError as error:
            self.problems.append(str(error))
            return None
        self.delta, told = proved.certificate.delta, claimed.certificate
        if claimed.to_dict() != data:
            self.problems.append("the plan's numbers contradict each other")
        # Another version of the arithmetic may differ in the last digits.
        if told.delta < self.delta * (1.0 - 1e-9) or told.epsilon != proved.budget.epsilon:
            self.problems.append(
                f"the certificate claims a delta of {told.delta!r} at epsilon {told.epsilon!r}, and it is "
                f"{self.delta!r} at {proved.budget.epsilon!r}"
            )
            return None
        self.checks.append(
            f"the plan is ({proved.budget.epsilon!r}, {proved.budget.delta!r})-differentially private: "
            f"its delta, computed anew in ball arithmetic, is at most {raised(self.delta, 6)}"
        )
        return proved

    def _choice(self, plan: Plan, document: dict[str, Any]) -> Budget:
        """That the cap was chosen as it should be: all plans are made anew, and the choice repeated."""
        request, told = document["request"], document["choice"]
        budget = Budget(request["epsilon"], request["delta"])
        public = plan.contract.max_nonzero if plan.mechanism == "known-domain" else None
        planned = choice_for(
            budget,
            share=request.get("cap-share"),
            mechanism=request.get("mechanism", "best"),
            minimize=request.get("minimize", "threshold"),
            sums=[(low, high) for _, low, high in summed(aggregates_of(request))],
            weights=request.get("weight"),
            public_items=public,
        )
        noisy = tuple(told["noisy_users"])
        if any(isinstance(number, bool) or not isinstance(number, int) for number in noisy):
            raise ValueError
        anew = Chosen(planned, noisy, chosen_cap(planned, noisy))
        if anew.to_dict() != told or planned.plan(anew.cap).to_dict() != plan.to_dict():
            self.problems.append("the cap was not chosen by what the certificate says")
            return budget
        self.delta, self.choice = planned.certificate.delta, planned
        self.checks.append(
            f"choosing the cap and releasing are ({budget.epsilon!r}, {budget.delta!r})-differentially private "
            f"together: their delta, computed anew in ball arithmetic, is at most {raised(self.delta, 6)}"
        )
        return budget

    def _request(self, plan: Plan, request: dict[str, Any], table: Any, budget: Budget) -> None:
        """That the plan is one for what was asked: the same budget, and no bound that was not asked for."""
        if not request:
            return  # counted elsewhere: the guarantee names what it rests on
        if (request.get("epsilon"), request.get("delta")) != (budget.epsilon, budget.delta):
            self.problems.append("the plan has another budget than the request")
        if not fits(plan, request):
            self.problems.append("the plan relies on bounds that were not asked for, or is for another request")
        if plan.mechanism == "known-domain" and table is not None and table.num_rows != plan.contract.max_nonzero:
            self.problems.append("the release has not as many items as the public list")

    def _statements(self, plan: Plan, document: dict[str, Any], budget: Budget) -> None:
        request = document["request"]
        known = [
            (guarantee(plan, request, budget, earlier=old) if self.private else NO_GUARANTEE)
            for old in (False, True)
        ]
        listed = [not_covered(plan, request, earlier=old) for old in (False, True)]
        if document.get("guarantee") not in known or document.get("not_covered") not in listed:
            self.problems.append("the certificate's sentences are not those of its plan")

    def _counts(self, plan: Plan, counts: dict[str, Any], request: dict[str, Any], table: Any) -> None:
        """That every released count has passed the threshold."""
        offset = counts.get("offset")
        if isinstance(offset, (int, float)) != plan.releases_offset or counts != counts_facts(
            plan, request, offset
        ):
            self.problems.append("what the certificate says of the counts does not follow from its plan")
            return
        name, passes = None if table is None else count_column(request, table), counts["greater_than"]
        if table is None or name not in table.column_names:
            self.problems.append("the release has no column of counts")
            return
        values = table.column(name).to_pylist()
        if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
            self.problems.append("a count is not a number")
        elif passes is not None:
            slack = 0.5 if request.get("round") is True else 0.0
            # Compared in whole steps before it was written as a decimal number: allow for the last digit.
            if min(values, default=math.inf) + slack <= passes - 1e-9 * abs(passes):
                self.problems.append("a count is below the threshold")
            else:
                self.checks.append("all counts are above the threshold")

    def _sums(self, plan: Plan, document: dict[str, Any], table: Any) -> None:
        """That the sums are those that were asked for, by the plan's noise."""
        aggregates = aggregates_of(document["request"])
        asked = tuple((low, high) for _, low, high in summed(aggregates))
        if asked != tuple((one.low, one.high) for one in plan.sums):
            self.problems.append("the plan's sums are not those of the request")
            return
        if document.get("sums", []) != (sums_facts(plan, aggregates) if aggregates else []):
            self.problems.append("what the certificate says of the sums does not follow from its plan")
            return
        missing = [one.name for one in aggregates if table is not None and one.name not in table.column_names]
        if missing:
            self.problems.append(f"the release has no column {missing[0]!r}")
        elif aggregates:
            self.checks.append("the sums and means are those that were asked for")
