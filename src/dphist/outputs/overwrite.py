"""Files and tables that must not be overwritten: the input, the list of items, the key, the release itself."""

from __future__ import annotations

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
from dphist.objects import beside, is_object, matches_pattern, without_options
from dphist.outputs.stores import open_store
from dphist.outputs.target import CERTIFICATE, Target
from dphist.publishing import PathLike

# The file itself, its certificate, and the journals of databases.
_ENDINGS: Final = ("", CERTIFICATE, "-journal", "-wal", "-shm", ".wal")


@dataclass(frozen=True)
class Kept:
    """A file, folder or glob in which no new file may be written, and how messages call it."""

    what: str
    path: str


def kept_files(release: Any, certificate: Any = None, input: Any = None, items: Any = None) -> list[Kept]:
    """The files that the report of a release must not overwrite."""
    parts = {
        "the release": release,
        "its certificate": certificate,
        "the input": input,
        "the list of items": items,
    }
    return [Kept(what, path) for what, value in parts.items() for path in local_paths(value)]


def refuse_overwriting(path: PathLike, kept: Sequence[Kept]) -> None:
    """Raise `InvalidParameter` if a file is kept, or would become part of a kept folder or glob."""
    name = os.fspath(path)
    for keep in kept:
        if any(same_file(name, keep.path.rstrip("/") + ending) for ending in _ENDINGS):
            raise InvalidParameter(f"{printable(name)} cannot be written: it is {keep.what}, or belongs to it")
        if _is_inside(name, keep.path):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be inside {keep.what}")
        # The next run would read the new file as input.
        if glob.has_magic(keep.path) and matches_pattern(_steps(name), _steps(keep.path)):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be part of {keep.what}")


def refuse_own_input(
    target: Target,
    input: Any,
    items: Any = None,
    *,
    table: str | None = None,
    query: str | None = None,
    key: Any = None,
) -> None:
    """Raise `InvalidParameter` if a release would overwrite its own input. One database may hold both.

    `table` and `query` are those of the input, `key` is the file of the private key.
    """
    if target.is_object:
        sources = [source if isinstance(source, (tuple, list)) else [source] for source in (input, items)]
        addresses = [address for source in sources for address in source if is_object(address)]
        taken = any(_is_among_objects(target.address, address) for address in addresses)
    elif target.is_database:
        taken = _is_read(input, target, table, query) or _is_read(items, target, None, None)
    else:
        read = [file for path in (*local_paths(input), *local_paths(items)) for file in _files(path)]
        written = [*([] if target.is_stdout else local_paths(target.address)), str(target.certificate_path)]
        # Compared as files, not as names: a link may lead to the input.
        taken = any(_is_same(path, file) for path in written for file in (*read, *local_paths(key)))
    if taken:
        raise InvalidParameter(
            f"cannot write the release to {printable(target.title())}: it is the input, the list of items or the "
            "key; choose another output"
        )


def _is_among_objects(written: str, read: str) -> bool:
    """Whether an object, or its certificate, is one of those that an address stands for."""
    source = without_options(read).rstrip("/")
    names = [without_options(beside(written, ending)) for ending in ("", CERTIFICATE)]
    return any(
        name == source or name.startswith(source + "/") or matches_pattern(name.split("/"), source.split("/"))
        for name in names
    )


def _is_read(source: Any, target: Target, table: str | None, query: str | None) -> bool:
    """Whether the release reads one of the tables that it writes."""
    if target.kind == "postgresql":
        same = isinstance(source, str) and _server(source) == _server(target.address)
    else:
        same = any(_is_same(target.address, path) for path in local_paths(source))
    if not same:
        return False
    written = (target.table_name, target.certificate_table)
    names = [_plain_table(name) for name in written]
    if table is not None:
        return _plain_table(table) in names
    if query is not None:
        # Only the database knows which tables a query reads, so a query that contains the name counts.
        return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query.casefold()) for name in names)
    # Without a name the only table is read: if a written one exists, it is that one.
    return any(_exists(target, name) for name in written)


def _plain_table(name: str) -> str:
    """A table without its schema; DuckDB and SQLite ignore case."""
    return name.rpartition(".")[2].strip('"').casefold()


def _server(address: str) -> str | None:
    """Host and database of a PostgreSQL address, without the user."""
    match = re.match(r"postgres(?:ql)?://([^?]*)", address, re.IGNORECASE)
    return None if match is None else match[1].rpartition("@")[2].rstrip("/")


def _exists(target: Target, table: str) -> bool:
    try:
        with open_store(target.kind, target.address) as store:
            return store.find(table) is not None
    except DphistError:
        return False  # a database that cannot be opened cannot be written either


def local_paths(value: Any) -> Iterator[str]:
    """The local paths of an input; a frame or a server has none."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from local_paths(part)
    elif isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if isinstance(path, str) and path and "\0" not in path:
            # Spark's form: file:/path, file:///path or file://host/path.
            path = re.sub(r"^file:(//[^/]*)?(?=/)", "", path)
            if "://" not in path:
                yield path


def _files(path: str) -> list[str]:
    """The path itself, and the files of a folder or a glob."""
    from dphist.counting.files import matching_files

    try:
        return [path, *matching_files(path)]
    except (DphistError, OSError):
        return [path]  # the engine reports that it cannot be read


def _is_same(first: str, second: str) -> bool:
    """Whether two names are one existing file, also through links."""
    try:
        return os.path.samefile(first, second)
    except (OSError, ValueError):
        return False


def same_file(first: str, second: str) -> bool:
    """Whether two names are one file, or will be once it exists."""
    if os.path.exists(first) and os.path.exists(second):
        return _is_same(first, second)
    return _folder_and_name(first) == _folder_and_name(second)


def _folder_and_name(path: str) -> tuple[Any, str]:
    """Some disks ignore case, or Unicode normalization."""
    folder, name = os.path.split(os.path.realpath(path))
    try:
        status = os.stat(folder)
    except OSError:
        return folder, name
    return (status.st_dev, status.st_ino), unicodedata.normalize("NFC", name).casefold()


def _is_inside(name: str, folder: str) -> bool:
    """Whether a name is below a folder, which may not exist yet."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        return False
    # The target of a link, and the link itself, which would be replaced.
    link = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(name))), os.path.basename(name))
    parents = {*Path(os.path.realpath(name)).parents, *Path(link).parents}
    return any(same_file(str(parent), folder) for parent in parents)


def _steps(path: str) -> list[str]:
    """Folders and name, without following links, as a glob does."""
    return os.path.abspath(path).split(os.sep)
