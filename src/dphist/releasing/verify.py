"""`verify`: recompute the guarantee of a release from its certificate alone, and detect changes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import NoneType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.display import html_table, printable, upper_figure
from dphist.errors import DphistError, InvalidParameter
from dphist.objects import without_secrets
from dphist.outputs.certificate_text import SEAL, SIGNATURE, same_json
from dphist.outputs.readback import Readback, read_release
from dphist.planning.planner import gamma_value
from dphist.planning.utility import Verdict, added_columns, count_decimals, rounding_step, verdict_of
from dphist.privacy.types import FORMAT, LaplaceNoise, LatticeNoise, Plan, RoundsNoise
from dphist.releasing.aggregates import Published, aggregates_of, distinct_sums, sum_columns, sums_with_noise
from dphist.releasing.document import (
    Findings,
    counts_facts,
    document_of,
    findings_from,
    is_difference,
    plan_facts,
    plan_from,
    recorded_decimals,
    with_lower_threshold,
)
from dphist.releasing.histogram import sketch_problem, sketch_request
from dphist.releasing.request import MARGIN, Request, count_column, request_from
from dphist.releasing.rounds import bounds_of, limit_of, rounds_noise
from dphist.signatures import NO_TRUST, NOT_SIGNED, Signed, Status, Trust, examine

SEEDED: Final = "the noise was made from a seed: the release is not private"
# Tolerances: another version of the arithmetic may differ in the last digits.
_LAST_DIGITS: Final = 1e-9
_VERSION: Final = re.compile(r"[0-9][0-9A-Za-z.+!-]{0,63}")
# A booking as JSON with sorted keys.
_RECEIPT: Final = re.compile(
    r'\{"dataset": "(?:[^"\\]|\\.)*", "entry": [1-9][0-9]*, "hash": "[0-9a-f]{64}", "ledger": "[0-9a-f]{32}"\}'
)
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


def verify(
    address: str | os.PathLike[str],
    *,
    certificate: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
    not_before: str | datetime | None = None,
) -> Verification:
    """Check that a release matches its certificate, and that the certificate proves its guarantee.

    A table of a database is exported to a file first, and verified with its `certificate`.

    The proof is recomputed from the noise parameters in the certificate. With `public_key`, a key file, data and
    certificate must also be signed by that key, under the name that the release has now, and made at `not_before`
    or later. Without it, anyone can change a release and seal it again.

    No file can show that the noise was really drawn from these parameters.
    """
    trust = Trust.of(public_key, not_before)
    return read_and_verify(address, certificate=certificate, trust=trust)[0]


@dataclass(frozen=True)
class Verification:
    """The result of `verify`. Without a problem, data, certificate and guarantee agree.

    `signature` is "trusted" if it is by the given public key; `signed_by` is the fingerprint of its key.
    What this does not show: docs/release.md#what-verify-shows.
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
    document: dict[str, Any] | None,
    table: Any,
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
                examination.check_document(document, table)
    except (TypeError, ValueError, KeyError, ArithmeticError, AttributeError, DphistError) as error:
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
    # The request of a release of events; None for sketches and for counts from elsewhere.
    request: Request | None = None
    largest_count: float | None = None

    def check_document(self, document: dict[str, Any], table: Any) -> None:
        """Recompute every entry of a certificate from its plan and its request, and compare."""
        if document.get("format") != FORMAT:
            self.problems.append(f"the certificate does not have the format {FORMAT}")
            return
        request = document.get("request")
        if not isinstance(request, dict) or not isinstance(document.get("counts"), dict):
            self.problems.append("the certificate has no request or no entry 'counts'")
            return
        self.private = document.get("private") is True and "seed" not in request
        if not self.private:
            self.problems.append(SEEDED)
        plan = self._recompute_plan(document.get("plan"))
        if plan is None or not self._check_form(document):
            return
        if isinstance(plan.noise, RoundsNoise) != (self.request is not None and self.request.in_rounds):
            self.problems.append("the plan is for another request")
            return
        # Of rounds, the numbers follow from the findings as far as they can: what was measured is not published.
        findings = findings_from(document) if isinstance(plan.noise, RoundsNoise) else None
        if table is not None and findings is not None:
            self._check_estimates(plan, findings, document, table)
        else:
            self._check_counts(plan, document, table)
        if table is not None and not set(self.problems) - {SEEDED}:
            self.problems += (_sums_problems if findings is None else _bounds_problems)(plan, request, table)
        self._check_booking(document)
        self.verdict = verdict_of(plan.budget, self.largest_count)
        self._check_request(plan, request, table)
        self._compare_entries(plan, document, findings)

    def _recompute_plan(self, data: Any) -> Plan | None:
        """The plan with its delta recomputed from its exact numbers; all other numbers must follow from them."""
        try:
            plan = plan_from(data)
        except DphistError as error:
            self.problems.append(str(error))
            return None
        self.delta, claimed = plan.certificate.delta, data.get("delta_certified")
        if not isinstance(claimed, float) or not math.isclose(claimed, self.delta, rel_tol=_LAST_DIGITS):
            self.problems.append(
                f"the certificate claims a delta of {claimed!r:.80} at epsilon {plan.budget.epsilon!r}, but it is "
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

    def _check_form(self, document: dict[str, Any]) -> bool:
        """Whether request, version and time are such as a release records."""
        request, before = document["request"], len(self.problems)
        if request and "sketch" not in request:
            try:
                self.request = _recorded_request(request)
            except DphistError as error:
                self.problems.append(f"the request is invalid: {error}")
        version, created = document.get("dphist"), document.get("created")
        if not (isinstance(version, str) and _VERSION.fullmatch(version)):
            self.problems.append("the certificate does not name a version of dphist")
        if not (isinstance(created, str) and _TIME.fullmatch(created)):
            self.problems.append("the certificate has no valid time of creation")
        return len(self.problems) == before

    def _check_counts(self, plan: Plan, document: dict[str, Any], table: Any) -> None:
        """The columns are those of the request, and every released count is above the threshold."""
        request, offset = document["request"], document["counts"].get("offset")
        if not isinstance(offset, float if plan.releases_offset else NoneType):
            self.problems.append("the certificate's counts do not follow from its plan")
            return
        if table is None:
            return  # the problem is reported already
        names, name = table.column_names, count_column(request, table)
        wrong = name != names[-1] if self.request is None else names != self.request.output_columns()
        if len(names) < 2 or wrong:
            self.problems.append("the columns of the release are not those of the request")
            return
        whole, decimals = request.get("round") is True, recorded_decimals(document)
        if not same_json(decimals, 0 if whole else count_decimals(plan)) and decimals is not None:
            self.problems.append("the counts are not rounded as the noise requires")
            return
        values = _finite_column(table, name, "int64" if whole else "double")
        if values is None:
            self.problems.append("a count is not a number")
            return
        if decimals is not None and (values != np.round(values, decimals)).any():
            self.problems.append("a count has more decimals than the certificate states")
        if values.size and not is_difference(plan, request):
            self.largest_count = float(values.max()) - ((offset or 0.0) if "sketch" in request else 0.0)
        threshold = counts_facts(plan, request, offset)["greater_than"]
        if threshold is not None:
            slack = rounding_step(decimals) / 2.0
            # Counts were compared in whole steps and then written as decimals: allow for the last digit.
            least = float(values.astype(np.float64).min(initial=math.inf))
            if least + slack <= threshold - _LAST_DIGITS * abs(threshold):
                self.problems.append("a count is below the threshold")
            else:
                self.checks.append("all counts are above the threshold")
        if self.request is not None:
            _, expected = added_columns(
                values.astype(np.float64), plan, name, error=self.request.standard_error,
                interval=self.request.interval, decimals=decimals, whole=whole,
            )  # fmt: skip
            slack = max(1.01 * rounding_step(decimals), 1e-6 * plan.total_noise)
            self.problems += _column_problems(table, expected, slack)

    def _check_estimates(self, plan: Plan, findings: Findings, document: dict[str, Any], table: Any) -> None:
        request = self.request
        assert request is not None
        if table.column_names != request.output_columns():
            self.problems.append("the columns of the release are not those of the request")
            return
        whole, decimals = request.round, recorded_decimals(document)
        if not same_json(decimals, 0 if whole else count_decimals(plan)):
            self.problems.append("the counts are not rounded as the noise requires")
            return
        kinds = {request.count_name: "int64", MARGIN: "int64"} if whole else {}
        columns = {}
        for name in request.number_columns():
            values = _finite_column(table, name, kinds.get(name, "double"))
            if values is None and not (whole and name.endswith(("_low", "_high"))):
                self.problems.append(f"a value of the column {name!r} is not a number")
                return
            columns[name] = values
        counts, margins = columns[request.count_name], columns[MARGIN]
        assert counts is not None
        assert margins is not None
        if counts.size:
            self.largest_count = float(counts.max())
        if decimals is not None and any((one != np.round(one, decimals)).any() for one in (counts, margins)):
            self.problems.append("a count has more decimals than the certificate states")
        if (margins <= 0).any():
            self.problems.append("a margin is not above 0")
        sizes, rounds = len(bounds_of(plan)), len(rounds_noise(plan).parts)
        if len(findings.found) != rounds + 2 or sum(findings.found) != table.num_rows:
            self.problems.append("the certificate's findings are not those of the released items")
        elif len(findings.sizes) != sizes or findings.limit != limit_of(plan, findings.sizes, findings.found):
            self.problems.append("the limit of the measurement does not follow from the noisy numbers of users")
        else:
            self.checks.append("the limit of the measurement follows from noisy numbers of users")

    def _check_booking(self, document: dict[str, Any]) -> None:
        """The booking is for the request's dataset. The ledger itself is not read."""
        receipt, dataset = document.get("booking"), document["request"].get("dataset")
        if (receipt is None) != (dataset is None) or (receipt is not None and receipt.get("dataset") != dataset):
            self.problems.append("the booking is missing, or is for another dataset than the request")
        elif receipt is not None and not _RECEIPT.fullmatch(json.dumps(receipt, sort_keys=True)):
            self.problems.append("the certificate's booking is malformed")
        elif receipt is not None:
            self.checks.append(
                f"the certificate names its booking, entry {receipt['entry']} of the ledger {receipt['ledger']}: "
                f"check it with dphist ledger show LEDGER --expect {receipt['hash']}"
            )

    def _check_request(self, plan: Plan, request: dict[str, Any], table: Any) -> None:
        """The plan is for this request: the same budget, and only bounds that were requested."""
        if not request:
            return  # counts from elsewhere: the guarantee names its conditions
        if not same_json([request.get("epsilon"), request.get("delta")], [plan.budget.epsilon, plan.budget.delta]):
            self.problems.append("the plan's budget is not that of the request")
        fits = _fits_rounds if isinstance(plan.noise, RoundsNoise) else _fits
        if not (_fits_sketch if "sketch" in request else fits)(plan, request):
            self.problems.append("the plan relies on bounds that were not requested, or is for another request")
        if "items" in request and table is not None and table.num_rows != plan.contract.max_nonzero:
            self.problems.append("the release does not have as many items as the public list")

    def _compare_entries(self, plan: Plan, document: dict[str, Any], findings: Findings | None = None) -> None:
        """The certificate has exactly the entries of a release with this plan and request."""
        expected = document_of(
            plan, document["request"], private=self.private, offset=document["counts"].get("offset"),
            version=document["dphist"], created=document["created"], findings=findings,
            receipt=document.get("booking"), decimals=document["counts"].get("decimals"),
        )  # fmt: skip
        # The plan was compared before, except for its last digits.
        expected["plan"] = document["plan"]
        # So were the output with the data, and seal and signature with the document.
        recorded = {name: value for name, value in document.items() if name not in ("output", SIGNATURE, SEAL)}
        for name in (*expected, *(recorded.keys() - expected.keys())):
            both = name in expected and name in recorded
            if not both or not same_json(expected[name], recorded[name]):
                self.problems.append(f"the certificate's entry {name[:80]!r} is not that of its plan and request")


def _recorded_request(data: dict[str, Any]) -> Request:
    """The request of a certificate. Raises `DphistError` unless a release could have recorded exactly this."""
    sources = (data.get("input", ""), data.get("items", ""))
    names = [name for source in sources for name in (source if isinstance(source, list) else [source])]
    if not all(isinstance(name, str) for name in (*names, data.get("dataset", ""))):
        raise InvalidParameter("the name of an input or of a dataset is not a text")
    # The ledger is not recorded, and a request with a dataset needs one.
    recorded = {name: value for name, value in data.items() if name != "dataset"}
    request = request_from(recorded)
    request.events()
    if any(weight <= 0 for weight in request.weights):
        raise InvalidParameter("a weight is not positive")
    # Older releases recorded paths with their folders.
    if not any(same_json(request.to_dict(folders=folders), recorded) for folders in (False, True)):
        raise InvalidParameter("it is not written as a release records it")
    return request


def _fits(plan: Plan, request: dict[str, Any]) -> bool:
    """Whether a plan relies only on bounds that a release enforces for this request, or that it states."""
    # Without a mechanism in the request, the better kind of noise was planned.
    if "mechanism" in request and (request["mechanism"] == "laplace") != (plan.mechanism == "laplace"):
        return False
    if (plan.mechanism == "known-domain") != ("items" in request):
        return False
    # Older certificates do not record the lower threshold in the plan.
    if plan.lower_threshold not in (1, with_lower_threshold(plan, request).lower_threshold):
        return False
    contract = plan.contract
    limit, top = request.get("max-items-per-user"), request.get("top")
    enforced = min(limit, contract.nonzero) if isinstance(limit, int) else math.inf
    limited = contract.items >= enforced
    if plan.mechanism == "known-domain":
        return contract.items == contract.max_nonzero or limited
    if isinstance(plan.noise, LatticeNoise) and plan.releases_offset:
        return top == contract.max_nonzero and plan.noise.offset == request.get("offset", "opposite")
    if contract.max_nonzero is None:
        return limited
    if top is not None:
        return top == contract.max_nonzero == contract.items and request.get("offset") == "none"
    ratio = request.get("gamma")
    if ratio is not None and plan.gamma != round(gamma_value(ratio, contract)):
        return False
    bounded = contract.items == contract.max_nonzero or limited
    return bounded and request.get("max-nonzero") == contract.max_nonzero


def _fits_rounds(plan: Plan, request: dict[str, Any]) -> bool:
    """Whether rounds have the groups and the public list that a release has for this request."""
    noise, listed = rounds_noise(plan), "items" in request
    if isinstance(noise.alone, LaplaceNoise) and request.get("mechanism") == "gaussian":
        return False
    # Users with one item are no group of their own where values are summed, or where nothing has to be found.
    grouped = (noise.alone is None) == (listed or bool(noise.sums))
    return grouped and listed == (not noise.parts) == (plan.contract.max_nonzero is not None)


def _fits_sketch(plan: Plan, request: dict[str, Any]) -> bool:
    """Whether a plan holds for the sketch that was released, and the request has no other options."""
    kinds = {"sketch-size": int, "count-name": str, "seed": int, "dataset": str, "round": bool}
    if any(name in request and type(request[name]) is not kind for name, kind in kinds.items()):
        return False
    size = request.get("sketch-size", 0)
    if size < 1 or sketch_problem(plan, size):
        return False
    # Defaults are not recorded.
    if request.get("count-name") == "count" or not request.get("round", True):
        return False
    more = {name: request[name] for name in ("count-name", "round", "dataset") if name in request}
    return same_json({**sketch_request(plan, size, request.get("seed")), **more}, request)


def _finite_column(table: Any, name: str, kind: str) -> NDArray[Any] | None:
    """The column of this name, if it has this type and only finite numbers."""
    if table.column_names.count(name) != 1:
        return None
    column = table.column(name)
    if str(column.type) != kind or column.null_count:
        return None
    values: NDArray[Any] = column.to_numpy()
    return values if bool(np.isfinite(values).all()) else None


def _column_problems(table: Any, expected: Mapping[str, NDArray[Any]], slack: float) -> list[str]:
    """Standard errors and intervals that do not follow from the noise, up to rounding."""
    problems = []
    for name, values in expected.items():
        column = _finite_column(table, name, "int64" if values.dtype == np.int64 else "double")
        if column is None or not np.allclose(column, values, rtol=_LAST_DIGITS, atol=slack):
            problems.append(f"the column {name!r} does not follow from the plan and the column before it")
    return problems


def _sums_problems(plan: Plan, request: dict[str, Any], table: Any) -> list[str]:
    """Problems of sums and means, beside counts that have none."""
    problems = _bounds_problems(plan, request, table)
    if problems:
        return problems
    look = Published(request.get("standard-error") is True, request.get("interval"))
    for aggregate, noise in sums_with_noise(plan, aggregates_of(request)):
        names = look.names(aggregate.name)
        columns = {name: values for name in names if (values := _finite_column(table, name, "double")) is not None}
        if len(columns) < len(names):
            problems.append(f"a value of the column {aggregate.name!r} is not a number")
        elif aggregate.kind != "mean":
            counts = table.column(count_column(request, table)).to_numpy().astype(np.float64)
            around = columns[aggregate.name] - float(noise.middle) * counts
            expected = dict(zip(names, sum_columns(counts, around, plan, noise, look), strict=True))
            problems += _column_problems(table, expected, 1e-6 * noise.sigma)
    return problems


def _bounds_problems(plan: Plan, request: dict[str, Any], table: Any) -> list[str]:
    """Whether sums are those that were requested, and means are within their bounds."""
    aggregates = aggregates_of(request)
    planned = [(noise.columns, noise.low, noise.high) for noise in plan.sums]
    if [(len(columns), low, high) for columns, low, high in distinct_sums(aggregates)] != planned:
        return ["the plan's sums are not those of the request"]
    look = Published(request.get("standard-error") is True, request.get("interval"))
    problems = []
    for aggregate in aggregates:
        if aggregate.kind != "mean":
            continue
        slack = _LAST_DIGITS * float(aggregate.high - aggregate.low)
        low, high = float(aggregate.low) - slack, float(aggregate.high) + slack
        names = [name for name in look.names(aggregate.name) if not name.endswith("_error")]
        means = [values for name in names if (values := _finite_column(table, name, "double")) is not None]
        if any(((values < low) | (values > high)).any() for values in means):
            problems.append(f"a mean in the column {aggregate.name!r} is outside its bounds")
    return problems
