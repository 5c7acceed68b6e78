"""Texts that others wrote, such as items and the words of a certificate, as they can be shown; and bounds."""

from __future__ import annotations

import math


def printable(text: str) -> str:
    """A text that cannot move the cursor of a terminal, turn the direction of a line or fail to be encoded."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def raised(number: float, digits: int = 3) -> str:
    """An upper bound in so many digits, the last of them rounded up."""
    near = f"{number:.{digits}g}"
    if number == 0.0 or float(near) >= number * (1.0 - 1e-12):
        return near
    return f"{number + 10.0 ** (math.floor(math.log10(number)) + 1 - digits):.{digits}g}"
