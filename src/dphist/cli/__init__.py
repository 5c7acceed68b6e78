"""The command `dphist`: parse, call the library, print."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import typer

# The commands of each module. Only the module of the requested command is imported.
_MODULES: Final = {
    "planning": ("plan", "certify", "compare", "profile", "audit", "simulate"),
    "releasing": ("release",),
    "reporting": ("report", "verify", "explore", "keygen"),
    "ledgers": ("ledger",),
    "sketching": ("sketch",),
}


def commands(name: str = "") -> typer.Typer:
    """The app with the command of this name, or with all commands if there is none."""
    requested = [module for module, names in _MODULES.items() if name in names]
    for module in requested or _MODULES:
        import_module(f"dphist.cli.{module}")
    from dphist.cli.base import app

    return app


@cache
def _parser(name: str = "") -> Any:
    from typer.main import get_command

    return get_command(commands(name))


def main() -> None:
    """Run the command line. An error of dphist is one sentence on standard error and one of these exit codes.

    1: could not be written or verified. 2: bad parameters or unreadable input. 3: over budget. 4: already running.
    """
    from dphist.cli.base import UsageError, error_sentence, usage_sentence, write_error
    from dphist.errors import AlreadyRunning, DphistError, NotVerified, OutputError, OverBudget

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Items may have characters that the terminal cannot show.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _parser(*sys.argv[1:2])(prog_name="dphist", standalone_mode=False)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            write_error(f"Error: {usage_sentence(error)}")
        raise SystemExit(2) from None
    except DphistError as error:
        write_error(f"Error: {error_sentence(error)}")
        if error.example:
            write_error(f"  {error.example}")
        codes = {OutputError: 1, NotVerified: 1, OverBudget: 3, AlreadyRunning: 4}
        raise SystemExit(next((codes[kind] for kind in type(error).mro() if kind in codes), 2)) from None
    except OSError as error:
        # A full disk or a closed pipe.
        booking = getattr(error, "booking", None)
        write_error(f"Error: cannot write: {error.strerror}" + (f". {booking['summary']}" if booking else ""))
        raise SystemExit(1) from None
    raise SystemExit(code)
