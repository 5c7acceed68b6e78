"""The JSON Schema of certificates, with descriptions, and a page that shows it in tables."""

from __future__ import annotations

import json
import re
from functools import cache
from inspect import cleandoc
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from dphist.certificate import request, schema
from dphist.certificate.sentences import CAVEATS, CONDITIONS
from dphist.errors import with_flags
from dphist.releasing.request import options
from generator.docstrings import page_links, read

# The objects of the page in their order: title and class.
OBJECTS: Final[dict[str, type[Struct]]] = {
    "Certificate": schema.Certificate,
    "guarantee": schema.Guarantee,
    "request: user events": request.EventsRequest,
    "request: a sketch": request.SketchRequest,
    "request: a histogram": request.HistogramRequest,
    "plan: gshm, csh, top-k, known-domain": schema.GaussianPlan,
    "plan: laplace": schema.LaplacePlan,
    "plan: rounds": schema.RoundsPlan,
    "alone: gshm": schema.GaussianOfOne,
    "alone: laplace": schema.LaplaceOfOne,
    "sums of a plan": schema.SumPart,
    "counts": schema.Counts,
    "sums: a sum": schema.SumFacts,
    "sums: a mean": schema.MeanFacts,
    "sums: a vector": schema.VectorFacts,
    "findings": schema.Findings,
    "booking": schema.BookingPart,
    "output": schema.Output,
    "signature": schema.Signature,
}
WORDS: Final = {
    "integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null",
}  # fmt: skip
# They have the fields of GaussianPlan.
ALIKE: Final[tuple[type[Struct], ...]] = (schema.SharedGaussianPlan, schema.TopPlan, schema.PublicPlan)
# Fields of the second class are shown once, before.
SHOWN_BEFORE: Final[dict[type[Struct], type[Struct]]] = {
    schema.GaussianPlan: schema.PlanPart,
    schema.LaplacePlan: schema.PlanPart,
    schema.RoundsPlan: schema.PlanPart,
    schema.GaussianOfOne: schema.PlanPart,
    schema.LaplaceOfOne: schema.PlanPart,
    request.SketchRequest: request.EventsRequest,
}
MECHANISMS: Final = tuple(kind.__struct_config__.tag for kind in get_args(schema.AnyPlan))
INTRO: Final = """\
# Fields of a certificate

Every field of a [certificate](../certificate.md), generated from the code by `make docs`;
[certificate.schema.json](../certificate.schema.json) has the same descriptions. A certificate has the fields in
this order, and no others. Fields in **bold** are always there.

`dphist verify` recomputes or compares fields that are *checked*. Others are *declared*: only the publisher knows
whether they are true. Digest and signature can be checked
[in any language](../certificate.md#digest-and-signature-in-any-language).
"""


@cache
def descriptions(kind: type[Struct]) -> dict[str, tuple[str, bool]]:
    """By field: its description, and whether `verify` checks it."""
    found: dict[str, tuple[str, bool]] = {}
    if issubclass(kind, request.Recorded):
        for option in options():
            text = re.sub(r"\s*\[(.*)\]$", r" Left out: \1.", with_flags(option.help.text))
            found[option.name] = (text, True)
    for base in reversed(kind.__mro__):
        described = read(cleandoc(vars(base).get("__doc__") or ""))
        found |= {name: (words, True) for name, words in described.described("Attributes").items()}
        found |= {name: (words, False) for name, words in described.described("Declared").items()}
    return found


def names(kind: type[Struct]) -> dict[str, str]:
    """The name of each field in JSON, by its name in Python, with the tag first."""
    tag = kind.__struct_config__.tag_field
    return {**({} if tag is None else {tag: tag}), **{one.name: one.encode_name for one in fields(kind)}}


def is_declared(*place: str) -> bool:
    """Whether the page calls the field at this place, such as ("output", "name"), declared."""
    kinds = [kind for title, kind in OBJECTS.items() if len(place) > 1 and title.partition(":")[0] == place[0]]
    return any(
        outer == place[bool(kinds)] and not descriptions(kind)[name][1]
        for kind in kinds or [schema.Certificate]
        for name, outer in names(kind).items()
    )


@cache
def json_schema() -> dict[str, Any]:
    """The JSON Schema, in which every object and field has a description."""
    made: dict[str, Any] = msgspec.json.schema(schema.Certificate)
    kinds: tuple[type[Struct], ...] = (*OBJECTS.values(), *ALIKE)
    for kind in kinds:
        described = made["$defs"][kind.__name__]
        text = read(cleandoc(kind.__doc__ or ""))
        described["description"] = " ".join([text.summary, *text.paragraphs])
        for name, outer in names(kind).items():
            words, checked = descriptions(kind)[name]
            end = "" if checked else " Declared by the publisher."
            given = described["properties"][outer]
            inner = given.pop("description", "")
            given["description"] = f"{words}{end}" + (f" {inner}" if inner else "")
            described["properties"][outer] = {"description": given.pop("description"), **given}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def schema_text() -> str:
    """The text of docs/certificate.schema.json."""
    return json.dumps(json_schema(), indent=2) + "\n"


def _type(given: dict[str, Any]) -> str:
    """A JSON type in words; objects by their title on the page."""
    if "anyOf" in given:
        kinds = [_type(one) for one in given["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in given:
        name = given["$ref"].rpartition("/")[2]
        name = schema.GaussianPlan.__name__ if name in [kind.__name__ for kind in ALIKE] else name
        title = next(title for title, kind in OBJECTS.items() if kind.__name__ == name)
        return f"[{title.rpartition(': ')[2]}](#{_anchor(title)})"
    if "enum" in given:
        return " or ".join(f"`{json.dumps(word)}`" for word in given["enum"])
    if given.get("type") == "array":
        return f"list of {_type(given.get('items', {}))}"
    if given.get("type") == "object":
        return f"object of {_type(given['additionalProperties'])}"
    return WORDS[given["type"]]


def _anchor(title: str) -> str:
    return re.sub(r"[:,]", "", title.lower()).replace(" ", "-")


def schema_page() -> str:
    """The text of docs/reference/certificate.md."""
    lines = [INTRO]
    for title, kind in OBJECTS.items():
        own, before = names(kind), SHOWN_BEFORE.get(kind)
        text = json_schema()["$defs"][kind.__name__]["description"]
        if before is schema.PlanPart and "plan" not in [line.removeprefix("## ") for line in lines]:
            common = [name for name in own if name in names(schema.PlanPart)]
            lines += _section("plan", "What every plan has; the fields of each mechanism follow.", kind, common)
        left = [name for name in own if before is None or name not in names(before) or name == "kind"]
        others = [own[name] for name in own if name not in left]
        if before is request.EventsRequest:
            text += f" {', '.join(f'`{name}`' for name in others)}: as for user events."
        elif title.startswith("alone"):
            text += f" {', '.join(f'`{name}`' for name in others)}: as in a plan."
        elif title.startswith("plan: gshm"):
            kinds: tuple[type[Struct], ...] = (kind, *ALIKE)
            parts = [(one.__struct_config__.tag, read(cleandoc(one.__doc__ or ""))) for one in kinds]
            text = " ".join(f"`{tag}`: {described.summary}" for tag, described in parts)
        lines += _section(title, text, kind, left)
    for title, sentences in {"Codes of conditions": CONDITIONS, "Codes of caveats": CAVEATS}.items():
        rows = [
            f"| `{code}` | {sentence.replace('{', '*').replace('}', '*')} |"
            for code, sentence in sentences.items()
        ]
        lines += [f"## {title}", "", "| code | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines).rstrip() + "\n"


def _section(title: str, text: str, kind: type[Struct], shown: list[str]) -> list[str]:
    described = json_schema()["$defs"][kind.__name__]
    lines = [f"## {title}", "", page_links(text), "", "| field | type | checked | meaning |", "|---|---|---|---|"]
    for name in shown:
        outer, (words, checked) = names(kind)[name], descriptions(kind)[name]
        field = f"**`{outer}`**" if outer in described.get("required", ()) else f"`{outer}`"
        kinds = _type(described["properties"][outer])
        if title == "plan" and name == "mechanism":
            kinds = " or ".join(f'`"{mechanism}"`' for mechanism in MECHANISMS)
        meaning = page_links(words).replace("|", "\\|")
        lines.append(f"| {field} | {kinds} | {'checked' if checked else 'declared'} | {meaning} |")
    return [*lines, ""]
