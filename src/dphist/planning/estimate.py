"""Estimates of the number of users per item, from the noisy results of a release in rounds.

Everything here is post-processing: all inputs are noisy or public. An item found in a round has two views: its
measured weight, which is unbiased but noisy, and its pooled evidence, which is precise but in unknown units. The
evidence is scaled to the measurement and both are combined; the noisy sizes of users turn weights into users.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# The constants are standard deviations of what is assumed before the data are seen. They were chosen on real and
# synthetic tables, so that 95 % intervals hold the truth for over 90 % of the items found there.

# Change of slope, from one bucket to the next, of the logarithm of the density of sizes.
_BEND: Final = 0.7
# The mean size in buckets, relatively, where they have more than one size.
_BUCKET, _NARROW = 0.03, 4.0
# Some users have several found items if a sum of the first sizes is above this many standard deviations.
_CLEAR: Final = 3.0
# The worth of evidence in weights: relative changes between knots of the score, so far apart in logarithms, and
# between rounds.
_KNOT, _STEP, _JUMP = 0.7, 0.1, 0.3
# Taste, which is the relative deviation of that worth between items: the guess, the error of its square, and the
# least value as a part of the guess.
_TASTE, _TASTE_ERROR, _LEAST_TASTE = 0.12, 0.05, 0.4
# The same where the number of users with one item takes the place of the evidence.
_STEP_ALONE, _TASTE_ALONE = 0.3, 0.5
# Factors from weights to users, in parts of what the mean weight lacks to 1: with scores, without any, and for
# each unit of taste above the guess.
_BASE, _BASE_BLIND, _OF_TASTE = 0.15, 0.25, 2.0
# Users with more items than count are in buckets by all of their items: at most so many times as many as count, or
# more. Their mean numbers of items, in these units, if the density of sizes falls with their square (and faster
# beyond the last); the relative errors of these. Above so many standard deviations of noise, margins include that
# there may be such users; from the second to the third number, more and more of them count. Of n items of a user
# the found ones are guessed: as if these were n / _SPREAD draws of a found item; with a relative error.
_TIMES: Final = (2, 4, 8)
_MEAN_TIMES: Final = np.array([1.39, 2.77, 5.55, 12.0])
_TIMES_ERROR: Final = np.array([0.2, 0.2, 0.2, 0.5])
_MAYBE, _LIKELY, _SURE = 1.5, 2.5, 3.0
_SPREAD, _GUESS = 1.5, 0.25
# More items than anybody has.
_ANY: Final = 1 << 40
# The choice of the limit: error of the factor in parts of what the mean weight lacks to 1, and of scores.
_FEAR, _SCORE = 0.35, 0.2
# A release warns if this share of pairs is not counted.
_UNCOUNTED: Final = 0.5
# Typical relative errors of which a release warns: of noise in any case, of tastes with fewer items.
_NOISY, _UNSURE, _FEW = 0.5, 0.1, 5


def size_bounds(most: int, listed: int = 0) -> tuple[int, ...]:
    """The largest number of items of a user in each bucket: 1, 2, 3, 4, 6, 8, 12, 16, ..., `most`, and beyond.

    Nobody has more than `most` items of a public list with so many items.
    """
    powers = [2**k for k in range(most.bit_length())]
    bounds = {1, *powers, *(power + power // 2 for power in powers[1:])}
    beyond = () if listed == most else (*(most * times for times in _TIMES), _ANY)
    return (*sorted(bound for bound in bounds if bound < most), most, *beyond)


def _within(bounds: tuple[int, ...]) -> int:
    """The number of buckets of users all of whose items count."""
    return len(bounds) - (_MEAN_TIMES.size if bounds[-1] == _ANY else 0)


@dataclass(frozen=True)
class _Sizes:
    """Users by their number of found items: smooth, above 0, with the covariance of the logarithms of `users`.

    Of the items of a user, the part `counted` counts, and `rough` is the relative error of that part.
    """

    items: FloatArray
    users: FloatArray
    covariance: FloatArray
    counted: FloatArray
    rough: FloatArray

    @property
    def pairs(self) -> float:
        return float(self.users @ self.items)

    def weights(self, limit: int) -> FloatArray:
        return self.counted * np.minimum(1.0, np.sqrt(limit / (self.counted * self.items)))

    def weight(self, limit: int) -> float:
        """The mean weight of a pair of user and item."""
        return float(self.users @ (self.items * self.weights(limit))) / self.pairs

    def error(self, limit: int) -> float:
        """The relative error of `weight`."""
        pairs = self.users * self.items
        weighted = pairs * self.weights(limit)
        slope = pairs / pairs.sum() - weighted / weighted.sum()
        rough = float(pairs @ self.rough) / self.pairs
        return math.hypot(math.sqrt(max(0.0, float(slope @ self.covariance @ slope))), rough)

    def share_above(self, items: float) -> float:
        """The share of pairs whose users have more items."""
        return float((self.users * self.items)[self.items > items].sum()) / self.pairs

    @property
    def uncounted(self) -> float:
        """The share of pairs that do not count, because their users have too many."""
        return float((self.users * self.items) @ (1.0 - self.counted)) / self.pairs

    def add(self, many: _Many, part: float = 1.0, error: float = 0.0) -> _Sizes:
        """With users who have more items than count, and this part of the found items that are guessed."""
        zeros = np.zeros((self.users.size, many.users.size))
        return _Sizes(
            np.append(self.items, part * many.items), np.append(self.users, many.users),
            np.block([[self.covariance, zeros], [zeros.T, np.diag((many.deviation / many.users) ** 2)]]),
            np.append(self.counted, 1.0 / many.times), np.append(self.rough, np.hypot(many.rough, error)),
        )  # fmt: skip


@dataclass(frozen=True)
class _Many:
    """Users who have more items than count: how many times as many, with relative errors, and found ones.

    Where there may be none, `users` are few, but `deviation` is that of the noise.
    """

    users: FloatArray
    deviation: float
    times: FloatArray
    rough: FloatArray
    items: FloatArray

    def weights(self, parts: FloatArray, limit: int) -> FloatArray:
        """The sum of all weights in a measurement, for parts of the found items that are guessed."""
        counted = np.outer(parts, self.items / self.times)
        return np.asarray(np.minimum(counted, np.sqrt(limit * counted)) @ self.users, dtype=np.float64)


def _many(noisy: FloatArray, deviation: float, most: int, items: int) -> _Many:
    """The users of the last buckets, where there may be some."""
    places = np.flatnonzero(noisy > _MAYBE * deviation)
    users, times = noisy[places], _MEAN_TIMES[places]
    chance = np.clip((users / deviation - _LIKELY) / (_SURE - _LIKELY), 0.01, 1.0)
    found = items * -np.expm1(-most * times / (_SPREAD * items))
    return _Many(chance * users, deviation, times, _TIMES_ERROR[places], np.minimum(found, most * times))


class _Total(NamedTuple):
    """What is known of the sum of all weights."""

    limit: int
    value: float
    deviation: float


def _mean_items(bounds: tuple[int, ...], items: int) -> FloatArray:
    """The mean size in each bucket, if the density of sizes falls with their square."""
    means = []
    for below, last in zip((0, *bounds), bounds, strict=False):
        inverse = 1.0 / np.arange(below + 1.0, last + 1.0)
        means.append(inverse.sum() / (inverse**2).sum())
    return np.minimum(np.array(means, dtype=np.float64), items)


def _smooth(
    noisy: FloatArray, deviation: float, bounds: tuple[int, ...], items: int, total: _Total | None = None
) -> _Sizes:
    """The most likely sizes, by Levenberg and Marquardt in the logarithm of the density."""
    sizes, last = _mean_items(bounds, items), np.array(bounds, dtype=np.float64)
    first = np.append(0.0, last[:-1])
    possible, width, buckets = first < items, last - first, last.size
    bend = np.diff(np.eye(buckets), 2, axis=0) / _BEND if buckets > 2 else np.zeros((0, buckets))
    row = np.zeros(buckets)
    if total is not None:
        row = sizes * np.minimum(1.0, np.sqrt(total.limit / sizes)) / total.deviation

    def misfit(log: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        users = np.where(possible, width * np.exp(np.minimum(log, 60.0)), 0.0)
        seen = np.where(possible, users - noisy, 0.0) / deviation
        whole = row @ users - (total.value / total.deviation if total else 0.0)
        slopes = np.vstack((np.diag(users) / deviation, bend, row * users))
        return users, np.concatenate((seen, bend @ log, [whole])), slopes

    log, damping = np.log(np.maximum(noisy, deviation / 2.0) / width), 1.0
    users, off, slopes = misfit(log)
    for _ in range(40):
        square = slopes.T @ slopes
        step = _solution(square + damping * np.diag(np.diag(square) + 1e-3), slopes.T @ off)
        moved = log - np.clip(step, -2.0, 2.0)
        trial = misfit(moved)
        gain = float(off @ off - trial[1] @ trial[1])
        damping *= 0.2 if gain > 0.0 else 5.0
        if gain > 0.0:
            log, (users, off, slopes) = moved, trial
        if abs(gain) < 1e-4 or damping > 1e9:
            break
    covariance = _solution(slopes.T @ slopes + 0.01 * np.eye(buckets), np.eye(buckets))
    return _Sizes(sizes, np.maximum(users, 1e-12), covariance, np.ones(buckets), np.zeros(buckets))


def _solution(square: FloatArray, right: FloatArray) -> FloatArray:
    """The solution for a symmetric matrix, which is singular in doubles if noise is tiny beside the numbers."""
    try:
        solution = np.linalg.solve(square, right)
    except np.linalg.LinAlgError:
        solution = np.linalg.lstsq(square, right, rcond=None)[0]
    return np.asarray(solution, dtype=np.float64)


def _somebody(noisy: FloatArray, deviation: float) -> bool:
    """Whether it is clear that some users have several found items."""
    sums = np.cumsum(noisy) / np.sqrt(np.arange(1.0, noisy.size + 1.0))
    return bool(noisy.size) and float(sums.max()) > _CLEAR * deviation


def choose_limit(
    sizes: FloatArray, bounds: tuple[int, ...], deviation: float, sigma: float, items: int, *, needed: bool = False
) -> int:
    """The limit of the measurement for noisy numbers of users by size; 0 if there is nobody to measure.

    `sigma` is the noise of the measurement at a limit of 1, in users. The limit is at least 1 if it is `needed`:
    if items are known in advance or were found by users with several items.
    """
    noisy = np.asarray(sizes, dtype=np.float64)
    if not items or not (needed or _somebody(noisy, deviation)):
        return 0
    within = _within(bounds)
    bounds = bounds[:within]
    many = _many(noisy[within:], deviation, bounds[-1], items)
    seen = _smooth(noisy[:within], deviation, bounds, items).add(many)
    typical = max(seen.pairs / items, 1.0)

    def loss(limit: int) -> float:
        weight = seen.weight(limit)
        noise = math.sqrt(limit) * sigma / (typical * weight)
        item = 1.0 / math.hypot(1.0 / noise, 1.0 / _SCORE)
        return math.hypot(noise / math.sqrt(items), item, _FEAR * (1.0 - weight))

    return min(bounds, key=loss)


@dataclass(frozen=True)
class Evidence:
    """What a release in rounds made noisy, for the found items.

    `found_in` is -1 for known and public items, 0 for those found by users with one item, r + 1 for those of
    round r. `score` is the pooled evidence in users (nan without), with the `deviations` and above the `limits`
    of each round. `measured` are weights in users, with noise of their own, `sigma`, and one draw for all of the
    deviation `shared`. `sizes` are users by their number of found items, in buckets up to the `bounds`. Of a user
    only `most_items` items count.
    """

    found_in: IntArray
    score: FloatArray
    deviations: tuple[float, ...]
    alone: FloatArray | None
    alone_deviation: float
    measured: FloatArray | None
    sigma: float
    shared: float
    limit: int
    sizes: FloatArray
    sizes_deviation: float
    bounds: tuple[int, ...]
    limits: tuple[float, ...]
    most_items: int


class Measured(NamedTuple):
    """A column of numbers with standard errors."""

    value: FloatArray
    standard_error: FloatArray


@dataclass(frozen=True)
class Estimates:
    """The number of users of each item, with standard errors; `reason` says why intervals cannot be trusted.

    A count is `weight` times `factor`, where weights are those of the measurement, and users with one item.
    """

    count: FloatArray
    standard_error: FloatArray
    weight: Measured
    factor: Measured
    reason: str | None = None

    def margin(self, level: float) -> FloatArray:
        """Half the width of the confidence intervals of the counts."""
        return _quantile(level) * self.standard_error

    def sum_columns(self, centred: FloatArray, deviation: float, middle: float = 0.0) -> Measured:
        """Sums over all users, from noisy measured sums of (value - middle) and the deviation of their noise."""
        (weight, of_weight), (factor, of_factor) = self.weight, self.factor
        total = factor * (centred + middle * weight)
        noise = factor * np.hypot(deviation, middle * of_weight)
        return Measured(total, np.hypot(noise, total * of_factor / factor))

    def mean_columns(self, centred: FloatArray, deviation: float, low: float, high: float) -> Measured:
        """Means over the users of an item, within the bounds of a user's value."""
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        # Weights of a public list may be near or below zero, where a mean has no meaning.
        safe = np.maximum(self.weight.value, 1.0)
        ratio = np.clip(centred / safe, -half, half)
        noise = np.hypot(deviation, ratio * self.weight.standard_error) / safe
        return Measured(middle + ratio, np.hypot(noise, self._of_tastes(ratio, half)))

    def mean_interval(
        self, centred: FloatArray, deviation: float, low: float, high: float, level: float
    ) -> tuple[FloatArray, FloatArray]:
        """The least and the largest ratio of a sum and a weight that are both within their own intervals.

        Each of the two fails with probability at most (1 - level)/2, so the mean is covered with `level`.
        """
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        z = _quantile((1.0 + level) / 2.0)
        weight, reach = self.weight.value, z * self.weight.standard_error
        fewest, most = np.maximum(weight - reach, 1.0), np.maximum(weight + reach, 1.0)
        least, largest = centred - z * deviation, centred + z * deviation
        bottom = np.clip(np.minimum(least / fewest, least / most), -half, half)
        top = np.clip(np.maximum(largest / fewest, largest / most), -half, half)
        tastes = z * self._of_tastes(np.clip(centred / np.maximum(weight, 1.0), -half, half), half)
        return np.maximum(middle + bottom - tastes, low), np.minimum(middle + top + tastes, high)

    def _of_tastes(self, ratio: FloatArray, half: float) -> FloatArray:
        """Users with small weights may have other values, but none beyond the bounds."""
        return (half - np.abs(ratio)) * self.factor.standard_error / self.factor.value


def _quantile(level: float) -> float:
    return NormalDist().inv_cdf((1.0 + level) / 2.0)


def estimate(evidence: Evidence) -> Estimates:
    """The number of users of each item."""
    e, items = evidence, evidence.found_in.size
    if not items:
        empty = Measured(np.zeros(0), np.zeros(0))
        return Estimates(*empty, weight=empty, factor=Measured(np.ones(0), np.zeros(0)))
    if e.measured is None or e.limit < 1:
        weight, factor, reason = _unmeasured(e)
    else:
        weight, taste = _weights(e, e.measured)
        sizes = _sizes(e, e.measured)
        factor = _factors(e, sizes, weight.value, taste)
        reason = _reason(e, sizes, weight)
    value, error = weight.value * factor.value, weight.standard_error * factor.value
    variance = error**2 + (value * factor.standard_error / factor.value) ** 2
    if e.alone is not None:
        value, variance = value + e.alone, variance + e.alone_deviation**2
    # Somebody has every found item.
    count = np.where(e.found_in >= 0, np.maximum(value, 1.0), value)
    return Estimates(count, np.sqrt(variance), weight, factor, reason)


def _sizes(e: Evidence, measured: FloatArray) -> _Sizes:
    """Sizes that agree with the sum of the measured weights, as far as noise and the width of buckets allow."""
    within, items = _within(e.bounds), measured.size
    bounds, noisy = e.bounds[:within], e.sizes[:within]
    many = _many(e.sizes[within:], e.sizes_deviation, bounds[-1], items)
    alone, value = _smooth(noisy, e.sizes_deviation, bounds, items), float(measured.sum())
    noise = math.hypot(e.sigma * math.sqrt(items), e.shared * items)
    noise = math.hypot(noise, _BUCKET * alone.share_above(_NARROW) * value)
    if not many.users.size:
        return _smooth(noisy, e.sizes_deviation, bounds, items, _Total(e.limit, value, noise))
    # The sum is compared with what the other users explain.
    slope = alone.users * alone.items * alone.weights(e.limit)
    variance = noise**2 + float(slope @ alone.covariance @ slope)
    parts = np.linspace(0.02, 3.0, 150)
    weights, guess = many.weights(parts, e.limit), float(many.weights(np.ones(1), e.limit)[0])
    misfit = (value - slope.sum() - weights) ** 2 / variance + ((weights / guess - 1.0) / _GUESS) ** 2
    chance = np.exp((misfit.min() - misfit) / 2.0)
    chance /= chance.sum()
    part = float(chance @ parts)
    error = math.sqrt(float(chance @ (parts - part) ** 2)) / part
    theirs = float(many.weights(np.array([part]), e.limit)[0])
    unsure = math.hypot(error, many.deviation * math.sqrt(many.users.size) / float(many.users.sum()))
    rest = _Total(e.limit, value - theirs, math.hypot(noise, unsure * theirs))
    return _smooth(noisy, e.sizes_deviation, bounds, items, rest).add(many, part, error)


def _unmeasured(e: Evidence) -> tuple[Measured, Measured, str | None]:
    """Without a measurement, evidence is a lower bound, and a few users may be left in every item."""
    several = e.found_in != 0
    weight = np.where(several, np.nan_to_num(e.score), 0.0)
    error = np.where(several, np.nan, 0.0)
    if e.alone is not None:
        ones = np.maximum(e.alone, 0.0)
        error += 3.0 * e.sizes_deviation * ones / max(float(ones.sum()), 1.0)
    factor = Measured(np.ones(weight.size), np.zeros(weight.size))
    return Measured(weight, error), factor, "nothing was measured" if several.any() else None


def _reason(e: Evidence, sizes: _Sizes, weight: Measured) -> str | None:
    several = e.found_in != 0
    if not several.any():
        return None
    if sizes.uncounted > _UNCOUNTED:
        return f"many users have more than {e.most_items} items, of which only so many count: counts are rough"
    error = float(np.median(weight.standard_error[several] / np.maximum(weight.value[several], 1.0)))
    if error > _NOISY:
        return "the noise is as large as the counts"
    scored = int((e.found_in > 0).sum())
    if error > _UNSURE and several.size / 2 < scored < _FEW:
        return "too few items to compare the tastes of users"
    return None


def _weights(e: Evidence, measured: FloatArray) -> tuple[Measured, FloatArray]:
    """The weights of all items, and how much tastes differ where the evidence tells (nan elsewhere)."""
    value, variance = measured.astype(np.float64), np.full(measured.size, e.sigma**2)
    taste = np.full(measured.size, np.nan)
    scored = (e.found_in > 0) & np.isfinite(e.score)
    if scored.any():
        places = e.found_in[scored]
        view = _View(
            measured[scored], e.sigma, places, np.maximum(e.score[scored], 1.0),
            np.array(e.deviations)[places - 1], step=_STEP, taste=_TASTE, chance=0.0,
        )  # fmt: skip
        (value[scored], variance[scored]), taste[scored] = view.combined()
    first = e.found_in == 0
    if e.alone is not None and first.any():
        view = _View(
            measured[first], e.sigma, e.found_in[first], np.maximum(e.alone[first], 1.0),
            np.full(int(first.sum()), e.alone_deviation), step=_STEP_ALONE, taste=_TASTE_ALONE, chance=1.0,
        )  # fmt: skip
        (value[first], variance[first]), _ = view.combined()
    value = np.where(e.found_in >= 0, np.maximum(value, 0.0), value)
    return Measured(value, np.sqrt(variance + e.shared**2)), taste


@dataclass(frozen=True)
class _View:
    """Measured weights of items, and their scores, whose worth in weights is a smooth function in each group.

    measured = worth(group, score) score (1 + taste) + noise. If scores are numbers of other users, `chance` is 1:
    given its mean, a number of users is a Poisson number. Selection by the score needs no correction: the
    measurement is independent of the luck that made a score large, so the worth of such scores is smaller.
    """

    measured: FloatArray
    sigma: float
    group: IntArray
    score: FloatArray
    deviation: FloatArray
    step: float
    taste: float
    chance: float

    def combined(self) -> tuple[tuple[FloatArray, FloatArray], FloatArray]:
        """Weights with their variances, and the tastes of each item's group."""
        knot, part, smooth = self._knots()
        near, last = 1.0 - part, smooth.shape[0] - 1
        above = np.minimum(knot + 1, last)
        pilot = max(float(self.measured.sum() / self.score.sum()), 1e-3)
        prior = (smooth + 1e-6 * np.eye(last + 1)) / pilot**2
        worth, taste = np.full(self.score.size, pilot), np.full(self.score.size, self.taste)
        for _ in range(3):
            precision = self.score**2 / (self.sigma**2 + self._variance(worth, taste))
            square, right = prior.copy(), np.zeros(last + 1)
            for a, x in ((knot, near), (above, part)):
                right += np.bincount(a, precision * x * self.measured / self.score, last + 1)
                for b, y in ((knot, near), (above, part)):
                    np.add.at(square, (a, b), precision * x * y)
            covariance = _solution(square, np.eye(last + 1))
            worths = covariance @ right
            fitted = near * worths[knot] + part * worths[above]
            worth = np.maximum(fitted, 0.05 * pilot)
            taste = self._tastes(worth, self.measured - fitted * self.score)
        variance = self._variance(worth, taste)
        share = self.sigma**2 / (self.sigma**2 + variance)
        mixed = 2.0 * near * part * covariance[knot, above]
        of_worth = near**2 * covariance[knot, knot] + part**2 * covariance[above, above] + mixed
        value = (1.0 - share) * self.measured + share * worth * self.score
        return (value, share * variance + (share * self.score) ** 2 * of_worth), taste

    def _variance(self, worth: FloatArray, taste: FloatArray | float) -> FloatArray:
        """The variance of weights given the scores."""
        known = worth * self.score
        return (worth * self.deviation) ** 2 + (taste * known) ** 2 + self.chance * known * (1.0 + worth)

    def _knots(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """For each item the knot below its score and the part of the way to the next; the penalty for steps.

        In each group, knots are evenly spaced in the logarithm of the score. Groups follow each other.
        """
        logs, part = np.log(self.score), np.zeros(self.score.size)
        knot, starts = np.zeros(self.score.size, dtype=np.int64), [0]
        for group in np.unique(self.group):
            here = self.group == group
            low, reach = float(logs[here].min()), float(np.ptp(logs[here]))
            steps = min(7, int(reach / _KNOT))
            way = (logs[here] - low) * steps / max(reach, 1e-9)
            below = np.minimum(way.astype(np.int64), max(steps - 1, 0))
            knot[here], part[here] = starts[-1] + below, way - below
            starts.append(starts[-1] + steps + 1)
        size = starts.pop()
        changes = np.diff(np.eye(size), axis=0)
        changes /= np.where(np.isin(np.arange(1, size), starts), _JUMP, self.step)[:, None]
        return knot, part, changes.T @ changes

    def _tastes(self, worth: FloatArray, off: FloatArray) -> FloatArray:
        """The relative deviation of worths, by moments in each group, with what is known a priori."""
        known = (worth * self.score) ** 2
        other = self.sigma**2 + self._variance(worth, 0.0)
        information = (known / (other + self.taste**2 * known)) ** 2
        prior, tastes = 2.0 / (_TASTE_ERROR * (self.taste / _TASTE) ** 2) ** 2, np.zeros(off.size)
        for group in np.unique(self.group):
            here = self.group == group
            squares = (off[here] ** 2 - other[here]) / known[here]
            square = float(information[here] @ squares) + prior * self.taste**2
            tastes[here] = math.sqrt(
                max(square / float(information[here].sum() + prior), (_LEAST_TASTE * self.taste) ** 2)
            )
        return tastes


def _factors(e: Evidence, sizes: _Sizes, weight: FloatArray, taste: FloatArray) -> Measured:
    """Users per weight of each item, with standard errors.

    A user with k items has each item by chance: with probability 1 - exp(-rate g), where g is such that these
    probabilities add up to k. So popular items, which nearly everybody has, have users with fewer items.
    """
    k, use = sizes.items, sizes.users > 1e-9 * sizes.users.sum()
    users, items = sizes.users[use], weight.size
    weighted = users * sizes.weights(e.limit)[use]
    tries = k[use]
    logs = np.log(np.maximum(weight, 1e-3))
    rates, trials = np.linspace(-30.0, 4.0, 240), np.linspace(-1.5, 12.0, 160)
    for _ in range(5):
        sums = np.log(_chances(rates, tries) @ weighted)
        number, edges = np.histogram(np.interp(logs, sums, rates), bins=80)
        expected = _chances(trials, np.exp((edges[1:] + edges[:-1]) / 2.0)) @ number
        tries = np.exp(np.interp(np.log(np.minimum(k[use], 0.97 * items)), np.log(expected), trials))
    chances = _chances(rates, tries)
    factor = np.interp(logs, np.log(chances @ weighted), (chances @ users) / (chances @ weighted))
    mean = sizes.weight(e.limit)
    base = np.where(np.isnan(taste), _BASE_BLIND if np.isnan(taste).all() else _BASE, _BASE)
    odd = np.sqrt(np.maximum(np.nan_to_num(taste) ** 2 - _TASTE**2, 0.0))
    square = float(sizes.users @ (k * sizes.weights(e.limit) ** 2)) / sizes.pairs
    few = max(0.0, square / mean**2 - 1.0) / np.maximum(weight * factor, 1.0)
    error = np.sqrt(sizes.error(e.limit) ** 2 + ((1.0 - mean) * (base + _OF_TASTE * odd)) ** 2 + few)
    return Measured(factor, factor * error)


def _chances(log_rates: FloatArray, tries: FloatArray) -> FloatArray:
    return np.asarray(-np.expm1(-np.outer(np.exp(log_rates), tries)))
