"""The samplers' exactness: all words tried, boundaries in high precision, doubts settled on the right side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
from flint import arb
from numpy.typing import NDArray

from dphist.privacy.balls import precision
from dphist.sampling import DiscreteGaussian, sampler
from dphist.sampling.sampler import FILTER_ERROR, LazyUniform, MoreWords, Residual
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

GAUSSIANS = [GaussianLaw(v) for v in (F(1, 16), F(3, 10), F(4), F(900), F(36 * 10**6), F(10**12), F(10**16))]
LAPLACES = [LaplaceLaw(s) for s in (F(1, 16), F(10, 3), F(1000), F(10**8))]
LAWS: list[SymmetricLaw] = [*GAUSSIANS, *LAPLACES]
# (law, mass_bits, largest_cell_bits): few enough words to try them all; the last ones have blocks of 4 to 16.
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
    table = build_table(law)
    blocks = sorted({0, 1, 2, table.blocks // 9, table.blocks // 3, table.blocks - 2, table.blocks - 1})
    for block in (block for block in blocks if 0 <= block < table.blocks):
        last = (block + 1) * table.width - 1
        magnitudes = [last, block * table.width] if block == 0 else [last]
        signed = [exact_probability(law, m) * (1 if m == 0 else 2) for m in magnitudes]
        assert table.units[block] == int(mpmath.floor(min(signed) * table.width * 2**table.mass_bits)), block


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_cells_deal_exactly_the_units(law: SymmetricLaw) -> None:
    table = build_table(law)
    scale = 1 << (63 - table.mass_bits)
    owned = words_per_block(table)
    assert owned[: table.blocks] == [units * scale for units in table.units]
    assert owned[table.blocks] == table.residual_units * scale
    assert not any(owned[table.blocks + 1 :])


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_table_and_residual_enclose_a_mass_of_one(law: SymmetricLaw) -> None:
    residual = Residual(build_table(law))
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
    table = build_table(law)
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
@pytest.mark.parametrize("compiled", [False, True])
def test_exact_law_by_trying_all_words(law: SymmetricLaw, mass_bits: int, cell_bits: int, compiled: bool) -> None:
    """All words of the table counted, all proposals of the residual weighed: the sum is the law, to 40 digits."""
    residual = Residual(build_table(law, mass_bits=mass_bits, largest_cell_bits=cell_bits))
    table = residual.table
    leading = np.arange(2 << mass_bits, dtype=np.uint64) << np.uint64(63 - mass_bits)
    words = (leading[:, None] | np.arange(table.width, dtype=np.uint64)).ravel()
    out = np.empty(words.size, dtype=np.int64)
    kernel = sampler.kernel_for(words.size, compiled)
    kernel(words.view(np.int64), out, table.entries, table.cell_bits, table.offset_bits)
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


# The residual and its doubts.


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
    residual = Residual(build_table(law))
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
    """4 units in the last place, for all exponents that occur."""
    arguments = -np.random.default_rng(2).uniform(0.0, 90.0, 20_000)
    with precision(120):
        for argument, value in zip(arguments.tolist(), np.exp(arguments).tolist(), strict=True):
            assert abs(arb(argument).exp() / arb(value) - 1) <= arb(2) ** -50


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_a_number_on_the_boundary_is_refined(side: int, rounds: int) -> None:
    """Words that agree with 1/pi as long as `rounds` words, and differ in the next one's last bit."""

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
def test_words_on_the_boundary_of_the_sampler(accepted: bool, compiled: bool) -> None:
    """Three words placed so that the third, by one unit, decides for or against magnitude 2."""
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
    residual = Residual(build_table(law))
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
