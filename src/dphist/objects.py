"""Objects in S3 and Google Cloud Storage, through Arrow's file systems and their usual credentials.

An address is s3://BUCKET/KEY or gs://BUCKET/KEY, optionally with options for Arrow, such as
`?endpoint_override=localhost:9000&scheme=http`. Objects are read and written as a whole.
"""

from __future__ import annotations

import errno
import fnmatch
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar
from urllib.parse import unquote

from dphist.errors import DphistError, InputError, package

if TYPE_CHECKING:
    from pyarrow import fs

T = TypeVar("T")

_ADDRESS: Final = re.compile(r"(s3|gs|gcs)://", re.IGNORECASE)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Schemes with the name of a container before the @, not a key.
_CONTAINER: Final = {"abfs", "abfss", "wasb", "wasbs"}
# PostgreSQL options that hold no secret.
_PUBLIC_OPTIONS: Final = {"host", "port", "dbname", "user", "sslmode"}
_BLOCK: Final = 1 << 20
# Seconds. A store may say without end that there are more objects.
_LONGEST_LISTING: Final = 600.0


def is_object(address: object) -> TypeGuard[str]:
    return isinstance(address, str) and _ADDRESS.match(address) is not None


def without_options(address: str) -> str:
    """The address of an object without its options; other addresses unchanged."""
    return address.partition("?")[0] if is_object(address) else address


def name_of(address: str) -> str:
    return without_options(address).rstrip("/").rpartition("/")[2]


def beside(address: str, ending: str) -> str:
    """The address of the object whose name has this ending in addition."""
    plain, mark, options = address.partition("?")
    return f"{plain}{ending}{mark}{options}"


def is_postgres(address: str) -> bool:
    return address.lower().startswith(("postgresql://", "postgres://"))


def scheme_of(address: object) -> str | None:
    """The scheme of an address; None for a path."""
    match = _SCHEME.match(address) if isinstance(address, str) else None
    return None if match is None else match[1]


def without_secrets(address: str) -> str:
    """An address that is safe to show and record: without keys, passwords and options. Paths are unchanged."""
    match = _SCHEME.match(address)
    if match is None:
        return address
    if is_postgres(address):
        return _postgres_without_password(address)
    # A secret may contain / and @, so it ends at the last @.
    before, at, place = address[match.end() :].rpartition("@")
    if "?" in before:
        # A secret with a question mark and an option with an @ look the same.
        return f"{match[0]}..."
    if at and match[1].lower() in _CONTAINER and re.fullmatch(r"[^/:@]*", before):
        place = f"{before}@{place}"  # abfss://container@account
    return match[0] + place.partition("?")[0]


def _postgres_without_password(address: str) -> str:
    """User, server, database and options that hold no secret."""
    scheme, _, rest = address.partition("://")
    # As libpq reads it: there is a user only if an @ comes before the first slash.
    before = re.match(r"[^@/]*@", rest)
    user = ""
    if before is not None:
        user, rest = before[0][:-1].partition(":")[0] + "@", rest[before.end() :]
    host, _, options = rest.partition("?")
    host = host.rpartition("@")[2]
    # In a password with a slash, the apparent port is the beginning of the password.
    server, colon, port = host.partition("/")[0].rpartition(":")
    if colon and not port.endswith("]") and (not re.fullmatch(r"\d*", port) or "@" in options):
        host = server
    pairs = [pair for pair in options.split("&") if unquote(pair.partition("=")[0]) in _PUBLIC_OPTIONS]
    return f"{scheme}://{user}{host}" + ("?" + "&".join(pairs) if pairs else "")


def open_store(address: str) -> tuple[fs.FileSystem, str]:
    """The file system of an address and the path in it."""
    store, path = _try(lambda: package("pyarrow.fs").FileSystem.from_uri(address), address)
    return store, path


def _try(action: Callable[[], T], address: str, done: str = "read") -> T:
    """Run an action; its errors become one sentence, because the store's own text may contain a key."""
    try:
        return action()
    except DphistError:
        raise
    except FileNotFoundError:
        message = f"there is no object {without_secrets(address)}"
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        message = f"{without_secrets(address)} cannot be {done}: check the address, the region and the credentials"
    # Outside of the handler, so that the store's error is not its context.
    raise InputError(message)


def exists(address: str) -> bool:
    """Whether there is an object or a folder at this address."""
    store, path = open_store(address)
    return bool(_try(lambda: store.get_file_info(path), address).type != package("pyarrow.fs").FileType.NotFound)


def copy_objects(address: str, folder: Path) -> list[str]:
    """Copy an object, the objects in a folder, or those that match a pattern with *; returns the local paths.

    The copies keep their names below `folder`, so that partitions such as key=value are found there too.
    """
    plain, mark, options = address.partition("?")
    fixed = plain if "*" not in plain else plain[: plain.index("*")].rpartition("/")[0]
    store, start = open_store(f"{fixed}{mark}{options}")
    types = package("pyarrow.fs").FileType
    kind = _try(lambda: store.get_file_info(start), address).type
    paths = [] if kind == types.NotFound else [start]
    if kind == types.Directory:
        entries = _entries_below(store, start, address)
        paths = sorted(entry.path for entry in entries if entry.type == types.File)
        if "*" in plain:
            pattern = (start.rstrip("/") + plain[len(fixed) :]).split("/")
            paths = [path for path in paths if matches_pattern(path.split("/"), pattern)]
        else:
            paths = [path for path in paths if not _is_hidden(path, start)]
    if not paths:
        raise InputError(f"there is no object {without_secrets(address)}")
    return [str(_copy(store, path, folder, address)) for path in paths]


def _entries_below(store: fs.FileSystem, start: str, address: str) -> list[fs.FileInfo]:
    """All objects below a folder. Raises `InputError` if the list is not complete after `_LONGEST_LISTING`."""
    found: list[fs.FileInfo] = []
    failed: list[BaseException] = []
    selector = package("pyarrow.fs").FileSelector(start, recursive=True)

    def read() -> None:
        try:
            found.extend(_try(lambda: store.get_file_info(selector), address))
        except BaseException as error:
            failed.append(error)

    # In a thread that may be left behind: Arrow's client cannot be asked to stop.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(_LONGEST_LISTING)
    if reader.is_alive():
        raise InputError(
            f"the list of objects at {without_secrets(address)} is not complete after {_LONGEST_LISTING:g} "
            "seconds: give a folder with fewer objects"
        )
    if failed:
        raise failed[0]
    return found


def matches_pattern(path: list[str], pattern: list[str]) -> bool:
    """Match a path against a pattern, step by step; `**` stands for any number of folders."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(matches_pattern(path[start:], pattern[1:]) for start in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and matches_pattern(path[1:], pattern[1:])


def _is_hidden(path: str, start: str) -> bool:
    """Whether a name below `start` begins with a dot or an underscore, as other programs' notes do."""
    return any(part.startswith((".", "_")) for part in path[len(start) :].strip("/").split("/"))


def _copy(store: fs.FileSystem, path: str, folder: Path, address: str) -> Path:
    parts = PurePosixPath(path).parts
    if ".." in parts or path.startswith("/") or "\0" in path:
        raise InputError(f"{without_secrets(address)} has an object whose name is not a valid file name")
    local = folder.joinpath(*parts)

    def copy() -> None:
        local.parent.mkdir(parents=True, exist_ok=True)
        # By default Arrow would unpack names that end in .gz.
        with store.open_input_stream(path, compression=None) as source, local.open("xb") as file:
            shutil.copyfileobj(source, file, _BLOCK)

    _try(copy, address)
    return local


def write_object(address: str, data: bytes) -> None:
    """Write an object as a whole, or not at all."""
    store, path = open_store(address)

    def state() -> tuple[object, ...]:
        info = store.get_file_info(path)
        return info.type, info.size, info.mtime_ns

    def write() -> None:
        before = state()
        try:
            with store.open_output_stream(path, compression=None) as stream:
                stream.write(data)
        except BaseException:
            # Closing a stream may create an object from the parts written so far; an older object stays.
            with suppress(Exception):
                if state() != before:
                    store.delete_file(path)
            raise

    _try(write, address, "written")


def remove_object(address: str) -> None:
    store, path = open_store(address)
    if exists(address):
        _try(lambda: store.delete_file(path), address, "removed")
