"""What decides a privately chosen cap: the caps on offer, and the noise on how many users have how many items."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from dphist.errors import InvalidParameter
from dphist.types.checks import positive_count

# Two caps to a doubling: no number of items is further than a fifth from one, and few have to be certified.
DEFAULT_CAPS: Final[tuple[int, ...]] = tuple(
    sorted({1, *(2**n for n in range(1, 13)), *(3 * 2**n for n in range(11))})
)
# What the sampler draws. Below one, noise would hide nobody.
_LEAST_VARIANCE: Final = 1
_LARGEST_VARIANCE: Final = 10**16
_MOST_CAPS: Final = 1000


@dataclass(frozen=True)
class CapChoice:
    """The caps one of which is chosen, and the variance of the discrete Gaussian noise on the sizes.

    Bucket i counts the users with more than caps[i - 1] and at most caps[i] different items, the last one those
    with more than any cap: one user is in exactly one of the len(caps) + 1 buckets, or in none.
    The variance V means Pr[x] proportional to exp(-x^2/(2V)) on the integers.
    """

    caps: tuple[int, ...]
    variance: Fraction

    def __post_init__(self) -> None:
        if not isinstance(self.caps, tuple) or not 1 <= len(self.caps) <= _MOST_CAPS:
            raise InvalidParameter(f"caps must be a tuple of 1 to {_MOST_CAPS} whole numbers, not {self.caps!r}")
        object.__setattr__(self, "caps", tuple(positive_count("each of the caps", cap) for cap in self.caps))
        if any(after <= before for before, after in pairwise(self.caps)):
            raise InvalidParameter(f"caps must increase, not {self.caps!r}")
        if not isinstance(self.variance, Fraction):
            raise InvalidParameter(f"variance must be a fraction, not {self.variance!r}")
        if not _LEAST_VARIANCE <= self.variance <= _LARGEST_VARIANCE:
            raise InvalidParameter(
                f"variance must be between {_LEAST_VARIANCE} and {_LARGEST_VARIANCE:g}, not {self.variance}"
            )

    @property
    def buckets(self) -> int:
        """How many buckets there are: one to a cap, and one for more than any."""
        return len(self.caps) + 1

    def bucket(self, items: int) -> int:
        """The bucket of a user with this many different items."""
        return bisect_left(self.caps, positive_count("items of a user", items))

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the variance in full."""
        return {"caps": list(self.caps), "variance": str(self.variance)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CapChoice:
        """The same from plain data."""
        try:
            return cls(tuple(data["caps"]), Fraction(data["variance"]))
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise InvalidParameter(f"a choice of caps must have caps and a variance, not {data!r}") from None


def caps_up_to(most: int | None) -> tuple[int, ...]:
    """The usual caps, ending at `most` where one user can have no more items than that."""
    if most is None:
        return DEFAULT_CAPS
    bound = positive_count("the largest cap", most)
    below = tuple(cap for cap in DEFAULT_CAPS if cap < bound)
    return (*below, bound) if bound <= DEFAULT_CAPS[-1] else DEFAULT_CAPS
