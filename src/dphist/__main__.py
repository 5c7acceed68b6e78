"""The command `dphist`, also as `python -m dphist`."""

import signal

# Importing takes most of a second. Until it is done there is nothing to clean up: Ctrl-C ends the process at once,
# as SIGTERM does, where Python would print a traceback, or a library would replace the exception by its own.
_interrupt = signal.getsignal(signal.SIGINT)
if _interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    import sys

    from dphist.cli import base

    base.parser_for(*sys.argv[1:2])
    if _interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    base.main()


if __name__ == "__main__":
    main()
