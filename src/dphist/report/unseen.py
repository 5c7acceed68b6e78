"""Characters that nobody sees: two items that differ by one of them alone would look the same."""

from __future__ import annotations

import re
from typing import Final

# Control characters, ends of lines, spaces that are no space, what turns a text round, and what Unicode lets a
# reader ignore. page.js has the same list.
_CLASS: Final = (
    "\x00-\x1f\x7f-\xa0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
# A joiner between two emojis makes one of them, and a selector after one gives it its colours: both are seen.
_PICTURE: Final = "\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_JOINED: Final = f"(?<=[{_PICTURE}\ufe0f])\u200d(?=[{_PICTURE}])|(?<=[{_PICTURE}])\ufe0f"
_FOUND: Final = re.compile(f"({_JOINED})|[{_CLASS}]")
UNSEEN: Final = re.compile(f"[{_CLASS}]")


def visible(text: str) -> str:
    """The text with what nobody sees spelled out, as Python would."""
    return _FOUND.sub(lambda found: found[0] if found[1] else _spelled(found[0]), text)


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
