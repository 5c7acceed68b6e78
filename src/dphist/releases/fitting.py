"""Whether the parts of a certificate fit each other: the plan what was asked for, a booking what a ledger says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.calibrate.gammas import gamma_value
from dphist.errors import InvalidParameter
from dphist.outputs.seal import same_json
from dphist.releases.aggregates import Published, aggregates_of, sum_columns, summed
from dphist.releases.columns import count_column
from dphist.releases.histogram import sketch_problem
from dphist.releases.request import AUTO, Request, request_from
from dphist.types import LatticeNoise, Plan

# Decimal numbers of another version of the arithmetic may differ in the last digits.
LAST_DIGITS: Final = 1e-9
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


def sums_problems(plan: Plan, request: dict[str, Any], table: Any) -> list[str]:
    """Whether the sums are those that were asked for, by the plan's noise; the counts are in order."""
    aggregates = aggregates_of(request)
    sources = summed(aggregates)
    if [(low, high) for _, low, high in sources] != [(one.low, one.high) for one in plan.sums]:
        return ["the plan's sums are not those of the request"]
    look = Published(request.get("standard-error") is True, request.get("interval"))
    problems = []
    for one in aggregates:
        names, noise = look.names(one.name), plan.sums[sources.index(one.of)]
        columns = {name: values for name in names if (values := numbers_of(table, name, "double")) is not None}
        if len(columns) < len(names):
            problems.append(f"a value of the column {one.name!r} is not a number")
        elif one.kind == "sum":
            counts = table.column(count_column(request, table)).to_numpy().astype(np.float64)
            due = sum_columns(counts, columns[one.name] - float(noise.middle) * counts, plan, noise, look)
            problems += beside_problems(table, dict(zip(names, due, strict=True)), 1e-6 * noise.sigma)
        elif any(_outside(columns[name], one.low, one.high) for name in names if not name.endswith("_error")):
            problems.append(f"a mean in the column {one.name!r} is outside its bounds")
    return problems


def _outside(values: NDArray[Any], low: Fraction, high: Fraction) -> bool:
    slack = LAST_DIGITS * float(high - low)
    return bool(((values < float(low) - slack) | (values > float(high) + slack)).any())
