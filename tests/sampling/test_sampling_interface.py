"""The samplers as they are called: two kernels with one answer, words per item, sizes, and bad input."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_sampling import LAWS, no_more, residual_word, script

from dphist.errors import InvalidParameter
from dphist.sampling import DiscreteGaussian, DiscreteLaplace, ExactSampler, SecureTap, SeededTap, sampler
from dphist.sampling.sampler import MoreWords, Residual, Tape
from dphist.sampling.table import SymmetricLaw, build_table

F = Fraction
IntArray = NDArray[np.int64]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_numba_and_numpy_give_the_same(law: SymmetricLaw) -> None:
    pytest.importorskip("numba")
    sampler = ExactSampler(Residual(build_table(law)))
    plain, fast = (sampler.draw(200_003, SeededTap(5), compiled=compiled) for compiled in (False, True))
    assert plain.dtype == fast.dtype == np.int64
    np.testing.assert_array_equal(plain, fast)


def test_extremes_of_a_word() -> None:
    words = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64)
    sampler = DiscreteGaussian(F(900))
    plain, fast = (sampler.sample_from_words(words, no_more, compiled=compiled) for compiled in (False, True))
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
    """A keyed function per item: any subset in any order gives each item the same noise."""
    n = 60_000
    tape = SeededTap(3).words(40 * n).reshape(n, 40)
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


def test_tape_counts_columns_per_draw() -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def more(draws: IntArray, columns: IntArray) -> NDArray[np.uint64]:
        seen.append((draws.tolist(), columns.tolist()))
        return columns.astype(np.uint64)

    tape = Tape(np.array([10, 20, 30]), more)
    tape.take(np.array([0, 2]))
    tape.take(np.array([1, 2]))
    assert tape.reader(2)() == 3
    assert seen == [([10, 30], [1, 1]), ([20, 30], [1, 2]), ([30], [3])]


@pytest.mark.parametrize("n", [0, 1, sampler.CHUNK, sampler.CHUNK + 1, 3 * sampler.CHUNK])
def test_sizes_around_the_chunks(n: int) -> None:
    sampler = DiscreteGaussian(F(10**12))
    drawn = sampler.draw(n, SecureTap())
    assert drawn.shape == (n,)
    assert drawn.dtype == np.int64
    assert np.unique(drawn).size >= 0.99 * n


def test_floats_are_taken_at_their_exact_value() -> None:
    assert DiscreteGaussian(0.3).variance == F(0.3) != F(3, 10)
    assert DiscreteGaussian(np.float64(2.5)).variance == DiscreteGaussian(F(5, 2)).variance
    given: list[Any] = [np.int64(4), np.uint8(4)]
    assert all(DiscreteGaussian(whole).table is DiscreteGaussian(4).table for whole in given)  # built once
    overflows: Any = np.uint8(200)
    few = [DiscreteGaussian(whole).draw(3, SeededTap(1)).tolist() for whole in (overflows, 200)]
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
        DiscreteGaussian(F(4)).draw(n, SecureTap())


def test_bad_words() -> None:
    sampler = DiscreteGaussian(F(4))
    for words in (np.zeros(3), np.zeros((2, 2), dtype=np.uint64), [1, 2], np.zeros(2, dtype=np.int64)):
        with pytest.raises(InvalidParameter, match="uint64"):
            sampler.sample_from_words(words, no_more)  # type: ignore[arg-type]
    undecided = np.array([residual_word(sampler.table)], dtype=np.uint64)
    with pytest.raises(InvalidParameter, match="float64"):
        sampler.sample_from_words(undecided, lambda _draws, _columns: np.zeros(1))  # type: ignore[arg-type, return-value]


def test_strided_and_read_only_words() -> None:
    words = SeededTap(6).words(2000)
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
        "s.DiscreteGaussian(4).draw(9, s.SecureTap())\n"
        "print('numba' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_works_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    sampler.compiled_kernel.cache_clear()
    try:
        assert sampler.kernel_for(1 << 30, None) is sampler.numpy_kernel
        assert DiscreteGaussian(F(4)).draw(5, SeededTap(1), compiled=True).size == 5
    finally:
        sampler.compiled_kernel.cache_clear()
