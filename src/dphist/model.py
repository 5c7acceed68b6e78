"""The frozen data that all other modules pass around: noise, Budget, Contract, Proof, Plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Final, Literal, final, get_args

from dphist.aliases import JsonObject
from dphist.display import Listing
from dphist.errors import (
    LARGEST_COUNT,
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    InvalidParameter,
    finite_number,
    flag,
    positive_count,
    positive_number,
    sized_number,
)

# Half the range of a sum, or the norm of a vector, has at most this many steps: so fine that the rounding of a
# user's value is negligible against the noise.
FINEST_REACH: Final = 1 << 20
MOST_COLUMNS: Final = 256
# The certificate of a vector treats this share of its variance as rounding (docs/theory/sums.md).
ROUNDED_SHARE: Final = Fraction(1, 1 << 24)


def check_range(low: Fraction, high: Fraction, columns: int) -> None:
    """Check the bounds of a sum, or of a vector with several columns."""
    if not low < high:
        raise InvalidParameter(f"the bounds of a sum must be LOW < HIGH, not {low} and {high}")
    if not 1 <= columns <= MOST_COLUMNS:
        raise InvalidParameter(f"a vector has 1 to {MOST_COLUMNS} columns, not {columns}")
    if columns > 1 and low != -high:
        raise InvalidParameter(f"the bounds of a vector must be -NORM and NORM, not {low} and {high}")


@dataclass(frozen=True)
class SumNoise:
    """A sum of one value per user, clamped to `low`..`high` and counted in whole steps from the middle.

    Half the range is `reach` steps: the most by which one user moves the sum. `variance` is the noise's variance
    parameter in squared steps. The middle is added once per user, through the noisy count.

    With more than one of `columns` it is a sum of vectors around 0: one user moves it by at most `reach` steps in
    Euclidean norm, and every coordinate has its own noise of that variance.
    """

    low: Fraction
    high: Fraction
    reach: int
    variance: Fraction
    columns: int = 1

    def __post_init__(self) -> None:
        check_range(self.low, self.high, self.columns)
        if self.reach < 1 or self.variance <= 0:
            raise InvalidParameter(
                f"a sum needs reach >= 1 and variance > 0, not {self.reach} and {self.variance}"
            )
        if self.columns > 1 and (self.reach > FINEST_REACH or self.variance * ROUNDED_SHARE < 1):
            raise InvalidParameter(
                f"a vector needs a reach of at most {FINEST_REACH} steps and a variance of at least "
                f"{1 / ROUNDED_SHARE}, not {self.reach} and {self.variance}"
            )

    @property
    def step(self) -> Fraction:
        return (self.high - self.low) / (2 * self.reach)

    @property
    def middle(self) -> Fraction:
        return (self.low + self.high) / 2

    @property
    def sigma(self) -> float:
        """Standard deviation of the sum's own noise, of each coordinate, in units of the values."""
        return math.sqrt(self.variance) * float(self.step)

    def to_dict(self) -> JsonObject:
        return {
            "low": str(self.low),
            "high": str(self.high),
            "sigma": self.sigma,
            "reach_steps": self.reach,
            "variance_steps": str(self.variance),
            **({} if self.columns == 1 else {"columns": self.columns}),
        }


# How a top-k step releases the (k+1)-th largest count, which it subtracts: not at all; with the opposite of the
# shared noise, which then cancels in the counts; or with independent noise, as in the paper.
OffsetRule = Literal["opposite", "independent", "none"]
OFFSET_RULES: Final[tuple[OffsetRule, ...]] = get_args(OffsetRule)

# Below this, sums of discrete draws are too far from discrete Gaussians.
LEAST_VARIANCE: Final = 4
# The Laplace scales that the sampler supports.
LEAST_SCALE: Final = Fraction(1, 16)
LARGEST_SCALE: Final = Fraction(10**8)
# The samplers' largest variance, in squared steps.
LARGEST_VARIANCE: Final = 10**16


def gamma_from(sigma: float, sigma_shared: float) -> float:
    return (sigma / sigma_shared) ** 2 if sigma_shared > 0.0 else math.inf


def _are_exact(fractions: tuple[Fraction, ...], wholes: tuple[int, ...], sums: tuple[SumNoise, ...] = ()) -> bool:
    fractions += tuple(number for one in sums for number in (one.low, one.high, one.variance))
    wholes += tuple(number for one in sums for number in (one.reach, one.columns))
    return all(isinstance(n, int) for n in wholes) and all(isinstance(n, (int, Fraction)) for n in fractions)


class _Family:
    """What all kinds of noise have in common, except where one overrides it."""

    kind: ClassVar[str] = "discrete"
    # Whether all items of a public list are released, and whether items are found in rounds and then measured.
    public: ClassVar[bool] = False
    in_rounds: ClassVar[bool] = False
    # What sums and a top-k step add; only noise on a lattice has them.
    sums: tuple[SumNoise, ...] = ()
    offset: OffsetRule = "none"

    if TYPE_CHECKING:

        @property
        def is_exact(self) -> bool:
            """Whether all numbers are whole or fractions, as they were drawn."""

        @property
        def lattice(self) -> int: ...
        @property
        def sigma(self) -> float: ...
        @property
        def sigma_shared(self) -> float: ...
        @property
        def gamma(self) -> float: ...
        @property
        def tau(self) -> float: ...

    @property
    def steps_of_count(self) -> int:
        """Steps of the noise per unit of an engine's counts."""
        return self.lattice

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater."""
        return 1.0 + self.tau

    @property
    def total_noise(self) -> float:
        """Standard deviation of a released count."""
        return self.sigma

    @property
    def decimals(self) -> int | None:
        """Decimals to which counts are rounded: 0 if the noise has a standard deviation of at least 2.

        Otherwise the fewest with a step of at most half the standard deviation, to which rounding adds about 1 %.
        None if counts are whole numbers without rounding.
        """
        return max(0, math.ceil(-math.log10(self.total_noise / 2.0)))

    @property
    def least_offset(self) -> float:
        """The least noisy count that a top-k step subtracts, except with a probability of at most 1e-15.

        Of draws with the total variance V, Pr[X <= -t] <= e^(-t^2/(2V)), and the count itself is at least 0.
        """
        draws = 2 if self.offset == "opposite" else 1
        return -math.sqrt(2.0 * draws * math.log(1e15)) * self.sigma_shared

    def half_width(self, outside: float, quantile: float) -> float:  # noqa: ARG002
        """Half the width of an interval around a count that the noise leaves with the probability `outside`.

        Rounded up to whole steps. `quantile` is that of the standard normal distribution.
        """
        return float(math.ceil(quantile * self.total_noise * self.lattice) / self.lattice)

    def rows(self, lower_threshold: int) -> list[tuple[str, str]]:
        """What a plan with this noise prints."""
        gamma = "infinite" if math.isinf(self.gamma) else f"{self.gamma:.6g}"
        threshold = f"{self.threshold + (lower_threshold - 1)!r} ({lower_threshold} + tau)"
        return [
            # In full: a plan with a rounded sigma or threshold has not been certified.
            ("noise of each count", f"{self.sigma!r}"),
            ("shared noise", f"{self.sigma_shared!r} (gamma {gamma})"),
            ("total noise", f"{self.total_noise:.6g}"),
            ("threshold", "none" if math.isinf(self.threshold) else threshold),
        ]

    def to_dict(self) -> JsonObject:
        """The keys of `dphist plan --json`."""
        return {
            "noise": self.kind,
            "sigma": self.sigma,
            "sigma_shared": self.sigma_shared,
            "gamma": None if math.isinf(self.gamma) else self.gamma,
            "total_noise": self.total_noise,
            "tau": self.tau,
            "threshold": self.threshold,
        }


@dataclass(frozen=True)
class Noise(_Family):
    """Idealised normal noise, as the paper analyses it. Releases draw discrete noise.

    Args:
        sigma: Standard deviation of the noise of each count.
        sigma_shared: Standard deviation of the noise that all counts share; 0 for none.
        tau: The threshold minus one.
        extra: Squared move of all sums when one count changes, in units of the count's own squared move.
    """

    kind: ClassVar[str] = "continuous"
    steps_of_count: ClassVar[int] = 1
    is_exact: ClassVar[bool] = False
    sigma: float
    sigma_shared: float
    tau: float
    extra: float = 0.0

    def __post_init__(self) -> None:
        if not finite_number("extra", self.extra) >= 0.0:
            raise InvalidParameter(f"extra must be at least 0, not {self.extra!r}")
        object.__setattr__(self, "sigma", sized_number("sigma", self.sigma))
        shared = finite_number("<--sigma-shared>", self.sigma_shared)
        if shared < 0.0:
            raise InvalidParameter(f"<--sigma-shared> must be at least 0, not {self.sigma_shared!r}")
        object.__setattr__(self, "sigma_shared", sized_number("<--sigma-shared>", shared) if shared > 0.0 else 0.0)
        object.__setattr__(self, "tau", sized_number("tau", self.tau))

    @property
    def gamma(self) -> float:
        """sigma^2/sigma_shared^2; infinite without shared noise."""
        return gamma_from(self.sigma, self.sigma_shared)

    @property
    def squared_sigma(self) -> Fraction:
        return Fraction(self.sigma) ** 2

    @property
    def total_noise(self) -> float:
        """Standard deviation of a released count."""
        return math.hypot(self.sigma, self.sigma_shared)

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater. Rounded up if 1 + tau is not a double."""
        nearest = 1.0 + self.tau
        return nearest if nearest - 1.0 >= self.tau else math.nextafter(nearest, math.inf)

    @property
    def mechanism(self) -> str:
        """The kind: "csh" with shared noise, "gshm" without."""
        return "csh" if self.sigma_shared > 0.0 else "gshm"

    def half_width(self, outside: float, quantile: float) -> float:  # noqa: ARG002
        return quantile * self.total_noise


@dataclass(frozen=True)
class LatticeNoise(_Family):
    """Discrete noise, drawn exactly: whole steps of 1/lattice, rational variances, tau in steps.

    A variance parameter V means Pr[x] proportional to exp(-x^2/(2V)) for x steps. `offset` is for top-k; the
    offset's noise has the variance of the shared noise. Each of the `sums` has its own step.
    """

    lattice: int
    variance: Fraction
    variance_shared: Fraction
    tau_steps: int
    offset: OffsetRule = "none"
    sums: tuple[SumNoise, ...] = ()

    def __post_init__(self) -> None:
        if self.lattice < 2 or self.lattice % 2 == 1:
            raise InvalidParameter(f"lattice must be an even number of steps, not {self.lattice!r}")
        if min(self.variance, self.variance_shared or LEAST_VARIANCE) < LEAST_VARIANCE:
            raise InvalidParameter(
                f"variances must be at least {LEAST_VARIANCE} squared steps (0 for no shared noise), "
                f"not {self.variance} and {self.variance_shared}"
            )
        if self.tau_steps < 1:
            raise InvalidParameter(f"tau_steps must be at least 1, not {self.tau_steps}")
        if self.variance_shared > 0 and (self.variance / self.variance_shared).denominator != 1:
            raise InvalidParameter(
                "variance must be a whole multiple of variance_shared, "
                f"not {self.variance} and {self.variance_shared}"
            )
        if self.offset not in OFFSET_RULES or (self.offset != "none" and self.variance_shared == 0):
            raise InvalidParameter(
                f"offset must be one of {', '.join(OFFSET_RULES)}, and needs shared noise, not {self.offset!r}"
            )

    @property
    def is_exact(self) -> bool:
        return _are_exact((self.variance, self.variance_shared), (self.lattice, self.tau_steps), self.sums)

    @property
    def gamma_whole(self) -> int | None:
        """variance/variance_shared; None without shared noise."""
        return None if self.variance_shared == 0 else (self.variance / self.variance_shared).numerator

    @property
    def sigma(self) -> float:
        return math.sqrt(self.variance) / self.lattice

    @property
    def squared_sigma(self) -> Fraction:
        return self.variance / self.lattice**2

    @property
    def sigma_shared(self) -> float:
        return math.sqrt(self.variance_shared) / self.lattice

    @property
    def tau(self) -> float:
        return self.tau_steps / self.lattice

    @property
    def gamma(self) -> float:
        return math.inf if self.gamma_whole is None else float(self.gamma_whole)

    @property
    def total_noise(self) -> float:
        # With the opposite offset the shared noise cancels, and the offset's noise, as large, replaces it.
        shared = self.sigma_shared
        return math.hypot(self.sigma, shared, shared if self.offset == "independent" else 0.0)

    @property
    def mechanism(self) -> str:
        if self.offset != "none":
            return "top-k"
        return "csh" if self.variance_shared > 0 else "gshm"

    @property
    def fits_one_item(self) -> bool:
        """Whether it may be the noise for users with one item, in rounds."""
        return self.mechanism == "gshm" and not self.sums and self.variance >= 2 * ROUNDING

    @property
    def extra(self) -> Fraction:
        """The squared move of all sums when one count changes, in units of the count's own squared move.

        A vector counts once, however many columns it has: its squared move is that of its norm.
        """
        moves = sum((Fraction(noise.reach**2) / noise.variance for noise in self.sums), Fraction(0))
        return moves * self.variance / self.lattice**2

    def continuous(self) -> Noise:
        """Normal noise with the same standard deviations and threshold."""
        return Noise(self.sigma, self.sigma_shared, self.tau, float(self.extra))

    def to_dict(self) -> JsonObject:
        return {
            **super().to_dict(),
            "lattice": self.lattice,
            "variance_steps": str(self.variance),
            "variance_shared_steps": str(self.variance_shared),
            "tau_steps": self.tau_steps,
            **({} if self.offset == "none" else {"offset": self.offset}),
            **({"sums": [noise.to_dict() for noise in self.sums]} if self.sums else {}),
        }


@final
@dataclass(frozen=True)
class PublicNoise(LatticeNoise):
    """Discrete noise for a public list of items: all items are released, without a threshold."""

    public: ClassVar[bool] = True
    tau_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau_steps != 1 or self.offset != "none":
            raise InvalidParameter("a public list of items has no limit and no offset")

    @property
    def mechanism(self) -> str:
        return "known-domain"

    @property
    def tau(self) -> float:
        return -math.inf

    def continuous(self) -> Noise:
        """The noise alone; its tau is a placeholder."""
        return Noise(self.sigma, self.sigma_shared, 1.0, float(self.extra))

    def to_dict(self) -> JsonObject:
        return {**super().to_dict(), "tau": None, "threshold": None, "tau_steps": None}


@final
@dataclass(frozen=True)
class LaplaceNoise(_Family):
    """Discrete Laplace noise, Pr[x] proportional to exp(-|x|/scale), with tau = limit."""

    mechanism: ClassVar[str] = "laplace"
    decimals: ClassVar[None] = None
    lattice: ClassVar[int] = 1
    sigma_shared: ClassVar[float] = 0.0
    gamma: ClassVar[float] = math.inf
    fits_one_item: ClassVar[bool] = True
    scale: Fraction
    tau_steps: int

    def __post_init__(self) -> None:
        if self.scale <= 0 or self.tau_steps < 0:
            raise InvalidParameter(
                f"scale must be above 0 and tau_steps at least 0, not {self.scale} and {self.tau_steps}"
            )

    @property
    def is_exact(self) -> bool:
        return _are_exact((self.scale,), (self.tau_steps,))

    @property
    def sigma(self) -> float:
        """sqrt(2 q)/(1 - q) with q = e^(-1/scale)."""
        step = 1.0 / float(self.scale)
        return math.sqrt(2.0 * math.exp(-step)) / -math.expm1(-step)

    @property
    def tau(self) -> float:
        return float(self.tau_steps)

    def to_dict(self) -> JsonObject:
        return {**super().to_dict(), "scale": str(self.scale), "tau_steps": self.tau_steps}

    def half_width(self, outside: float, quantile: float) -> float:  # noqa: ARG002
        # Pr[|X| > t] = 2 q^(t+1)/(1+q)
        step = 1.0 / float(self.scale)
        tail = math.log(outside * (1.0 + math.exp(-step)) / 2.0) / -step - 1.0
        return float(max(0, math.ceil(tail - 1e-9)))


# Rounds: items are discovered in several rounds with pooled evidence, and measured in a last one.

# The certificate treats this part of the variance of every draw, in squared steps, as rounding of normal noise
# (docs/theory/rounds.md). Every draw has at least twice as much.
ROUNDING: Final = 16
# Certificates may be forged: more than this is in no plan, and would take long to certify.
MOST_ROUNDS: Final = 16
MOST_ITEMS_IN_ROUNDS: Final = 1024
_LARGEST_PART: Final = 10**4
# On a coarser lattice, users with many items would add nothing to them.
_COARSEST_ROUNDS: Final = 64
_LARGEST_WHOLE: Final = 1 << 53


@final
@dataclass(frozen=True)
class RoundsNoise(_Family):
    """Discrete noise of rounds of discovery, of the sizes and of the measurement, in whole steps of 1/lattice.

    A draw with k parts of the budget has the variance parameter variance/k. A user has at most `most_items` items.
    With n of them the weight of each is isqrt(L^2 // n) in the first round, L = lattice; later it is at most L and
    at most isqrt(growth^2 L^2 // n). An item is found in round r if the sum over all rounds so far of part times
    noisy weight is above `thresholds_steps[r]` times the sum of these parts, and hopeless if it is below `cuts[r]`
    times it. A measurement with the limit M has the noise of `measure_noise`; its `sums` have M times their
    variance.

    `alone` is the noise for users with one item, if they are a group of their own. A public list of `listed` items
    has no rounds. With `shared` (own variance over shared variance) its measurement may share a draw.
    """

    mechanism: ClassVar[str] = "rounds"
    in_rounds: ClassVar[bool] = True
    # With weights, engines count in steps already.
    steps_of_count: ClassVar[int] = 1
    sigma_shared: ClassVar[float] = 0.0
    lattice: int
    variance: Fraction
    parts: tuple[int, ...]
    thresholds_steps: tuple[int, ...]
    cuts: tuple[int, ...]
    sizes: int
    measure: int
    most_items: int
    growth: int
    alone: LaplaceNoise | LatticeNoise | None = None
    shared: int = 0
    sums: tuple[SumNoise, ...] = ()
    listed: int = 0

    def __post_init__(self) -> None:
        self._check_numbers()
        rounds = len(self.parts)
        if (rounds == 0) != (self.listed > 0) or rounds > MOST_ROUNDS:
            raise InvalidParameter(
                f"there must be 1 to {MOST_ROUNDS} rounds, and none with a public list of items"
            )
        if len(self.thresholds_steps) != rounds or len(self.cuts) != max(0, rounds - 1):
            raise InvalidParameter("every round needs a threshold, and every round but the last one a cut")
        if any(cut > threshold for cut, threshold in zip(self.cuts, self.thresholds_steps, strict=False)):
            raise InvalidParameter(
                f"no cut may exceed the threshold of its round, not {self.cuts} and {self.thresholds_steps}"
            )
        self._check_alone()
        if any(part.reach % self.lattice for part in self.sums):
            raise InvalidParameter(f"the reach of a sum must be a multiple of {self.lattice} steps")
        first, last = self.measure_noise(1), self.measure_noise(self.most_items)
        drawn = [self.variance / part for part in (*self.parts, self.sizes, self.measure)]
        drawn += [part.variance * limit for part in self.sums for limit in (1, self.most_items)]
        drawn += [variance for variance in (*first, *last) if variance > 0]
        if self.shared:
            # The least that the certificate assumes of a shared draw, at any limit: certificates may be forged.
            whole = self.shared + self.listed
            drawn.append(self.variance / self.measure * Fraction(whole - 1, whole) / self.shared)
        least = 2 * ROUNDING
        if min(drawn) < least or max(drawn) > LARGEST_VARIANCE:
            raise InvalidParameter(
                f"all variances must be between {least} and {LARGEST_VARIANCE:g} squared steps, "
                f"not from {float(min(drawn)):g} to {float(max(drawn)):g}"
            )

    def _check_numbers(self) -> None:
        wholes: dict[str, tuple[tuple[int, ...], int, int]] = {
            "lattice": ((self.lattice,), _COARSEST_ROUNDS, 1 << 13),
            "parts": ((*self.parts, self.sizes, self.measure), 1, _LARGEST_PART),
            "thresholds_steps": (self.thresholds_steps, 1, _LARGEST_WHOLE),
            "cuts": (self.cuts, 0, _LARGEST_WHOLE),
            "most_items": ((self.most_items,), 1, MOST_ITEMS_IN_ROUNDS),
            "growth": ((self.growth,), 1, _LARGEST_PART),
            "shared": ((self.shared,), 0, 10**6 if self.listed else 0),
            "listed": ((self.listed,), 0, LARGEST_COUNT),
        }
        for name, (numbers, least, most) in wholes.items():
            if any(type(number) is not int or not least <= number <= most for number in numbers):
                raise InvalidParameter(f"{name} must be whole, from {least} to {most}, not {numbers}")
        if not isinstance(self.variance, Fraction) or self.variance <= 0:
            raise InvalidParameter(f"variance must be a fraction above 0, not {self.variance!r}")
        if self.listed and self.most_items > self.listed:
            raise InvalidParameter(f"a list of {self.listed} items allows no {self.most_items} items per user")

    def _check_alone(self) -> None:
        if self.alone is None:
            return
        if self.listed or self.sums:
            raise InvalidParameter("users with one item are no group of their own with a public list or with sums")
        if not self.alone.fits_one_item:
            raise InvalidParameter(
                "the noise for users with one item must have no shared draw, no offset and no sums, and a "
                f"variance of at least {2 * ROUNDING} squared steps"
            )

    @property
    def is_exact(self) -> bool:
        # The whole numbers were checked before.
        return _are_exact((self.variance,), (), self.sums) and (self.alone is None or self.alone.is_exact)

    @property
    def rounds(self) -> int:
        return len(self.parts)

    @property
    def sigma(self) -> float:
        """Standard deviation of a measurement with the limit 1, in users."""
        return math.sqrt(self.variance / self.measure) / self.lattice

    @property
    def sigma_sizes(self) -> float:
        """Standard deviation of a number of users of some size."""
        return math.sqrt(self.variance / self.sizes) / self.lattice

    @property
    def gamma(self) -> float:
        return float(self.shared) if self.shared else math.inf

    @property
    def threshold(self) -> float:
        """The limit of the last round, in users; there is none for a public list."""
        return self.thresholds_steps[-1] / self.lattice if self.thresholds_steps else -math.inf

    @property
    def tau(self) -> float:
        return self.threshold - 1.0

    @property
    def contract(self) -> Contract:
        return Contract(self.listed or None, self.most_items)

    def pooled_parts(self, after: int) -> int:
        """The parts of all rounds up to number `after`, which starts at 0."""
        return sum(self.parts[: after + 1])

    def deviation(self, after: int) -> float:
        """Standard deviation of the pooled evidence after round `after`, in users."""
        return math.sqrt(self.variance / self.pooled_parts(after)) / self.lattice

    def first_weight(self, items: int) -> int:
        """The steps that a user with `items` items adds to each in the first round."""
        return math.isqrt(self.lattice**2 // items)

    def largest_later_weight(self, items: int) -> int:
        """The most that a user with `items` items in the first round adds to one item in a later round."""
        return min(self.lattice, math.isqrt((self.growth * self.lattice) ** 2 // items))

    def measure_noise(self, limit: int) -> tuple[Fraction, Fraction]:
        """The variances of a measurement with this limit M: of each item, and of the shared draw (0 for none).

            own = M W/k;    with a shared draw own = (m (1 - m/K) + K/(4 L^2)) W/k and shared = own/gamma

        W/k is the variance at M = 1, K = gamma + the number of listed items, and m the lesser of M and K/2. A draw
        is shared where it lowers the variance of an item in all.
        """
        one = self.variance / self.measure
        if self.shared:
            whole = self.shared + self.listed
            moved = min(Fraction(limit), Fraction(whole, 2))
            times = moved * (1 - moved / whole) + Fraction(whole, 4 * self.lattice**2)
            if times * (self.shared + 1) < limit * self.shared:
                return times * one, times * one / self.shared
        return limit * one, Fraction(0)

    def rows(self, _lower_threshold: int) -> list[tuple[str, str]]:
        thresholds = ", ".join(f"{steps / self.lattice:.4g}" for steps in self.thresholds_steps)
        return [
            *([("threshold of each round", f"{thresholds} users")] if self.thresholds_steps else []),
            *(
                [("users with one item", f"{self.alone.mechanism} noise, threshold {self.alone.threshold:.4g}")]
                if self.alone
                else []
            ),
            # In full: a plan with a rounded sigma has not been certified.
            ("noise of the measurement", f"{self.sigma!r}, times the square root of its limit"),
            ("noise of each size", f"{self.sigma_sizes:.6g}"),
        ]

    def to_dict(self) -> JsonObject:
        alone = None if self.alone is None else {"mechanism": self.alone.mechanism, **self.alone.to_dict()}
        return {
            **super().to_dict(),
            "tau": None if self.listed else self.tau,
            "threshold": None if self.listed else self.threshold,
            "lattice": self.lattice,
            "variance_steps": str(self.variance),
            "parts_of_rounds": list(self.parts),
            "part_of_sizes": self.sizes,
            "part_of_measurement": self.measure,
            "thresholds_steps": list(self.thresholds_steps),
            "cuts_steps": list(self.cuts),
            "growth": self.growth,
            "alone": alone,
            **({"shared": self.shared} if self.shared else {}),
            **({"sums": [noise.to_dict() for noise in self.sums]} if self.sums else {}),
        }


@dataclass(frozen=True)
class Budget:
    """The guarantee: (epsilon, delta)-differential privacy for adding or removing one user.

    Args:
        epsilon: Privacy loss ε, above 0 and at most 800.
        delta: Probability that the ε guarantee may fail, above 0 and below 1.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon = positive_number("epsilon", self.epsilon)
        delta = positive_number("delta", self.delta)
        if epsilon > LARGEST_EPSILON:
            raise InvalidParameter(f"epsilon must be at most {LARGEST_EPSILON:g}, not {self.epsilon!r}")
        if delta >= 1.0:
            raise InvalidParameter(f"delta must be below 1, not {self.delta!r}")
        if delta < SMALLEST_DELTA:
            raise InvalidParameter(f"delta must be at least {SMALLEST_DELTA:g}, not {self.delta!r}")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)


@dataclass(frozen=True)
class Contract:
    """Public bounds that hold for every dataset. At least one is given.

    Args:
        max_nonzero: The most non-zero counts of any dataset.
        max_items_per_user: The most counts that one user contributes to.
    """

    max_nonzero: int | None = None
    max_items_per_user: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_nonzero", "max_items_per_user"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, positive_count(f"<{flag(name)}>", value))
        if self.max_nonzero is None and self.max_items_per_user is None:
            raise InvalidParameter(
                "<--max-nonzero> or <--max-items-per-user> must be given: otherwise one user could "
                "change every count"
            )
        if self.items > self.nonzero:
            raise InvalidParameter(
                f"<--max-items-per-user> ({self.items}) must not exceed <--max-nonzero> ({self.max_nonzero})"
            )

    @property
    def items(self) -> int:
        """The most items of one user: the m of the analysis."""
        bound = self.max_nonzero if self.max_items_per_user is None else self.max_items_per_user
        assert bound is not None
        return bound

    @property
    def user_limit(self) -> int | None:
        """The most items of one user; None if one user may have as many as there are non-zero counts."""
        return self.items if self.items < self.nonzero else None

    @property
    def nonzero(self) -> float:
        """The most non-zero counts, infinite if unbounded: the k of the analysis."""
        return math.inf if self.max_nonzero is None else float(self.max_nonzero)


Direction = Literal["add", "remove", "either"]


@dataclass(frozen=True)
class NeighbourCase:
    """A class of neighbouring datasets, which differ by one user. The proof names the worst one.

    Attributes:
        shared: j, the counts that are above zero in both datasets; infinite if unbounded.
        new: r, the counts that are above zero only with the user.
        changed: s, those of the shared counts that the user changes by one.
        direction: "add" or "remove" the user, or "either".
    """

    shared: float
    new: int
    changed: int
    direction: Direction

    def to_dict(self) -> JsonObject:
        """The keys j, r, s and direction; j is None if it is unbounded."""
        shared = None if math.isinf(self.shared) else int(self.shared)
        return {"j": shared, "r": self.new, "s": self.changed, "direction": self.direction}

    def __str__(self) -> str:
        shared = "any number of" if math.isinf(self.shared) else f"{int(self.shared):,}"
        move = {"add": "adding", "remove": "removing", "either": "adding or removing"}[self.direction]
        return (
            f"{move} a user who has {self.new:,} new counts and changes {self.changed:,} of {shared} shared counts"
        )


@dataclass(frozen=True)
class Proof(Listing):
    """A computed proof that a plan is (epsilon, delta)-differentially private: `delta` is a rigorous upper bound.

    `delta_lower` is the delta of some neighbours, accurate to about 1e-9 but not rounded down; 0 if none was
    computed. For continuous noise it is the largest of three: a user with only new counts, one without, and
    `binding_case`. For noise on a lattice it is a user with only new counts, and may be far below the true delta;
    there `binding_case` is the worse of the two pure classes, and a mixture may be worse than both.

    Attributes:
        epsilon: The ε at which δ was computed.
        delta: Rigorous upper bound of δ.
        analysis: The analysis that proved it.
        binding_case: The worst neighbours, see `NeighbourCase`.
        delta_lower: The δ of some neighbours, as described above.
    """

    title: ClassVar[str] = "Proof"
    epsilon: float
    delta: float
    analysis: str
    binding_case: NeighbourCase
    delta_lower: float

    def to_dict(self) -> JsonObject:
        """The object that `dphist plan --json` prints under `proof`."""
        return {**vars(self), "binding_case": self.binding_case.to_dict()}

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("epsilon", f"{self.epsilon:g}"),
            ("delta, at most", f"{self.delta:.10g}"),
            ("delta, at least", f"{self.delta_lower:.10g}"),
            ("analysis", self.analysis),
            ("worst neighbours", str(self.binding_case)),
        ]


DrawnNoise = LatticeNoise | LaplaceNoise | RoundsNoise
AnyNoise = Noise | DrawnNoise
AnalysisName = Literal["exact", "gshm-add-the-deltas", "gshm-exact", "csh-add-the-deltas", "csh-tighter"]
Objective = Literal["threshold", "noise"]
ANALYSES: Final[tuple[AnalysisName, ...]] = get_args(AnalysisName)


@dataclass(frozen=True)
class Plan(Listing):
    """Everything about a release that affects privacy, fixed before any data is read.

    Counts below `lower_threshold`, which does not depend on the data, are removed before noise is added. The noise
    is for counts that start at 1, so `lower_threshold` - 1 is subtracted first and added back afterwards.

    Attributes:
        budget: The ε and δ that the plan is certified for.
        contract: The public bounds that it relies on.
        noise: The exact numbers of its noise.
        analysis: The analysis that determined it.
        proof: The computed δ, at most that of the budget.
        notes: What is unusual about the plan, as sentences.
        lower_threshold: Counts below it are removed before noise is added.
    """

    title: ClassVar[str] = "Plan"
    budget: Budget
    contract: Contract
    noise: AnyNoise
    analysis: AnalysisName
    proof: Proof
    notes: tuple[str, ...] = ()
    lower_threshold: int = 1

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise of each count."""
        return self.noise.sigma

    @property
    def sigma_shared(self) -> float:
        """Standard deviation of the noise added to all counts alike; 0 if there is none."""
        return self.noise.sigma_shared

    @property
    def gamma(self) -> float:
        """sigma^2/sigma_shared^2; infinite without shared noise."""
        return self.noise.gamma

    @property
    def tau(self) -> float:
        """The threshold minus the least count that gets noise, which is 1 unless there is a lower threshold."""
        return self.noise.tau

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater, after subtracting the offset of a top-k step."""
        return self.noise.threshold + (self.lower_threshold - 1)

    @property
    def total_noise(self) -> float:
        """Standard deviation of a released count."""
        return self.noise.total_noise

    @property
    def mechanism(self) -> str:
        """`gshm`, `csh`, `top-k`, `known-domain`, `laplace` or `rounds`."""
        return self.noise.mechanism

    @property
    def steps_of_count(self) -> int:
        return self.noise.steps_of_count

    @property
    def rounds(self) -> RoundsNoise | None:
        """The noise, if items are found in rounds."""
        return self.noise if isinstance(self.noise, RoundsNoise) else None

    @property
    def releases_offset(self) -> bool:
        """Whether the count that a top-k step subtracts is released, with noise."""
        return self.mechanism == "top-k"

    @property
    def sums(self) -> tuple[SumNoise, ...]:
        """The noise of each sum and vector."""
        return self.noise.sums

    @property
    def summed(self) -> tuple[SumNoise, ...]:
        """The noise of each summed column: a sum has one, a vector several."""
        return tuple(noise for noise in self.sums for _ in range(noise.columns))

    def claims(self) -> JsonObject:
        """What a certificate states of the plan: its exact numbers, and those that follow from them."""
        return {
            "mechanism": self.mechanism,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "delta_certified": self.proof.delta,
            "max_nonzero": self.contract.max_nonzero,
            "max_items_per_user": self.contract.items,
            **self.noise.to_dict(),
            **({} if self.lower_threshold == 1 else {"lower_threshold": self.lower_threshold}),
            "threshold": None if math.isinf(self.threshold) else self.threshold,
        }

    def to_dict(self) -> JsonObject:
        """The object that `dphist plan --json` prints; an infinite gamma is None."""
        return {
            "mechanism": self.mechanism,
            "analysis": self.analysis,
            **self.claims(),
            "binding_case": self.proof.binding_case.to_dict(),
            "proof": self.proof.to_dict(),
            "notes": list(self.notes),
        }

    def rows(self) -> list[tuple[str, str]]:
        nonzero = "no bound" if self.contract.max_nonzero is None else f"{self.contract.max_nonzero:,}"
        public = math.isinf(self.threshold)
        chosen = f"{self.mechanism} with {self.noise.kind} noise, chosen by the analysis '{self.analysis}'"
        return [
            ("mechanism", chosen),
            ("budget", f"epsilon {self.budget.epsilon:g}, delta {self.budget.delta:g}"),
            ("items in the public list" if public else "non-zero counts at most", nonzero),
            ("items per user at most", f"{self.contract.items:,}"),
            *self.noise.rows(self.lower_threshold),
            *(
                (
                    f"sum of values from {float(noise.low):g} to {float(noise.high):g}",
                    f"noise {noise.sigma:.6g}, plus {float(noise.middle):g} times the noise of the count",
                )
                if noise.columns == 1
                else (
                    f"vector of {noise.columns} columns, norm at most {float(noise.high):g}",
                    f"noise {noise.sigma:.6g} of each column",
                )
                for noise in self.sums
            ),
            ("certified delta", f"{self.proof.delta:.6g}"),
            ("worst neighbours", str(self.proof.binding_case)),
        ]
