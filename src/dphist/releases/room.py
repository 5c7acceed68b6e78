"""Whether this process has room for a release. Small, so that it can be asked before large imports."""

from __future__ import annotations

from dphist.engines.protocol import Resources
from dphist.engines.workspace import check_address_space


def check_room(memory: str | None) -> None:
    """One sentence where the limit of the address space is too low: libraries abort the process without room."""
    check_address_space(Resources(memory))
