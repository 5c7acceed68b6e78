"""`verify`: recompute the guarantee of a release from its certificate alone, and detect changes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace

from dphist import __version__
from dphist.aliases import JsonObject, Numbers
from dphist.certificate.aggregates import Published, sums_with_noise
from dphist.certificate.cells import as_text
from dphist.certificate.endings import CERTIFICATE, DATABASES
from dphist.certificate.numbers import added_columns, count_decimals, rounding_step, sum_columns
from dphist.certificate.plans import (
    Nonzero,
    is_difference,
    nonzero_rule,
    plan_of,
    sketch_problem,
    with_lower_threshold,
)
from dphist.certificate.reading import Readback, read_release
from dphist.certificate.request import (
    MARGIN,
    TOTAL,
    EventsRequest,
    HistogramRequest,
    SketchRequest,
    count_column,
    sketch_request,
)
from dphist.certificate.schema import Findings, Statement, decode, output_of
from dphist.certificate.statement import statement_of
from dphist.certificate.text import signed_bytes
from dphist.display import html_table, printable, upper_figure
from dphist.errors import DphistError
from dphist.files import PathLike
from dphist.model import Plan
from dphist.objects import without_options, without_secrets
from dphist.proof.verdict import Verdict, verdict_of
from dphist.signatures import CERTIFICATE_DOMAIN, NO_TRUST, Status, Trust, examine_signature

SEEDED: Final = "the noise was made from a seed: the release is not private"
# Tolerances: another version of the arithmetic may differ in the last digits.
_LAST_DIGITS: Final = 1e-9
_LAST_BITS: Final = 1e-14


def verify(
    release: str | os.PathLike[str],
    *,
    certificate: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
    not_before: str | datetime | None = None,
) -> Verification:
    """Check that a release matches its certificate, and that the certificate proves its guarantee.

    The proof is recomputed from the numbers of the noise in the certificate. No file can show that the noise was
    really drawn with them, or that the data was complete: see docs/reference/certificate.md for what is checked.

    >>> import dphist, pandas
    >>> log = pandas.DataFrame({"user": range(900), "query": ["tea"] * 600 + ["milk"] * 300})
    >>> options = {"user": "user", "item": "query", "epsilon": 1, "delta": 1e-6, "top": 2}
    >>> result = dphist.release(log, **options, output="verified.csv", force=True)
    >>> found = dphist.verify("verified.csv")
    >>> print(found.verified, found.signature)
    True missing

    Args:
        release: The released file or folder, or a file to which a table of a database was exported.
        certificate: The certificate, if it is not next to the release.
        public_key: File of the public key with which data and certificate must be signed, under the name that the
            release has now. Without it, anyone can change a release and seal it again.
        not_before: With `public_key`: a date or time; an older release is a problem.

    Raises:
        InputError: A file or a key is missing or cannot be read. Any other problem is in the result.
    """
    trust = Trust.of(public_key, not_before)
    return read_and_verify(release, certificate=certificate, trust=trust)[0]


@dataclass(frozen=True)
class Verification:
    """The result of `verify`. Without a problem, data, certificate and guarantee agree.

    Attributes:
        address: The release, as given.
        checks: What is right, as sentences.
        problems: What is wrong, as sentences.
        private: False if the noise was made from a seed.
        delta_certified: The recomputed δ; None if there is no proof.
        signature: "missing", "invalid", "valid" (by any key), "trusted" (by the given one) or "other key".
        signed_by: Fingerprint of the key that signed.
        verdict: How much the budget protects: `level`, `sentence` and `warnings`; None if it is not verified.
    """

    address: str
    checks: tuple[str, ...]
    problems: tuple[str, ...]
    private: bool
    delta_certified: float | None
    signature: Status = "missing"
    signed_by: str | None = None
    # A verified guarantee may still be weak.
    verdict: Verdict | None = None

    @property
    def verified(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the guarantee is weak, even if it is verified."""
        return () if self.verdict is None else self.verdict.warnings

    def to_dict(self) -> JsonObject:
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

    def _result(self) -> str:
        if not self.verified:
            return f"{self.address} is NOT verified"
        weak = f", but its guarantee is {self.verdict.level}" if self.verdict and self.verdict.weak else ""
        return f"{self.address} is verified: it matches its certificate, which proves its guarantee{weak}"

    def rows(self) -> list[tuple[str, str]]:
        """All checks, problems and warnings, each with a label."""
        labels = {"ok": self.checks, "PROBLEM": self.problems, "WARNING": self.warnings}
        return [(label, text) for label, texts in labels.items() for text in texts]

    def __str__(self) -> str:
        # The author of a certificate or a file name may be hostile.
        lines = [*(f"{label:<9}{text}" for label, text in self.rows()), f"{self._result()}."]
        return "\n".join(map(printable, lines))

    def _repr_html_(self) -> str:
        return html_table(self._result(), self.rows())


def read_and_verify(
    address: str | os.PathLike[str],
    *,
    certificate: str | os.PathLike[str] | None = None,
    trust: Trust = NO_TRUST,
) -> tuple[Verification, Readback]:
    """`verify`, with the release as it was read, so that a report shows exactly what was verified."""
    found = read_release(address, certificate)
    return verify_readback(found, address, certificate, trust), found


@dataclass(frozen=True)
class Signed:
    """The status of a signature, its key if it is valid, and checks and problems as sentences."""

    status: Status = "missing"
    fingerprint: str | None = None
    checks: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


NOT_SIGNED: Final = Signed()


def examine(document: JsonObject | None, address: PathLike, certificate: PathLike | None, trust: Trust) -> Signed:
    """The signature of a certificate. `address` and `certificate` are the files that a reader has."""
    signed, data = document or {}, b""
    with suppress(ValueError, RecursionError):  # a document without a canonical form was not signed
        data = signed_bytes(signed)
    status, fingerprint, problems = examine_signature(signed, data, CERTIFICATE_DOMAIN, trust.public_key)
    if status == "valid":
        check = f"the signature is by the key {fingerprint}: pass --public-key to check that it is the publisher's"
        return Signed(status, fingerprint, (check,))
    if status != "trusted":
        return Signed(status, fingerprint, (), problems)
    output, created = output_of(document), str(signed.get("created"))
    signed_as = None if output is None else output.name
    name = _name_of(address, certificate, None if output is None else output.kind)
    wrong: tuple[str, ...] = ()
    if signed_as != name:
        wrong = (f"the release has the name {name!r}, but was signed as {signed_as!r}",)
    date = None
    with suppress(ValueError):  # such as month 13
        date = datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    if trust.not_before is not None and (date is None or date < trust.not_before):
        wrong += (f"the release was made {created}, before {trust.not_before.isoformat()}",)
    check = f"data and certificate are signed by the key {fingerprint}, as {signed_as!r}, made {created}"
    return Signed(status, fingerprint, () if wrong else (check,), wrong)


def _name_of(address: PathLike, certificate: PathLike | None, kind: str | None) -> str:
    """The name of the data; of a database table, which may be exported to any file, that of its certificate."""
    path = address if certificate is None or kind not in DATABASES else certificate
    name = os.path.basename(os.path.abspath(without_options(os.fspath(path))))
    name = name if path is address else name.removesuffix(CERTIFICATE)
    return name.encode("utf-8", "backslashreplace").decode()


def verify_readback(
    found: Readback, address: str | os.PathLike[str], certificate: str | os.PathLike[str] | None, trust: Trust
) -> Verification:
    """Verify a release that was read, as it is called at this address."""
    signed = examine(found.document, address, certificate, trust)
    unsigned = " (not signed: the author is not verified)" if signed.status == "missing" else ""
    matches = [] if found.problems else [f"the data matches the digest in the certificate{unsigned}"]
    checks, problems = [*matches, *signed.checks], [*found.problems, *signed.problems]
    name = without_secrets(os.fspath(address))
    return verify_document(found.document, found.table, name, signed, checks, problems)


def verify_document(
    document: JsonObject | None,
    table: pa.Table | None,
    address: str,
    signed: Signed = NOT_SIGNED,
    checks: Sequence[str] = (),
    problems: Sequence[str] = (),
) -> Verification:
    """Check a certificate, whose author may be hostile, against the rows of its release."""
    examination = _Examination([*checks], [*problems])
    try:
        # Numbers that overflow are a forgery too.
        with np.errstate(over="raise", invalid="raise"):
            if document is not None:
                examination.check(document, table)
    except DphistError as error:
        examination.problems.append(str(error))
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        examination.problems.append(f"the certificate is invalid ({type(error).__name__})")
    return Verification(
        address, tuple(examination.checks), tuple(examination.problems), examination.private, examination.delta,
        signed.status, signed.fingerprint, examination.verdict if examination.private else None,
    )  # fmt: skip


@dataclass
class _Examination:
    """Checks, problems and numbers of one certificate."""

    checks: list[str]
    problems: list[str]
    private: bool = False
    delta: float | None = None
    verdict: Verdict | None = None
    largest_count: float | None = None

    def check(self, document: Mapping[str, object], table: pa.Table | None) -> None:
        """Recompute what a certificate states from its plan and its request, and compare."""
        self.private = document.get("private") is True
        stated = decode(document)
        self.private = self.private and stated.request.seed is None
        if not self.private:
            self.problems.append(SEEDED)
        if json.dumps(stated.to_dict()) != json.dumps(document):
            self.problems.append("the certificate is not in the form that dphist writes")
        plan = self._prove(stated)
        if plan is None or not self._is_asked(stated, plan):
            return
        release = _Claim(stated, plan, pa.table({}) if table is None else table)
        if table is not None and self._has_columns(release):
            self._check_counts(release)
        self._check_booking(release)
        self.verdict = verdict_of(plan.budget, self.largest_count)
        self._compare(release)

    def _prove(self, stated: Statement) -> Plan | None:
        """The plan with its delta recomputed from its exact numbers; all other numbers must follow from them."""
        plan = plan_of(stated.plan)
        self.delta, claimed = plan.proof.delta, stated.plan.delta_certified
        # Another version may have proved a larger delta, which is then still true.
        most = self.delta * (1 + _LAST_DIGITS) if stated.dphist == __version__ else plan.budget.delta
        if not self.delta * (1 - _LAST_DIGITS) <= claimed <= most:
            self.problems.append(
                f"the certificate claims a delta of {claimed!r} at epsilon {plan.budget.epsilon!r}, but it is "
                f"{self.delta!r}"
            )
            return None
        self.checks.append(
            f"the plan is ({plan.budget.epsilon!r}, {plan.budget.delta!r})-differentially private: "
            f"its delta, recomputed in ball arithmetic, is at most {upper_figure(self.delta, 6)}"
        )
        return plan

    def _is_asked(self, stated: Statement, plan: Plan) -> bool:
        """Whether the plan is for this request: the same budget and sums, and only bounds that were requested."""
        request, before = stated.request, len(self.problems)
        if isinstance(request, EventsRequest):
            request.check()
            fits = _fits_rounds(plan, request) if request.in_rounds else _fits(plan, request)
            if [(len(columns), low, high) for columns, low, high in request.sums] != [
                (noise.columns, noise.low, noise.high) for noise in plan.sums
            ]:
                self.problems.append("the plan's sums are not those of the request")
        else:
            fits = _fits_counts(plan, request)
        if not fits:
            self.problems.append("the plan relies on bounds that were not requested, or is for another request")
        if not isinstance(request, HistogramRequest) and (request.epsilon, request.delta) != (
            plan.budget.epsilon,
            plan.budget.delta,
        ):
            self.problems.append("the plan's budget is not that of the request")
        return len(self.problems) == before

    def _has_columns(self, release: _Claim) -> bool:
        """Whether columns, rows and decimals are those that were requested."""
        names, request, before = release.table.column_names, release.request, len(self.problems)
        wrong = names[-1:] != [release.count_name]
        if isinstance(request, EventsRequest):
            wrong = names != request.output_columns()
            if request.items is not None and release.table.num_rows != release.plan.contract.max_nonzero:
                self.problems.append("the release does not have as many items as the public list")
        if len(names) < 2 or wrong:
            self.problems.append("the columns of the release are not those of the request")
        elif isinstance(request, EventsRequest) and _has_duplicates(release.table, list(request.item_columns)):
            self.problems.append("an item is in the release twice")
        elif (
            isinstance(request, EventsRequest) and request.total and not _has_marked_totals(release.table, request)
        ):
            self.problems.append("a row is neither an item nor a total of the request")
        if release.stated.counts.decimals != release.due_decimals:
            self.problems.append("the counts are not rounded as the noise requires")
        return len(self.problems) == before

    def _check_counts(self, release: _Claim) -> None:
        """Every count is above the threshold, and the numbers beside it follow from the noise."""
        plan, decimals, whole = release.plan, release.stated.counts.decimals, release.request.round
        values = _finite_column(release.table, release.count_name, "int64" if whole else "double")
        if values is None:
            self.problems.append("a count is not a number")
            return
        if decimals is not None and (values != np.round(values, decimals)).any():
            self.problems.append("a count has more decimals than the certificate states")
        offset = release.stated.counts.offset or 0.0
        if values.size and not is_difference(plan, release.request):
            spare = offset if isinstance(release.request, SketchRequest) else 0.0
            self.largest_count = float(values.max()) - spare
        if plan.noise.in_rounds:
            self._check_margins(release)
        else:
            self._check_threshold(release, values, offset)
        if isinstance(release.request, EventsRequest) and not set(self.problems) - {SEEDED}:
            self.problems += _sums_problems(plan, release.request, release.table)

    def _check_threshold(self, release: _Claim, values: Numbers, offset: float) -> None:
        plan, request, decimals = release.plan, release.request, release.stated.counts.decimals
        threshold = with_lower_threshold(plan, release.request).threshold + offset
        if math.isfinite(threshold):
            # Counts were compared in whole steps, and some were rounded then: allow for their last digit.
            slack = rounding_step(decimals) / 2.0
            spare = _LAST_BITS * max(abs(threshold), abs(offset)) if slack else 0.0
            least = float(values.astype(np.float64).min(initial=math.inf))
            if least + slack <= threshold - spare:
                self.problems.append("a count is below the threshold")
            else:
                self.checks.append("all counts are above the threshold")
        if isinstance(request, EventsRequest):
            _, expected = added_columns(
                values.astype(np.float64), plan, release.count_name, error=request.standard_error,
                interval=request.interval, decimals=decimals, whole=request.round,
            )  # fmt: skip
            slack = max(1.01 * rounding_step(decimals), 1e-6 * plan.total_noise)
            self.problems += _column_problems(release.table, expected, slack)

    def _check_margins(self, release: _Claim) -> None:
        """The numbers are such as a release in rounds has: what was measured is not published."""
        request, findings = release.request, release.stated.findings
        assert isinstance(request, EventsRequest)
        whole, decimals = request.round, release.stated.counts.decimals
        kinds = {request.count_name: "int64", MARGIN: "int64"} if whole else {}
        for name in request.number_columns():
            values = _finite_column(release.table, name, kinds.get(name, "double"))
            if values is None and not (whole and name.endswith(("_low", "_high"))):
                self.problems.append(f"a value of the column {name!r} is not a number")
                return
            if name == MARGIN and values is not None:
                if (values <= 0).any():
                    self.problems.append("a margin is not above 0")
                if decimals is not None and (values != np.round(values, decimals)).any():
                    self.problems.append("a margin has more decimals than the certificate states")
        if not isinstance(findings, Findings) or not _is_found(release.plan, findings, release.table.num_rows):
            self.problems.append("the certificate's findings are not those of the released items")
        else:
            self.checks.append("the release has the items that were found, and a margin for each count")

    def _check_booking(self, release: _Claim) -> None:
        """The booking is for the request's dataset. The ledger itself is not read."""
        booking, dataset = release.stated.booking, release.request.dataset
        if (booking is UNSET) != (dataset is None) or (booking is not UNSET and booking.dataset != dataset):
            self.problems.append("the booking is missing, or is for another dataset than the request")
        elif booking is not UNSET:
            self.checks.append(
                f"the certificate names its booking, entry {booking.entry} of the ledger {booking.ledger}: "
                f"check it with dphist ledger show LEDGER --expect {booking.hash}"
            )

    def _compare(self, release: _Claim) -> None:
        """The certificate states exactly what follows from its plan and request, and from what is stated only."""
        stated, plan = release.stated, release.plan
        offset = stated.counts.offset
        if (offset is not None) != plan.releases_offset or not math.isfinite(offset or 0.0):
            self.problems.append("the certificate's counts do not follow from its plan")
        elif offset is not None and offset < plan.noise.least_offset:
            self.problems.append("the certificate's offset is further below zero than its noise can be")
        if (stated.findings is not UNSET) != plan.noise.in_rounds:
            self.problems.append("the certificate's findings do not follow from its plan")
        due = statement_of(
            plan, release.request, private=self.private, offset=offset, version=stated.dphist,
            created=stated.created, findings=stated.findings or None, decimals=release.due_decimals,
        )  # fmt: skip
        # Its delta was compared before.
        due = replace(due, plan=replace(due.plan, delta_certified=stated.plan.delta_certified))
        if due.plan != stated.plan:
            self.problems.append("the plan's numbers contradict each other")
        for name in ("guarantee", "caveats", "counts", "sums", "private"):
            if getattr(due, name) != getattr(stated, name):
                self.problems.append(f"the certificate's entry {name!r} is not that of its plan and request")


@dataclass(frozen=True)
class _Claim:
    """What a certificate states, with its plan as it was proved, and the rows of the release."""

    stated: Statement
    plan: Plan
    table: pa.Table

    @property
    def request(self) -> EventsRequest | SketchRequest | HistogramRequest:
        return self.stated.request

    @property
    def count_name(self) -> str:
        return count_column(self.request, self.table)

    @property
    def due_decimals(self) -> int | None:
        if isinstance(self.request, HistogramRequest):
            return None
        return count_decimals(self.plan, whole=self.request.round)


def _fits(plan: Plan, request: EventsRequest) -> bool:
    """Whether a plan relies only on bounds that a release enforces for this request, or that it states."""
    contract, noise = plan.contract, plan.noise
    if noise.in_rounds or noise.public != (request.items is not None):
        return False
    # Without a mechanism in the request, the better kind of noise was planned.
    if request.mechanism != "best" and (request.mechanism == "laplace") != (plan.mechanism == "laplace"):
        return False
    if plan.lower_threshold != with_lower_threshold(plan, request).lower_threshold:
        return False
    limit, top = request.max_items_per_user, request.top
    limited = limit is not None and contract.items >= min(limit, contract.nonzero)
    bounded = contract.user_limit is None or limited
    if noise.public:
        return bounded
    if plan.releases_offset:
        return bounded and top == contract.max_nonzero and noise.offset == (request.offset or "opposite")
    if contract.max_nonzero is None:
        return limited
    if top is not None:
        return top == contract.max_nonzero == contract.items and request.offset == "none"
    if request.gamma is not None:
        ratio = math.sqrt(contract.max_nonzero) if request.gamma == "sqrt" else request.gamma
        if plan.gamma != round(ratio):
            return False
    return bounded and request.max_nonzero == contract.max_nonzero


def _fits_rounds(plan: Plan, request: EventsRequest) -> bool:
    """Whether a plan in rounds is for this request."""
    noise, listed = plan.rounds, request.items is not None
    if noise is None or plan.lower_threshold != 1:
        return False
    # Users with one item are no group of their own where values are summed, where nothing has to be found, or
    # where totals make two items of one.
    group = (noise.alone is None) == (listed or bool(noise.sums) or bool(request.total))
    gaussian = request.mechanism != "gaussian" or noise.alone is None or noise.alone.mechanism != "laplace"
    return group and gaussian and listed == (not noise.parts) == (plan.contract.max_nonzero is not None)


def _fits_counts(plan: Plan, request: SketchRequest | HistogramRequest) -> bool:
    """Whether a plan holds for a sketch or for counts from elsewhere, and the request has no other options."""
    if plan.lower_threshold != 1 or plan.noise.in_rounds:
        return False
    if isinstance(request, HistogramRequest):
        rule = nonzero_rule(plan, promised=request.guarantee_max_nonzero)  # an error if it needs a promise
        return (
            not plan.sums and not plan.noise.public and request.guarantee_max_nonzero == (rule is Nonzero.PROMISED)
        )
    more = {name: getattr(request, name) for name in ("count_name", "round", "dataset", "seed")}
    due = sketch_request(plan, request.sketch_size, **more)
    return sketch_problem(plan, request.sketch_size) is None and due == request


def _is_found(plan: Plan, findings: Findings, rows: int) -> bool:
    """Whether the findings are such as a release of this plan with so many rows has.

    The limit of the measurement is a choice by noisy numbers, which the proof allows to be any of the bounds.
    """
    noise, bounds = plan.rounds, findings.bounds
    assert noise is not None
    most = noise.most_items
    return (
        len(findings.found) == noise.rounds + 2
        and sum(findings.found) == rows
        and len(findings.sizes) == len(bounds) > 0
        and all(low < high for low, high in pairwise(bounds))
        and most in bounds
        and (findings.limit == 0 or (findings.limit in bounds and findings.limit <= most))
    )


def _has_duplicates(table: pa.Table, items: list[str]) -> bool:
    try:
        distinct = table.group_by(items, use_threads=False).aggregate([])
    except pa.ArrowException:  # types that cannot be grouped
        distinct = pa.table([as_text(table.column(name)) for name in items], names=items)
        distinct = distinct.group_by(items, use_threads=False).aggregate([])
    return bool(distinct.num_rows < table.num_rows)


def _has_marked_totals(table: pa.Table, request: EventsRequest) -> bool:
    """Whether a total is marked and lacks one value that a total may lack, and no other row lacks one."""
    marks = table.column(TOTAL)
    if str(marks.type) != "bool" or marks.null_count:
        return False
    lacks = {column.name: table.column(column.name).is_null().to_numpy() for column in request.columns}
    marked, of_totals = marks.to_numpy(), np.sum([lacks[name] for name in request.totals], axis=0)
    if request.null_items:
        return bool(of_totals[marked].all())
    return bool((of_totals == marked).all() and (np.sum([*lacks.values()], axis=0) == marked).all())


def _finite_column(table: pa.Table, name: str, kind: str) -> Numbers | None:
    """The column of this name, if it has this type and only finite numbers."""
    if table.column_names.count(name) != 1:
        return None
    column = table.column(name)
    if str(column.type) != kind or column.null_count:
        return None
    values: Numbers = column.to_numpy()
    return values if bool(np.isfinite(values).all()) else None


def _column_problems(table: pa.Table, expected: Mapping[str, Numbers], slack: float) -> list[str]:
    """Standard errors and intervals that do not follow from the noise, up to rounding."""
    problems = []
    for name, values in expected.items():
        column = _finite_column(table, name, "int64" if values.dtype == np.int64 else "double")
        if column is None or not np.allclose(column, values, rtol=_LAST_DIGITS, atol=slack):
            problems.append(f"the column {name!r} does not follow from the plan and the column before it")
    return problems


def _sums_problems(plan: Plan, request: EventsRequest, table: pa.Table) -> list[str]:
    """Means outside their bounds, and sums whose errors and intervals do not follow from the noise."""
    look = Published(request.standard_error, request.interval)
    problems = []
    for aggregate, noise in sums_with_noise(plan, request.aggregates):
        names = look.names(aggregate.name)
        columns = {name: values for name in names if (values := _finite_column(table, name, "double")) is not None}
        if aggregate.kind == "mean":
            slack = _LAST_DIGITS * float(aggregate.high - aggregate.low)
            low, high = float(aggregate.low) - slack, float(aggregate.high) + slack
            means = [values for name, values in columns.items() if not name.endswith("_error")]
            if any(((values < low) | (values > high)).any() for values in means):
                problems.append(f"a mean in the column {aggregate.name!r} is outside its bounds")
        if plan.noise.in_rounds:
            continue  # the numbers that the estimates came from are not published
        if len(columns) < len(names):
            problems.append(f"a value of the column {aggregate.name!r} is not a number")
        elif aggregate.kind != "mean":
            counts = table.column(request.count_name).to_numpy().astype(np.float64)
            around = columns[aggregate.name].astype(np.float64) - float(noise.middle) * counts
            expected = dict(zip(names, sum_columns(counts, around, plan, noise, look), strict=True))
            problems += _column_problems(table, expected, 1e-6 * noise.sigma)
    return problems
