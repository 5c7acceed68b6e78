"""How many users have how many different items: what engines share of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

from dphist.engines.frames import read_once
from dphist.engines.protocol import Task
from dphist.errors import InputError, InvalidParameter


def checked_sizes(task: Task, bounds: Sequence[int]) -> None:
    """Errors of the bounds, and of inputs that could not be counted afterwards; nothing is read yet."""
    if not bounds or any(isinstance(bound, bool) or not isinstance(bound, int) for bound in bounds):
        raise InvalidParameter("the bounds of sizes must be whole numbers, at least one")
    if bounds[0] < 1 or any(low >= high for low, high in pairwise(bounds)):
        raise InvalidParameter("the bounds of sizes must be at least 1 and increase")
    for events in (task.events, task.public_items):
        what = None if events is None else read_once(events.source)
        if what is not None:
            raise InputError(f"{what} can be read only once: give a cap by number (max_items_per_user=)")


def in_buckets(found: Iterable[Sequence[int]], bounds: Sequence[int]) -> list[int]:
    """Users by their number of items: at most the first bound, the second, ..., and more than the last.

    `found` has each number of items once, with the number of users that have as many: so every user is in one
    bucket.
    """
    counts = [0] * (len(bounds) + 1)
    for items, users in found:
        counts[bisect_left(bounds, items)] += users
    return counts
