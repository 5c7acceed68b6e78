"""The child process that decodes Parquet and Arrow files for `reading.py`, within limits on memory.

It imports no more than it needs: starting is most of its work.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from typing import Final

import pyarrow as pa

from dphist.errors import DphistError

REFUSED, TOO_LARGE, _FAILED = 3, 4, 5
MOST_COLUMNS: Final = 2000
# Memory for the decoder's libraries and the current batch.
_OVERHEAD: Final = 1 << 30
_ROWS: Final = 8192
# Types of which a few bytes can stand for many values. No release has them, or nested ones.
_FOLDED: Final = ("dictionary", "string_view", "binary_view", "run_end_encoded")
_WRONG_ROWS: Final = "it does not have as many rows as its certificate lists"


class Unreadable(DphistError):
    """Why a file cannot be decoded; empty if it is damaged."""


def _stream(batches: Iterator[pa.RecordBatch]) -> None:
    """Write batches one by one; the first one has the schema."""
    out, first = os.fdopen(1, "wb", closefd=False), next(batches)
    with pa.ipc.new_stream(out, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    out.flush()


def read_parquet(file: BufferedReader, rows: int | None) -> Iterator[pa.RecordBatch]:
    from pyarrow.parquet import ParquetFile

    parquet = ParquetFile(file)
    _check_types(parquet.schema_arrow)
    if rows is not None and parquet.metadata.num_rows != rows:
        raise Unreadable(_WRONG_ROWS)
    yield pa.RecordBatch.from_pylist([], parquet.schema_arrow)
    for batch in parquet.iter_batches(_ROWS, use_threads=False):
        # A damaged file can give a batch whose use would crash the process.
        batch.validate(full=True)
        yield batch


def read_arrow(file: BufferedReader, rows: int | None) -> Iterator[pa.RecordBatch]:
    seen = 0
    with pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False)) as arrow:
        _check_types(arrow.schema)
        yield pa.RecordBatch.from_pylist([], arrow.schema)
        for number in range(arrow.num_record_batches):
            batch = arrow.get_batch(number)
            batch.validate(full=True)
            seen += batch.num_rows
            if rows is not None and seen > rows:
                raise Unreadable(_WRONG_ROWS)
            yield batch


def _check_types(schema: pa.Schema) -> None:
    """Refuse types that no release has before anything is decoded."""
    if len(schema) > MOST_COLUMNS:
        raise Unreadable(f"it has more than {MOST_COLUMNS:,} columns")
    for kind in schema.types:
        if kind.num_fields or str(kind).partition("<")[0] in _FOLDED:
            raise Unreadable("it has a column of a type that no release has")


def decode_for_parent() -> None:
    """Stream the table of the job in the command line to standard output, within the limits of the job."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    job, code = json.loads(sys.argv[1]), 0
    # Allocations beyond the limit fail, where the system supports it.
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (job["limit"] + _OVERHEAD, job["limit"] + _OVERHEAD))
    try:
        read = read_parquet if job["kind"] == "parquet" else read_arrow
        _stream(read(os.fdopen(0, "rb", closefd=False), job["rows"]))
    except Unreadable as error:
        sys.stderr.write(str(error))
        code = REFUSED
    except (MemoryError, pa.ArrowMemoryError):
        code = TOO_LARGE
    except Exception:  # the file is damaged; the error itself could quote a cell
        code = _FAILED
    # Skips the destructors of libraries that ran out of memory.
    sys.stderr.flush()
    os._exit(code)
