"""The fields of the page, each declared once with its label, slider and limits; and uploaded counts.

Fields never contradict each other: `read_question` adjusts or drops values that do not fit, with a note next to
the field. Limits keep requests short: the slowest, for epsilon near 0.05, take about ten seconds. The command line
has no such limits.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dphist.errors import InvalidParameter
from dphist.simulation.population import Spread

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
# Only for whole numbers: elsewhere 1,500 may mean 1.5.
_GROUPED: Final = re.compile(r"\d{1,3}(,\d{3})+", re.ASCII)


class WrongField(InvalidParameter):
    """An error in one field of the page."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


@dataclass(frozen=True)
class Slider:
    """The range of a slider, logarithmic unless `linear`; values have `digits` significant digits."""

    first: float
    last: float
    steps: int
    digits: int = 2
    linear: bool = False


@dataclass(frozen=True)
class Field:
    """A field of the form. With a placeholder it may be empty; of `choices`, the first is the default."""

    name: str
    label: str
    start: str = ""
    least: float = 1
    most: float = 10**6
    whole: bool = False
    placeholder: str = ""
    hint: str = ""
    slider: Slider | None = None
    choices: Mapping[str, str] | None = None

    def read(self, data: Mapping[str, object]) -> Any:
        """The value in the form's data; None for the default."""
        text = data.get(self.name, "")
        if not isinstance(text, str):
            raise WrongField(self.name, f"{self.name} must be text, not {type(text).__name__}")
        text = text.strip()
        if self.choices is not None:
            if text and text not in self.choices:
                raise WrongField(self.name, f"{self.name} must be one of {', '.join(self.choices)}")
            return None if text in ("", next(iter(self.choices))) else text
        if not text and self.placeholder:
            return None
        if self.whole and _GROUPED.fullmatch(text):
            text = text.replace(",", "")
        number = float(text) if len(text) <= 40 and _NUMBER.fullmatch(text) else math.nan
        if not self.least <= number <= self.most or (self.whole and not number.is_integer()):
            kind = "whole number" if self.whole else "number"
            raise WrongField(self.name, f"Please enter a {kind} from {self.least:,} to {self.most:,}.")
        return int(number) if self.whole else number


_UP_TO_A_MILLION: Final = Slider(1, 1e6, 60)
SIZE: Final = (
    Field("users", "Users", "100000", most=10**9, whole=True, slider=Slider(100, 1e8, 60)),
    Field("items", "Different items", "10000", whole=True, slider=_UP_TO_A_MILLION),
)
ITEMS_PER_USER: Final = (
    Field("mean_items", "Items per user, on average", "10", slider=Slider(1, 200, 60)),
    Field("max_items_per_user", "Limit: items counted per user", whole=True, placeholder="no limit",
          hint="Without a limit, items are found in rounds and then measured.", slider=Slider(1, 1000, 80)),
)  # fmt: skip
PUBLISH: Final = (
    Field("publish", "What do you want to publish?",
          choices={"items": "All popular items", "top": "The most common items", "list": "Items of a known list",
                   "sums": "Popular items, with sums"}),
    Field("top", "How many of the most common", "100", whole=True, slider=Slider(1, 10_000, 80)),
    Field("public_items", "Items on the public list", "200", whole=True, slider=Slider(1, 10_000, 80)),
    Field("sum_high", "Largest value per user and item", "100", least=0.001, most=10**9,
          hint="Values are clamped to the range from 0 to this number.",
          slider=Slider(1, 10_000, 80)),
)  # fmt: skip
BUDGET: Final = (
    Field("epsilon", "Epsilon (ε): smaller is more private", "1", 0.05, 100, slider=Slider(0.1, 10, 60)),
)
PRIVACY: Final = {"strong": "1", "moderate": "3", "weak": "10"}
OPTIONS: Final = (
    Field("delta", "Delta (δ): probability that the ε guarantee fails", "", 1e-12, 0.1,
          placeholder="automatic", slider=Slider(1e-12, 1e-3, 90, digits=1)),
    Field("max_nonzero", "Most items in any possible data (k)", whole=True, placeholder="no bound",
          slider=_UP_TO_A_MILLION),
    Field("goal", "Spend the budget on",
          choices={"accuracy": "accurate counts", "keys": "finding many items"}),
    Field("known", "Most common items that are public already", whole=True, placeholder="none",
          hint="Such as those of last week's release: they are measured without being found again.",
          slider=Slider(1, 1e5, 60)),
    Field("mechanism", "Kind of noise",
          choices={"best": "the better one", "gaussian": "Gaussian", "laplace": "Laplace"}),
    Field("minimize", "Minimize", choices={"threshold": "the threshold", "noise": "the noise"}),
)  # fmt: skip
EXAMPLE: Final = (
    Field("exponent", "How unequal items are (Zipf exponent)", "1", 0, 5, slider=Slider(0, 3, 60, linear=True)),
    Field("spread", "Items per user",
          choices={"geometric": "vary from user to user", "same": "the same number for all users"}),
    Field("seed", "Seed of the trial release", "1", most=2**31, whole=True),
)  # fmt: skip
FIELDS: Final = (*SIZE, *ITEMS_PER_USER, *PUBLISH, *BUDGET, *OPTIONS, *EXAMPLE)
_LIMITS: Final = {"max_items_per_user", "max_nonzero", "top"}
_LAW: Final = ("users", "mean_items", "items", "exponent", "spread")


@dataclass(frozen=True)
class Law:
    """Synthetic data: Zipf's law, and how many items a user has."""

    exponent: float
    items: int
    users: int
    mean_items: float
    spread: Spread = "geometric"


@dataclass(frozen=True)
class Question:
    """The form as keywords of a plan, synthetic data, and notes on adjusted values, by field.

    Without a limit, the `known` most common items are known in advance.
    """

    plan: dict[str, Any]
    law: Law
    seed: int
    known: int
    adjusted: dict[str, str]

    @property
    def in_rounds(self) -> bool:
        return not _LIMITS & self.plan.keys()


def read_question(data: Mapping[str, object]) -> Question:
    # Fields that belong to another choice of what to publish are not read.
    own, choice = {"top": "top", "public_items": "list", "sum_high": "sums"}, data.get("publish")
    values = {field.name: field.read(data) for field in FIELDS if own.get(field.name, choice) == choice}
    values = {name: value for name, value in values.items() if value is not None}
    publish, seed = values.pop("publish", "items"), values.pop("seed")
    law = {name: values.pop(name) for name in _LAW if name in values}
    adjusted: dict[str, str] = {}

    def leave_out(names: Iterable[str], why: str) -> None:
        for name in names:
            if values.pop(name, None) is not None:
                adjusted[name] = f"Not used: {why}."

    budget = {"epsilon": values.pop("epsilon"), "delta": values.pop("delta", delta_for(law["users"]))}
    if publish != "items":
        leave_out(("max_nonzero", "mechanism", "minimize"), "this is for all popular items without sums")
    if _LIMITS & values.keys():
        leave_out(("goal", "known"), "this is for releases without a limit")
    else:
        leave_out(
            ["minimize", *(["mechanism"] if values.get("mechanism") == "laplace" else [])], "this needs a limit"
        )
    if "public_items" in values:
        leave_out(("goal", "known"), "all items of a list are known")
    if "sum_high" in values:
        high = values.pop("sum_high")
        values["sums"] = ((0, int(high) if high.is_integer() else high),)
    bound = values.get("public_items", values.get("max_nonzero"))
    limit = values.get("max_items_per_user")
    if bound is not None and limit is not None and limit > bound:
        values["max_items_per_user"] = bound
        adjusted["max_items_per_user"] = f"{bound:,} is used: there are no more items."
    if "public_items" in values:
        law["items"] = values["public_items"]
        adjusted["items"] = "Not used: only items on the list count."
    most = max(1.0, law["items"] / 2)
    if law["mean_items"] > most:
        law["mean_items"] = most
        adjusted["mean_items"] = f"{most:g} is used, half of the {law['items']:,} items."
    known = min(values.pop("known", 0), law["items"])
    return Question({**budget, **values}, Law(**law), seed, known, adjusted)


def delta_for(users: int) -> float:
    """1e-6, or for many users a power of ten that is at most 0.1 / users."""
    return min(1e-6, float(f"1e-{len(str(users - 1)) + 1}"))


# ---- public counts, uploaded as CSV

MOST_ITEMS: Final = 10**6
LARGEST_UPLOAD: Final = 5 * 1024 * 1024
_LARGEST_COUNT: Final = 10**12
_WHOLE: Final = re.compile(r"\d{1,13}", re.ASCII)
_DECIMAL: Final = re.compile(r"\d{1,13}(\.\d+)?", re.ASCII)
# A number with a comma is refused, but it still shows which column has the counts.
_LIKE_A_NUMBER: Final = re.compile(r"\d[\d.,]*", re.ASCII)
# Control characters and lone surrogates, which do not occur in text.
_NOT_TEXT: Final = re.compile(r"[\x00-\x08\x0e-\x1f\ud800-\udfff]")


def read_counts(text: object) -> tuple[list[str], list[int], int]:
    """Items and counts of a CSV text, and how many counts were rounded.

    The text has one column of counts, two columns of items and counts, or a header with a column `count`.
    """
    if not isinstance(text, str) or _NOT_TEXT.search(text):
        raise WrongField("csv", "the file is not text in UTF-8: save it as CSV first")
    if len(text.encode()) > LARGEST_UPLOAD:
        raise WrongField("csv", f"the file is larger than {LARGEST_UPLOAD // 1024**2} MB")
    try:
        rows = _split(text.removeprefix("\ufeff"))
    except csv.Error as error:
        raise WrongField("csv", f"the file is not CSV: {error}") from None
    has_header, named, place = _header(rows[0][1]) if rows else (False, False, 0)
    width = len(rows[0][1]) if rows else 1
    if has_header:
        rows = rows[1:]
    if len(rows) > MOST_ITEMS:
        raise WrongField("csv", f"the file has more than {MOST_ITEMS:,} items")
    if not named and width > 2:
        raise WrongField(
            "csv", f"line 1 has {width} columns: use one count, or item,count, or a header that names `count`"
        )
    items, counts, rounded = [], [], 0
    for line, row in rows:
        if len(row) != width:
            raise WrongField("csv", f"line {line} has {len(row)} columns, but the first line has {width}")
        count = row[place].strip()
        # A column named `count` may come from a release, whose counts have decimals.
        if not (_DECIMAL if named else _WHOLE).fullmatch(count) or float(count) > _LARGEST_COUNT:
            kind = "number" if named else "whole number"
            raise WrongField("csv", f"line {line}: {count[:40]!r} is not a {kind} from 0 to {_LARGEST_COUNT:,}")
        whole = round(float(count))
        rounded += whole != float(count)
        counts.append(whole)
        items.append(str(line) if width == 1 else row[0 if place else 1].strip()[:60])
    if not any(counts):
        raise WrongField("csv", "the file has no count above 0: enter one whole number per line, or item,count")
    return items, counts, rounded


def _split(text: str) -> list[tuple[int, list[str]]]:
    """The non-empty rows with their line numbers, by the first separator that leaves numbers as counts.

    A comma comes last, so that "bread;1,5" is refused and not misread.
    """
    rows: list[tuple[int, list[str]]] = []
    for separator in ("\t", ";", ","):
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        rows = [(number, row) for number, row in enumerate(reader, start=1) if row]
        if rows and len(rows[0][1]) > 1:
            _, _, place = _header(rows[0][1])
            if any(len(row) > place and _LIKE_A_NUMBER.fullmatch(row[place].strip()) for _, row in rows[:20]):
                break
    return rows


def _header(first: list[str]) -> tuple[bool, bool, int]:
    """Whether the first row is a header, whether it has a column `count`, and the place of the counts."""
    words = [cell.strip().lower() for cell in first]
    is_header = not any(character.isdigit() for character in words[-1])
    # Without a header, an item may be called "count".
    if "count" in words and (is_header or len(words) > 2):
        return True, True, words.index("count")
    return is_header, False, len(words) - 1
