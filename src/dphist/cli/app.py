"""The command with all its subcommands."""

from __future__ import annotations

from dphist.cli import ledger, planning, releasing, sketching
from dphist.cli.base import app

__all__ = ["app", "ledger", "planning", "releasing", "sketching"]
