"""The parameters of noise: normal noise, noise on a lattice, public lists, Laplace, and sums beside the counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, get_args

from dphist.errors import InvalidParameter, finite_number, sized_number

# Sums beside the counts: their bounds, and the noise they get.


@dataclass(frozen=True)
class SumNoise:
    """A sum of values from `low` to `high`, one of each user, in whole steps around their middle.

    Half the range is `reach` steps, so that one user moves the sum by at most as many. The noise has the variance
    parameter `variance`, in squared steps. To the sum around the middle, the middle is added once for each user:
    the noisy count in place of the true one.
    """

    low: Fraction
    high: Fraction
    reach: int
    variance: Fraction

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InvalidParameter(f"the bounds of a sum must be LOW < HIGH, not {self.low} and {self.high}")
        if self.reach < 1 or self.variance <= 0:
            raise InvalidParameter(
                f"a sum needs a reach of at least one step and noise, not {self.reach} and {self.variance}"
            )

    @property
    def step(self) -> Fraction:
        """What a step is worth."""
        return (self.high - self.low) / (2 * self.reach)

    @property
    def middle(self) -> Fraction:
        """The value that a user is taken to have but for the sum's own steps."""
        return (self.low + self.high) / 2

    @property
    def sigma(self) -> float:
        """Standard deviation parameter of the sum's own noise, as a value."""
        return math.sqrt(self.variance) * float(self.step)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, exact."""
        return {
            "low": str(self.low),
            "high": str(self.high),
            "sigma": self.sigma,
            "reach_steps": self.reach,
            "variance_steps": str(self.variance),
        }


# How the (k+1)-th largest count, which a top-k step subtracts, is released: not at all; with the opposite of the
# shared noise, which then cancels in the counts; or with noise of its own, as the paper has it.
OffsetRule = Literal["none", "opposite", "independent"]
OFFSET_RULES: Final[tuple[OffsetRule, ...]] = get_args(OffsetRule)

# Below, sums of discrete draws are too far from discrete Gaussians to be worth an analysis.
LEAST_VARIANCE: Final = 4
# Laplace noise can be drawn from here to there.
LEAST_SCALE: Final = Fraction(1, 16)
LARGEST_SCALE: Final = Fraction(10**8)


def gamma_from(sigma: float, sigma_shared: float) -> float:
    """Gamma = sigma^2/sigma_shared^2, infinite without shared noise."""
    return (sigma / sigma_shared) ** 2 if sigma_shared > 0.0 else math.inf


@dataclass(frozen=True)
class Noise:
    """The parameters of the family: what is added to each count, to all counts together, and the cut.

    `extra` is for sums beside the counts: how far they move with a changed count, squared and in units of the
    count's own move.
    """

    sigma: float
    sigma_shared: float
    tau: float
    extra: float = 0.0

    def __post_init__(self) -> None:
        if not finite_number("extra", self.extra) >= 0.0:
            raise InvalidParameter(f"extra must not be negative, not {self.extra!r}")
        object.__setattr__(self, "sigma", sized_number("sigma", self.sigma))
        shared = finite_number("sigma_shared", self.sigma_shared)
        if shared < 0.0:
            raise InvalidParameter(f"sigma_shared must not be negative, not {self.sigma_shared!r}")
        object.__setattr__(self, "sigma_shared", sized_number("sigma_shared", shared) if shared > 0.0 else 0.0)
        object.__setattr__(self, "tau", sized_number("tau", self.tau))

    @property
    def gamma(self) -> float:
        """sigma^2/sigma_shared^2, infinite without shared noise."""
        return gamma_from(self.sigma, self.sigma_shared)

    @property
    def total_noise(self) -> float:
        """Standard deviation of a released count."""
        return math.hypot(self.sigma, self.sigma_shared)

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater; rounded up where 1 + tau is no double."""
        nearest = 1.0 + self.tau
        return nearest if nearest - 1.0 >= self.tau else math.nextafter(nearest, math.inf)

    @property
    def mechanism(self) -> str:
        """`gshm` without shared noise, `csh` with it."""
        return "csh" if self.sigma_shared > 0.0 else "gshm"

    @property
    def kind(self) -> str:
        """`continuous`: idealised, for no computer draws a real number."""
        return "continuous"

    def to_dict(self) -> dict[str, Any]:
        """The numbers by the names of `dphist plan --json`; an infinite gamma is None."""
        return family_dict(self)


@dataclass(frozen=True)
class LatticeNoise:
    """Discrete noise: whole steps of 1/lattice, with rational variances and a limit in steps.

    The variance parameters V mean Pr[x] proportional to exp(-x^2/(2V)) for x steps. An `offset` is for top-k: its
    own noise has the variance of the shared one. `sums` are beside the counts, each with steps of its own.
    """

    lattice: int
    variance: Fraction
    variance_shared: Fraction
    limit: int
    offset: OffsetRule = "none"
    sums: tuple[SumNoise, ...] = ()

    def __post_init__(self) -> None:
        if self.lattice < 2 or self.lattice % 2 == 1:
            raise InvalidParameter(f"lattice must be an even number of steps, not {self.lattice!r}")
        if self.variance < LEAST_VARIANCE or (0 < self.variance_shared < LEAST_VARIANCE):
            raise InvalidParameter(
                f"variances must be at least {LEAST_VARIANCE} squared steps, "
                f"not {self.variance} and {self.variance_shared}"
            )
        if self.variance_shared < 0 or self.limit < 1:
            raise InvalidParameter(
                "variance_shared must not be negative and limit at least 1, "
                f"not {self.variance_shared} and {self.limit}"
            )
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
    def gamma_whole(self) -> int | None:
        """variance/variance_shared, a whole number by construction; None without shared noise."""
        return None if self.variance_shared == 0 else (self.variance / self.variance_shared).numerator

    @property
    def sigma(self) -> float:
        """Standard deviation parameter of each draw, in counts."""
        return math.sqrt(self.variance) / self.lattice

    @property
    def sigma_shared(self) -> float:
        """Standard deviation parameter of the shared draw, in counts."""
        return math.sqrt(self.variance_shared) / self.lattice

    @property
    def tau(self) -> float:
        """Threshold less one, a whole number of steps."""
        return self.limit / self.lattice

    @property
    def gamma(self) -> float:
        """variance/variance_shared, infinite without shared noise."""
        whole = self.gamma_whole
        return math.inf if whole is None else float(whole)

    @property
    def total_noise(self) -> float:
        """Standard deviation of a released count, as for normal noise of the same parameters.

        With the opposite offset the shared noise cancels, and the offset's own comes in its place.
        """
        shared = self.sigma_shared
        return math.hypot(self.sigma, shared, shared if self.offset == "independent" else 0.0)

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater."""
        return 1.0 + self.tau

    @property
    def mechanism(self) -> str:
        """`gshm` without shared noise, `csh` with it, `top-k` with an offset as well."""
        if self.offset != "none":
            return "top-k"
        return "csh" if self.variance_shared > 0 else "gshm"

    @property
    def kind(self) -> str:
        """`discrete`: whole steps, which can be drawn exactly."""
        return "discrete"

    @property
    def extra(self) -> Fraction:
        """How far all sums move with one changed count, squared and in units of the count's own move."""
        moves = sum((Fraction(one.reach**2) / one.variance for one in self.sums), Fraction(0))
        return moves * self.variance / self.lattice**2

    def continuous(self) -> Noise:
        """The plan with normal noise of the same deviations."""
        return Noise(self.sigma, self.sigma_shared, self.tau, float(self.extra))

    def to_dict(self) -> dict[str, Any]:
        """The same names as for normal noise, and beside them the exact numbers that are drawn."""
        return {
            **family_dict(self),
            "lattice": self.lattice,
            "variance_steps": str(self.variance),
            "variance_shared_steps": str(self.variance_shared),
            "limit_steps": self.limit,
            **({} if self.offset == "none" else {"offset": self.offset}),
            **({"sums": [one.to_dict() for one in self.sums]} if self.sums else {}),
        }


@dataclass(frozen=True)
class PublicNoise(LatticeNoise):
    """Discrete noise for a public list of items: all of them are released, and there is no threshold."""

    limit: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit != 1 or self.offset != "none":
            raise InvalidParameter("a public list of items has no limit and no offset")

    @property
    def mechanism(self) -> str:
        """`known-domain`."""
        return "known-domain"

    @property
    def tau(self) -> float:
        """Every count passes."""
        return -math.inf

    def continuous(self) -> Noise:
        """The noise alone; the threshold of a plan with normal noise must be something."""
        return Noise(self.sigma, self.sigma_shared, 1.0, float(self.extra))

    def to_dict(self) -> dict[str, Any]:
        """As for unknown items, without a threshold."""
        return {**super().to_dict(), "tau": None, "threshold": None, "limit_steps": None}


@dataclass(frozen=True)
class LaplaceNoise:
    """Whole-numbered Laplace noise: Pr[x] proportional to exp(-|x|/scale), and a limit above one."""

    scale: Fraction
    limit: int

    def __post_init__(self) -> None:
        if self.scale <= 0 or self.limit < 0:
            raise InvalidParameter(
                f"scale must be positive and limit not negative, not {self.scale} and {self.limit}"
            )

    @property
    def lattice(self) -> int:
        """Whole counts."""
        return 1

    @property
    def sigma(self) -> float:
        """Standard deviation: the variance is 2 q/(1-q)^2 with q = e^(-1/scale)."""
        step = 1.0 / float(self.scale)
        return math.sqrt(2.0 * math.exp(-step)) / -math.expm1(-step)

    @property
    def sigma_shared(self) -> float:
        """Nothing is shared."""
        return 0.0

    @property
    def gamma(self) -> float:
        """Nothing is shared."""
        return math.inf

    @property
    def tau(self) -> float:
        """Threshold less one."""
        return float(self.limit)

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater."""
        return 1.0 + self.limit

    @property
    def total_noise(self) -> float:
        """Standard deviation of a released count."""
        return self.sigma

    @property
    def mechanism(self) -> str:
        """`laplace`."""
        return "laplace"

    @property
    def kind(self) -> str:
        """`discrete`: whole counts."""
        return "discrete"

    def to_dict(self) -> dict[str, Any]:
        """The same names as for the family, and beside them the exact scale."""
        return {**family_dict(self), "scale": str(self.scale), "limit_steps": self.limit}


def family_dict(noise: Noise | LatticeNoise | LaplaceNoise) -> dict[str, Any]:
    """What both kinds of noise have in common, as plain data."""
    return {
        "noise": noise.kind,
        "sigma": noise.sigma,
        "sigma_shared": noise.sigma_shared,
        "gamma": None if math.isinf(noise.gamma) else noise.gamma,
        "total_noise": noise.total_noise,
        "tau": noise.tau,
        "threshold": noise.threshold,
    }
