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
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from dphist.errors import DphistError, InputError, package

T = TypeVar("T")

_ADDRESS: Final = re.compile(r"(s3|gs|gcs)://", re.IGNORECASE)
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


def show(address: str) -> str:
    """The address for a sentence: without a secret key and without options."""
    return re.sub(r"^(\w+://)[^/@]*@", r"\1", without_options(address))


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
        sentence = f"there is no object {show(address)}"
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        sentence = f"{show(address)} cannot be {done}: {_UNREACHABLE}"
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
        raise InputError(f"there is no object {show(address)}")
    paths = [start]
    if found.type == fs.FileType.Directory:
        listed = _try(lambda: store.get_file_info(fs.FileSelector(start, recursive=True)), address)
        paths = sorted(one.path for one in listed if one.type == fs.FileType.File)
        if "*" in plain:
            pattern = (start.rstrip("/") + plain[len(fixed) :]).split("/")
            paths = [path for path in paths if _matches(path.split("/"), pattern)]
        else:
            paths = [path for path in paths if not _is_hidden(path, start)]
        if not paths:
            raise InputError(f"there is no object {show(address)}")
    return [str(_copy(store, path, folder, address)) for path in paths]


def _matches(path: list[str], pattern: list[str]) -> bool:
    """Whether a path matches: * ends at a slash, ** is any number of folders."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(path[start:], pattern[1:]) for start in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _is_hidden(path: str, start: str) -> bool:
    """Names that begin with a dot or an underscore are other programs' notes, as in local folders."""
    return any(part.startswith((".", "_")) for part in path[len(start) :].strip("/").split("/"))


def _copy(store: Any, path: str, folder: Path, address: str) -> Path:
    parts = PurePosixPath(path).parts
    if ".." in parts or path.startswith("/") or "\0" in path:
        raise InputError(f"{show(address)} has an object whose name is not that of a file")
    local = folder.joinpath(*parts)

    def copy() -> None:
        local.parent.mkdir(parents=True, exist_ok=True)
        # As it is: Arrow would unpack what ends in .gz.
        with store.open_input_stream(path, compression=None) as source, local.open("xb") as file:
            shutil.copyfileobj(source, file, _BLOCK)

    _try(copy, address)
    return local


def write_object(address: str, data: bytes) -> None:
    """Write an object as a whole."""
    store, path = open_store(address)

    def write() -> None:
        with store.open_output_stream(path, compression=None) as stream:
            stream.write(data)

    _try(write, address, "written")


def remove_object(address: str) -> None:
    """Remove an object, if it is there."""
    store, path = open_store(address)
    if exists(address):
        _try(lambda: store.delete_file(path), address, "removed")
