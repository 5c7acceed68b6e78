"""Certificates: upper bounds of delta in ball arithmetic, valid whatever errors the doubles have.

Of noise that can be drawn exactly: lattices, top-k steps with an offset, public lists, Laplace, rounds. Only the
proof that a plan needs is loaded.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import singledispatch

from dphist.errors import InvalidParameter, NotPrivate
from dphist.model import (
    AnyNoise,
    Contract,
    LaplaceNoise,
    LatticeNoise,
    NeighbourCase,
    Proof,
    RoundsNoise,
)
from dphist.proof import balls
from dphist.proof.balls import rational


@singledispatch
def certify_drawn(
    noise: AnyNoise,
    contract: Contract,  # noqa: ARG001
    *,
    epsilon: float,  # noqa: ARG001
    budget: float | None = None,  # noqa: ARG001
) -> Proof:
    """Proof of noise that can be drawn exactly.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact rationals of `noise`.
    """
    raise InvalidParameter(f"{noise.kind} noise cannot be drawn exactly")


@certify_drawn.register(RoundsNoise)
def _certify_rounds(
    noise: RoundsNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Proof:
    if contract != noise.contract:
        raise InvalidParameter(f"the noise of rounds is for {noise.contract}, not for {contract}")
    from dphist.proof.rounds import certify_rounds

    return certify_rounds(noise, epsilon=epsilon, budget=budget)


@certify_drawn.register(LatticeNoise)
def _certify_lattice(
    noise: LatticeNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Proof:
    from dphist.proof.certify_lattice import certify_known_domain, certify_lattice

    certify = certify_known_domain if noise.public else certify_lattice
    return certify(noise, contract, epsilon=epsilon, budget=budget)


@certify_drawn.register(LaplaceNoise)
def _certify_laplace(
    noise: LaplaceNoise,
    contract: Contract,
    *,
    epsilon: float,
    budget: float | None = None,  # noqa: ARG001
) -> Proof:
    return certify_discrete_laplace(noise.scale, noise.tau_steps, contract, epsilon=epsilon)


def certify_discrete_laplace(scale: Fraction, limit: int, contract: Contract, *, epsilon: float) -> Proof:
    """Proof of the discrete Laplace stability histogram with a scale of at least m/epsilon.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact rational scale; exact up to rounding.
    Valid for: scale >= m/epsilon, compared exactly; otherwise raises `NotPrivate`.
    Source: beyond the paper.
    """
    items = contract.items
    if Fraction(items) > scale * Fraction(epsilon):
        raise NotPrivate(f"a Laplace scale of {scale} is below m/epsilon for m = {items}, epsilon = {epsilon!r}")
    with balls.precision(2048):
        rate = rational(1 / scale)
        passes = (-(limit + 1) * rate).exp() / (1 + (-rate).exp())
        delta = balls.upper(1 - (1 - passes) ** items)
    case = NeighbourCase(contract.nonzero - items, items, 0, "add")
    return Proof(epsilon, delta, "laplace", case, math.nextafter(delta, 0.0))
