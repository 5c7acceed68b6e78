"""What is to be read: where the events are and which columns matter. Frozen data; nothing is opened yet."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Final

from dphist.errors import InvalidParameter

# Bytes of a user or an item; a longer text is missing, by its own length alone, so that no hash table, batch or
# output holds values without bound.
LONGEST_VALUE: Final = 1 << 13


def is_frame(source: Any) -> bool:
    """Whether a source is an object in memory or a DataFrame of Spark, and no path or address."""
    return not isinstance(source, (str, os.PathLike, tuple, list))


@dataclass(frozen=True)
class Column:
    """A column of the input, and the name it has in the output."""

    name: str
    source: str

    @classmethod
    def told(cls, text: str) -> Column:
        """`COLUMN`, or `NAME=COLUMN`, which reads one column and gives it another name."""
        name, equals, source = text.partition("=")
        return cls(name, source) if equals and name and source else cls(text, text)


@dataclass(frozen=True)
class Events:
    """User events: a source, and what of it to read.

    `source` is a path, a glob, a folder, the address of a database, a tuple of paths, or a frame. `table` or
    `query` say what to read of a database; `where` is a condition in SQL; `file_format` is for names that do not
    tell. `as_text` reads every column as text, cell by cell, whatever type the input gives it.
    Rows without a user are dropped. A missing item is no item unless `null_items`; a text or bytes of more than
    `LONGEST_VALUE` bytes is missing.
    """

    # Not shown: an address may hold a password, and a frame holds the data.
    source: Any = field(repr=False)
    user: str
    items: tuple[Column, ...]
    table: str | None = None
    query: str | None = None
    where: str | None = None
    file_format: str | None = None
    null_items: bool = False
    as_text: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or not self.user:
            raise InvalidParameter(f"user must be the name of a column, not {self.user!r}")
        if not self.items:
            raise InvalidParameter("item must name at least one column")
        names = [column.name for column in self.items]
        if len(set(names)) < len(names):
            raise InvalidParameter(f"the item's columns must have different names, not {names!r}")
        if self.table is not None and self.query is not None:
            raise InvalidParameter("give a table or a query, not both")
