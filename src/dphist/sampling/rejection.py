"""The residual: what a table's whole units leave of the law, drawn exactly by rejection.

Of Pr[|X| = m] the table draws units/(2^mass_bits width); the rest of it, with the whole tail beyond the blocks, is
drawn here, in the rare case that a word falls to it. Time matters little; doubts are settled in ball arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np
from flint import arb
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.sampling.table import (
    FIXED_BITS,
    StepTable,
    ball,
    ball_bits,
    ceil_scaled,
    probabilities_upper,
    probability_of_magnitude,
)
from dphist.sampling.tap import Words

# Uniform numbers known to as many bits as a decision needs, and the tape of words that they are read from.

# Asked for the words number `columns[i]` (1, 2, ...; the draw's own word is number 0) of the draws `draws[i]`.
MoreWords = Callable[[NDArray[np.int64], NDArray[np.int64]], Words]

# Bits by which a ball is computed more finely than the uniform number it is compared with.
_GUARD_BITS = 64


class Tape:
    """An endless row of words for each of several draws, read once and in order.

    Guarantee: asks `more` for every (draw, column) at most once, each draw's columns in order from 1.
    """

    def __init__(self, draws: NDArray[np.int64], more: MoreWords) -> None:
        self._draws = draws
        self._columns = np.zeros(draws.size, dtype=np.int64)
        self._more = more

    def take(self, positions: NDArray[np.int64]) -> Words:
        """The next word of each of these draws, which are named by their positions and must differ."""
        self._columns[positions] += 1
        words = self._more(self._draws[positions], self._columns[positions])
        if words.dtype != np.uint64 or words.shape != positions.shape:
            raise InvalidParameter(
                f"{positions.size} further words must be numpy.uint64, not {words.dtype} of shape {words.shape}"
            )
        return words

    def reader(self, position: int) -> Callable[[], int]:
        """The words of one draw, one call each."""
        where = np.array([position], dtype=np.int64)
        return lambda: int(self.take(where)[0])


class LazyUniform:
    """A number uniform on [0, 1), of which only the leading bits are known so far.

    The number lies in [value, value + 1)/2^bits, and every word read makes that 2^64 times narrower.
    """

    def __init__(self, next_word: Callable[[], int], first: int | None = None) -> None:
        self._next_word = next_word
        self.value = next_word() if first is None else first
        self.bits = 64

    def extend(self) -> None:
        """Read another word."""
        self.value = (self.value << 64) | self._next_word()
        self.bits += 64

    def is_below(self, bound: Callable[[], arb]) -> bool:
        """Whether the number is below a real number, of which `bound` gives an enclosure at the current precision.

        Guarantee: the exact answer. True has the probability min(1, max(0, bound)), to the last digit.
        Valid for: enclosures that shrink with the precision. Needs 1 + 2^-64 + ... words on average.
        """
        while True:
            with ball_bits(self.bits + _GUARD_BITS):
                scaled = bound() * arb(2) ** self.bits
                if scaled >= self.value + 1:
                    return True
                if scaled <= self.value:
                    return False
            self.extend()

    def geometric(self, rate: Callable[[], arb]) -> int:
        """floor(-log(number)/rate): t with probability (1 - e^(-rate)) e^(-rate t), by inversion.

        Guarantee: the exact value for the number that the tape defines.
        Valid for: rate > 0.
        """
        while True:
            if self.value > 0:
                with ball_bits(self.bits + _GUARD_BITS):
                    scale = arb(2) ** self.bits
                    most = -(arb(self.value) / scale).log() / rate()
                    least = -(arb(self.value + 1) / scale).log() / rate()
                    # The number is in [value, value + 1): its quotient is in (least, most].
                    floors = most.floor().unique_fmpz(), least.floor().unique_fmpz()
                    if floors[0] is not None and floors[0] == floors[1]:
                        return int(floors[0])
            self.extend()


# Relative error granted to the double precision value of Pr[|X| = m]; docs/theory/sampling.md proves 2^-44.
FILTER_ERROR: Final = 2.0**-40


class Residual:
    """Exact draws from the magnitudes' law minus the table.

    Block q is proposed with `excess[q]` units, an upper bound of width * max (Pr[|X| = m] - table) on the block; a
    magnitude is then uniform on the block, and accepted with probability (width Pr[|X| = m] - units)/excess.
    The tail is proposed with `excess[blocks]` units as end + t, t geometric, which lies above the law because the
    exponent is convex.

    Guarantee: magnitudes with probability proportional to Pr[|X| = m] - table, to the last digit.
    """

    def __init__(self, table: StepTable) -> None:
        self.table = table

    @cached_property
    def excess(self) -> tuple[int, ...]:
        """Units of each block's proposal, and last the tail's.

        Guarantee: together with the table's units they are not below the law, which is checked by their total.
        """
        table = self.table
        shift = FIXED_BITS - table.mass_bits
        # A block's first magnitude is its most likely; within block 0 that is 1 at most, counted with both signs.
        first = probabilities_upper(table.law, start=0, stride=table.width, count=table.blocks)
        most = [2 * table.width * value for value in first]
        if table.width == 1:
            most[0] = first[0]
        above = [-(-value >> shift) - units for value, units in zip(most, table.units, strict=True)]
        with ball_bits(FIXED_BITS + 64):
            tail = ceil_scaled(self._tail_envelope(), table.mass_bits)
        excess = (*above, tail)
        if min(excess) < 0 or sum(excess) < table.residual_units:
            raise AssertionError(f"the table of {table.law} and its residual do not enclose a mass of one")
        return excess

    @cached_property
    def _cumulative(self) -> NDArray[np.int64]:
        return np.cumsum(np.array(self.excess, dtype=np.int64))

    @cached_property
    def _floats(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Units and excess of each block, and 2^mass_bits width Pr[X = 0]."""
        with ball_bits(FIXED_BITS):
            peak = float(self.table.law.peak().mid())
        units = np.array(self.table.units, dtype=np.float64)
        excess = np.array(self.excess[:-1], dtype=np.float64)
        return units, excess, peak * 2.0 ** (self.table.mass_bits + self.table.offset_bits)

    def magnitudes(self, count: int, tape: Tape) -> NDArray[np.int64]:
        """One magnitude for each of `count` draws, by as many rounds of proposals as it takes."""
        drawn = np.zeros(count, dtype=np.int64)
        pending = np.arange(count, dtype=np.int64)
        while pending.size:
            proposals, uniforms = tape.take(pending), tape.take(pending)
            done = np.zeros(pending.size, dtype=bool)
            blocks, values = self._propose(proposals)
            inside = np.flatnonzero(blocks < self.table.blocks)
            done[inside] = self._accepts(blocks[inside], values[inside], uniforms[inside], pending[inside], tape)
            for position in np.flatnonzero(blocks == self.table.blocks):
                value = self._tail(tape, int(pending[position]), int(uniforms[position]))
                done[position] = value is not None
                values[position] = 0 if value is None else value
            drawn[pending[done]] = values[done]
            pending = pending[~done]
        return drawn

    def _propose(self, words: Words) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Block and magnitude from one word each: its leading bits choose the block, its last ones the offset.

        Units beyond the total choose a block beyond the tail, which nothing accepts.
        """
        total = int(self._cumulative[-1])
        # Not below one bit, for a shift by 64 is undefined. The excess is a small part of 2^mass_bits, so that its
        # bits and the offset's are apart: mass_bits + offset_bits <= 63.
        bits = max(1, (total - 1).bit_length())
        units = (words >> np.uint64(64 - bits)).astype(np.int64)
        blocks = np.searchsorted(self._cumulative, units, side="right").astype(np.int64)
        offsets = (words & np.uint64(self.table.width - 1)).astype(np.int64)
        return blocks, (blocks << self.table.offset_bits) | offsets

    def _accepts(
        self,
        blocks: NDArray[np.int64],
        magnitudes: NDArray[np.int64],
        uniforms: Words,
        positions: NDArray[np.int64],
        tape: Tape,
    ) -> NDArray[np.bool_]:
        """Whether each magnitude is accepted: in double precision if that decides, in ball arithmetic if not."""
        chances, errors = self.float_chances(blocks, magnitudes)
        distance = uniforms.astype(np.float64) * 2.0**-64 - chances
        accepted = np.asarray(distance < 0.0, dtype=np.bool_)
        for i in np.flatnonzero(np.abs(distance) <= errors):
            uniform = LazyUniform(tape.reader(int(positions[i])), int(uniforms[i]))
            block, magnitude = int(blocks[i]), int(magnitudes[i])
            accepted[i] = uniform.is_below(lambda b=block, m=magnitude: self.chance(b, m))  # type: ignore[misc]
        return accepted

    def float_chances(
        self, blocks: NDArray[np.int64], magnitudes: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The chances of acceptance in double precision, with bounds of their error.

            (2^mass_bits width Pr[|X| = m] - units)/excess,   error <= FILTER_ERROR (2 + units/excess)

        Guarantee: the bound holds with a factor of 16 to spare if `numpy.exp` is within 4 units in the last place.
        Valid for: magnitudes within the blocks, where the exponent is below 88.
        """
        units, excess, peak = self._floats
        signs = np.where(magnitudes == 0, 1.0, 2.0)
        law = signs * peak * np.exp(-self.table.law.float_exponents(magnitudes.astype(np.float64)))
        errors = FILTER_ERROR * (2.0 + units[blocks] / excess[blocks])
        return (law - units[blocks]) / excess[blocks], errors

    def chance(self, block: int, magnitude: int) -> arb:
        """The same as an enclosure at the current precision."""
        table = self.table
        law = probability_of_magnitude(table.law, magnitude) * arb(2) ** (table.mass_bits + table.offset_bits)
        return (law - table.units[block]) / self.excess[block]

    def _tail_envelope(self) -> arb:
        """Pr[|X| = end]/(1 - e^(-rate)), the mass of the geometric proposal that lies above the tail."""
        table = self.table
        return probability_of_magnitude(table.law, table.end) / (1 - (-self._tail_rate()).exp())

    def _tail_rate(self) -> arb:
        law, end = self.table.law, self.table.end
        return ball(law.exponent(end + 1) - law.exponent(end))

    def _tail(self, tape: Tape, position: int, uniform: int) -> int | None:
        """A magnitude beyond the blocks, or None if the proposal is rejected."""
        table, reader = self.table, tape.reader(position)
        t = LazyUniform(reader, uniform).geometric(self._tail_rate)
        beyond = table.law.exponent(table.end + t) - table.law.exponent(table.end)

        def chance() -> arb:
            bend = (t * self._tail_rate() - ball(beyond)).exp()  # at most 1, for the exponent is convex
            return bend * self._tail_envelope() * arb(2) ** table.mass_bits / self.excess[-1]

        return table.end + t if LazyUniform(reader).is_below(chance) else None
