"""The ratio gamma of a count's own variance to the shared one, as people ask for it."""

from __future__ import annotations

import math
from typing import Final, Literal

from dphist.errors import InvalidParameter
from dphist.types import Contract, positive_number

Gamma = float | Literal["sqrt"]
# Beyond, one of the two noises is nothing beside the other.
LEAST_GAMMA: Final = 0.01
LARGEST_GAMMA: Final = 1e15


def gamma_value(gamma: Gamma, contract: Contract) -> float:
    """Gamma as a number, with `sqrt` meaning the paper's sqrt(max_nonzero)."""
    if isinstance(gamma, str):
        if gamma != "sqrt":
            raise InvalidParameter(f"gamma must be 'sqrt' or a number, not {gamma!r}")
        if contract.max_nonzero is None:
            raise InvalidParameter("gamma = 'sqrt' is the root of max_nonzero, which is not given")
        return math.sqrt(contract.max_nonzero)
    return _gamma_number(gamma)


def _gamma_number(gamma: float) -> float:
    number = positive_number("gamma", gamma)
    if not LEAST_GAMMA <= number <= LARGEST_GAMMA:
        raise InvalidParameter(f"gamma must be between {LEAST_GAMMA:g} and {LARGEST_GAMMA:g}, not {gamma!r}")
    return number


def whole_gamma(gamma: float) -> tuple[float, tuple[str, ...]]:
    """The gamma of discrete noise for one that was asked for, and a note where it is another."""
    number = _gamma_number(gamma)
    if number < 1.0:
        raise InvalidParameter(
            f"the gamma of discrete noise is a whole number from 1 on, not {gamma!r}; noise='continuous' takes any"
        )
    whole = float(round(number))
    told = f"Gamma is {whole:g} in place of {number:g}: that of discrete noise is a whole number."
    return whole, () if whole == number else (told,)
