"""Cells of columns without a type (pandas objects, SQLite): each becomes text by a rule about that cell alone."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import uuid
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dphist.engines.sql import EXACT

WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")
LIMIT: Final = 2**63


def texts(cells: Sequence[Any]) -> Any:
    """An Arrow array of the cells' texts."""
    import pyarrow as pa

    if set(map(type, cells)) <= {str, type(None)}:
        try:
            return pa.array(cells, pa.large_string())
        except (UnicodeError, pa.ArrowException):
            pass
    return pa.array([text_of(cell) for cell in cells], pa.large_string())


def inferred(cells: Sequence[Any]) -> Sequence[Any]:
    """Numbers and times among objects in the spelling of typed columns (see `sql.as_text`).

    pandas makes a column of objects where a single value does not fit the type of all others.
    """
    if set(map(type, cells)) <= {str, type(None)}:
        return cells
    return [_inferred(cell) for cell in cells]


def _inferred(cell: Any) -> Any:
    if isinstance(cell, (bool, np.bool_)):
        return cell
    if isinstance(cell, (int, np.integer)):
        return int(cell) if abs(int(cell)) < EXACT else None
    if isinstance(cell, (float, np.floating)) and math.isfinite(cell):
        number = float(cell)
        return None if abs(number) >= EXACT else int(number) if number.is_integer() else number
    if isinstance(cell, datetime.datetime) and cell == cell:
        zone = "" if cell.tzinfo is None else "+00"
        plain = cell if cell.tzinfo is None else cell.astimezone(datetime.UTC).replace(tzinfo=None)
        found = plain.isoformat(sep=" ")
        return (found.rstrip("0") if "." in found else found) + zone
    return cell


def text_of(cell: Any) -> str | None:
    """The text of a cell: numbers as Python writes them, bytes in hexadecimal, lists and dictionaries as JSON.

    What has no text of its own is missing, and so is a text that is no Unicode.
    """
    try:
        if isinstance(cell, (list, tuple, dict, np.ndarray)):
            found = json.dumps(cell, default=plain, ensure_ascii=False, separators=(",", ":"))
        else:
            found = str(plain(cell))
        found.encode("utf-8")
        return found
    except Exception:
        return None


def plain(cell: Any) -> Any:
    """The text of a value that is no list; of an array its list."""
    if isinstance(cell, str):
        return str(cell)
    if isinstance(cell, (bool, np.bool_)):
        return "true" if cell else "false"
    if isinstance(cell, (int, np.integer)):
        return str(int(cell))
    if isinstance(cell, (float, np.floating)):
        return repr(float(cell) + 0.0)  # so that -0.0 is 0.0
    if isinstance(cell, (bytes, bytearray, memoryview)):
        return bytes(cell).hex()
    if isinstance(cell, (datetime.date, datetime.time)):  # a datetime is a date
        return cell.isoformat()
    if isinstance(cell, (decimal.Decimal, uuid.UUID, datetime.timedelta, np.datetime64, np.timedelta64)):
        return str(cell)
    if isinstance(cell, np.ndarray):
        return cell.tolist()
    raise TypeError


def wholes(cells: Sequence[Any]) -> Any:
    """An Arrow array of whole numbers; cells that are none are missing."""
    import pyarrow as pa

    if not set(map(type, cells)) <= {int, type(None)}:
        cells = [whole_of(cell) for cell in cells]
    return pa.array(cells, pa.int64())


def whole_of(cell: Any) -> int | None:
    """The whole number that a cell is."""
    if isinstance(cell, str):
        cell = int(cell) if WHOLE.fullmatch(cell) else None
    elif isinstance(cell, float):
        cell = int(cell) if cell.is_integer() else None
    return cell if isinstance(cell, int) and -LIMIT <= cell < LIMIT else None


def reals(cells: Sequence[Any]) -> Any:
    """An Arrow array of floats; cells that are no numbers are missing."""
    import pyarrow as pa

    return pa.array([float(cell) if isinstance(cell, (int, float)) else None for cell in cells], pa.float64())


def blobs(cells: Sequence[Any]) -> Any:
    """An Arrow array of bytes; other cells are missing."""
    import pyarrow as pa

    return pa.array([cell if isinstance(cell, bytes) else None for cell in cells], pa.large_binary())
