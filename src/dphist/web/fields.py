"""The fields of the page: text in, a checked request out, and a sentence for the field that is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from dphist.errors import InvalidParameter, finite_number, positive_count
from dphist.planning.planner import gamma_value, whole_gamma
from dphist.privacy.types import Budget, Contract

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_LONGEST: Final = 40
CHOICES: Final = {
    "mechanism": ("best", "gaussian", "laplace"),
    "noise": ("discrete", "continuous"),
    "minimize": ("threshold", "noise"),
}


class WrongField(InvalidParameter):
    """A sentence about one field of the page."""

    def __init__(self, field: str | None, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for: the keywords of `dphist.plan`, each None where it has its default."""

    epsilon: float
    delta: float
    max_nonzero: int | None = None
    max_items_per_user: int | None = None
    top: int | None = None
    mechanism: str | None = None
    noise: str | None = None
    gamma: float | Literal["sqrt"] | None = None
    minimize: str | None = None

    def keywords(self) -> dict[str, Any]:
        """The keywords that were chosen, in a fixed order."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in found if value is not None}


def text_of(data: Mapping[str, object], name: str) -> str:
    """The text of a field; an empty one if it is missing."""
    value = data.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise WrongField(name, f"{name} must be one value, not a {type(value).__name__}")
    text = value.strip() if isinstance(value, str) else repr(value)
    if len(text) > _LONGEST:
        raise WrongField(name, f"{name} is too long: {len(text)} characters, and {_LONGEST} are enough")
    return text


def number_of(data: Mapping[str, object], name: str) -> float:
    """A decimal number that is finite."""
    text = text_of(data, name)
    if not text:
        raise WrongField(name, f"{name} is empty: give a number")
    if not _NUMBER.fullmatch(text):
        raise WrongField(name, f"{name} must be a number such as 0.35 or 1e-5, not {text!r}")
    try:
        return finite_number(name, float(text))
    except InvalidParameter:
        raise WrongField(name, f"{name} is too large: {text}") from None


def whole_of(data: Mapping[str, object], name: str) -> int:
    """A whole number of at least one; 1e6 is one too."""
    number = number_of(data, name)
    text = text_of(data, name)
    whole = int(text) if text.isdecimal() else int(number)
    if whole != number and not text.isdecimal():
        raise WrongField(name, f"{name} must be a whole number, not {text}")
    try:
        return positive_count(name, whole)
    except InvalidParameter as error:
        raise WrongField(name, str(error)) from None


def optional_whole(data: Mapping[str, object], name: str) -> int | None:
    """The same, or None for an empty field."""
    return whole_of(data, name) if text_of(data, name) else None


def choice_of(data: Mapping[str, object], name: str, choices: tuple[str, ...]) -> str | None:
    """One of a few words; None for the first, which is the default."""
    text = text_of(data, name)
    if not text:
        return None
    if text not in choices:
        raise WrongField(name, f"{name} must be one of {', '.join(choices)}, not {text!r}")
    return None if text == choices[0] else text


def plan_request(data: object) -> PlanRequest:
    """The request that the fields make, or a `WrongField`."""
    if not isinstance(data, Mapping):
        raise WrongField(None, "the request must be an object with the fields of the page")
    words = {name: choice_of(data, name, choices) for name, choices in CHOICES.items()}
    gamma_text = text_of(data, "gamma")
    gamma: float | Literal["sqrt"] | None = None
    if gamma_text:
        gamma = "sqrt" if gamma_text == "sqrt" else number_of(data, "gamma")
    request = PlanRequest(
        number_of(data, "epsilon"),
        number_of(data, "delta"),
        optional_whole(data, "max_nonzero"),
        optional_whole(data, "max_items_per_user"),
        optional_whole(data, "top"),
        words["mechanism"],
        words["noise"],
        gamma,
        words["minimize"],
    )
    _check_together(request)
    return request


def _check_together(request: PlanRequest) -> None:
    """What the library would refuse, said at the field it is about."""
    try:
        Budget(request.epsilon, request.delta)
    except InvalidParameter as error:
        raise WrongField("delta" if str(error).startswith("delta") else "epsilon", str(error)) from None
    if request.top is None and request.max_nonzero is None and request.max_items_per_user is None:
        raise WrongField("max_nonzero", "give a bound: on the non-zero counts, on the items of a user, or a top-k")
    if request.top is not None:
        if request.max_nonzero is not None:
            raise WrongField("top", "top-k needs no bound on the non-zero counts: leave one of the two empty")
        if request.gamma is not None or request.noise == "continuous" or request.mechanism == "laplace":
            raise WrongField("top", "top-k has Gaussian noise that is discrete, with gamma tuned")
    else:
        try:
            Contract(request.max_nonzero, request.max_items_per_user)
        except InvalidParameter as error:
            raise WrongField("max_items_per_user", str(error)) from None
    if request.mechanism == "laplace" and (request.gamma is not None or request.noise == "continuous"):
        raise WrongField("mechanism", "Laplace noise is discrete and has no gamma")
    if request.gamma is not None:
        if request.max_nonzero is None:
            raise WrongField("gamma", "shared noise (gamma) needs a bound on the non-zero counts")
        try:
            number = gamma_value(request.gamma, Contract(request.max_nonzero, request.max_items_per_user))
            if request.noise != "continuous":
                whole_gamma(number)
        except InvalidParameter as error:
            raise WrongField("gamma", str(error)) from None
