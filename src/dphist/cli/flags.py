"""Flags that follow from options: those of `dphist release` are declared in `releasing/request.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Annotated, Any, Final, Literal

import typer

from dphist.cli.base import number
from dphist.errors import flag, with_flags
from dphist.releasing.request import Help, Option, options


def option(name: str, help: str) -> object:
    """The flag of a release option, with another help text."""
    declared = _DECLARED[name]
    return _flag(replace(declared, help=replace(declared.help, text=help)))


def _flag(option: Option, note: str = "") -> object:
    shown = option.help
    return typer.Option(
        *([shown.short] if shown.short else []), flag(option.name), metavar=shown.metavar or None,
        parser=partial(number, words=option.words, kind=option.kind) if option.kind in (int, float) else None,
        help=with_flags(shown.text) + note, rich_help_panel=shown.panel, show_default=False,
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
        default: object = inspect.Parameter.empty if enforced else False if kind is bool else None
        hint: Any = kind if enforced or kind is bool else kind | None
        return inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=default,
            annotation=Annotated[hint, _flag(option, note)],
        )  # fmt: skip

    def add(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [
            each
            for each in signature.parameters.values()
            if each.name not in names and each.kind != each.VAR_KEYWORD
        ]
        arguments = [each for each in own if each.kind != each.KEYWORD_ONLY]

        @wraps(command)
        def run(**values: object) -> None:
            # Compared by identity: 0 is a value, and equal to False.
            left_out = [name for name in names if values[name] is None or values[name] is False]
            command(**{name: value for name, value in values.items() if name not in left_out})

        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*arguments, *(parameter(known[name]) for name in names), *own[len(arguments) :]]
        )
        return run

    return add


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
    _plan_option("max_items_per_user", "Limit per user", "M", "Limit on the items of one user.", int),
    _plan_option(
        "public_items", "Limit per user", "N", "Length of a public list of items, all of which are released.", int
    ),
    _plan_option(
        "max_nonzero", "Advanced", "K",
        "Public bound on the number of items of every possible dataset.",
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
