"""The reference of the command line: every command as `--help` shows it, with its options in tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from typer.core import TyperArgument, TyperOption

from dphist import errors
from dphist.cli.base import COMMANDS, exit_code, parser_for
from dphist.releasing.request import PANELS, Request, options

INTRO: Final = """\
# Command line

Every command, its options and its examples, generated from the program by `make docs`. `dphist COMMAND --help`
prints the same. Options in **bold** are required.

| rule | |
|---|---|
| numbers | `1e-6` and `0.000001` are equal; whole numbers have no separators |
| names | of columns as in the data; a name with spaces or other characters needs quotes for the shell |
| `-` | as input or output: standard input or output |
| `--json` | the result as JSON on standard output; errors stay on standard error |
| completion | `dphist --install-completion` for bash, zsh, fish and PowerShell |
"""
ERRORS: Final = """\
## Exit codes

An error is one sentence on standard error, and contains no value of the data. In Python the same sentence is an
[exception](python.md#errors).

| code | meaning | exception |
|---|---|---|
"""
CODES: Final = {
    0: "done; also: already released under this `--id`",
    1: "the result cannot be written or is not verified; `check` has a finding; `audit` contradicts the "
    "certificate",
    2: "invalid parameters, unreadable input, or a ledger that cannot be used",
    3: "over the budget of the [ledger](../ledger.md); nothing was booked",
    4: "another run with the same [`--id`](../ledger.md#scheduled-work-id) is in progress; nothing was booked",
    130: "interrupted by Ctrl-C; the message says whether anything was written or stays booked",
    143: "ended by SIGTERM; likewise",
}
REQUESTS: Final = """\
## Request files

`dphist release request.toml` is the same as the flags: the keys of the file are the names of the options below,
without dashes in front. A key may have `-` or `_` inside. An option that may be repeated takes a list, a switch
`true` or `false`. Unknown keys are errors; flags on the command line override the file. Paths are relative to the
working folder.

```toml
input = "log.parquet"
user = "user_id"
item = ["query", "country"]
epsilon = 1
delta = 1e-6
max-items-per-user = 20
interval = 0.95
output = "queries.parquet"
```

"""


@dataclass(frozen=True)
class Parameter:
    """A row of a table: `default` is empty for options that are off without being given."""

    panel: str
    names: str
    default: str
    text: str
    required: bool


@dataclass(frozen=True)
class Command:
    """A command as its help describes it; examples are as typed."""

    path: str
    summary: str
    paragraphs: tuple[str, ...]
    examples: tuple[str, ...]
    exit_codes: str
    usage: str
    parameters: tuple[Parameter, ...]


_BRACKETS: Final = re.compile(r"\s*\[((?:[^\[\]]|\[[^\]]*\])*)\]$")


def _parameter(parameter: Any, context: Any, few: bool) -> Parameter | None:
    if isinstance(parameter, TyperArgument):
        shown = parameter.metavar or str(parameter.name).upper()
        names, text, panel = shown, parameter.help or "", "Arguments"
    else:
        assert isinstance(parameter, TyperOption)
        record = parameter.get_help_record(context)
        if record is None or "--help" in parameter.opts:
            return None
        (names, text), panel = record, "Options" if few else parameter.rich_help_panel or "Other options"
    required = bool(parameter.required)
    if text.endswith("[required]"):
        required, text = True, text.removesuffix("[required]").rstrip()
    default = ""
    if match := _BRACKETS.search(text):
        default, text = match[1].removeprefix("default: "), text[: match.start()]
    return Parameter(panel, names, default, text.strip(), required)


def _command(path: str, command: Any) -> Command:
    context = command.make_context(path, [], resilient_parsing=True)
    help_text = re.sub(r"^\x08\n", "", command.help or "", flags=re.MULTILINE)
    own, examples, code = [], [], ""
    # Blocks that keep their lines are marked by a backspace: examples, and the exit codes.
    for block in re.split(r"\n(?:\x08)?\n|\n\x08\n|\n(?=Exit code )|\n(?=Examples?:)", help_text):
        if "\n  dphist " in f"\n{block}":
            title, _, lines = block.partition("\n")
            comment = "" if title.startswith("Example") else f"# {title.rstrip(':')}\n"
            if not title.startswith("Example") and not title.endswith(":"):
                head, _, lines = block.partition(":\n")
                comment = f"# {' '.join(head.split())}\n"
            examples += [comment + one for one in _split_examples(lines)]
        elif block.startswith("Exit code"):
            code = " ".join(block.split())
        elif block.strip():
            own.append(" ".join(block.split()))
    few = len(command.params) <= 12
    parameters = [row for one in command.params if (row := _parameter(one, context, few)) is not None]
    order = ["Arguments", "Options", *PANELS]
    parameters.sort(key=lambda row: order.index(row.panel))
    needed = [row for row in parameters if row.required]
    words = [row.names if row.panel == "Arguments" else row.names.rpartition("--")[2] for row in needed]
    texts = [word if row.panel == "Arguments" else f"--{word}" for word, row in zip(words, needed, strict=True)]
    optional = [row.names for row in parameters if row.panel == "Arguments" and not row.required]
    usage = " ".join([path, *(f"[{name}]" for name in optional), *texts, "[OPTIONS]"])
    return Command(path, own[0], tuple(own[1:]), tuple(examples), code, usage, tuple(parameters))


def _split_examples(lines: str) -> list[str]:
    """The commands of a block, each with its continued lines, without the indentation."""
    plain = "\n".join(line.removeprefix("  ") for line in lines.splitlines())
    return re.findall(r"^dphist (?:.*\\\n)*.*$", plain, re.MULTILINE)


def all_commands() -> list[tuple[str, list[Command]]]:
    """The panels of `dphist --help`, with all commands of each, subcommands after their group."""
    app: Any = parser_for()
    return [
        (panel, [one for name in names for one in _tree(name, app.commands[name])])
        for panel, names in COMMANDS.items()
    ]


def _tree(name: str, command: Any) -> Iterator[Command]:
    if not hasattr(command, "commands"):
        yield _command(f"dphist {name}", command)
    for sub, inner in getattr(command, "commands", {}).items():
        yield from _tree(f"{name} {sub}", inner)


def cell(text: str) -> str:
    """Text in a table: dphist writes no Markdown in help, so that stars and brackets are its own."""
    return re.sub(r"([|*<>\[\]_])", r"\\\1", text)


def _table(rows: Sequence[Parameter]) -> list[str]:
    lines = ["| option | default | meaning |", "|---|---|---|"]
    if rows[0].panel == "Arguments":
        lines[0] = "| argument | default | meaning |"
    for row in rows:
        name = f"`{row.names}`".replace("|", "\\|")
        lines.append(f"| {f'**{name}**' if row.required else name} | {cell(row.default)} | {cell(row.text)} |")
    return lines


def _section(command: Command) -> list[str]:
    lines = [f"### {command.path}", "", cell(command.summary), "", "```text", command.usage, "```", ""]
    for paragraph in command.paragraphs:
        lines += [cell(paragraph), ""]
    panels = list(dict.fromkeys(row.panel for row in command.parameters))
    for panel in panels:
        if panel not in ("Arguments", "Options"):
            lines += [f"**{panel}**", ""]
        lines += [*_table([row for row in command.parameters if row.panel == panel]), ""]
    if command.examples:
        lines += ["```bash", *command.examples, "```", ""]
    if command.exit_codes:
        lines += [cell(command.exit_codes), ""]
    return lines


def exceptions_of(code: int) -> list[str]:
    """The exceptions with this exit code."""
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DphistError)
    ]
    return [kind.__name__ for kind in kinds if kind is not errors.DphistError and exit_code(kind) == code]


def commands_page() -> str:
    lines = [INTRO, "| command | |", "|---|---|"]
    for one in [one for _, commands in all_commands() for one in commands]:
        lines.append(f"| [`{one.path}`](#{one.path.replace(' ', '-')}) | {cell(one.summary)} |")
    lines += ["", ERRORS.rstrip()]
    for code, meaning in CODES.items():
        lines.append(f"| {code} | {meaning} | {', '.join(f'`{name}`' for name in exceptions_of(code))} |")
    lines += ["", REQUESTS.rstrip(), ""]
    keys = ["input", *(option.name.replace("_", "-") for option in options())]
    lines += [f"Keys: {', '.join(f'`{key}`' for key in keys)}.", ""]
    release = next(one for one in all_commands()[0][1] if one.path == "dphist release")
    names = {word for row in release.parameters for word in row.names.split(" ") if word.startswith("--")}
    flags = ", ".join(f"`{name}`" for name in sorted(names - {f"--{key}" for key in keys}))
    own = sorted(
        f"`{name}`" for name in {field.name for field in fields(Request)} - {key.replace("-", "_") for key in keys}
    )
    lines += [f"Only flags: {flags}. Only in Python, as arguments of `dphist.release`: {', '.join(own)}.", ""]
    for panel, commands in all_commands():
        lines += [f"## {panel}", ""]
        for command in commands:
            lines += _section(command)
    return "\n".join(lines).rstrip() + "\n"
