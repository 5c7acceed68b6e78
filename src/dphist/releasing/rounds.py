"""A release in rounds: items are found, then measured. The only place where its true numbers meet noise.

All numbers are whole steps, `lattice` of them for one user. A draw with k parts of the budget has discrete
Gaussian noise of the variance W/k. Users with one item are a group of their own; what they find leaves the lists
of the others. Then, in round r, every item on the list of somebody gets

    y_r = (sum of the users' weights) + noise,    score_r = k_1 y_1 + ... + k_r y_r.

It is found if the score exceeds the limit of the round, hopeless if it is below the cut, and then leaves all
lists: by noisy numbers alone. Last, users are counted by how many of the found items they have, and these items,
which are public now, are measured with one limit for all. Estimates follow from noisy numbers. See
docs/theory/rounds.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dphist.aliases import ArrowColumn
from dphist.certificate.schema import Findings
from dphist.counting.columns import one_chunk, release_order, take_rows
from dphist.counting.task import Progress, RoundsCount, is_frame
from dphist.model import LaplaceNoise, LatticeNoise, Plan, RoundsNoise
from dphist.planning.estimate import Estimates, Evidence, choose_limit, estimate, size_bounds
from dphist.releasing.noise import CACHED_ROWS, COMPILED_FROM, Job, noise_of_group
from dphist.releasing.result import ARROW, Release, frame_form
from dphist.sampling.rng import Rng, SeededRng
from dphist.sampling.sampler import DiscreteGaussian, Draws, ExactSampler, Fresh

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
FoundIn = NDArray[np.int8]

# Where an item was found, apart from the rounds 1, 2, ...
HIDDEN: Final = -2
KNOWN: Final = -1
ALONE: Final = 0


def noisy(true: IntArray, law: ExactSampler, draws: Draws) -> IntArray:
    """The numbers with noise of this law."""
    compiled = True if true.size >= COMPILED_FROM else None
    parts = [
        true[start : start + CACHED_ROWS]
        + draws.of(law, np.arange(start, min(start + CACHED_ROWS, true.size)), compiled=compiled)
        for start in range(0, max(true.size, 1), CACHED_ROWS)
    ]
    return np.concatenate(parts)


@dataclass(frozen=True)
class Found:
    """The items that may be published, by their number in the engine, and the noisy numbers that found them.

    `found_in` is KNOWN, ALONE or a round. `score` is the pooled evidence of that round, and `alone` the number of
    users with one item, both in users.
    """

    numbers: IntArray = field(repr=False)
    found_in: FoundIn = field(repr=False)
    score: FloatArray = field(repr=False)
    alone: FloatArray | None = field(repr=False)

    def take(self, where: IntArray) -> Found:
        """The items at these positions."""
        alone = None if self.alone is None else self.alone[where]
        return Found(self.numbers[where], self.found_in[where], self.score[where], alone)


def passes_alone(noise: LaplaceNoise | LatticeNoise, users: IntArray, steps: IntArray) -> BoolArray:
    """Which items are found by users with one item, from true numbers and these numbers with noise, in steps."""
    # An item that nobody of this group has is never listed, whatever its noise is.
    return (steps > noise.lattice + noise.tau_steps) & (users > 0)


def pool(
    noise: RoundsNoise, number: int, weights: IntArray, before: IntArray, draws: Draws
) -> tuple[IntArray, BoolArray, BoolArray]:
    """The pooled evidence after round `number`, and which items are found and which stay on the lists.

    All items have a weight above 0: only items on somebody's list get noise and can be listed.
    """
    part, total = noise.parts[number], noise.pooled_parts(number)
    pooled = before + part * noisy(weights, DiscreteGaussian(noise.variance / part), draws)
    found = pooled > total * noise.thresholds_steps[number]
    if number == len(noise.cuts):  # after the last round, lists are of no more use
        return pooled, found, np.zeros(found.size, dtype=np.bool_)
    return pooled, found, ~found & (pooled >= total * noise.cuts[number])


def scores(noise: RoundsNoise, found_in: FoundIn, pooled: IntArray) -> FloatArray:
    """The evidence in users, 0 for items that were not found in a round."""
    totals = np.array([noise.pooled_parts(number) for number in range(len(noise.parts))] or [1])
    in_round = np.maximum(found_in.astype(np.int64), 1) - 1
    return np.where(found_in > ALONE, pooled / (totals[in_round] * noise.lattice), 0.0)


def find_items(noise: RoundsNoise, counted: RoundsCount, rng: Rng) -> Found:
    """All rounds. `counted` is left with the lists of the last one."""
    found_in = np.full(counted.items, HIDDEN, dtype=np.int8)
    found_in[counted.known] = KNOWN
    draws, users = Fresh(rng), None
    if noise.alone is not None:
        true = counted.alone()
        steps = noisy(true * noise.alone.lattice, noise_of_group(noise.alone), draws)
        found_in[passes_alone(noise.alone, true, steps) & (found_in == HIDDEN)] = ALONE
        users = steps / noise.alone.lattice
    counted.leave(np.flatnonzero(found_in != HIDDEN))
    alive, pooled = np.flatnonzero(found_in == HIDDEN), np.zeros(counted.items, dtype=np.int64)
    for number in range(len(noise.parts)):
        weights = counted.round()[alive]
        alive, weights = alive[weights > 0], weights[weights > 0]
        pooled[alive], found, stays = pool(noise, number, weights, pooled[alive], draws)
        found_in[alive[found]] = number + 1
        counted.leave(alive[~stays])
        alive = alive[stays]
    numbers = np.flatnonzero(found_in != HIDDEN)
    score = scores(noise, found_in[numbers], pooled[numbers])
    return Found(numbers, found_in[numbers], score, None if users is None else users[numbers])


@dataclass(frozen=True)
class Measurement:
    """The found items with noise: users by number of found items, in steps, the limit, and what was measured.

    `weights` are in users, `sums` in the units of the values, around the middles of their ranges.
    """

    sizes: tuple[int, ...]
    limit: int
    weights: FloatArray | None = field(default=None, repr=False)
    sums: tuple[FloatArray, ...] = field(default=(), repr=False)

    def take(self, where: IntArray) -> Measurement:
        """The same numbers of the items at these positions; there are none without a measurement."""
        if self.weights is None:
            return self
        return replace(self, weights=self.weights[where], sums=tuple(column[where] for column in self.sums))


def measure_items(plan: Plan, counted: RoundsCount, found: Found, rng: Rng) -> Measurement:
    numbers, bounds = found.numbers, bounds_of(plan)
    sizes, limit = noisy_sizes(plan, counted.sizes(numbers, bounds), by_round(plan, found), rng)
    if limit == 0:
        return unmeasured(plan, sizes)
    weights, *sums = counted.measure(numbers, limit)
    shared = shared_draw(plan, limit, rng)
    draws = [Fresh(rng)] * (1 + len(sums))
    return Measurement(sizes, limit, *noisy_weights(plan, limit, shared, weights, sums, draws))


def unmeasured(plan: Plan, sizes: tuple[int, ...]) -> Measurement:
    """Without a measurement there are no sums; with sums that happens only if nothing was found."""
    return Measurement(sizes, 0, None, tuple(np.empty(0) for _ in plan.summed))


def by_round(plan: Plan, found: Found) -> tuple[int, ...]:
    """The numbers of items that were known, found by users with one item, and found in each round."""
    places = range(KNOWN, len(rounds_noise(plan).parts) + 1)
    return tuple(int(np.count_nonzero(found.found_in == place)) for place in places)


def noisy_sizes(plan: Plan, sizes: Sequence[int], found: Sequence[int], rng: Rng) -> tuple[tuple[int, ...], int]:
    """Users by number of found items, in steps with noise, and the limit of the measurement that follows."""
    noise = rounds_noise(plan)
    true = np.asarray(sizes, dtype=np.int64) * noise.lattice
    steps = tuple(noisy(true, DiscreteGaussian(noise.variance / noise.sizes), Fresh(rng)).tolist())
    return steps, limit_of(plan, steps, found)


def shared_draw(plan: Plan, limit: int, rng: Rng) -> int:
    """The noise that all items of a measurement share, in steps; 0 if they share none."""
    shared = rounds_noise(plan).measure_noise(limit)[1]
    return int(DiscreteGaussian(shared).draw(1, rng)[0]) if shared else 0


def noisy_weights(
    plan: Plan, limit: int, shared: int, weights: IntArray, sums: Sequence[IntArray], draws: Sequence[Draws]
) -> tuple[FloatArray, tuple[FloatArray, ...]]:
    """Measured weights in users and sums in the units of their values, with noise from the source for each."""
    noise = rounds_noise(plan)
    steps = noisy(weights, DiscreteGaussian(noise.measure_noise(limit)[0]), draws[0]) + shared
    pairs = zip(sums, plan.summed, draws[1:], strict=True)
    sums = [noisy(true, DiscreteGaussian(limit * part.variance), source) for true, part, source in pairs]
    values = (column * float(part.step) for column, part in zip(sums, plan.summed, strict=True))
    return steps / noise.lattice, tuple(np.asarray(column, dtype=np.float64) for column in values)


def rounds_noise(plan: Plan) -> RoundsNoise:
    assert plan.rounds is not None
    return plan.rounds


def bounds_of(plan: Plan) -> tuple[int, ...]:
    """The largest number of items in each bucket of `RoundsCount.sizes`."""
    noise = rounds_noise(plan)
    return size_bounds(noise.most_items, noise.listed)


def limit_of(plan: Plan, sizes: Sequence[int], found: Sequence[int]) -> int:
    """The limit of the measurement, from noisy numbers of users in steps and `by_round`: it costs nothing.

    If all items were found by users with one item, there may be nobody else to measure.
    """
    noise, alone = rounds_noise(plan), found[ALONE - KNOWN]
    return choose_limit(
        np.asarray(sizes, dtype=np.float64) / noise.lattice, bounds_of(plan), deviation=noise.sigma_sizes,
        sigma=noise.sigma, items=sum(found), needed=bool(noise.sums) or sum(found) > alone,
    )  # fmt: skip


def evidence_of(plan: Plan, found: Found, measured: Measurement) -> Evidence:
    """What was released about the found items, for `estimate`."""
    noise = rounds_noise(plan)
    own, shared = (math.sqrt(part) / noise.lattice for part in noise.measure_noise(max(1, measured.limit)))
    return Evidence(
        found_in=found.found_in.astype(np.int64),
        score=found.score,
        deviations=tuple(noise.deviation(number) for number in range(len(noise.parts))),
        alone=found.alone,
        alone_deviation=0.0 if noise.alone is None else noise.alone.sigma,
        measured=measured.weights,
        sigma=own,
        shared=shared,
        limit=measured.limit,
        sizes=np.asarray(measured.sizes, dtype=np.float64) / noise.lattice,
        sizes_deviation=noise.sigma_sizes,
        bounds=bounds_of(plan),
        limits=tuple(limit / noise.lattice for limit in noise.thresholds_steps),
        most_items=noise.most_items,
    )


def findings_of(plan: Plan, found: Found, measured: Measurement, estimates: Estimates) -> Findings:
    needed = needed_users(plan, found, estimates)
    return Findings(
        found=by_round(plan, found), sizes=measured.sizes, bounds=bounds_of(plan), limit=measured.limit,
        needed=needed, reason=estimates.reason,
    )  # fmt: skip


def needed_users(plan: Plan, found: Found, estimates: Estimates) -> int | None:
    """The users with which an item is found half of the time, by the items found last.

    Users with many items count for less than 1.
    """
    limits = rounds_noise(plan).thresholds_steps
    if not limits:
        return None
    last = found.found_in == found.found_in.max(initial=HIDDEN)
    score, users = float(found.score[last].sum()), float(estimates.count[last].sum())
    factor = max(1.0, users / score) if score > 0.0 else 1.0
    return math.ceil(factor * limits[-1] / rounds_noise(plan).lattice)


def release_rounds(job: Job, counted: RoundsCount, watch: Progress) -> Release:
    """Find, measure and estimate in this process."""
    found = find_items(rounds_noise(job.plan), counted, job.rng)
    watch(0.8)
    measured = measure_items(job.plan, counted, found, job.rng)
    release = estimated(job, found, measured, counted.rows(found.numbers))
    watch(1.0)
    return release


def estimated(job: Job, found: Found, measured: Measurement, items: Sequence[ArrowColumn]) -> Release:
    """The release of the found items, from noisy numbers alone; `items` are their columns."""
    columns = tuple(one_chunk(column) for column in items)
    # Sums of floats depend on the order of their terms, and that of the engine is not a function of noisy numbers.
    by_item = release_order(np.zeros(found.found_in.size), columns)
    found, measured = found.take(by_item), measured.take(by_item)
    estimates = estimate(evidence_of(job.plan, found, measured))
    findings = findings_of(job.plan, found, measured, estimates)
    numbers = job.columns.estimates(estimates, measured.sums, measured.limit, job.plan)
    by_count = np.argsort(-np.asarray(numbers[job.names.count], dtype=np.float64), kind="stable")
    counts = numbers.pop(job.names.count)[by_count]
    added = {name: values[by_count] for name, values in numbers.items()}
    errors = job.columns.sum_errors(estimates, measured.sums, measured.limit, job.plan)
    rows = tuple(take_rows(column, by_item[by_count]) for column in columns)
    request = job.request
    input_form = frame_form(request.input) if is_frame(request.input) else None
    release = Release(
        rows,
        counts,
        job.plan,
        job.rng.private,
        job.names,
        ARROW,
        added=added,
        input_form=input_form,
        findings=findings,
        sum_errors={name: values[by_count] for name, values in errors.items()},
    )
    return job.complete(release)


def check_drawing_of_rounds(plan: Plan) -> None:
    """Make every law of the noise: noise that cannot be drawn must be an error before events are read."""
    noise, rng = rounds_noise(plan), SeededRng(0)
    variances = {noise.variance / part for part in (*noise.parts, noise.sizes)}
    for limit in (1, noise.most_items):
        variances |= {variance for variance in noise.measure_noise(limit) if variance}
        variances |= {limit * part.variance for part in noise.sums}
    laws = [DiscreteGaussian(variance) for variance in sorted(variances)]
    for law in [*laws, *([] if noise.alone is None else [noise_of_group(noise.alone)])]:
        law.draw(1, rng)
