"""The command `dphist`: parse, call the library, print.

Help, `dphist verify` and many mistakes need none of the large modules. So a command uses the public names of
`dphist`, which load with their first use, and imports other large modules itself.
"""

from dphist.cli.base import commands, main

__all__ = ["commands", "main"]
