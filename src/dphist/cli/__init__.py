"""The command `dphist`. Thin: it parses, calls the library and prints."""

from __future__ import annotations

import gc
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import typer

# The module of each command. Only that of the requested one is imported.
_MODULES: Final = {
    "planning": ("plan", "certify", "compare", "profile", "audit", "simulate"),
    "releasing": ("release",),
    "reporting": ("report", "verify", "explore", "keygen"),
    "ledgers": ("ledger",),
    "sketching": ("sketch",),
}
# Most of a short command is imports. Objects that stay anyway are looked at 15 times rather than 500.
_OBJECTS_BETWEEN_COLLECTIONS = 20_000


def commands(name: str = "") -> typer.Typer:
    """The command of this name in its group; for any other word the group of all commands."""
    found = [module for module, names in _MODULES.items() if name in names]
    for module in found or _MODULES:
        import_module(f"dphist.cli.{module}")
    from dphist.cli.base import app

    return app


@cache
def _build(app: typer.Typer, size: int) -> Any:  # noqa: ARG001
    """The parser of all commands that are imported, `size` of them: typer would build it anew for each call."""
    from typer.main import get_command

    return get_command(app)


def main() -> None:
    """Run the command; an error of dphist is one sentence on standard error and an exit code by its kind.

    1: could not be written or verified. 2: bad parameters or unreadable input. 3: over budget. 4: already running.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    from dphist.cli.base import UsageError, error_sentence, usage_sentence, write_error
    from dphist.errors import AlreadyRunning, DphistError, NotVerified, OutputError, OverBudget

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # An item that the terminal cannot show is not an error.
            stream.reconfigure(errors="backslashreplace")
    try:
        app = commands(*sys.argv[1:2])
        code = _build(app, len(app.registered_commands) + len(app.registered_groups))(standalone_mode=False)
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
        # A full disk or a closed pipe: not the user's parameters, hence another exit code.
        booking = getattr(error, "booking", None)
        write_error(f"Error: cannot write: {error.strerror}" + (f". {booking['summary']}" if booking else ""))
        raise SystemExit(1) from None
    raise SystemExit(code)
