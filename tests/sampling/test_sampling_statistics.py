"""The samplers against their exact laws by chi-square: they pass, and a scale that is wrong by 1 % does not.

Every test here has a false-alarm probability of at most 1e-9 (and, the seeds being fixed, never a sporadic one).
Against a standard deviation that is wrong by 1 % the power is above 0.999, which is computed and tried.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dphist.sampling import ExactSampler, SecureTap, SeededTap, Tap
from dphist.sampling.sampler import Residual, Tape
from dphist.sampling.table import GaussianLaw, LaplaceLaw, SymmetricLaw, build_table

F = Fraction
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

FALSE_ALARM = 1e-9
GAUSSIANS = [GaussianLaw(v) for v in (F(1, 16), F(3, 10), F(4), F(900), F(36 * 10**6), F(10**12))]
LAPLACES = [LaplaceLaw(s) for s in (F(1, 4), F(10, 3), F(1000), F(10**5))]
LAWS: list[SymmetricLaw] = [*GAUSSIANS, *LAPLACES]


def probabilities(law: SymmetricLaw) -> FloatArray:
    """Pr[X = x] for x = -reach ... reach, as a plain sum in double precision, rounded once more."""
    x = np.arange(-law.reach(), law.reach() + 1, dtype=np.float64)
    if isinstance(law, GaussianLaw):
        weights = np.exp(-x * x / (2.0 * float(law.variance)))
    else:
        assert isinstance(law, LaplaceLaw)
        weights = np.exp(-np.abs(x) / float(law.scale))
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def bins(mass: FloatArray, n: int) -> IntArray:
    """Starts of the bins: fifty of equal mass, or in small tables as many as 200 expected draws each allow.

    So many draws keep the statistic close to chi-square far into its tail.
    """
    cumulative = np.cumsum(mass)
    if mass.size > 10_000:
        return np.searchsorted(cumulative, np.arange(0.0, 0.999, 0.02)).astype(np.int64)
    least, starts, held = 200.0 / n, [0], 0.0
    for i, value in enumerate(mass.tolist()):
        if held >= least and 1.0 - cumulative[i - 1] >= least:
            starts.append(i)
            held = 0.0
        held += value
    return np.array(starts, dtype=np.int64)


def p_value(drawn: IntArray, law: SymmetricLaw) -> float:
    """Chi-square of the draws against the law."""
    mass = probabilities(law)
    starts = bins(mass, drawn.size)
    expected = drawn.size * np.add.reduceat(mass, starts)
    assert expected.size >= 3
    where = np.searchsorted(starts, np.clip(drawn + law.reach(), 0, mass.size - 1), side="right") - 1
    observed = np.bincount(where, minlength=starts.size)
    statistic = float((np.square(observed - expected) / expected).sum())
    return float(stats.chi2.sf(statistic, expected.size - 1))


def power(law: SymmetricLaw, other: SymmetricLaw, n: int) -> float:
    """Probability that draws from `other`, a wider law, fail the test of `law`."""
    mass, wide = probabilities(law), probabilities(other)
    cut = other.reach() - law.reach()
    seen = wide[cut : wide.size - cut].copy()
    seen[0] += wide[:cut].sum()
    seen[-1] += wide[wide.size - cut :].sum()
    starts = bins(mass, n)
    expected, found = (n * np.add.reduceat(values, starts) for values in (mass, seen))
    noncentrality = float((np.square(found - expected) / expected).sum())
    limit = stats.chi2.isf(FALSE_ALARM, starts.size - 1)
    return float(stats.ncx2.sf(limit, starts.size - 1, noncentrality))


def wider(law: SymmetricLaw, by: Fraction) -> SymmetricLaw:
    """The same law with another standard deviation or scale."""
    if isinstance(law, GaussianLaw):
        return GaussianLaw(law.variance * by * by)
    assert isinstance(law, LaplaceLaw)
    return LaplaceLaw(law.scale * by)


def draw(law: SymmetricLaw, n: int, tap: Tap) -> IntArray:
    return ExactSampler(Residual(build_table(law))).draw(n, tap)


def enough(law: SymmetricLaw) -> int:
    """Draws for the stated power; the narrow laws show a wrong scale in one draw of thousands only."""
    return 10**7 if law in (GAUSSIANS[0], LAPLACES[0]) else 4 * 10**6


# The others are between these, or as wide as what the next tests look at.
QUICK = [GAUSSIANS[0], GAUSSIANS[4], LAPLACES[3]]


@pytest.mark.parametrize(
    "law", [pytest.param(law, marks=() if law in QUICK else pytest.mark.slow) for law in LAWS], ids=repr
)
def test_draws_follow_the_law_and_a_wrong_scale_is_seen(law: SymmetricLaw) -> None:
    n, wrong = enough(law), wider(law, F(101, 100))
    assert power(law, wrong, n) > 0.999
    assert p_value(draw(law, n, SeededTap(11)), law) > FALSE_ALARM
    assert p_value(draw(wrong, n, SeededTap(12)), law) < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("by", [F(100, 101), F(101, 100)], ids=str)
def test_secure_draws_and_both_wrong_scales(law: SymmetricLaw, by: Fraction) -> None:
    n = 5 * enough(law)
    assert p_value(draw(law, n, SecureTap()), law) > FALSE_ALARM
    assert p_value(draw(wider(law, by), n, SecureTap()), law) < FALSE_ALARM


def test_last_digits_of_wide_noise_are_uniform() -> None:
    """Within blocks of 256 every offset is as likely: chi-square with 1023 degrees of freedom on x mod 1024."""
    drawn = draw(GaussianLaw(F(10**12)), 4 * 10**6, SeededTap(13))
    counts = np.bincount(drawn & 1023, minlength=1024)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "law",
    [
        GaussianLaw(F(10**8)),
        pytest.param(GaussianLaw(F(10**12)), marks=pytest.mark.slow),
        LaplaceLaw(F(10**5)),
    ],
    ids=repr,
)
def test_residual_follows_what_the_table_leaves(law: SymmetricLaw) -> None:
    """The slow path alone, 400,000 draws: by place within the block, and by block."""
    residual = Residual(build_table(law))
    table, n = residual.table, 400_000
    tap = SeededTap(14)
    drawn = residual.magnitudes(n, Tape(np.arange(n), lambda draws, _columns: tap.words(draws.size)))
    mass = probabilities(law)[law.reach() :] * 2.0
    mass[0] /= 2.0
    whole = mass[: (mass.size // table.width) * table.width].reshape(-1, table.width)
    left = whole - np.array(table.units[: len(whole)])[:, None] / 2.0 ** (table.mass_bits + table.offset_bits)
    left /= left.sum()
    grid = np.zeros_like(left, dtype=np.int64)
    np.add.at(grid, (drawn >> table.offset_bits, drawn & (table.width - 1)), 1)
    # Forty groups of blocks, four places within the block (two if it has but two).
    edges = np.unique(np.searchsorted(np.cumsum(left.sum(axis=1)), np.arange(0.0, 0.999, 0.025)))
    places = np.arange(0, table.width, max(1, table.width // 4))
    observed, expected = (
        np.add.reduceat(np.add.reduceat(values, edges, axis=0), places, axis=1).ravel()
        for values in (grid, n * left)
    )
    keep = expected > 20.0
    statistic = float((np.square(observed - expected)[keep] / expected[keep]).sum())
    assert np.abs((observed - expected)[~keep]).sum() < 200
    assert stats.chi2.sf(statistic, int(keep.sum()) - 1) > FALSE_ALARM


class ShortGaussian(GaussianLaw):
    """A Gaussian whose table ends within two standard deviations, so that its tail is often drawn."""

    def reach(self) -> int:
        return 4


class ShortLaplace(LaplaceLaw):
    """A Laplace law whose table ends after four values."""

    def reach(self) -> int:
        return 4


@pytest.mark.parametrize(
    ("short", "law"), [(ShortGaussian(F(4)), GaussianLaw(F(4))), (ShortLaplace(F(2)), LaplaceLaw(F(2)))], ids=repr
)
def test_tail_beyond_the_table_follows_the_law(short: SymmetricLaw, law: SymmetricLaw) -> None:
    drawn = draw(short, 40_000, SeededTap(15))
    assert np.abs(drawn).max() >= 8
    assert (np.abs(drawn) >= 4).sum() > 1000
    assert p_value(drawn, law) > FALSE_ALARM
