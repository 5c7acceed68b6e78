"""Continuous noise, for experiments only: floating point cannot draw it, and what it draws can be attacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.errors import InvalidParameter, NotPrivate
from dphist.privacy.laplace import certify_discrete_laplace, tau_laplace
from dphist.privacy.noise import LaplaceNoise, LatticeNoise, Noise, PublicNoise, SumNoise
from dphist.privacy.types import Budget, CapChoice, Certificate, Contract, Plan
from dphist.sampling.sampler import DiscreteGaussian, DiscreteLaplace, Draws, Fresh
from dphist.sampling.tap import Tap

# What every mechanism looks like: begun once with a tap, then fed batches of one histogram.

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

LARGEST_EXACT: Final = 2**53


@dataclass(frozen=True)
class Released:
    """What may leave: positions in the batch, increasing, and their noisy counts. No true count is in it.

    `sums` are noisy too: those around the middles of their ranges, as values.
    """

    index: IntArray
    values: FloatArray
    sums: tuple[FloatArray, ...] = ()


class Session(Protocol):
    """One run of a mechanism: the shared noise is drawn, and serves every batch of the histogram."""

    def release(self, counts: IntArray) -> Released:
        """Noise and threshold for one batch of counts."""


class PlannedSession(Session, Protocol):
    """A session whose noise can also come from elsewhere than its own tap."""

    @property
    def tap(self) -> Tap:
        """Where its noise comes from otherwise."""

    def release(self, counts: IntArray, draws: Draws | None = None) -> Released:
        """Noise and threshold for one batch of counts, the noise from `draws` if they are given."""


class Mechanism(Protocol):
    """A mechanism with its certificate."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def contract(self) -> Contract:
        """What its certificate takes for granted."""

    @property
    def certificate(self) -> Certificate:
        """The proof of its privacy."""

    def begin(self, tap: Tap) -> Session:
        """Draw the noise that all batches share. One session serves one histogram, once."""


def shared_steps(noise: LatticeNoise, tap: Tap) -> int:
    """The one draw that all counts of a session share, in steps; 0 where nothing is shared."""
    if noise.variance_shared == 0:
        return 0
    return int(DiscreteGaussian(noise.variance_shared).draw(1, tap)[0])


@dataclass(frozen=True)
class Planned:
    """A mechanism that is all in its plan."""

    plan: Plan

    @property
    def contract(self) -> Contract:
        """The plan's."""
        return self.plan.contract

    @property
    def certificate(self) -> Certificate:
        """The plan's."""
        return self.plan.certificate


def checked_counts(counts: object, *, lattice: int) -> IntArray:
    """Counts as int64, refused with one sentence that repeats no count: a true count is a secret."""
    array = np.asarray(counts)
    if array.ndim != 1:
        raise InvalidParameter(f"counts must be one-dimensional, not of shape {array.shape}")
    if array.dtype.kind == "f":
        if np.isnan(array).any():
            raise InvalidParameter("counts must not be NaN")
        if (array != np.floor(array)).any():
            raise InvalidParameter("counts must be whole numbers")
    elif array.dtype.kind not in "iu":
        raise InvalidParameter(f"counts must be numbers, not of type {array.dtype}")
    if array.size and (array.min() < 0 or array.max() > LARGEST_EXACT // lattice):
        raise InvalidParameter(f"counts must be between 0 and 2^53/{lattice}, and one of them is not")
    return array.astype(np.int64, copy=False)


# The family on a lattice: the GSHM without shared noise, the CSH with it.

_BLOCK: Final = 1 << 17
_COMPILED_FROM: Final = 1 << 20


@dataclass(frozen=True)
class FamilySession:
    """One run: a shared draw, and fresh noise for every non-zero count.

    `added` steps come to what has passed the threshold: the noisy offset of a top-k step.
    """

    noise: LatticeNoise
    shared: int = field(repr=False)  # a secret, like all that is drawn
    tap: Tap
    added: int = field(default=0, repr=False)

    def release(self, counts: IntArray, draws: Draws | None = None) -> Released:
        """Noisy counts strictly above the threshold; zero counts draw nothing and are never released."""
        checked = checked_counts(counts, lattice=self.noise.lattice)
        # Many counts are worth the compiled kernel; blocks that stay in the cache are worth it too.
        compiled = True if checked.size >= _COMPILED_FROM else None
        source = draws or Fresh(self.tap)
        parts = [
            self._block(checked[start : start + _BLOCK], start, source, compiled)
            for start in range(0, max(checked.size, 1), _BLOCK)
        ]
        if len(parts) == 1:
            return parts[0]
        return Released(
            np.concatenate([part.index for part in parts]), np.concatenate([part.values for part in parts])
        )

    def _block(self, counts: IntArray, start: int, draws: Draws, compiled: bool | None) -> Released:
        """Noise and threshold for one block that starts at this position of the batch."""
        noise = self.noise
        present = np.flatnonzero(counts)
        steps = draws.of(DiscreteGaussian(noise.variance), present + start, compiled=compiled)
        steps += counts[present] * noise.lattice
        # noisy > 1 + tau, in whole steps: nothing is rounded before the comparison.
        passed = np.flatnonzero(steps > noise.lattice + noise.limit - self.shared)
        return Released(present[passed] + start, (steps[passed] + (self.shared + self.added)) / noise.lattice)


@dataclass(frozen=True)
class FamilyMechanism(Planned):
    """A plan of the family, ready to run.

    noisy_i = H_i + (Z_i + Z_shared)/lattice for every H_i > 0, released iff strictly greater than 1 + tau.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.plan.noise, LatticeNoise):
            raise InvalidParameter("only discrete noise can be drawn exactly: make the plan with noise='discrete'")
        if self.plan.mechanism not in ("gshm", "csh"):
            raise InvalidParameter(f"the plan is for {self.plan.mechanism}, not for the family")

    @property
    def name(self) -> str:
        """`gshm` or `csh`."""
        return self.plan.mechanism

    def begin(self, tap: Tap) -> FamilySession:
        """Draw the shared noise, once."""
        noise = self.plan.noise
        assert isinstance(noise, LatticeNoise)
        return FamilySession(noise, shared_steps(noise, tap), tap)


# The top-k step with its offset: Algorithm 3 of the paper, with counts that are not biased.


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


# The discrete correlated Gaussian mechanism for a known, public domain: no threshold, every key is released.


@dataclass(frozen=True)
class KnownDomainSession:
    """One run: a shared draw, and fresh noise for every key, zero counts included."""

    noise: LatticeNoise
    domain: int
    shared: int = field(repr=False)
    tap: Tap

    def release(self, counts: IntArray, draws: Draws | None = None) -> Released:
        """All noisy counts of a batch of keys."""
        checked = checked_counts(counts, lattice=self.noise.lattice)
        if checked.size > self.domain:
            # The number of keys is public here, so saying it gives nothing away.
            raise InvalidParameter(f"a batch of {checked.size} keys exceeds the public domain of {self.domain}")
        rows = np.arange(checked.size, dtype=np.int64)
        steps = (draws or Fresh(self.tap)).of(DiscreteGaussian(self.noise.variance), rows)
        steps += checked * self.noise.lattice + self.shared
        return Released(rows, steps / self.noise.lattice)


@dataclass(frozen=True)
class KnownDomainMechanism:
    """Algorithm 4 of the paper on a lattice as fine as wanted: counts of a public list of keys.

    The contract's `max_nonzero` is the number of keys. The limit of `noise` plays no part.
    """

    noise: LatticeNoise
    contract: Contract
    certificate: Certificate
    name: str = "known-domain"

    def begin(self, tap: Tap) -> KnownDomainSession:
        """Draw the shared noise, once."""
        return KnownDomainSession(self.noise, int(self.contract.nonzero), shared_steps(self.noise, tap), tap)


# The Laplace stability histogram on whole counts: the classic for users with one item.


@dataclass(frozen=True)
class LaplaceSession:
    """One run: fresh noise for every non-zero count, none of it shared."""

    scale: Fraction
    limit: int
    tap: Tap

    def release(self, counts: IntArray, draws: Draws | None = None) -> Released:
        """Noisy counts strictly above the threshold."""
        checked = checked_counts(counts, lattice=1)
        present = np.flatnonzero(checked)
        noisy = checked[present] + (draws or Fresh(self.tap)).of(DiscreteLaplace(self.scale), present)
        passed = noisy > 1 + self.limit
        return Released(present[passed], noisy[passed].astype(np.float64))


@dataclass(frozen=True)
class LaplaceMechanism:
    """Discrete Laplace noise of a rational scale on non-zero counts, released iff strictly above 1 + limit."""

    scale: Fraction
    limit: int
    contract: Contract
    certificate: Certificate
    name: str = "laplace"

    @classmethod
    def for_budget(cls, budget: Budget, contract: Contract) -> LaplaceMechanism:
        """The least noise and limit for a budget: scale m/epsilon, exactly, and the least whole limit."""
        scale = Fraction(contract.items) / Fraction(budget.epsilon)
        limit = int(tau_laplace(m=contract.items, scale=float(scale), delta=budget.delta, discrete=True))
        for candidate in (limit, limit + 1):
            certificate = certify_discrete_laplace(scale, candidate, contract, epsilon=budget.epsilon)
            if certificate.delta <= budget.delta:
                return cls(scale, candidate, contract, certificate)
        raise NotPrivate(f"no limit near {limit} is certified for {budget}")

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater."""
        return 1.0 + self.limit

    @property
    def variance(self) -> float:
        """Variance of a noisy count."""
        return LaplaceNoise(self.scale, self.limit).sigma ** 2

    def begin(self, tap: Tap) -> LaplaceSession:
        """Nothing is shared, so nothing is drawn yet."""
        return LaplaceSession(self.scale, self.limit, tap)


# Sums beside the counts: noise for the sums of items whose counts have passed.


def noisy_sums(
    noise: Sequence[SumNoise],
    counts: IntArray,
    steps: Sequence[IntArray],
    index: IntArray,
    draws: Sequence[Draws],
) -> tuple[FloatArray, ...]:
    """The sums around the middle of each range, with noise, at the positions `index` of a batch: as values.

    `counts` are the true numbers of users, `steps` their sums in steps from the lower end of the range. Only what
    is released needs noise: whether an item is depends on its count alone.
    """
    released = []
    for one, whole, source in zip(noise, steps, draws, strict=True):
        # Every user is taken at the middle, `reach` steps from the lower end: one user moves this by that at most.
        around = whole[index] - one.reach * counts[index]
        noisy = around + source.of(DiscreteGaussian(one.variance), index)
        released.append(np.asarray(noisy * float(one.step), dtype=np.float64))
    return tuple(released)


# How many users have how many items, with noise: the first step of a release that chooses its cap.


def noisy_sizes(choice: CapChoice, sizes: Sequence[int], tap: Tap) -> tuple[int, ...]:
    """The users of each bucket of `choice`, each with fresh discrete Gaussian noise of its variance.

    All buckets get noise, empty ones too; none is dropped. `sizes` are true counts, and are repeated in no error.
    """
    counts = checked_counts(list(sizes), lattice=1)
    if counts.size != choice.buckets:
        raise InvalidParameter(f"there must be {choice.buckets} buckets of users, not {counts.size}")
    noise = DiscreteGaussian(choice.variance).draw(counts.size, tap)
    return tuple((counts + noise).tolist())


# From a plan to a running mechanism, whatever kind of noise it has.


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


def rounded_normals(n: int, tap: Tap) -> FloatArray:
    """n doubles near independent standard normals, by inversion of 53-bit uniforms. Not exact, not private."""
    uniforms = ((tap.words(n) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return np.asarray(special.ndtri(uniforms), dtype=np.float64)


@dataclass(frozen=True)
class IdealisedSession:
    """One run of the continuous family."""

    noise: Noise
    shared: float
    tap: Tap

    def release(self, counts: IntArray) -> Released:
        """Noisy counts strictly above the threshold."""
        checked = checked_counts(counts, lattice=1)
        present = np.flatnonzero(checked)
        noisy = checked[present] + self.noise.sigma * rounded_normals(present.size, self.tap) + self.shared
        passed = noisy > self.noise.threshold
        return Released(present[passed], noisy[passed])


@dataclass(frozen=True)
class IdealisedKnownDomainSession:
    """One run of continuous correlated noise on a known domain."""

    noise: Noise
    shared: float
    tap: Tap

    def release(self, counts: IntArray) -> Released:
        """All noisy counts of a batch of keys."""
        checked = checked_counts(counts, lattice=1)
        noisy = checked + self.noise.sigma * rounded_normals(checked.size, self.tap) + self.shared
        return Released(np.arange(checked.size, dtype=np.int64), noisy)


@dataclass(frozen=True)
class IdealisedKnownDomainMechanism:
    """The correlated Gaussian mechanism for a public list of keys, with continuous noise: for experiments only."""

    noise: Noise
    contract: Contract
    certificate: Certificate
    name: str = "known-domain-idealised"
    private: bool = False

    def begin(self, tap: Tap) -> IdealisedKnownDomainSession:
        """Draw the shared noise, once."""
        shared = self.noise.sigma_shared * float(rounded_normals(1, tap)[0])
        return IdealisedKnownDomainSession(self.noise, shared, tap)


@dataclass(frozen=True)
class IdealisedMechanism(Planned):
    """The family with continuous noise: its certificate speaks of real numbers, which this does not draw."""

    private: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.plan.noise, Noise):
            raise InvalidParameter("the idealised mechanism takes a plan with noise='continuous'")

    @property
    def name(self) -> str:
        """Marked for what it is."""
        return f"{self.plan.mechanism}-idealised"

    def begin(self, tap: Tap) -> IdealisedSession:
        """Draw the shared noise, once."""
        noise = self.plan.noise
        assert isinstance(noise, Noise)
        return IdealisedSession(noise, noise.sigma_shared * float(rounded_normals(1, tap)[0]), tap)
