"""The source of all randomness: fresh 64-bit words from AES-256-CTR, keyed by the operating system.

Releases use `SecureRng`. `SeededRng` is repeatable, for tests only: noise from it is not private, and its
`private` is False.
"""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Final, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dphist.errors import InvalidParameter

Words = NDArray[np.uint64]

_BLOCK_BYTES: Final = 1 << 20
# Encrypting zeros gives the key stream.
_ZEROS: Final = memoryview(bytes(_BLOCK_BYTES))
# A key makes at most 2^26 cipher blocks, so that the lack of repeated blocks is an advantage below 2^-76.
_BYTES_PER_KEY: Final = 1 << 30


class Rng(Protocol):
    """A source of random words. `private` is False if someone else could reproduce them."""

    @property
    def private(self) -> bool: ...

    def words(self, n: int, /) -> Words:
        """`n` words, never returned before, in an array that nothing else refers to."""
        ...


def word_count(n: int) -> int:
    """`n` as an int; raises `InvalidParameter` unless it is a whole number of at least zero."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise InvalidParameter(f"the number of draws must be a whole number, not {n!r}")
    if n < 0:
        raise InvalidParameter(f"the number of draws must be at least 0, not {n}")
    return int(n)


class _Stream:
    """The key stream of one process, used by one call at a time."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._bytes_left = 0

    def take(self, n: int) -> Words:
        out = np.empty(n, dtype=np.uint64)
        view = out.view(np.uint8).data
        for start in range(0, len(view), _BLOCK_BYTES):
            size = min(_BLOCK_BYTES, len(view) - start)
            if size > self._bytes_left:
                self._encryptor = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
                self._bytes_left = _BYTES_PER_KEY
            self._bytes_left -= size
            self._encryptor.update_into(_ZEROS[:size], view[start : start + size])
        return out


class SecureRng:
    """Random words from AES-256 in counter mode, with keys from the operating system.

    Guarantee: no word is returned twice, within a process, between its threads or across a fork; the returned
        arrays alias nothing that is written later.
    Valid for: any number of threads, and calls from signal handlers: nothing else can reach a stream in use.
    """

    private: Final = True

    def __init__(self) -> None:
        # A stream in use is not in this list, whose `pop` and `append` are atomic. So there is no lock that a fork
        # could leave locked or that a signal handler could wait for forever.
        self._idle: list[_Stream] = []
        _LIVE_TAPS.add(self)

    def __repr__(self) -> str:
        return "SecureRng()"

    def __reduce__(self) -> str | tuple[object, ...]:
        # Pickling must not copy a key to another process.
        return (SecureRng, ())

    def words(self, n: int, /) -> Words:
        size = word_count(n)
        while True:
            try:
                stream = self._idle.pop()
            except IndexError:
                stream = _Stream()
            words = stream.take(size)
            # A stream that another process owns too, by a fork before or during `take`, is dropped with its words.
            if stream.pid == os.getpid():
                self._idle.append(stream)
                return words

    def wipe(self) -> None:
        """Drop all idle keys, which OpenSSL overwrites; the next request starts with a new key."""
        self._idle.clear()


class SeededRng:
    """Repeatable words from a seed, for tests only: NOT PRIVATE.

    Guarantee: the same seed gives the same sequence of words on every machine, however it is split into requests.
    """

    private: Final = False

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise InvalidParameter(f"a seed must be a whole number of at least 0, not {seed!r}")
        self.seed = int(seed)
        self._generator = np.random.PCG64(self.seed)

    def __repr__(self) -> str:
        return f"SeededRng({self.seed}, NOT PRIVATE)"

    def words(self, n: int, /) -> Words:
        return np.asarray(self._generator.random_raw(word_count(n)), dtype=np.uint64)


class ClosedRng:
    """A rng without words, for sessions whose noise must be repeatable and come from a key."""

    private: Final = True

    def words(self, n: int, /) -> Words:
        raise InvalidParameter(f"{n} fresh words were requested where noise must be repeatable")


_LIVE_TAPS: weakref.WeakSet[SecureRng] = weakref.WeakSet()


def _wipe_all() -> None:
    for rng in list(_LIVE_TAPS):
        rng.wipe()


# The hook covers a grandchild with its grandparent's process id; comparing ids covers forks outside Python.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_wipe_all)
atexit.register(_wipe_all)


# A cluster repeats a task if a machine is lost or slow. Two independent noisy versions of one count would reveal
# more than one, so there the noise is a function of a secret key and of the item, and is the same in every
# repetition.

KEY_BYTES: Final = 32
DIGEST_BYTES: Final = 32


class KeyedWords:
    """An endless sequence of words for each of several digests, by AES-256 as CBC-MAC on three blocks.

        word number c of the digest (d1, d2) = the first half of E(E(E(d1) xor d2) xor c)

    Guarantee: without the key, words of different digests or numbers are independent and uniform, up to an
        advantage below 2^-50 for 2^34 digests; the same key, digest and number give the same word on every
        machine.
    Valid for: distinct digests. All messages have three blocks, as the proof for CBC-MAC requires.
    Source: Bellare, Kilian and Rogaway 2000; docs/spark.md.
    """

    def __init__(self, key: bytes, digests: NDArray[np.uint8]) -> None:
        if len(key) != KEY_BYTES:
            raise InvalidParameter(f"the key of the noise must have {KEY_BYTES} bytes")
        if digests.dtype != np.uint8 or digests.ndim != 2 or digests.shape[1] != DIGEST_BYTES:
            raise InvalidParameter(f"digests must be rows of {DIGEST_BYTES} bytes, not of shape {digests.shape}")
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())
        # Little-endian on every machine, so that all make the same noise.
        halves = np.ascontiguousarray(digests).view("<u8").astype(np.uint64, copy=False)
        self._state = self._encrypt(self._encrypt(halves[:, :2]) ^ halves[:, 2:])

    def words_numbered(self, rows: NDArray[np.int64], numbers: NDArray[np.int64] | int) -> Words:
        """The word with this number of each row's sequence."""
        blocks = self._state[rows]
        blocks[:, 0] ^= np.asarray(numbers).astype(np.uint64)
        return np.ascontiguousarray(self._encrypt(blocks)[:, 0])

    def _encrypt(self, blocks: Words) -> Words:
        """Encrypt each block separately, which is safe as the blocks differ and are random to begin with."""
        plain = np.ascontiguousarray(blocks.astype("<u8", copy=False))
        secret = self._cipher.encryptor().update(plain.tobytes())
        return np.frombuffer(secret, dtype="<u8").reshape(-1, 2).astype(np.uint64)
