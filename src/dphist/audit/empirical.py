"""An empirical audit: attack a mechanism, and bound its delta from below by how well the attack does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from scipy import special, stats

from dphist.audit.cases import BoolArray, Case, Score, standard_cases
from dphist.audit.simulate import simulate
from dphist.errors import InvalidParameter
from dphist.mechanisms.base import FloatArray, Mechanism
from dphist.sampling.tap import Tap
from dphist.types import Certificate

_MOST_EVENTS: Final = 4096
_LEAST_RUNS: Final = 1000


@dataclass(frozen=True)
class AuditResult:
    """What an attack proved: delta at `epsilon` is at least `delta_lower`, with the stated confidence."""

    mechanism: str
    epsilon: float
    delta_lower: float
    case: str
    direction: str
    confidence: float
    runs: int
    certificate: Certificate

    @property
    def contradicts(self) -> bool:
        """Whether the certificate cannot be true. Its delta holds for its own epsilon and for all larger ones."""
        return self.epsilon >= self.certificate.epsilon and self.delta_lower > self.certificate.delta

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of `dphist audit --json`."""
        return {
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "delta_lower": self.delta_lower,
            "delta_certified": self.certificate.delta,
            "contradicts": self.contradicts,
            "case": self.case,
            "direction": self.direction,
            "confidence": self.confidence,
            "runs": self.runs,
        }

    def __str__(self) -> str:
        verdict = "CONTRADICTS the certificate" if self.contradicts else "does not contradict the certificate"
        return (
            f"{self.mechanism}: delta({self.epsilon:g}) >= {self.delta_lower:.6g} "
            f"with confidence 1 - {1.0 - self.confidence:.1g} after {self.runs:,} runs\n"
            f"{verdict}, delta({self.certificate.epsilon:g}) <= {self.certificate.delta:.6g}\n"
            f"attack: {self.case}; a user is {self.direction}"
        )


@dataclass(frozen=True)
class _Event:
    """{sign * score >= level}, taken as evidence for H (`added`) or for H'."""

    case: Case
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
    tap: Tap,
    epsilon: float | None = None,
    runs: int = 1_000_000,
    confidence: float = 1.0 - 1e-9,
    more_cases: Sequence[Case] = (),
) -> AuditResult:
    """Attack a mechanism on worst-case neighbours and report what that proves about delta at `epsilon`.

    Half of the runs choose neighbours and an event, the other half estimate its probability on both sides: given
    the choice they are independent binomial draws, so that choosing costs nothing in confidence.

        delta >= Pr[event | one] - e^epsilon Pr[event | other]

    Guarantee: Pr[delta_lower > the true delta] <= 1 - confidence, by Clopper and Pearson, half on each side. For
        `epsilon` None, the certificate's.
    """
    epsilon = mechanism.certificate.epsilon if epsilon is None else epsilon
    if not 0.0 < confidence < 1.0 or not (math.isfinite(epsilon) and epsilon >= 0.0):
        raise InvalidParameter(
            f"confidence must be between 0 and 1 and epsilon not negative, not {confidence!r} and {epsilon!r}"
        )
    cases = (*standard_cases(mechanism.contract), *more_cases)
    each = runs // 4  # sessions of each of the two histograms in the half that counts
    if each < max(_LEAST_RUNS, 50 * len(cases)):
        raise InvalidParameter(f"runs must be at least {4 * max(_LEAST_RUNS, 50 * len(cases))}, not {runs!r}")
    risk = (1.0 - confidence) / 2.0
    event = max(
        (_best_event(case, mechanism, tap, epsilon, each // len(cases), each, risk) for case in cases),
        key=lambda found: found.promise,
    )
    hits = int(event.happens(simulate(mechanism, event.case.counts, each, tap)).sum())
    hits_neighbour = int(event.happens(simulate(mechanism, event.case.neighbour, each, tap)).sum())
    likely, unlikely = (hits, hits_neighbour) if event.added else (hits_neighbour, hits)
    return AuditResult(
        mechanism=mechanism.name,
        epsilon=epsilon,
        delta_lower=delta_lower_bound(likely, unlikely, each, epsilon=epsilon, risk=risk),
        case=event.case.name,
        direction="added" if event.added else "removed",
        confidence=confidence,
        runs=runs,
        certificate=mechanism.certificate,
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
    case: Case, mechanism: Mechanism, tap: Tap, epsilon: float, choosing: int, each: int, risk: float
) -> _Event:
    """The event of a case that promises most, judged on runs of its own."""
    values = simulate(mechanism, case.counts, choosing, tap)
    values_neighbour = simulate(mechanism, case.neighbour, choosing, tap)
    score = case.fit(values, values_neighbour)
    one, other = score(values), score(values_neighbour)
    events = []
    for added, sign in product((True, False), (1, -1)):
        likely, unlikely = (one, other) if added else (other, one)
        promise, level = _best_level(sign * likely, sign * unlikely, epsilon, each, risk)
        events.append(_Event(case, score, added, sign, level, promise))
    return max(events, key=lambda event: event.promise)


def _best_level(one: FloatArray, other: FloatArray, epsilon: float, runs: int, risk: float) -> tuple[float, float]:
    """The bound that {score >= level} promises after `runs` more runs, and that level."""
    one, other = np.sort(one), np.sort(other)
    levels = np.unique(one)
    if levels.size > _MOST_EVENTS:
        levels = levels[np.linspace(0, levels.size - 1, _MOST_EVENTS).astype(np.int64)]
    p = 1.0 - np.searchsorted(one, levels) / one.size
    q = 1.0 - np.searchsorted(other, levels) / other.size
    z = float(-special.ndtri(risk))
    promise = _wilson(p, runs, -z) - math.exp(epsilon) * _wilson(q, runs, z)
    best = int(np.argmax(promise))
    return float(promise[best]), float(levels[best])


def _wilson(p: FloatArray, runs: int, z: float) -> FloatArray:
    """Wilson's limit, lower for negative z: quick, and good enough to choose by."""
    spread = np.sqrt(p * (1.0 - p) / runs + (z / (2.0 * runs)) ** 2)
    return np.asarray((p + z * z / (2.0 * runs) + z * spread) / (1.0 + z * z / runs))
