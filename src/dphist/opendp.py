"""Plans as measurements of OpenDP, which compose inside its compositors, odometers and contexts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

from dphist.accounting.concentrated import zcdp_of_plan
from dphist.errors import InvalidParameter, MissingExtra
from dphist.privacy.types import Plan, PublicNoise
from dphist.releasing.document import certify_again, nonzero_rule
from dphist.releasing.histogram import release_histogram

Measure = Literal["approximate-dp", "approximate-zcdp"]


def as_measurement(plan: Plan, *, measure: Measure = "approximate-dp", promise_max_nonzero: bool = False) -> Any:
    """A measurement on histograms {item: count} whose distance is a number of users.

    Input: a map of strings to counts. Its metric counts users, each of whom touches the counts that the plan says,
    each by one; that is the caller's promise, as in `dphist.release_histogram`. The output is a dict of noisy
    counts above the threshold. For one user the map gives the plan's (epsilon, delta), or its approximate zCDP;
    for none nothing is lost; more users are refused.
    """
    dp = _opendp()
    # What cannot be released is refused here, and the map is that of the recomputed certificate.
    plan = certify_again(plan)
    if isinstance(plan.noise, PublicNoise) or plan.sums:
        raise InvalidParameter("plans for a public list of items or with sums are for dphist.release")
    if plan.contract.spread is not None:
        raise InvalidParameter("plans with spread are for dphist.release, which weighs the items of users")
    nonzero_rule(plan, promised=promise_max_nonzero)
    if measure not in ("approximate-dp", "approximate-zcdp"):
        raise InvalidParameter(f"measure must be approximate-dp or approximate-zcdp, not {measure!r}")
    if measure == "approximate-dp":
        output_measure, loss = dp.approximate(dp.max_divergence()), (plan.budget.epsilon, plan.budget.delta)
    else:
        found = zcdp_of_plan(plan)
        output_measure, loss = dp.approximate(dp.zero_concentrated_divergence()), (found.rho, found.delta)

    def function(histogram: Mapping[str, int]) -> dict[str, float]:
        counted = {item: count for item, count in histogram.items() if count > 0}
        released = release_histogram(
            list(counted), list(counted.values()), plan, promise_max_nonzero=promise_max_nonzero
        )
        return dict(zip(released.items, released.counts.tolist(), strict=True))

    def privacy_map(users: int) -> tuple[float, float]:
        if users not in (0, 1):
            raise InvalidParameter(f"a plan is for one user of difference, not {users!r}")
        return loss if users == 1 else (0.0, 0.0)

    return dp.m.make_user_measurement(input_domain(), input_metric(), output_measure, function, privacy_map)


def input_domain() -> Any:
    """Histograms: a map from items to whole counts."""
    dp = _opendp()
    return dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T=dp.i64))


def input_metric() -> Any:
    """The number of users by which two histograms differ: a metric of ours, for no user is seen in counts."""
    return _opendp().user_distance("users of difference")


def _opendp() -> Any:
    try:
        dp = import_module("opendp.prelude")
    except ImportError:
        raise MissingExtra("this needs OpenDP: pip install 'dphist[opendp]'") from None
    features = import_module("opendp.mod").GLOBAL_FEATURES
    missing = {"contrib", "honest-but-curious"} - set(features)
    if missing:
        raise InvalidParameter(
            "OpenDP does not trust measurements from elsewhere yet: dp.enable_features("
            f"{', '.join(map(repr, sorted(missing)))})"
        )
    return dp
