"""Arrow streams as inputs: read once, in bounded memory, validated, and with errors that contain no data."""

from __future__ import annotations

import contextlib
import datetime
import gc
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi
from test_engine_failures import SECRET

import dphist
from dphist.counting import streams
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.streams import ArrowStream
from dphist.counting.task import is_stream
from dphist.errors import DphistError, InputError, InvalidParameter, OutputError
from engine_cases import as_stream, histogram, in_sqlite, task
from postgres_server import postgres_address  # noqa: F401
from release_commands import bookings, log_in
from release_data import as_dict, events

COUNTS = {"tea": 900, "milk": 600, "rare": 1}
ASKED: Any = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-7}
MODES: list[dict[str, Any]] = [{}, {"max_items_per_user": 1}, {"top": 2}]
FIXED_OR_NOT: list[dict[str, Any]] = [{}, {"types": "fixed"}]
USED_UP = "The Arrow stream is used up, because it can be read only once: make a new one for the next run"


class Exported:
    """An object that exports a stream, and nothing else. Like that of many libraries it can be exported again."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, table: Any) -> None:
        self.reader, self.exports = as_stream(table), 0

    def __eq__(self, other: object) -> bool:
        raise AssertionError("streams are compared by identity")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        self.exports += 1
        return self.reader.__arrow_c_stream__(requested_schema)


class OnceOnly(Exported):
    """Raises an error instead, and cannot be referenced weakly."""

    __slots__ = ("exports", "reader")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        assert self.exports == 0, f"exported twice: {SECRET}"
        return super().__arrow_c_stream__(requested_schema)


def generated(table: Any) -> pa.RecordBatchReader:
    """A reader over a generator that raises an error if it is read on after its end, or in two threads at once."""
    busy = threading.Lock()
    ended: list[bool] = []

    def batches() -> Iterator[Any]:
        for batch in table.to_batches(max_chunksize=100):
            assert busy.acquire(blocking=False)
            busy.release()
            yield batch
        assert not ended
        ended.append(True)

    return pa.RecordBatchReader.from_batches(table.schema, batches())


STREAMS: dict[str, Callable[[Any], Any]] = {
    "reader": as_stream,
    "generator": generated,
    "exported": Exported,
    "once only": OnceOnly,
    "polars batches": lambda table: pl.from_arrow(table).lazy().collect_batches(),  # type: ignore[union-attr]
    "DuckDB": lambda table: duckdb.connect().from_arrow(table).to_arrow_reader(100),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_gives_the_rows_of_the_table(kind: str) -> None:
    table = events(COUNTS, items_per_user=2)
    for options in MODES if kind in ("generator", "exported") else MODES[:1]:
        for more in FIXED_OR_NOT:
            wanted = dphist.release(table, **ASKED, **options, **more, seed=5)
            source = STREAMS[kind](table)
            found = dphist.release(source, **ASKED, **options, **more, seed=5)
            assert as_dict(found) == as_dict(wanted)
            assert found.to_arrow().schema.equals(wanted.to_arrow().schema)
            with pytest.raises(InputError, match=r"only once|closed or read before") as refused:
                dphist.release(source, **ASKED, **options, **more, seed=5)
            assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_an_object_is_exported_once_for_checking_and_counting(tmp_path: Path) -> None:
    log_in(tmp_path)
    source = Exported(events(COUNTS))
    found = dphist.release(source, **ASKED, ledger=tmp_path / "a.ledger", dataset="log")
    assert set(as_dict(found)) == {"tea", "milk"}
    assert source.exports == 1


@pytest.mark.parametrize("kind", ["reader", "exported", "once only"])
def test_a_second_release_is_refused_before_it_is_booked(tmp_path: Path, kind: str) -> None:
    log_in(tmp_path)
    source = STREAMS[kind](events(COUNTS))
    place: dict[str, Any] = {"ledger": tmp_path / "a.ledger", "dataset": "log"}
    for options in MODES:
        with contextlib.nullcontext() if options == {} else pytest.raises(InputError, match="read"):
            dphist.release(source, **ASKED, **options, **place)
    assert len(bookings(tmp_path)) == 1


def test_a_reader_is_not_used_up_by_a_release_that_is_refused(tmp_path: Path) -> None:
    source = as_stream(events(COUNTS))
    for wrong in ({"item": "itm"}, {"where": "no such"}, {"output": tmp_path / "x.docx"}, {"epsilon": -1.0}):
        with pytest.raises(DphistError) as refused:
            dphist.release(source, **{**ASKED, **wrong})
        assert "used up" not in str(refused.value)
    assert len(dphist.release(source, **ASKED)) == 2


def test_an_exported_object_is_used_up_by_a_refused_release() -> None:
    """Whether a second export would have rows is not known."""
    source = Exported(events(COUNTS))
    with pytest.raises(InputError, match="has no column 'itm'") as refused:
        dphist.release(source, **{**ASKED, "item": "itm"})
    assert str(refused.value).endswith(USED_UP)
    with pytest.raises(InputError, match="opened or read already"):
        dphist.release(source, **ASKED)


def test_what_was_read_is_forgotten_with_the_object() -> None:
    gc.collect()
    known = len(streams._read)
    source = as_stream(events(COUNTS))
    dphist.release(source, **ASKED)
    assert len(streams._read) == known + 1
    del source
    gc.collect()
    assert len(streams._read) == known


def test_streams_and_frames_are_told_apart() -> None:
    table = events(COUNTS)
    for make in STREAMS.values():
        assert is_stream(make(table))
    frame = pl.DataFrame(table)
    others: list[Any] = [table, table.to_batches()[0], table.to_pandas(), frame, frame.lazy(), "log.csv", None]
    others += [duckdb.connect().from_arrow(table), frame["item"], table["item"], ArrowStream]

    # Of a class that extends pandas', which would infer the types of its columns from values.
    others.append(type("Frame", (pd.DataFrame,), {})())
    for other in others:
        assert not is_stream(other)
    with pytest.raises(InvalidParameter, match="a frame or an Arrow stream, not int"):
        dphist.release(3, **ASKED)
    with pytest.raises(InputError, match="the Arrow stream cannot be read"):
        dphist.release(NoColumns(), **ASKED)


class NoColumns:
    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return pa.chunked_array([[1, 2]]).__arrow_c_stream__()


@pytest.mark.parametrize("options", MODES)
def test_streams_without_rows(options: dict[str, Any]) -> None:
    empty = events(COUNTS).slice(0, 0)
    nothing = pa.RecordBatch.from_pylist([], schema=empty.schema)
    for batches in ([], [nothing], [nothing, nothing]):
        reader = pa.RecordBatchReader.from_batches(empty.schema, batches)
        assert len(dphist.release(reader, **ASKED, **options)) == 0
    whole = events(COUNTS).to_batches(max_chunksize=400)
    mixed = [part for batch in whole for part in (nothing, batch, nothing)]
    found = dphist.release(pa.RecordBatchReader.from_batches(empty.schema, mixed), **ASKED, **options)
    assert set(as_dict(found)) == {"tea", "milk"}


def test_dictionaries_that_change_between_batches() -> None:
    """Of every size, with unused and missing entries, and with the same numbers for other values."""
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("user", pa.int64()), ("item", kind)])
    expected: dict[Any, int] = {}

    def batches() -> Iterator[Any]:
        for number in range(300):
            names = [*(f"{(number + k) % 7} of 7" for k in range(number % 5 + 1)), "unused", None]
            places = [k % len(names) if k % len(names) != len(names) - 2 else None for k in range(20)]
            item = pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(names))
            user = [20 * number + k for k in range(20)]
            for place in places:
                if place is not None and names[place] is not None:
                    expected[names[place]] = expected.get(names[place], 0) + 1
            yield pa.RecordBatch.from_arrays([pa.array(user), item], schema=schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    assert histogram(lambda _: DuckDBEngine(), task(reader)) == expected


def test_large_batches_and_large_dictionaries_are_cut() -> None:
    names = pa.array([f"item {k}" for k in range(30_000)])
    rows = 70_000
    item = pa.DictionaryArray.from_arrays(pa.array([k % 30_000 for k in range(rows)], pa.int32()), names)
    batch = pa.RecordBatch.from_arrays([pa.array(range(rows)), item], names=["user", "item"])
    stream = ArrowStream(pa.RecordBatchReader.from_batches(batch.schema, [batch]))
    assert [part.num_rows for part in stream.batches(stream.schema(["user"]))] == [16384] * 4 + [4464]
    stream = ArrowStream(pa.RecordBatchReader.from_batches(batch.schema, [batch]))
    parts = list(stream.batches(stream.schema(["item", "user"])))
    assert [part.num_rows for part in parts] == [30_000, 30_000, 10_000]
    assert parts[0].schema.names == ["item", "user"]


def failing(table: Any, after: int = 3) -> Any:
    def batches() -> Iterator[Any]:
        for number, batch in enumerate(table.to_batches(max_chunksize=50)):
            if number == after:
                raise ConnectionError(f"lost the row of {SECRET}")
            yield batch

    return pa.RecordBatchReader.from_batches(table.schema, batches())


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("after", [0, 3])
def test_a_stream_that_fails_midway(
    tmp_path: Path, options: dict[str, Any], after: int, capfd: pytest.CaptureFixture[str]
) -> None:
    log_in(tmp_path)
    place: dict[str, Any] = {"ledger": tmp_path / "a.ledger", "dataset": "log"}
    for number, booked in enumerate(({}, place)):
        source = failing(events(COUNTS), after)
        with pytest.raises(InputError) as failed:
            dphist.release(source, **ASKED, **options, **booked)
        message = str(failed.value)
        assert message.startswith("the Arrow stream failed before its end: its connection may be closed or lost")
        assert message.count("used up") == 1
        assert ("The privacy budget was spent" in message) == bool(booked)
        assert len(bookings(tmp_path)) == number
        shown = "".join(traceback.format_exception(failed.value))
        assert SECRET not in shown
        assert "ConnectionError" not in shown
        with pytest.raises(InputError, match="read already"):
            dphist.release(source, **ASKED, **options)
    assert SECRET not in "".join(capfd.readouterr())


def test_an_interrupt_says_that_the_stream_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("dphist.releasing.run.release_rounds", interrupt)
    with pytest.raises(KeyboardInterrupt) as stopped:
        dphist.release(as_stream(events(COUNTS)), **ASKED)
    assert stopped.value.__notes__ == [USED_UP]


def test_a_result_that_cannot_be_written_says_that_the_stream_is_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dphist.outputs.write.write_rows", full)
    with pytest.raises(OutputError, match="No space left") as failed:
        dphist.release(as_stream(events(COUNTS)), **ASKED, output=tmp_path / "out.csv")
    assert str(failed.value).endswith(USED_UP)


def test_streams_of_lists_simulations_and_sketches() -> None:
    table = events(COUNTS, items_per_user=2)
    whole = dphist.simulate(table, user="user", item="item", epsilon=1, delta=1e-6)
    found = dphist.simulate(Exported(table), user="user", item="item", epsilon=1, delta=1e-6)
    assert found.to_dict()["candidates"] == whole.to_dict()["candidates"]
    assert "an Arrow stream" in repr(found)
    built = dphist.sketch.build(Exported(table), 2, user="user", item="item")
    assert built.to_bytes() == dphist.sketch.build(table, 2, user="user", item="item").to_bytes()
    for use in (
        lambda source: dphist.simulate(source, user="user", item="item", epsilon=1, delta=1e-6),
        lambda source: dphist.sketch.build(source, 2, user="user", item="item"),
    ):
        source = failing(table)
        for message in ("failed before its end.*used up", "read already"):
            with pytest.raises(InputError, match=message) as failed:
                use(source)
            assert SECRET not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize("name", ["items", "known"])
def test_a_public_list_cannot_be_a_stream(name: str) -> None:
    listed: dict[str, Any] = {name: as_stream(pa.table({"item": ["tea"]}))}
    with pytest.raises(InvalidParameter, match=f"{name} is read more than once: give a file or a table"):
        dphist.release(events(COUNTS), **ASKED, **listed)


def test_types_are_those_of_frames() -> None:
    """Text by default, so that inferred types do no harm; with `fixed` those of the schema, large numbers too."""
    day, large = datetime.date(2024, 1, 2), 2**53 + 1
    for item, kind, as_text in ((5, pa.int16(), "5"), (day, pa.date32(), "2024-01-02"), (large, pa.int64(), None)):
        table = pa.table({"user": range(400), "item": pa.array([item] * 400, kind)})
        found = dphist.release(Exported(table), **ASKED).to_arrow()
        assert found["item"].to_pylist() == ([] if as_text is None else [as_text])
        fixed = dphist.release(Exported(table), **ASKED, types="fixed").to_arrow()
        assert fixed["item"].to_pylist() == [item]
        assert fixed.schema.field("item").type == kind


def test_the_certificate_states_the_condition_of_a_query(tmp_path: Path) -> None:
    """Nearly every stream is the result of a query, which can make rows of one user depend on others."""
    named: dict[str, Any] = {"input_name": "orders of 2026"}
    for number, options in enumerate((*FIXED_OR_NOT, named)):
        path = tmp_path / f"{number}.csv"
        source = as_stream(events(COUNTS)) if number else Exported(events(COUNTS))
        found = dphist.release(source, **ASKED, **options, output=path)
        request = found.document()["request"]
        assert request["input"] == ("orders of 2026 (Arrow stream)" if number == 2 else "Arrow stream")
        assert "query" in found.document()["guarantee"]["conditions"]
        assert dphist.verify(path).verified


# Arrays whose use crashes a process that does not check them.
DAMAGED = """
import sys
import pyarrow as pa
import dphist
from dphist.errors import InputError

ASKED = dict(user="user", item="item", epsilon=1, delta=1e-6)

def whole(*numbers, size=4):
    return b"".join(number.to_bytes(size, "little", signed=True) for number in numbers)

later = []

def damaged(kind, right, wrong, *parts, **more):
    # Two values whose first buffer is changed when Arrow has checked them.
    memory = bytearray(right)
    later.append((memory, wrong))
    return pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(memory), *map(pa.py_buffer, parts)], **more)

text, small, right = pa.string(), pa.array(["a", "b"]), whole(0, 1, 2)

def places(wrong, words=small):
    return pa.DictionaryArray.from_arrays(damaged(pa.int32(), whole(0, 1), wrong), words, safe=False)

makers = {
    "offset beyond the end": lambda: damaged(text, right, whole(0, 1, 2**31 - 1), b"ab"),
    "offset in the middle beyond the end": lambda: damaged(text, right, whole(0, 10**9, 2), b"ab"),
    "offsets that decrease": lambda: damaged(text, right, whole(0, 2, -5), b"ab"),
    "large offsets": lambda: damaged(pa.large_string(), whole(0, 1, 2, size=8), whole(0, 1, 2**62, size=8), b"ab"),
    "place beyond the dictionary": lambda: places(whole(0, 10**8)),
    "negative place": lambda: places(whole(0, -(10**8))),
    "damaged dictionary": lambda: places(whole(0, 1), damaged(text, right, whole(0, 10**9, 2), b"ab")),
    "list beyond its values": lambda: damaged(pa.list_(text), right, whole(0, 1, 10**8), children=[small]),
    "view of no buffer": lambda: damaged(pa.string_view(), whole(*[0] * 8), whole(1, 0, 0, 0, 100, 0, 9, 10**8)),
}
good = pa.array([1, 2])
for what, make in makers.items():
    for options in ({}, {"max_items_per_user": 1, "types": "fixed"}):
        item = make()
        schema = pa.schema([("user", pa.int64()), ("item", item.type)])
        first = pa.RecordBatch.from_arrays([good.slice(0, 0), pa.nulls(0, item.type)], schema=schema)
        batches = [first, pa.RecordBatch.from_arrays([good, item], schema=schema)]
        while later:
            memory, wrong = later.pop()
            memory[:] = wrong
        try:
            dphist.release(pa.RecordBatchReader.from_batches(schema, batches), **ASKED, **options)
        except InputError as error:
            assert "a batch is damaged" in str(error), (what, error)
        else:
            raise AssertionError(what)
print("done")
"""


def test_damaged_batches_do_not_crash() -> None:
    """In a process of its own, because a crash would end the tests."""
    done = subprocess.run([sys.executable, "-c", DAMAGED, *sys.path], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr[-2000:]


def test_batches_that_do_not_have_the_types_of_the_schema() -> None:
    good, bad = pa.table({"user": [1], "item": ["a"]}), pa.table({"user": [1], "item": [SECRET.encode()]})
    schema = good.schema
    narrow = pa.table({"user": pa.array([1], pa.int8()), "item": ["a"]})
    for other in (bad, narrow, good.select(["user"]), good.rename_columns(["item", "user"])):

        def batches(other: Any = other) -> Iterator[Any]:
            yield from good.to_batches()
            yield from other.to_batches()

        with pytest.raises(InputError, match="does not have the types of the stream's schema") as failed:
            dphist.release(pa.RecordBatchReader.from_batches(schema, batches()), **ASKED)
        assert SECRET not in "".join(traceback.format_exception(failed.value))


def test_a_null_where_the_schema_has_none_is_missing() -> None:
    fields: list[pa.Field[Any]] = [pa.field("user", pa.int64(), False), pa.field("item", pa.string(), False)]
    schema = pa.schema(fields)
    batch = pa.RecordBatch.from_arrays([pa.array([1, None, 3]), pa.array(["a", "a", None])], schema=schema)
    reader = pa.RecordBatchReader.from_batches(schema, [batch])
    assert histogram(lambda _: DuckDBEngine(), task(reader)) == {"a": 1}


def test_invalid_text_is_missing() -> None:
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    reader = pa.RecordBatchReader.from_batches(
        pa.table({"user": [1], "item": ["a"]}).schema,
        [pa.RecordBatch.from_arrays([pa.array([1, 2]), text], names=["user", "item"])],
    )
    assert histogram(lambda _: DuckDBEngine(), task(reader)) == {"a": 1}


def test_postgres_through_adbc(postgres_address: str) -> None:  # noqa: F811
    query = "SELECT n % 1000 AS user, 'item ' || n % 3 AS item FROM generate_series(1, 100000) AS n"
    for fetch in (dbapi.Cursor.fetch_record_batch, dbapi.Cursor.fetch_arrow):
        with dbapi.connect(postgres_address) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            found = dphist.release(fetch(cursor), **ASKED, types="fixed")
            assert set(as_dict(found)) == {"item 0", "item 1", "item 2"}
    for begun in (False, True):
        with dbapi.connect(postgres_address) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            reader = cursor.fetch_record_batch()
            if begun:
                reader.read_next_batch()
        with pytest.raises(InputError, match="its connection may be closed"):
            dphist.release(reader, **ASKED)


# Counts events that exist only batch by batch; prints the number of released items and the peak in MB.
MEMORY = r"""
import re, sys
import numpy as np, pyarrow as pa, dphist

ROWS, BATCH = 20_000_000, 1 << 16
schema = pa.schema([("user", pa.int64()), ("item", pa.string())])
names = pa.array([f"item number {k}" for k in range(200_000)])

def batches():
    rng = np.random.default_rng(5)
    for start in range(0, ROWS, BATCH):
        rows = min(BATCH, ROWS - start)
        item = np.minimum(rng.zipf(1.3, rows), len(names)) - 1
        user = pa.array(rng.integers(0, 2_000_000, rows))
        yield pa.RecordBatch.from_arrays([user, names.take(pa.array(item))], schema=schema)

limit = {"max_items_per_user": 5} if sys.argv[1] == "limit" else {}
found = dphist.release(pa.RecordBatchReader.from_batches(schema, batches()), user="user", item="item", epsilon=1,
                       delta=1e-8, memory="1GB", threads=2, **limit)
# Not ru_maxrss, which starts with that of the parent process.
print(len(found), int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024 // 10**6)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["limit", "rounds"])
def test_twenty_million_events_stay_within_the_memory(mode: str) -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY, mode], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    released, peak = map(int, done.stdout.split())
    assert released > 1000
    assert peak < 1000


def test_a_connection_that_is_bound_to_a_thread(tmp_path: Path) -> None:
    """Batches are asked for in other threads; the error of the driver is not shown."""
    table = events(COUNTS)
    in_sqlite(table, tmp_path / "log.sqlite")

    def batches(connection: sqlite3.Connection) -> Iterator[Any]:
        cursor = connection.execute("SELECT user, item FROM events")
        while rows := cursor.fetchmany(500):
            users, items = zip(*rows, strict=True)
            yield pa.record_batch(
                [pa.array(users, table.schema.field("user").type), pa.array(items)], schema=table.schema
            )

    for bound in (True, False):
        path = tmp_path / "log.sqlite"
        with contextlib.closing(sqlite3.connect(path, check_same_thread=bound)) as connection:
            reader = pa.RecordBatchReader.from_batches(table.schema, batches(connection))
            with pytest.raises(InputError, match="in another thread") if bound else contextlib.nullcontext():
                assert set(as_dict(dphist.release(reader, **ASKED))) == {"tea", "milk"}


@pytest.mark.parametrize("as_input", [lambda table: table, pa.Table.to_reader], ids=["table", "reader"])
@pytest.mark.parametrize("types", ["text", "fixed"])
@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.duration("s")], ids=str)
def test_a_far_time_of_one_user_is_missing(kind: pa.DataType, types: Any, as_input: Any) -> None:
    """It once made the input unreadable, after the budget was booked."""
    times = pa.array([86_400_000] * 400 + [2**62, -(2**62), None]).cast(kind)
    table = pa.table({"user": [str(number) for number in range(403)], "item": times})
    found = dphist.release(
        as_input(table), user="user", item="item", epsilon=1, delta=1e-3, max_items_per_user=1, types=types
    )
    assert len(found) == 1
    assert abs(found.counts[0] - 400) < 100
