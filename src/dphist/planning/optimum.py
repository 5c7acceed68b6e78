"""The best noise for an analysis: sigma for a given gamma, then gamma, then the optimum on a lattice.

A lattice is what is drawn, so the certificate is for the noise on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from numbers import Rational
from typing import Final, NamedTuple

import numpy as np

from dphist.errors import InvalidParameter, NoPlan, finite_number, positive_count
from dphist.model import (
    FINEST_REACH,
    LEAST_VARIANCE,
    Budget,
    Contract,
    LatticeNoise,
    Noise,
    Objective,
    OffsetRule,
    Proof,
    SumNoise,
    check_range,
)
from dphist.paper.analyses import Analysis, PaperAnalysis, least_sigma, least_tau, tau_of_infinite_event
from dphist.proof import balls
from dphist.proof.balls import bits_for
from dphist.proof.certify_lattice import lattice_family
from dphist.proof.continuous import certify_noise
from dphist.proof.lattice import contract_of_new
from dphist.proof.searches import golden_minimum, least_passing, least_whole_passing, log_excess, round_up
from dphist.proof.sensitivity import squared_sensitivity_top_k
from dphist.proof.tails import infinite_event_discrete

# No threshold was ever found to fall when sigma grows beyond this multiple of its least value.
_WIDEST_SIGMA: Final = 1.5


@dataclass(frozen=True)
class Calibration:
    """The search for the best noise by one analysis, for one budget and one contract."""

    analysis: Analysis
    budget: Budget
    contract: Contract

    def least_sigma(self, gamma: float) -> float:
        return least_sigma(self.analysis, self.contract, self.budget, gamma)

    def relative_noise(self, gamma: float) -> float:
        """The total noise at the least sigma, up to a factor that is the same for every gamma."""
        return self.analysis.sensitivity(self.contract, gamma) * math.sqrt(1.0 + 1.0 / gamma)

    def optimistic_tau(self, gamma: float) -> float:
        """Tau at the least sigma if mixtures do not bind, which they rarely do."""
        sigma = round_up(self.least_sigma(gamma))
        shared = round_up(sigma / math.sqrt(gamma))
        return tau_of_infinite_event(
            self.analysis, self.contract, sigma=sigma, sigma_shared=shared, delta=self.budget.delta
        )

    def at_least_noise(self, gamma: float, stretch: float = 1.0) -> Noise:
        """The least noise for this gamma, times `stretch`, with the least tau over all cases.

        Everything is rounded up: more noise of either kind only lowers the Gaussian part of delta.
        """
        least = self.least_sigma(gamma)
        sigma = round_up(least) if stretch == 1.0 else round_up(round_up(least) * stretch)
        shared = round_up(sigma / math.sqrt(gamma))
        tau = least_tau(self.analysis, self.contract, self.budget, sigma=sigma, sigma_shared=shared)
        return Noise(sigma, shared, round_up(tau) if math.isfinite(tau) else tau, self.analysis.extra)

    def at_least_tau(self, gamma: float) -> Noise:
        """The noise with the least threshold for this gamma.

        Unless a mixture binds, tau grows with sigma and the least sigma is best. Otherwise sigma is searched if
        delta has a closed form; if it is an integral, more noise was never found to allow a lower tau.
        """
        first = self.at_least_noise(gamma)
        closed_form = isinstance(self.analysis, PaperAnalysis) or math.isinf(gamma)
        if not closed_form or first.tau <= round_up(self.optimistic_tau(gamma)):
            return first
        stretch, tau = golden_minimum(
            lambda x: self.at_least_noise(gamma, x).tau, 1.0, _WIDEST_SIGMA, tolerance=1e-4
        )
        return first if first.tau <= tau else self.at_least_noise(gamma, stretch)

    def best(self, gamma: float, objective: Objective) -> Noise:
        if isinstance(self.analysis, PaperAnalysis) and self.analysis.adds_deltas:
            return self._with_added_deltas(self.analysis, gamma, objective)
        return self.at_least_tau(gamma) if objective == "threshold" else self.at_least_noise(gamma)

    def _with_added_deltas(self, analysis: PaperAnalysis, gamma: float, objective: Objective) -> Noise:
        least = self.least_sigma(gamma)
        if objective == "noise":
            raise NoPlan(
                "adding the deltas has no plan of least noise: the threshold grows without bound as sigma "
                f"approaches {least:.10g}. Minimize the threshold instead"
            )

        def tau_at(sigma: float, shared: float) -> float:
            return least_tau(analysis, self.contract, self.budget, sigma=sigma, sigma_shared=shared)

        def tau_of(stretch: float) -> float:
            sigma = least * (1.0 + stretch)
            return tau_at(sigma, sigma / math.sqrt(gamma))

        stretch, _ = golden_minimum(tau_of, 1e-6, 2.0, tolerance=1e-9)
        sigma = round_up(least * (1.0 + stretch))
        shared = round_up(sigma / math.sqrt(gamma))
        noise = Noise(sigma, shared, round_up(tau_at(sigma, shared)))
        while analysis.delta(self.contract, noise, self.budget.epsilon) > self.budget.delta:
            noise = replace(noise, tau=round_up(noise.tau * (1.0 + 1e-12)))
        return noise


def tune_gamma(calibration: Calibration, objective: Objective) -> Noise:
    """The best noise over gamma, never worse than without shared noise."""
    without = calibration.best(math.inf, objective)
    contract = calibration.contract
    if contract.max_nonzero is None or contract.items < 2:
        return without
    quietest = _best_gamma(calibration, calibration.relative_noise, quietest_on_grid(calibration))
    if objective == "noise":
        noise = calibration.at_least_noise(quietest)
        return noise if noise.total_noise < without.total_noise * (1.0 - 1e-9) else without
    searched = _best_gamma(calibration, calibration.optimistic_tau, quietest)
    candidates = (quietest, searched, math.sqrt(contract.max_nonzero))
    noise = calibration.at_least_tau(min(candidates, key=calibration.optimistic_tau))
    return noise if noise.tau < without.tau * (1.0 - 1e-9) else without


def least_total_noise(calibration: Calibration) -> Noise:
    """The least total noise over gamma on a coarse grid; its tau is meaningless."""
    gammas = [math.inf]
    if calibration.contract.max_nonzero is not None and calibration.contract.items > 1:
        gammas.append(quietest_on_grid(calibration))

    def noise(gamma: float) -> Noise:
        sigma = calibration.least_sigma(gamma)
        return Noise(sigma, sigma / math.sqrt(gamma), sigma, calibration.analysis.extra)

    return min((noise(gamma) for gamma in gammas), key=lambda noise: noise.total_noise)


def quietest_on_grid(calibration: Calibration) -> float:
    """The gamma with the least total noise on a coarse grid."""
    top = math.log10(calibration.contract.nonzero) + 4.0
    return min((float(g) for g in np.logspace(-2.0, top, 240)), key=calibration.relative_noise)


def _best_gamma(calibration: Calibration, objective: Callable[[float], float], start: float) -> float:
    """Minimise over log gamma around `start`, then try the kinks nearby.

    The sensitivity is a maximum over integers s, with kinks where k + gamma is odd; minima are often there.
    """
    centre, width = math.log(start), math.log(8.0)
    log_best, _ = golden_minimum(lambda x: objective(math.exp(x)), centre - width, centre + width, tolerance=0.01)
    best = math.exp(log_best)
    k, m = int(calibration.contract.nonzero), calibration.contract.items
    nearest = 2 * round((best + k - 1) / 2) + 1 - k
    kinks = [float(g) for g in range(nearest - 4, nearest + 5, 2) if g > 0 and (g + k) / 2 < m + 1]
    return min([best, *kinks], key=objective) if k <= 10_000 else best


# Sums beside the counts: their shares of the budget, and the steps of their noise.

# The samplers' largest deviation is 1e8 steps.
_LARGEST_DEVIATION: Final = 5e7
_LEAST_REACH: Final = 16
# Weights of several sums are whole multiples of a unit; the smallest is this many units.
_LEAST_WEIGHT: Final = 4
_MOST_SUMS: Final = 64
# How far all shares may be moved together to bring the best offset onto the lattice.
_NEAR_SHARE: Final = 0.1
# For smaller shares, half a unit costs at most half this share more than the best offset.
_LEAST_OFFSET_EXTRA: Final = 0.005


class Bounds(NamedTuple):
    """The range of a value to sum; with more than one of `columns`, of a vector with the norm `high`."""

    low: Fraction
    high: Fraction
    columns: int = 1


# From the variance of the counts to the noise of the sums.
SumsBeside = Callable[[Fraction], tuple[SumNoise, ...]]


def check_bounds(low: object, high: object, columns: object = 1) -> Bounds:
    """The bounds of a value as fractions; those of a vector are -NORM and NORM, and its number of columns."""
    bounds = []
    for name, value in (("LOW", low), ("HIGH", high)):
        finite_number(name, value)
        # A float stands for the decimal number that it prints as.
        bounds.append(Fraction(value) if isinstance(value, Rational) else Fraction(repr(float(value))))  # type: ignore[arg-type]
    found = Bounds(bounds[0], bounds[1], positive_count("columns", columns))
    check_range(*found)
    return found


@dataclass(frozen=True)
class SumShares:
    """The bounds of sums, and what each adds to the squared sensitivity of a changed count (in its units)."""

    bounds: tuple[Bounds, ...] = ()
    extras: tuple[float, ...] = ()

    @property
    def extra(self) -> float:
        return sum(self.extras, 0.0)

    def lattice_of_one_offset(self, least: int) -> int:
        """A power of two, on whose lattice (1 + extra)/2 is nearly a whole number of steps."""
        lattice = 16
        while lattice < least or abs(self._offset_steps(lattice) * 2 / lattice / self.extra - 1.0) > _NEAR_SHARE:
            lattice *= 2
        return lattice

    def beside(self, sigma: float, lattice: int, *, one_offset: bool) -> SumsBeside:
        """The noise of the sums for counts with this deviation on this lattice.

        Half a range has as many steps as the samplers can draw. Beside counts of the variance V, a sum has the
        variance reach V/ratio; the ratios are whole weights over one number.
        """
        if not self.bounds:
            return lambda _: ()
        reach, smallest = FINEST_REACH, 1 if len(self.extras) == 1 else _LEAST_WEIGHT
        while reach * sigma / math.sqrt(min(self.extras)) > _LARGEST_DEVIATION:
            reach //= 2
        if reach < _LEAST_REACH:
            limit = _LARGEST_DEVIATION / _LEAST_REACH
            raise NoPlan(
                f"the noise of the sums would exceed {limit:g} half ranges: use a larger budget or weight"
            )
        if one_offset:
            ratios = self._ratios_of_one_offset(reach, smallest, lattice)
        else:
            common = max(1, round(smallest * reach / (min(self.extras) * lattice**2)))
            ratios = [Fraction(max(1, round(x * lattice**2 * common / reach)), common) for x in self.extras]
        return lambda variance: tuple(
            SumNoise(low, high, reach, reach * variance / ratio, columns)
            for (low, high, columns), ratio in zip(self.bounds, ratios, strict=True)
        )

    def _ratios_of_one_offset(self, reach: int, smallest: int, lattice: int) -> list[Fraction]:
        """Ratios for which (1 + extra)/2 is exactly a whole number of steps.

        With that offset the sensitivity is the same for every number of changed counts, so one bound covers all.
        Extra is reach W/(U b^2), with W the sum of the weights; it is 2 t/b for U = reach W/(2 t b).
        """
        steps = self._offset_steps(lattice)
        times = math.ceil(smallest / (min(self.extras) / self.extra * steps)) * max(1, 2 * lattice // reach)
        shares = [extra / self.extra * steps * times for extra in self.extras]
        weights = [max(1, math.floor(share)) for share in shares]
        # The remainder goes to the weights that rounding down reduced most.
        most_lost = sorted(range(len(shares)), key=lambda k: weights[k] - shares[k])
        for place in most_lost[: steps * times - sum(weights)]:
            weights[place] += 1
        common = Fraction(reach * sum(weights), 2 * steps * lattice)
        return [weight / common for weight in weights]

    def _offset_steps(self, lattice: int) -> int:
        """extra/2 in steps."""
        return max(1, round(self.extra * lattice / 2))


def share_budget(
    bounds: Sequence[Bounds], weights: Sequence[float] | None, noise_at: Callable[[float], Noise]
) -> SumShares:
    """The shares of sums: by `weights` (of the squared sensitivity; the counts have the rest), or the best ones.

    `noise_at` is the noise of the counts by what the sums add. The best shares have the least sum of variances of
    the count and of all sums, each sum in units of the largest value a user can have. With c the middle and h half
    of a range, M the larger of |low| and |high|, extra K in all, total noise S and sigma of the counts, it is

        S^2 (1 + sum of c^2/M^2) + sigma^2 (sum of h/M)^2/K,    each with the share h/M of K.

    A vector of d columns has c = 0 and M = h, and sqrt d for h/M: all its columns count.
    """
    if not bounds:
        if weights:
            raise InvalidParameter("weights need sums: give the bounds of each sum as well")
        return SumShares()
    if len(bounds) > _MOST_SUMS:
        raise InvalidParameter(f"at most {_MOST_SUMS} sums can be released together, not {len(bounds)}")
    if weights is not None:
        if len(weights) != len(bounds):
            raise InvalidParameter(
                f"give one weight for each sum: there are {len(bounds)} sums and {len(weights)} weights"
            )
        numbers = [finite_number("weight", weight) for weight in weights]
        rest = 1.0 - sum(numbers)
        if min(numbers) < 1e-6 or rest < 1e-6:
            raise InvalidParameter(
                f"weights are shares, each at least 1e-6 and together below 1, not {list(weights)}"
            )
        return SumShares(tuple(bounds), tuple(number / rest for number in numbers))
    halves, middles = [], 0.0
    for low, high, columns in bounds:
        most = max(abs(low), abs(high))
        halves.append(float((high - low) / 2 / most) * math.sqrt(columns))
        middles += float((low + high) / 2 / most) ** 2

    def cost(log_extra: float) -> float:
        extra = math.exp(log_extra)
        noise = noise_at(extra)
        return noise.total_noise**2 * (1.0 + middles) + noise.sigma**2 * sum(halves) ** 2 / extra

    best, _ = golden_minimum(cost, math.log(1e-3), math.log(1e3), tolerance=1e-3)
    return SumShares(tuple(bounds), tuple(math.exp(best) * half / sum(halves) for half in halves))


# The optimum on a lattice.

NO_SUMS: Final = SumShares()
# A step of the lattice is at most this share of tau, and an offset costs at most this share of delta's exponent:
# together well below 0.2 %.
_FINEST_SHARE: Final = 1e-3
_MOST_ATTEMPTS: Final = 30
_LARGEST_LATTICE: Final = 1 << 12
_LEAST_SHARED_STEPS: Final = 4.0
_LEAST_STEPS: Final = 8.0
# The least shared noise that the finest lattice can represent.
LEAST_SHARED: Final = _LEAST_SHARED_STEPS / _LARGEST_LATTICE


def on_lattice(
    continuous: Noise,
    budget: Budget,
    contract: Contract,
    offset: OffsetRule = "none",
    sums: SumShares = NO_SUMS,
) -> tuple[LatticeNoise, Proof]:
    """The discrete noise next to continuous noise: the least variance and limit on the lattice that are certified.

    Guarantee: the certificate's delta is within the budget.
    """
    noise = lattice_and_variances(continuous, budget, contract, offset, sums)
    limit = _least_limit(
        noise, budget, contract_of_new(noise, contract), start=max(1, math.ceil(noise.lattice * continuous.tau))
    )
    for attempt in range(_MOST_ATTEMPTS):
        noise = replace(noise, tau_steps=limit)
        certificate = certify_noise(noise, contract, epsilon=budget.epsilon, budget=budget.delta)
        if certificate.delta <= budget.delta:
            return noise, certificate
        # If the sum of both worst cases binds, tau may have to rise noticeably.
        limit += max(1, round(limit * 5e-4 * 1.25**attempt))
    raise NoPlan(f"no discrete plan near tau {continuous.tau!r} could be certified for {budget}")


def lattice_and_variances(
    continuous: Noise,
    budget: Budget,
    contract: Contract,
    offset: OffsetRule = "none",
    sums: SumShares = NO_SUMS,
) -> LatticeNoise:
    """The lattice for continuous noise, and the least variances on it that are within the budget for shared items.

    Guarantee: the variances were tested in ball arithmetic and passed. The limit is meaningless.
    """
    gamma = None if math.isinf(continuous.gamma) else max(1, round(continuous.gamma))
    lattice = _lattice(continuous, contract, gamma, offset)
    if gamma is not None and (lattice * continuous.sigma_shared) ** 2 < LEAST_VARIANCE:
        raise InvalidParameter(
            f"gamma = {continuous.gamma:.6g} leaves too little shared noise for a lattice: use a smaller gamma"
        )
    one_offset = sums.extra >= _LEAST_OFFSET_EXTRA and _one_offset(continuous, contract, gamma)
    one_offset = one_offset and offset == "none"
    lattice = sums.lattice_of_one_offset(lattice) if one_offset else lattice
    sums_beside = sums.beside(continuous.sigma, lattice, one_offset=one_offset)

    def at(variance: float) -> LatticeNoise:
        shared = Fraction(0) if gamma is None else dyadic_up(variance / gamma)
        own = dyadic_up(variance) if gamma is None else shared * gamma
        return LatticeNoise(lattice, own, shared, 1, offset, sums_beside(own))

    start = (lattice * continuous.sigma) ** 2
    with balls.precision(bits_for(budget.delta)):

        def delta(variance: float) -> float:
            """Upper bound over all neighbours without new counts."""
            family = lattice_family(at(variance), contract, epsilon=budget.epsilon, scale=budget.delta)
            return balls.upper(family.gaussian_worst(0))

        variance = least_passing(lambda v: log_excess(delta(v), budget.delta), start, relative=1e-8)
        # Rounding both variances of a family may have changed their ratio.
        while delta(variance) > budget.delta:
            variance *= 1.0 + 2.0**-32
        return at(variance)


def _one_offset(noise: Noise, contract: Contract, gamma: int | None) -> bool:
    """Whether a user can change more counts than is worst, so that one offset should cover all numbers of them."""
    if gamma is None or math.isinf(contract.nonzero):
        return False
    return (1.0 + noise.extra) * (contract.nonzero + gamma) / 2 < contract.items


def _lattice(noise: Noise, contract: Contract, gamma: int | None, offset: OffsetRule) -> int:
    """The coarsest even lattice, in steps per count, that costs almost no noise."""
    lattice = 2
    # With one offset for all, the shares of the sums are chosen such that it is on the lattice.
    shared_offset = offset == "none" and noise.extra > 0.0 and _one_offset(noise, contract, gamma)
    while lattice < _LARGEST_LATTICE:
        fine_tau = lattice * noise.tau * _FINEST_SHARE >= 1.0
        wide = lattice * noise.sigma >= _LEAST_STEPS
        wide_shared = gamma is None or lattice * noise.sigma_shared >= _LEAST_SHARED_STEPS
        if fine_tau and wide and wide_shared:
            loss = 0.0 if shared_offset else _offset_loss(contract, gamma, lattice, noise.extra, offset)
            if loss <= _FINEST_SHARE:
                break
        lattice += 2
    return lattice


def _offset_loss(
    contract: Contract, gamma: int | None, lattice: int, extra: float, offset: OffsetRule = "none"
) -> float:
    """Relative excess of the squared sensitivity if the best offset is not on the lattice."""
    if gamma is None:
        return 0.0
    k, m = contract.nonzero, contract.items
    if offset != "none":
        moved = partial(
            squared_sensitivity_top_k, shared=int(k), gamma=gamma, rule=offset, limit=contract.user_limit,
            extra=extra,
        )  # fmt: skip
        return float(moved(lattice=lattice) / moved()) - 1.0
    best = min(m, math.floor((1.0 + extra) * (k + gamma) / 2)) / (k + gamma)
    nearest = round(lattice * best) / lattice
    return (nearest - best) ** 2 / (best * (1.0 + extra - best))


def dyadic_up(value: float, digits: int = 34) -> Fraction:
    """A fraction of a power of two, not below value and within 2^-digits of it, relatively."""
    exponent = digits - math.frexp(value)[1]
    if exponent <= 0:
        return Fraction(math.ceil(value))
    return Fraction(math.ceil(value * 2**exponent), 2**exponent)


def _least_limit(noise: LatticeNoise, budget: Budget, contract: Contract, start: int) -> int:
    """The least limit at which the infinite event is within the budget, in doubles."""
    variance, shared = float(noise.variance), float(noise.variance_shared)

    def excess(limit: int) -> float:
        event = infinite_event_discrete(
            count=contract.items, variance=variance, variance_shared=shared, limit=limit, smallest=budget.delta
        )
        return log_excess(event, budget.delta)

    return least_whole_passing(excess, start)
