"""Texts that others wrote, such as items and the words of a certificate, as they can be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text that cannot move the cursor of a terminal, turn the direction of a line or fail to be encoded."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
