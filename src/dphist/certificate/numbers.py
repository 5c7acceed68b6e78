"""Numbers of a release that follow from its plan: decimals, errors, intervals, columns of counts and sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.aliases import JsonObject, Numbers
from dphist.certificate.aggregates import Aggregate, Published, sums_with_noise
from dphist.model import Plan, SumNoise

FloatArray = NDArray[np.float64]


def half_width(plan: Plan, share: float) -> float:
    """Half the width of the confidence interval of a count at the level `share`, rounded up to whole steps.

    For noise alone: released counts near the threshold are too high more often than that.
    """
    outside = 1.0 - share
    return plan.noise.half_width(outside, -float(special.ndtri(outside / 2.0)))


def shared_part(plan: Plan) -> float:
    """The covariance of any two released counts."""
    return plan.sigma_shared**2 * (2 if plan.noise.offset == "independent" else 1)


def count_decimals(plan: Plan, *, whole: bool = False) -> int | None:
    """The decimals of released counts; none are left of counts that are published as integers."""
    return 0 if whole else plan.noise.decimals


def rounding_step(decimals: int | None) -> float:
    return 0.0 if decimals is None else 10.0**-decimals


def rounded(
    values: Numbers,
    decimals: int | None,
    *,
    whole: bool = False,
    towards: Callable[[Numbers], Numbers] = np.rint,
) -> Numbers:
    """Numbers with so many decimals, as integers if they are `whole`; None does not round."""
    if decimals is None:
        return np.asarray(values)
    # Zero is added because -0.0 would be printed with its sign.
    near = towards(values * 10.0**decimals) / 10.0**decimals + 0.0
    return near.astype(np.int64) if whole else near


def added_columns(
    counts: NDArray[np.float64],
    plan: Plan,
    name: str,
    *,
    error: bool,
    interval: float | None,
    decimals: int | None,
    whole: bool = False,
) -> tuple[Numbers, Mapping[str, Numbers]]:
    """The published counts, and the requested columns with their standard errors and confidence intervals.

    All are rounded to `decimals` and standard errors to two more; None does not round. `whole` is for integers.
    """
    step = rounding_step(decimals)
    near = partial(rounded, decimals=decimals, whole=whole)
    published = near(counts)
    added: dict[str, Numbers] = {}
    if error:
        # Rounding adds an error of its own, at worst uniform over one step.
        errors = np.full(published.size, math.hypot(plan.total_noise, step / math.sqrt(12.0)))
        added[f"{name}_standard_error"] = errors if decimals is None else np.round(errors, decimals + 2)
    if interval is not None:
        width = half_width(plan, interval) + step / 2.0
        added[f"{name}_low"] = near(published - width, towards=np.floor)
        added[f"{name}_high"] = near(published + width, towards=np.ceil)
    return published, added


def sum_error(plan: Plan, noise: SumNoise) -> float:
    """Standard error of a sum: its own noise, and the noise of the count times the middle of the range."""
    return math.hypot(noise.sigma, float(noise.middle) * plan.total_noise)


def sum_columns(
    counts: FloatArray, centred: FloatArray, plan: Plan, noise: SumNoise, look: Published
) -> list[FloatArray]:
    """A sum with its standard error and interval, from noisy counts and the noisy centred sum."""
    total = centred + float(noise.middle) * counts
    error = sum_error(plan, noise)
    columns = [total, *([np.full(total.size, error)] if look.error else [])]
    if look.interval is not None:
        width = -float(special.ndtri((1.0 - look.interval) / 2.0)) * error
        columns += [total - width, total + width]
    return columns


def sums_facts(plan: Plan, aggregates: Sequence[Aggregate]) -> list[JsonObject]:
    """The errors of sums, means and vectors, and the covariances of sums, as the certificate states them."""
    # On average, a released count whose true value is at the threshold is too high by E[Z | Z > 0] of its noise.
    bias = 0.0 if math.isinf(plan.threshold) else math.sqrt(2.0 / math.pi) * plan.total_noise
    all_facts = []
    for aggregate, noise in sums_with_noise(plan, aggregates):
        middle = float(noise.middle)
        facts: JsonObject = {"name": aggregate.vector or aggregate.name, "kind": aggregate.kind}
        if aggregate.vector:
            norm = float(aggregate.high)
            facts |= {"columns": list(aggregate.columns), "norm": norm, "standard_error": noise.sigma}
        else:
            bounds = {"low": float(aggregate.low), "high": float(aggregate.high)}
            facts |= {"column": aggregate.column, **bounds, "own_standard_error": noise.sigma}
        if aggregate.kind == "sum":
            facts |= {
                "standard_error": sum_error(plan, noise),
                "covariance_with_count": middle * plan.total_noise**2,
                "covariance_between_items": middle**2 * shared_part(plan),
                "bias_at_threshold": middle * bias,
            }
        if not aggregate.vector or aggregate.column == aggregate.columns[0]:
            all_facts.append(facts)
    return all_facts
