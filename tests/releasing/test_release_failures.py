"""What fails after it was booked says what was spent: on the terminal, in JSON and on the exception."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
import release_workers
from dphist.counting.duckdb import DuckDBEngine
from dphist.errors import DphistError, InputError, InvalidParameter, LedgerError, OutputError, OverBudget
from dphist.ledger import Ledger
from dphist.outputs import write
from processes import wait_until
from release_commands import BOOKED, BUDGET, FLAGS, bookings, command, log_in, names

ASKED: Any = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-7, "max_items_per_user": 2}
KEYS = {
    "ledger_file", "ledger", "dataset", "entry", "hash", "epsilon", "delta", "state", "written", "summary",
}  # fmt: skip


def released(folder: Path, **more: Any) -> dphist.Release:
    return dphist.release(folder / "events.parquet", **ASKED, ledger=folder / "a.ledger", dataset="log", **more)


def check_booking(folder: Path, booking: Any) -> None:
    """All that is needed to find the booking again, and to go on from it."""
    (booked,) = bookings(folder)
    assert set(booking) == KEYS
    assert {key: booking[key] for key in booked.receipt()} == booked.receipt()
    assert (booking["epsilon"], booking["delta"]) == (booked.spend.epsilon, booked.spend.delta) == (1.0, 1e-7)
    assert booking["state"] == "booked"
    assert Path(booking["ledger_file"]).name == "a.ledger"
    said = booking["summary"]
    assert "budget was spent: epsilon 1.0 and delta 1e-07 of the dataset 'log' stay booked as entry 3" in said
    assert "Every run books its budget again" in said


def damaged(folder: Path) -> None:
    """A Parquet file whose footer is right and whose pages are not: it fails while it is counted."""
    rng = np.random.default_rng(1)
    table = pa.table({"user": rng.integers(0, 10**9, 50_000), "item": rng.integers(0, 10**9, 50_000)})
    pq.write_table(table, folder / "events.parquet", compression="zstd")
    content = bytearray((folder / "events.parquet").read_bytes())
    content[4:40_000] = b"\xff" * 39_996
    (folder / "events.parquet").write_bytes(content)


def test_a_damaged_input_says_what_was_spent(tmp_path: Path) -> None:
    log_in(tmp_path)
    damaged(tmp_path)
    done = command(tmp_path, "release", "events.parquet", *FLAGS, *BOOKED, "--output", "out.csv", "--json")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "it is damaged" in done.err
    check_booking(tmp_path, done.data["booking"])
    assert done.err == f"Error: {done.data['error']}\n"
    assert done.data["booking"]["summary"] in done.err
    assert names(tmp_path) == {"events.parquet", "a.ledger"}


def test_a_damaged_input_in_memory(tmp_path: Path) -> None:
    log_in(tmp_path)
    damaged(tmp_path)
    with pytest.raises(InputError) as failed:
        released(tmp_path)
    check_booking(tmp_path, failed.value.booking)
    assert failed.value.booking is not None
    assert failed.value.booking["summary"] in str(failed.value)
    assert failed.value.release is None


def test_a_full_disk_in_a_process(tmp_path: Path) -> None:
    log_in(tmp_path)
    (tmp_path / "list.csv").write_text("item\n" + "".join(f"item {n}\n" for n in range(10_000)))
    words = [*BUDGET, "--items", "list.csv", "--max-items-per-user", "1", *BOOKED, "--output", "out.csv", "--json"]
    done = subprocess.run(
        [sys.executable, release_workers.__file__, "small", "release", "events.parquet", *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    check_booking(tmp_path, json.loads(done.stdout)["booking"])
    assert "out.csv cannot be written" in done.stderr
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)["booking"]["summary"] in done.stderr
    assert [booking.written for booking in bookings(tmp_path)] == [None]
    assert names(tmp_path) == {"events.parquet", "a.ledger", "list.csv"}


def full(*values: Any, **named: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_release_that_cannot_be_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(tmp_path)
    monkeypatch.setattr(write, "write_rows", full)
    with pytest.raises(OutputError, match="No space left on device") as failed:
        released(tmp_path, output=tmp_path / "out.csv")
    monkeypatch.undo()
    check_booking(tmp_path, failed.value.booking)
    # To write it elsewhere is no second release.
    failed.value.release.write(tmp_path / "other.parquet")
    assert dphist.verify(tmp_path / "other.parquet").verified
    assert len(bookings(tmp_path)) == 1


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), RuntimeError("cell"), OSError(5, "disk")])
@pytest.mark.parametrize("step", ["count", "write"])
def test_any_other_exception_says_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, step: str
) -> None:
    log_in(tmp_path)

    def fail(*values: Any, **named: Any) -> Any:
        raise error

    if step == "count":
        monkeypatch.setattr(DuckDBEngine, "count", fail)
    else:
        monkeypatch.setattr(write, "defer_signals", fail)
    with pytest.raises(type(error)) as failed:
        released(tmp_path, output=tmp_path / "out.csv")
    found: Any = failed.value
    check_booking(tmp_path, found.booking)
    assert found.booking["summary"] in found.__notes__
    assert hasattr(found, "release") == (step == "write")


def test_an_exception_of_another_kind_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(tmp_path)

    def fail(*values: Any, **named: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(DuckDBEngine, "count", fail)
    done = command(tmp_path, "release", "events.parquet", *FLAGS, *BOOKED, "--output", "out.csv", "--json")
    assert done.code == 1
    check_booking(tmp_path, done.data["booking"])
    assert done.data["error"] == "OSError"
    assert done.data["booking"]["summary"] in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_interrupt_while_it_counts(tmp_path: Path, number: signal.Signals) -> None:
    log_in(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    numbers = pa.array(np.arange(6_000_000))
    pq.write_table(pa.table({"user": numbers, "item": numbers}), tmp_path / "events.parquet")
    before = os.stat(tmp_path / "a.ledger").st_mtime_ns
    words = ["release", "events.parquet", *FLAGS, *BOOKED, "--output", "out.csv", "--threads", "1", "--json"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-m", "dphist", *words], cwd=tmp_path, env=environment, **pipes
    ) as process:
        wait_until(lambda: os.stat(tmp_path / "a.ledger").st_mtime_ns != before, "the booking")
        wait_until(lambda: not (tmp_path / "a.ledger-journal").exists(), "the end of the transaction")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    found = json.loads(out)
    assert err.startswith("Interrupted: nothing was written. ")
    assert found["error"] + ".\n" == err
    # A signal in the microseconds in which the booking is made leaves it open.
    assert found["booking"]["state"] in ("booked", "unknown")
    assert found["booking"]["summary"] in err
    assert [booking.written for booking in bookings(tmp_path)] == [None]
    assert names(temporary) == set()
    assert names(tmp_path) == {"events.parquet", "a.ledger", "temporary"}


def test_an_interrupt_while_it_books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_in(tmp_path)
    real = Ledger.book_release

    def late(*values: Any, **more: Any) -> Any:
        real(*values, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "book_release", late)
    with pytest.raises(KeyboardInterrupt) as failed:
        released(tmp_path)
    booking: Any = vars(failed.value)["booking"]
    assert (booking["state"], booking["entry"]) == ("unknown", None)
    assert "It is not known whether" in booking["summary"]


def test_what_is_not_booked_says_nothing_of_a_booking(tmp_path: Path) -> None:
    log_in(tmp_path, epsilon=0.5)
    for code, words in ((3, [*FLAGS, *BOOKED]), (2, [*FLAGS, "--ledger", "no.ledger", "--dataset", "log"])):
        done = command(tmp_path, "release", "events.parquet", *words, "--output", "out.csv", "--json")
        assert (done.code, done.out) == (code, "")
        assert "spent:" not in done.err
    with pytest.raises(OverBudget) as refused:
        released(tmp_path)
    assert refused.value.booking is None
    with pytest.raises(LedgerError):
        dphist.release(tmp_path / "events.parquet", **ASKED, ledger=tmp_path / "no.ledger", dataset="log")
    damaged(tmp_path)
    with pytest.raises(DphistError) as failed:
        dphist.release(tmp_path / "events.parquet", **ASKED)
    assert failed.value.booking is None


@pytest.mark.parametrize(
    "odd",
    [{"count_name": "\udce9"}, {"sum": "\udce9=user:0:1"}, {"interval": 1.0 - 1e-16}],
    ids=["count", "sum", "level"],
)
def test_what_cannot_be_written_is_an_error_before_the_booking(tmp_path: Path, odd: dict[str, Any]) -> None:
    """Names from an argument that is not UTF-8, and a level whose half of the rest is lost in rounding."""
    log_in(tmp_path)
    before = bookings(tmp_path)
    with pytest.raises(InvalidParameter):
        released(tmp_path, **odd)
    assert bookings(tmp_path) == before
