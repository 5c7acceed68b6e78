"""Formulas of the site as MathML, which browsers show without a script or a network.

`pymdownx.arithmatex` finds the formulas, and this extension of Python-Markdown (see mkdocs.yml) converts them. Its
font, `fonts/math.woff2`, has the characters that they use.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any, Final
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

Element = ElementTree.Element

_CLASS: Final = "arithmatex"
_OPENING: Final = re.compile(r"[(\[\"'“]+$")
_CLOSING: Final = re.compile(r"^[)\].,;:!?\"'”]+")
# TeX that latex2mathml does not read or does not place, and the same in other words.
_SAME: Final = (
    (re.compile(r"\\[bB]ig[lr]?(?=\\[lr]brace)"), ""),
    (re.compile(r"\\lbrace(?![a-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![a-z])"), r"\\}"),
    (re.compile(r"\\tag\{([^}]*)\}"), r"\\qquad\\text{(\1)}"),
)
_NAMESPACE: Final = "{http://www.w3.org/1998/Math/MathML}"
_LIMITS: Final = ("max", "min", "sup", "inf")


class _Formulas(Treeprocessor):
    def run(self, root: Element) -> None:
        for parent in root.iter():
            before = None
            for element in parent:
                if element.get("class") == _CLASS and element.text:
                    # Between \( and \), or \[ and \].
                    tex, display = html.unescape(element.text).strip()[2:-2], element.tag == "div"
                    formula = self.md.htmlStash.store(mathml(tex, display=display))
                    element.text = formula if display else _with_punctuation(parent, before, element, formula)
                before = element


def _with_punctuation(parent: Element, before: Element | None, element: Element, formula: str) -> str:
    """The formula with the brackets and commas next to it: no line break may part them."""
    text, tail = (parent.text if before is None else before.tail) or "", element.tail or ""
    opening, closing = _OPENING.search(text), _CLOSING.search(tail)
    if opening and before is None:
        parent.text = text[: opening.start()]
    elif opening and before is not None:
        before.tail = text[: opening.start()]
    if closing:
        element.tail = tail[closing.end() :]
    return f"{opening[0] if opening else ''}{formula}{closing[0] if closing else ''}"


def mathml(tex: str, *, display: bool) -> str:
    for pattern, same in _SAME:
        tex = pattern.sub(same, tex)
    root = ElementTree.fromstring(convert(tex, display="block" if display else "inline"))
    for parent in root.iter():
        parts = list(parent)
        for part, following in zip(parts, [*parts[1:], None], strict=bool(parts)):
            _mend(part, following)
    if any("\\" in (part.text or "") for part in root.iter()):
        raise ValueError(f"latex2mathml cannot read all of {tex}")
    ElementTree.register_namespace("", _NAMESPACE.strip("{}"))
    return ElementTree.tostring(root, encoding="unicode")


def _mend(part: Element, following: Element | None) -> None:
    variant, name = part.get("mathvariant", "normal"), part.tag.removeprefix(_NAMESPACE)
    if variant != "normal":
        # Browsers no longer support the attribute, but they have the characters.
        del part.attrib["mathvariant"]
        part.text = "".join(_letter(letter, variant) for letter in part.text or "")
    if part.text == "∞":
        part.tag = f"{_NAMESPACE}mi"
    operator = part[0] if name == "msub" else part
    word = operator.text or ""
    if operator.tag == f"{_NAMESPACE}mo" and len(word) > 1 and word.isalpha():
        # The name of a function: no space before its bracket, and in displays limits below it.
        bracket = following is not None and "".join(following.itertext()).startswith(tuple("([{⌊⌈|"))
        operator.attrib.update(lspace="0.17em", rspace="0" if bracket else "0.17em")
        if name == "msub" and word in _LIMITS:
            part.tag = f"{_NAMESPACE}munder"
            operator.set("movablelimits", "true")


def _letter(letter: str, variant: str) -> str:
    kind = unicodedata.name(letter).replace("LATIN ", "").replace("LETTER ", "")
    for name in (f"MATHEMATICAL {variant.upper()} {kind}", f"{variant.upper()} {kind}"):
        try:
            return unicodedata.lookup(name)
        except KeyError:
            continue
    raise ValueError(f"no {variant} {letter}")


class _MathML(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.treeprocessors.register(_Formulas(md), "mathml", 5)  # after the inline patterns


def makeExtension(**options: Any) -> _MathML:  # noqa: N802
    return _MathML(**options)
