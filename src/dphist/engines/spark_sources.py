"""What every kind of input of Spark is made into, and the folders whose names add columns."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dphist.errors import InputError


@dataclass(frozen=True)
class SparkSource:
    """An input: `select` gives a frame of the wanted columns under the names c0, c1, ...

    It is asked for few columns, each once, by their exact names. A probe is about types alone: it must not consume
    what can be read once. Without `names` only the rows know, and any name will do.
    """

    what: str
    names: list[str] | None
    select: Callable[[list[str], bool], Any]


def by_places(frame: Any, names: Sequence[str], wanted: list[str]) -> Any:
    """Columns c0, c1, ... of a frame, by the places of their names; Spark's own names are blind to case."""
    numbered = frame.toDF(*(f"n{k}" for k in range(len(frame.columns))))
    return numbered.select(*(numbered[f"n{names.index(name)}"].alias(f"c{k}") for k, name in enumerate(wanted)))


def union(frames: list[Any]) -> Any:
    """All rows of frames with the same columns."""
    return reduce(lambda one, other: one.unionAll(other), frames)


def address(path: str) -> str:
    """Of a file of this machine, for Spark. In a name nothing is a pattern: what could be one is escaped."""
    name = os.path.basename(path)
    if name.startswith(("_", ".")):
        raise InputError(f"the file {path!r} has a name that Spark takes for hidden: rename it")
    if ":" in name:
        raise InputError(f"the file {path!r} has a colon in its name, with which Spark cannot open it: rename it")
    return "file://" + re.sub(r"([\\\[\]{}*?])", r"\\\1", os.path.abspath(path))


def folder_root(files: Sequence[str], names: Sequence[str]) -> str | None:
    """The address above the folders named key=value, which add columns of text.

    None where there are none, where files differ in their keys, or where a file has a column of such a name: a
    column is never replaced silently.
    """
    folders = [Path(os.path.abspath(path)).parent.parts for path in files]
    keys = [tuple(part.partition("=")[0] for part in parts if "=" in part) for parts in folders]
    own = {name.casefold() for name in names}
    if not keys[0] or set(keys) != {keys[0]} or own & {unquote(key).casefold() for key in keys[0]}:
        return None
    roots = {parts[: next(k for k, part in enumerate(parts) if "=" in part)] for parts in folders}
    return "file://" + os.path.join(*roots.pop()) if len(roots) == 1 else None


def located(reader: Any, files: Sequence[str], names: Sequence[str]) -> Any:
    """The reader, told where the folders begin whose names are columns."""
    root = folder_root(files, names)
    return reader if root is None else reader.option("basePath", root)
