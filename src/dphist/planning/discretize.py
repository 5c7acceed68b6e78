"""Plans for discrete noise: the continuous optimum brought onto a lattice, and certified there."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Final

from dphist.errors import InvalidParameter, NoPlan
from dphist.planning.sums import LatticeSums, SumShares
from dphist.privacy import balls
from dphist.privacy.certificate import certify_lattice, lattice_family
from dphist.privacy.lattice import bits_for, infinite_event_discrete
from dphist.privacy.noise import LEAST_VARIANCE, LatticeNoise, Noise, OffsetRule
from dphist.privacy.search import least_passing, log_excess
from dphist.privacy.types import Budget, Certificate, Contract

# A step of the lattice is at most this share of tau, and an offset off its best by at most this share of delta's
# exponent: together well below 0.2 %.
_FINEST_SHARE: Final = 1e-3
_MOST_ATTEMPTS: Final = 30
_LARGEST_LATTICE: Final = 1 << 12
_LEAST_SHARED_STEPS: Final = 4.0
_LEAST_STEPS: Final = 8.0
# The least shared noise that the finest lattice has steps for.
LEAST_SHARED: Final = _LEAST_SHARED_STEPS / _LARGEST_LATTICE


def on_lattice(
    continuous: Noise,
    budget: Budget,
    contract: Contract,
    offset: OffsetRule = "none",
    sums: SumShares | None = None,
) -> tuple[LatticeNoise, Certificate]:
    """The discrete plan next to a continuous one: the least variance and limit on the lattice that are certified.

    Guarantee: the certificate's delta is within the budget.
    """
    found = lattice_and_variances(continuous, budget, contract, offset, sums)
    limit = _limit(continuous, budget, contract, found.variance, found.variance_shared, found.lattice)
    for attempt in range(_MOST_ATTEMPTS):
        noise = replace(found, limit=limit)
        certificate = certify_lattice(noise, contract, epsilon=budget.epsilon, budget=budget.delta)
        if certificate.delta <= budget.delta:
            return noise, certificate
        # Where the sum of both worst cases is what binds, tau may have to rise by more than a hair.
        limit += max(1, round(limit * 5e-4 * 1.25**attempt))
    raise NoPlan(f"no discrete plan near tau {continuous.tau!r} could be certified for {budget}")


def lattice_and_variances(
    continuous: Noise,
    budget: Budget,
    contract: Contract,
    offset: OffsetRule = "none",
    sums: SumShares | None = None,
) -> LatticeNoise:
    """The lattice for a continuous plan, and the least variances on it for which the noise alone is within budget.

    Guarantee: the variances were tested, in balls, and passed. The limit is not looked at.
    """
    gamma = None if math.isinf(continuous.gamma) else max(1, round(continuous.gamma))
    # A top-k step moves every noise by half a count, which is on every lattice.
    lattice = _lattice(continuous, contract, gamma, halves_only=offset != "none")
    if gamma is not None and (lattice * continuous.sigma_shared) ** 2 < LEAST_VARIANCE:
        raise InvalidParameter(
            f"gamma = {continuous.gamma:.6g} leaves so little shared noise that no lattice could hold it"
        )
    terms = None
    if sums is not None:
        if offset == "none" and sums.wants_one_offset and _one_offset(continuous, contract, gamma):
            lattice = sums.lattice_of_one_offset(lattice)
            terms = sums.with_one_offset(continuous.sigma, lattice)
        else:
            terms = sums.on_lattice(continuous.sigma, lattice)
    return _least_noise(continuous, budget, contract, lattice, gamma, offset, terms)


def _one_offset(noise: Noise, contract: Contract, gamma: int | None) -> bool:
    """Whether a user can change more counts than is worst: then one offset is to serve all numbers of them."""
    if gamma is None or math.isinf(contract.nonzero):
        return False
    return (1.0 + noise.extra) * (contract.nonzero + gamma) / 2 < contract.items


def _lattice(noise: Noise, contract: Contract, gamma: int | None, *, halves_only: bool) -> int:
    """The coarsest even lattice, in steps a count, that costs next to nothing."""
    lattice = 2
    while lattice < _LARGEST_LATTICE:
        fine_tau = lattice * noise.tau * _FINEST_SHARE >= 1.0
        wide = lattice * noise.sigma >= _LEAST_STEPS
        wide_shared = gamma is None or lattice * noise.sigma_shared >= _LEAST_SHARED_STEPS
        near = halves_only or _offset_loss(contract, gamma, lattice, noise.extra) <= _FINEST_SHARE
        if noise.extra > 0.0 and _one_offset(noise, contract, gamma):
            near = True  # the shares of the sums will be such that it is on the lattice
        if fine_tau and wide and wide_shared and near:
            break
        lattice += 2
    return lattice


def _offset_loss(contract: Contract, gamma: int | None, lattice: int, extra: float) -> float:
    """Relative excess of the squared sensitivity because the best offset is not on the lattice."""
    k, m = contract.nonzero, contract.items
    if gamma is None:
        return 0.0
    best = min(m, math.floor((1.0 + extra) * (k + gamma) / 2)) / (k + gamma)
    nearest = round(lattice * best) / lattice
    return (nearest - best) ** 2 / (best * (1.0 + extra - best))


def _dyadic_up(value: float, digits: int = 34) -> Fraction:
    """A fraction of a power of two, not below value and within 2^-digits of it, relatively."""
    exponent = digits - math.frexp(value)[1]
    if exponent <= 0:
        return Fraction(math.ceil(value))
    return Fraction(math.ceil(value * 2**exponent), 2**exponent)


def _least_noise(
    noise: Noise,
    budget: Budget,
    contract: Contract,
    lattice: int,
    gamma: int | None,
    offset: OffsetRule,
    terms: LatticeSums | None,
) -> LatticeNoise:
    """The least variance at which the noise alone is within the budget, by balls, and all that goes with it."""

    def at(variance: float) -> LatticeNoise:
        shared = Fraction(0) if gamma is None else _dyadic_up(variance / gamma)
        own = _dyadic_up(variance) if gamma is None else shared * gamma
        return LatticeNoise(lattice, own, shared, 1, offset, () if terms is None else terms.noise(own))

    def excess(variance: float) -> float:
        family = lattice_family(at(variance), contract, epsilon=budget.epsilon, scale=budget.delta)
        return log_excess(balls.upper(family.gaussian_worst(0)), budget.delta)

    with balls.precision(bits_for(budget.delta)):
        return at(least_passing(excess, (lattice * noise.sigma) ** 2, relative=1e-8))


def _limit(
    noise: Noise, budget: Budget, contract: Contract, variance: Fraction, shared: Fraction, lattice: int
) -> int:
    """The least whole limit at which the infinite event is within the budget, in doubles."""

    def passes(limit: int) -> bool:
        value = infinite_event_discrete(
            count=contract.items, variance=float(variance), variance_shared=float(shared), limit=limit,
            smallest=budget.delta,
        )  # fmt: skip
        return value <= budget.delta

    low, high = 0, max(1, math.ceil(lattice * noise.tau))
    while not passes(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high
