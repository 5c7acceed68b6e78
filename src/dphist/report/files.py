"""Reports and figures as files: checked before any work is done, and written all or none."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dphist.display import printable
from dphist.errors import InvalidParameter, OutputError
from dphist.publishing import identity, keep_old, link_new
from dphist.report.charts import PNG_MARK, SVG_MARK, require_plotting

# By these marks dphist recognises its own reports and figures: it replaces nothing else.
PAGE_MARK: Final = '<meta name="generator" content="dphist report">'
TEXT_MARK: Final = "This is a report by dphist."
MARKDOWN_MARK: Final = "<!-- dphist report -->"
PLOTS: Final = (".png", ".svg", ".html")
# The marks are near one end of a file; of a long one no more is read.
_HEAD: Final = 4096
_TAIL: Final = 256


def is_replaceable(path: Path) -> bool:
    """Whether a file is a report or a figure that dphist made, or is empty."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        tail = file.read(_TAIL)
    if not head:
        return True
    last = tail.rstrip(b"\r\n").rpartition(b"\n")[2].rstrip(b"\r")
    return (
        (head.startswith(b"<!doctype html>") and PAGE_MARK.encode() in head)
        or (head.startswith(b"<svg ") and SVG_MARK.encode() in head)
        or (head.startswith(b"\x89PNG\r\n") and PNG_MARK in head)
        or last in (TEXT_MARK.encode(), MARKDOWN_MARK.encode())
    )


def check_plot(path: Path, *, force: bool) -> None:
    """Refuse a file that no plot can be written to, before any work is done."""
    if path.suffix.lower() not in PLOTS:
        raise InvalidParameter(f"the plot must end in {', '.join(PLOTS)}, not {path.name!r}")
    if not path.resolve().parent.is_dir():
        raise InvalidParameter(f"the folder of the plot {str(path)!r} does not exist")
    if path.is_dir():
        raise InvalidParameter(f"the plot {str(path)!r} is a folder")
    if os.path.lexists(path) and not force:
        raise OutputError(f"the plot {str(path)!r} already exists; --force replaces it")
    require_plotting()


def check_place(path: Path, *, force: bool, only_reports: bool = False) -> None:
    """Refuse a file that cannot be written or already exists.

    With `only_reports`, `force` replaces only earlier reports and their figures: a report never destroys anything
    else, whatever its name.
    """
    name = printable(str(path))
    try:
        if not path.parent.is_dir():
            raise OutputError(f"the folder of the report {name!r} does not exist")
        if path.is_dir():
            raise OutputError(f"the report {name!r} is a folder")
        if not os.path.lexists(path):
            return
        if not force:
            raise OutputError(f"the report {name!r} already exists; --force replaces it")
        # A pipe or a device is used by others too. A link that leads nowhere is only a name.
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise OutputError(f"the report {name!r} is not a file")
        if only_reports and path.exists() and not is_replaceable(path):
            raise InvalidParameter(
                f"{name} cannot be written: it already exists and is not a report of dphist; remove it yourself"
            )
    except InvalidParameter:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a valid file name"
        raise OutputError(f"the report {name!r} cannot be written: {reason}") from None


@contextmanager
def new_folder(folder: Path | None) -> Iterator[None]:
    """Make a folder, and those above it, for what is written within; if that fails they are removed again."""
    missing = [] if folder is None else [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
    try:
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                name = printable(str(folder))
                raise OutputError(f"the folder {name!r} cannot be created: {error.strerror}") from None
        yield
    except BaseException:
        for one in missing:
            with suppress(OSError):
                one.rmdir()
        raise


def encode_report(content: str) -> bytes:
    """A report as the content of a file."""
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise OutputError("the report has characters that UTF-8 cannot encode") from None


@dataclass(frozen=True)
class _Piece:
    """A new file beside its place, and where an older one is kept meanwhile."""

    new: Path
    path: Path
    old: Path


def write_files(contents: Mapping[Path, bytes], *, force: bool, only_reports: bool = False) -> None:
    """Write all files, or leave everything as it was. Each is made beside its place, and then gets its name."""
    made: list[_Piece] = []
    placed: list[tuple[_Piece, tuple[int, int]]] = []
    try:
        for path, content in contents.items():
            check_place(path, force=force, only_reports=only_reports)
            hidden = f".dphist-{secrets.token_hex(8)}"
            made.append(_Piece(path.parent / hidden, path, path.parent / f"{hidden}-old"))
            with made[-1].new.open("xb") as file:
                file.write(content)
        for piece in made:
            # Recorded first: after an interruption the file itself shows whether it was placed.
            placed.append((piece, identity(piece.new)))
            _place(piece, force=force)
    except BaseException as error:
        for piece, written in reversed(placed):
            _withdraw(piece, written)
        if not isinstance(error, OSError):
            raise
        named = placed[-1][0].path if placed else made[-1].path if made else path
        reason = error.strerror or "writing it failed"
        raise OutputError(f"the report {printable(str(named))!r} cannot be written: {reason}") from None
    finally:
        for piece in made:
            for left in (piece.new, piece.old):
                with suppress(OSError):
                    left.unlink()


def _place(piece: _Piece, *, force: bool) -> None:
    """Give a file its name. With `force` an older one is kept beside, otherwise nothing must have the name."""
    if force:
        if os.path.lexists(piece.path):
            keep_old(piece.path, piece.old)
        os.replace(piece.new, piece.path)
        return
    link_new(piece.new, piece.path)


def _withdraw(piece: _Piece, written: tuple[int, int]) -> None:
    """The older file is there again, or none; what somebody else put there meanwhile stays."""
    with suppress(OSError):
        ours = identity(piece.path) == written
        if os.path.lexists(piece.old) and (ours or not os.path.lexists(piece.path)):
            os.replace(piece.old, piece.path)
        elif ours:
            piece.path.unlink()
