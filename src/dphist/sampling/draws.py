"""Where a batch's noise comes from: fresh words of a tap, or words that a key can make again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dphist.sampling.keyed import KeyedWords
from dphist.sampling.samplers import ExactSampler
from dphist.sampling.tap import Tap

IntArray = NDArray[np.int64]


class Draws(Protocol):
    """Noise for the rows of one batch."""

    def of(self, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None) -> IntArray:
        """One draw for each of these rows, which are positions in the batch and differ."""


@dataclass(frozen=True)
class Fresh:
    """Never the same twice."""

    tap: Tap

    def of(self, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None) -> IntArray:
        """Draws from the tap."""
        return sampler.draw(rows.size, self.tap, compiled=compiled)


@dataclass(frozen=True)
class Repeatable:
    """The same whenever the same row comes with the same key."""

    words: KeyedWords

    def of(self, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None) -> IntArray:
        """Draws that are functions of the rows' own words."""

        def more(draws: IntArray, numbers: IntArray) -> NDArray[np.uint64]:
            return self.words.numbered(rows[draws], numbers)

        return sampler.sample_from_words(self.words.first(rows), more, compiled=compiled)
