"""Audit a plan by attack: a lower bound on its delta, to hold against the certificate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dphist.counting.task import Choice, Engine, Events, Task
from dphist.errors import InvalidParameter
from dphist.privacy.types import Certificate, Contract, LatticeNoise, Plan
from dphist.releasing.noise import FloatArray, IntArray, NoiseSession, Released, begin
from dphist.releasing.run import task_of
from dphist.sampling.sampler import DiscreteGaussian
from dphist.sampling.tap import SecureTap, Tap


class Session(Protocol):
    """One run of a mechanism: what all batches of a histogram share is drawn."""

    def release(self, counts: IntArray) -> Released:
        """Noise and threshold for one batch of counts."""


class Mechanism(Protocol):
    """What can be audited: a mechanism with its certificate."""

    @property
    def name(self) -> str:
        ...

    @property
    def contract(self) -> Contract:
        ...

    @property
    def certificate(self) -> Certificate:
        ...

    def begin(self, tap: Tap) -> Session:
        """Draw the noise that all batches share. One session serves one histogram, once."""


@dataclass(frozen=True)
class PlannedMechanism:
    """A plan, ready to run."""

    plan: Plan

    @property
    def name(self) -> str:
        """The plan's mechanism."""
        return self.plan.mechanism

    @property
    def contract(self) -> Contract:
        """The plan's contract."""
        return self.plan.contract

    @property
    def certificate(self) -> Certificate:
        """The plan's certificate."""
        return self.plan.certificate

    def begin(self, tap: Tap) -> NoiseSession:
        """Draw the shared noise, once."""
        return begin(self.plan, tap)


# Pairs of neighbours, each with a score of the output: the attack is to guess H from a high score or a low one.
#
# Whatever the score, the bound on delta is valid: a poor score only makes it weak.

Score = Callable[[FloatArray], FloatArray]
BoolArray = NDArray[np.bool_]

# Far above any threshold that an audit can see something of, and small enough to keep 33 bits of fraction.
LARGE: Final = 10**6
# One user of m = 50,000 items needs no audit of 50,000 columns: a smaller pair is a valid pair.
MOST_ITEMS: Final = 64


@dataclass(frozen=True)
class Case:
    """Neighbours H (with the user) and H' (without), and how to learn a score from runs of both.

    `fit(values, values_neighbour)` sees the runs set aside for choosing, a row each, NaN where nothing was
    released.
    """

    name: str
    counts: tuple[int, ...]
    neighbour: tuple[int, ...]
    fit: Callable[[FloatArray, FloatArray], Score]


def case_of_counts(name: str, counts: Sequence[int], neighbour: Sequence[int]) -> Case:
    """A case of any neighbours, given as the counts of the same items: it looks for new counts and for changes."""
    order = sorted(zip(counts, neighbour, strict=True), key=lambda pair: (pair[1] == 0, pair[0] == pair[1]))
    shared = sum(other > 0 for _, other in order)
    changed = sum(other > 0 and one != other for one, other in order)
    fit = partial(_linear_score, shared=shared, changed=changed)
    return Case(name, tuple(one for one, _ in order), tuple(other for _, other in order), fit)


def family_case(name: str, *, shared: int, changed: int, new: int, weight: int = 1, steps: int = 1) -> Case:
    """`shared` large counts in both, `changed` of them one higher in H, and `new` counts of one in H alone.

    With spread, a user adds `weight` of the `steps` of a count.
    """
    large = LARGE * steps
    neighbour = (large,) * shared + (0,) * new
    counts = (large + weight,) * changed + (large,) * (shared - changed) + (weight,) * new
    return case_of_counts(name, counts, neighbour)


def _linear_score(values: FloatArray, values_neighbour: FloatArray, *, shared: int, changed: int) -> Score:
    """Fisher's discriminant of the shared counts; infinite where a new count was released.

    The log-likelihood ratio of correlated normal noise is linear in the counts, and by symmetry in two means: of
    the changed and of the unchanged. Fisher's weights are its weights, learnt without knowing the noise.
    """

    def features(rows: FloatArray) -> FloatArray:
        kept = np.nan_to_num(rows[:, :shared] - LARGE, nan=-float(LARGE))
        groups = [group for group in (kept[:, :changed], kept[:, changed:]) if group.shape[1] > 0]
        return np.stack([group.mean(axis=1) for group in groups], axis=1) if groups else np.zeros((len(rows), 1))

    def some_new(rows: FloatArray) -> BoolArray:
        return np.asarray(~np.isnan(rows[:, shared:]).all(axis=1))

    one, other = features(values[~some_new(values)]), features(values_neighbour)
    weights = np.zeros(other.shape[1])
    if len(one) > 1:
        pooled = np.atleast_2d(np.cov(one, rowvar=False)) + np.atleast_2d(np.cov(other, rowvar=False))
        weights = np.linalg.pinv(pooled) @ (one.mean(axis=0) - other.mean(axis=0))

    def score(rows: FloatArray) -> FloatArray:
        return np.where(some_new(rows), np.inf, features(rows) @ weights)

    return score


def finest_bit(values: FloatArray) -> FloatArray:
    """-e for the lowest set bit 2^e of a row's values, the finest of them; -inf where there is none.

    Floats added to counts carry bits whose fineness depends on the size of the noise, hence on the count.
    """
    mantissa, exponent = np.frexp(values)
    whole = np.where(np.isfinite(values), mantissa * 2.0**53, 0.0).astype(np.int64)
    lowest = (whole & -whole).astype(np.float64)
    with np.errstate(divide="ignore"):
        fineness = 53.0 - exponent - np.log2(lowest)
    return np.asarray(np.where(lowest > 0, fineness, -np.inf).max(axis=1), dtype=np.float64)


def bits_case(contract: Contract) -> Case:
    """Counts of 2 or of 1, read by the fineness of their bits."""
    items = min(contract.items, MOST_ITEMS)
    return Case("finest bit of counts 2 or 1", (2,) * items, (1,) * items, lambda _one, _other: finest_bit)


def weighted_cases(contract: Contract, lattice: int) -> tuple[Case, ...]:
    """The cases of the first, a middle and the last level of a contract with spread; counts are in steps.

    A level with more items than are simulated would be attacked by a part of its user: the levels below serve.
    """
    all_levels = contract.levels(lattice)
    levels = [level for level in all_levels if level.items <= MOST_ITEMS] or [all_levels[0]]
    cases = []
    for level in dict.fromkeys(levels[place] for place in (0, len(levels) // 2, -1)):
        for case in _count_cases(Contract(contract.max_nonzero, level.items), level.weight, lattice):
            cases.append(replace(case, name=f"{case.name}, with the weight {level.weight / lattice:.3g}"))
    return tuple(cases)


def standard_cases(contract: Contract) -> tuple[Case, ...]:
    """Worst-case neighbours under a contract: only new counts, none, both, and the bits of small counts."""
    return (*_count_cases(contract), bits_case(contract))


def _count_cases(contract: Contract, weight: int = 1, steps: int = 1) -> list[Case]:
    make = partial(family_case, weight=weight, steps=steps)
    items = min(contract.items, MOST_ITEMS)
    most = items if math.isinf(contract.nonzero) else min(int(contract.nonzero), MOST_ITEMS)
    cases = [make(f"{items} new counts", shared=0, changed=0, new=items)]
    if most > items:
        name = f"{items} new counts beside {most - items} shared ones"
        cases.append(make(name, shared=most - items, changed=0, new=items))
    # The worst number of changes is (gamma + j)/2, and gamma is near sqrt k; without shared noise it is m.
    for changed in sorted({items, min(items, round((most + math.sqrt(most)) / 2))}):
        name = f"{changed} of {most} shared counts changed"
        cases.append(make(name, shared=most, changed=changed, new=0))
    new = items // 2
    if new > 0:
        shared = most - new
        changed = min(items - new, shared)
        name = f"{new} new counts, {changed} of {shared} shared counts changed"
        cases.append(make(name, shared=shared, changed=changed, new=new))
    return cases


# Many independent sessions of one mechanism on one small histogram.

_CELLS: Final = 1 << 22  # of noise at once: 32 MB


def simulate(mechanism: Mechanism, counts: Sequence[int], runs: int, tap: Tap) -> FloatArray:
    """Released values of `runs` independent sessions, a row each; NaN for what was not released.

    Guarantee: the distribution of one session per row through the protocol. The family's own class is drawn many
        sessions at a time; a subclass of it may differ, and goes through the protocol like everything else.
    """
    if type(mechanism) is PlannedMechanism and mechanism.plan.mechanism in ("gshm", "csh"):
        return _family(mechanism, np.asarray(counts, dtype=np.int64), runs, tap)
    return through_protocol(mechanism, [counts], runs, tap)


def through_protocol(mechanism: Mechanism, batches: Sequence[Sequence[int]], runs: int, tap: Tap) -> FloatArray:
    """The same by `begin` and `release` alone, the histogram cut into batches; columns follow the batches."""
    arrays = [np.asarray(batch, dtype=np.int64) for batch in batches]
    starts = np.cumsum([0, *(array.size for array in arrays)])
    out = np.full((runs, int(starts[-1])), np.nan)
    for row in out:
        session = mechanism.begin(tap)
        for start, array in zip(starts, arrays, strict=False):
            # The mechanism gets a copy: one that writes into its input must not change the next run.
            released = session.release(array.copy())
            row[start + released.index] = released.values
    return out


def _family(mechanism: PlannedMechanism, counts: IntArray, runs: int, tap: Tap) -> FloatArray:
    """The family, vectorised over sessions: the formula of `NoiseSession`, a shared draw for each row."""
    noise = mechanism.plan.noise
    if not isinstance(noise, LatticeNoise):
        raise InvalidParameter("only discrete noise can be drawn")
    out = np.full((runs, counts.size), np.nan)
    present = np.flatnonzero(counts)
    rows = max(1, _CELLS // max(1, present.size))
    for start in range(0, runs, rows):
        size = min(rows, runs - start)
        steps = DiscreteGaussian(noise.variance).draw(size * present.size, tap).reshape(size, present.size)
        steps += counts[present] * mechanism.plan.steps_of_count
        if noise.variance_shared > 0:
            steps += DiscreteGaussian(noise.variance_shared).draw(size, tap)[:, None]
        values = steps / noise.lattice
        values[steps <= noise.lattice + noise.limit] = np.nan
        out[start : start + size, present] = values
    return out


# An empirical audit: attack a mechanism, and bound its delta from below by how well the attack does.

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
        own = {name: value for name, value in vars(self).items() if name != "certificate"}
        return {**own, "delta_certified": self.certificate.delta, "contradicts": self.contradicts}

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
    cases = (*_cases_of(mechanism), *more_cases)
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


def _cases_of(mechanism: Mechanism) -> tuple[Case, ...]:
    """The worst-case neighbours of a mechanism; with spread, its plan says how many steps a count has."""
    if mechanism.contract.spread is None:
        return standard_cases(mechanism.contract)
    plan = getattr(mechanism, "plan", None)
    if not isinstance(plan, Plan) or not isinstance(plan.noise, LatticeNoise):
        raise InvalidParameter("a mechanism with spread must have its plan, with discrete noise, as `plan`")
    return weighted_cases(plan.contract, plan.noise.lattice)


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


# The counting can be audited without noise, and so exactly: what one user changes must be what the plan allows.


@dataclass(frozen=True)
class Contribution:
    """What one user changes: counts, and sums if there are any, of all items, with the user and without.

    A row for each item, the count first, in the units of the engine. These are true counts: the events must be
    synthetic. `problem` says how the change exceeds what the certificate covers, if it does.
    """

    counts: IntArray = field(repr=False)
    neighbour: IntArray = field(repr=False)
    problem: str | None

    def case(self, name: str) -> Case:
        """These neighbours, to attack the noise with: `audit(..., more_cases=[...])`."""
        return case_of_counts(name, self.counts[:, 0].tolist(), self.neighbour[:, 0].tolist())


def contribution_of_user(
    engine: Engine, plan: Plan, events: Events, without: Events, *, summed: Sequence[str] = ()
) -> Contribution:
    """Count synthetic events under a plan with one user and `without` that user, and compare exactly.

    `summed` names the column of each of the plan's sums. Top-k steps and public lists are not covered.
    """
    cap = plan.contract.items
    task = task_of(plan, events, Choice(SecureTap().words(4).tobytes()), cap, summed)
    with engine:
        found, found_without = (_count_rows(engine, one) for one in (task, replace(task, events=without)))
    items, none = sorted({*found, *found_without}, key=repr), (0,) * (1 + len(plan.sums))
    counts, neighbour = (
        np.array([rows.get(item, none) for item in items], dtype=np.int64).reshape(len(items), len(none))
        for rows in (found, found_without)
    )
    reaches = [one.reach for one in plan.sums]
    return Contribution(counts, neighbour, _problem(counts - neighbour, task.weights or ((cap, 1),), reaches))


def _count_rows(engine: Engine, task: Task) -> dict[Any, tuple[int, ...]]:
    """Items with their counts and sums."""
    names, rows = len(task.events.items), {}
    with engine.count(task) as counted:
        for batch in counted.batches():
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                rows[row[:names]] = row[names:]
    return rows


def _problem(moved: IntArray, levels: Sequence[tuple[int, int]], reaches: Sequence[int]) -> str | None:
    """Why no level covers a user who moves counts and sums by this, a row for each item."""
    unit = levels[0][1]
    by_count = moved[:, 0]
    touched = moved[by_count != 0]
    if moved[by_count == 0].any():
        return "a sum changes where the count does not"
    steps = np.unique(touched[:, 0]).tolist()
    if len(steps) > 1:
        return f"the counts change by different amounts, from {min(steps)} to {max(steps)} of {unit}"
    if not steps:
        return None
    allowed = {weight: items for items, weight in levels}.get(steps[0])
    if allowed is None:
        return f"counts change by {steps[0]} of {unit}, which is not one of the plan's weights"
    if len(touched) > allowed:
        return f"{len(touched)} counts change by {steps[0]} of {unit}, and the plan allows {allowed}"
    for place, reach in enumerate(reaches, start=1):
        # Weighted sums are around the middle of their range already; the others begin at its lower end.
        around = touched[:, place] - (reach if unit == 1 else 0)
        if np.abs(around).max() * unit > reach * steps[0]:
            return f"sum {place} changes by more than {steps[0]} of {unit} of half its range"
    return None
