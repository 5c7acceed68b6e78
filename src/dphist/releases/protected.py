"""What a release rests on: its input, its lists, its ledger, itself. Nothing else is written over any of it."""

from __future__ import annotations

import fnmatch
import glob
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dphist.errors import InvalidParameter
from dphist.releases.printing import printable
from dphist.releases.request import Request

# What stands beside a file and belongs to it: the file itself, its certificate, and the journals of databases.
_BESIDE: Final = ("", ".certificate.json", "-journal", "-wal", "-shm", ".wal")


@dataclass(frozen=True)
class Kept:
    """A file, a folder or a glob of files that stays as it is, and what it is to the release.

    With `inside`, nothing new is put into a folder either.
    """

    what: str
    path: str
    inside: bool = True


def kept_for(request: Request, request_file: str | None = None) -> list[Kept]:
    """All files of a request that is about to be carried out."""
    parts = (
        ("the release", request.output), ("the input", request.input), ("the list of items", request.items),
        ("the ledger", request.ledger), ("the request", request_file),
    )  # fmt: skip
    return [Kept(what, path) for what, value in parts for path in _paths(value)]


def kept_of(name: str, certificate: str | None, request: dict[str, Any]) -> list[Kept]:
    """All files of a release that was written, and those that its certificate names, if they are still there."""
    own = [("the release", name), ("its certificate", certificate)]
    named = [("its input", request.get("input")), ("its list of items", request.get("items"))]
    return [
        *(Kept(what, path) for what, value in own for path in _paths(value)),
        # Where a folder of that name is the input or another one, nobody knows: a new file in it does no harm.
        *(
            Kept(what, path, inside=False)
            for what, value in named
            for path in _paths(value)
            if os.path.lexists(path) or glob.has_magic(path)
        ),
    ]


def refuse_overwriting(path: str | os.PathLike[str], kept: Sequence[Kept]) -> None:
    """Raise `InvalidParameter` if a file of this name is one of those that stay, or would be among them."""
    name = os.fspath(path)
    for one in kept:
        for place in _places(one):
            if any(same_file(name, place.rstrip("/") + end) for end in _BESIDE):
                raise InvalidParameter(f"{printable(name)} cannot be written: it is {one.what}, or belongs to it")
            if one.inside and _is_inside(name, place):
                raise InvalidParameter(f"{printable(name)} cannot be written: it would be inside {one.what}")
        # What is not there yet would be read the next time.
        if glob.has_magic(one.path) and fnmatch.fnmatchcase(os.path.abspath(name), os.path.abspath(one.path)):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be a part of {one.what}")


def refuse_own_input(request: Request, target: Any) -> None:
    """Raise `InvalidParameter` if a release would replace what it is made of. A database may hold both."""
    if target is None or target.is_database or "://" in target.address:
        return
    for one in (*_paths(request.input), *_paths(request.items)):
        for place in _places(Kept("", one)):
            if any(same_file(str(path), place) for path in (target.path, target.certificate_path)):
                raise InvalidParameter(
                    f"the release cannot be written to {printable(target.address)}, which it is made of"
                )


def _paths(value: Any) -> Iterator[str]:
    """The names of files of this machine; a frame or a server has none."""
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from _paths(one)
    elif isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if isinstance(path, str) and path and "\0" not in path and _is_name(path):
            path = path.removeprefix("file://")
            if "://" not in path:
                yield path


def _is_name(text: str) -> bool:
    """Whether a file can be called so: half a surrogate pair may be in a certificate, but in no name."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _places(kept: Kept) -> Iterator[str]:
    """What has the name itself, and the files of a glob; a certificate's glob is not let loose on the disk."""
    yield kept.path
    if kept.inside and glob.has_magic(kept.path):
        yield from glob.iglob(kept.path, recursive=True)


def same_file(first: str, second: str) -> bool:
    """Whether two names stand for one file: by links of either kind, or by name where it is not there yet."""
    try:
        if os.path.samefile(first, second):
            return True
    except (OSError, ValueError):
        pass
    return _place(first) == _place(second)


def _place(path: str) -> tuple[Any, str]:
    """The folder of a file and its name in it; not every disk tells A from a, or a letter from its parts."""
    folder, name = os.path.split(os.path.realpath(path))
    try:
        found = os.stat(folder)
    except OSError:
        return folder, name
    return (found.st_dev, found.st_ino), unicodedata.normalize("NFC", name).casefold()


def _is_inside(name: str, folder: str) -> bool:
    """Whether a name is below a folder, which may not be there yet."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        return False
    # Where it leads to, and where it stands if it is a link: that is what would be replaced.
    beside = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(name))), os.path.basename(name))
    above = {*Path(os.path.realpath(name)).parents, *Path(beside).parents}
    return any(same_file(str(one), folder) for one in above)
