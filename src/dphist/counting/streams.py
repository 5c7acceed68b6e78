"""Arrow streams: inputs that are read once, batch by batch, such as the result of a query.

A stream is a `pyarrow.RecordBatchReader` or any other object with `__arrow_c_stream__` that is not a frame. Its
columns are checked by its schema alone. Many streams that were read give no error but no rows either, so a second
reading is refused here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final

import pyarrow as pa

from dphist.aliases import ArrowArray
from dphist.counting.task import Events, is_stream
from dphist.counting.workspace import attempt
from dphist.errors import DphistError, InputError

# Rows per batch for DuckDB: 130 MB with values of 8 KiB.
BATCH: Final = 1 << 14
WHAT: Final = "the Arrow stream"
UNREADABLE: Final = "{what} cannot be read: it was closed or read before, or a column has an unsupported type"
READ_BEFORE: Final = (
    f"{WHAT} was opened or read already, and it can be read only once: make a new one, or give a table"
)
FAILED: Final = (
    f"{WHAT} failed before its end: its connection may be closed or lost (its own error may contain data and is "
    "not shown; to see it, read a new stream in another thread)"
)
DAMAGED: Final = f"{WHAT} cannot be counted: a batch is damaged, or does not have the types of the stream's schema"
CONSUMED: Final = "The Arrow stream is used up, because it can be read only once: make a new one for the next run"

# By identity, because objects may define equality. Objects that cannot be referenced weakly, such as those of
# nanoarrow, raise an error of their own when they are read again.
_read: Final[dict[int, weakref.ref[object]]] = {}
_reading: Final = Lock()


def _was_read(data: object) -> bool:
    known = _read.get(id(data))
    return known is not None and known() is data


def _note_read(data: object) -> bool:
    """Whether this is the first reading."""
    with _reading:
        if _was_read(data):
            return False
        with suppress(TypeError):
            _read[id(data)] = weakref.ref(data, partial(_forget, id(data)))
        return True


def _forget(place: int, _: object) -> None:
    _read.pop(place, None)


class ArrowStream:
    """A stream as an input. `used` says whether it can still be given again, `fault` why reading it failed.

    A reader has its schema without being read. Other objects are used up as soon as they are exported: a second
    export of some gives no rows, without an error.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        self.used = False
        self.fault: str | None = None
        self._begun = False
        self._exported: pa.RecordBatchReader | None = None

    def __repr__(self) -> str:
        return "ArrowStream(secret)"

    @property
    def reader(self) -> pa.RecordBatchReader:
        if self._begun or (self._exported is None and _was_read(self.data)):
            raise InputError(READ_BEFORE)
        if isinstance(self.data, pa.RecordBatchReader):
            return self.data
        if self._exported is None:
            self._use()
            self._exported = attempt(lambda: pa.RecordBatchReader.from_stream(self.data), WHAT, UNREADABLE)
        return self._exported

    def _use(self) -> None:
        if not _note_read(self.data):
            raise InputError(READ_BEFORE)
        self.used = True

    def schema(self, wanted: list[str]) -> pa.Schema:
        schema = self.reader.schema
        return pa.schema([schema.field(column) for column in wanted])

    def batches(self, common: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The columns of the schema `common`, validated. DuckDB asks for one batch at a time, in other threads."""
        try:
            reader = self.reader
            if self._exported is None:
                self._use()
        except InputError as error:
            self.fault = str(error)
            raise
        self._begun, self._exported = True, None
        while (batch := self._next(reader)) is not None:
            yield from self._valid_parts(batch, reader.schema, common)

    def _next(self, reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
        try:
            return next(reader, None)
        except MemoryError:
            raise
        except Exception:
            self.fault = FAILED
        raise InputError(FAILED)  # after the handler, so that the client's error is not attached

    def _valid_parts(
        self, batch: pa.RecordBatch, schema: pa.Schema, common: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        try:
            # Arrow does not compare them, and would cast.
            if (batch.schema.names, batch.schema.types) != (schema.names, schema.types):
                raise TypeError
            columns = [batch.column(column) for column in common.names]
            for column in columns:
                validate(column)
            rows = pa.RecordBatch.from_arrays(columns, schema=common)
            # DuckDB converts a dictionary again for each part.
            sizes = [len(column.dictionary) for column in columns if isinstance(column, pa.DictionaryArray)]
        except MemoryError:
            raise
        except Exception:
            self.fault = DAMAGED
        else:
            step = max(BATCH, *sizes) if sizes else BATCH
            yield from (rows.slice(start, step) for start in range(0, rows.num_rows, step))
            return
        raise InputError(DAMAGED)


def with_stream(events: Events) -> Events:
    """The events, with a stream as an `ArrowStream`."""
    return replace(events, source=ArrowStream(events.source)) if is_stream(events.source) else events


@contextmanager
def read_once(events: Events) -> Iterator[Events]:
    """`with_stream`. An error says if the stream is used up by then."""
    events = with_stream(events)
    stream = events.source
    try:
        yield events
    except BaseException as error:
        if not isinstance(stream, ArrowStream) or not stream.used:
            raise
        if isinstance(error, DphistError):
            error.args = (f"{error.marked.rstrip('.')}. {CONSUMED}",)
        else:
            error.add_note(CONSUMED)
        raise


def validate(column: ArrowArray) -> None:
    """Raise an exception for a damaged array, whose use could crash the process.

    Texts are checked as bytes: one that is not UTF-8 is missing, and does not make the input unreadable.
    """
    column.view(bytes_for_text(column.type)).validate(full=True)


def bytes_for_text(kind: pa.DataType) -> Any:
    """An Arrow type of the same layout, with bytes instead of text."""
    same = {"string": "binary", "large_string": "large_binary", "string_view": "binary_view"}.get(str(kind))
    if same is not None:
        return getattr(pa, same)()
    if isinstance(kind, pa.BaseExtensionType):
        return bytes_for_text(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, bytes_for_text(kind.value_type), kind.ordered)
    if pa.types.is_run_end_encoded(kind):
        return pa.run_end_encoded(kind.run_end_type, bytes_for_text(kind.value_type))
    if not pa.types.is_nested(kind) or pa.types.is_union(kind):
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([inner.with_type(bytes_for_text(inner.type)) for inner in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(
            *(inner.with_type(bytes_for_text(inner.type)) for inner in (kind.key_field, kind.item_field))
        )
    inner = kind.value_field.with_type(bytes_for_text(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    # list_, large_list, list_view or large_list_view
    return getattr(pa, {"list": "list_"}.get(start := str(kind).partition("<")[0], start))(inner)
