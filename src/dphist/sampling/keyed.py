"""Words that can be made again: a keyed function of what a draw is for, in place of a tap.

A cluster runs a task twice when a machine is lost or slow. Noise from a tap would then be drawn twice for one
count, and two noisy versions of one count tell more than one. Noise from a function of a secret key and of what
the noise is for is the same however often it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.sampling.tap import Words

KEY_BYTES: Final = 32
DIGEST_BYTES: Final = 32

Blocks = NDArray[np.uint64]


class KeyedWords:
    """For each of several digests an endless row of words: AES-256 in the manner of CBC-MAC on three blocks.

        word number c of the digest (d1, d2) = the first half of E(E(E(d1) xor d2) xor c)

    Guarantee: to whoever does not know the key, words of different digests or different numbers are independent
        and uniform, up to an advantage below 2^-50 for 2^34 digests; the same key, digest and number give the same
        word on every machine.
    Valid for: all messages have three blocks, as the proof for CBC-MAC asks; digests that differ.
    Source: Bellare, Kilian and Rogaway 2000; docs/spark.md.
    """

    def __init__(self, key: bytes, digests: NDArray[np.uint8]) -> None:
        if len(key) != KEY_BYTES:
            raise InvalidParameter(f"the key of the noise must have {KEY_BYTES} bytes")
        if digests.dtype != np.uint8 or digests.ndim != 2 or digests.shape[1] != DIGEST_BYTES:
            raise InvalidParameter(f"digests must be rows of {DIGEST_BYTES} bytes, not of shape {digests.shape}")
        self._encrypt = _encryption(key)
        # Little-endian words whatever the machine, so that all of them make the same noise.
        halves = np.ascontiguousarray(digests).view("<u8").astype(np.uint64, copy=False)
        self._state = self._encrypt(self._encrypt(halves[:, :2]) ^ halves[:, 2:])

    def first(self, rows: NDArray[np.int64]) -> Words:
        """Word number 0 of these rows."""
        return self.numbered(rows, np.zeros(rows.size, dtype=np.int64))

    def numbered(self, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> Words:
        """The words of these numbers, of these rows."""
        blocks = self._state[rows]
        blocks[:, 0] ^= numbers.astype(np.uint64)
        return np.ascontiguousarray(self._encrypt(blocks)[:, 0])


def _encryption(key: bytes) -> Callable[[Blocks], Blocks]:
    """Each block by itself; they differ, and what they hide is random to begin with."""
    cipher = Cipher(algorithms.AES(key), modes.ECB())

    def encrypt(blocks: Blocks) -> Blocks:
        plain = np.ascontiguousarray(blocks.astype("<u8", copy=False))
        secret = cipher.encryptor().update(plain.tobytes())
        return np.frombuffer(secret, dtype="<u8").reshape(-1, 2).astype(np.uint64)

    return encrypt
