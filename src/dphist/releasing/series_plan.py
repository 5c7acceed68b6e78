"""`plan_series`: what each of many equal releases can cost under one total, what it will show, and its command."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dphist.certificate.numbers import half_width
from dphist.display import Listing, count_items, figure, plain_number
from dphist.errors import InvalidParameter, OverBudget, flag, positive_count
from dphist.ledger import Ledger
from dphist.model import Budget, Plan, RoundsNoise
from dphist.planning.planner import plan
from dphist.planning.utility import count_noise
from dphist.proof.verdict import verdict_of
from dphist.releasing.fitting import Fit, fit_of
from dphist.releasing.spending import composes_gaussian, equal_budget

if TYPE_CHECKING:
    from dphist.aliases import JsonObject
    from dphist.ledger.accounts import Account

# The id by which a scheduler names each release of a period.
IDS: Final = {"weeks": "last-week", "days": "yesterday", "months": "last-month", "quarters": "last-quarter"}
# Examples for readers: users of so many items.
_ITEMS: Final = (1, 4, 16)


@dataclass(frozen=True)
class Shown:
    """What a release will show: items with `users` or more are mostly found, if each user has `items` items.

    `margin` is half the width of a 95 % interval of the noise, for counts of such users.
    """

    items: int
    users: int | None
    margin: float


@dataclass(frozen=True, repr=False)
class SeriesPlan(Listing):
    """The budget of each of `releases` equal releases, and what each of them will show.

    Attributes:
        dataset: The dataset whose budget is planned.
        releases: How many releases.
        unit: "weeks", "days", "months", "quarters" or "releases".
        budget: The ε and δ of each.
        plan: The plan of each.
        fit: How it fits the remaining budget.
        accounting: How the releases add up.
        shown: For users with some numbers of `items`: the `users` that an item needs, and the `margin` of its
            count.
        command: The `dphist release` for a scheduler; names that follow from no booking are examples.
    """

    title: ClassVar[str] = "Plan of a series"
    dataset: str
    releases: int
    unit: str
    budget: Budget
    plan: Plan
    fit: Fit
    accounting: str
    shown: tuple[Shown, ...]
    command: str

    def rows(self) -> list[tuple[str, str]]:
        one = self.unit.removesuffix("s")
        each = f"ε = {plain_number(self.budget.epsilon)}, δ = {plain_number(self.budget.delta)}"
        more, fixes = self.fit.remaining.more, ""
        spare = f"; {more - self.releases} more would fit" if more > self.releases else ""
        if self.fit.fixes is not None:
            fixes = "; the first release fixes it"
        return [
            ("Releases", f"{self.releases:,}{f', one per {one}' if self.unit in IDS else ''}{spare}"),
            ("Each", f"{each}; {verdict_of(self.budget).sentence}"),
            ("Accounting", f"{self.accounting}{fixes}"),
            *self._shown_rows(),
        ]  # fmt: skip

    def _shown_rows(self) -> list[tuple[str, str]]:
        if len(self.shown) == 1:
            (shown,) = self.shown
            what = "every item of the list" if shown.users is None else f"items with {shown.users:,} users or more"
            return [("Shows", what), ("Margin", f"±{figure(shown.margin)} per count (95 %)")]
        found = [(f"about {one.users:,} users or more", one.items) for one in self.shown if one.users is not None]
        margins = [(f"about ±{one.margin:,.0f}", one.items) for one in self.shown]
        return [
            ("Shows", f"items with {_by_items(found)}" if found else "every item of the list"),
            ("Margin", f"{_by_items(margins)} (noise of a count, 95 %)"),
        ]

    def to_dict(self) -> JsonObject:
        """The keys of `dphist ledger plan --weeks N --json` besides those of the dataset."""
        return {
            "releases": self.releases,
            "unit": self.unit,
            "epsilon_each": self.budget.epsilon,
            "delta_each": self.budget.delta,
            "accounting_of_series": self.accounting,
            **self.fit.to_dict(),
            "shows": [
                {"items_of_a_user": one.items, "users_needed": one.users, "margin": one.margin}
                for one in self.shown
            ],
            "plan": self.plan.to_dict(),
            "command": self.command,
        }


def _by_items(texts: Sequence[tuple[str, int]]) -> str:
    """The first text, and how the number in it changes with the items of a user."""
    (first, items), *others = texts
    more = (f"{text.removesuffix(' users or more')} if {items:,}" for text, items in others)
    return f"{first} if each user has {count_items(items)}; {', '.join(more)}"


def plan_series(
    ledger: str | os.PathLike[str],
    dataset: str,
    *,
    releases: int | None = None,
    weeks: int | None = None,
    days: int | None = None,
    months: int | None = None,
    quarters: int | None = None,
    mechanism: str = "best",
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    top: int | None = None,
    public_items: int | None = None,
) -> SeriesPlan:
    """The largest budget for each of this many more equal releases of a dataset. Books nothing.

    Give one of `weeks`, `days`, `months`, `quarters` and `releases`. Without a limit the releases are in rounds.

    >>> import dphist
    >>> ledger = dphist.ledger.Ledger.init("series.ledger", "searches", epsilon=3, delta=1e-6)
    >>> planned = dphist.plan_series("series.ledger", "searches", weeks=52)
    >>> print(planned.budget)
    Budget(epsilon=0.42, delta=1.7e-08)

    Args:
        ledger: File of the ledger.
        dataset: Name of the dataset.
        releases: Number of releases.
        weeks: Number of weekly releases.
        days: Number of daily releases.
        months: Number of monthly releases.
        quarters: Number of quarterly releases.
        mechanism: As for `plan`.
        max_nonzero: As for `plan`.
        max_items_per_user: As for `plan`.
        top: As for `plan`.
        public_items: As for `plan`.

    Raises:
        OverBudget: The remaining budget has no room for them.
    """
    given = {
        unit: number
        for unit, number in (
            ("weeks", weeks), ("days", days), ("months", months), ("quarters", quarters), ("releases", releases)
        )
        if number is not None
    }  # fmt: skip
    if len(given) != 1:
        raise InvalidParameter(
            "plan_series needs one of <--weeks>, <--days>, <--months>, <--quarters> and <--releases>"
        )
    ((unit, number),) = given.items()
    number = positive_count(f"<{flag(unit)}>", number)
    account = Ledger.open(ledger).account(dataset)
    limits: dict[str, Any] = {
        "max_nonzero": max_nonzero, "max_items_per_user": max_items_per_user, "top": top,
        "public_items": public_items,
    }  # fmt: skip
    in_rounds = all(limit is None for limit in limits.values())
    gaussian = mechanism == "best" and composes_gaussian(account)
    # With a limit, Laplace noise may be the best for one release and still fit fewer times.
    kinds = ["gaussian"] if gaussian and in_rounds else [mechanism, *(["gaussian"] if gaussian else [])]

    def plan_with(kind: str, budget: Budget) -> Plan:
        return plan(epsilon=budget.epsilon, delta=budget.delta, mechanism=kind, **limits)

    found = [(equal_budget(account, number, partial(plan_with, kind)), kind) for kind in kinds]
    budget, kind = max(found, key=lambda one: 0.0 if one[0] is None else one[0].epsilon)
    fit = None if budget is None else fit_of(
        account, epsilon=budget.epsilon, delta=budget.delta, mechanism=kind, **limits
    )  # fmt: skip
    if budget is None or fit is None or fit.remaining.more < number:
        raise OverBudget(
            f"the dataset {account.name!r} has no room for {number:,} more releases: remaining: "
            f"{account.remaining()}. Plan fewer releases, or start with a larger total for other users"
        )
    planned = plan_with(kind, budget)
    # Rounds choose it themselves.
    named = None if kind == "best" or (in_rounds and gaussian) else kind
    return SeriesPlan(
        account.name, number, unit, budget, planned, fit, fit.fixes or account.accounting, _shown(planned),
        _command(account, os.fspath(ledger), unit, budget, limits | {"mechanism": named}),
    )  # fmt: skip


def _shown(planned: Plan) -> tuple[Shown, ...]:
    noise = planned.noise
    if not isinstance(noise, RoundsNoise):
        users = None if noise.public else count_noise(noise).passing_count(0.5)
        return (Shown(int(planned.contract.items), users, half_width(planned, 0.95)),)

    def needed(items: int) -> int | None:
        """Where no item leaves a list, a user with n items counts 1/sqrt(n) for each."""
        if not noise.parts:
            return None
        if items == 1 and noise.alone is not None:
            return math.ceil(noise.alone.threshold)
        return math.ceil(noise.threshold * math.sqrt(items))

    return tuple(Shown(items, needed(items), 1.96 * noise.sigma * math.sqrt(items)) for items in _ITEMS)


def _command(account: Account, ledger: str, unit: str, budget: Budget, limits: dict[str, Any]) -> str:
    """The command of each release, with the columns of the last booking if there is one."""
    last = account.bookings[-1].spend.document.get("request", {}) if account.bookings else {}
    items = last.get("item") or ["query"]
    name = "{period}" if unit in IDS else "NAME"
    words = ["dphist", "release", f"logs/{name}.parquet", "--user", str(last.get("user") or "user_id")]
    words += [word for item in items for word in ("--item", str(item))]
    words += ["--epsilon", plain_number(budget.epsilon), "--delta", plain_number(budget.delta)]
    for option, value in limits.items():
        if option == "public_items" and value is not None:
            words += ["--items", "items.csv"]
        elif value is not None:
            words += [flag(option), str(value)]
    words += ["--ledger", ledger, "--dataset", account.name, "--id", IDS.get(unit, name)]
    return shlex.join([*words, "-o", f"releases/{name}.parquet"])
