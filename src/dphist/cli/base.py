"""The command `dphist` itself, and what its subcommands share."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from dphist import __version__
from dphist.display import printable, text_grid
from dphist.errors import (
    AlreadyRunning,
    DphistError,
    InvalidParameter,
    NotVerified,
    OutputError,
    OverBudget,
)
from dphist.objects import without_secrets

if TYPE_CHECKING:
    # Typer has its own click, and does not export these.
    from typer._click import Command as AnyCommand
    from typer._click import Context, HelpFormatter, Parameter
    from typer._click.exceptions import UsageError
else:
    UsageError = typer.BadParameter.__base__

# An address on the command line: s3://... or --input=s3://...
_ADDRESS = re.compile(r"(--[\w-]+=|-\w)?([A-Za-z][A-Za-z0-9+.-]*://.*)", re.DOTALL)
_FEW_FLAGS = 12
# The panels of `dphist --help`, in this order.
COMMANDS: Final = {
    "Release": ("check", "release", "verify", "report", "series"),
    "Choose a plan": ("plan", "simulate", "compare", "explore"),
    "Budgets and keys": ("ledger", "keygen"),
    "Streams": ("sketch",),
    "Analyse a plan": ("certify", "profile", "audit"),
}
Function = TypeVar("Function", bound=Callable[..., object])


class Command(TyperCommand):
    """A command whose help groups its flags in panels, and whose errors name all missing flags at once."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        parameters = self.get_params(ctx)
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in parameters:
            assert isinstance(parameter, (TyperArgument, TyperOption))
            record, panel = parameter.get_help_record(ctx), parameter.rich_help_panel
            if record is None:
                continue
            if isinstance(parameter, TyperArgument):
                record = (_name_of(parameter), parameter.help or "")
                panel = panel or "Arguments"
            elif len(parameters) <= _FEW_FLAGS:
                panel = "Options"
            panels.setdefault(panel or "Other options", []).append(record)
        # Here, because `dphist verify` loads no module of releases.
        from dphist.releasing.request import PANELS

        _write_panels(formatter, panels, ("Arguments", "Options", *PANELS))

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if type(error).__name__ != "MissingParameter":
                raise
        given = self.make_parser(ctx).parse_args(args=words)[0]
        required = [parameter for parameter in self.get_params(ctx) if parameter.required]
        names = [_name_of(parameter) for parameter in required if given.get(parameter.name) is None]
        missing = ", ".join(f"<{name}>" if name.startswith("-") else name for name in names)
        raise InvalidParameter(f"missing: {missing} (see {ctx.command_path} --help)")


class Group(TyperGroup):
    """A command with subcommands, whose help shows the first paragraph of the help of each."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        panel_of = {name: panel for panel, names in COMMANDS.items() for name in names if ctx.parent is None}
        order = [*panel_of, *(name for name in self.commands if name not in panel_of)]
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in sorted(self.commands, key=order.index):
            text = " ".join((self.commands[name].help or "").split("\n\n")[0].split())
            panels.setdefault(panel_of.get(name, "Commands"), []).append((name, text))
        _write_panels(formatter, panels, (*COMMANDS, "Commands"))


class App(typer.Typer):
    def __init__(self, name: str, help: str) -> None:
        names = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        super().__init__(
            cls=Group, no_args_is_help=True, rich_markup_mode=None, context_settings=names,
            pretty_exceptions_enable=False, name=name, help=help,
        )  # fmt: skip

    def command(self, *names: Any, **settings: Any) -> Callable[[Function], Function]:
        return super().command(*names, cls=Command, **settings)


def _write_panels(
    formatter: HelpFormatter, panels: dict[str, list[tuple[str, str]]], order: Sequence[str]
) -> None:
    for title in sorted(panels, key=order.index):
        with formatter.section(title):
            formatter.write_dl(panels[title])


def _name_of(parameter: Parameter) -> str:
    if isinstance(parameter, TyperArgument):
        return parameter.metavar or str(parameter.name).upper()
    return max(parameter.opts, key=len)


def _similar_names(given: str, names: Sequence[str]) -> list[str]:
    """The names that are similar without their dashes, which all of them have in common."""
    near = get_close_matches(given.lstrip("-"), [name.lstrip("-") for name in names], cutoff=0.7)
    return sorted(name for name in names if name.lstrip("-") in near)


def usage_sentence(error: UsageError) -> str:
    """One sentence for a command line that typer cannot parse."""
    parameter, similar = getattr(error, "param", None), getattr(error, "possibilities", None)
    sentence = str(error.message).rstrip(".").removeprefix("Value error, ")
    if parameter is not None:
        sentence = f"{_name_of(parameter)}: {sentence}"
    elif similar and (near := _similar_names(getattr(error, "option_name", ""), similar)):
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


def number(text: str, words: Sequence[str] = (), kind: Callable[[str], float] = float) -> str | float:
    """Parse a number; one of the words is returned as it is."""
    try:
        return text if text in words else kind(text)
    except ValueError:
        expected = "whole number" if kind is int else "number"
        raise typer.BadParameter(" or ".join((f"{text!r} is not a {expected}", *words))) from None


whole_number = partial(number, kind=int)


Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing on success, except with --json.")]


# Output. Control characters in names are escaped, so that they cannot change the terminal.


def show(data: object, text: str, as_json: bool, quiet: bool = False) -> None:
    if as_json:
        print_json(data)
    elif not quiet:
        write_out(text)


def print_json(data: object) -> None:
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


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table whose first `left` columns are texts."""
    write_out(text_grid(head, [[printable(cell) for cell in row] for row in rows], left=left) + "\n")


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
    "checking": ("check",),
    "verifying": ("verify",),
    "reporting": ("report", "series", "explore", "keygen"),
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
def parser_for(name: str = "") -> AnyCommand:
    """The parser of the command line whose first word is this name."""
    return get_command(commands(name))


def exit_code(error: type[DphistError]) -> int:
    codes = {OutputError: 1, NotVerified: 1, OverBudget: 3, AlreadyRunning: 4}
    return next((codes[kind] for kind in error.mro() if kind in codes), 2)


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
        write_error(f"Error: {error.with_flags}")
        if error.example:
            write_error(f"  {error.example}")
        raise SystemExit(exit_code(type(error))) from None
    except OSError as error:
        # A full disk or a closed pipe.
        booking = getattr(error, "booking", None)
        write_error(f"Error: cannot write: {error.strerror}" + (f". {booking['summary']}" if booking else ""))
        raise SystemExit(1) from None
    raise SystemExit(code)
