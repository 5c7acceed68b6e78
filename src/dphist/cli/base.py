"""The command `dphist` itself, and what its subcommands have in common."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer

from dphist.errors import InvalidParameter

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
app = typer.Typer(
    name="dphist",
    help="How many users per item? Private histograms with the least noise and the lowest provable threshold.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def group(name: str, help_text: str) -> typer.Typer:
    """Subcommands under one name, with the same habits as all others."""
    made = typer.Typer(
        name=name,
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=_HELP,
    )
    app.add_typer(made)
    return made


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


Epsilon = Annotated[float, typer.Option("--epsilon", metavar="E", parser=number, help="Privacy loss, above 0.")]
Delta = Annotated[
    float,
    typer.Option(
        "--delta",
        metavar="D",
        parser=number,
        help="What may be added to a probability beside e^epsilon times it, in (0, 1).",
    ),
]
MaxNonzero = Annotated[
    int | None,
    typer.Option(
        "--max-nonzero",
        metavar="K",
        parser=whole_number,
        help="Bound on the non-zero counts of every possible dataset; it must be public.",
    ),
]
MaxItems = Annotated[
    int | None,
    typer.Option(
        "--max-items-per-user",
        metavar="M",
        parser=whole_number,
        help="Bound on the counts that one user can touch.",
    ),
]
GammaOption = Annotated[
    str | None,
    typer.Option("--gamma", metavar="sqrt|FLOAT", help="Variance of each noise over that of the shared one."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def gamma_from(text: str | None) -> float | Literal["sqrt"] | None:
    if text is None or text == "sqrt":
        return text  # type: ignore[return-value]
    try:
        return float(text)
    except ValueError:
        raise InvalidParameter(f"gamma must be 'sqrt' or a number, not {text!r}") from None


def print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_out(text: str) -> None:
    """Text for people on standard output. Names in it cannot move the cursor of a terminal."""
    sys.stdout.write(_safe(text))


def write_error(text: str) -> None:
    """The same on standard error."""
    sys.stderr.write(_safe(text))


def write_sentence(text: str) -> None:
    """One sentence on standard error, on one line whatever names are in it."""
    from dphist.display import printable

    sys.stderr.write(printable(text) + "\n")


def write_styled(text: str) -> None:
    """What rich has drawn on standard output, with its colours; every cell of it must be `printable` already."""
    sys.stdout.write(text)


def _safe(text: str) -> str:
    from dphist.display import printable

    return "\n".join(printable(line) for line in text.split("\n"))


class Stopped(typer.Exit):
    """The end of a command by a signal, and what it leaves booked."""

    message = ""
    booking: Any = None


@contextmanager
def stoppable(said: Callable[[Any], str], otherwise: str = "nothing was written") -> Iterator[list[Any]]:
    """On a signal one sentence, and the exit code that a shell expects.

    The list is told what was written; `said` makes of that the sentence's end, and without it that is `otherwise`.
    What stays booked is said as well, and passed on.
    """
    from dphist.publishing import interruptible

    placed: list[Any] = []
    try:
        with interruptible():
            yield placed
    except (KeyboardInterrupt, SystemExit) as stopped:
        done, booking = said(placed[0]) if placed else otherwise, getattr(stopped, "booking", None)
        if booking is not None and not placed:
            done += f". {booking['summary']}"
        write_error(f"Interrupted: {done}.\n")
        ended = Stopped(130 if isinstance(stopped, KeyboardInterrupt) else int(stopped.code or 143))
        ended.message, ended.booking = f"Interrupted: {done}", booking
        raise ended from None


@contextmanager
def shown() -> Iterator[None]:
    """What was written is there all the same if whoever reads standard output has gone."""
    try:
        yield
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print_version(wanted: bool) -> None:
    if wanted:
        from dphist import __version__

        sys.stdout.write(f"dphist {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
