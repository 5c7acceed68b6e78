"""Noise from a key, one block of the cipher at a time: written from what `KeyedWords` and `digest` say they do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dphist.sampling.sampler import ExactSampler

MICROSECOND = timedelta(microseconds=1)


def written(value: Any) -> str | None:
    """A value as Spark's text of it; floats are those that Java and Python write alike."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return str(value)
        return str((value - datetime(1970, 1, 1, tzinfo=UTC)) // MICROSECOND)
    if isinstance(value, date):
        return str((value - date(1970, 1, 1)).days)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    assert isinstance(value, (int, float, Decimal))
    return str(value)


def joined(parts: Sequence[str | None]) -> str:
    """Each text after its length in characters and a colon; a hyphen where there is none."""
    return "".join("-" if part is None else f"{len(part)}:{part}" for part in parts)


def taken_apart(text: str) -> tuple[str | None, ...]:
    """The texts that were joined: that there is one way to read them is why no two rows of texts give the same."""
    found: list[str | None] = []
    while text:
        if text[0] == "-":
            found.append(None)
            text = text[1:]
        else:
            length, _, rest = text.partition(":")
            found.append(rest[: int(length)])
            text = rest[int(length) :]
    return tuple(found)


def digest(item: Sequence[Any], count: int) -> bytes:
    """SHA-256 of an item and its count."""
    return sha256(joined([*map(written, item), str(count)]).encode()).digest()


def word(key: bytes, digest: bytes, number: int) -> int:
    """The first half of E(E(E(d1) xor d2) xor number), numbers and blocks with their lowest byte first."""

    def encrypted(block: int) -> int:
        cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        return int.from_bytes(cipher.update(block.to_bytes(16, "little")) + cipher.finalize(), "little")

    first, second = (int.from_bytes(digest[start : start + 16], "little") for start in (0, 16))
    return encrypted(encrypted(encrypted(first) ^ second) ^ number) % 2**64


def draws(key: bytes, digests: Sequence[bytes], sampler: ExactSampler) -> NDArray[np.int64]:
    """The noise of these digests, in steps."""
    first = np.array([word(key, one, 0) for one in digests], dtype=np.uint64)

    def more(rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        pairs = zip(rows, numbers, strict=True)
        return np.array([word(key, digests[row], int(number)) for row, number in pairs], dtype=np.uint64)

    return sampler.sample_from_words(first, more, compiled=False)
