"""Files that neither a release nor its report may replace: the input, the list of items, the release itself."""

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
from dphist.objects import beside, is_object, without_options
from dphist.releasing.request import Request

# The file itself, its certificate, and the journals of databases.
_BESIDE: Final = ("", ".certificate.json", "-journal", "-wal", "-shm", ".wal")


@dataclass(frozen=True)
class Kept:
    """A file, folder or glob in which nothing new may be written, and what it is for the release."""

    what: str
    path: str


def kept_for(request: Request) -> list[Kept]:
    """What the report of a requested release must not replace."""
    parts = (
        ("the release", request.output), ("the input", request.input), ("the list of items", request.items),
    )  # fmt: skip
    return [Kept(what, path) for what, value in parts for path in local_paths(value)]


def kept_of(name: str, certificate: str | None) -> list[Kept]:
    """What the report of a written release must not replace."""
    parts = (("the release", name), ("its certificate", certificate))
    return [Kept(what, path) for what, value in parts for path in local_paths(value)]


def refuse_overwriting(path: str | os.PathLike[str], kept: Sequence[Kept]) -> None:
    """Raise `InvalidParameter` if a file of this name is protected, or would become part of what is."""
    name = os.fspath(path)
    for one in kept:
        if any(same_file(name, one.path.rstrip("/") + end) for end in _BESIDE):
            raise InvalidParameter(f"{printable(name)} cannot be written: it is {one.what}, or belongs to it")
        if _is_inside(name, one.path):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be inside {one.what}")
        # A new file would be read the next time.
        if glob.has_magic(one.path) and _matches(_steps(name), _steps(one.path)):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be a part of {one.what}")


def refuse_own_input(request: Request, target: Any) -> None:
    """Raise `InvalidParameter` if a release would replace its own input. A database may hold both."""
    if target is None:
        return
    if target.is_object:
        taken = any(_is_same_object(target.address, one) for one in given_objects(request))
    elif target.is_database:
        taken = _takes_table(request.input, target, request.table, request.query)
        taken = taken or _takes_table(request.items, target, None, None)
    else:
        made_of = [
            one for path in (*local_paths(request.input), *local_paths(request.items)) for one in _files(path)
        ]
        made_of += local_paths(request.sign)
        # Also by another name of the same file. A file that does not exist yet cannot be lost.
        taken = any(_is_same(path, one) for path in _own_files(target) for one in made_of)
    if taken:
        raise InvalidParameter(
            f"the release cannot be written to {printable(target.title())}, which it is made of"
        )


def given_objects(request: Request) -> list[str]:
    """The addresses in object stores that a release is made of."""
    sources = [one if isinstance(one, (tuple, list)) else [one] for one in (request.input, request.items)]
    return [one for source in sources for one in source if is_object(one)]


def _is_same_object(written: str, read: str) -> bool:
    """Whether an object, or its certificate, is among those that an address stands for."""
    source = without_options(read).rstrip("/")
    names = [without_options(beside(written, ending)) for ending in ("", ".certificate.json")]
    return any(
        name == source or name.startswith(source + "/") or _matches(name.split("/"), source.split("/"))
        for name in names
    )


def _own_files(target: Any) -> list[str]:
    """The files of a release and its certificate, or the folder."""
    if target.kind == "folder":
        return list(local_paths(target.address))
    return [*([] if target.is_stdout else [str(target.path)]), str(target.certificate_path)]


def _takes_table(source: Any, target: Any, table: str | None, query: str | None) -> bool:
    """Whether a release would write one of the tables that are read."""
    if not _is_same_database(source, target):
        return False
    written = [_table(name) for name in (target.table_name, target.certificate_table)]
    if table is not None:
        return _table(table) in written
    if query is not None:
        # Only the database can tell which tables a query reads: a query with the name in it counts as reading it.
        return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query.casefold()) for name in written)
    # Without a name the only table is read: if one of these exists, it is that one.
    return any(_exists(target, name) for name in (target.table_name, target.certificate_table))


def _table(name: str) -> str:
    """A table without its schema; DuckDB and SQLite ignore case."""
    return name.rpartition(".")[2].strip('"').casefold()


def _is_same_database(source: Any, target: Any) -> bool:
    if target.kind == "postgresql":
        return isinstance(source, str) and _server(source) == _server(target.address)
    return any(_is_same(str(target.path), path) for path in local_paths(source))


def _server(address: str) -> str | None:
    """Host and database of a PostgreSQL address, without the user."""
    found = re.match(r"postgres(?:ql)?://([^?]*)", address, re.IGNORECASE)
    return None if found is None else found[1].rpartition("@")[2].rstrip("/")


def _exists(target: Any, table: str) -> bool:
    from dphist.outputs.stores import open_store

    try:
        with open_store(target.kind, target.address) as store:
            return store.find(table) is not None
    except DphistError:
        return False  # a database that cannot be opened cannot be written either


def local_paths(value: Any) -> Iterator[str]:
    """The local paths of an input; a frame or a server has none."""
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from local_paths(one)
    elif isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if isinstance(path, str) and path and "\0" not in path:
            # Spark's form: file:/path, file:///path or file://host/path.
            path = re.sub(r"^file:(//[^/]*)?(?=/)", "", path)
            if "://" not in path:
                yield path


def _files(path: str) -> list[str]:
    """The path itself, and the files that are read from a folder or a glob."""
    from dphist.counting.files import matching_files

    try:
        return [path, *matching_files(path)]
    except (DphistError, OSError):
        return [path]  # cannot be read: the engine says so


def _is_same(first: str, second: str) -> bool:
    """Whether two names are one existing file, through links of either kind."""
    try:
        return os.path.samefile(first, second)
    except (OSError, ValueError):
        return False


def same_file(first: str, second: str) -> bool:
    """Whether two names are one file, or will be once it exists."""
    if os.path.exists(first) and os.path.exists(second):
        return _is_same(first, second)
    return _place(first) == _place(second)


def _place(path: str) -> tuple[Any, str]:
    """The folder of a file and its name in it; some disks ignore case, or how a letter is composed."""
    folder, name = os.path.split(os.path.realpath(path))
    try:
        found = os.stat(folder)
    except OSError:
        return folder, name
    return (found.st_dev, found.st_ino), unicodedata.normalize("NFC", name).casefold()


def _is_inside(name: str, folder: str) -> bool:
    """Whether a name is below a folder, which may not exist yet."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        return False
    # Where it leads, and where it is if it is a link: the link would be replaced.
    beside = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(name))), os.path.basename(name))
    above = {*Path(os.path.realpath(name)).parents, *Path(beside).parents}
    return any(same_file(str(one), folder) for one in above)


def _steps(path: str) -> list[str]:
    """Folders and name; for a link its own place, as a glob finds it."""
    return os.path.abspath(path).split(os.sep)


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a glob finds this name: * ends at a slash, ** is any number of folders."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(name[start:], pattern[1:]) for start in range(len(name) + 1)) or len(pattern) == 1
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])
