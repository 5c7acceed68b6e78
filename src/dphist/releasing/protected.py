"""What a release rests on: its input and its list of items. Neither the release nor its report is put over it."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dphist.display import printable
from dphist.errors import DphistError, InvalidParameter
from dphist.releasing.request import Request

# What stands beside a file and belongs to it: the file itself, its certificate, and the journals of databases.
_BESIDE: Final = ("", ".certificate.json", "-journal", "-wal", "-shm", ".wal")


@dataclass(frozen=True)
class Kept:
    """A file, a folder or a glob of files, into which nothing new is put, and what it is to the release.

    What is there already needs no such list: a report replaces nothing but reports.
    """

    what: str
    path: str


def kept_for(request: Request) -> list[Kept]:
    """Where the release is to be that is about to be made, and what it is made of."""
    parts = (
        ("the release", request.output), ("the input", request.input), ("the list of items", request.items),
    )  # fmt: skip
    return [Kept(what, path) for what, value in parts for path in local_paths(value)]


def kept_of(name: str, certificate: str | None) -> list[Kept]:
    """A release that was written."""
    parts = (("the release", name), ("its certificate", certificate))
    return [Kept(what, path) for what, value in parts for path in local_paths(value)]


def refuse_overwriting(path: str | os.PathLike[str], kept: Sequence[Kept]) -> None:
    """Raise `InvalidParameter` if a file of this name is one of those that stay, or would be among them."""
    name = os.fspath(path)
    for one in kept:
        if any(same_file(name, one.path.rstrip("/") + end) for end in _BESIDE):
            raise InvalidParameter(f"{printable(name)} cannot be written: it is {one.what}, or belongs to it")
        if _is_inside(name, one.path):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be inside {one.what}")
        # What is not there yet would be read the next time.
        if glob.has_magic(one.path) and _matches(_steps(name), _steps(one.path)):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be a part of {one.what}")


def refuse_own_input(request: Request, target: Any) -> None:
    """Raise `InvalidParameter` if a release would replace what it is made of. A database may hold both."""
    if target is None:
        return
    if target.is_database:
        taken = _takes_table(request.input, target, request.table, request.query)
        taken = taken or _takes_table(request.items, target, None, None)
    else:
        made_of = [
            one for path in (*local_paths(request.input), *local_paths(request.items)) for one in _files(path)
        ]
        made_of += local_paths(request.sign)
        # Under another name of the same file too; where no file is, there is none to be lost.
        taken = any(_is_same(path, one) for path in _own_files(target) for one in made_of)
    if taken:
        raise InvalidParameter(
            f"the release cannot be written to {printable(target.title())}, which it is made of"
        )


def _own_files(target: Any) -> list[str]:
    """The files that a release and its certificate take the place of, or the folder."""
    if target.kind == "folder":
        return list(local_paths(target.address))
    return [str(target.path), str(target.certificate_path)]


def _takes_table(source: Any, target: Any, table: str | None, query: str | None) -> bool:
    """Whether the tables that a release writes are among those that are read."""
    if not _is_same_database(source, target):
        return False
    written = [_table(name) for name in (target.table_name, target.certificate_table)]
    if table is not None:
        return _table(table) in written
    if query is not None:
        # Which tables a query reads only the database knows: one that has the name in it is taken to read it.
        return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query.casefold()) for name in written)
    # Without a name the only table there is gets read: if one of these is there, it is that one.
    return any(_exists(target, name) for name in (target.table_name, target.certificate_table))


def _table(name: str) -> str:
    """A table without its schema; DuckDB and SQLite do not tell A from a."""
    return name.rpartition(".")[2].strip('"').casefold()


def _is_same_database(source: Any, target: Any) -> bool:
    if target.kind == "postgresql":
        return isinstance(source, str) and _server(source) == _server(target.address)
    return any(_is_same(str(target.path), path) for path in local_paths(source))


def _server(address: str) -> str | None:
    """Host and database of an address of PostgreSQL, whoever asks."""
    found = re.match(r"postgres(?:ql)?://([^?]*)", address, re.IGNORECASE)
    return None if found is None else found[1].rpartition("@")[2].rstrip("/")


def _exists(target: Any, table: str) -> bool:
    from dphist.outputs.stores import store_of

    try:
        store = store_of(target.kind, target.address, writing=False)
        try:
            return store.find(table) is not None
        finally:
            store.close()
    except DphistError:
        return False  # a database that cannot be opened is not written either


def local_paths(value: Any) -> Iterator[str]:
    """The names of files of this machine; a frame or a server has none."""
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from local_paths(one)
    elif isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if isinstance(path, str) and path and "\0" not in path:
            # As Spark has it: file:/path, file:///path or file://host/path.
            path = re.sub(r"^file:(//[^/]*)?(?=/)", "", path)
            if "://" not in path:
                yield path


def _files(path: str) -> list[str]:
    """The folder or the file itself, and the files that are read of a folder or a glob."""
    from dphist.counting.files import matching

    try:
        return [path, *matching(path)]
    except (DphistError, OSError):
        return [path]  # which cannot be read: the engine says so


def _is_same(first: str, second: str) -> bool:
    """Whether two names stand for one file that is there, by links of either kind."""
    try:
        return os.path.samefile(first, second)
    except (OSError, ValueError):
        return False


def same_file(first: str, second: str) -> bool:
    """Whether two names stand for one file, or will once it is there."""
    if os.path.exists(first) and os.path.exists(second):
        return _is_same(first, second)
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


def _steps(path: str) -> list[str]:
    """Folders and name; of a link the place where it stands, as a glob finds it."""
    return os.path.abspath(path).split(os.sep)


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a glob finds this name: a * ends at a slash, and ** is any number of folders, or none."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(name[start:], pattern[1:]) for start in range(len(name) + 1)) or len(pattern) == 1
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])
