"""Whether the parts of a certificate fit each other: the plan what was asked for, a booking what a ledger says."""

from __future__ import annotations

import re
from typing import Any

from dphist.calibrate.gammas import gamma_value
from dphist.releases.histogram import sketch_problem
from dphist.releases.request import AUTO
from dphist.types import LatticeNoise, Plan


def is_receipt(receipt: dict[str, Any]) -> bool:
    """Whether it says what a ledger says of a booking, and nothing else."""
    entry, digits = receipt.get("entry"), {name: str(receipt.get(name)) for name in ("ledger", "hash")}
    return (
        receipt.keys() == {"ledger", "dataset", "entry", "hash"}
        and isinstance(entry, int) and not isinstance(entry, bool) and entry > 0
        and all(isinstance(receipt[name], str) for name in digits)
        and re.fullmatch(r"[0-9a-f]{32}", digits["ledger"]) is not None
        and re.fullmatch(r"[0-9a-f]{64}", digits["hash"]) is not None
    )  # fmt: skip


def fits(plan: Plan, request: dict[str, Any]) -> bool:
    """Whether a plan relies on nothing but what the request has `dphist release` keep, or promises."""
    if "sketch" in request:
        return fits_sketch(plan, request)
    contract = plan.contract
    cap, top, promise = (request.get(name) for name in ("max-items-per-user", "top", "max-nonzero"))
    # A cap that was chosen is the plan's own: that has been looked at.
    capped = cap == AUTO or (isinstance(cap, int) and contract.items >= min(cap, contract.nonzero))
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
    known = {"sketch", "sketch-size", "epsilon", "delta", "offset", "count-name", "round", "seed"}
    size = request.get("sketch-size")
    if request["sketch"] != "misra-gries" or not request.keys() <= known:
        return False
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or sketch_problem(plan, size) is not None:
        return False
    offset = plan.noise.offset if isinstance(plan.noise, LatticeNoise) and plan.releases_offset else None
    return request.get("offset") == offset
