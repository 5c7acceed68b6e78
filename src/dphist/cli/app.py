"""The command with all its subcommands."""

from __future__ import annotations

from dphist.cli import exploring, ledger, planning, releasing, reporting, signing, simulating, sketching
from dphist.cli.base import app

__all__ = [
    "app",
    "exploring",
    "ledger",
    "planning",
    "releasing",
    "reporting",
    "signing",
    "simulating",
    "sketching",
]
