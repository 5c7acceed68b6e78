"""The words that every look of a simulation begins with."""

from __future__ import annotations

from typing import Final

NOTICE: Final = "NOT PRIVATE: a simulation, for public or synthetic data only; nothing in it is protected."
