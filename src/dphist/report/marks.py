"""By what a report and a figure of dphist are told from other files: nothing else is ever replaced by one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# In the head of a page, and inside a drawing.
PAGE: Final = '<meta name="generator" content="dphist report">'
DRAWING: Final = "<metadata>dphist report</metadata>"
# The last lines of a text and of Markdown.
TEXT: Final = "This is a report by dphist."
MARKDOWN: Final = "<!-- dphist report -->"
# What a PNG says it was made by.
SOFTWARE: Final = "dphist report"
# The marks are near one end of a file; of a long one no more is read.
_HEAD: Final = 4096
_TAIL: Final = 256


def is_replaceable(path: Path) -> bool:
    """Whether a file is a report or a figure that dphist made, or has nothing in it."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        tail = file.read(_TAIL)
    if not head:
        return True
    last = tail.rstrip(b"\r\n").rpartition(b"\n")[2].rstrip(b"\r")
    return (
        (head.startswith(b"<!doctype html>") and PAGE.encode() in head)
        or (head.startswith(b"<svg ") and DRAWING.encode() in head)
        or (head.startswith(b"\x89PNG\r\n") and b"Software\0" + SOFTWARE.encode() in head)
        or last in (TEXT.encode(), MARKDOWN.encode())
    )
