"""The command `dphist`: parse, call the library, print."""

from dphist.cli.base import commands, main

__all__ = ["commands", "main"]
