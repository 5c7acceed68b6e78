"""Given noise and threshold: delta under every analysis that applies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from dphist.aliases import JsonObject
from dphist.display import Listing
from dphist.errors import InvalidParameter, NotPrivate, positive_number
from dphist.model import Budget, Contract, Noise, Proof
from dphist.paper.analyses import ANALYSES_BY_NAME, PAPER_ANALYSES, Gamma, gamma_value, least_tau
from dphist.proof.continuous import certify_noise, delta_of_all_cases
from dphist.proof.searches import round_up


@dataclass(frozen=True)
class Certification(Listing):
    """Bounds of delta of given noise.

    Attributes:
        noise: The noise.
        contract: The public bounds.
        proof: The certified bound, with the worst neighbours.
        delta: Upper bounds by analysis; that of "exact" is the certified one.
        delta_lower: A lower bound.
        delta_exact: The value itself, if it was asked for and could be computed.
    """

    noise: Noise
    contract: Contract
    proof: Proof
    delta: dict[str, float] = field(hash=False)
    delta_lower: float
    delta_exact: float | None = None

    def to_dict(self) -> JsonObject:
        """The keys of `dphist certify --json`."""
        return {
            "mechanism": self.noise.mechanism,
            "epsilon": self.proof.epsilon,
            "max_nonzero": self.contract.max_nonzero,
            "max_items_per_user": self.contract.items,
            **self.noise.to_dict(),
            "delta": dict(self.delta),
            "delta_lower": self.delta_lower,
            "delta_exact": self.delta_exact,
            "binding_case": self.proof.binding_case.to_dict(),
        }

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("tau", f"{self.noise.tau!r}"),
            ("delta, at most", f"{self.proof.delta:.10g} (certified)"),
            (
                ("delta, at least", f"{self.delta_lower:.10g}")
                if self.delta_exact is None
                else ("delta, exact", f"{self.delta_exact:.10g} (to 9 digits)")
            ),
            *((f"bound {name}", f"{value:.10g}") for name, value in self.delta.items() if name != "exact"),
            ("worst neighbours", str(self.proof.binding_case)),
        ]

    @property
    def title(self) -> str:
        return f"delta at epsilon = {self.proof.epsilon:g}"


_SURELY_BROKEN: Final = 1.0 - 1e-12


def certify(
    *,
    epsilon: float,
    sigma: float,
    tau: float | None = None,
    sigma_shared: float | None = None,
    gamma: Gamma | None = None,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    delta: float | None = None,
    exact: bool = False,
) -> Certification:
    """Bounds of delta at epsilon for given noise and threshold, under every analysis that applies.

    The bound of "exact" is certified in ball arithmetic; it is the value itself unless mixed neighbours are the
    worst.

    >>> import dphist
    >>> found = dphist.certify(epsilon=1, sigma=30, tau=165, max_items_per_user=50)
    >>> print(f"{found.delta['exact']:.3g} at most, {found.delta['gshm-add-the-deltas']:.3g} by added deltas")
    9.49e-07 at most, 1.87e-06 by added deltas

    Args:
        epsilon: The ε at which to bound δ.
        sigma: Standard deviation of each count's own noise.
        tau: Threshold minus one. Left out: the least one that is certified for `delta`.
        sigma_shared: Standard deviation of the shared noise.
        gamma: In place of `sigma_shared`: variance of own over shared noise, or "sqrt".
        max_nonzero: The most non-zero counts of any dataset.
        max_items_per_user: The most counts that one user contributes to.
        delta: The largest δ that is accepted.
        exact: Whether to find δ itself by trying all neighbours, which may take minutes.

    Raises:
        NotPrivate: The certified bound exceeds `delta`; without `delta`, 1 - 1e-12.
    """
    least, given = tau is None, 1.0 if tau is None else tau
    noise, contract = given_noise(sigma, given, sigma_shared, gamma, max_nonzero, max_items_per_user)
    epsilon = Budget(epsilon, 0.5 if delta is None else delta).epsilon
    if least:
        noise = _with_least_tau(noise, contract, epsilon, delta)
    certificate = certify_noise(noise, contract, epsilon=epsilon, budget=delta)
    if certificate.delta > (_SURELY_BROKEN if delta is None else delta):
        certificate = certify_noise(noise, contract, epsilon=epsilon)
        raise NotPrivate(
            f"the plan (sigma {noise.sigma:g}, shared {noise.sigma_shared:g}, tau {noise.tau:g}) is not private: "
            f"at epsilon = {epsilon:g} its delta is {certificate.delta!r}"
            + ("" if delta is None else f", above {delta!r}")
        )
    deltas = {"exact": certificate.delta}
    if noise.sigma_shared == 0.0 or contract.max_nonzero is not None:
        for name in (name for name in PAPER_ANALYSES if name.startswith(noise.mechanism)):
            deltas[name] = min(1.0, PAPER_ANALYSES[name].delta(contract, noise, epsilon))
    lower, value = certificate.delta_lower, None
    if exact:
        found, complete = delta_of_all_cases(noise, contract, epsilon=epsilon)
        lower = max(lower, min(found, certificate.delta))
        value = lower if complete else None
    return Certification(noise, contract, certificate, deltas, lower, value)


def _with_least_tau(noise: Noise, contract: Contract, epsilon: float, delta: float | None) -> Noise:
    if delta is None:
        raise InvalidParameter("give <--tau>, or <--delta> for the least tau")
    exact, budget = ANALYSES_BY_NAME["exact"], Budget(epsilon, delta)
    tau = least_tau(exact, contract, budget, sigma=noise.sigma, sigma_shared=noise.sigma_shared)
    if math.isinf(tau):
        raise NotPrivate(f"no tau is enough: the noise is too small for epsilon = {epsilon:g}, delta = {delta:g}")
    # It was found in doubles.
    for step in (1e-9, 4e-9, 1.6e-8):
        noise = replace(noise, tau=round_up(tau))
        if certify_noise(noise, contract, epsilon=epsilon, budget=delta).delta <= delta:
            break
        tau *= 1.0 + step
    return noise


class GivenNoise(NamedTuple):
    noise: Noise
    contract: Contract


def given_noise(
    sigma: float,
    tau: float,
    sigma_shared: float | None = None,
    gamma: Gamma | None = None,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
) -> GivenNoise:
    contract = Contract(max_nonzero, max_items_per_user)
    if sigma_shared is not None and gamma is not None:
        raise InvalidParameter(f"give <--sigma-shared> ({sigma_shared!r}) or gamma ({gamma!r}), not both")
    if gamma is not None:
        sigma_shared = positive_number("sigma", sigma) / math.sqrt(gamma_value(gamma, contract))
    return GivenNoise(Noise(sigma, 0.0 if sigma_shared is None else sigma_shared, tau), contract)
