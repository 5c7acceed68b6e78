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
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dphist.counting.task import Progress, RoundsCount, is_frame
from dphist.planning.estimate import Estimates, Evidence, choose_limit, estimate, size_bounds
from dphist.privacy.types import LaplaceNoise, LatticeNoise, Plan, RoundsNoise
from dphist.releasing.document import Findings
from dphist.releasing.noise import Job
from dphist.releasing.result import ARROW, Release, frame_form, one_chunk, release_order, take_rows
from dphist.sampling.sampler import DiscreteGaussian, DiscreteLaplace, Draws, ExactSampler, Fresh
from dphist.sampling.tap import SeededTap, Tap

if TYPE_CHECKING:
    pass

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
FoundIn = NDArray[np.int8]

# Where an item was found, apart from the rounds 1, 2, ...
HIDDEN: Final = -2
KNOWN: Final = -1
ALONE: Final = 0
# Numbers that get noise at once, and from how many on the compiled sampler is worth importing.
_CACHED_ROWS: Final = 1 << 17
_COMPILED_FROM: Final = 1 << 20


@lru_cache(maxsize=32)
def _gaussian(variance: Fraction) -> DiscreteGaussian:
    return DiscreteGaussian(variance)


def noise_of_group(noise: LaplaceNoise | LatticeNoise) -> ExactSampler:
    """The law of the noise of users with one item."""
    return DiscreteLaplace(noise.scale) if isinstance(noise, LaplaceNoise) else _gaussian(noise.variance)


def noisy(true: IntArray, law: ExactSampler, draws: Draws) -> IntArray:
    """The numbers with noise of this law."""
    compiled = True if true.size >= _COMPILED_FROM else None
    parts = [
        true[start : start + _CACHED_ROWS]
        + draws.of(law, np.arange(start, min(start + _CACHED_ROWS, true.size)), compiled=compiled)
        for start in range(0, max(true.size, 1), _CACHED_ROWS)
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


def find_items(noise: RoundsNoise, counted: RoundsCount, tap: Tap) -> Found:
    """All rounds. `counted` is left with the lists of the last one."""
    found_in = np.full(counted.items, HIDDEN, dtype=np.int8)
    found_in[counted.known] = KNOWN
    draws, alone = Fresh(tap), None
    if noise.alone is not None:
        true = counted.alone()
        alone = noisy(true * noise.alone.lattice, noise_of_group(noise.alone), draws)
        # An item that nobody of this group has is never listed, whatever its noise is.
        passed = (alone > noise.alone.lattice + noise.alone.limit) & (true > 0) & (found_in == HIDDEN)
        found_in[passed] = ALONE
    counted.leave(np.flatnonzero(found_in != HIDDEN))
    alive, score, total = np.flatnonzero(found_in == HIDDEN), np.zeros(counted.items), 0
    pooled = np.zeros(counted.items, dtype=np.int64)
    for number, part in enumerate(noise.parts):
        weights = counted.round()[alive]
        # Only items on somebody's list get noise and can be listed.
        alive, weights = alive[weights > 0], weights[weights > 0]
        pooled[alive] += part * noisy(weights, _gaussian(noise.variance / part), draws)
        total += part
        passed = pooled[alive] > total * noise.limits[number]
        stays = ~passed
        if number < len(noise.cuts):
            stays &= pooled[alive] >= total * noise.cuts[number]
        found_in[alive[passed]] = number + 1
        score[alive[passed]] = pooled[alive[passed]] / (total * noise.lattice)
        counted.leave(alive[~stays])
        alive = alive[stays]
    numbers = np.flatnonzero(found_in != HIDDEN)
    users = None if alone is None or noise.alone is None else alone[numbers] / noise.alone.lattice
    return Found(numbers, found_in[numbers], score[numbers], users)


@dataclass(frozen=True)
class Measurement:
    """The found items with noise: users by number of found items, in steps, the limit, and what was measured.

    `weights` are in users, `sums` in the units of the values, around the middles of their ranges.
    """

    sizes: tuple[int, ...]
    limit: int
    weights: FloatArray | None = field(default=None, repr=False)
    sums: tuple[FloatArray, ...] = field(default=(), repr=False)


def measure_items(plan: Plan, counted: RoundsCount, numbers: IntArray, tap: Tap) -> Measurement:
    noise, draws = rounds_noise(plan), Fresh(tap)
    true = np.asarray(counted.sizes(numbers, size_bounds(noise.most_items)), dtype=np.int64)
    sizes = tuple(noisy(true * noise.lattice, _gaussian(noise.variance / noise.sizes), draws).tolist())
    limit = limit_of(plan, sizes, numbers.size)
    if limit == 0:
        return Measurement(sizes, 0)
    own, shared = noise.measure_noise(limit)
    weights, *true_sums = counted.measure(numbers, limit)
    steps = noisy(weights, _gaussian(own), draws)
    if shared:
        steps += _gaussian(shared).draw(1, tap)[0]
    sums = tuple(
        np.asarray(noisy(true, _gaussian(limit * part.variance), draws) * float(part.step), dtype=np.float64)
        for true, part in zip(true_sums, plan.summed, strict=True)
    )
    return Measurement(sizes, limit, steps / noise.lattice, sums)


def rounds_noise(plan: Plan) -> RoundsNoise:
    assert isinstance(plan.noise, RoundsNoise)
    return plan.noise


def limit_of(plan: Plan, sizes: tuple[int, ...], items: int) -> int:
    """The limit of the measurement, from noisy numbers of users in steps: it costs nothing."""
    noise = rounds_noise(plan)
    users = np.asarray(sizes, dtype=np.float64) / noise.lattice
    deviation = noise.sigma_sizes
    # With sums even a few users are measured, because nothing else tells their sums.
    return choose_limit(users, deviation=deviation, sigma=noise.sigma, items=items) or (1 if noise.sums else 0)


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
        bounds=size_bounds(noise.most_items),
        limits=tuple(limit / noise.lattice for limit in noise.limits),
        most_items=noise.most_items,
    )


def findings_of(plan: Plan, found: Found, measured: Measurement, estimates: Estimates) -> Findings:
    rounds = len(rounds_noise(plan).parts)
    by_round = tuple(int(np.count_nonzero(found.found_in == place)) for place in range(KNOWN, rounds + 1))
    needed = needed_users(plan, found, estimates)
    return Findings(by_round, measured.sizes, measured.limit, needed, estimates.reason)


def needed_users(plan: Plan, found: Found, estimates: Estimates) -> int | None:
    """The users with which an item is found half of the time, by the items found last.

    Users with many items count for less than 1.
    """
    limits = rounds_noise(plan).limits
    if not limits:
        return None
    last = found.found_in == found.found_in.max(initial=HIDDEN)
    score, users = float(found.score[last].sum()), float(estimates.count[last].sum())
    factor = max(1.0, users / score) if score > 0.0 else 1.0
    return math.ceil(factor * limits[-1] / rounds_noise(plan).lattice)


def release_rounds(job: Job, counted: RoundsCount, watch: Progress | None) -> Release:
    """Find, measure and estimate in this process."""
    found = find_items(rounds_noise(job.plan), counted, job.tap)
    if watch is not None:
        watch(0.8)
    measured = measure_items(job.plan, counted, found.numbers, job.tap)
    estimates = estimate(evidence_of(job.plan, found, measured))
    findings = findings_of(job.plan, found, measured, estimates)
    columns = tuple(one_chunk(column) for column in counted.rows(found.numbers))
    if watch is not None:
        watch(1.0)
    numbers = job.columns.estimates(estimates, measured.sums, measured.limit, job.plan)
    order = release_order(np.asarray(numbers[job.names.count], dtype=np.float64), columns)
    counts = numbers.pop(job.names.count)[order]
    added = {name: values[order] for name, values in numbers.items()}
    rows = tuple(take_rows(column, order) for column in columns)
    request = job.request
    input_form = frame_form(request.input) if is_frame(request.input) else None
    release = Release(
        rows,
        counts,
        job.plan,
        job.tap.private,
        job.names,
        ARROW,
        added=added,
        input_form=input_form,
        findings=findings,
    )
    return job.complete(release)


def rehearse_rounds(plan: Plan) -> None:
    """Make every law of the noise: noise that cannot be drawn must be an error before events are read."""
    noise, tap = rounds_noise(plan), SeededTap(0)
    variances = {noise.variance / part for part in (*noise.parts, noise.sizes)}
    for limit in (1, noise.most_items):
        variances |= {variance for variance in noise.measure_noise(limit) if variance}
        variances |= {limit * part.variance for part in noise.sums}
    laws = [_gaussian(variance) for variance in sorted(variances)]
    for law in [*laws, *([] if noise.alone is None else [noise_of_group(noise.alone)])]:
        law.draw(1, tap)
