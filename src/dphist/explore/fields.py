"""The fields of the page, each declared once: its place in the form, its slider, and what it accepts.

The limits keep every request short: the slowest answers within them, for epsilon near 0.05, take about ten
seconds. The command line takes any number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dphist.errors import DphistError, InvalidParameter

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


class WrongField(InvalidParameter):
    """A sentence about one field of the page."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


@dataclass(frozen=True)
class Slider:
    """What a slider covers, logarithmic unless `linear`; a value has this many significant digits."""

    first: float
    last: float
    steps: int
    digits: int = 3
    linear: bool = False


@dataclass(frozen=True)
class Field:
    """One field. A field with a placeholder may be empty; one with choices has the first by default."""

    name: str
    label: str
    start: str = ""
    least: float = 1
    most: float = 10**6
    whole: bool = False
    placeholder: str = ""
    word: str = ""
    hint: str = ""
    slider: Slider | None = None
    choices: Mapping[str, str] | None = None

    def read(self, data: Mapping[str, object]) -> Any:
        """The value in the data of the form; None where it is the default."""
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
        if text and text == self.word:
            return text
        number = float(text) if len(text) <= 40 and _NUMBER.fullmatch(text) else math.nan
        if not self.least <= number <= self.most or (self.whole and not number.is_integer()):
            kind, given = "whole number" if self.whole else "number", repr(text[:40]) if text else "empty"
            raise WrongField(
                self.name, f"{self.name} must be a {kind} from {self.least:,} to {self.most:,}, not {given}"
            )
        return int(number) if self.whole else number


_UP_TO_A_MILLION: Final = Slider(1, 1e6, 300)
BUDGET: Final = (
    Field("epsilon", "ε (epsilon)", "1", 0.05, 100, slider=Slider(0.05, 10, 300)),
    Field("delta", "δ (delta)", "1e-6", 1e-12, 0.001, slider=Slider(1e-12, 1e-3, 90, digits=1)),
)
BOUNDS: Final = (
    Field("max_nonzero", "k: items in the data, at most", whole=True, placeholder="no bound",
          slider=_UP_TO_A_MILLION),
    Field("max_items_per_user", "m: items per user, at most", "20", whole=True, placeholder="no bound",
          slider=Slider(1, 1e5, 250)),
    Field("excess", "Items of a user beyond m",
          choices={"drop": "are dropped", "spread": "count too, all with a smaller weight"}),
    Field("top", "K: release only the top K items", whole=True, placeholder="all items", slider=_UP_TO_A_MILLION),
)  # fmt: skip
NOISE: Final = (
    Field("mechanism", "Distribution",
          choices={"best": "the better of both", "gaussian": "Gaussian", "laplace": "Laplace"}),
    Field("gamma", "γ: own variance / shared variance", least=0.01, placeholder="tuned", word="sqrt",
          hint="Needs k. “sqrt” is the paper's choice, √k. Discrete noise rounds γ to a whole number.",
          slider=Slider(1, 1e5, 240)),
    Field("noise", "Values", choices={"discrete": "discrete (for releases)", "continuous": "continuous (ideal)"}),
    Field("minimize", "Minimize", choices={"threshold": "the threshold", "noise": "the noise"}),
)  # fmt: skip
POPULATION: Final = (
    Field("exponent", "Zipf exponent", "1", 0, 5, slider=Slider(0, 3, 60, linear=True)),
    Field("items", "Items", "10000", whole=True, slider=_UP_TO_A_MILLION),
    Field("users", "Users", "1000000", most=10**9, whole=True, slider=Slider(10, 1e8, 350)),
    Field("mean_items", "Items per user, on average", "20", slider=Slider(1, 1e3, 150, digits=2)),
    Field("spread", "Items per user", choices={"geometric": "vary (geometric)", "same": "the same for all users"}),
    Field("seed", "Seed", "1", most=2**31, whole=True),
)


def read_fields(data: Mapping[str, object], fields: Iterable[Field]) -> dict[str, Any]:
    """The values of these fields that are not the default, as keyword arguments."""
    values = {field.name: field.read(data) for field in fields}
    return {name: value for name, value in values.items() if value is not None}


def field_of(error: DphistError) -> str | None:
    """The field that an error is about: its own, or one whose name the sentence of the library begins with."""
    if isinstance(error, WrongField):
        return error.field
    first = str(error).removeprefix("the ").split(" ", 1)[0]
    return first if first in {field.name for field in (*BUDGET, *BOUNDS, *NOISE, *POPULATION)} else None
