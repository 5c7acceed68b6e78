"""What every kind of input is made into: exact column names, and a FROM item for the columns that are wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dphist.engines.failures import attempt, listed
from dphist.engines.sql import name
from dphist.errors import InputError


@dataclass(frozen=True)
class Opened:
    """A FROM item, and for each wanted column its SQL expression and type. `before` is run before it is read.

    `again` where a second look costs next to nothing beside the count.
    """

    relation: str
    columns: dict[str, tuple[str, str]]
    before: str | None = None
    again: bool = False


class Source(Protocol):
    """An input. Its columns are found by their exact names; DuckDB's own names are blind to case."""

    @property
    def what(self) -> str:
        """What it is called in a sentence."""

    @property
    def names(self) -> Sequence[str] | None:
        """Names of all columns, as they are in the input; None where only the rows know, and any name will do."""

    def open(self, connection: Any, wanted: list[str], label: str, probe: bool, /) -> Opened:
        """The wanted columns. A probe may look at types alone: it must not consume what can be read once."""


def describe(connection: Any, relation: str) -> list[tuple[str, str]]:
    """DuckDB's names and types of a FROM item."""
    rows = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return [(str(row[0]), str(row[1])) for row in rows]


def require(source: Source, wanted: Sequence[str]) -> None:
    """One sentence if a wanted column does not exist, or exists twice."""
    if source.names is not None:
        demand(source.what, source.names, wanted)


def demand(what: str, names: Sequence[str], wanted: Sequence[str]) -> None:
    """One sentence if a wanted name is not there once."""
    times = Counter(names)
    for column in wanted:
        if times[column] == 0:
            raise InputError(f"{what} has no column {column!r}; its columns are {listed(list(names))}")
        if times[column] > 1:
            raise InputError(f"{what} has {times[column]} columns with the name {column!r}")


@dataclass
class ArrowSource:
    """Anything that comes as Arrow data: `schema` gives the wanted fields, `data` the wanted columns themselves.

    The data's columns are named c0, c1, ... in the order they are wanted in, so that DuckDB need not rename them.
    """

    what: str
    names: Sequence[str]
    schema: Callable[[list[str]], Any]
    data: Callable[[list[str]], Any]
    otherwise: str = "{what} cannot be read: its columns have types that cannot be counted, or it is damaged"
    kept: list[Any] = field(default_factory=list)

    def open(self, connection: Any, wanted: list[str], label: str, probe: bool, /) -> Opened:
        """Register the data under the label; a probe registers an empty table of the same schema."""
        require(self, wanted)

        def register() -> Opened:
            empty = self.schema(wanted).empty_table()
            connection.register(label, empty)
            columns = dict(zip(wanted, describe(connection, name(label)), strict=True))
            if not probe:
                connection.unregister(label)
                data = self.data(wanted)
                self.kept.append(data)
                connection.register(label, data)
            return Opened(name(label), {column: (name(sql), kind) for column, (sql, kind) in columns.items()})

        return attempt(register, self.what, self.otherwise)


def numbered(schema: Any) -> Any:
    """The schema with its fields named c0, c1, ..."""
    import pyarrow as pa

    return pa.schema([pa.field(f"c{k}", entry.type) for k, entry in enumerate(schema)])
