"""Sketches as files. They hold true counts: only their owner may read them, and none is there half written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dphist.errors import InputError, InvalidParameter, OutputError
from dphist.outputs.interrupts import Deferred
from dphist.publishing import link_new, workplace


def check_place(path: str | os.PathLike[str], *, force: bool) -> Path:
    """The path, if a sketch can be written there; nothing is changed."""
    name = os.fspath(path)
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidParameter(f"a sketch needs the name of a file, not {name!r}")
    place = Path(name)
    if not place.parent.is_dir():
        raise OutputError(f"{name} cannot be written: there is no folder {place.parent}")
    if place.is_dir():
        raise OutputError(f"{name} cannot be written: it is a folder")
    if not force and os.path.lexists(place):
        raise OutputError(f"{name} exists already: choose another name, or replace it with --force (force=True)")
    return place


def write_secret(
    path: str | os.PathLike[str], data: bytes, *, force: bool = False, placed: Callable[[Path], None] | None = None
) -> None:
    """Put a new file in place at once, readable by its owner alone; without `force` nothing is ever replaced.

    `placed` is called once it is there, before any signal that waited.
    """
    place = check_place(path, force=force)
    with Deferred():
        try:
            with workplace(place.parent) as work:
                unfinished = work / "sketch"
                descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                if force:
                    os.replace(unfinished, place)
                else:
                    link_new(unfinished, place)
            if placed is not None:
                placed(place)
        except FileExistsError:
            raise OutputError(f"{place} exists already: replace it with --force (force=True)") from None
        except OSError as error:
            raise OutputError(f"{place} cannot be written: {error.strerror}") from None


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a sketch's file."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"the sketch {os.fspath(path)} does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no name of a file"
        raise InputError(f"the sketch {os.fspath(path)} cannot be read: {reason}") from None
