"""Audit a plan by attack: a lower bound on its delta, to compare with the certificate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dphist.aliases import JsonObject
from dphist.errors import InvalidParameter
from dphist.model import Contract, LatticeNoise, Plan, Proof
from dphist.releasing.noise import FloatArray, IntArray, NoiseSession, Released, begin
from dphist.sampling.rng import Rng
from dphist.sampling.sampler import DiscreteGaussian


class Run(Protocol):
    """One run of a mechanism on one histogram; the noise that all batches share is drawn."""

    def release(self, counts: IntArray) -> Released: ...


class Mechanism(Protocol):
    """What can be audited: `begin` starts an independent run, which must match contract and certificate."""

    @property
    def name(self) -> str: ...

    @property
    def contract(self) -> Contract: ...

    @property
    def proof(self) -> Proof: ...

    def begin(self, rng: Rng) -> Run: ...


@dataclass(frozen=True)
class PlannedMechanism:
    """A plan with a bound as a mechanism."""

    plan: Plan

    def __post_init__(self) -> None:
        if self.plan.noise.in_rounds:
            raise InvalidParameter(
                "only a plan with a bound can be audited: give <--max-items-per-user> or "
                "<--max-nonzero>. Releases "
                "without one are attacked by the tests (docs/theory/audit.md)"
            )

    @property
    def name(self) -> str:
        return self.plan.mechanism

    @property
    def contract(self) -> Contract:
        return self.plan.contract

    @property
    def proof(self) -> Proof:
        return self.plan.proof

    def begin(self, rng: Rng) -> NoiseSession:
        return begin(self.plan, rng)


# Pairs of neighbours, each with a score of the output: the attack guesses H from a high or a low score. The bound
# on delta is valid for any score; a poor score only makes it weak.

Score = Callable[[FloatArray], FloatArray]
BoolArray = NDArray[np.bool_]

# Far above any threshold at which an audit detects something, and small enough to keep 33 bits of fraction.
LARGE: Final = 10**6
# A user with more items is attacked by some of them: a smaller pair is a valid pair.
MOST_ITEMS: Final = 64


@dataclass(frozen=True)
class Attack:
    """Neighbours H (with the user) and H' (without), and how to fit a score to runs of both.

    `fit(values, values_neighbour)` gets the runs set aside for choosing: a row each, NaN if not released.
    """

    name: str
    counts: tuple[int, ...]
    neighbour: tuple[int, ...]
    fit: Callable[[FloatArray, FloatArray], Score]


def case_of_counts(name: str, counts: Sequence[int], neighbour: Sequence[int]) -> Attack:
    """A case of any neighbours, given as counts of the same items: it attacks new and changed counts."""
    pairs = sorted(zip(counts, neighbour, strict=True), key=lambda pair: (pair[1] == 0, pair[0] == pair[1]))
    shared = sum(without > 0 for _, without in pairs)
    changed = sum(without > 0 and count != without for count, without in pairs)
    fit = partial(_linear_score, shared=shared, changed=changed)
    return Attack(name, tuple(count for count, _ in pairs), tuple(without for _, without in pairs), fit)


def _linear_score(values: FloatArray, values_neighbour: FloatArray, *, shared: int, changed: int) -> Score:
    """Fisher's discriminant of the shared counts; infinite where a new count was released.

    The log-likelihood ratio of correlated normal noise is linear in the counts and, by symmetry, in the means of
    the changed and of the unchanged ones. Fisher's weights estimate its weights without knowing the noise.
    """

    def features(rows: FloatArray) -> FloatArray:
        kept = np.nan_to_num(rows[:, :shared] - LARGE, nan=-float(LARGE))
        groups = [group for group in (kept[:, :changed], kept[:, changed:]) if group.shape[1] > 0]
        return np.stack([group.mean(axis=1) for group in groups], axis=1) if groups else np.zeros((len(rows), 1))

    def some_new(rows: FloatArray) -> BoolArray:
        return np.asarray(~np.isnan(rows[:, shared:]).all(axis=1))

    given, without = features(values[~some_new(values)]), features(values_neighbour)
    weights = np.zeros(without.shape[1])
    if len(given) > 1:
        pooled = np.atleast_2d(np.cov(given, rowvar=False)) + np.atleast_2d(np.cov(without, rowvar=False))
        weights = np.linalg.pinv(pooled) @ (given.mean(axis=0) - without.mean(axis=0))

    def score(rows: FloatArray) -> FloatArray:
        return np.where(some_new(rows), np.inf, features(rows) @ weights)

    return score


def finest_bit(values: FloatArray) -> FloatArray:
    """-e for the lowest set bit 2^e of all values in a row; -inf where there is none.

    The finest bit of a count with floating-point noise depends on the size of the noise, hence on the count.
    """
    mantissa, exponent = np.frexp(values)
    whole = np.where(np.isfinite(values), mantissa * 2.0**53, 0.0).astype(np.int64)
    lowest = (whole & -whole).astype(np.float64)
    with np.errstate(divide="ignore"):
        fineness = 53.0 - exponent - np.log2(lowest)
    return np.asarray(np.where(lowest > 0, fineness, -np.inf).max(axis=1), dtype=np.float64)


def worst_cases(contract: Contract) -> list[Attack]:
    """Worst-case neighbours under a contract: only new counts, only changed ones, both, bits of small counts."""

    def case(name: str, *, shared: int, changed: int, new: int) -> Attack:
        counts = (LARGE + 1,) * changed + (LARGE,) * (shared - changed) + (1,) * new
        return case_of_counts(name, counts, (LARGE,) * shared + (0,) * new)

    items = min(contract.items, MOST_ITEMS)
    most = items if math.isinf(contract.nonzero) else min(int(contract.nonzero), MOST_ITEMS)
    cases = [case(f"{items} new counts", shared=0, changed=0, new=items)]
    if most > items:
        name = f"{items} new counts beside {most - items} shared ones"
        cases.append(case(name, shared=most - items, changed=0, new=items))
    # The worst number of changes is (gamma + k)/2 with gamma near sqrt k; without shared noise it is m.
    for changed in sorted({items, min(items, round((most + math.sqrt(most)) / 2))}):
        cases.append(case(f"{changed} of {most} shared counts changed", shared=most, changed=changed, new=0))
    new = items // 2
    if new > 0:
        shared = most - new
        changed = min(items - new, shared)
        name = f"{new} new counts, {changed} of {shared} shared counts changed"
        cases.append(case(name, shared=shared, changed=changed, new=new))
    return [*cases, Attack("finest bit of counts 2 or 1", (2,) * items, (1,) * items, lambda *_: finest_bit)]


# Many independent sessions of one mechanism on one small histogram.

_CELLS: Final = 1 << 22  # of noise at once: 32 MB


def simulate(mechanism: Mechanism, counts: Sequence[int], runs: int, rng: Rng) -> FloatArray:
    """Released values of `runs` independent sessions, a row each; NaN for what was not released.

    Guarantee: the distribution of `through_protocol`. Many sessions of a `PlannedMechanism` are drawn at a time; a
        subclass may behave differently, and goes through the protocol.
    """
    if type(mechanism) is PlannedMechanism and mechanism.plan.mechanism in ("gshm", "csh"):
        return _family(mechanism, np.asarray(counts, dtype=np.int64), runs, rng)
    return through_protocol(mechanism, [counts], runs, rng)


def through_protocol(mechanism: Mechanism, batches: Sequence[Sequence[int]], runs: int, rng: Rng) -> FloatArray:
    """`simulate` by `begin` and `release` alone, for a histogram in batches; columns follow the batches."""
    arrays = [np.asarray(batch, dtype=np.int64) for batch in batches]
    starts = np.cumsum([0, *(array.size for array in arrays)])
    out = np.full((runs, int(starts[-1])), np.nan)
    for row in out:
        session = mechanism.begin(rng)
        for start, array in zip(starts, arrays, strict=False):
            # A mechanism that writes into its input must not change the next run.
            released = session.release(array.copy())
            row[start + released.index] = released.values
    return out


def _family(mechanism: PlannedMechanism, counts: IntArray, runs: int, rng: Rng) -> FloatArray:
    """`NoiseSession` vectorised over sessions, with a shared draw for each row."""
    noise = mechanism.plan.noise
    if not isinstance(noise, LatticeNoise):
        raise InvalidParameter("only discrete noise can be drawn")
    out = np.full((runs, counts.size), np.nan)
    present = np.flatnonzero(counts)
    rows = max(1, _CELLS // max(1, present.size))
    for start in range(0, runs, rows):
        size = min(rows, runs - start)
        steps = DiscreteGaussian(noise.variance).draw(size * present.size, rng).reshape(size, present.size)
        steps += counts[present] * mechanism.plan.steps_of_count
        if noise.variance_shared > 0:
            steps += DiscreteGaussian(noise.variance_shared).draw(size, rng)[:, None]
        values = steps / noise.lattice
        values[steps <= noise.lattice + noise.tau_steps] = np.nan
        out[start : start + size, present] = values
    return out


# The attack.

_MOST_EVENTS: Final = 4096
_LEAST_RUNS: Final = 1000


@dataclass(frozen=True)
class AuditResult:
    """What an attack proves: delta at `epsilon` is at least `delta_lower`, with the stated confidence."""

    mechanism: str
    epsilon: float
    delta_lower: float
    case: str
    direction: str
    confidence: float
    runs: int
    proof: Proof

    @property
    def contradicts(self) -> bool:
        """Whether the certificate is false. Its delta holds for its own epsilon and for all larger ones."""
        return self.epsilon >= self.proof.epsilon and self.delta_lower > self.proof.delta

    def to_dict(self) -> JsonObject:
        """Plain data with the keys of `dphist audit --json`."""
        fields = {name: value for name, value in vars(self).items() if name != "proof"}
        return {**fields, "delta_certified": self.proof.delta, "contradicts": self.contradicts}

    def __str__(self) -> str:
        verdict = "CONTRADICTS the certificate" if self.contradicts else "does not contradict the certificate"
        return (
            f"{self.mechanism}: delta({self.epsilon:g}) >= {self.delta_lower:.6g} "
            f"with confidence 1 - {1.0 - self.confidence:.1g} after {self.runs:,} runs\n"
            f"{verdict}, delta({self.proof.epsilon:g}) <= {self.proof.delta:.6g}\n"
            f"attack: {self.case}; a user is {self.direction}"
        )


@dataclass(frozen=True)
class _Event:
    """{sign * score >= level}, as evidence for H (`added`) or for H'; `promise` is the bound that it promises."""

    case: Attack
    score: Score
    added: bool
    sign: int
    level: float
    promise: float

    def happens(self, values: FloatArray) -> BoolArray:
        return np.asarray(self.sign * self.score(values) >= self.level)


def audit(
    mechanism: Mechanism,
    *,
    rng: Rng,
    epsilon: float | None = None,
    runs: int = 1_000_000,
    confidence: float = 1.0 - 1e-9,
    more_cases: Sequence[Attack] = (),
) -> AuditResult:
    """Attack a mechanism on worst-case neighbours, to bound delta at `epsilon` (the certificate's) from below.

    Half of the runs choose neighbours and an event, the other half estimate its probability on both sides. Given
    the choice, these are independent binomial draws, so choosing costs no confidence.

        delta >= Pr[event | H] - e^epsilon Pr[event | H'], and the same with H and H' exchanged

    Guarantee: Pr[delta_lower > the true delta] <= 1 - confidence, by Clopper and Pearson, half on each side.
    """
    epsilon = mechanism.proof.epsilon if epsilon is None else epsilon
    if not 0.0 < confidence < 1.0 or not (math.isfinite(epsilon) and epsilon >= 0.0):
        raise InvalidParameter(
            f"confidence must be between 0 and 1 and epsilon not negative, not {confidence!r} and {epsilon!r}"
        )
    cases = (*worst_cases(mechanism.contract), *more_cases)
    # Sessions of each of the two histograms, in each half.
    sessions, least = runs // 4, max(_LEAST_RUNS, 50 * len(cases))
    if sessions < least:
        raise InvalidParameter(f"runs must be at least {4 * least}, not {runs!r}")
    risk = (1.0 - confidence) / 2.0
    event = max(
        (_best_event(case, mechanism, rng, epsilon, sessions // len(cases), sessions, risk) for case in cases),
        key=lambda event: event.promise,
    )
    hits = int(event.happens(simulate(mechanism, event.case.counts, sessions, rng)).sum())
    hits_neighbour = int(event.happens(simulate(mechanism, event.case.neighbour, sessions, rng)).sum())
    likely, unlikely = (hits, hits_neighbour) if event.added else (hits_neighbour, hits)
    return AuditResult(
        mechanism=mechanism.name,
        epsilon=epsilon,
        delta_lower=delta_lower_bound(likely, unlikely, sessions, epsilon=epsilon, risk=risk),
        case=event.case.name,
        direction="added" if event.added else "removed",
        confidence=confidence,
        runs=runs,
        proof=mechanism.proof,
    )


def delta_lower_bound(hits: int, hits_other: int, runs: int, *, epsilon: float, risk: float) -> float:
    """A lower bound on p - e^epsilon q from binomial hits, at least 0.

    Guarantee: wrong with probability at most 2 `risk`.
    Source: Clopper and Pearson 1934.
    """
    low = float(stats.beta.ppf(risk, hits, runs - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.isf(risk, hits_other + 1, runs - hits_other)) if hits_other < runs else 1.0
    return max(0.0, low - math.exp(epsilon) * high)


def _best_event(
    case: Attack, mechanism: Mechanism, rng: Rng, epsilon: float, choosing: int, sessions: int, risk: float
) -> _Event:
    """The event of a case with the largest bound after `sessions` more runs, judged by `choosing` runs."""
    values = simulate(mechanism, case.counts, choosing, rng)
    values_neighbour = simulate(mechanism, case.neighbour, choosing, rng)
    score = case.fit(values, values_neighbour)
    scores, scores_neighbour = score(values), score(values_neighbour)
    events = []
    for added, sign in product((True, False), (1, -1)):
        likely, unlikely = (scores, scores_neighbour) if added else (scores_neighbour, scores)
        promise, level = _best_level(sign * likely, sign * unlikely, epsilon, sessions, risk)
        events.append(_Event(case, score, added, sign, level, promise))
    return max(events, key=lambda event: event.promise)


def _best_level(
    likely: FloatArray, unlikely: FloatArray, epsilon: float, sessions: int, risk: float
) -> tuple[float, float]:
    """The bound that {score >= level} promises after `sessions` more runs, and the best level."""
    likely, unlikely = np.sort(likely), np.sort(unlikely)
    levels = np.unique(likely)
    if levels.size > _MOST_EVENTS:
        levels = levels[np.linspace(0, levels.size - 1, _MOST_EVENTS).astype(np.int64)]
    p = 1.0 - np.searchsorted(likely, levels) / likely.size
    q = 1.0 - np.searchsorted(unlikely, levels) / unlikely.size
    z = float(-special.ndtri(risk))
    promise = _wilson(p, sessions, -z) - math.exp(epsilon) * _wilson(q, sessions, z)
    best = int(np.argmax(promise))
    return float(promise[best]), float(levels[best])


def _wilson(p: FloatArray, runs: int, z: float) -> FloatArray:
    """Wilson's confidence limit, the lower one for negative z: fast, and good enough for choosing."""
    deviation = np.sqrt(p * (1.0 - p) / runs + (z / (2.0 * runs)) ** 2)
    return np.asarray((p + z * z / (2.0 * runs) + z * deviation) / (1.0 + z * z / runs))
