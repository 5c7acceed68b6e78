"""The reference of the Python API: pages made from signatures and docstrings."""

from __future__ import annotations

import collections.abc
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import dphist
from dphist import errors
from dphist.cli.base import exit_code
from dphist.releasing.request import PANELS, options
from generator.docstrings import Documented, page_links, read

SUBMODULES: Final = ("accounting", "ledger", "opendp", "signatures", "sketch")


@dataclass(frozen=True)
class Page:
    """One page: its title, the text below it, and its names in order."""

    title: str
    intro: str
    names: tuple[str, ...]


PAGES: Final[dict[str, Page]] = {
    "release": Page(
        "Release and check",
        "Guides: [Release](../release.md), [Counts you already have](../release-histogram.md), "
        "[Check](../check.md).",
        ("release", "Release", "release_histogram", "Session", "check", "Check"),
    ),
    "plan": Page(
        "Plan and compare",
        "Guides: [Plans and mechanisms](../plan.md), [Simulate](../simulate.md). None of these functions reads "
        "private data.",
        (
            "plan", "Plan", "Budget", "Contract", "Noise", "Proof", "NeighbourCase", "explain", "simulate",
            "Simulation", "compare", "Comparison", "compare_sums", "SumsComparison", "certify", "Certification",
        ),
    ),
    "verify": Page(
        "Verify and report",
        "Guides: [Certificate](../certificate.md), [Signatures](../signatures.md), [Report](../report.md), "
        "[Weekly releases](../weekly.md#the-series).",
        ("verify", "Verification", "make_report", "chart", "series", "Series", "signatures.make_key"),
    ),
    "ledger": Page(
        "Ledger",
        "Guides: [Ledger](../ledger.md), [Weekly releases](../weekly.md).",
        (
            "ledger.Ledger", "ledger.Account", "ledger.Booking", "ledger.Remaining", "ledger.Checkpoint",
            "ledger.Spend", "ledger.SumComposer", "plan_series", "SeriesPlan",
        ),
    ),
    "costs": Page(
        "Accounting and OpenDP",
        "Guides: [Accounting](../theory/accounting.md), [OpenDP](../opendp.md).",
        (
            "delta_at", "epsilon_at", "profile", "accounting.profile_of_plan", "accounting.Profile",
            "accounting.to_pld", "accounting.gaussian_of_plan", "accounting.zcdp_of_plan",
            "accounting.renyi_of_plan", "opendp.as_measurement", "opendp.input_domain", "opendp.input_metric",
        ),
    ),
    "sketch": Page(
        "Sketches",
        "Guide: [Sketches](../sketches.md). A sketch holds true counts: keep it as secret as the events.",
        ("sketch.build", "sketch.build_batches", "sketch.build_on_spark", "sketch.MisraGries"),
    ),
}  # fmt: skip
INDEX: Final = """\
# Python

All public names, generated from the code by `make docs`. `help(dphist.release)` prints the same.

What these pages describe is stable from version 1.0 on: names, parameters and meanings change only with a new
major version. Everything else, such as modules that are not listed, may change at any time.
"""
ERRORS: Final = """\
## Errors

All are subclasses of `dphist.DphistError`. A message is one sentence and contains no value of the data.

| exception | raised when | [exit code](cli.md#exit-codes) |
|---|---|---|
"""


def value_of(name: str) -> Any:
    """The public object of this name, such as `ledger.Ledger`."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(f"dphist.{module}") if module else dphist, last)


def public_names() -> list[str]:
    """All public names of dphist and of its public submodules, without errors and modules."""
    kinds = {name for name in dphist.__all__ if name not in SUBMODULES and not hasattr(errors, name)}
    inner = [f"{module}.{name}" for module in SUBMODULES for name in import_module(f"dphist.{module}").__all__]
    return sorted(kinds) + inner


def heading_of(name: str) -> str:
    return f"class dphist.{name}" if inspect.isclass(value_of(name)) else f"dphist.{name}"


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def links() -> dict[str, str]:
    """The place of each public class, by its bare name."""
    return {
        name.rpartition(".")[2]: f"{page}.md#{anchor_of(heading_of(name))}"
        for page, content in PAGES.items()
        for name in content.names
        if inspect.isclass(value_of(name))
    }


# Types.

# Names of types that readers do not know, in place of the types themselves.
_ALIASES: Final = {
    r"os\.PathLike\[str\]": "PathLike", r"(?<!\| )\b(PathLike|FilePath)\b": "str | PathLike", "'": '"',
    r"\bJsonObject\b": "dict", r"\bNumbers\b": "numpy.ndarray", r"\bArrowArray\b": "pyarrow.Array",
    r"\bpa\.": "pyarrow.", r"\bpd\.": "pandas.", r"\bpl\.": "polars.", r"\bGamma\b": 'float | Literal["sqrt"]',
    r"\bAnalysisName\b": "str", r"\bDirection\b": "str", r"\bKind\b": "str", r"\bGoal\b": "str",
    r"\bStatus\b": "str",
    r"\bReceipt\b": "dict", r"\bOutcome\b": "dict", r"Plan \| GivenNoise": "Plan", r" \| Target\b": "",
    r"ItemKind \| ColumnType": "ColumnType",
}  # fmt: skip


def type_text(hint: Any) -> str:
    """A type as in source code, without modules."""
    if isinstance(hint, str):
        for old, new in _ALIASES.items():
            hint = re.sub(old, new, hint)
        return str(hint)
    if hint in (None, NoneType):
        return "None"
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " | ".join(type_text(part) for part in inside)
    if origin is Literal:
        return f"Literal[{', '.join(repr(word).replace(chr(39), chr(34)) for word in inside)}]"
    if origin is collections.abc.Callable:
        return f"Callable[[{', '.join(map(type_text, inside[0]))}], {type_text(inside[1])}]"
    if origin is not None and origin.__name__ != "PathLike":
        return f"{origin.__name__}[{', '.join(map(type_text, inside))}]"
    return str((origin or hint).__name__)


def signature_text(name: str, signature: inspect.Signature) -> str:
    """On one line if it is short; otherwise with a line for each parameter."""
    parts, keywords = [], False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            parts.append("*")
            keywords = True
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        keywords = keywords or parameter.kind is parameter.VAR_POSITIONAL
        hint = "" if parameter.annotation is parameter.empty else f": {type_text(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {_default_text(parameter.default)}"
        parts.append(f"{stars}{parameter.name}{hint}{default}")
    end = "" if signature.return_annotation is signature.empty else f" -> {type_text(signature.return_annotation)}"
    line = f"{name}({', '.join(parts)}){end}"
    return line if len(line) <= 88 else "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){end}"])


def _default_text(value: object) -> str:
    if type(value).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
        return "..."
    return f"{value:_}" if isinstance(value, int) and value > 9999 else repr(value).replace("'", '"')


# Entries.


def cell(words: str) -> str:
    return page_links(words).replace("|", "\\|")


@dataclass(frozen=True)
class Member:
    """A public attribute of a class, or a method (then `signature` is not None)."""

    name: str
    description: Documented
    hint: str = ""
    signature: inspect.Signature | None = None
    of_class: bool = False


@dataclass(frozen=True)
class Entry:
    """A public function or class."""

    name: str

    @cached_property
    def value(self) -> Any:
        return value_of(self.name)

    @cached_property
    def is_class(self) -> bool:
        return inspect.isclass(self.value)

    @cached_property
    def described(self) -> Documented:
        return read(inspect.getdoc(self.value))

    @cached_property
    def signature(self) -> inspect.Signature | None:
        """None for a class that is only returned: then its docstring has attributes and no arguments."""
        if self.is_class and "Args" not in self.described.sections:
            return None
        return inspect.signature(self.value)

    @cached_property
    def members(self) -> list[Member]:
        return [member for _, member in sorted(_members(self), key=lambda pair: pair[0])] if self.is_class else []

    def gaps(self) -> Iterator[str]:
        """What has no description."""
        if not self.described.summary:
            yield self.name
        if self.signature is not None:
            yield from _unexplained(self.name, self.signature, self.described)
        for member in self.members:
            if not member.description.summary:
                yield f"{self.name}.{member.name}"
            if member.signature is not None:
                yield from _unexplained(f"{self.name}.{member.name}", member.signature, member.description)


def _unexplained(name: str, signature: inspect.Signature, described: Documented) -> Iterator[str]:
    """Parameters without a description; that of a method may be a sentence with the name in it."""
    given = {parameter for parameter in signature.parameters if parameter not in ("self", "cls")}
    explained = {key.lstrip("*") for key in described.described("Args")}
    if not explained:
        text = " ".join([described.summary, *described.paragraphs])
        explained = {parameter for parameter in given if re.search(rf"`{parameter}\b", text)}
    for parameter in sorted(given ^ explained):
        yield f"{name}({parameter})"


def _members(entry: Entry) -> Iterator[tuple[int, Member]]:
    """Attributes (0) before methods (1); those of private base classes too."""
    kind, own = entry.value, entry.described.described("Args", "Attributes")
    seen: set[str] = set()
    hidden = (*TABLES, *INTERNAL.get(entry.name, ()))
    if is_dataclass(kind):
        for field in fields(kind):
            if not field.name.startswith("_") and field.name not in INTERNAL.get(entry.name, ()):
                seen.add(field.name)
                if field.name not in entry.described.sections.get("Args", {}):
                    yield 0, Member(field.name, Documented(own.get(field.name, "")), type_text(field.type))
    for base in kind.__mro__:
        if not base.__module__.startswith("dphist."):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen or name in hidden:
                continue
            seen.add(name)
            inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if isinstance(value, property | cached_property):
                getter = value.fget if isinstance(value, property) else value.func
                hint = type_text(inspect.signature(getter).return_annotation)  # type: ignore[arg-type]
                described = read(inspect.getdoc(value))
                yield 0, Member(name, described if described.summary else Documented(own.get(name, "")), hint)
            elif inspect.isfunction(inner):
                signature = inspect.signature(inner)
                yield 1, Member(name, read(inspect.getdoc(getattr(kind, name))), "", signature, inner is not value)
            elif not is_dataclass(kind) or name in own:
                yield 0, Member(name, Documented(own.get(name, "")), type_text(type(value)))


# Class variables of tables that are shown: see `Grid`.
TABLES: Final = ("texts", "columns", "title", "rows", "cells")
# What an instance is called in signatures.
INSTANCES: Final = {
    "MisraGries": "sketch", "SeriesPlan": "planned", "SumComposer": "composer", "SumsComparison": "comparison",
}  # fmt: skip
# Members that other modules of dphist use, which are not part of the API.
INTERNAL: Final = {
    "Release": ("names", "form", "input_form", "with_written", "statement", "table_text", "sums", "sum_errors"),
    "Plan": ("claims", "releases_offset", "steps_of_count", "sums", "summed"),
    "Noise": ("decimals", "half_width", "least_offset", "squared_sigma"),
    "Series": ("lines", "shown_items", "shown_values", "item_texts"),
    "Simulation": ("hopeless",),
    "ledger.Account": (
        "booking_of", "check_fits", "delta_with", "largest_epsilon", "largest_epsilon_like", "left",
        "more_that_fit",
    ),
    "ledger.Checkpoint": ("check",),
    "ledger.Ledger": ("book_release", "fail", "note_run", "only_run_of"),
    "ledger.Spend": ("through_json",),
    "sketch.MisraGries": ("add_plain", "of_counters"),
}  # fmt: skip


def _parameters(described: Documented, signature: inspect.Signature) -> list[str]:
    explained = described.described("Args")
    names = [name for name in signature.parameters if name not in ("self", "cls")]
    if not explained:
        return []
    # The options of a release are grouped as in `dphist release --help`.
    panel_of = {option.name: option.help.panel for option in options()}
    grouped = {"input": "Input", "types": "Input", **panel_of} if panel_of.keys() <= explained.keys() else {}
    lines = []
    for panel in PANELS if grouped else ("",):
        shown = [name for name in names if not grouped or grouped.get(name, "Other options") == panel]
        rows = [f"| `{name}` | {cell(explained.get(name, explained.get(f'**{name}', '')))} |" for name in shown]
        lines += [*([f"**{panel}**", ""] if panel else []), "| parameter | meaning |", "|---|---|", *rows, ""]
    return lines


def _body(
    described: Documented, signature: inspect.Signature | None, prefix: str, is_class: bool = False
) -> list[str]:
    """Description, signature, parameters, errors and example."""
    lines = [page_links(described.summary), ""]
    if signature is not None:
        shown = signature.replace(return_annotation=signature.empty) if is_class else signature
        lines += ["```python3", signature_text(prefix, shown), "```", ""]
    for paragraph in described.paragraphs:
        lines += [page_links(paragraph), ""]
    if signature is not None:
        lines += _parameters(described, signature)
        returned = type_text(signature.return_annotation).strip('"')
        if returned in links():
            lines += [f"Returns [`{returned}`]({links()[returned]}).", ""]
    if raised := described.described("Raises"):
        lines += ["Raises:", "", *(f"- `{name}`: {page_links(when)}" for name, when in raised.items()), ""]
    if described.code:
        lines += ["```python", described.code, "```", ""]
        if described.output:
            lines += ["```text", described.output, "```", ""]
    return lines


def section(entry: Entry) -> list[str]:
    bare = entry.name.rpartition(".")[2]
    prefix = f"dphist.{entry.name}"
    lines = [f"## {heading_of(entry.name)}", "", *_body(entry.described, entry.signature, prefix, entry.is_class)]
    attributes = [member for member in entry.members if member.signature is None]
    if attributes:
        lines += ["| attribute | type | meaning |", "|---|---|---|"]
        for member in attributes:
            words = " ".join([member.description.summary, *member.description.paragraphs])
            lines.append(f"| `{member.name}` | {_linked(member.hint)} | {cell(words)} |")
        lines.append("")
    for member in entry.members:
        if member.signature is not None:
            lines += [f"### {bare}.{member.name}", ""]
            owner = bare if member.of_class else INSTANCES.get(bare, bare.lower())
            lines += _body(member.description, member.signature, f"{owner}.{member.name}")
    return lines


def _linked(hint: str) -> str:
    """A type in a table, as a link if it is a public class."""
    plain = hint.strip('"')
    where = links().get(plain.removesuffix(" | None"))
    shown = f"`{plain}`".replace("|", "\\|")
    return f"[{shown}]({where})" if where else shown


def page_text(name: str) -> str:
    page = PAGES[name]
    lines = [f"# {page.title}", "", page.intro, ""]
    for public in page.names:
        lines += section(Entry(public))
    return "\n".join(lines).rstrip() + "\n"


def index_text() -> str:
    lines = [INDEX]
    for name, page in PAGES.items():
        lines += [f"## {page.title}", "", "| name | |", "|---|---|"]
        for public in page.names:
            where = f"{name}.md#{anchor_of(heading_of(public))}"
            lines.append(f"| [`dphist.{public}`]({where}) | {cell(Entry(public).described.summary)} |")
        lines.append("")
    lines.append(ERRORS.rstrip())
    for kind in sorted(kinds_of_errors(), key=lambda kind: (exit_code(kind), kind.__name__)):
        described = read(inspect.getdoc(kind))
        lines.append(f"| `{kind.__name__}` | {cell(' '.join([described.summary]))} | {exit_code(kind)} |")
    base = read(inspect.getdoc(errors.DphistError))
    lines += ["", *(line for paragraph in base.paragraphs for line in (page_links(paragraph), ""))]
    if base.code:
        lines += ["```python", base.code, "```", "", "```text", base.output, "```"]
    return "\n".join(lines).rstrip() + "\n"


def kinds_of_errors() -> list[type[errors.DphistError]]:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DphistError)
    ]
    return [kind for kind in kinds if kind is not errors.DphistError]


def pages() -> dict[str, Callable[[], str]]:
    """The pages of the API by the name of their file, below docs/."""
    made: dict[str, Callable[[], str]] = {"reference/python.md": index_text}
    made.update({f"reference/{name}.md": partial(page_text, name) for name in PAGES})
    return made
