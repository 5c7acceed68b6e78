"""Read data that anybody may have written, in a process of its own with limits of memory and time.

A few hundred KB of Parquet, or of a database, can decode to any number of GB, and a damaged file can end the
process that decodes it. So the decoder is a child process: it reads from an open file or a database, and streams
batches of Arrow to its standard output until it is done or reaches a limit. Text files need none of this: they
decode to a few times their size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO, Final

from dphist.extras import package
from dphist.outputs.cells import holds
from dphist.outputs.seal import LARGEST_CERTIFICATE
from dphist.outputs.stores import CERTIFICATE_COLUMN, StoreError

# A table may take so many bytes in memory, or so many times the bytes of its file, whichever is more.
LEAST_BYTES: Final = 1 << 30
TIMES: Final = 32
# What the decoder takes for itself: its libraries, and what it holds of a batch.
_OVERHEAD: Final = 1 << 30
SECONDS = 600.0
_ROWS: Final = 8192
MOST_COLUMNS: Final = 2000
# Types that no release has: a few bytes of them may stand for any number of values.
_FOLDED: Final = (
    "dictionary", "string_view", "binary_view", "list_view", "large_list_view", "run_end_encoded", "dense_union",
    "sparse_union",
)  # fmt: skip
_REFUSED, _TOO_LARGE, _FAILED = 3, 4, 5


def bytes_allowed(size: int) -> int:
    """How many bytes a table of a file of this size may take."""
    return max(LEAST_BYTES, TIMES * size)


def read_file(file: BinaryIO, kind: str, rows: int | None) -> Any:
    """The table of an open Parquet or Arrow file that has this many rows. Raises `StoreError`."""
    size = os.fstat(file.fileno()).st_size
    with _Decoder({"kind": kind, "rows": rows}, bytes_allowed(size), file) as decoder:
        return decoder.last_table()


def read_database(path: str, kind: str, table: str, certificate: str) -> tuple[Any, list[str | None] | None]:
    """A table of a DuckDB or SQLite file, and the cells of the table of its certificate; None if there is none.

    Raises `StoreError`; "absent" is its trouble if there is no such table.
    """
    job = {"kind": kind, "path": path, "table": table, "certificate": certificate}
    with _Decoder(job, bytes_allowed(os.stat(path).st_size), None) as decoder:
        cells = decoder.table()
        found = cells.column(0).to_pylist() if cells.num_columns else None
        return decoder.last_table(), found


class _Decoder:
    """The child process, as its parent sees it."""

    def __init__(self, job: dict[str, Any], limit: int, file: BinaryIO | None) -> None:
        self._limit, self._late = limit, False
        if file is not None:
            file.seek(0)
        # Without the working folder among the places of modules: it may be a folder of downloads.
        command = [sys.executable, "-P", "-m", "dphist.outputs.untrusted", json.dumps({**job, "limit": limit})]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL if file is None else file, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )  # fmt: skip
        self._timer = threading.Timer(SECONDS, self._stop)

    def __enter__(self) -> _Decoder:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()

    def _stop(self) -> None:
        self._late = True
        self._process.kill()

    def table(self) -> Any:
        """The next table that the child has read."""
        pa = package("pyarrow")
        batches, taken = [], 0
        try:
            with pa.ipc.open_stream(self._process.stdout) as stream:
                schema = stream.schema
                for batch in stream:
                    # Empty values count as well: a column of nulls takes no bytes until it is used.
                    taken += max(batch.nbytes, 16 * batch.num_rows * batch.num_columns)
                    if taken > self._limit:
                        raise StoreError(_too_large(self._limit))
                    batches.append(batch)
        except (pa.ArrowException, OSError, EOFError):
            raise self._reason() from None
        return pa.Table.from_batches(batches, schema)

    def last_table(self) -> Any:
        """The same, and that the child was done: a stream that breaks off looks like one that ends."""
        found = self.table()
        if self._process.wait() != 0:
            raise self._reason()
        return found

    def _reason(self) -> StoreError:
        """Why the child ended before its work was done."""
        _, said = self._process.communicate()
        if self._late:
            return StoreError(f"reading it takes longer than {SECONDS:g} seconds")
        code = self._process.returncode
        if code == _REFUSED:
            reason, trouble = json.loads(said)
            return StoreError(reason, trouble)
        return StoreError(_too_large(self._limit) if code == _TOO_LARGE else "it is damaged", "foreign")


def _too_large(limit: int) -> str:
    return f"its table takes more than {limit >> 20:,} MiB of memory, which is too much for its size"


def _limit_memory(limit: int) -> None:
    """Let allocations fail beyond the limit, where the system can do that."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (limit + _OVERHEAD, limit + _OVERHEAD))


def _child(job: dict[str, Any]) -> None:
    """Stream what the job asks for to standard output."""
    pa = package("pyarrow")
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _limit_memory(job["limit"])
    if job["kind"] in ("parquet", "arrow"):
        read = _parquet if job["kind"] == "parquet" else _arrow
        _stream(read(os.fdopen(0, "rb", closefd=False), job["rows"]))
        return
    from dphist.outputs.databases import store_of

    store = store_of(job["kind"], job["path"], writing=False)
    try:
        if store.find(job["table"]) is None:
            raise StoreError("there is no such table", "absent")
        _stream(_certificate(store, job["certificate"]))
        _stream(store.batches(job["table"]))
    finally:
        store.close()


def _stream(batches: Iterator[Any]) -> None:
    """At least one batch, for its schema. In their order: each is gone before the next one is read."""
    pa = package("pyarrow")
    out = os.fdopen(1, "wb", closefd=False)
    first = next(batches)
    with pa.ipc.new_stream(out, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    out.flush()


def certificate_cells(store: Any, name: str) -> list[str | None] | None:
    """At most two cells of the table of a certificate, which should have one; None if there is no such table."""
    if store.find(name) is None:
        return None
    cells = store.read_certificate(name)
    return [cell if isinstance(cell, str) and len(cell) <= LARGEST_CERTIFICATE else None for cell in cells]


def _certificate(store: Any, name: str) -> Iterator[Any]:
    pa = package("pyarrow")
    cells = certificate_cells(store, name)
    names = [] if cells is None else [CERTIFICATE_COLUMN]
    yield pa.record_batch([pa.array(cells or [], pa.string())][: len(names)], names=names)


def _parquet(file: BinaryIO, rows: int | None) -> Iterator[Any]:
    found = package("pyarrow.parquet").ParquetFile(file)
    _check_shape(found.schema_arrow, found.metadata.num_rows, rows)
    yield package("pyarrow").RecordBatch.from_pylist([], found.schema_arrow)
    for batch in found.iter_batches(_ROWS, use_threads=False):
        yield _valid(batch)


def _arrow(file: BinaryIO, rows: int | None) -> Iterator[Any]:
    pa = package("pyarrow")
    with pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False)) as found:
        _check_shape(found.schema, None, rows)
        yield pa.RecordBatch.from_pylist([], found.schema)
        seen = 0
        for place in range(found.num_record_batches):
            batch = _valid(found.get_batch(place))
            seen += batch.num_rows
            _check_shape(found.schema, None if rows is None or seen <= rows else seen, rows)
            yield batch


def _valid(batch: Any) -> Any:
    # A damaged file can make a batch whose use would end the process.
    batch.validate(full=True)
    return batch


def _check_shape(schema: Any, found: int | None, rows: int | None) -> None:
    """Before anything is decoded: types that a release has, and no more rows than its certificate says."""
    if len(schema) > MOST_COLUMNS:
        raise StoreError(f"it has more than {MOST_COLUMNS:,} columns")
    for kind in schema.types:
        if holds(kind, _FOLDED) or (kind.num_fields and holds(kind, ("null",))):
            raise StoreError("it has a column of a type that no release has")
    if found is not None and rows is not None and found != rows:
        raise StoreError("it does not have as many rows as its certificate says")


def _main() -> None:
    pa = package("pyarrow")
    try:
        _child(json.loads(sys.argv[1]))
    except StoreError as error:
        sys.stderr.write(json.dumps([str(error), error.trouble]))
        code = _REFUSED
    except (MemoryError, pa.ArrowMemoryError):
        code = _TOO_LARGE
    except Exception:  # damaged in whatever way; the error's own words could repeat a cell
        code = _FAILED
    else:
        code = 0
    # Without the destructors of libraries that ran out of memory.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
