"""Uniform numbers known to as many bits as a decision needs, and the tape of words that they are read from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flint import arb
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.sampling.exact import ball_bits
from dphist.sampling.tap import Words

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
