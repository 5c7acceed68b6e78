"""Plans for a known, public domain: the least noise, and no threshold."""

from __future__ import annotations

import math

from dphist.analysis.certificate import certify_correlated_gaussian
from dphist.analysis.discrete_certificate import certify_known_domain
from dphist.calibrate.analyses import Exact
from dphist.calibrate.lattice import LEAST_SHARED, lattice_and_variances
from dphist.calibrate.optimum import Calibration, tuned
from dphist.calibrate.sums import SumShares, total
from dphist.errors import InvalidParameter, NoPlan
from dphist.mechanisms.idealised import IdealisedKnownDomainMechanism
from dphist.mechanisms.known_domain import KnownDomainMechanism
from dphist.types import Budget, Certificate, Contract, PublicNoise


def known_domain(
    *, epsilon: float, delta: float, domain_size: int, max_items_per_user: int | None = None
) -> KnownDomainMechanism:
    """The quietest mechanism that releases every count of a public list of `domain_size` keys.

    Guarantee: its certificate is within the budget.
    Source: `alg:discrete-correlated-gaussian` with the exact analysis in place of zCDP.
    """
    budget, contract = Budget(epsilon, delta), Contract(domain_size, max_items_per_user)
    noise, certificate = public_noise(budget, contract)
    return KnownDomainMechanism(noise, contract, certificate)


def public_noise(
    budget: Budget, contract: Contract, sums: SumShares | None = None
) -> tuple[PublicNoise, Certificate]:
    """The least noise for a public list of `max_nonzero` items, and its certificate.

    Guarantee: the certificate's delta is within the budget.
    """
    if contract.max_nonzero is None:
        raise InvalidParameter("a known domain needs its size")
    calibration = Calibration(Exact(extra=total(sums)), budget, contract)
    quietest = tuned(calibration, "noise")
    if 0.0 < quietest.sigma_shared < LEAST_SHARED:
        quietest = calibration.best(math.inf, "noise")  # so little is shared that no lattice could hold it
    found = lattice_and_variances(quietest, budget, contract, sums=sums)
    noise = PublicNoise(found.lattice, found.variance, found.variance_shared, sums=found.sums)
    certificate = certify_known_domain(noise, contract, epsilon=budget.epsilon)
    if certificate.delta > budget.delta:
        raise NoPlan(f"no plan near sigma {quietest.sigma!r} could be certified for {budget}")
    return noise, certificate


def idealised_known_domain(
    *, epsilon: float, delta: float, domain_size: int, max_items_per_user: int | None = None
) -> IdealisedKnownDomainMechanism:
    """The same with continuous noise, for experiments only.

    Guarantee: its certificate, for ideal noise, is within the budget.
    Source: `lem:restated-Leb24-for-approx` with the exact sensitivity.
    """
    budget, contract = Budget(epsilon, delta), Contract(domain_size, max_items_per_user)
    noise = tuned(Calibration(Exact(), budget, contract), "noise")
    certificate = certify_correlated_gaussian(noise, contract, epsilon=budget.epsilon)
    if certificate.delta > budget.delta:
        raise NoPlan(f"no plan near sigma {noise.sigma!r} could be certified for {budget}")
    return IdealisedKnownDomainMechanism(noise, contract, certificate)
