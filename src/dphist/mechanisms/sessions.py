"""From a plan to a running mechanism, whatever kind of noise it has."""

from __future__ import annotations

from dphist.errors import InvalidParameter
from dphist.mechanisms.base import PlannedSession
from dphist.mechanisms.family import FamilyMechanism
from dphist.mechanisms.known_domain import KnownDomainMechanism
from dphist.mechanisms.laplace import LaplaceMechanism
from dphist.mechanisms.top_k import TopKMechanism
from dphist.sampling.tap import Tap
from dphist.types import LaplaceNoise, LatticeNoise, Plan, PublicNoise


def begin(plan: Plan, tap: Tap, *, subtracted: int = 0) -> tuple[PlannedSession, float | None]:
    """A session of the plan's mechanism, and the noisy offset where the plan releases one.

    `subtracted` is the count that a top-k step took from all others.
    """
    noise, contract, certificate = plan.noise, plan.contract, plan.certificate
    if isinstance(noise, LaplaceNoise):
        return LaplaceMechanism(noise.scale, noise.limit, contract, certificate).begin(tap), None
    if isinstance(noise, PublicNoise):
        return KnownDomainMechanism(noise, contract, certificate).begin(tap), None
    if isinstance(noise, LatticeNoise) and plan.releases_offset:
        session = TopKMechanism(plan).begin(tap, subtracted)
        return session, session.added / noise.lattice
    if isinstance(noise, LatticeNoise):
        return FamilyMechanism(plan).begin(tap), None
    raise InvalidParameter("only discrete noise can be drawn exactly: make the plan with noise='discrete'")
