"""The frozen data that everything else passes around. Only what affects privacy lives here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from numbers import Integral, Real
from typing import Any, Final, Literal, get_args

from dphist.errors import InvalidParameter

AnalysisName = Literal["exact", "gshm-add-the-deltas", "gshm-exact", "csh-add-the-deltas", "csh-tighter"]
Direction = Literal["add", "remove", "either"]
Objective = Literal["threshold", "noise"]

ANALYSES: Final[tuple[AnalysisName, ...]] = get_args(AnalysisName)
SMALLEST_DELTA: Final = 1e-300
LARGEST_EPSILON: Final = 800.0
LARGEST_COUNT: Final = 10**12
SMALLEST_SIZE: Final = 1e-30
LARGEST_SIZE: Final = 1e30


def finite_number(name: str, value: object) -> float:
    """The value as a float, or one sentence saying why not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidParameter(f"{name} must be a number, not {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise InvalidParameter(f"{name} must be a finite number, not {value!r}")
    return number


def positive_number(name: str, value: object) -> float:
    """The value as a float above zero."""
    number = finite_number(name, value)
    if number <= 0.0:
        raise InvalidParameter(f"{name} must be greater than zero, not {value!r}")
    return number


def sized_number(name: str, value: object) -> float:
    """The value as a float above zero, of a size whose square and ratios stay in range."""
    number = positive_number(name, value)
    if not SMALLEST_SIZE <= number <= LARGEST_SIZE:
        raise InvalidParameter(f"{name} must be between {SMALLEST_SIZE:g} and {LARGEST_SIZE:g}, not {value!r}")
    return number


def positive_count(name: str, value: object) -> int:
    """The value as an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidParameter(f"{name} must be a whole number, not {value!r}")
    count = int(value)
    if not 1 <= count <= LARGEST_COUNT:
        raise InvalidParameter(f"{name} must be between 1 and {LARGEST_COUNT}, not {count}")
    return count


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


@dataclass(frozen=True)
class Certificate:
    """A proof by computation that a plan satisfies (epsilon, delta): `delta` is a rigorous upper bound.

    `delta_lower` is the exact delta of one real pair of neighbours (in doubles), so that the truth lies between.
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


def html_table(caption: str, rows: list[tuple[str, str]]) -> str:
    """A small table for notebooks."""
    body = "".join(f"<tr><th scope='row'>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table><caption>{escape(caption)}</caption><tbody>{body}</tbody></table>"


def gamma_from(sigma: float, sigma_shared: float) -> float:
    """Gamma = sigma^2/sigma_shared^2, infinite without shared noise."""
    return (sigma / sigma_shared) ** 2 if sigma_shared > 0.0 else math.inf


@dataclass(frozen=True)
class Noise:
    """The parameters of the family: what is added to each count, to all counts together, and the cut."""

    sigma: float
    sigma_shared: float
    tau: float

    def __post_init__(self) -> None:
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
        """A noisy count is released if it is strictly greater."""
        return 1.0 + self.tau

    @property
    def mechanism(self) -> str:
        """`gshm` without shared noise, `csh` with it."""
        return "csh" if self.sigma_shared > 0.0 else "gshm"


@dataclass(frozen=True)
class Plan:
    """Everything about a release that affects privacy, decided before any data is read."""

    budget: Budget
    contract: Contract
    noise: Noise
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
        """`gshm` or `csh`."""
        return self.noise.mechanism

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of `dphist plan --json`; an infinite gamma is None."""
        return {
            "mechanism": self.mechanism,
            "analysis": self.analysis,
            "noise": "continuous",
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "delta_certified": self.certificate.delta,
            "max_nonzero": self.contract.max_nonzero,
            "max_items_per_user": self.contract.items,
            "sigma": self.sigma,
            "sigma_shared": self.sigma_shared,
            "gamma": None if math.isinf(self.gamma) else self.gamma,
            "total_noise": self.total_noise,
            "tau": self.tau,
            "threshold": self.threshold,
            "binding_case": self.certificate.binding_case.to_dict(),
            "certificate": self.certificate.to_dict(),
            "notes": list(self.notes),
        }

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people."""
        nonzero = "no bound" if self.contract.max_nonzero is None else f"{self.contract.max_nonzero:,}"
        gamma = "infinite" if math.isinf(self.gamma) else f"{self.gamma:.6g}"
        return [
            ("mechanism", f"{self.mechanism}, chosen by the analysis '{self.analysis}'"),
            ("budget", f"epsilon {self.budget.epsilon:g}, delta {self.budget.delta:g}"),
            ("non-zero counts at most", nonzero),
            ("items per user at most", f"{self.contract.items:,}"),
            ("noise of each count", f"{self.sigma:.8g}"),
            ("shared noise", f"{self.sigma_shared:.8g} (gamma {gamma})"),
            ("total noise", f"{self.total_noise:.8g}"),
            ("threshold", f"{self.threshold:.8g} (1 + tau)"),
            ("certified delta", f"{self.certificate.delta:.6g}"),
            ("worst neighbours", str(self.certificate.binding_case)),
        ]

    def __str__(self) -> str:
        width = max(len(label) for label, _ in self.rows())
        return "\n".join(f"{label:<{width}}  {value}" for label, value in self.rows())

    def _repr_html_(self) -> str:
        return html_table("Plan", self.rows())
