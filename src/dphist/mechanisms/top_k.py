"""The top-k step with its offset: Algorithm 3 of the paper, with counts that are not biased."""

from __future__ import annotations

from dataclasses import dataclass

from dphist.errors import InvalidParameter
from dphist.mechanisms.base import Planned, shared_steps
from dphist.mechanisms.family import FamilySession
from dphist.sampling.tap import Tap
from dphist.types import LatticeNoise


@dataclass(frozen=True)
class TopKMechanism(Planned):
    """For counts from which the (k+1)-th largest, c, was subtracted: noise, threshold, and the noisy c added.

    c~ = c + (Z_c - W)/lattice for the rule `opposite`, c + Z_c/lattice for `independent`. What has passed the
    threshold is released as y_i + c~, and c~ itself may be published.
    """

    name: str = "top-k"

    def __post_init__(self) -> None:
        if not isinstance(self.plan.noise, LatticeNoise) or self.plan.noise.offset == "none":
            raise InvalidParameter("the plan has no offset: make it with top=...")

    def begin(self, tap: Tap, subtracted: int = 0) -> FamilySession:
        """Draw the noise of the offset and the shared noise, once. `subtracted` is c: a true count, a secret."""
        noise = self.plan.noise
        assert isinstance(noise, LatticeNoise)
        shared, own = shared_steps(noise, tap), shared_steps(noise, tap)
        offset = subtracted * noise.lattice + own - (shared if noise.offset == "opposite" else 0)
        return FamilySession(noise, shared, tap, offset)
