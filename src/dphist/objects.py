"""Objects in S3 and Google Cloud Storage, through Arrow's own file systems and their usual credentials.

An address is s3://BUCKET/KEY or gs://BUCKET/KEY, with options of Arrow after a question mark, such as
`?endpoint_override=localhost:9000&scheme=http`. Objects are read and written whole.
"""

from __future__ import annotations

import errno
import fnmatch
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from dphist.errors import DphistError, InputError, package

T = TypeVar("T")

_ADDRESS: Final = re.compile(r"(s3|gs|gcs)://", re.IGNORECASE)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Schemes whose addresses have the name of a container before the @, and not a key.
_NAMED: Final = {"abfs", "abfss", "wasb", "wasbs"}
# Options of PostgreSQL that may be repeated.
_PUBLIC_OPTIONS: Final = {"host", "port", "dbname", "user", "sslmode"}
_BLOCK: Final = 1 << 20
_UNREACHABLE: Final = "check the address, the region and the credentials"


def is_object(address: object) -> bool:
    """Whether it is an address in an object store."""
    return isinstance(address, str) and _ADDRESS.match(address) is not None


def without_options(address: str) -> str:
    """The address of an object without the options of its store."""
    return address.partition("?")[0] if is_object(address) else address


def name_of(address: str) -> str:
    """The last part of the name of an object."""
    return without_options(address).rstrip("/").rpartition("/")[2]


def beside(address: str, ending: str) -> str:
    """The address of another object, whose name is longer by the ending."""
    plain, mark, options = address.partition("?")
    return f"{plain}{ending}{mark}{options}"


def is_postgres(address: str) -> bool:
    """Whether it is the address of a PostgreSQL server."""
    return address.lower().startswith(("postgresql://", "postgres://"))


def scheme_of(address: object) -> str | None:
    """The scheme of an address; None for a path."""
    found = _SCHEME.match(address) if isinstance(address, str) else None
    return None if found is None else found[1]


def without_secrets(address: str) -> str:
    """An address as it may be shown and recorded: without keys, passwords and options; a path as it is."""
    found = _SCHEME.match(address)
    if found is None:
        return address
    if is_postgres(address):
        return _postgres_without_password(address)
    # A secret may hold / and @ too, so that it ends at the last @.
    before, at, place = address[found.end() :].rpartition("@")
    if "?" in before:
        # Either a secret with a question mark, or an option with an @: it is unknown which.
        return f"{found[0]}..."
    if at and found[1].lower() in _NAMED and re.fullmatch(r"[^/:@]*", before):
        place = f"{before}@{place}"  # abfss://container@account
    return found[0] + place.partition("?")[0]


def _postgres_without_password(address: str) -> str:
    """With the user, the server, the database and harmless options: a password can also stand among options."""
    scheme, _, rest = address.partition("://")
    # As libpq reads it: a user only where an @ comes before the first slash.
    before = re.match(r"[^@/]*@", rest)
    user = ""
    if before is not None:
        user, rest = before[0][:-1].partition(":")[0] + "@", rest[before.end() :]
    host, _, options = rest.partition("?")
    host = host.rpartition("@")[2]
    # A password with a slash in it: what looks like a port is the beginning of the password.
    server, colon, port = host.partition("/")[0].rpartition(":")
    if colon and not port.endswith("]") and (not re.fullmatch(r"\d*", port) or "@" in options):
        host = server
    pairs = [pair for pair in options.split("&") if unquote(pair.partition("=")[0]) in _PUBLIC_OPTIONS]
    return f"{scheme}://{user}{host}" + ("?" + "&".join(pairs) if pairs else "")


def open_store(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    store, path = _try(lambda: package("pyarrow.fs").FileSystem.from_uri(address), address)
    return store, path


def _try(action: Callable[[], T], address: str, done: str = "read") -> T:
    """The action's result; its failure is one sentence, without the text of the store, which may repeat a key."""
    try:
        return action()
    except DphistError:
        raise
    except FileNotFoundError:
        sentence = f"there is no object {without_secrets(address)}"
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        sentence = f"{without_secrets(address)} cannot be {done}: {_UNREACHABLE}"
    raise InputError(sentence)


def exists(address: str) -> bool:
    """Whether there is an object, or a folder, of this address."""
    store, path = open_store(address)
    return bool(_try(lambda: store.get_file_info(path), address).type != package("pyarrow.fs").FileType.NotFound)


def copy_objects(address: str, folder: Path) -> list[str]:
    """Local copies of an object, of all objects in a folder, or of those that match a pattern with * in it.

    They have the same names below `folder`, so that folders named key=value are found there too.
    """
    plain, mark, options = address.partition("?")
    fixed = plain if "*" not in plain else plain[: plain.index("*")].rpartition("/")[0]
    store, start = open_store(f"{fixed}{mark}{options}")
    fs = package("pyarrow.fs")
    found = _try(lambda: store.get_file_info(start), address)
    if found.type == fs.FileType.NotFound:
        raise InputError(f"there is no object {without_secrets(address)}")
    paths = [start]
    if found.type == fs.FileType.Directory:
        listed = _try(lambda: store.get_file_info(fs.FileSelector(start, recursive=True)), address)
        paths = sorted(one.path for one in listed if one.type == fs.FileType.File)
        if "*" in plain:
            pattern = (start.rstrip("/") + plain[len(fixed) :]).split("/")
            paths = [path for path in paths if matches_pattern(path.split("/"), pattern)]
        else:
            paths = [path for path in paths if not _is_hidden(path, start)]
        if not paths:
            raise InputError(f"there is no object {without_secrets(address)}")
    return [str(_copy(store, path, folder, address)) for path in paths]


def matches_pattern(path: list[str], pattern: list[str]) -> bool:
    """Whether a path matches: * ends at a slash, ** is any number of folders."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(matches_pattern(path[start:], pattern[1:]) for start in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and matches_pattern(path[1:], pattern[1:])


def _is_hidden(path: str, start: str) -> bool:
    """Names that begin with a dot or an underscore are other programs' notes, as in local folders."""
    return any(part.startswith((".", "_")) for part in path[len(start) :].strip("/").split("/"))


def _copy(store: Any, path: str, folder: Path, address: str) -> Path:
    parts = PurePosixPath(path).parts
    if ".." in parts or path.startswith("/") or "\0" in path:
        raise InputError(f"{without_secrets(address)} has an object whose name is not that of a file")
    local = folder.joinpath(*parts)

    def copy() -> None:
        local.parent.mkdir(parents=True, exist_ok=True)
        # As it is: Arrow would unpack what ends in .gz.
        with store.open_input_stream(path, compression=None) as source, local.open("xb") as file:
            shutil.copyfileobj(source, file, _BLOCK)

    _try(copy, address)
    return local


def write_object(address: str, data: bytes) -> None:
    """Write an object as a whole, or not at all."""
    store, path = open_store(address)

    def state() -> tuple[Any, ...]:
        found = store.get_file_info(path)
        return found.type, found.size, found.mtime_ns

    def write() -> None:
        before = state()
        try:
            with store.open_output_stream(path, compression=None) as stream:
                stream.write(data)
        except BaseException:
            # Closing a stream can make an object of the parts that were written; an older object stays.
            with suppress(Exception):
                if state() != before:
                    store.delete_file(path)
            raise

    _try(write, address, "written")


def remove_object(address: str) -> None:
    """Remove an object, if it is there."""
    store, path = open_store(address)
    if exists(address):
        _try(lambda: store.delete_file(path), address, "removed")
