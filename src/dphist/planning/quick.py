"""The table and the curves of all mechanisms in a few milliseconds: estimates like those of `quick`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dphist.errors import InvalidParameter
from dphist.planning.compare import Comparison, ComparisonRow, Frontier, laplace_row
from dphist.planning.optimum import Calibration, Exact, quietest_on_grid
from dphist.planning.planner import Gamma, first_guess, gamma_value, laplace_can_be_drawn, whole_gamma
from dphist.planning.utility import CountNoise, count_noise
from dphist.privacy.laplace import tau_laplace
from dphist.privacy.noise import PublicNoise
from dphist.privacy.normal import hockey_stick_normal
from dphist.privacy.offset import infinite_event
from dphist.privacy.paper import largest_sensitivity_per_sigma
from dphist.privacy.search import golden_minimum, least_passing, log_excess
from dphist.privacy.tails import FloatArray, LaplaceTails, NormalTails
from dphist.privacy.types import AnyNoise, Budget, Contract

# Plans, comparisons and curves in a few milliseconds: estimates in doubles, shown while a plan is certified.
#
# What they leave out: mixtures of new and changed counts, which seldom bind, the lattice of discrete noise, and
# the certificate. So nothing here may be released; `plan` is what is released.

_WORTH_SHARING: Final = 0.9995
_LEAST_TAU: Final = 1e-9
_LARGE_SCALE: Final = 1e6


@dataclass(frozen=True)
class QuickPlan:
    """What a plan would be, near enough for a curve and not for a release. Laplace noise alone has a `scale`."""

    mechanism: str
    sigma: float
    sigma_shared: float
    tau: float
    scale: float | None = None

    @property
    def total_noise(self) -> float:
        """Standard deviation of a released count."""
        return math.hypot(self.sigma, self.sigma_shared)

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is greater."""
        return 1.0 + self.tau

    def to_dict(self) -> dict[str, Any]:
        """The names of `dphist plan --json`, as far as they are known."""
        shared = self.sigma_shared
        return {
            "mechanism": self.mechanism,
            "sigma": self.sigma,
            "sigma_shared": shared,
            "gamma": (self.sigma / shared) ** 2 if shared > 0.0 else None,
            "total_noise": self.total_noise,
            "tau": self.tau,
            "threshold": self.threshold,
        }


def quick_plan(
    *,
    epsilon: float,
    delta: float,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    top: int | None = None,
    mechanism: str = "best",
    gamma: Gamma | None = None,
    minimize: str = "threshold",
    noise: str = "discrete",
) -> QuickPlan:
    """About what `plan` would find for the same request.

    Guarantee: none of privacy. Within 0.5 % of the noise and of the threshold of `plan` where mixtures of new and
    changed counts do not bind, as for delta up to 1e-5 and epsilon from 0.1 on; where they do, it is too low.
    Valid for: a look at what a plan would be.
    """
    budget = Budget(epsilon, delta)
    if noise == "discrete" and isinstance(gamma, (int, float)):
        gamma, _ = whole_gamma(gamma)
    if mechanism not in ("best", "gaussian", "laplace") or minimize not in ("threshold", "noise"):
        raise InvalidParameter(f"there is no mechanism {mechanism!r} or nothing to minimize called {minimize!r}")
    if top is not None:
        if max_nonzero is not None or gamma is not None or mechanism == "laplace":
            raise InvalidParameter("top excludes max_nonzero, gamma and Laplace noise")
        step = _top(budget, Contract(top))
        if max_items_per_user is None:
            return step
        capped = quick_plan(
            epsilon=epsilon, delta=delta, max_items_per_user=max_items_per_user, mechanism=mechanism,
            minimize=minimize,
        )  # fmt: skip
        return capped if capped.total_noise <= step.total_noise else step
    contract = Contract(max_nonzero, max_items_per_user)
    laplace = _laplace(budget, contract)
    if mechanism == "laplace":
        if gamma is not None:
            raise InvalidParameter("Laplace noise has no gamma")
        return laplace
    found = _family(budget, contract, None if gamma is None else gamma_value(gamma, contract), minimize)
    if mechanism == "gaussian" or gamma is not None or not laplace_can_be_drawn(budget, contract):
        return found
    cost = "tau" if minimize == "threshold" else "total_noise"
    return laplace if getattr(laplace, cost) < getattr(found, cost) else found


def quick_sigma(budget: Budget, contract: Contract, gamma: float) -> float:
    """The least sigma for this gamma by the exact analysis."""
    return Exact().sensitivity(contract, gamma) / largest_mu(budget.epsilon, budget.delta)


@lru_cache(maxsize=256)
def largest_mu(epsilon: float, delta: float) -> float:
    """The largest sensitivity per sigma within the budget, remembered."""
    return largest_sensitivity_per_sigma(epsilon=epsilon, delta=delta)


@lru_cache(maxsize=4096)
def tau_per_sigma(count: int, gamma: float, delta: float) -> float:
    """Least tau over sigma at which one of `count` new counts passes with probability delta.

    Guarantee: within 1e-6; it depends on sigma and sigma_shared by gamma alone.
    Valid for: count >= 1, gamma > 0 or infinite.
    """
    if math.isinf(gamma):
        return max(_LEAST_TAU, float(quantile(delta, count)))
    shared = 1.0 / math.sqrt(gamma)

    def excess(tau: float) -> float:
        event = infinite_event(count=count, sigma=1.0, sigma_shared=shared, tau=tau, smallest=delta * 1e-3)
        return log_excess(float(event[0]), delta)

    if excess(_LEAST_TAU) <= 0.0:
        return _LEAST_TAU
    # With as much noise in one draw the quantile is near; least_passing needs a start, not a bracket.
    return least_passing(excess, math.hypot(1.0, shared) * float(quantile(delta, count)) * 1.02, relative=1e-6)


def quantile(delta: ArrayLike, count: float) -> FloatArray:
    """The u with 1 - Phi(u)^count = delta."""
    below = np.log1p(-np.asarray(delta, dtype=np.float64)) / count
    return np.asarray(-special.ndtri(-np.expm1(below)), dtype=np.float64)


def _family(budget: Budget, contract: Contract, gamma: float | None, minimize: str) -> QuickPlan:
    """Gaussian noise with the best gamma, or the given one."""

    def at(ratio: float) -> QuickPlan:
        sigma = quick_sigma(budget, contract, ratio)
        shared = 0.0 if math.isinf(ratio) else sigma / math.sqrt(ratio)
        tau = sigma * tau_per_sigma(contract.items, ratio, budget.delta)
        return QuickPlan("csh" if shared > 0.0 else "gshm", sigma, shared, tau)

    if gamma is not None:
        return at(gamma)
    alone = at(math.inf)
    if contract.max_nonzero is None or contract.items < 2:
        return alone
    quietest = quietest_on_grid(Calibration(Exact(), budget, contract))
    candidates = [at(quietest), at(math.sqrt(contract.max_nonzero))]
    if minimize == "noise":
        found = min(candidates, key=lambda one: one.total_noise)
        return found if found.total_noise < alone.total_noise * _WORTH_SHARING else alone
    centre, width = math.log(quietest), math.log(8.0)
    best, _ = golden_minimum(lambda x: at(math.exp(x)).tau, centre - width, centre + width, tolerance=0.15)
    found = min([*candidates, at(math.exp(best))], key=lambda one: one.tau)
    return found if found.tau < alone.tau * _WORTH_SHARING else alone


def _top(budget: Budget, contract: Contract) -> QuickPlan:
    """The top-k step with the opposite offset."""
    noise = first_guess(budget, contract, "opposite", 0.0)
    tau = noise.sigma * tau_per_sigma(contract.items, noise.gamma, budget.delta)
    return QuickPlan("top-k", noise.sigma, noise.sigma_shared, tau)


def _laplace(budget: Budget, contract: Contract) -> QuickPlan:
    scale = contract.items / budget.epsilon
    # Whole steps are nothing beside a large scale.
    tau = tau_laplace(m=contract.items, scale=scale, delta=budget.delta, discrete=scale < _LARGE_SCALE)
    step = 1.0 / scale
    return QuickPlan("laplace", math.sqrt(2.0 * math.exp(-step)) / -math.expm1(-step), 0.0, tau, scale)


def release_law(noise: AnyNoise | QuickPlan) -> CountNoise:
    """The law of release of a plan, or of the estimate of one, whose Gaussian noise is taken for normal."""
    if not isinstance(noise, QuickPlan):
        return count_noise(noise)
    if noise.scale is not None:
        return CountNoise(LaplaceTails(noise.scale), 1, math.floor(noise.tau) + 2.0)
    return CountNoise(NormalTails(noise.total_noise), 1, noise.threshold)


def passing_count(noise: AnyNoise | QuickPlan, chance: float) -> int:
    """The least number of users, less what a top-k step subtracts, with at least this probability of release."""
    return 1 if isinstance(noise, PublicNoise) else release_law(noise).passing_count(chance)


def release_curve(noise: AnyNoise | QuickPlan, points: int = 81) -> list[tuple[float, float]]:
    """The probability of release against whole numbers of users, from 1 to where it is all but certain."""
    if isinstance(noise, PublicNoise):
        return [(1.0, 1.0), (2.0, 1.0)]
    spread = math.hypot(noise.sigma, noise.sigma_shared)
    low = max(1.0, noise.threshold - 4.0 * spread)
    counts = np.unique(np.rint(np.linspace(low, max(low + 1.0, noise.threshold + 4.0 * spread), points)))
    return list(zip(counts.tolist(), release_law(noise).probability(counts).tolist(), strict=True))


_STRETCHES: Final = np.logspace(-6.0, math.log10(2.0), 400)
_POINTS: Final = 40


def quick_comparison(
    *, epsilon: float, delta: float, max_nonzero: int | None = None, max_items_per_user: int | None = None
) -> Comparison:
    """About what `compare` finds, in its rows.

    Guarantee: none of privacy. Within 0.5 % of `compare` where `quick_plan` is.
    Valid for: a look at the table.
    """
    budget, contract = Budget(epsilon, delta), Contract(max_nonzero, max_items_per_user)
    gshm_sigma = quick_sigma(budget, Contract(None, contract.items), math.inf)
    gshm_tau = gshm_sigma * tau_per_sigma(contract.items, math.inf, budget.delta)
    found = [
        ("gshm", "gshm-add-the-deltas", math.inf, *_least_added(budget, contract, math.inf)),
        ("gshm", "gshm-exact", math.inf, gshm_sigma, gshm_tau),
    ]
    if contract.max_nonzero is not None:
        gamma = math.sqrt(contract.max_nonzero)
        total = math.sqrt(1.0 + 1.0 / gamma)
        sigma, exact = _tighter_sigma(budget, contract, gamma), quick_sigma(budget, contract, gamma)
        tuned = quick_plan(
            epsilon=epsilon, delta=delta, max_nonzero=max_nonzero, max_items_per_user=max_items_per_user,
            mechanism="gaussian",
        )  # fmt: skip
        ratio = math.inf if tuned.sigma_shared == 0.0 else (tuned.sigma / tuned.sigma_shared) ** 2
        added, tau = _least_added(budget, contract, gamma)
        found += [
            ("csh", "csh-add-the-deltas", gamma, added * total, tau),
            ("csh", "csh-tighter", gamma, sigma * total, sigma * _tighter_tau(budget, contract, gamma)),
            (
                "csh", "exact, gamma = sqrt k", gamma, exact * total,
                exact * tau_per_sigma(contract.items, gamma, budget.delta),
            ),
            ("csh", "exact, gamma tuned", ratio, tuned.total_noise, tuned.tau),
        ]  # fmt: skip
    rows = [ComparisonRow(name, how, gamma, noise, tau, tau / gshm_tau) for name, how, gamma, noise, tau in found]
    return Comparison(budget, contract, (*rows, laplace_row(budget, contract, gshm_tau)))


def quick_frontiers(comparison: Comparison) -> list[Frontier]:
    """About the curves of the figure. The exact ones are straight: tau is sigma times what gamma and m fix.

    Guarantee: none of privacy. Within 0.5 % of `frontier` where `quick_plan` is.
    Valid for: a look at the figure.
    """
    budget, contract = comparison.budget, comparison.contract
    largest = 1.3 * max(row.total_noise for row in comparison.rows if row.mechanism != "laplace")
    curves = [
        _added_curve("gshm-add-the-deltas", budget, contract, math.inf, largest),
        _straight(
            "gshm-exact", math.sqrt(contract.items) / largest_mu(budget.epsilon, budget.delta), math.inf,
            tau_per_sigma(contract.items, math.inf, budget.delta), largest,
        ),
    ]  # fmt: skip
    if contract.max_nonzero is not None:
        gamma = math.sqrt(contract.max_nonzero)
        exact = tau_per_sigma(contract.items, gamma, budget.delta)
        tighter = _tighter_tau(budget, contract, gamma)
        curves += [
            _added_curve("csh-add-the-deltas", budget, contract, gamma, largest),
            _straight("csh-tighter", _tighter_sigma(budget, contract, gamma), gamma, tighter, largest),
            _straight("exact", quick_sigma(budget, contract, gamma), gamma, exact, largest),
        ]
    return curves


def _tighter_sigma(budget: Budget, contract: Contract, gamma: float) -> float:
    return math.sqrt(contract.nonzero + gamma) / 2.0 / largest_mu(budget.epsilon, budget.delta)


def _tighter_tau(budget: Budget, contract: Contract, gamma: float) -> float:
    """Tau over sigma by the paper's bound of the infinite event."""
    return float(quantile(budget.delta, contract.nonzero + 1.0)) * (1.0 + 1.0 / math.sqrt(gamma))


def _added(budget: Budget, contract: Contract, gamma: float, sigma: FloatArray) -> FloatArray:
    """Tau for each sigma by adding the deltas; infinite where there is none."""
    alone = math.isinf(gamma)
    sensitivity = math.sqrt(contract.items) if alone else math.sqrt(contract.nonzero + gamma) / 2.0
    left = budget.delta - hockey_stick_normal(sensitivity / sigma, budget.epsilon)
    u = quantile(np.maximum(left, 1e-300), contract.items if alone else contract.nonzero + 1.0)
    widened = 1.0 if alone else 1.0 + 1.0 / math.sqrt(gamma)
    return np.asarray(np.where(left > 0.0, u * sigma * widened, np.inf), dtype=np.float64)


def _least_sigma_added(budget: Budget, contract: Contract, gamma: float) -> float:
    if math.isinf(gamma):
        return math.sqrt(contract.items) / largest_mu(budget.epsilon, budget.delta)
    return _tighter_sigma(budget, contract, gamma)


def _least_added(budget: Budget, contract: Contract, gamma: float) -> tuple[float, float]:
    """Sigma and tau of the least threshold by adding the deltas."""
    sigma = _least_sigma_added(budget, contract, gamma) * (1.0 + _STRETCHES)
    tau = _added(budget, contract, gamma, sigma)
    best = int(tau.argmin())
    return float(sigma[best]), float(tau[best])


def _stretched(least: float, total: float, largest: float) -> FloatArray:
    """Sigmas up to the largest total noise, dense near the least."""
    widest = max(1.0, largest / (least * total))
    stretch: FloatArray = 1.0 + (widest - 1.0) * np.linspace(0.0, 1.0, _POINTS) ** 2
    return least * stretch


def _added_curve(name: str, budget: Budget, contract: Contract, gamma: float, largest: float) -> Frontier:
    least, total = _least_sigma_added(budget, contract, gamma), math.sqrt(1.0 + 1.0 / gamma)
    sigma = _stretched(least, total, largest)
    tau = _added(budget, contract, gamma, sigma)
    seen = np.isfinite(tau)
    points = zip((sigma[seen] * total).tolist(), tau[seen].tolist(), strict=True)
    return Frontier(name, least * total, tuple(points))


def _straight(name: str, least: float, gamma: float, per_sigma: float, largest: float) -> Frontier:
    total = math.sqrt(1.0 + 1.0 / gamma)
    sigma = _stretched(least, total, largest)
    return Frontier(
        name, least * total, tuple(zip((sigma * total).tolist(), (sigma * per_sigma).tolist(), strict=True))
    )
