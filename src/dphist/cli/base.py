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
from difflib import get_close_matches
from functools import cache, partial, wraps
from importlib import import_module
from typing import Annotated, Any, Final, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dphist.display import printable, text_grid
from dphist.errors import (
    AlreadyRunning,
    DphistError,
    InvalidParameter,
    NotVerified,
    OutputError,
    OverBudget,
    replace_names,
)
from dphist.objects import without_secrets
from dphist.releasing.request import PANELS, Help, Option, Watcher, flag, options

# An address on the command line: s3://... or --input=s3://...
_ADDRESS = re.compile(r"(--[\w-]+=|-\w)?([A-Za-z][A-Za-z0-9+.-]*://.*)", re.DOTALL)
_FEW_FLAGS = 12
# The panels of `dphist --help`, in this order.
_COMMANDS = {
    "Release": ("release", "verify", "report"),
    "Choose a plan": ("plan", "simulate", "compare", "explore"),
    "Budgets and keys": ("ledger", "keygen"),
    "Streams": ("sketch",),
    "Analyse a plan": ("certify", "profile", "audit"),
}
# The base class of typer's errors about the command line; typer does not export it.
UsageError: Any = typer.BadParameter.__base__
Function = TypeVar("Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose help groups its flags in panels, and whose errors name all missing flags at once."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        parameters: list[Any] = self.get_params(ctx)
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in parameters:
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            panel = parameter.rich_help_panel or "Other options"
            if len(parameters) <= _FEW_FLAGS:
                panel = "Options"
            if parameter.param_type_name == "argument":
                record = (_name_of(parameter), parameter.help)
                if not isinstance(parameter.rich_help_panel, str):
                    panel = "Arguments"
            panels.setdefault(panel, []).append(record)
        _write_panels(formatter, panels, ("Arguments", "Options", *PANELS))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if type(error).__name__ != "MissingParameter":
                raise
        given = self.make_parser(ctx).parse_args(args=words)[0]
        required = [parameter for parameter in self.get_params(ctx) if parameter.required]
        missing = ", ".join(_name_of(parameter) for parameter in required if given.get(parameter.name) is None)
        raise InvalidParameter(f"missing: {missing} (see {ctx.command_path} --help)")


class Group(TyperGroup):
    """A command with subcommands, whose help shows the first paragraph of the help of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panel_of = {name: panel for panel, names in _COMMANDS.items() for name in names if ctx.parent is None}
        order = [*panel_of, *(name for name in self.commands if name not in panel_of)]
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in sorted(self.commands, key=order.index):
            text = " ".join((self.commands[name].help or "").split("\n\n")[0].split())
            panels.setdefault(panel_of.get(name, "Commands"), []).append((name, text))
        _write_panels(formatter, panels, (*_COMMANDS, "Commands"))


class App(typer.Typer):
    def __init__(self, **settings: Any) -> None:
        names = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        super().__init__(
            cls=Group, no_args_is_help=True, rich_markup_mode=None, context_settings=names,
            pretty_exceptions_enable=False, **settings,
        )  # fmt: skip

    def command(self, *names: Any, **settings: Any) -> Callable[[Function], Function]:
        return super().command(*names, cls=Command, **settings)


def _write_panels(formatter: Any, panels: dict[str, list[tuple[str, str]]], order: Sequence[str]) -> None:
    for title in sorted(panels, key=order.index):
        with formatter.section(title):
            formatter.write_dl(panels[title])


def _name_of(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def _similar_names(given: str, names: Sequence[str]) -> list[str]:
    """The names that are similar without their dashes, which all of them have in common."""
    near = get_close_matches(given.lstrip("-"), [name.lstrip("-") for name in names], cutoff=0.7)
    return sorted(name for name in names if name.lstrip("-") in near)


def usage_sentence(error: Any) -> str:
    """One sentence for a command line that typer cannot parse."""
    parameter, similar = getattr(error, "param", None), getattr(error, "possibilities", None)
    sentence = str(error.message).rstrip(".").removeprefix("Value error, ")
    if parameter is not None:
        sentence = f"{_name_of(parameter)}: {sentence}"
    elif similar and (near := _similar_names(error.option_name, similar)):
        sentence += f", did you mean {' or '.join(near)}?"
    see = "" if error.ctx is None else f" (see {error.ctx.command_path} --help)"
    return sentence[:1].lower() + sentence[1:] + see


app = App(
    name="dphist",
    help="Publish how many users each item has, with differential privacy and a certificate to verify it.",
)


def group(name: str, help_text: str) -> App:
    subcommands = App(name=name, help=help_text)
    app.add_typer(subcommands)
    return subcommands


# Flags. Those of `dphist release` are declared in `releasing/request.py`.


def number(text: str, words: Sequence[str] = (), kind: Callable[[str], float] = float) -> Any:
    """Parse a number; one of the words is returned as it is."""
    try:
        return text if text in words else kind(text)
    except ValueError:
        expected = "whole number" if kind is int else "number"
        raise typer.BadParameter(" or ".join((f"{text!r} is not a {expected}", *words))) from None


whole_number = partial(number, kind=int)


def option(name: str, help: str) -> Any:
    """The flag of a release option, with another help text."""
    declared = _DECLARED[name]
    return _flag(replace(declared, help=replace(declared.help, text=help)))


def _flag(option: Option, note: str = "") -> Any:
    shown = option.help
    return typer.Option(
        *([shown.short] if shown.short else []), flag(option.name), metavar=shown.metavar or None,
        parser=partial(number, words=option.words, kind=option.kind) if option.kind in (int, float) else None,
        help=shown.text + note, rich_help_panel=shown.panel, show_default=False,
    )  # fmt: skip


def takes(
    *names: str, required: Sequence[str] = (), of: Mapping[str, Option] | None = None, in_file: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add flags for these options of a release, or `of` a plan; the command gets the given ones as keywords.

    With `in_file`, a request file may hold what is required, so that only the help marks it as required.
    """
    known = _DECLARED if of is None else of

    def parameter(option: Option) -> inspect.Parameter:
        needed, kind = option.name in required, _flag_type(option)
        enforced, note = needed and not in_file, "  [required]" if needed and in_file else ""
        default: Any = inspect.Parameter.empty if enforced else False if kind is bool else None
        hint: Any = kind if enforced or kind is bool else kind | None
        return inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=default,
            annotation=Annotated[hint, _flag(option, note)],
        )  # fmt: skip

    def with_flags(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.name not in names and parameter.kind is not parameter.VAR_KEYWORD
        ]
        arguments = [parameter for parameter in own if parameter.kind is not parameter.KEYWORD_ONLY]

        @wraps(command)
        def run(**values: Any) -> None:
            # Compared by identity: 0 is a value, and equal to False.
            left_out = [name for name in names if values[name] is None or values[name] is False]
            command(**{name: value for name, value in values.items() if name not in left_out})

        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*arguments, *(parameter(known[name]) for name in names), *own[len(arguments) :]]
        )
        return run

    return with_flags


def _flag_type(option: Option) -> Any:
    if option.kind is bool:
        return bool
    if option.kind is str and option.words:
        return Literal[option.words]
    # A number or a word is parsed by `number`.
    kind = option.kind if option.kind in (int, float) and not option.words else str
    return list[kind] if option.many else kind  # type: ignore[valid-type]


_DECLARED: Final = {option.name: option for option in options()}


def _plan_option(name: str, panel: str, metavar: str, text: str, kind: type | None = None) -> Option:
    help = Help(panel, metavar, text)
    if kind is None:
        return replace(_DECLARED[name], help=help)
    return Option(name, help, kind, words=(), many=False, required=False, allows_none=True)


_PLAN_OPTIONS = (
    _plan_option("max_items_per_user", "Limit per user", "M", "Number of counts one user can change.", int),
    _plan_option("public_items", "Limit per user", "N", "Number of items in a public list.", int),
    _plan_option(
        "max_nonzero", "Advanced", "K",
        "Public bound on the number of non-zero counts of every possible dataset.",
    ),
    _plan_option("sum", "Sums and means", "LOW:HIGH", "Plan a sum of values from LOW to HIGH; may be repeated."),
    _plan_option(
        "vector", "Sums and means", "COLUMNS:NORM",
        "Plan a sum of vectors with this many columns, each of a Euclidean norm of at most NORM; may be repeated.",
    ),
    _plan_option("sigma", "Other options", "S", "Standard deviation of each count's own noise.", float),
    _plan_option("tau", "Other options", "T", "Threshold minus one.", float),
    _plan_option("sigma_shared", "Other options", "C", "Standard deviation of the shared noise. [0]", float),
)  # fmt: skip
# Options of commands that read no data: those of a release, and the numbers of a plan.
PLAN: Final = {**_DECLARED, **{option.name: option for option in _PLAN_OPTIONS}}
input_option, output_option, advanced_option = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Input", "Output", "Advanced")
)
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing on success, except with --json.")]


# Output. Control characters in names are escaped, so that they cannot change the terminal.


def show(data: Any, text: str, as_json: bool, quiet: bool = False) -> None:
    if as_json:
        print_json(data)
    elif not quiet:
        write_out(text)


def print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_out(text: str) -> None:
    sys.stdout.write("\n".join(printable(line) for line in text.split("\n")))


def write_error(sentence: str) -> None:
    """Print one line on standard error, without the secrets of addresses on the command line."""
    for word in sys.argv[1:]:
        if (match := _ADDRESS.fullmatch(word)) is not None:
            sentence = sentence.replace(match[2], without_secrets(match[2]))
    sys.stderr.write(printable(sentence) + "\n")


def word_without_secrets(word: str) -> str:
    """The word without the secrets of an address in it, such as --input=s3://KEY:SECRET@bucket."""
    match = _ADDRESS.fullmatch(word)
    return word if match is None else (match[1] or "") + without_secrets(match[2])


def error_sentence(error: DphistError) -> str:
    """The message with all options as flags, also those that a check names as Python does."""
    pattern = rf"(?<![\w.-])(?P<name>{'|'.join(name for name in PLAN if '_' in name)})(?![\w.])"
    return replace_names(pattern, lambda match: flag(match["name"]), error.with_flags)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table whose first `left` columns are texts."""
    write_out(text_grid(head, [[printable(cell) for cell in row] for row in rows], left=left) + "\n")


@contextmanager
def progress_bars(quiet: bool = False) -> Iterator[Watcher | None]:
    """Progress bars on a terminal. They show shares of the work, never a number from the data."""
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
    """A command was stopped by a signal. `booking` is what stays booked."""

    message = ""
    booking: Any = None


@contextmanager
def stoppable() -> Iterator[list[Any]]:
    """On a signal, print what was written or stays booked, and exit with the code that a shell expects.

    The caller appends to the list what was written.
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
    """Once the files are written, a closed standard output is not an error."""
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


# The commands of each module. Only the module of the requested command is imported.
_MODULES: Final = {
    "planning": ("plan", "certify", "compare", "profile", "audit", "simulate"),
    "releasing": ("release",),
    "reporting": ("report", "verify", "explore", "keygen"),
    "ledgers": ("ledger",),
    "sketching": ("sketch",),
}


def commands(name: str = "") -> App:
    """The app with the command of this name, or with all commands if there is none."""
    requested = [module for module, names in _MODULES.items() if name in names]
    for module in requested or _MODULES:
        import_module(f"dphist.cli.{module}")
    return app


@cache
def parser_for(name: str = "") -> Any:
    """The parser of the command line whose first word is this name."""
    return get_command(commands(name))


def main() -> None:
    """Run the command line. An error of dphist is one sentence on standard error and one of these exit codes.

    1: could not be written or verified. 2: bad parameters or unreadable input. 3: over budget. 4: already running.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Items may have characters that the terminal cannot show.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = parser_for(*sys.argv[1:2])(prog_name="dphist", standalone_mode=False)
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
