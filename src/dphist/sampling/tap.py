"""The one tap of randomness: fresh 64-bit words, by AES-256-CTR keyed by the operating system.

`SecureTap` is what a release uses. `SeededTap` repeats itself on purpose and is for tests alone: whatever it made
is not private, and `private` says so.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dphist.errors import InvalidParameter

Words = NDArray[np.uint64]

_BLOCK_BYTES: Final = 1 << 20
# The cipher turns zeros into its key stream; one block of them serves every tap.
_ZEROS: Final = memoryview(bytes(_BLOCK_BYTES))
_BUFFER_WORDS: Final = 1 << 12
# A key makes at most 2^26 cipher blocks, so that the absence of repeated blocks shows with advantage below 2^-76.
_BYTES_PER_KEY: Final = 1 << 30


class Tap(Protocol):
    """A source of random words. `private` is False where the words could be made again by someone else."""

    @property
    def private(self) -> bool:
        """Whether noise made from these words may protect anybody."""
        ...

    def words(self, n: int, /) -> Words:
        """`n` fresh words in an array of its own, none of them ever handed out before."""
        ...


def word_count(n: int) -> int:
    """The number of words or draws asked for, or one sentence saying why not."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise InvalidParameter(f"the number of draws must be a whole number, not {n!r}")
    if n < 0:
        raise InvalidParameter(f"the number of draws must not be negative, not {n}")
    return int(n)


class _Stream:
    """One key stream of one process, used by one call at a time.

    Small requests are served from a buffer whose words are overwritten with zeros as they leave it; large
    ones are written by the cipher straight into the array that is handed out.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._buffer: Words = np.zeros(_BUFFER_WORDS, dtype=np.uint64)
        self._used = _BUFFER_WORDS
        self._rekey()

    def _rekey(self) -> None:
        """A new key and nonce; nothing that follows can be computed from what came before."""
        self._encryptor = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
        self._bytes_left = _BYTES_PER_KEY

    def _generate(self, out: Words) -> None:
        view = out.view(np.uint8).data
        for start in range(0, len(view), _BLOCK_BYTES):
            size = min(_BLOCK_BYTES, len(view) - start)
            if size > self._bytes_left:
                self._rekey()
            self._bytes_left -= size
            self._encryptor.update_into(_ZEROS[:size], view[start : start + size])

    def take(self, n: int) -> Words:
        """`n` fresh words in a new array."""
        out = np.empty(n, dtype=np.uint64)
        if n > _BUFFER_WORDS // 4:
            self._generate(out)
            return out
        if n > _BUFFER_WORDS - self._used:
            self._generate(self._buffer)
            self._used = 0
        source = self._buffer[self._used : self._used + n]
        self._used += n
        out[:] = source
        source[:] = 0
        return out

    def wipe(self) -> None:
        """Overwrite what is buffered, and let go of the key."""
        self._used = _BUFFER_WORDS
        self._buffer[:] = 0
        self._bytes_left = 0
        del self._encryptor


class SecureTap:
    """Random words from AES-256 in counter mode, keyed and re-keyed by the operating system.

    Guarantee: no word is handed out twice, within a process, between its threads or across a fork; the arrays
        alias nothing that is written later.
    Valid for: any number of threads, and calls from signal handlers: nothing else can reach a stream in use.
    """

    private: Final = True

    def __init__(self) -> None:
        # Idle streams. `pop` and `append` of a list are atomic, and a stream is out of the list while in use:
        # no lock that a fork could leave locked, and none that a signal handler could wait for in vain.
        self._idle: list[_Stream] = []
        _LIVE_TAPS.add(self)

    def __repr__(self) -> str:
        return "SecureTap()"

    def __reduce__(self) -> str | tuple[object, ...]:
        # A pickled tap would carry its key to another process; a new tap carries nothing.
        return (SecureTap, ())

    def words(self, n: int, /) -> Words:
        """`n` fresh words in an array of its own, none of them ever handed out before."""
        size = word_count(n)
        while True:
            stream = self._idle_stream()
            words = stream.take(size)
            # A fork in the middle of `take` (a signal handler can do that) leaves two owners of one stream: the
            # child throws away what it just made.
            if stream.pid == os.getpid():
                self._idle.append(stream)
                return words
            stream.wipe()

    def _idle_stream(self) -> _Stream:
        """A stream of this very process; those inherited from a parent are dropped."""
        while True:
            try:
                stream = self._idle.pop()
            except IndexError:
                return _Stream()
            if stream.pid == os.getpid():
                return stream
            stream.wipe()

    def wipe(self) -> None:
        """Overwrite every idle buffer and forget the keys; the next request starts from a new key."""
        while self._idle:
            try:
                self._idle.pop().wipe()
            except IndexError:
                return


class SeededTap:
    """Words that a seed repeats, for tests alone: NOT PRIVATE.

    Guarantee: the same seed gives the same words on every machine, however they are asked for.
    """

    private: Final = False

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise InvalidParameter(f"a seed must be a whole number that is not negative, not {seed!r}")
        self.seed = int(seed)
        self._generator = np.random.PCG64(self.seed)

    def __repr__(self) -> str:
        return f"SeededTap({self.seed}, NOT PRIVATE)"

    def words(self, n: int, /) -> Words:
        """The next `n` words of the seed's sequence."""
        return np.asarray(self._generator.random_raw(word_count(n)), dtype=np.uint64)


class ClosedTap:
    """No words at all: for sessions whose noise must come from elsewhere, on pain of an error."""

    private: Final = True

    def words(self, n: int, /) -> Words:
        """An error, always."""
        raise InvalidParameter(f"{n} fresh words were asked for where noise must be repeatable")


_LIVE_TAPS: weakref.WeakSet[SecureTap] = weakref.WeakSet()


def _wipe_all() -> None:
    for tap in list(_LIVE_TAPS):
        tap.wipe()


# The hook covers a grandchild that got its grandparent's process number; the number itself covers forks made
# outside Python.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_wipe_all)
atexit.register(_wipe_all)


# A cluster runs a task twice when a machine is lost or slow. Noise from a tap would then be drawn twice for one
# count, and two noisy versions of one count reveal more than one. Noise from a function of a secret key and of
# what the noise is for is the same however often it is made.

KEY_BYTES: Final = 32
DIGEST_BYTES: Final = 32


class KeyedWords:
    """For each of several digests an endless row of words: AES-256 in the manner of CBC-MAC on three blocks.

        word number c of the digest (d1, d2) = the first half of E(E(E(d1) xor d2) xor c)

    Guarantee: without the key, words of different digests or different numbers are independent
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
        return self.words_numbered(rows, np.zeros(rows.size, dtype=np.int64))

    def words_numbered(self, rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> Words:
        """The words of these numbers, of these rows."""
        blocks = self._state[rows]
        blocks[:, 0] ^= numbers.astype(np.uint64)
        return np.ascontiguousarray(self._encrypt(blocks)[:, 0])


def _encryption(key: bytes) -> Callable[[Words], Words]:
    """Each block by itself; they differ, and what they hide is random to begin with."""
    cipher = Cipher(algorithms.AES(key), modes.ECB())

    def encrypt(blocks: Words) -> Words:
        plain = np.ascontiguousarray(blocks.astype("<u8", copy=False))
        secret = cipher.encryptor().update(plain.tobytes())
        return np.frombuffer(secret, dtype="<u8").reshape(-1, 2).astype(np.uint64)

    return encrypt
