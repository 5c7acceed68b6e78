"""The samplers: exact by trying all words, exact at every boundary, chi-square against the law, and the interface.

Statistical tests have a false-alarm probability of at most 1e-9; their seeds are fixed, so they never fail by
chance. Against a standard deviation that is wrong by 1 % their power is above 0.999, which is computed and tried.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
from flint import arb
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from dphist.errors import InvalidParameter
from dphist.proof.balls import precision
from dphist.sampling import DiscreteGaussian, DiscreteLaplace, ExactSampler, Rng, SecureRng, SeededRng, sampler
from dphist.sampling.sampler import FILTER_ERROR, LazyUniform, MoreWords, Residual, Tape, residual_of
from dphist.sampling.table import (
    GaussianLaw,
    LaplaceLaw,
    StepTable,
    SymmetricLaw,
    build_table,
    probability_of_magnitude,
)

F = Fraction
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

GAUSSIANS = [GaussianLaw(v) for v in (F(1, 16), F(3, 10), F(4), F(900), F(36 * 10**6), F(10**12), F(10**16))]
LAPLACES = [LaplaceLaw(s) for s in (F(1, 16), F(10, 3), F(1000), F(10**8))]
LAWS: list[SymmetricLaw] = [*GAUSSIANS, *LAPLACES]
# (law, mass_bits, largest_cell_bits): few enough words to try them all. The last three have blocks of 4 to 16.
TINY: list[tuple[SymmetricLaw, int, int]] = [
    (GaussianLaw(F(1, 16)), 10, 16),
    (GaussianLaw(F(3, 10)), 10, 16),
    (GaussianLaw(F(4)), 12, 16),
    (LaplaceLaw(F(2, 3)), 12, 16),
    (GaussianLaw(F(900)), 12, 5),
    (GaussianLaw(F(50)), 9, 4),
    (LaplaceLaw(F(7, 2)), 11, 5),
]


@cache
def gaussian_total(variance: Fraction) -> mpmath.mpf:
    """Sum over n of exp(-n^2/(2 variance)), or the integral where Poisson's other terms are below e^(-19000)."""
    with mpmath.workdps(70):
        twice = 2 * mpmath.mpf(variance.numerator) / variance.denominator
        if variance > 1000:
            return mpmath.sqrt(mpmath.pi * twice)
        return 1 + 2 * mpmath.fsum(
            mpmath.exp(-n * n / twice) for n in range(1, 30 + 20 * math.isqrt(int(variance)))
        )


def exact_probability(law: SymmetricLaw, x: int) -> mpmath.mpf:
    """Pr[X = x] by mpmath."""
    if isinstance(law, LaplaceLaw):
        scale = mpmath.mpf(law.scale.numerator) / law.scale.denominator
        return mpmath.tanh(1 / (2 * scale)) * mpmath.exp(-abs(x) / scale)
    assert isinstance(law, GaussianLaw)
    twice = 2 * mpmath.mpf(law.variance.numerator) / law.variance.denominator
    return mpmath.exp(-(mpmath.mpf(x) ** 2) / twice) / gaussian_total(law.variance)


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


def no_more(draws: IntArray, columns: IntArray) -> NDArray[np.uint64]:
    raise AssertionError("no further words were expected")


def script(*words: int) -> MoreWords:
    """Further words of a single draw, in order."""
    return lambda _draws, columns: np.array([words[int(column) - 1] for column in columns], dtype=np.uint64)


def words_per_block(table: StepTable) -> list[int]:
    """How many of the 2^63 unsigned words each block owns, counted from the packed cells."""
    low_bits = 63 - table.cell_bits
    owned = [0] * (1 << table.cell_bits)
    for cell, entry in enumerate(table.entries.tolist()):
        threshold, other = entry >> table.cell_bits, entry & ((1 << table.cell_bits) - 1)
        owned[cell] += threshold
        owned[other] += (1 << low_bits) - threshold
    return owned


def residual_word(table: StepTable) -> int:
    """A word that the table leaves to the residual."""
    low_bits = 63 - table.cell_bits
    for cell, entry in enumerate(table.entries.tolist()):
        if entry & ((1 << table.cell_bits) - 1) == table.blocks:
            return int((cell << low_bits) | ((1 << low_bits) - 1))
    return table.blocks << low_bits


# The table.


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("bits", [30, 53, 160])
def test_peak_is_enclosed_at_any_precision(law: SymmetricLaw, bits: int) -> None:
    with precision(bits):
        peak = law.peak()
        assert peak.rel_accuracy_bits() > bits - 8
    with precision(220):
        exact = arb(mpmath.nstr(exact_probability(law, 0), 58))
        assert abs(peak.mid() - exact) <= peak.rad() + exact * arb(10) ** -55


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_units_are_the_floor_of_the_law(law: SymmetricLaw) -> None:
    table = residual_of(law).table
    blocks = sorted({0, 1, 2, table.blocks // 9, table.blocks // 3, table.blocks - 2, table.blocks - 1})
    for block in (block for block in blocks if 0 <= block < table.blocks):
        last = (block + 1) * table.width - 1
        magnitudes = [last, block * table.width] if block == 0 else [last]
        signed = [exact_probability(law, m) * (1 if m == 0 else 2) for m in magnitudes]
        assert table.units[block] == int(mpmath.floor(min(signed) * table.width * 2**table.mass_bits)), block


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_cells_deal_exactly_the_units(law: SymmetricLaw) -> None:
    table = residual_of(law).table
    scale = 1 << (63 - table.mass_bits)
    owned = words_per_block(table)
    assert owned[: table.blocks] == [units * scale for units in table.units]
    assert owned[table.blocks] == table.residual_units * scale
    assert not any(owned[table.blocks + 1 :])


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_table_and_residual_enclose_a_mass_of_one(law: SymmetricLaw) -> None:
    residual = residual_of(law)
    one = 1 << residual.table.mass_bits
    assert sum(residual.table.units) <= one <= sum(residual.table.units) + sum(residual.excess)
    rare = 1e-13 if residual.table.width == 1 else 2e-3
    assert residual.table.residual_units / one < rare


@pytest.mark.parametrize(
    "law",
    [GaussianLaw(F(9)), GaussianLaw(F(900)), pytest.param(GaussianLaw(F(9 * 10**6)), marks=pytest.mark.slow)],
    ids=repr,
)
def test_tail_of_one_in_a_billion(law: GaussianLaw) -> None:
    """Words that give |X| >= 6.1 standard deviations, counted, against the exact tail of about 1e-9."""
    table = residual_of(law).table
    start = math.ceil(6.1 * math.sqrt(law.variance))
    counted = sum(words_per_block(table)[start : table.blocks])
    with mpmath.workdps(40):
        peak = exact_probability(law, 0)
        step = 2 * mpmath.mpf(law.variance.numerator) / law.variance.denominator
        exact = 2 * peak * mpmath.fsum(mpmath.exp(-m * m / step) for m in range(start, 2 * table.end))
        assert 1e-10 < exact < 2e-9
        # Each magnitude lacks less than one word, and beyond the table there are less than 2^3.
        assert 0 <= exact * 2**63 - counted <= table.blocks - start + 8


@pytest.mark.parametrize(("law", "mass_bits", "cell_bits"), TINY, ids=repr)
def test_exact_law_by_trying_all_words(law: SymmetricLaw, mass_bits: int, cell_bits: int) -> None:
    """Count all words of the table and add all proposals of the residual: the sum is the law, to 40 digits."""
    residual = Residual(build_table(law, mass_bits=mass_bits, largest_cell_bits=cell_bits))
    table = residual.table
    leading = np.arange(2 << mass_bits, dtype=np.uint64) << np.uint64(63 - mass_bits)
    words = (leading[:, None] | np.arange(table.width, dtype=np.uint64)).ravel()
    out, compiled = np.empty(words.size, dtype=np.int64), np.empty(words.size, dtype=np.int64)
    for kernel, drawn in ((sampler.numpy_kernel, out), (sampler.kernel_for(0, True), compiled)):
        kernel(words.view(np.int64), drawn, table.entries, table.cell_bits, table.offset_bits)
    np.testing.assert_array_equal(out, compiled)
    counts = Counter(out.tolist())
    undecided = sum(count for x, count in counts.items() if abs(x) >= table.end)
    assert undecided == 2 * table.width * table.residual_units
    assert sum(counts.values()) == 2 * table.width << mass_bits
    for x in range(-table.end + 1, table.end):
        block = abs(x) >> table.offset_bits
        signs = 1 if x else 2  # both signs of zero are zero
        assert counts[x] == signs * table.units[block]
        with precision(200):
            accepted = mpmath.mpf(residual.chance(block, abs(x)).mid().str(50, radius=False))
        assert 0 <= accepted <= 1
        drawn = signs * (table.units[block] + residual.excess[block] * accepted)
        assert mpmath.almosteq(drawn / (2 * table.width << mass_bits), exact_probability(law, x), 1e-40)


# The residual.


@pytest.mark.parametrize(("law", "mass_bits", "cell_bits"), TINY, ids=repr)
def test_proposals_have_the_stated_weights(law: SymmetricLaw, mass_bits: int, cell_bits: int) -> None:
    residual = Residual(build_table(law, mass_bits=mass_bits, largest_cell_bits=cell_bits))
    total, width = sum(residual.excess), residual.table.width
    bits = max(1, (total - 1).bit_length())
    leading = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
    words = (leading[:, None] | np.arange(width, dtype=np.uint64)).ravel()
    blocks, magnitudes = residual._propose(words)
    assert np.bincount(blocks).tolist()[: len(residual.excess)] == [width * units for units in residual.excess]
    inside = magnitudes[blocks < residual.table.blocks]
    counts = np.bincount(inside, minlength=residual.table.end)
    assert counts.tolist() == np.repeat(residual.excess[:-1], width).tolist()


@pytest.mark.parametrize("law", [law for law in LAWS if law.reach() > 1 << 16], ids=repr)
def test_float_filter_keeps_its_bound_with_room_to_spare(law: SymmetricLaw) -> None:
    residual = residual_of(law)
    table = residual.table
    random = np.random.default_rng(1)
    picked = [np.zeros(10), np.arange(50), random.integers(0, table.blocks, 200), table.blocks - 1 - np.arange(20)]
    blocks = np.concatenate(picked).astype(np.int64)
    offsets = random.integers(0, table.width, blocks.size)
    offsets[:2] = 0, table.width - 1
    magnitudes = (blocks << table.offset_bits) | offsets
    chances, errors = residual.float_chances(blocks, magnitudes)
    assert errors.min() >= 2 * FILTER_ERROR
    for block, magnitude, chance, error in zip(blocks, magnitudes, chances, errors, strict=True):
        with precision(200):
            exact = residual.chance(int(block), int(magnitude))
            assert 0 <= exact <= 1
            assert abs(exact - arb(float(chance))) * 16 <= arb(float(error))


def test_numpy_exp_is_within_what_the_filter_assumes() -> None:
    """4 ulp, for all exponents that occur."""
    arguments = -np.random.default_rng(2).uniform(0.0, 90.0, 20_000)
    with precision(120):
        for argument, value in zip(arguments.tolist(), np.exp(arguments).tolist(), strict=True):
            assert abs(arb(argument).exp() / arb(value) - 1) <= arb(2) ** -50


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_number_at_the_boundary_is_refined(side: int, rounds: int) -> None:
    """Words that agree with 1/pi for `rounds` words, and differ in the last bit of the next one."""

    def bound() -> arb:
        return 1 / arb.pi()

    bits = 64 * (rounds + 1)
    with precision(bits + 64):
        digits = int((bound() * arb(2) ** bits).floor().unique_fmpz()) + side
    words = [(digits >> (bits - 64 * (i + 1))) & (2**64 - 1) for i in range(rounds + 1)]
    tape = iter(words)
    number = LazyUniform(lambda: next(tape))
    assert number.is_below(bound) == (side < 0)
    assert number.bits == bits


def test_bounds_of_zero_and_one_need_one_word() -> None:
    for value in (0, 2**64 - 1):
        assert not LazyUniform(lambda: 0, value).is_below(lambda: arb(0))
        assert LazyUniform(lambda: 0, value).is_below(lambda: arb(1))


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_words_at_the_boundary_of_acceptance(accepted: bool, compiled: bool) -> None:
    """Three words of which the last bit of the third decides for or against magnitude 2."""
    sampler = DiscreteGaussian(F(9))
    residual = sampler._residual
    bits = max(1, (sum(residual.excess) - 1).bit_length())
    choose = [sum(residual.excess[:m]) << (64 - bits) for m in range(6)]
    with precision(256):
        digits = int((residual.chance(2, 2) * arb(2) ** 128).floor().unique_fmpz()) + (-1 if accepted else 1)
    high, low = digits >> 64, digits & (2**64 - 1)
    # After a rejection, magnitude 5 is proposed and a uniform number of 0 accepts it.
    more = script(choose[2], high, low, choose[5], 0)
    word = residual_word(sampler.table)
    for sign in (0, 1):
        drawn = sampler.sample_from_words(
            np.array([(sign << 63) | word], dtype=np.uint64), more, compiled=compiled
        )
        assert drawn.tolist() == [(-1 if sign else 1) * (2 if accepted else 5)]


def test_tail_beyond_the_table_is_reached() -> None:
    sampler = DiscreteGaussian(F(9))
    residual = sampler._residual
    bits = max(1, (sum(residual.excess) - 1).bit_length())
    to_tail = sum(residual.excess[:-1]) << (64 - bits)
    end = sampler.table.end
    with precision(128):
        rate = float(residual._tail_rate())
    for t in (0, 1, 4):
        uniform = int(2**64 * math.exp(-rate * (t + 0.5)))
        drawn = sampler.sample_from_words(
            np.array([residual_word(sampler.table)], dtype=np.uint64), script(to_tail, uniform, 0)
        )
        assert drawn.tolist() == [end + t]


@pytest.mark.parametrize("law", [GaussianLaw(F(4)), LaplaceLaw(F(3)), GaussianLaw(F(10**12))], ids=repr)
def test_tail_proposals_lie_above_the_law_and_sum_to_it(law: SymmetricLaw) -> None:
    """excess * (1 - e^-rate) e^(-rate t) * chance = 2^mass_bits Pr[|X| = end + t], with a chance of at most 1."""
    residual = residual_of(law)
    table = residual.table
    with precision(200):
        rate = residual._tail_rate()
        envelope = residual._tail_envelope() * (1 - (-rate).exp())
        assert residual._tail_envelope() * arb(2) ** table.mass_bits <= residual.excess[-1]
        for t in (0, 1, 2, 10, table.end):
            assert not probability_of_magnitude(law, table.end + t) > envelope * (-rate * t).exp()


@pytest.mark.parametrize("side", [-1, 1])
def test_geometric_is_refined_at_its_boundaries(side: int) -> None:
    with precision(256):
        digits = int(((-arb(3) / 7).exp() * arb(2) ** 128).floor().unique_fmpz()) + side
    words = iter([digits >> 64, digits & (2**64 - 1)])
    assert LazyUniform(lambda: next(words)).geometric(lambda: arb(1) / 7) == (3 if side < 0 else 2)
    zero_first = iter([0, 2**63])
    expected = math.floor(7 * 65 * math.log(2))
    assert LazyUniform(lambda: next(zero_first)).geometric(lambda: arb(1) / 7) == expected


# Statistics.

FALSE_ALARM = 1e-9
NARROW = GaussianLaw(F(1, 16))
DRAWN: list[SymmetricLaw] = [
    NARROW,
    *(GaussianLaw(v) for v in (F(3, 10), F(4), F(900), F(36 * 10**6), F(10**12))),
    *(LaplaceLaw(s) for s in (F(1, 4), F(10, 3), F(1000), F(10**5))),
]
QUICK: list[SymmetricLaw] = [GaussianLaw(F(3, 10)), LaplaceLaw(F(10**5))]


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
    """Starts of the bins: fifty of equal mass, or in small tables as many as give 200 expected draws each.

    With that many draws the statistic is close to chi-square far into its tail.
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
    """Probability that draws from a wider law fail the test of `law`."""
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


def draw(law: SymmetricLaw, n: int, rng: Rng) -> IntArray:
    return ExactSampler(residual_of(law)).draw(n, rng)


def enough(law: SymmetricLaw) -> int:
    """Draws for the stated power; a narrow law shows a wrong scale in one of thousands of draws only."""
    return 6 * 10**6 if law == NARROW else 2 * 10**6


@pytest.mark.parametrize(
    "law", [pytest.param(law, marks=() if law in QUICK else pytest.mark.slow) for law in DRAWN], ids=repr
)
def test_draws_follow_the_law_and_a_wrong_scale_is_seen(law: SymmetricLaw) -> None:
    n, wrong = enough(law), wider(law, F(101, 100))
    assert power(law, wrong, n) > 0.999
    assert p_value(draw(law, n, SeededRng(11)), law) > FALSE_ALARM
    assert p_value(draw(wrong, n, SeededRng(12)), law) < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("law", DRAWN, ids=repr)
@pytest.mark.parametrize("by", [F(100, 101), F(101, 100)], ids=str)
def test_secure_draws_and_both_wrong_scales(law: SymmetricLaw, by: Fraction) -> None:
    n = 5 * enough(law)
    assert p_value(draw(law, n, SecureRng()), law) > FALSE_ALARM
    assert p_value(draw(wider(law, by), n, SecureRng()), law) < FALSE_ALARM


def test_last_digits_of_wide_noise_are_uniform() -> None:
    """Within blocks of 256 all offsets are equally likely: chi-square, 1023 degrees of freedom, x mod 1024."""
    drawn = draw(GaussianLaw(F(10**12)), 4 * 10**6, SeededRng(13))
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
    """The slow path alone, 400,000 draws, by block and by position within the block."""
    residual = residual_of(law)
    table, n = residual.table, 400_000
    rng = SeededRng(14)
    drawn = residual.magnitudes(n, Tape(np.arange(n), lambda draws, _columns: rng.words(draws.size)))
    mass = probabilities(law)[law.reach() :] * 2.0
    mass[0] /= 2.0
    whole = mass[: (mass.size // table.width) * table.width].reshape(-1, table.width)
    left = whole - np.array(table.units[: len(whole)])[:, None] / 2.0 ** (table.mass_bits + table.offset_bits)
    left /= left.sum()
    grid = np.zeros_like(left, dtype=np.int64)
    np.add.at(grid, (drawn >> table.offset_bits, drawn & (table.width - 1)), 1)
    # Forty groups of blocks, four positions within the block (two if it has only two).
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
    """A Gaussian whose table ends at two standard deviations, so that its tail is drawn often."""

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
    drawn = draw(short, 20_000, SeededRng(15))
    assert np.abs(drawn).max() >= 8
    assert (np.abs(drawn) >= 4).sum() > 1000
    assert p_value(drawn, law) > FALSE_ALARM


# The interface.


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_numba_and_numpy_give_the_same(law: SymmetricLaw) -> None:
    pytest.importorskip("numba")
    sampler = ExactSampler(residual_of(law))
    plain, fast = (sampler.draw(200_003, SeededRng(5), compiled=compiled) for compiled in (False, True))
    assert plain.dtype == fast.dtype == np.int64
    np.testing.assert_array_equal(plain, fast)


@given(st.integers(0, 2**63 - 1), st.sampled_from([F(1, 16), F(4), F(900)]))
def test_the_leading_bit_is_the_sign(word: int, variance: Fraction) -> None:
    words = np.array([word, word | (1 << 63)], dtype=np.uint64)
    plus, minus = DiscreteGaussian(variance).sample_from_words(words, script(*range(20)))
    assert plus == -minus >= 0


@pytest.mark.parametrize(
    "sampler", [DiscreteGaussian(F(4)), DiscreteGaussian(F(10**12)), DiscreteLaplace(F(10**6))], ids=repr
)
def test_a_draw_depends_on_its_own_words_alone(sampler: ExactSampler) -> None:
    """With a keyed function per item, any subset in any order gives each item the same noise."""
    n = 60_000
    tape = SeededRng(3).words(40 * n).reshape(n, 40)
    asked: Counter[tuple[int, int]] = Counter()

    def more_for(items: IntArray) -> MoreWords:
        def more(draws: IntArray, columns: IntArray) -> NDArray[np.uint64]:
            asked.update(zip(items[draws].tolist(), columns.tolist(), strict=True))
            return tape[items[draws], columns]

        return more

    everyone = np.arange(n)
    together = sampler.sample_from_words(tape[:, 0], more_for(everyone))
    if sampler.table.width > 1:
        assert len(asked) > 10
        assert max(asked.values()) == 1
        assert {column for _, column in asked} >= {1, 2}
    some = np.random.default_rng(4).permutation(n)[:50_000]
    np.testing.assert_array_equal(sampler.sample_from_words(tape[some, 0], more_for(some)), together[some])


@pytest.mark.parametrize("n", [0, 1, sampler.CHUNK, sampler.CHUNK + 1, 3 * sampler.CHUNK])
def test_sizes_around_the_chunks(n: int) -> None:
    sampler = DiscreteGaussian(F(10**12))
    drawn = sampler.draw(n, SecureRng())
    assert drawn.shape == (n,)
    assert drawn.dtype == np.int64
    assert np.unique(drawn).size >= 0.99 * n


def test_floats_are_taken_at_their_exact_value() -> None:
    assert DiscreteGaussian(0.3).variance == F(0.3) != F(3, 10)
    assert DiscreteGaussian(np.float64(2.5)).variance == DiscreteGaussian(F(5, 2)).variance
    given: list[Any] = [np.int64(4), np.uint8(4)]
    assert all(DiscreteGaussian(whole).table is DiscreteGaussian(4).table for whole in given)  # built once
    overflows: Any = np.uint8(200)
    few = [DiscreteGaussian(whole).draw(3, SeededRng(1)).tolist() for whole in (overflows, 200)]
    assert few[0] == few[1]
    assert repr(DiscreteLaplace(F(1, 3))) == "DiscreteLaplace(1/3)"


BAD: list[object] = [0, -1, F(1, 17), F(10**16) + 1, math.nan, math.inf, -math.inf, True, "4", None, 4j]


@pytest.mark.parametrize("make", [DiscreteGaussian, DiscreteLaplace])
@pytest.mark.parametrize("value", BAD, ids=repr)
def test_bad_parameters(make: Callable[[object], object], value: object) -> None:
    with pytest.raises(InvalidParameter) as caught:
        make(value)
    assert repr(value) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("n", [-3, 2.5, True, None])
def test_bad_numbers_of_draws(n: int) -> None:
    with pytest.raises(InvalidParameter, match=str(n)):
        DiscreteGaussian(F(4)).draw(n, SecureRng())


def test_bad_words() -> None:
    sampler = DiscreteGaussian(F(4))
    for words in (np.zeros(3), np.zeros((2, 2), dtype=np.uint64), [1, 2], np.zeros(2, dtype=np.int64)):
        with pytest.raises(InvalidParameter, match="uint64"):
            sampler.sample_from_words(words, no_more)  # type: ignore[arg-type]
    undecided = np.array([residual_word(sampler.table)], dtype=np.uint64)
    with pytest.raises(InvalidParameter, match="float64"):
        sampler.sample_from_words(undecided, lambda _draws, _columns: np.zeros(1))  # type: ignore[arg-type, return-value]


def test_strided_and_read_only_words() -> None:
    words = SeededRng(6).words(2000)
    expected = DiscreteGaussian(F(4)).sample_from_words(words[::2].copy(), no_more)
    words.flags.writeable = False
    for compiled in (False, True):
        drawn = DiscreteGaussian(F(4)).sample_from_words(words[::2], no_more, compiled=compiled)
        np.testing.assert_array_equal(drawn, expected)
        whole = DiscreteGaussian(F(4)).sample_from_words(words, no_more, compiled=compiled)
        np.testing.assert_array_equal(whole[::2], expected)


def test_importing_does_not_import_numba() -> None:
    code = (
        "import sys, dphist.sampling as s\n"
        "s.DiscreteGaussian(4).draw(9, s.SecureRng())\n"
        "print('numba' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_works_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    sampler.compiled_kernel.cache_clear()
    try:
        assert sampler.kernel_for(1 << 30, None) is sampler.numpy_kernel
        assert DiscreteGaussian(F(4)).draw(5, SeededRng(1), compiled=True).size == 5
    finally:
        sampler.compiled_kernel.cache_clear()
