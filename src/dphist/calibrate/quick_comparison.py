"""The table and the curves of all mechanisms in a few milliseconds: estimates like those of `quick`."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dphist.calibrate.comparison import Comparison, ComparisonRow, Frontier, laplace_row
from dphist.calibrate.quick import largest_mu, quantile, quick_plan, quick_sigma, tau_per_sigma
from dphist.numerics.normal import hockey_stick_normal
from dphist.numerics.tails import FloatArray
from dphist.types import Budget, Contract

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
