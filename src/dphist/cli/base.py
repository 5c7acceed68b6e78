"""The command `dphist` itself, and what its subcommands share."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Annotated, Any, Final, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from dphist.display import printable, text_grid
from dphist.errors import DphistError, InvalidParameter, replace_names
from dphist.objects import without_secrets
from dphist.releasing.request import PANELS, Help, Option, Watcher, flag, options

# An address as a word of the command line, or behind a flag in the same word.
_ADDRESS = re.compile(r"(--[\w-]+=|-\w)?([A-Za-z][A-Za-z0-9+.-]*://.*)", re.DOTALL)
_FEW_FLAGS = 12
# What `dphist --help` shows, in this order; commands that are not listed come last.
_COMMANDS = {
    "Release": ("release", "verify", "report"),
    "Choose a plan": ("plan", "simulate", "compare", "explore"),
    "Budgets and keys": ("ledger", "keygen"),
    "Streams": ("sketch",),
    "Analyse a plan": ("certify", "profile", "audit"),
}
# What typer raises for a command line that it cannot parse.
UsageError: Any = typer.BadParameter.__base__
Function = TypeVar("Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose help shows its flags in panels, and that names all missing flags at once."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the panels of flags in the order of work."""
        _write_panels(formatter, _panels_of(self, ctx), ("Arguments", "Options", *PANELS))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse; an error names every required flag that is missing, not only the first."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if type(error).__name__ != "MissingParameter":
                raise
            given = self.make_parser(ctx).parse_args(args=words)[0]
            lacking = [one for one in self.get_params(ctx) if one.required and given.get(one.name) is None]
        names = ", ".join(_name_of(one) for one in lacking)
        raise InvalidParameter(f"missing: {names} (see {ctx.command_path} --help)")


class Group(TyperGroup):
    """A command with subcommands, whose help describes each of them in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the subcommands in panels, each with the first paragraph of its help."""
        panel_of = {name: panel for panel, names in _COMMANDS.items() for name in names if ctx.parent is None}
        order = [*panel_of, *(name for name in self.commands if name not in panel_of)]
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in sorted(self.commands, key=order.index):
            text = " ".join((self.commands[name].help or "").split("\n\n")[0].split())
            panels.setdefault(panel_of.get(name, "Commands"), []).append((name, text))
        _write_panels(formatter, panels, (*_COMMANDS, "Commands"))


class App(typer.Typer):
    """A command with subcommands. Each of them is a `Command`."""

    def __init__(self, **settings: Any) -> None:
        names = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        super().__init__(
            cls=Group, no_args_is_help=True, rich_markup_mode=None, context_settings=names,
            pretty_exceptions_enable=False, **settings,
        )  # fmt: skip

    def command(self, *words: Any, **settings: Any) -> Callable[[Function], Function]:
        """Add a subcommand."""
        return super().command(*words, **{"cls": Command, **settings})


def _panels_of(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Names and help of all parameters by their panels; few flags need no panels."""
    panels: dict[str, list[tuple[str, str]]] = {}
    parameters = command.get_params(ctx)
    few = len(parameters) <= _FEW_FLAGS
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        is_argument = parameter.param_type_name == "argument"
        name, text = (_name_of(parameter), parameter.help) if is_argument else record
        panel = "Options" if few else parameter.rich_help_panel or "Other options"
        if is_argument and not isinstance(parameter.rich_help_panel, str):
            panel = "Arguments"
        panels.setdefault(panel, []).append((name, text))
    return panels


def _write_panels(formatter: Any, panels: dict[str, list[tuple[str, str]]], order: Sequence[str]) -> None:
    for title in sorted(panels, key=order.index):
        with formatter.section(title):
            formatter.write_dl(panels[title])


def _name_of(parameter: Any) -> str:
    """A flag in its long form, or the placeholder of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def usage_sentence(error: Any) -> str:
    """One sentence for a command line that typer cannot parse."""
    parameter, near = getattr(error, "param", None), getattr(error, "possibilities", None)
    sentence = str(error.message).rstrip(".").removeprefix("Value error, ")
    if parameter is not None:
        sentence = f"{_name_of(parameter)}: {sentence}"
    elif near:
        sentence += f", did you mean {' or '.join(sorted(near))}?"
    where = "" if error.ctx is None else f" (see {error.ctx.command_path} --help)"
    return sentence[:1].lower() + sentence[1:] + where


app = App(
    name="dphist",
    help="How many users per item? Private histograms with the least noise and the lowest provable threshold.",
)


def group(name: str, help_text: str) -> typer.Typer:
    """Subcommands under one name."""
    subcommands = App(name=name, help=help_text)
    app.add_typer(subcommands)
    return subcommands


# Flags. Those of `dphist release` are declared in `releasing/request.py`.


def number(text: str, words: Sequence[str] = (), kind: Callable[[str], float] = float) -> Any:
    """The number that a text is, or the text if it is one of the words."""
    try:
        return text if text in words else kind(text)
    except ValueError:
        what = "whole number" if kind is int else "number"
        raise typer.BadParameter(" or ".join((f"{text!r} is not a {what}", *words))) from None


whole_number = partial(number, kind=int)


def option(name: str, *, metavar: str = "", help: str = "") -> Any:
    """The flag of an option of a release, for a parameter whose type or help is another one."""
    declared = _DECLARED[name]
    shown = replace(declared.help, text=help or declared.help.text, metavar=metavar or declared.help.metavar)
    return _flag(replace(declared, help=shown))


def _flag(one: Option, note: str = "") -> Any:
    parser = partial(number, words=one.words, kind=one.kind) if one.kind in (int, float) else None
    return typer.Option(
        *([one.help.short] if one.help.short else []), flag(one.name), metavar=one.help.metavar or None,
        parser=parser,
        help=one.help.text + note, rich_help_panel=one.help.panel, show_default=False,
    )  # fmt: skip


def takes(
    *names: str, required: Sequence[str] = (), of: Mapping[str, Option] | None = None, in_file: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Flags for these options: the command gets those that are given, by name or in its `**options`.

    They are those of a release, or those `of` a plan. A request file may hold what is required (`in_file`), so
    that only the help says so.
    """
    known = _DECLARED if of is None else of

    def parameter(one: Option) -> inspect.Parameter:
        needed, kind = one.name in required, _flag_type(one)
        enforced, note = needed and not in_file, "  [required]" if needed and in_file else ""
        default: Any = inspect.Parameter.empty if enforced else False if kind is bool else None
        hint: Any = kind if enforced or kind is bool else kind | None
        annotation = Annotated[hint, _flag(one, note)]
        return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def with_flags(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        others = [one for one in signature.parameters.values() if one.name not in names]
        own = [one for one in others if one.kind is not one.VAR_KEYWORD]
        arguments = [one for one in own if one.kind is not one.KEYWORD_ONLY]

        @wraps(command)
        def run(**values: Any) -> None:
            # Compared by identity: 0 is a value, and equal to False.
            left_out = [name for name in names if values[name] is None or values[name] is False]
            command(**{name: value for name, value in values.items() if name not in left_out})

        named = [parameter(known[name]) for name in names]
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*arguments, *named, *own[len(arguments) :]]
        )
        return run

    return with_flags


def _flag_type(one: Option) -> Any:
    if one.kind is bool:
        return bool
    if one.kind is str and one.words:
        return Literal[one.words]
    # A number or a word: the parser makes it what it is.
    kind = one.kind if one.kind in (int, float) and not one.words else str
    return list[kind] if one.many else kind  # type: ignore[valid-type]


def _whole(name: str, metavar: str, text: str) -> Option:
    return Option(name, Help("Limit per user", metavar, text), int, (), False, False, True)


def _real(name: str, metavar: str, text: str) -> Option:
    return Option(name, Help("Other options", metavar, text), float, (), False, False, True)


_DECLARED: Final = {one.name: one for one in options()}
# Options of a plan: no data is read, and it may be given by its numbers.
PLAN: Final = {
    **_DECLARED,
    "max_nonzero": replace(_DECLARED["max_nonzero"], help=Help(
        "Advanced", "K", "Bound on the number of non-zero counts of every possible dataset. It is public."
    )),
    "max_items_per_user": _whole("max_items_per_user", "M", "Number of counts one user can change."),
    "public_items": _whole("public_items", "N", "Length of a public list."),
    "excess": replace(_DECLARED["excess"], help=Help(
        "Limit per user", "",
        "Items of a user beyond the limit: drop leaves them out; spread counts up to 16 times as many, each with "
        "a smaller weight.",
    )),
    "sum": replace(_DECLARED["sum"], help=Help(
        "Sums and means", "LOW:HIGH", "Plan a sum of values between LOW and HIGH; may be repeated."
    )),
    "sigma": _real("sigma", "S", "Standard deviation of each count's own noise."),
    "tau": _real("tau", "T", "Threshold minus one."),
    "sigma_shared": _real("sigma_shared", "C", "Standard deviation of the shared noise. [0]"),
}  # fmt: skip
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print nothing on success, except what --json asks for.")
]


# What commands print. Names in it cannot move the cursor of a terminal.


def show(data: Any, text: str, as_json: bool, quiet: bool = False) -> None:
    """JSON for programs, or a text for people."""
    if as_json:
        print_json(data)
    elif not quiet:
        write_out(text)


def print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_out(text: str) -> None:
    """Text for people on standard output."""
    sys.stdout.write("\n".join(printable(line) for line in text.split("\n")))


def write_error(sentence: str) -> None:
    """One sentence on standard error, on one line whatever names are in it, without secrets of addresses."""
    for word in sys.argv[1:]:
        if (found := _ADDRESS.fullmatch(word)) is not None:
            sentence = sentence.replace(found[2], without_secrets(found[2]))
    sys.stderr.write(printable(sentence) + "\n")


def word_without_secrets(word: str) -> str:
    """A word of the command line without the secrets of the address in it, such as --input=s3://KEY:SECRET@..."""
    found = _ADDRESS.fullmatch(word)
    return word if found is None else (found[1] or "") + without_secrets(found[2])


def error_sentence(error: DphistError) -> str:
    """The message of an error with all options as flags; some checks name them as Python does."""
    pattern = rf"(?<![\w.-])(?P<name>{'|'.join(name for name in PLAN if '_' in name)})(?![\w.])"
    return replace_names(pattern, lambda found: flag(found["name"]), error.with_flags)


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
def progress_bars(quiet: bool = False) -> Iterator[Watcher | None]:
    """Bars on a terminal, nothing in pipes. They show shares of the work, never a number from the data."""
    if quiet or not sys.stderr.isatty():
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
    """The files are written: a closed standard output is not an error any more."""
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
