"""The command `dphist` itself, and what its subcommands share."""

from __future__ import annotations

import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from dphist.display import printable, text_grid
from dphist.releasing.request import Option, Watcher, flag, options

_WIDTH = 100
_SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 110},
}
app = typer.Typer(
    name="dphist",
    help="How many users per item? Private histograms with the least noise and the lowest provable threshold.",
    pretty_exceptions_enable=False,
    **_SETTINGS,
)


def group(name: str, help_text: str) -> typer.Typer:
    """Subcommands under one name."""
    subcommands = typer.Typer(name=name, help=help_text, **_SETTINGS)
    app.add_typer(subcommands)
    return subcommands


# Flags. Those of `dphist release` are declared in `releasing/request.py`.


def number(text: str, words: Sequence[str] = ()) -> Any:
    """The number that a text is, or the text if it is one of the words."""
    try:
        return text if text in words else float(text)
    except ValueError:
        raise typer.BadParameter(" or ".join((f"{text!r} is not a number", *words))) from None


def whole_number(text: str, words: Sequence[str] = ()) -> Any:
    """The same for whole numbers."""
    try:
        return text if text in words else int(text)
    except ValueError:
        raise typer.BadParameter(" or ".join((f"{text!r} is not a whole number", *words))) from None


def option(name: str, *, metavar: str = "", help: str = "") -> Any:
    """The flag of an option of a release, for any command that has it too."""
    declared = next(one for one in options() if one.name == name)
    parser = {int: whole_number, float: number}.get(declared.kind)
    return typer.Option(
        flag(name), metavar=metavar or declared.help.metavar or None,
        parser=None if parser is None else partial(parser, words=declared.words),
        help=help or declared.help.text, rich_help_panel=declared.help.group, show_default=False,
    )  # fmt: skip


def with_release_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's `**options` with a flag for each option of a release; unless given, it is None."""
    signature = inspect.signature(command, eval_str=True)
    source, *own, _ = signature.parameters.values()
    named = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if one.kind is bool else None,
            annotation=Annotated[_flag_type(one), option(one.name)],
        )
        for one in options()
    ]
    command.__signature__ = signature.replace(parameters=[source, *named, *own])  # type: ignore[attr-defined]
    return command


def _flag_type(one: Option) -> Any:
    if one.kind is bool:
        return bool
    if one.kind is str and one.words:
        return Literal[one.words] | None
    # A number or a word: the parser makes it what it is.
    kind = one.kind if one.kind in (int, float) and not one.words else str
    return list[kind] | None if one.many else kind | None  # type: ignore[valid-type]


class GroupedCommand(TyperCommand):
    """A command whose help shows its flags in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the groups in the order of their first flags; those of the command itself come last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in sorted(self.get_params(ctx), key=lambda one: not getattr(one, "rich_help_panel", None)):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = getattr(parameter, "rich_help_panel", None) or "Other options"
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


Epsilon = Annotated[float, option("epsilon")]
Delta = Annotated[float, option("delta")]
MaxNonzero = Annotated[
    int | None,
    option("max_nonzero", help="Bound on the number of non-zero counts of every possible dataset. It is public."),
]
MaxItems = Annotated[
    int | None,
    typer.Option(
        "--max-items-per-user", metavar="M", parser=whole_number, help="Number of counts one user can change."
    ),
]
GammaOption = Annotated[Any, option("gamma")]
PublicItems = Annotated[
    int | None, typer.Option("--public-items", metavar="N", parser=whole_number, help="Length of a public list.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


# What commands print. Names in it cannot move the cursor of a terminal.


def print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_out(text: str) -> None:
    """Text for people on standard output."""
    sys.stdout.write("\n".join(printable(line) for line in text.split("\n")))


def write_error(sentence: str) -> None:
    """One sentence on standard error, on one line whatever names are in it."""
    sys.stderr.write(printable(sentence) + "\n")


def wrap(sentence: str) -> str:
    return textwrap.fill(sentence, _WIDTH, break_on_hyphens=False)


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, bold: int | None = None
) -> None:
    """Columns under their names, the first `left` of them texts; on a terminal one row may be `bold`."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        write_out(text_grid(head, cells, left=left) + "\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place < left else "right", overflow="fold")
    for place, row in enumerate(cells):
        # As texts: rich would take brackets for markup.
        table.add_row(*(Text(cell) for cell in row), style="bold" if place == bold else None)
    Console(highlight=False).print(table)


@contextmanager
def progress_bars() -> Iterator[Watcher | None]:
    """Bars on a terminal, nothing in pipes. They show shares of the work, never a number from the data."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<12}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(step: str, share: float) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=1.0)
            bars.update(tasks[step], completed=share)

        yield watch


class Stopped(typer.Exit):
    """The end of a command by a signal, with its sentence and what stays booked."""

    message = ""
    booking: Any = None


@contextmanager
def stoppable() -> Iterator[list[Any]]:
    """On a signal print one sentence, and exit with the code that a shell expects.

    The caller appends to the list what was written. The sentence says that, or what stays booked.
    """
    from dphist.publishing import interruptible

    placed: list[Any] = []
    try:
        with interruptible():
            yield placed
    except (KeyboardInterrupt, SystemExit) as stopped:
        done = "nothing was written"
        if placed:
            address = getattr(placed[0], "address", None)
            done = "the output was already written" + (f" to {address}" if address else "")
        booking = getattr(stopped, "booking", None)
        if booking is not None and not placed:
            done += f". {booking['summary']}"
        write_error(f"Interrupted: {done}.")
        ended = Stopped(130 if isinstance(stopped, KeyboardInterrupt) else int(stopped.code or 143))
        ended.message, ended.booking = f"Interrupted: {done}", booking
        raise ended from None


@contextmanager
def closed_pipe_ignored() -> Iterator[None]:
    """The files are written: it is not an error if nobody reads standard output any more."""
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
