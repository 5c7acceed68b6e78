"""Exact discrete noise: the discrete Gaussian and the discrete Laplace, on one table each."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.sampling import laws
from dphist.sampling.kernels import CHUNK, kernel_for
from dphist.sampling.lazy import MoreWords, Tape
from dphist.sampling.residual import Residual
from dphist.sampling.table import StepTable, build_table
from dphist.sampling.tap import Tap, Words, word_count
from dphist.types import LARGEST_SCALE, LEAST_SCALE

IntArray = NDArray[np.int64]


@lru_cache(maxsize=16)
def residual_of(law: laws.SymmetricLaw) -> Residual:
    """The table of a law with its residual, built once."""
    return Residual(build_table(law))


class ExactSampler:
    """Draws from a symmetric law on the integers: one word each, and more if that does not decide.

    Guarantee: given independent uniform words, the draws are independent and have exactly the stated law; given
        the same words, they are the same with and without numba.
    """

    def __init__(self, residual: Residual) -> None:
        self._residual = residual

    @property
    def table(self) -> StepTable:
        """The table that decides nearly all draws."""
        return self._residual.table

    def draw(self, n: int, tap: Tap, *, compiled: bool | None = None) -> IntArray:
        """`n` independent draws. `compiled` asks for numba or forbids it; by default size decides."""
        size = word_count(n)
        return self._sample(size, lambda start, stop: tap.words(stop - start), _from_tap(tap), compiled)

    def sample_from_words(self, words: Words, more: MoreWords, *, compiled: bool | None = None) -> IntArray:
        """Draw number i from words[i], a function of the words alone.

        The few draws that their word does not decide ask `more(draws, columns)` for the words number
        `columns[i]` = 1, 2, ... of the draws `draws[i]`: each at most once, in order, many draws at a time. A
        function that is keyed by the item and numbered by the column can thus feed the sampler.

        Guarantee: the stated law, if all these words are independent and uniform.
        Valid for: a one-dimensional array of numpy.uint64.
        """
        if not isinstance(words, np.ndarray) or words.dtype != np.uint64 or words.ndim != 1:
            raise InvalidParameter(f"words must be a one-dimensional array of numpy.uint64, not {words!r}")
        own = np.require(words, requirements=["C", "ALIGNED"])
        return self._sample(own.size, lambda start, stop: own[start:stop], more, compiled)

    def _sample(
        self, n: int, words: Callable[[int, int], Words], more: MoreWords, compiled: bool | None
    ) -> IntArray:
        """Chunk by chunk through the table, and then all undecided draws at once through the residual."""
        table = self.table
        kernel = kernel_for(n, compiled)
        out = np.empty(n, dtype=np.int64)
        undecided: list[IntArray] = []
        for start in range(0, n, CHUNK):
            stop = min(n, start + CHUNK)
            piece = out[start:stop]
            signed = words(start, stop).view(np.int64)
            if kernel(signed, piece, table.entries, table.cell_bits, table.offset_bits) == table.blocks:
                undecided.append(np.flatnonzero(np.abs(piece) >= table.end) + start)
        if undecided:
            draws = np.concatenate(undecided).astype(np.int64)
            # Their own word has given them a sign, which the residual leaves as it is: |out| >= end > 0.
            out[draws] = np.sign(out[draws]) * self._residual.magnitudes(draws.size, Tape(draws, more))
        return out


def _from_tap(tap: Tap) -> MoreWords:
    """Further words from the tap, which are fresh whatever draw they are for."""
    return lambda draws, _columns: tap.words(draws.size)


class DiscreteGaussian(ExactSampler):
    """Discrete Gaussian noise.

        Pr[X = x] = exp(-x^2/(2 variance)) / sum over y of exp(-y^2/(2 variance)),  x an integer

    Guarantee: exact, given uniform words.
    Valid for: rational variances from 1/16 to 10^16; floats are taken at their exact value.
    Source: Canonne, Kamath and Steinke 2020 for the law; docs/theory/sampling.md for the method.
    """

    def __init__(self, variance: Fraction | float) -> None:
        self.variance = laws.exact_rational(
            "the variance", variance, least=laws.LEAST_VARIANCE, largest=laws.LARGEST_VARIANCE
        )
        super().__init__(residual_of(laws.GaussianLaw(self.variance)))

    def __repr__(self) -> str:
        return f"DiscreteGaussian({self.variance})"


class DiscreteLaplace(ExactSampler):
    """Discrete Laplace noise, also called the two-sided geometric.

        Pr[X = x] = tanh(1/(2 scale)) exp(-|x|/scale),  x an integer

    Guarantee: exact, given uniform words.
    Valid for: rational scales from 1/16 to 10^8; floats are taken at their exact value.
    Source: Ghosh, Roughgarden and Sundararajan 2009 for the law; docs/theory/sampling.md for the method.
    """

    def __init__(self, scale: Fraction | float) -> None:
        self.scale = laws.exact_rational("the scale", scale, least=LEAST_SCALE, largest=LARGEST_SCALE)
        super().__init__(residual_of(laws.LaplaceLaw(self.scale)))

    def __repr__(self) -> str:
        return f"DiscreteLaplace({self.scale})"
