"""Plans as OpenDP measurements, which compose in its compositors, odometers and contexts."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Literal, get_args

from dphist.accounting.concentrated import zcdp_of_plan
from dphist.certificate.plans import certify_again, nonzero_rule
from dphist.errors import InvalidParameter, one_of, package
from dphist.model import Plan
from dphist.releasing.histogram import release_histogram

if TYPE_CHECKING:
    from opendp.mod import Domain, Measurement, Metric

__all__ = ["as_measurement", "input_domain", "input_metric"]

Measure = Literal["approximate-dp", "approximate-zcdp"]


def as_measurement(
    plan: Plan, *, measure: Measure = "approximate-dp", guarantee_max_nonzero: bool = False
) -> Measurement:
    """A measurement on histograms {item: count} whose distance is a number of users.

    The input maps strings to counts, the output is a dict of noisy counts above the threshold. As in
    `dphist.release_histogram`, the caller guarantees that one user changes only as many counts as the plan allows,
    each by one. The privacy map gives the plan's (epsilon, delta), or its approximate zCDP, for one user, and
    raises an error for more than one.

    >>> import dphist
    >>> import opendp.prelude as dp
    >>> dp.enable_features("contrib", "honest-but-curious")
    >>> plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20)
    >>> measurement = dphist.opendp.as_measurement(plan)
    >>> print(measurement.map(1))
    (1.0, 1e-06)

    Args:
        plan: The plan, without sums, rounds or a public list.
        measure: "approximate-dp" or "approximate-zcdp".
        guarantee_max_nonzero: As for `dphist.release_histogram`.

    Raises:
        InvalidParameter: The plan is of another kind, or OpenDP's features are not enabled.
        MissingExtra: The extra `opendp` is not installed.
    """
    dp = _opendp()
    plan = certify_again(plan)
    if plan.noise.public or plan.noise.in_rounds or plan.sums:
        raise InvalidParameter(
            "plans in rounds, for a public list of items or with sums work only with dphist.release"
        )
    nonzero_rule(plan, promised=guarantee_max_nonzero)
    if one_of("measure", measure, get_args(Measure)) == "approximate-dp":
        output_measure, loss = dp.approximate(dp.max_divergence()), (plan.budget.epsilon, plan.budget.delta)
    else:
        cost = zcdp_of_plan(plan)
        output_measure, loss = dp.approximate(dp.zero_concentrated_divergence()), (cost.rho, cost.delta)

    def function(histogram: Mapping[str, int]) -> dict[str, float]:
        counts = {item: count for item, count in histogram.items() if count > 0}
        released = release_histogram(
            list(counts), list(counts.values()), plan, guarantee_max_nonzero=guarantee_max_nonzero
        )
        return dict(zip(released.items, released.counts.tolist(), strict=True))

    def privacy_map(users: int) -> tuple[float, float]:
        if users not in (0, 1):
            raise InvalidParameter(f"a plan covers datasets that differ by one user, not by {users!r}")
        return loss if users == 1 else (0.0, 0.0)

    measurement: Measurement = dp.m.make_user_measurement(
        input_domain(), input_metric(), output_measure, function, privacy_map
    )
    return measurement


def input_domain() -> Domain:
    """The domain of histograms: maps from items to integer counts. For OpenDP's contexts and compositors."""
    dp = _opendp()
    domain: Domain = dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T=dp.i64))
    return domain


def input_metric() -> Metric:
    """The number of users by which two histograms differ: user-defined, since counts do not show users."""
    metric: Metric = _opendp().user_distance("users of difference")
    return metric


def _opendp() -> ModuleType:
    dp: ModuleType = package("opendp.prelude", "opendp")
    missing = {"contrib", "honest-but-curious"} - set(package("opendp.mod").GLOBAL_FEATURES)
    if missing:
        raise InvalidParameter(
            "OpenDP must allow user-defined measurements: call dp.enable_features("
            f"{', '.join(map(repr, sorted(missing)))})"
        )
    return dp
