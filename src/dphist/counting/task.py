"""What an engine does for a release: read events, bound every user, count users per item."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dphist.counting.events import Events, Value

# Called with the share of the work done, from 0 to 1. It never carries a number of the data.
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Choice:
    """The secret by which a user's items are chosen at random: 32 bytes of the secure tap, fresh for every run.

    A `portable` choice is the same on every engine, for tests that compare them; otherwise each engine uses the
    fastest keyed hash it has.
    """

    key: bytes
    portable: bool = False

    def __repr__(self) -> str:
        return "Choice(secret)"


@dataclass(frozen=True)
class Task:
    """What to count.

    One row per (user, item); of each user at most `max_items_per_user` items, chosen at random by `choice`; users
    counted per item; counts below `lower_threshold` removed. With `public_items` only those are counted (before a
    user's items are chosen), and all of them are in the histogram, zeros included. `rank` asks for the count of
    that rank, the largest having rank 1. `ordered` sorts the histogram by item, so that a seed repeats a release.
    Each of the `values` is summed over the same users: see `Value` for what of a user is added.
    """

    events: Events
    choice: Choice
    max_items_per_user: int | None = None
    lower_threshold: int = 1
    public_items: Events | None = None
    rank: int | None = None
    ordered: bool = False
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Resources:
    """What affects speed alone. `memory` is a size such as 2GB; `folder` is where work spills to."""

    memory: str | None = None
    threads: int | None = None
    folder: Path | None = None


class Counted(Protocol):
    """A histogram that is counted: true counts, for the noise stage and for nothing else."""

    @property
    def schema(self) -> Any:
        """Arrow schema of the batches; any names.

        The item's columns in their order, the count (int64), and a sum in steps (int64) for each of the values.
        """

    @property
    def at_rank(self) -> int:
        """The count of the task's rank; 0 where fewer items have a count, or no rank was asked for."""

    def batches(self) -> Iterator[Any]:
        """Arrow record batches of the schema, once."""


class Engine(Protocol):
    """An engine. It raises nothing because of what the data holds once it has begun to count."""

    @property
    def name(self) -> str:
        """What it is called."""

    def size(self, public_items: Events) -> int:
        """The number of different items of a public list."""

    def check(self, task: Task) -> None:
        """Raise `InputError` if the events cannot be read or lack a column; nothing is counted yet."""

    def count(self, task: Task, progress: Progress | None = None) -> AbstractContextManager[Counted]:
        """Count. On leaving the context everything temporary is gone."""

    def sizes(self, task: Task, bounds: Sequence[int], progress: Progress | None = None) -> list[int]:
        """How many users have how many different items, before any cap: true numbers, as secret as counts.

        Entry k is for more than bounds[k - 1] and at most bounds[k] items, the last one for more than the last
        bound. Each user with an item is in exactly one of them. The events are read for this alone: of a source
        that can be read only once it is an `InputError`, and nothing of it is read.
        """
