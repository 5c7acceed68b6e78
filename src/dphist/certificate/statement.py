"""What a certificate states about a release: facts that follow from its plan, its request and noisy numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET

from dphist.certificate.guarantee import caveats_of, guarantee_facts
from dphist.certificate.numbers import shared_part, sums_facts
from dphist.certificate.plans import with_lower_threshold
from dphist.certificate.request import AnyRequest
from dphist.certificate.schema import (
    BookingPart,
    Counts,
    Findings,
    MeanFacts,
    Statement,
    SumFacts,
    VectorFacts,
    plan_part,
)
from dphist.certificate.text import FORMAT
from dphist.model import Plan


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def counts_of(plan: Plan, request: AnyRequest, offset: float | None, decimals: int | None = None) -> Counts:
    if plan.mechanism == "rounds":
        return Counts(standard_error=None, decimals=decimals)
    threshold = with_lower_threshold(plan, request).threshold
    return Counts(
        standard_error=plan.total_noise,
        covariance=shared_part(plan),
        offset=offset,
        lower_threshold=request.lower_threshold,
        threshold=None if math.isinf(threshold) else threshold + (offset or 0.0),
        decimals=decimals,
    )


def statement_of(
    plan: Plan,
    request: AnyRequest,
    *,
    private: bool,
    offset: float | None,
    version: str,
    created: str,
    findings: Findings | None = None,
    receipt: Mapping[str, object] | None = None,
    decimals: int | None = None,
) -> Statement:
    """The certificate without the facts about its output, which follow when it is written."""
    sums = sums_facts(plan, request.aggregates) if plan.sums and findings is None else None
    kinds = tuple[SumFacts | MeanFacts | VectorFacts, ...]
    return Statement(
        format=FORMAT,
        dphist=version,
        created=created,
        private=private,
        guarantee=guarantee_facts(plan, request) if private else None,
        caveats=caveats_of(plan, request),
        request=request,
        plan=plan_part(plan),
        counts=counts_of(plan, request, offset, decimals),
        findings=UNSET if findings is None else findings,
        booking=UNSET if receipt is None else msgspec.convert(receipt, BookingPart),
        sums=UNSET if sums is None else msgspec.convert(sums, kinds),
    )
