"""The command with all its subcommands."""

from __future__ import annotations

from dphist.cli import ledger, planning, releasing, reporting, simulating, sketching
from dphist.cli.base import app

__all__ = ["app", "ledger", "planning", "releasing", "reporting", "simulating", "sketching"]
