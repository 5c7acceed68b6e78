"""The command `dphist`. Thin: it parses, calls the library and prints."""

from __future__ import annotations

import gc
import sys

# Most of a short command is imports. Objects that stay anyway are looked at 15 times rather than 500.
_OBJECTS_BETWEEN_COLLECTIONS = 20_000


def main() -> None:
    """Run the command; an error of dphist is one sentence on standard error and exit code 2."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    from dphist.cli.app import app
    from dphist.cli.base import write_error
    from dphist.errors import DphistError, NotVerified, OutputError

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # An item that the terminal cannot show is not an error.
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except (OutputError, NotVerified) as error:
        write_error(f"Error: {error}")
        raise SystemExit(1) from None
    except DphistError as error:
        write_error(f"Error: {error}")
        raise SystemExit(2) from None
    except OSError as error:
        # A full disk or a closed pipe: not the user's parameters, hence another exit code.
        booking = getattr(error, "booking", None)
        write_error(f"Error: cannot write: {error.strerror}" + (f". {booking['summary']}" if booking else ""))
        raise SystemExit(1) from None
