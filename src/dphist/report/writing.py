"""Reports and figures as files: looked at before any work is done, whole or not there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dphist.errors import OutputError


def check_place(path: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, or that is there already."""
    if not path.parent.is_dir():
        raise OutputError(f"the folder of the report {str(path)!r} does not exist")
    if path.is_dir():
        raise OutputError(f"the report {str(path)!r} is a folder")
    if os.path.lexists(path) and not force:
        raise OutputError(f"the report {str(path)!r} exists already; --force replaces it")


def write_files(contents: Mapping[Path, bytes], *, force: bool) -> None:
    """Write all files. Each is made beside its place, and gets its name when it is whole."""
    made: list[tuple[Path, Path]] = []
    placed: list[Path] = []
    try:
        for path, content in contents.items():
            check_place(path, force=force)
            made.append((path.parent / f".dphist-{secrets.token_hex(8)}", path))
            with made[-1][0].open("xb") as file:
                file.write(content)
        for new, path in made:
            if force:
                os.replace(new, path)
            else:
                _place(new, path)
                placed.append(path)
    except OSError as error:
        for path in placed:
            with suppress(OSError):
                path.unlink()
        named = made[-1][1] if made else path
        raise OutputError(f"the report {str(named)!r} cannot be written: {error.strerror}") from None
    finally:
        for new, _ in made:
            with suppress(OSError):
                new.unlink()


def _place(new: Path, path: Path) -> None:
    """Give a file its name, unless something took it meanwhile."""
    try:
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise
        os.replace(new, path)
