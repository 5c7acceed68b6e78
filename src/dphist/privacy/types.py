"""What everything else passes around: Budget, Contract, Certificate, CapChoice, Plan. Frozen data."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from dphist.display import html_table, text_table
from dphist.errors import LARGEST_EPSILON, SMALLEST_DELTA, InvalidParameter, positive_count, positive_number
from dphist.privacy.noise import LaplaceNoise, LatticeNoise, Noise, SumNoise

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# What is promised (the budget) and what is known of every dataset (the contract).


@dataclass(frozen=True)
class Budget:
    """The promise: (epsilon, delta)-differential privacy for adding or removing one user."""

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
    """What is known of every dataset: how many counts can be non-zero, how many one user can touch."""

    max_nonzero: int | None = None
    max_items_per_user: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_nonzero", "max_items_per_user"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, positive_count(name, value))
        if self.max_nonzero is None and self.max_items_per_user is None:
            raise InvalidParameter(
                "max_nonzero or max_items_per_user must be given: without a bound one user could change everything"
            )
        if self.items > self.nonzero:
            raise InvalidParameter(
                f"max_items_per_user ({self.items}) must not exceed max_nonzero ({self.max_nonzero})"
            )

    @property
    def items(self) -> int:
        """The most counts one user can touch: the m of the analysis."""
        bound = self.max_nonzero if self.max_items_per_user is None else self.max_items_per_user
        assert bound is not None
        return bound

    @property
    def nonzero(self) -> float:
        """The most non-zero counts, infinite when unknown: the k of the analysis."""
        return math.inf if self.max_nonzero is None else float(self.max_nonzero)


# Kinds of neighbours, and the certificate that names the worst of them.

# What a certificate file says of itself.
FORMAT: Final = "dphist-certificate/1"
Direction = Literal["add", "remove", "either"]


@dataclass(frozen=True)
class NeighbourCase:
    """A kind of neighbours: j counts in both (s of them changed by one) and r in only one of them."""

    shared: float
    new: int
    changed: int
    direction: Direction

    def to_dict(self) -> dict[str, Any]:
        """Plain data; an unbounded number of shared counts is None."""
        shared = None if math.isinf(self.shared) else int(self.shared)
        return {"j": shared, "r": self.new, "s": self.changed, "direction": self.direction}

    def __str__(self) -> str:
        shared = "any number of" if math.isinf(self.shared) else f"{int(self.shared):,}"
        move = {"add": "is added", "remove": "is removed", "either": "is added or removed"}[self.direction]
        return (
            f"a user {move} who has {self.new:,} new counts and changes {self.changed:,} of {shared} shared counts"
        )

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people."""
        shared = "any number" if math.isinf(self.shared) else f"{int(self.shared):,}"
        return [
            ("a user is", {"add": "added", "remove": "removed", "either": "added or removed"}[self.direction]),
            ("counts in both (j)", shared),
            ("of them changed (s)", f"{self.changed:,}"),
            ("counts in one alone (r)", f"{self.new:,}"),
        ]

    def _repr_html_(self) -> str:
        return html_table("Neighbours", self.rows())


@dataclass(frozen=True)
class Certificate:
    """A proof by computation that a plan satisfies (epsilon, delta): `delta` is a rigorous upper bound.

    `delta_lower` is the delta of one kind of neighbours, right to about 1e-9 and not rounded down: the truth lies
    between the two up to that. For continuous noise the kind is `binding_case`. For noise on a lattice it is a
    user with new counts alone, whatever `binding_case` is, so that it may be far below the truth; `binding_case`
    is the worse of the two pure kinds there, and a mixture may be worse than both. 0: none was computed.
    """

    epsilon: float
    delta: float
    analysis: str
    binding_case: NeighbourCase
    delta_lower: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "analysis": self.analysis,
            "binding_case": self.binding_case.to_dict(),
            "delta_lower": self.delta_lower,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people."""
        return [
            ("epsilon", f"{self.epsilon:g}"),
            ("delta, at most", f"{self.delta:.10g}"),
            ("delta, at least", f"{self.delta_lower:.10g}"),
            ("analysis", self.analysis),
            ("worst neighbours", str(self.binding_case)),
        ]

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table("Certificate", self.rows())


# What decides a privately chosen cap: the caps on offer, and the noise on how many users have how many items.

# Two caps to a doubling: no number of items is further than a fifth from one, and few have to be certified.
DEFAULT_CAPS: Final[tuple[int, ...]] = tuple(
    sorted({1, *(2**n for n in range(1, 13)), *(3 * 2**n for n in range(11))})
)
# What the sampler draws. Below one, noise would hide nobody.
_LEAST_VARIANCE: Final = 1
_LARGEST_VARIANCE: Final = 10**16
_MOST_CAPS: Final = 1000


@dataclass(frozen=True)
class CapChoice:
    """The caps one of which is chosen, and the variance of the discrete Gaussian noise on the sizes.

    Bucket i counts the users with more than caps[i - 1] and at most caps[i] different items, the last one those
    with more than any cap: one user is in exactly one of the len(caps) + 1 buckets, or in none.
    The variance V means Pr[x] proportional to exp(-x^2/(2V)) on the integers.
    """

    caps: tuple[int, ...]
    variance: Fraction

    def __post_init__(self) -> None:
        if not isinstance(self.caps, tuple) or not 1 <= len(self.caps) <= _MOST_CAPS:
            raise InvalidParameter(f"caps must be a tuple of 1 to {_MOST_CAPS} whole numbers, not {self.caps!r}")
        object.__setattr__(self, "caps", tuple(positive_count("each of the caps", cap) for cap in self.caps))
        if any(after <= before for before, after in pairwise(self.caps)):
            raise InvalidParameter(f"caps must increase, not {self.caps!r}")
        if not isinstance(self.variance, Fraction):
            raise InvalidParameter(f"variance must be a fraction, not {self.variance!r}")
        if not _LEAST_VARIANCE <= self.variance <= _LARGEST_VARIANCE:
            raise InvalidParameter(
                f"variance must be between {_LEAST_VARIANCE} and {_LARGEST_VARIANCE:g}, not {self.variance}"
            )

    @property
    def buckets(self) -> int:
        """How many buckets there are: one to a cap, and one for more than any."""
        return len(self.caps) + 1

    def bucket(self, items: int) -> int:
        """The bucket of a user with this many different items."""
        return bisect_left(self.caps, positive_count("items of a user", items))

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the variance in full."""
        return {"caps": list(self.caps), "variance": str(self.variance)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CapChoice:
        """The same from plain data."""
        try:
            return cls(tuple(data["caps"]), Fraction(data["variance"]))
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise InvalidParameter(f"a choice of caps must have caps and a variance, not {data!r}") from None


def caps_up_to(most: int | None) -> tuple[int, ...]:
    """The usual caps, ending at `most` where one user can have no more items than that."""
    if most is None:
        return DEFAULT_CAPS
    bound = positive_count("the largest cap", most)
    below = tuple(cap for cap in DEFAULT_CAPS if cap < bound)
    return (*below, bound) if bound <= DEFAULT_CAPS[-1] else DEFAULT_CAPS


AnyNoise = Noise | LatticeNoise | LaplaceNoise
AnalysisName = Literal["exact", "gshm-add-the-deltas", "gshm-exact", "csh-add-the-deltas", "csh-tighter"]
Objective = Literal["threshold", "noise"]
ANALYSES: Final[tuple[AnalysisName, ...]] = get_args(AnalysisName)


@dataclass(frozen=True)
class Plan:
    """Everything about a release that affects privacy, decided before any data is read."""

    budget: Budget
    contract: Contract
    noise: AnyNoise
    analysis: AnalysisName
    certificate: Certificate
    notes: tuple[str, ...] = ()

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise drawn for each count."""
        return self.noise.sigma

    @property
    def sigma_shared(self) -> float:
        """Standard deviation of the one draw added to all counts."""
        return self.noise.sigma_shared

    @property
    def gamma(self) -> float:
        """sigma^2/sigma_shared^2."""
        return self.noise.gamma

    @property
    def tau(self) -> float:
        """Threshold less one."""
        return self.noise.tau

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater."""
        return self.noise.threshold

    @property
    def total_noise(self) -> float:
        """Standard deviation of a released count."""
        return self.noise.total_noise

    @property
    def mechanism(self) -> str:
        """`gshm`, `csh`, `top-k`, `known-domain` or `laplace`."""
        return self.noise.mechanism

    @property
    def releases_offset(self) -> bool:
        """Whether what a top-k step subtracts is released with noise."""
        return self.mechanism == "top-k"

    @property
    def sums(self) -> tuple[SumNoise, ...]:
        """The sums beside the counts, with their noise."""
        return self.noise.sums if isinstance(self.noise, LatticeNoise) else ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of `dphist plan --json`; an infinite gamma is None."""
        return {
            "mechanism": self.mechanism,
            "analysis": self.analysis,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "delta_certified": self.certificate.delta,
            "max_nonzero": self.contract.max_nonzero,
            "max_items_per_user": self.contract.items,
            **self.noise.to_dict(),
            "binding_case": self.certificate.binding_case.to_dict(),
            "certificate": self.certificate.to_dict(),
            "notes": list(self.notes),
        }

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people."""
        nonzero = "no bound" if self.contract.max_nonzero is None else f"{self.contract.max_nonzero:,}"
        public = self.mechanism == "known-domain"
        gamma = "infinite" if math.isinf(self.gamma) else f"{self.gamma:.6g}"
        return [
            (
                "mechanism",
                f"{self.mechanism} with {self.noise.kind} noise, chosen by the analysis '{self.analysis}'",
            ),
            ("budget", f"epsilon {self.budget.epsilon:g}, delta {self.budget.delta:g}"),
            ("items in the public list" if public else "non-zero counts at most", nonzero),
            ("items per user at most", f"{self.contract.items:,}"),
            # In full: a rounded sigma or threshold would be another plan, and not a certified one.
            ("noise of each count", f"{self.sigma!r}"),
            ("shared noise", f"{self.sigma_shared!r} (gamma {gamma})"),
            ("total noise", f"{self.total_noise:.6g}"),
            ("threshold", "none" if math.isinf(self.threshold) else f"{self.threshold!r} (1 + tau)"),
            *(
                (
                    f"sum of values from {float(one.low):g} to {float(one.high):g}",
                    f"noise {one.sigma:.6g}, and {float(one.middle):g} times the noise of the count",
                )
                for one in self.sums
            ),
            ("certified delta", f"{self.certificate.delta:.6g}"),
            ("worst neighbours", str(self.certificate.binding_case)),
        ]

    def figure(self) -> Figure:
        """Its profile, and which counts are released, as a figure of matplotlib."""
        # By name: what draws is to the right of all that is drawn.
        drawn: Figure = import_module("dphist.figures").plan(self)
        return drawn

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table("Plan", self.rows())
