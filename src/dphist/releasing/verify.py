"""`verify`: recompute the guarantee of a release from its certificate alone, and detect changes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.display import html_table, printable, upper_figure
from dphist.errors import DphistError, InvalidParameter
from dphist.outputs.certificate_text import SEAL, SIGNATURE, same_json
from dphist.planning.auto_cap import ChoicePlan
from dphist.planning.planner import contract_of, gamma_value
from dphist.planning.utility import Correction, Verdict, added_columns, verdict_of
from dphist.privacy.types import FORMAT, Budget, LatticeNoise, Plan
from dphist.releasing.aggregates import Published, aggregates_of, distinct_sums, sum_columns, sums_with_noise
from dphist.releasing.document import (
    Chosen,
    correction_from,
    counts_facts,
    document_of,
    is_difference,
    plan_choice_for,
    plan_facts,
    plan_from,
)
from dphist.releasing.histogram import sketch_problem, sketch_request
from dphist.releasing.request import AUTO, Request, count_column, request_from
from dphist.signatures import NO_TRUST, NOT_SIGNED, Signed, Status, Trust, examine

if TYPE_CHECKING:
    from dphist.outputs.readback import Readback


SEEDED: Final = "the noise was made from a seed, so that nobody is protected"
# Decimal numbers of another version of the arithmetic may differ in the last digits.
LAST_DIGITS: Final = 1e-9
_SAME_FIT: Final = 1e-4
_VERSION: Final = re.compile(r"[0-9][0-9A-Za-z.+!-]{0,63}")
# As JSON with sorted keys; the dataset is compared with that of the request.
_RECEIPT: Final = re.compile(
    r'\{"dataset": "(?:[^"\\]|\\.)*", "entry": [1-9][0-9]*, "hash": "[0-9a-f]{64}", "ledger": "[0-9a-f]{32}"\}'
)
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


def recorded_request(data: dict[str, Any]) -> Request:
    """The request of a certificate. Raises `DphistError` unless it is one, exactly as a release records it."""
    sources = (data.get("input", ""), data.get("items", ""))
    texts = [one for source in sources for one in (source if isinstance(source, list) else [source])]
    if not all(isinstance(one, str) for one in (*texts, data.get("dataset", ""))):
        raise InvalidParameter("the name of an input or of a dataset is not a text")
    # The ledger of a dataset is not recorded.
    given = {name: value for name, value in data.items() if name != "dataset"}
    request = request_from(given)
    request.events()
    if any(weight <= 0 for weight in request.weights):
        raise InvalidParameter("a weight is not a positive number")
    if not same_json(request.to_dict(), given):
        raise InvalidParameter("it is not as a release records it")
    return request


def fits(plan: Plan, request: dict[str, Any]) -> bool:
    """Whether a plan relies on nothing but what the request has `dphist release` keep, or promises."""
    if "sketch" in request:
        return fits_sketch(plan, request)
    # Without a wish the better of both kinds of noise is taken.
    if "mechanism" in request and (request["mechanism"] == "laplace") != (plan.mechanism == "laplace"):
        return False
    contract = plan.contract
    cap, top, promise = (request.get(name) for name in ("max-items-per-user", "top", "max-nonzero"))
    # A cap that was chosen is the plan's own: that has been looked at.
    capped = cap == AUTO or (isinstance(cap, int) and contract.items >= min(cap, contract.nonzero))
    if cap != AUTO and (contract.spread is not None) != (request.get("excess") == "spread"):
        return False
    if contract.spread is not None:
        # The weights of another limit are not those of the plan's levels: a larger limit does not cover them.
        own = cap == AUTO or (isinstance(cap, int) and contract.items == min(cap, contract.nonzero))
        if not own or contract != contract_of(contract.max_nonzero, contract.items, True):
            return False
    if (plan.mechanism == "known-domain") != ("items" in request):
        return False
    if plan.mechanism == "known-domain":
        return contract.items == contract.max_nonzero or capped
    if isinstance(plan.noise, LatticeNoise) and plan.releases_offset:
        return top == contract.max_nonzero and plan.noise.offset == request.get("offset", "opposite")
    if contract.max_nonzero is None:
        return capped
    if top is not None:
        return top == contract.max_nonzero == contract.items and request.get("offset") == "none"
    ratio = request.get("gamma")
    if ratio is not None and plan.gamma != round(gamma_value(ratio, contract)):
        return False
    return promise == contract.max_nonzero and (contract.items == contract.max_nonzero or capped)


def fits_sketch(plan: Plan, request: dict[str, Any]) -> bool:
    """Whether a plan holds for the sketch that was released, and nothing else was asked for."""
    kinds = {"sketch-size": int, "count-name": str, "seed": int, "dataset": str, "round": bool}
    if any(name in request and type(request[name]) is not kind for name, kind in kinds.items()):
        return False
    size = request.get("sketch-size", 0)
    # Options at their defaults are not recorded. The dataset is compared with that of the booking.
    if (
        size < 1
        or sketch_problem(plan, size)
        or request.get("count-name") == "count"
        or not request.get("round", True)
    ):
        return False
    more = {name: request[name] for name in ("count-name", "round", "dataset") if name in request}
    return same_json({**sketch_request(plan, size, request.get("seed")), **more}, request)


def numbers_of(table: Any, name: str, kind: str) -> NDArray[Any] | None:
    """The column of this name and type, if all of it is finite numbers."""
    if table.column_names.count(name) != 1:
        return None
    column = table.column(name)
    if str(column.type) != kind or column.null_count:
        return None
    values: NDArray[Any] = column.to_numpy()
    return values if bool(np.isfinite(values).all()) else None


def beside_problems(table: Any, due: Mapping[str, NDArray[Any]], slack: float) -> list[str]:
    """Whether the errors and intervals beside a column are those of its noise, up to rounding."""
    problems = []
    for name, values in due.items():
        found = numbers_of(table, name, "int64" if values.dtype == np.int64 else "double")
        if found is None or not np.allclose(found, values, rtol=LAST_DIGITS, atol=slack):
            problems.append(f"the column {name!r} does not follow from the plan and the column before it")
    return problems


def sums_problems(
    plan: Plan, request: dict[str, Any], table: Any, correction: Correction | None = None
) -> list[str]:
    """Whether the sums are those that were asked for, by the plan's noise; the counts are in order."""
    aggregates = aggregates_of(request)
    if [of[1:] for of in distinct_sums(aggregates)] != [(one.low, one.high) for one in plan.sums]:
        return ["the plan's sums are not those of the request"]
    look = Published(request.get("standard-error") is True, request.get("interval"))
    problems = []
    for one, noise in sums_with_noise(plan, aggregates):
        names = look.names(one.name)
        columns = {name: values for name in names if (values := numbers_of(table, name, "double")) is not None}
        if len(columns) < len(names):
            problems.append(f"a value of the column {one.name!r} is not a number")
        elif one.kind == "sum":
            counts = table.column(count_column(request, table)).to_numpy().astype(np.float64)
            due = sum_columns(counts, columns[one.name] - float(noise.middle) * counts, plan, noise, look)
            beside = dict(zip(names, due, strict=True))
            if correction is not None:
                beside[f"{one.name}_estimate"] = columns[one.name] * correction.factors_at(counts)
            problems += beside_problems(table, beside, 1e-6 * noise.sigma)
        elif any(_outside(columns[name], one.low, one.high) for name in names if not name.endswith("_error")):
            problems.append(f"a mean in the column {one.name!r} is outside its bounds")
    return problems


def _outside(values: NDArray[Any], low: Fraction, high: Fraction) -> bool:
    slack = LAST_DIGITS * float(high - low)
    return bool(((values < float(low) - slack) | (values > float(high) + slack)).any())


@dataclass(frozen=True)
class Verification:
    """The result of `verify`. Without a problem, data, certificate and guarantee agree.

    `signature` is trusted if it is by the public key that was given. `signed_by` is the fingerprint of its key.
    That the noise was drawn is shown by nothing: docs/release.md#what-verify-shows.
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
    # How much the guarantee that was verified protects: a weak one may be verified as well.
    verdict: Verdict | None = None

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
            "verdict": None if self.verdict is None else self.verdict.level,
            "warnings": list(self.warnings),
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know of a guarantee that is proved, and weak all the same."""
        return () if self.verdict is None else self.verdict.warnings

    def _result(self) -> str:
        if not self.verified:
            return f"{self.address} is NOT verified"
        weak = f", but its guarantee is {self.verdict.level}" if self.verdict and self.verdict.weak else ""
        return f"{self.address} is verified: it matches its certificate, which proves its guarantee{weak}"

    def rows(self) -> list[tuple[str, str]]:
        """What was found, each with a label."""
        labels = {"ok": self.checks, "PROBLEM": self.problems, "WARNING": self.warnings}
        return [(label, text) for label, texts in labels.items() for text in texts]

    def __str__(self) -> str:
        # Certificates and the names of files may be of unknown origin.
        lines = [*(f"{label:<9}{text}" for label, text in self.rows()), f"{self._result()}."]
        return "\n".join(map(printable, lines))

    def _repr_html_(self) -> str:
        return html_table(self._result(), self.rows())


def verify(
    address: str | os.PathLike[str],
    *,
    table: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
    not_before: str | datetime | None = None,
) -> Verification:
    """Check a release against its certificate: that they match, and that its numbers prove its guarantee.

    With `public_key`, the file of a key, both must be signed by it under the name that the release has, and made
    at `not_before` or later. Without it, a release that was changed on purpose and resealed may pass.

    The certificate has the numbers by which the noise was to be drawn, and the proof is recomputed from them.
    What no file can show: that the noise was drawn like this. What a digest does not show: who wrote the files.
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
    """The same, with the release itself: what is shown of it is then what was verified."""
    from dphist.objects import without_secrets
    from dphist.outputs.readback import read_release

    found = read_release(address, table, certificate)
    signed = examine(found.document, address, table, trust)
    unsigned = " (not signed: who wrote them is not shown)" if signed.status == "missing" else ""
    matches = [] if found.problems else [f"the data match the digest in the certificate{unsigned}"]
    examined = Examination([*matches, *signed.checks], [*found.problems, *signed.problems])
    if found.document is not None:
        examined.attempt(found.document, found.table)
    return examined.verification(without_secrets(os.fspath(address)), signed), found


@dataclass
class Examination:
    """The checks and the problems of one certificate."""

    checks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    private: bool = False
    delta: float | None = None
    choice: ChoicePlan | None = None
    verdict: Verdict | None = None
    asked: Request | None = None
    largest: float | None = None

    def attempt(self, document: dict[str, Any], table: Any) -> None:
        """Examine a certificate of unknown origin."""
        try:
            # Numbers of unknown origin that overflow are not those of a release.
            with np.errstate(over="raise", invalid="raise"):
                self.document(document, table)
        except (TypeError, ValueError, KeyError, ArithmeticError, AttributeError, DphistError) as error:
            self.problems.append(f"the certificate cannot be understood ({type(error).__name__})")

    def verification(self, address: str, signed: Signed = NOT_SIGNED) -> Verification:
        """The result, for the release of this name."""
        return Verification(
            address, tuple(self.checks), tuple(self.problems), self.private, self.delta, signed.status,
            signed.fingerprint, self.choice, self.verdict if self.private else None,
        )  # fmt: skip

    def document(self, document: dict[str, Any], table: Any) -> None:
        """Recompute every entry of a certificate from its plan and its request, and compare."""
        if document.get("format") != FORMAT:
            self.problems.append(f"the certificate is not of the format {FORMAT}")
            return
        request, counts = document.get("request"), document.get("counts")
        if not isinstance(request, dict) or not isinstance(counts, dict):
            self.problems.append("the certificate lacks the request or what is known of the counts")
            return
        self.private = document.get("private") is True and "seed" not in request
        auto = request.get("max-items-per-user") == AUTO
        if not self.private:
            self.problems.append(SEEDED)
        plan = self._plan(document.get("plan"))
        if plan is None or not self._check_request(document):
            return
        # Quick checks first: to repeat a choice takes seconds.
        correction = correction_from(document) if auto else None
        self._counts(plan, counts, request, table, correction)
        if not set(self.problems) - {SEEDED}:
            self.problems += sums_problems(plan, request, table, correction)
        self._booking(document)
        if auto and set(self.problems) - {SEEDED}:
            return
        chosen = self._choice(plan, document) if auto else None
        budget = plan.budget if chosen is None else chosen.plan.budget
        self.verdict = verdict_of(budget, self.largest)
        self._request(plan, request, table, budget)
        self._whole(plan, document, chosen)

    def _check_request(self, document: dict[str, Any]) -> bool:
        """Whether the request is one that a release records, and the certificate has a version and a time."""
        request, found = document["request"], len(self.problems)
        if ("choice" in document) != (request.get("max-items-per-user") == AUTO):
            self.problems.append("the certificate has the choice of a cap that was not asked for, or lacks it")
        if request and "sketch" not in request:
            try:
                self.asked = recorded_request(request)
            except DphistError as error:
                self.problems.append(f"there is no such request: {error}")
        version, created = document.get("dphist"), document.get("created")
        if not (isinstance(version, str) and _VERSION.fullmatch(version)):
            self.problems.append("the certificate does not name a version of dphist")
        if not (isinstance(created, str) and _TIME.fullmatch(created)):
            self.problems.append("the certificate has no time at which it was made")
        return len(self.problems) == found

    def _booking(self, document: dict[str, Any]) -> None:
        """A booking is of the dataset in the request. The ledger itself is not read."""
        receipt, dataset = document.get("booking"), document["request"].get("dataset")
        if (receipt is None) != (dataset is None) or (receipt is not None and receipt.get("dataset") != dataset):
            self.problems.append("the certificate names a booking of another dataset, or none")
        elif receipt is not None and not _RECEIPT.fullmatch(json.dumps(receipt, sort_keys=True)):
            self.problems.append("the certificate's booking is not one that a ledger makes")
        elif receipt is not None:
            self.checks.append(
                f"a booking is named, entry {receipt['entry']} of the ledger {receipt['ledger']}: look it up "
                f"with dphist ledger show LEDGER --expect {receipt['hash']}"
            )

    def _plan(self, data: Any) -> Plan | None:
        """The plan with its delta recomputed from its exact numbers; all other numbers must follow from them."""
        try:
            plan = plan_from(data)
        except DphistError as error:
            self.problems.append(str(error))
            return None
        self.delta, claimed = plan.certificate.delta, data.get("delta_certified")
        if not isinstance(claimed, float) or not math.isclose(claimed, self.delta, rel_tol=LAST_DIGITS):
            self.problems.append(
                f"the certificate claims a delta of {claimed!r:.80} at epsilon {plan.budget.epsilon!r}, and it is "
                f"{self.delta!r}"
            )
            return None
        if not same_json({**plan_facts(plan), "delta_certified": claimed}, data):
            self.problems.append("the plan's numbers contradict each other")
        self.checks.append(
            f"the plan is ({plan.budget.epsilon!r}, {plan.budget.delta!r})-differentially private: "
            f"its delta, recomputed in ball arithmetic, is at most {upper_figure(self.delta, 6)}"
        )
        return plan

    def _choice(self, plan: Plan, document: dict[str, Any]) -> Chosen:
        """The cap was chosen by the rule: all plans are recomputed, and the choice repeated."""
        recorded, asked = document["choice"], self.asked
        if asked is None:
            raise ValueError
        budget = Budget(asked.epsilon, asked.delta)
        planned = plan_choice_for(asked, plan.contract.max_nonzero if plan.mechanism == "known-domain" else None)
        noisy = tuple(recorded["noisy_users"])
        if any(isinstance(number, bool) or not isinstance(number, int) for number in noisy):
            raise ValueError
        repeated = Chosen.by(planned, noisy)
        said, fitted = correction_from(document), repeated.correction
        # A fit in doubles: its last digits may differ on another machine.
        ours, theirs = ((one.counts, one.factors, one.errors) for one in (fitted, said))
        if np.shape(ours) == np.shape(theirs) and np.allclose(ours, theirs, rtol=_SAME_FIT, atol=0.0):
            repeated = replace(repeated, correction=said)
        due = repeated.release
        same = (due.noise, due.contract, due.budget) == (plan.noise, plan.contract, plan.budget)
        if not same or not same_json(repeated.to_dict(), recorded):
            self.problems.append("the cap was not chosen by what the certificate says")
            return repeated
        self.delta, self.choice = planned.certificate.delta, planned
        self.checks.append(
            f"choosing the cap and releasing are ({budget.epsilon!r}, {budget.delta!r})-differentially private "
            f"together: their delta, recomputed in ball arithmetic, is at most {upper_figure(self.delta, 6)}"
        )
        return repeated

    def _request(self, plan: Plan, request: dict[str, Any], table: Any, budget: Budget) -> None:
        """The plan is one for the request: the same budget, and no bound that was not asked for."""
        if not request:
            if plan.contract.spread is not None:
                self.problems.append("a plan with spread is for user events, and the certificate has no request")
            return  # counted elsewhere: the guarantee names its conditions
        if not same_json([request.get("epsilon"), request.get("delta")], [budget.epsilon, budget.delta]):
            self.problems.append("the plan has another budget than the request")
        if not fits(plan, request):
            self.problems.append("the plan relies on bounds that were not asked for, or is for another request")
        if plan.mechanism == "known-domain" and table is not None and table.num_rows != plan.contract.max_nonzero:
            self.problems.append("the release has not as many items as the public list")

    def _whole(self, plan: Plan, document: dict[str, Any], chosen: Chosen | None) -> None:
        """The certificate has exactly what a release with this plan and request has."""
        counts = document["counts"]
        due = document_of(
            plan, document["request"], private=self.private, offset=counts.get("offset"),
            version=document["dphist"], created=document["created"], chosen=chosen,
            receipt=document.get("booking"),
        )  # fmt: skip
        # Compared above, but for its last digits.
        due["plan"] = document["plan"]
        # The facts of the output were compared with the data, and the seal and the signature with the document.
        said = {name: value for name, value in document.items() if name not in ("output", SIGNATURE, SEAL)}
        for name in (*due, *(said.keys() - due.keys())):
            if name not in due or name not in said or not same_json(due[name], said[name]):
                self.problems.append(f"the certificate's entry {name[:80]!r} is not that of its plan and request")

    def _counts(
        self,
        plan: Plan,
        counts: dict[str, Any],
        request: dict[str, Any],
        table: Any,
        correction: Correction | None,
    ) -> None:
        """The columns are those of the request, and every released count has passed the threshold."""
        offset = counts.get("offset")
        if not isinstance(offset, float if plan.releases_offset else NoneType):
            self.problems.append("the certificate's counts do not follow from its plan")
            return
        if table is None:
            return  # the reason is known
        names, asked, name = table.column_names, self.asked, count_column(request, table)
        if len(names) < 2 or (names != asked.output_columns() if asked is not None else name != names[-1]):
            self.problems.append("the columns of the release are not those of the request")
            return
        rounded = request.get("round") is True
        values = numbers_of(table, name, "int64" if rounded else "double")
        if values is None:
            self.problems.append("a count is not a number")
            return
        if values.size and not is_difference(plan, request):
            self.largest = float(values.max()) - ((offset or 0.0) if "sketch" in request else 0.0)
        passes = counts_facts(plan, request, offset)["greater_than"]
        if passes is not None:
            slack = 0.5 if rounded else 0.0
            # Compared in whole steps before it was written as a decimal number: allow for the last digit.
            if float(values.astype(np.float64).min(initial=math.inf)) + slack <= passes - 1e-9 * abs(passes):
                self.problems.append("a count is below the threshold")
            else:
                self.checks.append("all counts are above the threshold")
        if asked is not None:
            _, due = added_columns(
                values.astype(np.float64), plan, name, error=asked.standard_error, interval=asked.interval,
                rounded=rounded, correction=correction,
            )  # fmt: skip
            self.problems += beside_problems(table, due, 1.0 if rounded else 1e-6 * plan.total_noise)
