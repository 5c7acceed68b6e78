"""`certify`: the delta of a given plan under every analysis that applies; and its whole privacy profile."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

from dphist.display import html_table, text_table
from dphist.errors import LARGEST_EPSILON, InvalidParameter, NotPrivate, finite_number, positive_number
from dphist.planning.planner import Gamma, check_excess, contract_of, gamma_value
from dphist.privacy.certificate import certify_family, certify_noise
from dphist.privacy.exact import delta_family
from dphist.privacy.paper import (
    delta_csh_add_the_deltas,
    delta_csh_tighter,
    delta_gshm_add_the_deltas,
    delta_gshm_exact,
)
from dphist.privacy.search import least_passing, log_excess, round_up
from dphist.privacy.types import AnyNoise, Budget, Certificate, Contract, Noise, Plan

_SURELY_BROKEN = 1.0 - 1e-12
# Steps of a count in which the weights of users are whole numbers.
_LEVEL_STEPS: Final = 512


@dataclass(frozen=True)
class Certification:
    """delta of one plan by analysis name; `exact` is the certificate's."""

    noise: Noise
    contract: Contract
    certificate: Certificate
    delta: dict[str, float] = field(hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of `dphist certify --json`."""
        return {
            "mechanism": self.noise.mechanism,
            "epsilon": self.certificate.epsilon,
            "max_nonzero": self.contract.max_nonzero,
            "max_items_per_user": self.contract.items,
            **({} if self.contract.spread is None else {"spread": self.contract.spread}),
            **self.noise.to_dict(),
            "delta": dict(self.delta),
            "delta_lower": self.certificate.delta_lower,
            "binding_case": self.certificate.binding_case.to_dict(),
        }

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people."""
        return [
            *((f"delta, {name}", f"{value:.10g}") for name, value in self.delta.items()),
            ("delta, at least", f"{self.certificate.delta_lower:.10g}"),
            ("worst neighbours", str(self.certificate.binding_case)),
        ]

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table(f"delta at epsilon = {self.certificate.epsilon:g}", self.rows())


def certify(
    *,
    epsilon: float,
    sigma: float,
    tau: float,
    sigma_shared: float | None = None,
    gamma: Gamma | None = None,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    delta: float | None = None,
    excess: str = "drop",
) -> Certification:
    """Delta at epsilon of a plan given by its noise and threshold, under every analysis that applies.

    With `excess` "spread" users with more items add a smaller weight to each of up to 16 times as many.
    `exact` is an upper bound in ball arithmetic that holds whatever the doubles did. With `delta` given, a plan
    that does not keep to it raises `NotPrivate`; so does one without any privacy.
    """
    contract = contract_of(max_nonzero, max_items_per_user, check_excess(excess) == "spread")
    epsilon = Budget(epsilon, 0.5 if delta is None else delta).epsilon
    noise = _noise(sigma, sigma_shared, gamma, tau, contract)
    certificate = certify_continuous_noise(noise, contract, epsilon=epsilon, budget=delta)
    allowed = _SURELY_BROKEN if delta is None else delta
    if certificate.delta > allowed:
        certificate = certify_continuous_noise(noise, contract, epsilon=epsilon)
        raise NotPrivate(
            f"the plan (sigma {noise.sigma:g}, shared {noise.sigma_shared:g}, tau {noise.tau:g}) is not private: "
            f"at epsilon = {epsilon:g} its delta is {certificate.delta!r}"
            + ("" if delta is None else f", above {delta!r}")
        )
    paper = {} if contract.spread is not None else _paper_deltas(noise, contract, epsilon)
    values = {"exact": certificate.delta, **paper}
    return Certification(noise, contract, certificate, values)


def certify_continuous_noise(
    noise: Noise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Certificate:
    """Certificate of continuous noise, with spread that of the worst level.

    Weights are whole steps of 1/512. In units of a weight, noise and threshold are rounded down, so that a level
    is certified with less of both.
    """
    if contract.spread is None:
        return certify_family(noise, contract, epsilon=epsilon, budget=budget)
    if noise.sigma_shared > 0.0:
        raise InvalidParameter("excess = 'spread' with shared noise is certified for discrete noise: make a plan")
    found = []
    for level in contract.levels(_LEVEL_STEPS):
        weight = Fraction(level.weight, _LEVEL_STEPS)
        down = [math.nextafter(float(x / weight), 0.0) for x in (Fraction(noise.sigma), Fraction(noise.tau) + 1)]
        tau = math.nextafter(down[1] - 1.0, 0.0)
        if tau <= 0.0:
            raise NotPrivate(f"the threshold {noise.threshold:g} hides no new count of a user")
        own = certify_family(
            Noise(down[0], 0.0, tau), Contract(contract.max_nonzero, level.items), epsilon=epsilon
        )
        found.append(replace(own, binding_case=replace(own.binding_case, weight=weight)))
    return max(found, key=lambda one: one.delta)


def _noise(sigma: float, sigma_shared: float | None, gamma: Gamma | None, tau: float, contract: Contract) -> Noise:
    if sigma_shared is not None and gamma is not None:
        raise InvalidParameter(f"give sigma_shared ({sigma_shared!r}) or gamma ({gamma!r}), not both")
    if gamma is not None:
        sigma_shared = positive_number("sigma", sigma) / math.sqrt(gamma_value(gamma, contract))
    return Noise(sigma, 0.0 if sigma_shared is None else sigma_shared, tau)


def _paper_deltas(noise: Noise, contract: Contract, epsilon: float) -> dict[str, float]:
    if noise.sigma_shared == 0.0:
        plain = {"m": contract.items, "sigma": noise.sigma, "tau": noise.tau, "epsilon": epsilon}
        values = {
            "gshm-add-the-deltas": delta_gshm_add_the_deltas(**plain),  # type: ignore[arg-type]
            "gshm-exact": delta_gshm_exact(**plain),  # type: ignore[arg-type]
        }
    elif contract.max_nonzero is not None:
        shared = {
            "k": contract.max_nonzero, "sigma": noise.sigma, "sigma_shared": noise.sigma_shared,
            "tau": noise.tau, "epsilon": epsilon,
        }  # fmt: skip
        values = {
            "csh-add-the-deltas": delta_csh_add_the_deltas(**shared),  # type: ignore[arg-type]
            "csh-tighter": delta_csh_tighter(**shared),  # type: ignore[arg-type]
        }
    else:
        values = {}
    return {name: min(1.0, value) for name, value in values.items()}


def delta_at(plan: Plan, epsilon: float) -> float:
    """delta(epsilon) of a fixed plan, as a certified upper bound; epsilon may be zero."""
    return _delta_at(plan.noise, plan.contract, epsilon)


def _delta_at(noise: AnyNoise, contract: Contract, epsilon: float) -> float:
    number = finite_number("epsilon", epsilon)
    if not 0.0 <= number <= LARGEST_EPSILON:
        raise InvalidParameter(f"epsilon must be between 0 and {LARGEST_EPSILON:g}, not {epsilon!r}")
    if isinstance(noise, Noise):
        return certify_continuous_noise(noise, contract, epsilon=number).delta
    return certify_noise(noise, contract, epsilon=number).delta


def epsilon_at(plan: Plan, delta: float) -> float:
    """The least epsilon, up to rounding, at which a fixed plan is certified for delta.

    Raises `NotPrivate` where no epsilon will do: new counts pass the threshold with a larger probability.
    """
    return _epsilon_at(plan.noise, plan.contract, delta)


def _epsilon_at(noise: AnyNoise, contract: Contract, delta: float) -> float:
    target = Budget(1.0, delta).delta
    floor = _delta_at(noise, contract, LARGEST_EPSILON)
    if floor > target:
        raise NotPrivate(f"no epsilon reaches delta = {delta!r}: delta stays at {floor:.10g}")
    if _delta_at(noise, contract, 0.0) <= target:
        return 0.0

    def excess(epsilon: float) -> float:
        return log_excess(_fast_delta(noise, contract, epsilon), target)

    epsilon = round_up(least_passing(excess, 1.0, relative=1e-10))
    step = 1e-9
    while epsilon < LARGEST_EPSILON:
        if _delta_at(noise, contract, epsilon) <= target:
            return epsilon
        step *= 4.0
        epsilon = round_up(epsilon * (1.0 + step))
    return LARGEST_EPSILON


def _fast_delta(noise: AnyNoise, contract: Contract, epsilon: float) -> float:
    """delta as quickly as the kind of noise allows; on a lattice that is the certificate itself."""
    if isinstance(noise, Noise) and contract.spread is None:
        return delta_family(noise, contract, epsilon=epsilon).delta
    if isinstance(noise, Noise):
        return certify_continuous_noise(noise, contract, epsilon=epsilon).delta
    return certify_noise(noise, contract, epsilon=epsilon).delta


def profile(plan: Plan, epsilons: Iterable[float]) -> list[tuple[float, float]]:
    """The privacy profile as (epsilon, certified delta) pairs."""
    return [(float(epsilon), delta_at(plan, epsilon)) for epsilon in epsilons]


def profile_of(
    *,
    sigma: float,
    tau: float,
    epsilons: Iterable[float],
    deltas: Iterable[float],
    sigma_shared: float | None = None,
    gamma: Gamma | None = None,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    excess: str = "drop",
) -> list[tuple[float, float]]:
    """The privacy profile of a plan given by its numbers: (epsilon, delta) pairs, sorted by epsilon."""
    contract = contract_of(max_nonzero, max_items_per_user, check_excess(excess) == "spread")
    noise = _noise(sigma, sigma_shared, gamma, tau, contract)
    pairs = [(float(epsilon), _delta_at(noise, contract, epsilon)) for epsilon in epsilons]
    pairs += [(_epsilon_at(noise, contract, delta), float(delta)) for delta in deltas]
    if not pairs:
        raise InvalidParameter("a privacy profile needs at least one epsilon or delta")
    return sorted(pairs)
