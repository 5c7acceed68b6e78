"""Warnings when released numbers cannot be what was meant. They follow from released numbers and noise alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Final

import numpy as np

from dphist.aliases import Numbers
from dphist.certificate.aggregates import Aggregate, sums_with_noise
from dphist.certificate.numbers import FloatArray, half_width
from dphist.certificate.request import AnyRequest, EventsRequest
from dphist.display import count_items, plain_number
from dphist.model import Plan, SumNoise

# No sum of a release is called impossible with a higher probability than this because of noise.
_CHANCE: Final = 1e-6
# The share of releases of sums that are all zero in which all of them are within their noise of zero.
_LEVEL: Final = 0.999
_DECIMAL: Final = " (1.234,56 needs the decimal sign ',')"
NOTHING: Final = (
    "Nothing was released. If that surprises you: dphist check shows how the input is read, and what it lacks."
)


def doubtful_sums(
    plan: Plan,
    request: AnyRequest,
    counts: Numbers,
    added: Mapping[str, Numbers],
    margins: Numbers | None,
    errors: Mapping[str, Numbers],
) -> Iterator[str]:
    """Sentences about sums and means that noise alone does not explain.

    `added` are the released columns, `margins` those of the counts at 95 %, and `errors` the standard errors of
    sums and means without a limit, where they do not follow from the plan.
    """
    if not counts.size or (margins is not None and not errors):
        return
    of_counts = half_width(plan, 0.95) if margins is None else margins
    count_errors = np.broadcast_to(np.asarray(of_counts, dtype=np.float64) / 1.96, counts.shape)
    dots = not (isinstance(request, EventsRequest) and request.decimal == ",")
    for aggregate, noise in sums_with_noise(plan, request.aggregates):
        values = added[aggregate.name]
        error = errors.get(aggregate.name)
        if error is None:
            error = _error(aggregate, noise, plan, counts, values)
        reason = _doubt(aggregate, counts, count_errors, values, error, dots=dots)
        if reason:
            yield reason


def _error(aggregate: Aggregate, noise: SumNoise, plan: Plan, counts: Numbers, values: Numbers) -> FloatArray:
    """With a limit: the standard error of a sum, or of a mean."""
    middle = float(noise.middle)
    if aggregate.kind == "mean":
        return np.asarray(np.hypot(noise.sigma, (values - middle) * plan.total_noise) / np.maximum(counts, 1.0))
    return np.full(counts.shape, np.hypot(noise.sigma, middle * plan.total_noise))


def _doubt(
    aggregate: Aggregate,
    counts: Numbers,
    count_errors: FloatArray,
    values: Numbers,
    error: Numbers,
    *,
    dots: bool,
) -> str:
    name, low, high = aggregate.name, float(aggregate.low), float(aggregate.high)
    is_mean = aggregate.kind == "mean"

    def bound_of(bound: float) -> tuple[Numbers, Numbers]:
        """What a number is if the value of each user is this bound, and the standard error of the difference."""
        if is_mean:
            return np.full(counts.shape, bound), error
        return bound * counts, np.hypot(error, bound * count_errors)

    def all_at(bound: float) -> bool:
        expected, deviation = bound_of(bound)
        return bool((np.abs(values - expected) <= _quantile(1.0 - _LEVEL, counts.size) * deviation).all())

    (least, below), (most, above) = bound_of(low), bound_of(high)
    reach = _quantile(_CHANCE, counts.size)
    outside = int(np.count_nonzero((values < least - reach * below) | (values > most + reach * above)))
    bounds = f"{plain_number(low)}:{plain_number(high)}"
    if outside and not is_mean:
        return (
            f"{name} of {count_items(outside)} is beyond what the counts allow with the bounds {bounds}, by more "
            "than noise explains: do not rely on it."
        )
    if (low <= 0.0 <= high) and all_at(0.0):
        return (
            f"Every {name} is zero up to its noise. Either the values are small for the bounds {bounds}, or they "
            f"are not read as numbers{_DECIMAL if dots else ''}: see dphist check."
        )
    # Of a few users, noise hides where in the range a sum is.
    if not ((most - least) > 2.0 * reach * np.maximum(below, above)).any():
        return ""
    if low > 0.0 and all_at(low):
        return (
            f"Every {name} is at its lower bound, up to noise, as if nothing in {aggregate.column!r} were a "
            "number: see dphist check."
        )
    if high > 0.0 and not aggregate.vector and all_at(high):
        return (
            f"Every {name} is at its upper bound, up to noise: nearly all users are clamped to "
            f"{plain_number(high)}. Is the bound in the unit of the column?"
        )
    return ""


def _quantile(chance: float, size: int) -> float:
    """What none of so many normal variables exceeds on either side, except with this probability."""
    return NormalDist().inv_cdf(1.0 - chance / (2.0 * size))
