"""Zero-concentrated and Renyi privacy of plans, with the delta that neither can express."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fractions import Fraction

from dphist.calibrate.certification import delta_at
from dphist.errors import InvalidParameter
from dphist.types import LARGEST_EPSILON, Contract, LaplaceNoise, LatticeNoise, Noise, Plan, PublicNoise

_KNOWN = {"sigma", "sigma_shared", "tau", "lattice", "variance", "variance_shared", "limit", "offset", "scale"}


@dataclass(frozen=True)
class Concentrated:
    """delta-approximate rho-zCDP; both add up over releases."""

    rho: float
    delta: float


@dataclass(frozen=True)
class RenyiCurve:
    """Renyi privacy of every order a above one, but for a probability `delta`: a slope + a/(a-1) log_rest.

    With `pure_items` the first part is that of so many randomised responses of `pure_epsilon` each.
    """

    slope: float
    delta: float
    log_rest: float = 0.0
    pure_epsilon: float = 0.0
    pure_items: int = 0

    def epsilon(self, order: float) -> float:
        """The Renyi epsilon of an order above one: an upper bound."""
        if not order > 1.0:
            raise InvalidParameter(f"order must be greater than 1, not {order!r}")
        gaussian = self.slope * order
        if self.pure_items:
            e = self.pure_epsilon
            # (e^(a e) + e^((1-a) e))/(1 + e^e), the larger power taken out.
            log_sum = order * e + math.log1p(math.exp((1.0 - 2.0 * order) * e)) - e - math.log1p(math.exp(-e))
            gaussian = min(gaussian, self.pure_items * log_sum / (order - 1.0))
        return (gaussian + self.log_rest * order / (order - 1.0)) * (1.0 + 1e-12)


def zcdp_of_plan(plan: Plan) -> Concentrated:
    """delta0-approximate rho-zCDP of a plan.

        rho = D/2  without shared noise;   (sqrt(D/2) + sqrt(h))^2,  h = -log(1 - delta0), with it

    D is the squared sensitivity per variance, delta0 the probability that a new count passes the threshold.
    For Laplace noise, whose losses are m randomised responses of 1/scale, rho = m/(2 scale^2).

    Guarantee: an upper bound of rho, rounded up from the exact rationals, with a certified delta0.
    Valid for: plans without sums.
    Source: Bun and Steinke 2016 (definition 8.1, proposition 3.3), Canonne, Kamath and Steinke 2020 (theorem 4);
    the conditioned noise is derived in docs/accounting.md.
    """
    curve = renyi_of_plan(plan)
    if curve.log_rest == 0.0:
        return Concentrated(curve.slope, curve.delta)
    root = math.sqrt(curve.slope) + math.sqrt(curve.log_rest)
    return Concentrated(root * root * (1.0 + 1e-14), curve.delta)


def renyi_of_plan(plan: Plan) -> RenyiCurve:
    """The Renyi curve of a plan, with an approximate delta0.

        a D/2  without shared noise;   a D/2 - a/(a-1) log(1 - delta0)  with it

    Guarantee: an upper bound for every order a > 1, with a certified delta0.
    Valid for: plans without sums.
    Source: as for `zcdp_of_plan`.
    """
    noise, contract = plan.noise, plan.contract
    if type(contract) is not Contract or any(
        field.name not in _KNOWN and getattr(noise, field.name) != field.default for field in fields(noise)
    ):
        raise InvalidParameter("zCDP and Renyi curves are for plans of counts alone, without sums")
    delta = 0.0 if isinstance(noise, PublicNoise) else delta_at(plan, LARGEST_EPSILON)
    if isinstance(noise, LaplaceNoise):
        slope = _up(Fraction(contract.items) / (2 * noise.scale**2))
        return RenyiCurve(slope, delta, pure_epsilon=_up(1 / noise.scale), pure_items=contract.items)
    slope = _up(squared_sensitivity(noise, contract) / 2)
    shared = noise.sigma_shared > 0.0 and delta > 0.0
    return RenyiCurve(slope, delta, -math.log1p(-delta) * (1.0 + 1e-14) if shared else 0.0)


def squared_sensitivity(noise: Noise | LatticeNoise, contract: Contract) -> Fraction:
    """The squared sensitivity D of a plan without new counts, each move divided by the variance of its draw.

        min over c of  (m (1-c)^2 + (k - m + gamma) c^2)/sigma^2,  0 <= c <= 1/2 a whole number of steps

    The shared draw moves by c and the draw of each count by what is left. With c <= 1/2 fewer changed counts move
    less, so that one c serves them all. A top-k step moves everything by half a count: (k + gamma + h^2 gamma)/4.

    Guarantee: exact rational; an upper bound over all neighbours without new counts.
    Source: as `analysis.sensitivity.squared_sensitivity` and `analysis.top_k.squared_sensitivity_top_k`.
    """
    items = contract.items
    if isinstance(noise, Noise):
        unit = 1 / Fraction(noise.sigma) ** 2
        if noise.sigma_shared == 0.0 or contract.max_nonzero is None:
            return items * unit
        gamma = (Fraction(noise.sigma) / Fraction(noise.sigma_shared)) ** 2
        best = min(Fraction(1, 2), items / (contract.max_nonzero + gamma))
        return (items * (1 - best) ** 2 + (contract.max_nonzero - items + gamma) * best**2) * unit
    unit, gamma_whole = noise.lattice**2 / noise.variance, noise.gamma_whole
    if gamma_whole is None or contract.max_nonzero is None:
        return items * unit
    if noise.offset != "none":
        halves = {"opposite": 1, "independent": 2}[noise.offset]
        return (contract.max_nonzero + gamma_whole * (1 + halves**2)) * unit / 4
    rest, half = contract.max_nonzero - items + gamma_whole, noise.lattice // 2
    near = min(half, noise.lattice * items // (rest + items))
    moves = {Fraction(step, noise.lattice) for step in (0, near, min(half, near + 1), half)}
    return min(items * (1 - c) ** 2 + rest * c**2 for c in moves) * unit


def _up(value: Fraction) -> float:
    """The least double that is not below."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)
