"""The command `dphist`. Thin: it parses, calls the library and prints."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; an error of dphist is one sentence on standard error and exit code 2."""
    from dphist.cli.app import app
    from dphist.errors import DphistError

    try:
        app()
    except DphistError as error:
        sys.stderr.write(f"Error: {error}\n")
        raise SystemExit(2) from None
    except BrokenPipeError:
        # The reader of our output went away, as `head` does: not our error.
        sys.stderr.close()
        raise SystemExit(141) from None
