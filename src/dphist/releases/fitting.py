"""Whether the parts of a certificate fit each other: the plan what was asked for, a booking what a ledger says."""

from __future__ import annotations

import re
from typing import Any, Final

from dphist.calibrate.gammas import gamma_value
from dphist.errors import InvalidParameter
from dphist.outputs.seal import same_json
from dphist.releases.histogram import sketch_problem
from dphist.releases.request import AUTO, Request, request_from
from dphist.types import LatticeNoise, Plan

_TEXTS: Final = (
    "user", "table", "query", "where", "input-format", "count-name", "offset", "engine", "dataset",
)  # fmt: skip


def recorded_request(data: dict[str, Any]) -> Request:
    """The request of a certificate. Raises `DphistError` unless it is one, exactly as a release records it."""
    sources = [one for name in ("input", "items") for one in _listed(data.get(name, ""))]
    if not all(isinstance(one, str) for one in (*sources, *(data.get(name, "") for name in _TEXTS))):
        raise InvalidParameter("a name or a condition is not a text")
    weights = data.get("weight", [])
    if not isinstance(weights, list) or any(isinstance(one, (bool, str)) or not one > 0 for one in weights):
        raise InvalidParameter("a weight is not a positive number")
    if data.get("mechanism") not in (None, "gaussian", "laplace") or data.get("minimize") not in (None, "noise"):
        raise InvalidParameter("there is no such mechanism or objective")
    # The ledger of a dataset is not recorded.
    given = {name: value for name, value in data.items() if name != "dataset"}
    request = request_from(given)
    request.events()
    if not same_json(request.to_dict(), given):
        raise InvalidParameter("it is not as a release records it")
    return request


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


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
    # Without a wish the better of both kinds of noise is taken.
    if "mechanism" in request and (request["mechanism"] == "laplace") != (plan.mechanism == "laplace"):
        return False
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
    size, name, seed = request.get("sketch-size"), request.get("count-name", ""), request.get("seed", 0)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or sketch_problem(plan, size) is not None:
        return False
    if not isinstance(name, str) or isinstance(seed, bool) or not isinstance(seed, int):
        return False
    due: dict[str, Any] = {
        "sketch": "misra-gries", "sketch-size": size, "epsilon": plan.budget.epsilon, "delta": plan.budget.delta,
    }  # fmt: skip
    if isinstance(plan.noise, LatticeNoise) and plan.releases_offset:
        due["offset"] = plan.noise.offset
    if name != "count" and "count-name" in request:
        due["count-name"] = name
    due |= {name: request[name] for name in ("round", "seed") if name in request}
    return request.get("round", True) is True and same_json(due, request)
