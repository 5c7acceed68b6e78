"""Runs with an id: a repeated run neither spends twice nor draws noise twice, also after kills and in races."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from test_release_kills import Scene, Server, Wrong, at_each_call, kill_at_each, needs_strace, server

import dphist
import release_workers
from dphist.counting.workspace import private_folder
from dphist.errors import AlreadyRunning, InvalidParameter, LedgerError, OutputError
from dphist.ledger import Ledger
from dphist.ledger.schema import Receipt
from exports import certificate_of, verify
from release_commands import BOOKED, BUDGET, COUNTS, FLAGS, bookings, command, log_in, names
from release_data import events

ID = ["--id", "weekly-46"]
RUN = ["release", "events.parquet", *FLAGS, *BOOKED, *ID, "--output", "out.csv"]
# With 40 items, two draws of noise are equal with probability below 1e-20.
MANY = {f"item {number}": 90 for number in range(40)}


def asked(**more: Any) -> dict[str, Any]:
    return {
        "input": "events.parquet", "user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-7,
        "max_items_per_user": 2, "ledger": "a.ledger", "dataset": "log", "id": "weekly-46",
        "output": "out.csv", **more,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return log_in(tmp_path, MANY)


def content(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "out.csv").read_bytes(), (folder / "out.csv.certificate.json").read_bytes()


def check_done(folder: Path, output: str = "out.csv") -> None:
    """One booking with a noted result, that result at the output with this booking, and no other files."""
    (booking,) = bookings(folder)
    assert booking.id == "weekly-46"
    assert booking.written is not None
    document = json.loads(certificate_of(folder / output).read_text())
    assert document["booking"] == booking.receipt()
    assert document["output"]["sha256"] == booking.written["sha256"]
    assert verify(folder / output).verified
    assert {name for name in names(folder) if name.startswith(".")} == set()


def test_the_same_command_again_changes_nothing(folder: Path) -> None:
    first = command(folder, *RUN)
    assert first.code == 0, first.err
    before, ledger = content(folder), (folder / "a.ledger").read_bytes()
    again = command(folder, *RUN)
    assert (again.code, again.err) == (0, "")
    assert again.out == (
        "Already released: the id 'weekly-46' has this result. Nothing was drawn or booked.\n\n" + first.out
    )
    assert content(folder) == before
    assert (folder / "a.ledger").read_bytes() == ledger
    check_done(folder)
    data = command(folder, *RUN, "--json").data
    assert data["already"] is True
    assert data["booking"] == bookings(folder)[0].receipt()


def test_each_run_writes_the_report(folder: Path) -> None:
    """Even if the release is done already: the run before may have ended between the two."""
    for _ in range(2):
        assert command(folder, *RUN, "--report", "report.html").code == 0
        (folder / "report.html").unlink()
    # A file that is not a report is not replaced.
    (folder / "notes.html").write_text("kept\n")
    assert command(folder, *RUN, "--report", "notes.html").code == 2
    assert (folder / "notes.html").read_text() == "kept\n"
    check_done(folder)


def test_the_release_read_back_is_the_same(folder: Path) -> None:
    first, again = (dphist.release(**asked(interval=0.95)) for _ in range(2))
    assert again.to_arrow().equals(first.to_arrow())
    assert again.document() == first.document()
    assert repr(again) == repr(first)
    assert again.written == first.written
    assert len(bookings(folder)) == 1


@pytest.mark.parametrize(
    "output",
    ["out.sqlite", *(pytest.param(f"out.{kind}", marks=pytest.mark.slow) for kind in ("jsonl", "duckdb"))],
)
def test_rounds_are_read_back_from_other_outputs(folder: Path, output: str) -> None:
    more = {"max_items_per_user": None, "output": output}
    first, again = (dphist.release(**asked(**more)) for _ in range(2))
    assert again.findings == first.findings
    assert again.to_arrow().equals(first.to_arrow())
    assert (again.budget, again.document(), again.written) == (first.budget, first.document(), first.written)
    assert len(bookings(folder)) == 1


@pytest.mark.slow
def test_a_release_into_the_database_that_it_reads(folder: Path) -> None:
    with duckdb.connect("log.duckdb") as connection:
        connection.execute("CREATE TABLE log AS FROM 'events.parquet'")
    into = asked(input="log.duckdb", table="log", output="log.duckdb", output_table="counts")
    first = dphist.release(**into)
    assert bookings(folder)[0].written is not None
    assert verify(folder / "log.duckdb", "counts").verified
    assert dphist.release(**into).to_arrow() == first.to_arrow()


def test_an_interrupt_after_counting_hands_out_the_release(folder: Path, monkeypatch: Any) -> None:
    @contextmanager
    def interrupted(parent: Path | None) -> Iterator[Path]:
        with private_folder(parent) as made:
            yield made
        raise KeyboardInterrupt

    monkeypatch.setattr("dphist.counting.duckdb.private_folder", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        dphist.release(**asked(id=None, output=None))
    assert "privacy budget was spent" in " ".join(stopped.value.__notes__)
    assert len(stopped.value.release) == len(MANY)  # type: ignore[attr-defined]


DIFFERENT = [
    (["--epsilon", "0.5"], "epsilon was 1.0 and is 0.5"),
    (["--where", "spent > 1"], "where was 'not given' and is 'spent > 1'"),
    (["--output", "other.csv"], "output was"),
    (["--memory", "2GB"], "memory was 'not given' and is '2GB'"),
    (["--input-name", "log"], "input was 'events.parquet' and is 'log'"),
    (["--count-name", "users"], "count-name was"),
]


@pytest.mark.parametrize("stopped", [False, True], ids=["written", "open"])
def test_an_id_belongs_to_one_request(folder: Path, stopped: bool) -> None:
    if stopped:
        stop_at("counting", KeyboardInterrupt)
    else:
        assert command(folder, *RUN).code == 0
    before = names(folder)
    for words, reason in DIFFERENT:
        done = command(folder, *RUN, *words)
        assert (done.code, done.out) == (2, ""), done
        assert "the id 'weekly-46' belongs to another release" in done.err
        assert reason in done.err
    assert names(folder) == before
    assert len(bookings(folder)) == 1
    # Paths are compared as a whole.
    (folder / "sub").mkdir()
    with pytest.raises(LedgerError, match="output was"):
        dphist.release(**asked(output="sub/out.csv"))


def test_a_missing_or_changed_result_is_not_drawn_again(folder: Path) -> None:
    assert command(folder, *RUN).code == 0
    (folder / "out.csv").rename(folder / "moved.csv")
    for words in ([], ["--force"]):
        done = command(folder, *RUN, *words)
        assert (done.code, done.out) == (1, "")
        assert "was released to out.csv, which is missing now" in done.err
        assert "choose another id" in done.err
        assert not (folder / "out.csv").exists()
    (folder / "out.csv").write_text("item,count\n")
    assert "not what was written" in command(folder, *RUN).err
    # Another complete and booked release in its place is an error too.
    (folder / "out.csv").unlink()
    (folder / "out.csv.certificate.json").unlink()
    assert command(folder, *RUN, "--id", "another").code == 0
    assert "not what was written" in command(folder, *RUN).err
    assert len(bookings(folder)) == 2


def test_an_unreadable_output_is_not_drawn_again(folder: Path) -> None:
    """A damaged database may have held the release, so --force does not help."""
    run = [*RUN[:-1], "out.sqlite"]
    stop_at("counting", KeyboardInterrupt, output="out.sqlite")
    (folder / "out.sqlite").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 16)
    for words in (run, [*run, "--force"]):
        done = command(folder, *words)
        assert (done.code, done.out) == (1, ""), done
        assert "the file is not a SQLite database" in done.err
    (folder / "out.sqlite").unlink()
    assert command(folder, *run).code == 0
    assert len(bookings(folder)) == 1


def stop_at(step: str, end: type[BaseException], **more: Any) -> BaseException:
    """Run the id, and end at a step with this exception."""

    def watch(name: str, share: float) -> None:
        if name == step:
            raise end

    with pytest.raises(end) as stopped:
        dphist.release(**asked(progress=watch, **more))
    return stopped.value


@pytest.mark.parametrize("step", ["counting", "adding noise", "writing"])
def test_an_interrupted_run_is_resumed(folder: Path, step: str) -> None:
    stopped = stop_at(step, KeyboardInterrupt)
    assert "nothing of this attempt was published, copied or seen" in "".join(stopped.__notes__)
    # The result is not handed out, because the next run draws another one.
    assert not hasattr(stopped, "release")
    assert [one.state for one in bookings(folder)] == ["not known to be written"]
    assert command(folder, *RUN).code == 0
    check_done(folder)


@pytest.mark.parametrize("step", ["counting", "adding noise"])
def test_a_failure_that_may_depend_on_the_events_closes_the_booking(folder: Path, step: str) -> None:
    failed: Any = stop_at(step, MemoryError)
    assert failed.booking["state"] == "closed"
    assert "choose another id" in failed.booking["summary"]
    before = names(folder)
    done = command(folder, *RUN)
    assert (done.code, done.out) == (2, "")
    assert "failed after its release was booked (MemoryError)" in done.err
    assert names(folder) == before
    assert [one.state for one in bookings(folder)] == ["failed (MemoryError)"]
    assert "failed (MemoryError)" in command(folder, "ledger", "show", "a.ledger").out
    assert command(folder, *RUN, "--id", "another").code == 0
    assert len(bookings(folder)) == 2


def test_a_result_that_cannot_be_written_closes_the_booking(folder: Path) -> None:
    """Whether it can be written may depend on the result, so it is not drawn until it fits."""

    def watch(step: str, share: float) -> None:
        (folder / "out.csv").write_text("another file\n")

    with pytest.raises(OutputError, match="choose another id") as failed:
        dphist.release(**asked(progress=watch))
    assert failed.value.release is None
    assert (folder / "out.csv").read_text() == "another file\n"
    (folder / "out.csv").unlink()
    done = command(folder, *RUN)
    assert (done.code, done.out) == (2, "")
    assert "failed after its release was booked (OutputError)" in done.err


def test_a_noted_result_that_cannot_be_put_in_place_is_not_drawn_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = Ledger.settle

    def settle_and_take(self: Ledger, *words: Any, **more: Any) -> None:
        settle(self, *words, **more)
        (folder / "out.csv").write_text("another file\n")

    monkeypatch.setattr(Ledger, "settle", settle_and_take)
    with pytest.raises(OutputError, match="choose another id"):
        dphist.release(**asked())
    (folder / "out.csv").unlink()
    done = command(folder, *RUN)
    assert (done.code, done.out) == (1, "")
    assert "missing now. Noise is not drawn twice" in done.err


def test_the_number_of_runs_is_limited(folder: Path) -> None:
    """Whether a run is killed may depend on the events after all."""
    for _ in range(3):
        stop_at("counting", KeyboardInterrupt)
    assert [one.state for one in bookings(folder)] == ["not known to be written after 3 runs"]
    done = command(folder, *RUN)
    assert (done.code, done.out) == (2, "")
    assert "was run 3 times without a result" in done.err
    assert len(bookings(folder)) == 1


def test_a_result_that_cannot_be_noted_is_not_written(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(Ledger.open.__kwdefaults__, "wait_seconds", 0.2)
    with closing(sqlite3.connect(folder / "a.ledger", isolation_level=None)) as other:

        def watch(step: str, share: float) -> None:
            if step == "writing" and share == 0.0:
                other.execute("BEGIN IMMEDIATE")

        with pytest.raises(LedgerError, match="Run the same command again"):
            dphist.release(**asked(progress=watch))
        other.execute("ROLLBACK")
    assert not (folder / "out.csv").exists()
    assert bookings(folder)[0].written is None
    again = command(folder, *RUN)
    assert again.code == 0, again.err
    check_done(folder)


def test_a_failure_that_cannot_be_noted_is_reported(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(Ledger.open.__kwdefaults__, "wait_seconds", 0.2)
    with closing(sqlite3.connect(folder / "a.ledger", isolation_level=None)) as other:

        def watch(step: str, share: float) -> None:
            if step == "adding noise":
                other.execute("BEGIN IMMEDIATE")
                raise MemoryError

        with pytest.raises(MemoryError) as failed:
            dphist.release(**asked(progress=watch))
    assert "do NOT run this id again" in "".join(failed.value.__notes__)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_files_are_put_in_place(folder: Path, number: int, monkeypatch: Any) -> None:
    """It waits until both are in place. The result is noted, so no other is drawn if the files are moved then."""
    settle = Ledger.settle

    def settle_and_signal(self: Ledger, *words: Any, **more: Any) -> None:
        settle(self, *words, **more)
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "settle", settle_and_signal)
        previous = signal.signal(number, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                dphist.release(**asked())
        finally:
            signal.signal(number, previous)
    for name in ("out.csv", "out.csv.certificate.json"):
        (folder / name).rename(folder / f"moved {name}")
    for words in ([], ["--force"]):
        done = command(folder, *RUN, *words)
        assert (done.code, done.out) == (1, "")
        assert "missing now. Noise is not drawn twice" in done.err


def test_another_plan_is_refused(folder: Path) -> None:
    """The public list has grown: the request is the same, but its plan is not."""
    (folder / "list.csv").write_text("item\ntea\n")
    stop_at("counting", KeyboardInterrupt, items="list.csv")
    (folder / "list.csv").write_text("item\ntea\nmilk\nbread\n")
    with pytest.raises(LedgerError, match="is not the one that was booked"):
        dphist.release(**asked(items="list.csv"))
    (folder / "list.csv").write_text("item\nmilk\n")
    assert len(dphist.release(**asked(items="list.csv"))) == 1


BAD = [
    ({"ledger": None, "dataset": None}, "id needs ledger, dataset and output"),
    ({"output": None}, "id needs ledger, dataset and output"),
    ({"output": "-"}, "what is printed cannot be taken back"),
    ({"id": " a"}, "id must have 1 to 200 printable characters"),
    ({"id": "a\n"}, "id must have 1 to 200 printable characters"),
    ({"engine": "spark"}, "id cannot be used with Spark"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_ids(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        dphist.release(**asked(**options))
    assert bookings(folder) == ()


def test_id_in_a_request_file(folder: Path) -> None:
    (folder / "request.toml").write_text(
        'input = "events.parquet"\nuser = "user"\nitem = "item"\nepsilon = 1\ndelta = 1e-7\noutput = "out.csv"\n'
        'max-items-per-user = 2\nledger = "a.ledger"\ndataset = "log"\nid = "weekly-46"\n'
    )
    for _ in range(2):
        assert command(folder, "release", "request.toml").code == 0
    check_done(folder)


# Kills: after each of them the same command completes the release, with one booking.


def check_retry(scene: Scene) -> None:
    """After a kill the same command succeeds, and a complete release stays as it is."""
    scene.kills += 1
    booked = bookings(scene.folder)
    if len(booked) > 1:
        raise Wrong("an id is booked twice")
    whole = booked and sha256_of_whole(scene.folder / scene.output, booked[0].receipt())
    noted = booked[0].written if booked else None
    if whole and noted is None:
        raise Wrong("a release is visible, but not noted in the ledger")
    label = "not booked" if not booked else "booked" if noted is None else "whole" if whole else "noted"
    scene.left[label] += 1
    if scene.left[label] > 3 and (scene.quick or not booked):
        return  # without a booking it is like a run without an id, which other tests cover
    again = command(scene.folder, *scene.words)
    if again.code != 0:
        raise Wrong(f"the next run fails: {again.err}")
    check_done(scene.folder, scene.output)
    result = sha256_of_whole(scene.folder / scene.output, booked[0].receipt()) if booked else None
    if whole and result != whole:
        raise Wrong("a complete release is drawn again")
    if noted is not None and result != noted["sha256"]:
        raise Wrong("a noted result is drawn again")


def sha256_of_whole(path: Path, booking: Receipt) -> str | None:
    """The digest of a complete release with this booking, if there is one."""
    if not certificate_of(path).exists():
        return None
    document = json.loads(certificate_of(path).read_text())
    if document.get("booking") != booking:
        return None
    if not verify(path).verified:
        raise Wrong("a certificate beside other data")
    return str(document["output"]["sha256"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("server") / "temp") as made:
        yield made


class IdScene(Scene):
    """The command with an id."""

    @property
    def words(self) -> list[str]:
        return [*RUN[:-1], self.output, *(["--force"] if self.force else [])]

    def check(self) -> None:
        check_retry(self)


def id_scene(place: Path, *, force: bool, output: str = "out.csv", other: str | None = None) -> IdScene:
    """With `force` there is an older release, which will be replaced, with `other` one in another table."""
    template = place / "template"
    template.mkdir()
    log_in(template, MANY)
    for table in (["release"] if force else []) + ([other] if other else []):
        words = ["--output", output, *(["--output-table", table] if table != "release" else [])]
        done = command(template, "release", "events.parquet", *FLAGS, *words)
        assert done.code == 0, done.err
    return IdScene(template, output, force)


@pytest.mark.parametrize(
    ("output", "force", "quick"),
    [
        ("out.csv", False, True),
        pytest.param("out.csv", False, False, marks=pytest.mark.slow),
        pytest.param("out.csv", True, False, marks=pytest.mark.slow),
        *(
            pytest.param(f"out.{kind}", force, False, marks=pytest.mark.slow)
            for kind in ("sqlite", "duckdb")
            for force in (False, True)
        ),
    ],
)
def test_a_kill_at_any_event_and_the_same_command_again(
    tmp_path: Path, served: Server, output: str, force: bool, quick: bool
) -> None:
    """At each event of Python that names a file: before the booking, before and between the files, at the note.

    In the quick run the command is repeated after three kills of each kind.
    """
    scene = id_scene(tmp_path, force=force, output=output)
    scene.quick = quick
    kill_at_each(served, scene, scene.check)
    # The kills have produced every possible state.
    assert set(scene.left) == {"not booked", "booked", "noted", "whole"}


@pytest.mark.parametrize(
    ("output", "force", "other"),
    [
        ("out.csv", False, None),
        ("out.sqlite", False, None),
        ("out.duckdb", False, None),
        ("out.sqlite", False, "kept"),
        ("out.duckdb", True, "kept"),
        pytest.param("out.csv", True, None, marks=pytest.mark.slow),
        pytest.param("out.sqlite", True, "kept", marks=pytest.mark.slow),
        pytest.param("out.duckdb", False, "kept", marks=pytest.mark.slow),
    ],
)
def test_a_kill_between_the_note_and_the_result(
    tmp_path: Path, served: Server, output: str, force: bool, other: str | None
) -> None:
    """The noted result is complete in the hidden folder, and the same command puts it in place.

    A new database lacks its name, one that exists has not committed its transaction; other tables stay.
    """
    scene = id_scene(tmp_path, force=force, output=output, other=other)
    assert served.ask(folder=scene.afresh(), words=scene.words, noted=True)["killed"]
    scene.check()
    assert dict(scene.left) == {"noted": 1}
    if other:
        assert verify(scene.folder / output, other).verified


@pytest.mark.slow
@pytest.mark.parametrize("output", ["out.sqlite", "out.duckdb"])
def test_a_kill_at_each_system_call_of_a_transaction(tmp_path: Path, served: Server, output: str) -> None:
    """Also while SQLite or DuckDB commits: its journal undoes or completes the transaction."""
    needs_strace()
    scene = id_scene(tmp_path, force=True, output=output)
    at_each_call(served, scene)
    assert set(scene.left) == {"not booked", "booked", "noted", "whole"}


def test_kills_find_noise_that_is_drawn_twice(
    tmp_path: Path, served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power: a run that ignores the result of an earlier one is detected."""
    monkeypatch.setattr("dphist.releasing.spending._find_release", lambda *_: None)
    scene = id_scene(tmp_path, force=True)
    with pytest.raises((Wrong, AssertionError, LedgerError)):
        kill_at_each(served, scene, scene.check, backwards=True)
    assert scene.left["whole"] + scene.left["noted"] > 0


# Two runs at once.


@contextmanager
def waiting(folder: Path, step: str) -> Iterator[subprocess.Popen[str]]:
    """A run of the id in another process, which waits at this step for a line of input."""
    words = [sys.executable, release_workers.__file__, "wait", str(folder), step]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{step}\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("step", ["writing", pytest.param("counting", marks=pytest.mark.slow)])
def test_only_one_of_two_runs(folder: Path, step: str) -> None:
    with waiting(folder, step) as first:
        for words in (RUN, [*RUN, "--force"], [*RUN, "--epsilon", "0.5"]):
            done = command(folder, *words)
            assert (done.code, done.out) == (4, ""), done
            assert done.err == "Error: another run of the id 'weekly-46' of the dataset 'log' is going on\n"
        # Other ids can run.
        assert command(folder, *RUN[:-1], "other.csv", "--id", "other").code == 0
        assert first.stdin is not None
        first.stdin.write("go on\n")
        first.stdin.close()
        assert first.wait() == 0
    before = content(folder)
    assert command(folder, *RUN).code == 0
    assert content(folder) == before
    assert [one.id for one in bookings(folder)] == ["weekly-46", "other"]
    assert {name for name in names(folder) if name.startswith(".")} == set()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["counting", "adding noise", "writing"])
def test_a_killed_run_is_resumed(folder: Path, step: str) -> None:
    with waiting(folder, step) as first:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert [one.written for one in bookings(folder)] == [None]
        done = command(folder, *RUN)
        assert done.code == 0, done.err
    check_done(folder)


def test_two_threads_are_two_runs(folder: Path) -> None:
    def watch(step: str, share: float) -> None:
        with pytest.raises(AlreadyRunning):
            dphist.release(**asked())

    dphist.release(**asked(progress=watch))
    check_done(folder)


def test_without_an_id_every_run_is_booked(folder: Path) -> None:
    found = dphist.release(
        events(COUNTS), user="user", item="item", epsilon=1.0, delta=1e-7, max_items_per_user=2,
        ledger=folder / "a.ledger", dataset="log",
    )  # fmt: skip
    assert "id" not in found.document()["request"]
    words = ["release", "events.parquet", *BUDGET, "--top", "3", *BOOKED, "--output", "a.csv"]
    assert command(folder, *words).code == 0
    assert [(booking.id, booking.run) for booking in bookings(folder)] == [(None, None)] * 2
