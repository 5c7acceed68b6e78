"""The command with all its subcommands."""

from __future__ import annotations

from dphist.cli import planning, releasing, sketching
from dphist.cli.base import app

__all__ = ["app", "planning", "releasing", "sketching"]
