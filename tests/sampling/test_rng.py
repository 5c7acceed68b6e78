"""The rng of randomness never returns a word twice, across forks, threads and requests of all sizes."""

from __future__ import annotations

import os
import pickle
import random
import threading
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

import dphist
from dphist.counting.duckdb import DuckDBEngine
from dphist.errors import InvalidParameter
from dphist.releasing import run
from dphist.sampling import Rng, SecureRng, SeededRng
from dphist.sampling import rng as module

Words = NDArray[np.uint64]


def assert_all_differ(*arrays: Words) -> None:
    """No word twice. Among 180,000 uniform 64-bit words, two are equal with probability 9e-10."""
    together = np.concatenate(arrays)
    assert together.size < 180_000
    assert np.unique(together).size == together.size


def words_of_child(rng: Rng, n: int) -> Words:
    """Words drawn by a forked child from the rng that it inherited."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about forks with threads
        pid = os.fork()
    if pid == 0:
        try:
            os.write(write, rng.words(n).tobytes())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    assert len(data) == 8 * n
    return np.frombuffer(data, dtype=np.uint64)


def test_words_do_not_repeat_and_look_random() -> None:
    rng = SecureRng()
    sizes = [0, 1, 3, 1000, 1024, 1025, 5000, 1, 50_000, 7, 100_000]
    arrays = [rng.words(size) for size in sizes]
    assert [array.size for array in arrays] == sizes
    assert all(array.dtype == np.uint64 for array in arrays)
    assert_all_differ(*arrays)
    bits = np.unpackbits(np.concatenate(arrays).view(np.uint8))
    # 6.5 standard deviations: false alarm below 1e-10.
    assert abs(float(bits.mean()) - 0.5) < 6.5 * 0.5 / np.sqrt(bits.size)


def test_two_taps_differ() -> None:
    assert_all_differ(SecureRng().words(1000), SecureRng().words(1000))


def test_returned_words_never_change() -> None:
    rng = SecureRng()
    small, large = rng.words(100), rng.words(10_000)
    copies = small.copy(), large.copy()
    for _ in range(100):
        rng.words(1000)
    rng.wipe()
    np.testing.assert_array_equal(small, copies[0])
    np.testing.assert_array_equal(large, copies[1])
    small[:] = 0  # the caller may overwrite them
    assert_all_differ(rng.words(100), copies[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_gives_other_words() -> None:
    rng = SecureRng()
    before = rng.words(10)  # leaves a stream that the child inherits
    children = [words_of_child(rng, 500) for _ in range(3)]
    assert_all_differ(before, rng.words(500), *children, rng.words(100_000))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_is_detected_without_the_process_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grandchild may have its grandparent's process id; then the hook must be enough."""
    rng = SecureRng()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid)
    before = rng.words(10)
    assert_all_differ(before, words_of_child(rng, 500), rng.words(500))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_while_other_threads_draw() -> None:
    rng = SecureRng()
    stop = threading.Event()
    drawn: list[Words] = []

    def draw() -> None:
        while not stop.is_set():
            drawn.append(rng.words(50))

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    children = [words_of_child(rng, 500) for _ in range(5)]
    stop.set()
    for thread in threads:
        thread.join()
    assert_all_differ(*drawn[:3_000], *children)


def test_a_stream_of_another_process_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks made outside Python run no hook; the process id must be enough."""
    rng = SecureRng()
    rng.words(1)
    (stream,) = rng._idle
    take, dropped = stream.take, list[Words]()

    def recorded(n: int) -> Words:
        dropped.append(take(n))
        return dropped[-1]

    monkeypatch.setattr(stream, "take", recorded)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert_all_differ(rng.words(100), *dropped)
    assert stream not in rng._idle


def test_threads_get_different_words() -> None:
    rng = SecureRng()
    drawn: list[list[Words]] = [[] for _ in range(8)]

    def draw(mine: list[Words]) -> None:
        for size in (1, 7, 900, 2000) * 7:
            mine.append(rng.words(size))

    threads = [threading.Thread(target=draw, args=(mine,)) for mine in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_all_differ(*(words for mine in drawn for words in mine))


def test_wiping_drops_the_keys() -> None:
    rng = SecureRng()
    before = rng.words(3)
    rng.wipe()
    assert rng._idle == []
    assert_all_differ(before, rng.words(3))


def test_new_key_after_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BYTES_PER_KEY", 1 << 17)
    rng = SecureRng()
    # Kept alive, as a new encryptor could reuse the id of a deleted one.
    encryptors = []
    arrays = []
    for _ in range(4):
        arrays.append(rng.words(1 << 13))
        encryptors.append(rng._idle[0]._encryptor)
        arrays.append(rng.words(1 << 14))
    assert_all_differ(*arrays)
    assert len({id(encryptor) for encryptor in encryptors}) == 4


def test_a_pickled_tap_contains_no_key() -> None:
    rng = SecureRng()
    before = rng.words(5)
    assert_all_differ(pickle.loads(pickle.dumps(rng)).words(100), before, rng.words(100))


def test_seeded_words_are_repeatable() -> None:
    once, pieces = SeededRng(7), SeededRng(7)
    np.testing.assert_array_equal(once.words(1000), np.concatenate([pieces.words(n) for n in (1, 0, 499, 500)]))
    assert SeededRng(8).words(1)[0] != SeededRng(7).words(1)[0]
    assert int(SeededRng(0).words(1)[0]) == 11749869230777074271  # the same on every machine


def test_only_the_secure_tap_is_private() -> None:
    assert SecureRng().private
    assert not SeededRng(1).private
    assert "NOT PRIVATE" in repr(SeededRng(1))
    assert "NOT" not in repr(SecureRng())


@pytest.mark.parametrize("rng", [SecureRng(), SeededRng(1)], ids=repr)
@pytest.mark.parametrize("n", [-1, 2.0, True, None, "3"], ids=repr)
def test_bad_sizes(rng: Rng, n: int) -> None:
    with pytest.raises(InvalidParameter, match=str(n)):
        rng.words(n)


@pytest.mark.parametrize("seed", [-1, 1.5, None, True], ids=repr)
def test_bad_seeds(seed: int) -> None:
    with pytest.raises(InvalidParameter, match=str(seed)):
        SeededRng(seed)


def test_key_and_nonce_come_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are AES-256-CTR under exactly the bytes that `os.urandom` gave, and nothing else is random."""
    given = list[bytes]()
    system = os.urandom

    def recorded(n: int) -> bytes:
        given.append(system(n))
        return given[-1]

    monkeypatch.setattr(os, "urandom", recorded)
    words = SecureRng().words(100)
    assert sorted(map(len, given)) == [16, 32], "key and nonce are not from os.urandom"
    nonce, key = sorted(given, key=len)
    stream = Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor().update(bytes(800))
    np.testing.assert_array_equal(words, np.frombuffer(stream, dtype=np.uint64))


def test_the_seed_of_another_generator_does_not_repeat_the_words() -> None:
    """Programs seed `random`, and its state can be computed from its outputs: noise must not depend on it."""

    def words() -> NDArray[np.uint64]:
        random.seed(1)
        return SecureRng().words(4)

    state = random.getstate()
    try:
        assert_all_differ(words(), words())
    finally:
        random.setstate(state)


def test_each_release_chooses_the_items_of_users_with_a_fresh_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever could guess the key would know which items of a user are counted."""
    made, keys = list[bytes](), list[bytes]()

    class Recorded(module.SecureRng):
        def words(self, n: int, /) -> module.Words:
            words = super().words(n)
            made.append(words.tobytes())
            return words

    def recorded(count: Any) -> Any:
        def counted(self: DuckDBEngine, task: Any, *more: Any) -> Any:
            keys.append(task.choice.key)
            return count(self, task, *more)

        return counted

    monkeypatch.setattr(run, "SecureRng", Recorded)
    for name in ("count", "rounds"):
        monkeypatch.setattr(DuckDBEngine, name, recorded(getattr(DuckDBEngine, name)))
    for limit in (1, 1, None, None):
        dphist.release(
            pa.table({"user": [1, 2], "item": ["a", "b"]}),
            user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=limit,
        )  # fmt: skip
    assert len(keys) == len(set(keys)) == 4
    for key in keys:
        assert len(key) == 32
        assert key in made, "the key is not from the operating system"
