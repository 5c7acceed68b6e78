"""Spends of privacy budget, how they add up, and what is left of the total of a dataset."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from decimal import ROUND_FLOOR, Context
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from dphist.display import html_grid, text_grid
from dphist.errors import InvalidParameter, OverBudget
from dphist.privacy.types import Budget

if TYPE_CHECKING:
    from dphist.accounting import Profile

# "auto" is zcdp or sum: the first booking says which, before any noise is drawn.
AUTO: Final = "auto"
ACCOUNTINGS: Final = (AUTO, "zcdp", "pld", "sum")
# The part of delta that zcdp reserves for counts that pass a threshold; the rest is that of rho.
HALF: Final = 0.5
# More releases than this are not counted; it bounds the work of a composer.
MOST_COUNTED: Final = 1000
# Profiles are drawn a little above the truth.
_NEAR: Final = 1.01
# For an epsilon within a thousandth of the total.
_HALVINGS: Final = 10
# An estimate of the largest epsilon is nearly always right at once; to plan a release takes up to a second.
_TRIES: Final = 3
_COLUMNS: Final = ("entry", "booked", "epsilon", "delta", "written to")


def canonical(data: Any) -> str:
    """JSON with sorted keys and no spaces, in ASCII: the same data give the same text."""
    try:
        return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidParameter("a booking must be valid JSON: it has a value such as NaN") from None


@dataclass(frozen=True)
class Spend:
    """The privacy that one release costs, with the certificate's document.

    `profile` is what a composer needs besides epsilon and delta; the ledger does not read it. Neither it nor the
    document may hold a true count or a password: both are stored as they are.
    """

    epsilon: float
    delta: float
    profile: dict[str, Any] | None = None
    document: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        budget = Budget(self.epsilon, self.delta)
        object.__setattr__(self, "epsilon", budget.epsilon)
        object.__setattr__(self, "delta", budget.delta)
        for name in ("profile", "document"):
            value = getattr(self, name)
            if not isinstance(value, dict) and (value is not None or name == "document"):
                raise InvalidParameter(f"{name} must be a dictionary, not {type(value).__name__}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as it is booked."""
        return asdict(self)

    def through_json(self) -> Spend:
        """Through JSON and back, so that what is composed is what will be read later."""
        return Spend(**json.loads(canonical(self.to_dict())))


class Composer(Protocol):
    """How the spends of a dataset add up."""

    @property
    def accounting(self) -> str:
        """The name of the accounting, one of `ACCOUNTINGS`."""

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """*Guarantee*: all these releases together are (epsilon, result)-differentially private.

        One more spend never makes the result smaller.
        """


class SumComposer:
    """Epsilons and deltas are added: valid for all releases, however they were chosen."""

    accounting: Final = "sum"

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """The sum of the deltas if the sum of the epsilons is within `epsilon`, else 1."""
        if _sum(spend.epsilon for spend in spends) > decimal_fraction(epsilon):
            return 1.0
        exact = _sum(spend.delta for spend in spends)
        value = float(exact)
        # The smallest float that is written as `exact` or more: hence `<=` of it is exact. The nearest float is at
        # most one too small.
        return value if decimal_fraction(value) >= exact else math.nextafter(value, math.inf)


def delta_of_rho(rho: float, epsilon: float) -> float:
    """delta of rho-zCDP at epsilon, by the tight conversion."""
    from dphist.privacy.paper import delta_zcdp

    return delta_zcdp(rho=rho, epsilon=epsilon)


def largest_rho(epsilon: float, delta: float) -> float:
    """*Guarantee*: the delta of the result at this epsilon was computed, and is at most `delta`."""
    low, high = 0.0, epsilon
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if delta_of_rho(middle, epsilon) <= delta else (low, middle)
    return low


@lru_cache(maxsize=256)
def limits_of(total: Budget, share: float = HALF) -> tuple[float, float]:
    """The largest rho, and the delta beside it, that a total allows: this share of delta beside it.

    *Guarantee*: the delta of that rho at the total's epsilon was computed, and is within the rest of delta.
    """
    beside = total.delta * share
    # Of a share of at least a half the difference is exact.
    return largest_rho(total.epsilon, total.delta - beside), beside


class ConcentratedComposer:
    """The accounting by zero-concentrated privacy: rho and the delta beside it add up, each within its own limit.

    The limits are those of a dataset's whole `total`, with this `share` of delta beside rho. A spend has its rho
    and delta as its profile; without one they are epsilon^2/2 and delta, true of any such release.

    *Guarantee*: holds however the spends were chosen, also by looking at earlier results: both limits are fixed
    beforehand. (A limit on their converted sum would not do: choosing where to stop could gain by it.)
    """

    accounting: Final = "zcdp"

    def __init__(self, total: Budget, share: float = HALF) -> None:
        self.total, self.share, self._limits = total, share, limits_of(total, share)

    def left(self, spends: Sequence[Spend]) -> dict[str, float]:
        """What is left of both limits."""
        pairs = [zcdp_of(spend) for spend in spends]
        rest = [Fraction(limit) - sum(pair[k] for pair in pairs) for k, limit in enumerate(self._limits)]
        return {"rho_left": max(0.0, float(rest[0])), "delta_left": max(0.0, float(rest[1]))}

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """The delta of all spends together while both sums are within their limits, else 1."""
        pairs = [zcdp_of(spend) for spend in spends]
        rho, delta = (sum((pair[place] for pair in pairs), Fraction()) for place in (0, 1))
        if rho > Fraction(self._limits[0]) or delta > Fraction(self._limits[1]) or epsilon < self.total.epsilon:
            return 1.0
        together = delta_of_rho(float(rho), epsilon) if rho else 0.0
        # Within the limits it is within the total; what rounding adds must not turn a fit into none.
        return min(self.total.delta, math.nextafter(together + float(delta), math.inf)) if spends else 0.0

    def largest_epsilon(self, spend: Spend, spends: Sequence[Spend], times: int = 1) -> float:
        """About the largest epsilon with which `spend` fits so many times after the others; 0 if there is none.

        Rather too small: of Laplace noise rho grows with the square of epsilon, of Gaussian noise as the largest
        rho that epsilon and delta allow, and the smaller of the two answers is taken.
        """
        (rho, delta), left = zcdp_of(spend), self.left(spends)
        if times * delta > left["delta_left"] or not left["rho_left"] or not rho:
            return 0.0
        growth = left["rho_left"] / float(times * rho)
        wanted = largest_rho(spend.epsilon, spend.delta) * growth
        low, high = 0.0, self.total.epsilon
        for _ in range(40):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if delta_of_rho(wanted, middle) >= spend.delta else (low, middle)
        return min(low, spend.epsilon * math.sqrt(growth))


def zcdp_of(spend: Spend) -> tuple[Fraction, Fraction]:
    """The rho and the delta beside it that a spend was booked with, exactly."""
    if spend.profile is None:
        return Fraction(spend.epsilon) ** 2 / 2, Fraction(spend.delta)
    pair = spend.profile.get("rho", ""), spend.profile.get("delta", "")
    for number in pair:
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0.0 <= number < math.inf:
            raise InvalidParameter("a spend's rho and delta must be finite numbers that are not negative")
    rho, delta = map(Fraction, pair)
    return rho, delta


class ProfileComposer:
    """The accounting by privacy profiles: for releases that were all fixed before the first was looked at."""

    accounting: Final = "pld"

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """The composed delta, or the plain sum where that is smaller: both are proofs.

        So that one release may have all of the total, whatever a composition adds for rounding.
        """
        from dphist.accounting.composition import total_delta

        if not spends:
            return 0.0
        # Equal spends are composed as one that occurs several times, which costs far less.
        groups: dict[str, list[Spend]] = {}
        for spend in spends:
            groups.setdefault(canonical([spend.epsilon, spend.delta, spend.profile]), []).append(spend)
        pairs = [(profile_of(group[0]), len(group)) for group in groups.values()]
        composed, added = total_delta(pairs, epsilon), SumComposer().total_delta(spends, epsilon)
        # In this order NaN stays, and is refused.
        return added if composed >= added else composed


def profile_of(spend: Spend) -> Profile:
    """The profile of a spend, which must not contradict its own epsilon and delta: both count as true."""
    from dphist.accounting import Profile

    if spend.profile is None:
        return Profile.of_budget(spend.epsilon, spend.delta)
    profile = Profile.from_dict(spend.profile)
    if not profile.delta(spend.epsilon) <= _NEAR * spend.delta:
        raise InvalidParameter("a spend's profile is above its own delta at its own epsilon")
    return profile


def composer_for(accounting: str, total: Budget, share: float = HALF) -> Composer:
    """The composer of a dataset with this accounting and total; `share` is for zcdp, see `limits_of`."""
    if accounting == "zcdp":
        return ConcentratedComposer(total, share)
    return SumComposer() if accounting == "sum" else ProfileComposer()


# What a release would spend with another epsilon.
SpendAt = Callable[[float, Composer], Spend]


def round_down(number: float) -> float:
    """The number to two digits, rounded down, so that what was to fit still fits."""
    return float(Context(prec=2, rounding=ROUND_FLOOR).create_decimal_from_float(number))


def decimal_fraction(number: float) -> Fraction:
    """The number as it is written: three times 0.1 is 0.3, as readers of certificates will add."""
    return Fraction(repr(number))


def _sum(numbers: Iterable[float]) -> Fraction:
    return sum(map(decimal_fraction, numbers), Fraction())


def largest_float(exact: Fraction) -> float:
    """*Guarantee*: the largest float that is written as `exact` or less, at least 0."""
    value = float(exact)
    return max(0.0, value if decimal_fraction(value) <= exact else math.nextafter(value, -math.inf))


@dataclass(frozen=True)
class Booking:
    """A spend in a ledger. It counts in full, whether or not the release is known to have been written.

    A run with an `id` records its request in `run`. `failed` is the name of the error that closed the booking of
    such a run.
    """

    ledger: str
    dataset: str
    number: int
    hash: str
    created: str
    spend: Spend
    written: dict[str, Any] | None = None
    id: str | None = None
    run: dict[str, Any] | None = None
    failed: str | None = None
    runs: int = 1

    @property
    def state(self) -> str:
        """Whether the release is known to be written."""
        if self.written is not None:
            return "written"
        again = f" after {self.runs} runs" if self.runs > 1 else ""
        return f"not known to be written{again}" if self.failed is None else f"failed ({self.failed})"

    def receipt(self) -> dict[str, Any]:
        """For the certificate of the release: where its booking is, and the hash by which to find it again."""
        return {"ledger": self.ledger, "dataset": self.dataset, "entry": self.number, "hash": self.hash}


@dataclass(frozen=True, repr=False)
class Remaining:
    """What is left of a total: `more` releases like a given one, or one like it with another epsilon.

    `largest_epsilon` is 0 if no epsilon would make it fit; `largest_delta` is what remains, if its delta is too
    large, or else 0. Before the first release, `like` is empty and both are the total.
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
    """Two digits, rounded down so that it fits; a number that was given with up to six digits as it was given."""
    return f"{number if float(f'{number:g}') == number else round_down(number):g}"


@dataclass(frozen=True)
class Account:
    """A dataset: the total that all releases of it may cost together, and what was booked.

    With the accounting `auto` nothing is booked yet: the first booking says how releases add up (`by_first`).
    `share` is the part of delta that zcdp reserves for counts that pass a threshold.
    """

    name: str
    total: Budget
    accounting: str
    bookings: tuple[Booking, ...] = ()
    share: float = HALF
    by_first: bool = False

    @property
    def spends(self) -> list[Spend]:
        """All that was booked, in order."""
        return [booking.spend for booking in self.bookings]

    @property
    def title(self) -> str:
        """The dataset and its total in one line."""
        total = f"epsilon {self.total.epsilon:g}, delta {self.total.delta:g} in all"
        return f"{self.name}: {total}, accounting {self.accounting}"

    def cells(self) -> list[tuple[str, ...]]:
        """The bookings as texts."""
        return [
            (
                str(one.number), one.created, f"{one.spend.epsilon:g}", f"{one.spend.delta:g}",
                "-" if one.written is None else str(one.written["address"]),
            )
            for one in self.bookings
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.title}\n\n{text_grid(_COLUMNS, self.cells(), left=2)}"

    def _repr_html_(self) -> str:
        return html_grid(self.title, _COLUMNS, self.cells())

    def booking_of(self, id: str) -> Booking | None:
        """The booking of a run with this id."""
        return next((booking for booking in self.bookings if booking.id == id), None)

    def delta_with(self, spends: Sequence[Spend], composer: Composer) -> float:
        """The delta at the total epsilon of all that was booked and of these."""
        if composer.accounting not in ((self.accounting,) if self.accounting != AUTO else ("zcdp", "sum")):
            raise InvalidParameter(
                f"the dataset {self.name!r} has the accounting {self.accounting!r}, not {composer.accounting!r}"
            )
        if isinstance(composer, ConcentratedComposer):
            # Both limits hold for all releases together only if they never change.
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
        """Raise `OverBudget`, with what is left, if the total does not allow this spend.

        `spend_at` is for the message: what the same release would spend with another epsilon.
        """
        together = self.delta_with([spend], composer)
        # So that NaN is refused.
        if not together <= self.total.delta:
            reason = f"the total is epsilon {self.total.epsilon!r} and delta {self.total.delta!r}"
            if composer.accounting == "pld":
                reason = f"with it the delta at epsilon {self.total.epsilon!r} would be {together:.4g}"
            raise OverBudget(
                f"the dataset {self.name!r} has no room for epsilon {spend.epsilon!r} and delta {spend.delta!r}: "
                f"{reason}; remaining: {self.remaining_in_words(composer, spend, 'this one', spend_at)}"
            )

    def left(self, composer: Composer) -> dict[str, float]:
        """What is spent and what is left, in the numbers that the accounting has."""
        if composer.accounting == "sum":
            epsilon = decimal_fraction(self.total.epsilon) - _sum(spend.epsilon for spend in self.spends)
            delta = decimal_fraction(self.total.delta) - _sum(spend.delta for spend in self.spends)
            return {"epsilon_left": largest_float(epsilon), "delta_left": largest_float(delta)}
        limits = composer.left(self.spends) if isinstance(composer, ConcentratedComposer) else {}
        return {"delta_spent": max(0.0, self.delta_with([], composer)), **limits}

    def remaining(
        self, composer: Composer, spend: Spend, like: str = "this one", spend_at: SpendAt | None = None
    ) -> Remaining:
        """What remains, in releases like one that spends this; with `spend_at`, the epsilon was tried out."""
        more, left = self.more_that_fit(spend, composer), self.left(composer)
        largest = max(self.largest_epsilon_like(spend, composer, spend_at), spend.epsilon if more else 0.0)
        needed = zcdp_of(spend)[1] if isinstance(composer, ConcentratedComposer) else spend.delta
        delta = left["delta_left"] if "delta_left" in left else self.total.delta - left["delta_spent"]
        return Remaining(more, largest, delta if needed > delta > 0.0 else 0.0, like)

    def remaining_in_words(
        self,
        composer: Composer,
        spend: Spend | None = None,
        like: str = "the last one",
        spend_at: SpendAt | None = None,
    ) -> str:
        """What remains, for people: in releases like this one, or like the last one that is booked."""
        total = self.total
        if not self.bookings and spend is None:
            return repr(Remaining(0, total.epsilon, total.delta, ""))
        if composer.accounting == "pld":
            # To count releases would compose them again and again.
            unspent = max(0.0, total.delta - self.left(composer)["delta_spent"])
            return f"{unspent:.4g} of the delta {total.delta!r} at epsilon {total.epsilon!r}"
        return str(self.remaining(composer, spend or self.spends[-1], like, spend_at))

    def more_that_fit(self, spend: Spend, composer: Composer) -> int:
        """How many more such spends the total allows, counted up to `MOST_COUNTED`.

        *Guarantee*: that many were composed and fit.
        """
        fit, too_many = 0, 1
        while too_many <= MOST_COUNTED and self._fits([spend] * too_many, composer):
            fit, too_many = too_many, 2 * too_many
        too_many = min(too_many, MOST_COUNTED + 1)
        while too_many - fit > 1:
            middle = (fit + too_many) // 2
            fit, too_many = (middle, too_many) if self._fits([spend] * middle, composer) else (fit, middle)
        return fit

    def largest_epsilon_like(
        self, spend: Spend, composer: Composer, spend_at: SpendAt | None = None, times: int = 1
    ) -> float:
        """About the largest epsilon with which a release like this one fits so many times; 0 if there is none.

        *Guarantee*: with `spend_at`, the release was planned with this epsilon, and fits.
        """
        if not isinstance(composer, ConcentratedComposer) or spend.profile is None:
            return self.largest_epsilon(spend.delta, composer)
        best = 0.0
        for _ in range(_TRIES):
            epsilon = composer.largest_epsilon(spend, self.spends, times)
            if spend_at is None:
                return epsilon
            # An estimate from far away can be much too small: then the next one is better.
            if round_down(epsilon) <= 1.05 * best:
                return best
            spend = spend_at(round_down(epsilon), composer)
            if self._fits([spend] * times, composer):
                best = spend.epsilon
        return best

    def largest_epsilon(self, delta: float, composer: Composer) -> float:
        """About the largest epsilon that any one further release with this delta may have; 0 if there is none.

        *Guarantee*: it was composed, as the worst release with this epsilon and delta, and fits.
        """
        fit, too_much = 0.0, self.total.epsilon
        if composer.accounting == "sum":
            too_much = self.left(composer)["epsilon_left"]
        if too_much > 0.0 and self._fits([Spend(too_much, delta)], composer):
            return too_much
        for _ in range(0 if composer.accounting == "sum" else _HALVINGS):
            middle = (fit + too_much) / 2.0
            fit, too_much = (middle, too_much) if self._fits([Spend(middle, delta)], composer) else (fit, middle)
        return fit
