"""CSV files that are not UTF-8: the encodings that can be named, and conversion to UTF-8.

Guarantee: what a row becomes depends on this row alone. That holds for encodings with one byte per character, and
for UTF-16; in others, such as UTF-7 or ISO-2022-JP, a byte of one row can change how the rows after it are read.
"""

from __future__ import annotations

import codecs
import re
from typing import IO, Final, Protocol

from dphist.errors import InputError, InvalidParameter

# In a file of another encoding, what is no character becomes a byte that is not UTF-8: its row is skipped.
UNREADABLE: Final = "dphist-unreadable"
_BLOCK: Final = 1 << 20
_ONE_BYTE: Final = re.compile(r"ascii|cp\d+|iso8859-\d+|mac-\w+|koi8-\w")
_TWO_BYTES: Final = ("utf-16", "utf-16-le", "utf-16-be")

codecs.register_error(UNREADABLE, lambda error: ("\udcff", getattr(error, "end", 0)))


class Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


def codec_of(encoding: str | None) -> str:
    """Python's name of an encoding. Raises `InvalidParameter` for one that cannot be read row by row."""
    try:
        name = codecs.lookup(encoding or "utf-8").name
    except (LookupError, ValueError):
        name = ""
    if name in ("utf-8", "utf-8-sig"):
        return "utf-8"
    if name in _TWO_BYTES or (_ONE_BYTE.fullmatch(name) and _has_one_byte_characters(name)):
        return name
    raise InvalidParameter(
        "<--encoding> must be utf-8, latin-1, windows-1252, utf-16 or another encoding with one byte per "
        f"character, not {encoding!r}: convert the file to UTF-8"
    )


def _has_one_byte_characters(codec: str) -> bool:
    text = bytes(range(256)).decode(codec, "replace")
    return len(text) == 256 and text[:128] == bytes(range(128)).decode("ascii")


def convert_to_utf8(source: Bytes, codec: str, target: IO[bytes], what: str) -> None:
    """Copy a text. Raises `InputError` for UTF-16 with an odd number of bytes, where a row could shift others."""
    decoder = codecs.getincrementaldecoder(codec)(UNREADABLE)
    size = 0
    while block := source.read(_BLOCK):
        size += len(block)
        target.write(decoder.decode(block).encode("utf-8", "surrogateescape"))
    if codec in _TWO_BYTES and size % 2:
        raise InputError(f"{what} is not UTF-16, or it is damaged: it has an odd number of bytes")
    target.write(decoder.decode(b"", final=True).encode("utf-8", "surrogateescape"))
