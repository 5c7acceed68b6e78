"""The command `dphist`. Thin: it parses, calls the library and prints."""

from __future__ import annotations

import gc
import sys

# Most of a short command is imports. Objects that stay anyway are looked at 15 times rather than 500.
_OBJECTS_BETWEEN_COLLECTIONS = 20_000


def main() -> None:
    """Run the command; an error of dphist is one sentence on standard error and an exit code by its kind.

    1: could not be written or verified. 2: bad parameters or unreadable input. 3: over budget. 4: already running.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    from dphist.cli.app import app
    from dphist.cli.base import UsageError, error_sentence, usage_sentence, write_error
    from dphist.errors import AlreadyRunning, DphistError, NotVerified, OutputError, OverBudget

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # An item that the terminal cannot show is not an error.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            write_error(f"Error: {usage_sentence(error)}")
        raise SystemExit(2) from None
    except (OutputError, NotVerified) as error:
        write_error(f"Error: {error_sentence(error)}")
        raise SystemExit(1) from None
    except DphistError as error:
        write_error(f"Error: {error_sentence(error)}")
        if error.example:
            write_error(f"  {error.example}")
        codes: dict[type[DphistError], int] = {OverBudget: 3, AlreadyRunning: 4}
        raise SystemExit(codes.get(type(error), 2)) from None
    except OSError as error:
        # A full disk or a closed pipe: not the user's parameters, hence another exit code.
        booking = getattr(error, "booking", None)
        write_error(f"Error: cannot write: {error.strerror}" + (f". {booking['summary']}" if booking else ""))
        raise SystemExit(1) from None
    raise SystemExit(code)
