"""The conformance suite: what every mechanism must do, whatever its noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from dphist.audit import LARGE, Mechanism, through_protocol
from dphist.errors import InvalidParameter
from dphist.releasing.noise import FloatArray, Released
from dphist.sampling.rng import Rng, SeededRng

# Tests with a stated chance of a false alarm, at most 1e-10 each.

FALSE_ALARM: Final = 1e-10
# Normal tails beyond 8 have 6.2e-16 on each side. Squares are skewed, and the studentised mean of n of them errs
# from the normal tail by a factor of about exp(skewness z^3/(3 sqrt n)): at n = 10,000 it is 130 for squares of
# normals (skewness 2.83) and 8e4 for those of Laplace noise (6.6), which makes 8e-14 and 5e-11.
STUDENT_BOUND: Final = 8.0


def student(samples: FloatArray, expected: float) -> float:
    """The studentised mean of independent samples; its scale is estimated, so fourth moments need no model.

    Not a number, which passes no test, if a sample is missing; 0 for constant samples that are as expected.
    """
    difference = float(samples.mean()) - expected
    error = float(samples.std(ddof=1)) / math.sqrt(samples.size)
    if error == 0.0:
        return 0.0 if difference == 0.0 else math.inf
    return difference / error


def kolmogorov_distance(one: FloatArray, other: FloatArray) -> float:
    """Largest difference of two empirical distribution functions; NaN, a value withheld, counts as lowest."""
    first, second = (np.sort(np.nan_to_num(samples, nan=-np.inf, neginf=-np.inf)) for samples in (one, other))
    points = np.concatenate([first, second])
    below = [np.searchsorted(samples, points, side="right") / samples.size for samples in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def kolmogorov_bound(samples: int, tests: int) -> float:
    """What the largest of `tests` distances of two samples exceeds with probability at most 1e-10.

    Guarantee: Pr[D > d] <= 2 exp(-samples d^2) for two samples of one size, ties or not, from 458 samples on.
    Source: Wei and Dudley 2012.
    """
    return math.sqrt(math.log(2.0 * tests / FALSE_ALARM) / samples)


# The conformance suite: what every mechanism must do, whatever its noise.

_LEAST_RUNS: Final = 10_000
_MOST_ITEMS: Final = 32


@dataclass(frozen=True)
class CheckResult:
    """One check: passed iff |statistic| <= bound."""

    name: str
    statistic: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the mechanism passed; a statistic that is not a number has not."""
        return abs(self.statistic) <= self.bound

    def __str__(self) -> str:
        word = "passed" if self.passed else "FAILED"
        return f"{word}  {self.name}: {self.statistic:.4g} within {self.bound:.4g}"


@dataclass(frozen=True)
class ConformanceReport:
    """All checks of one mechanism."""

    mechanism: str
    runs: int
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(result.passed for result in self.results)

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(result.name for result in self.results if not result.passed)

    def __str__(self) -> str:
        verdict = "conforms" if self.passed else "DOES NOT CONFORM"
        return "\n".join([f"{self.mechanism} {verdict} ({self.runs:,} runs a check)", *map(str, self.results)])


def check_mechanism(
    mechanism: Mechanism,
    *,
    rng: Rng,
    runs: int = 20_000,
    variance: float | None = None,
    covariance: float | None = None,
    threshold: float | None = None,
    known_domain: bool = False,
    only: str | None = None,
) -> ConformanceReport:
    """Run a mechanism through the protocol and check what it releases; `only` names one group of the checks.

    `variance` and `covariance` are those planned for the noise of one count and of two counts, None to skip;
    `threshold` is None for a mechanism without one; with `known_domain` zero counts are released like all others.

    Guarantee: a mechanism that conforms fails a check with probability at most 1e-10 each, below 1e-9 in all, for
        noise no heavier in its tails than Laplace's.
    Valid for: runs >= 10,000; thresholds below 10^5.
    """
    if runs < _LEAST_RUNS:
        raise InvalidParameter(f"runs must be at least {_LEAST_RUNS}, not {runs!r}")
    groups: dict[str, Callable[[], list[CheckResult]]] = {
        "certificate": lambda: [_certificate(mechanism)],
        "shape": lambda: _shape(mechanism, rng, runs // 10, known_domain),
        "moments": lambda: _moments(mechanism, rng, runs, variance, covariance),
        "cut": lambda: _cut(mechanism, rng, runs, threshold),
        "rng": lambda: [_tap_alone(mechanism)],
    }
    results = [result for name in ([only] if only else groups) for result in groups[name]()]
    return ConformanceReport(mechanism.name, runs, tuple(results))


def _certificate(mechanism: Mechanism) -> CheckResult:
    """Epsilon is a positive number and delta between 0 and 1; the statistic is what is wrong with them."""
    certificate = mechanism.proof
    sound = 0.0 < certificate.delta < 1.0 and 0.0 < certificate.epsilon < math.inf
    return CheckResult("certificate: epsilon and delta in range", 0.0 if sound else 1.0, 0.0)


def _items(mechanism: Mechanism) -> int:
    """As many counts as the contract allows, and no more than the statistics need."""
    return int(min(mechanism.contract.nonzero, _MOST_ITEMS))


def _well_formed(released: Released, size: int) -> bool:
    """Positions increasing and inside the batch, one finite value for each."""
    index, values = np.asarray(released.index), np.asarray(released.values)
    return bool(
        index.dtype.kind == "i"
        and index.shape == values.shape == (index.size,)
        and (np.diff(index) > 0).all()
        and (index.size == 0 or (index[0] >= 0 and index[-1] < size))
        and np.isfinite(values).all()
    )


def _shape(mechanism: Mechanism, rng: Rng, runs: int, known_domain: bool) -> list[CheckResult]:
    """Zero counts stay away (all are released on a known domain); every release is well formed."""
    present = min(_items(mechanism), 4)
    mixed = np.array([value for count in (LARGE, 1, LARGE, 2)[:present] for value in (0, count)] + [0, 0])
    batches = [mixed, np.zeros(5, dtype=np.int64), np.zeros(0, dtype=np.int64)]
    zeros, withheld, malformed = 0, 0, 0
    for _ in range(runs):
        session = mechanism.begin(rng)
        for batch in batches:
            released = session.release(batch.copy())
            if _well_formed(released, batch.size):
                zeros += int((batch[released.index] == 0).sum())
                withheld += batch.size - released.index.size
            else:
                malformed += 1
    return [
        CheckResult("counts withheld on a known domain", withheld, 0.0)
        if known_domain
        else CheckResult("zero counts released", zeros, 0.0),
        CheckResult("releases out of order, out of range or not finite", malformed, 0.0),
    ]


def _moments(
    mechanism: Mechanism, rng: Rng, runs: int, variance: float | None, covariance: float | None
) -> list[CheckResult]:
    """Mean, variance and covariance of large counts, in one batch and across two of one session."""
    items = _items(mechanism)
    half = items // 2
    whole = through_protocol(mechanism, [(LARGE,) * items], runs, rng) - LARGE
    results = [CheckResult("mean of the noise", student(whole.mean(axis=1), 0.0), STUDENT_BOUND)]
    if variance is not None:
        statistic = student((whole**2).mean(axis=1), variance)
        results.append(CheckResult("variance of a count", statistic, STUDENT_BOUND))
    if half > 0:
        parted = through_protocol(mechanism, [(LARGE,) * half, (LARGE,) * (items - half)], runs, rng) - LARGE
        together, across = _product(whole, half), _product(parted, half)
        if covariance is not None:
            results += [
                CheckResult("covariance within a batch", student(together, covariance), STUDENT_BOUND),
                CheckResult("covariance across batches", student(across, covariance), STUDENT_BOUND),
            ]
        # Runs of the two kinds are independent, so their differences in pairs are as good as any.
        name = "one shared draw for all batches"
        results.append(CheckResult(name, student(together - across, 0.0), STUDENT_BOUND))
    means = whole.mean(axis=1)[: runs - runs % 2]
    results.append(
        CheckResult("a fresh draw for each session", student(means[::2] * means[1::2], 0.0), STUDENT_BOUND)
    )
    return results


def _product(noise: FloatArray, half: int) -> FloatArray:
    """Product of two means over disjoint counts: its expectation is the covariance of two counts."""
    return np.asarray(noise[:, :half].mean(axis=1) * noise[:, half:].mean(axis=1))


def _cut(mechanism: Mechanism, rng: Rng, runs: int, threshold: float | None) -> list[CheckResult]:
    """Nothing at or below the threshold leaves; without one, everything does.

    The same histogram in another order: each item's value, or absence, has the same distribution.
    """
    # Noisy counts around the threshold: on a lattice some of them fall on it exactly.
    middle = 1 if threshold is None else max(1, math.floor(threshold))
    counts = ((LARGE, middle, middle + 1, max(1, middle - 1), LARGE, 1, middle, 1) * 4)[: _items(mechanism)]
    one = through_protocol(mechanism, [counts], runs, rng)
    other = through_protocol(mechanism, [counts[::-1]], runs, rng)[:, ::-1]
    distance = max(kolmogorov_distance(one[:, i], other[:, i]) for i in range(len(counts)))
    with np.errstate(invalid="ignore"):
        cut = (
            CheckResult("non-zero counts withheld without a threshold", float(np.isnan(one).sum()), 0.0)
            if threshold is None
            else CheckResult("values released at or below the threshold", float((one <= threshold).sum()), 0.0)
        )
    return [cut, CheckResult("effect of the input's order", distance, kolmogorov_bound(runs, len(counts)))]


def _tap_alone(mechanism: Mechanism) -> CheckResult:
    """Words repeated are a release repeated: no randomness comes from anywhere but the rng."""
    counts = (LARGE,) * _items(mechanism)
    one, other = (through_protocol(mechanism, [counts], 20, SeededRng(17)) for _ in range(2))
    different = int((~((one == other) | (np.isnan(one) & np.isnan(other)))).sum())
    return CheckResult("values that the rng's words do not determine", different, 0.0)
