"""Whether a release fits the remaining budget of a dataset, before it is booked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dphist.ledger.accounts import LOSSES, Account, Composer, Remaining, Spend
from dphist.model import Plan
from dphist.planning.planner import plan
from dphist.releasing.spending import WEEKS, composes_gaussian, price_of, spend_of, weekly_budget

if TYPE_CHECKING:
    from dphist.aliases import JsonObject


@dataclass(frozen=True)
class Fit:
    """How often a release fits, the `delta` of all releases with it, and the accounting that it would fix."""

    remaining: Remaining
    delta: float
    fixes: str | None

    @property
    def fits(self) -> bool:
        return self.remaining.more > 0

    def to_dict(self) -> JsonObject:
        """The keys of `dphist ledger plan --json` besides those of the dataset."""
        return {
            "fits": self.fits,
            "more": self.remaining.more,
            "delta_with_it": self.delta,
            "largest_epsilon": self.remaining.largest_epsilon,
        }


def fit_of(
    account: Account,
    *,
    epsilon: float,
    delta: float,
    mechanism: str = "best",
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    top: int | None = None,
    public_items: int | None = None,
) -> Fit:
    """Plan a release as `dphist.release` would with this account, and compare its cost with what remains."""
    in_rounds = max_nonzero is max_items_per_user is top is public_items is None
    if in_rounds and mechanism == "best" and composes_gaussian(account):
        mechanism = "gaussian"

    def planned(epsilon: float) -> Plan:
        return plan(
            epsilon=epsilon, delta=delta, mechanism=mechanism, max_nonzero=max_nonzero,
            max_items_per_user=max_items_per_user, top=top, public_items=public_items,
        )  # fmt: skip

    def spend_at(epsilon: float, composer: Composer) -> Spend:
        return spend_of(planned(epsilon), composer.accounting)

    spend, composer = price_of(planned(epsilon), account)
    remaining = account.remaining(composer, spend, spend_at)
    fixes = None if account.accounting == composer.accounting else composer.accounting
    return Fit(remaining, account.delta_with([spend], composer), fixes)


def describe_capacity(account: Account) -> str:
    """What a new dataset has room for; empty if it is not known."""
    total, week = account.total, weekly_budget(account)
    choices = []
    if account.accounting not in LOSSES:
        choices.append(f"one release with epsilon {total.epsilon:g} and delta {total.delta:g}")
    if week is not None:
        choices.append(
            f"about {WEEKS} weekly default releases with epsilon {week.epsilon:g} and delta {week.delta:g} each"
        )
    return f"That is enough for {', or for '.join(choices)}." if choices else ""
