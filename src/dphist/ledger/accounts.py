"""Spends of privacy budget, how they add up, and what is left of the total of a dataset."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from decimal import ROUND_FLOOR, Context
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Final

from dphist.aliases import JsonObject
from dphist.display import Grid
from dphist.errors import InvalidParameter, OverBudget
from dphist.ledger.schema import Outcome, Receipt
from dphist.model import Budget
from dphist.paper.bounds import delta_zcdp
from dphist.proof.gaussian import delta_of_squared_move, largest_squared_move, squared_move_of_pure

# The first booking fixes which of `BY_FIRST` it is, before any noise is drawn.
AUTO: Final = "auto"
BY_FIRST: Final = ("gdp", "zcdp", "sum")
ACCOUNTINGS: Final = (AUTO, *BY_FIRST)
# The share of delta that gdp and zcdp reserve for counts that pass a threshold; the rest converts mu or rho.
HALF: Final = 0.5
# Releases are counted up to this number, which limits the work of a composer.
MOST_COUNTED: Final = 1000
# Gives an epsilon within a thousandth of the total.
_HALVINGS: Final = 10
# The first estimate of the largest epsilon is nearly always right, and planning takes up to a second.
_TRIES: Final = 3


def canonical(data: JsonObject | list[str]) -> str:
    """JSON in ASCII with sorted keys and no spaces, so that the same data gives the same text."""
    try:
        return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidParameter("a booking must be valid JSON: it has a value such as NaN") from None


@dataclass(frozen=True)
class Spend:
    """The privacy cost of one release.

    It is stored as it is, so it must not contain a true count or a password.

    >>> from dphist.ledger import Ledger, Spend
    >>> ledger = Ledger.init("others.ledger", "survey", epsilon=1, delta=1e-6, accounting="sum")
    >>> booking = ledger.book("survey", Spend(0.4, 1e-7), ledger.account("survey").composer)
    >>> print(booking.number, ledger.account("survey").remaining())
    3 about 1 more release like the last one, or one with epsilon up to 0.6

    Args:
        epsilon: The ε of the release.
        delta: Its δ.
        profile: What a composer needs besides: `mu_squared` (gdp) or `rho` (zcdp), and `delta`.
        document: The certificate, or any other JSON object that describes the release.
    """

    epsilon: float
    delta: float
    profile: JsonObject | None = None
    document: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        budget = Budget(self.epsilon, self.delta)
        object.__setattr__(self, "epsilon", budget.epsilon)
        object.__setattr__(self, "delta", budget.delta)
        for name in ("profile", "document"):
            value = getattr(self, name)
            if not isinstance(value, dict) and (value is not None or name == "document"):
                raise InvalidParameter(f"{name} must be a dictionary, not {type(value).__name__}")

    def through_json(self) -> Spend:
        """Through JSON and back, so that exactly what is read later is composed."""
        return Spend(**json.loads(canonical(asdict(self))))


_STAYS_SPENT: Final = (
    ". What these users' data has cost stays spent, and a new period does not bring it back: to go on is a "
    "decision for people, on a further total for the same users (docs/weekly.md)"
)

# A composer says how spends add up. *Guarantee*: releases are (epsilon, `total_delta`)-private together, and it
# never decreases with another spend.


class SumComposer:
    """Adds epsilons and deltas: valid for all releases, however they are chosen.

    Attributes:
        accounting: "sum".
    """

    accounting: Final = "sum"

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """The sum of the deltas of the `spends` if their epsilons add up to at most `epsilon`, else 1."""
        if _sum(spend.epsilon for spend in spends) > decimal_fraction(epsilon):
            return 1.0
        exact = _sum(spend.delta for spend in spends)
        value = float(exact)
        # The smallest float whose decimal form is at least `exact`, so that comparing it is exact.
        return value if decimal_fraction(value) >= exact else math.nextafter(value, math.inf)


def _largest(fits: Callable[[float], bool], high: float, halvings: int) -> float:
    """*Guarantee*: 0, or a number below `high` that was tried and fits; the largest within these halvings."""
    low = 0.0
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_rho(epsilon: float, delta: float) -> float:
    """*Guarantee*: the delta of the result at this epsilon is at most `delta`."""
    return _largest(lambda rho: delta_zcdp(rho=rho, epsilon=epsilon) <= delta, epsilon, 80)


@dataclass(frozen=True)
class Loss:
    """A privacy loss that adds up, whatever later releases depend on.

    `delta_of` is an upper bound of its delta at an epsilon, `largest` a loss with at most this delta, `of_budget`
    the loss of any release with this epsilon, beside its delta.
    """

    accounting: str
    name: str
    delta_of: Callable[[Fraction, float], float]
    largest: Callable[[float, float], float]
    of_budget: Callable[[float], Fraction]


LOSSES: Final = {
    "gdp": Loss(
        "gdp", "mu_squared",
        lambda squared, epsilon: delta_of_squared_move(squared, epsilon=epsilon),
        largest_squared_move,
        lambda epsilon: squared_move_of_pure(Fraction(epsilon)),
    ),
    "zcdp": Loss(
        "zcdp", "rho", lambda rho, epsilon: delta_zcdp(rho=float(rho), epsilon=epsilon), largest_rho,
        lambda epsilon: Fraction(epsilon) ** 2 / 2,
    ),
}  # fmt: skip


@lru_cache(maxsize=256)
def limits_of(total: Budget, share: float = HALF, accounting: str = "zcdp") -> tuple[float, float]:
    """The limits of a total: of the loss, and of a delta in addition, which is this share of the total delta.

    *Guarantee*: the delta of that loss at the total epsilon is at most the rest of the total delta.
    """
    beside = total.delta * share
    # The difference is exact for a share of at least a half.
    return LOSSES[accounting].largest(total.epsilon, total.delta - beside), beside


class FilterComposer:
    """A privacy loss and an additional delta add up, each within its own limit.

    The limits are `limits_of` the total of a dataset. A spend has its loss (`mu_squared` or `rho`) and delta as
    its profile; without a profile they are those of any release with its epsilon and delta.

    *Guarantee*: holds however the spends are chosen, even after looking at earlier results, because both limits
    are fixed in advance. (A limit on the converted sum is not enough: choosing when to stop could exceed it.)
    """

    def __init__(self, accounting: str, total: Budget, share: float = HALF) -> None:
        self.loss, self.total, self.share = LOSSES[accounting], total, share
        self.limits = limits_of(total, share, accounting)

    @property
    def accounting(self) -> str:
        return self.loss.accounting

    def cost(self, spend: Spend) -> tuple[Fraction, Fraction]:
        """The exact loss and additional delta of a spend."""
        if spend.profile is None:
            return self.loss.of_budget(spend.epsilon), Fraction(spend.delta)
        pair = spend.profile.get(self.loss.name, ""), spend.profile.get("delta", "")
        for number in pair:
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0.0 <= number < math.inf:
                raise InvalidParameter(
                    f"the {self.loss.name} and delta of a spend must be finite and not negative"
                )
        loss, delta = map(Fraction, pair)
        return loss, delta

    def copies(self, spend: Spend) -> tuple[float, float]:
        """How often this spend is within both limits, and within that of the loss alone; not whole numbers."""
        loss, delta = (float(number) for number in self.cost(spend))
        by_loss = self.limits[0] / loss if loss else math.inf
        return min(by_loss, self.limits[1] / delta if delta else math.inf), by_loss

    def left(self, spends: Sequence[Spend]) -> dict[str, float]:
        pairs = [self.cost(spend) for spend in spends]
        rest = [Fraction(limit) - sum(pair[k] for pair in pairs) for k, limit in enumerate(self.limits)]
        return {f"{self.loss.name}_left": max(0.0, float(rest[0])), "delta_left": max(0.0, float(rest[1]))}

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """The delta of all spends together if both sums are within their limits, else 1."""
        pairs = [self.cost(spend) for spend in spends]
        loss, delta = (sum((pair[place] for pair in pairs), Fraction()) for place in (0, 1))
        if loss > Fraction(self.limits[0]) or delta > Fraction(self.limits[1]) or epsilon < self.total.epsilon:
            return 1.0
        together = self.loss.delta_of(loss, epsilon) if loss else 0.0
        # Within its limits it is within the total; rounding must not make it exceed that.
        return min(self.total.delta, math.nextafter(together + float(delta), math.inf)) if spends else 0.0

    def largest_epsilon(self, spend: Spend, spends: Sequence[Spend], times: int = 1) -> float:
        """A low estimate of the largest epsilon with which `spend` fits this many times; 0 if none does.

        The loss grows with epsilon squared for Laplace noise, and like the largest loss that epsilon and delta
        allow for Gaussian noise. The result is the smaller of both estimates.
        """
        (loss, delta), left = self.cost(spend), self.left(spends)
        loss_left = left[f"{self.loss.name}_left"]
        if times * delta > left["delta_left"] or not loss_left or not loss:
            return 0.0
        growth = loss_left / float(times * loss)
        wanted = Fraction(self.loss.largest(spend.epsilon, spend.delta) * growth)
        gaussian = _largest(
            lambda epsilon: self.loss.delta_of(wanted, epsilon) >= spend.delta, self.total.epsilon, 40
        )
        return min(gaussian, spend.epsilon * math.sqrt(growth))


Composer = SumComposer | FilterComposer


def composer_for(accounting: str, total: Budget, share: float = HALF) -> Composer:
    """The composer for an accounting; `share` is for gdp and zcdp, see `limits_of`."""
    return SumComposer() if accounting == "sum" else FilterComposer(accounting, total, share)


# The spend of a release with another epsilon.
SpendAt = Callable[[float, Composer], Spend]


def round_down(number: float) -> float:
    """Two digits, rounded down so that a release still fits."""
    return float(Context(prec=2, rounding=ROUND_FLOOR).create_decimal_from_float(number))


def decimal_fraction(number: float) -> Fraction:
    """The number as it is written, so that three times 0.1 is 0.3."""
    return Fraction(repr(number))


def _sum(numbers: Iterable[float]) -> Fraction:
    return sum(map(decimal_fraction, numbers), Fraction())


def largest_float(exact: Fraction) -> float:
    """The largest float whose decimal form is at most `exact`, at least 0."""
    value = float(exact)
    return max(0.0, value if decimal_fraction(value) <= exact else math.nextafter(value, -math.inf))


@dataclass(frozen=True)
class Booking:
    """A spend in a ledger. It counts in full, even if the release was never written.

    Attributes:
        ledger: The id of the ledger.
        dataset: The dataset.
        number: The number of the entry.
        hash: The hash of the entry, as in the certificate.
        created: The time of the booking, in UTC.
        spend: The privacy cost.
        written: The `sha256` and `address` of the release, once it is written.
        id: The id of a scheduled run.
        run: The request of that run.
        failed: The error that closed the booking of a run.
        runs: How often the id was run.
    """

    ledger: str
    dataset: str
    number: int
    hash: str
    created: str
    spend: Spend
    written: Outcome | None = None
    id: str | None = None
    run: JsonObject | None = None
    failed: str | None = None
    runs: int = 1

    @property
    def state(self) -> str:
        """Whether the release was written, as words."""
        if self.written is not None:
            return "written"
        again = f" after {self.runs} runs" if self.runs > 1 else ""
        return f"not known to be written{again}" if self.failed is None else f"failed ({self.failed})"

    def receipt(self) -> Receipt:
        """The booking as certificates record it: ledger, dataset, entry and hash."""
        return {"ledger": self.ledger, "dataset": self.dataset, "entry": self.number, "hash": self.hash}


@dataclass(frozen=True, repr=False)
class Remaining:
    """The rest of a total, in releases like the last one. Printed, it is a sentence.

    Attributes:
        more: How many more such releases fit, counted up to 1,000.
        largest_epsilon: About the largest ε with which one more fits; 0 if none does.
        largest_delta: The remaining δ if that of the release is too large, else 0.
        like: Which release is meant. Before the first, it is empty, and ε and δ are the total.
    """

    more: int
    largest_epsilon: float
    largest_delta: float
    like: str

    def __repr__(self) -> str:
        if not self.like:
            return f"all of epsilon {self.largest_epsilon!r} and delta {self.largest_delta!r}"
        if not self.more and not self.largest_epsilon:
            if not self.largest_delta:
                return "nothing"
            return (
                f"too little for its delta: a release needs a delta of at most {_two_digits(self.largest_delta)}"
            )
        largest = _two_digits(self.largest_epsilon)
        if not self.more:
            return f"one release like {self.like} with epsilon up to {largest}"
        number = f"about {self.more}" if self.more < MOST_COUNTED else f"over {self.more}"
        releases = f"{number} more release{'s' if self.more > 1 else ''} like {self.like}"
        return f"{releases}, or one with epsilon up to {largest}"


def _two_digits(number: float) -> str:
    """Two digits, rounded down; a number with at most six digits unchanged."""
    return f"{number if float(f'{number:g}') == number else round_down(number):g}"


@dataclass(frozen=True)
class Account(Grid):
    """A dataset of a ledger: the total for all its releases, and what is booked.

    Attributes:
        name: The name of the dataset.
        total: The total ε and δ.
        accounting: How releases add up; "auto" until the first booking fixes it.
        bookings: What is booked, in order.
        share: With gdp and zcdp: the share of the total δ that is for thresholds.
        by_first: Whether the first booking fixed the accounting.
    """

    texts: ClassVar[int] = 2
    columns: ClassVar[tuple[str, ...]] = ("entry", "booked", "epsilon", "delta", "written to")
    name: str
    total: Budget
    accounting: str
    bookings: tuple[Booking, ...] = ()
    share: float = HALF
    by_first: bool = False

    @property
    def spends(self) -> list[Spend]:
        """The costs of all bookings."""
        return [booking.spend for booking in self.bookings]

    @property
    def composer(self) -> Composer:
        """How the spends add up. With auto nothing is booked yet, so that all of `BY_FIRST` would do."""
        return composer_for("sum" if self.accounting == AUTO else self.accounting, self.total, self.share)

    @property
    def title(self) -> str:
        total = f"epsilon {self.total.epsilon:g}, delta {self.total.delta:g} in all"
        return f"{self.name}: {total}, accounting {self.accounting}"

    def cells(self) -> list[tuple[str, ...]]:
        return [
            (
                str(booking.number), booking.created, f"{booking.spend.epsilon:g}", f"{booking.spend.delta:g}",
                "-" if booking.written is None else booking.written["address"],
            )
            for booking in self.bookings
        ]  # fmt: skip

    def booking_of(self, id: str) -> Booking | None:
        return next((booking for booking in self.bookings if booking.id == id), None)

    def delta_with(self, spends: Sequence[Spend], composer: Composer) -> float:
        """The delta at the total epsilon of all bookings and these spends."""
        if composer.accounting not in ((self.accounting,) if self.accounting != AUTO else BY_FIRST):
            raise InvalidParameter(
                f"the dataset {self.name!r} has the accounting {self.accounting!r}, not {composer.accounting!r}"
            )
        if isinstance(composer, FilterComposer):
            # The guarantee needs limits that never change.
            share = composer.share if self.accounting == AUTO else self.share
            if (composer.total, composer.share) != (self.total, share):
                raise InvalidParameter(
                    f"the composer must have the total of the dataset {self.name!r}, epsilon "
                    f"{self.total.epsilon!r} and delta {self.total.delta!r}, and its share, {share!r}"
                )
        return composer.total_delta([*self.spends, *spends], self.total.epsilon)

    def _fits(self, spends: Sequence[Spend], composer: Composer) -> bool:
        return self.delta_with(spends, composer) <= self.total.delta

    def check_fits(self, spend: Spend, composer: Composer, spend_at: SpendAt | None = None) -> None:
        """Raise `OverBudget`, with what remains, if the total does not allow this spend.

        `spend_at`, the spend of the same release with another epsilon, is for the message.
        """
        # Refuses NaN too.
        if not self.delta_with([spend], composer) <= self.total.delta:
            raise OverBudget(
                f"the dataset {self.name!r} has no room for epsilon {spend.epsilon!r} and delta {spend.delta!r}: "
                f"the total is epsilon {self.total.epsilon!r} and delta {self.total.delta!r}; "
                f"remaining: {self.remaining(composer, spend, spend_at)}{_STAYS_SPENT if self.bookings else ''}"
            )

    def left(self, composer: Composer) -> dict[str, float]:
        """What is spent or left, in the terms of the accounting."""
        if isinstance(composer, SumComposer):
            epsilon = decimal_fraction(self.total.epsilon) - _sum(spend.epsilon for spend in self.spends)
            delta = decimal_fraction(self.total.delta) - _sum(spend.delta for spend in self.spends)
            return {"epsilon_left": largest_float(epsilon), "delta_left": largest_float(delta)}
        return {"delta_spent": max(0.0, self.delta_with([], composer)), **composer.left(self.spends)}

    def remaining(
        self, composer: Composer | None = None, spend: Spend | None = None, spend_at: SpendAt | None = None
    ) -> Remaining:
        """What remains, in releases like one with this `spend`, or like the last booking.

        A `composer` is needed for a dataset without bookings. `spend_at`, which gives the spend of the release
        with another epsilon, makes the largest epsilon exact.
        """
        like, composer = "this one", composer or self.composer
        if spend is None:
            if not self.bookings:
                return Remaining(0, self.total.epsilon, self.total.delta, "")
            like, spend = "the last one", self.spends[-1]
        more, left = self.more_that_fit(spend, composer), self.left(composer)
        largest = max(self.largest_epsilon_like(spend, composer, spend_at), spend.epsilon if more else 0.0)
        needed = composer.cost(spend)[1] if isinstance(composer, FilterComposer) else spend.delta
        delta = left["delta_left"] if "delta_left" in left else self.total.delta - left["delta_spent"]
        return Remaining(more, largest, delta if needed > delta > 0.0 else 0.0, like)

    def more_that_fit(self, spend: Spend, composer: Composer) -> int:
        """How many more such spends fit, counted up to `MOST_COUNTED`.

        *Guarantee*: that many were composed, and fit.
        """

        def too_many(count: int) -> bool:
            return not self._fits([spend] * count, composer)

        top = 1
        while top <= MOST_COUNTED and not too_many(top):
            top *= 2
        return top // 2 + bisect_left(range(top // 2 + 1, min(top, MOST_COUNTED + 1)), True, key=too_many)

    def largest_epsilon_like(
        self, spend: Spend, composer: Composer, spend_at: SpendAt | None = None, times: int = 1
    ) -> float:
        """About the largest epsilon with which a release like this one fits this many times; 0 if none does.

        *Guarantee*: with `spend_at`, the release was planned with this epsilon, and fits.
        """
        if not isinstance(composer, FilterComposer) or spend.profile is None:
            return self.largest_epsilon(spend.delta, composer)
        best = 0.0
        for _ in range(_TRIES):
            epsilon = composer.largest_epsilon(spend, self.spends, times)
            if spend_at is None:
                return epsilon
            # The first estimate can be much too small, and the next one is better.
            if round_down(epsilon) <= 1.05 * best:
                return best
            spend = spend_at(round_down(epsilon), composer)
            if self._fits([spend] * times, composer):
                best = spend.epsilon
        return best

    def largest_epsilon(self, delta: float, composer: Composer) -> float:
        """About the largest epsilon of one more release with this delta; 0 if none fits.

        *Guarantee*: the worst release with this epsilon and delta was composed, and fits.
        """
        is_sum = composer.accounting == "sum"
        most = self.left(composer)["epsilon_left"] if is_sum else self.total.epsilon
        if most > 0.0 and self._fits([Spend(most, delta)], composer):
            return most
        return _largest(lambda e: self._fits([Spend(e, delta)], composer), most, 0 if is_sum else _HALVINGS)
