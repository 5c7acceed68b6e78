"""Runs with an id: a retry neither spends twice nor draws noise twice; kills, races, and what is refused."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import pytest
from test_release_kills import Scene, Server, Wrong, kill_at_each, server

import dphist
import release_workers
from dphist.counting.workspace import private_folder
from dphist.errors import AlreadyRunning, DphistError, InvalidParameter, LedgerError, OutputError
from dphist.ledger import Ledger
from release_commands import BOOKED, BUDGET, COUNTS, FLAGS, bookings, certificate, command, log_in, names
from release_data import events, resealed

ID = ["--id", "weekly-46"]
RUN = ["release", "events.parquet", *FLAGS, *BOOKED, *ID, "--output", "out.csv"]
# 40 items: two draws of noise are the same with less than 1e-20.
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


def check_done(folder: Path) -> None:
    """One booking, which is noted; one release, which is that of the booking; nothing else."""
    (booking,) = bookings(folder)
    assert booking.id == "weekly-46"
    assert booking.written is not None
    assert certificate(folder, "out.csv")["booking"] == booking.receipt()
    assert dphist.verify(folder / "out.csv").verified
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


def test_the_report_is_made_by_each_run(folder: Path) -> None:
    """Also by one that finds its release done: the run before it may have ended between the two."""
    for _ in range(2):
        assert command(folder, *RUN, "--report", "out.txt").code == 0
    (folder / "out.txt").unlink()
    assert command(folder, *RUN, "--report", "out.txt").code == 0
    assert (folder / "out.txt").exists()
    # What is not a report is not replaced.
    (folder / "notes.txt").write_text("kept\n")
    assert command(folder, *RUN, "--report", "notes.txt").code == 2
    assert (folder / "notes.txt").read_text() == "kept\n"
    check_done(folder)


def test_a_release_that_is_read_back_is_the_same(folder: Path) -> None:
    first = dphist.release(**asked(interval=0.95))
    again = dphist.release(**asked(interval=0.95))
    assert again.to_arrow().equals(first.to_arrow())
    assert again.document() == first.document()
    assert repr(again) == repr(first)
    assert again.written == first.written
    assert len(bookings(folder)) == 1


@pytest.mark.parametrize("output", ["out.parquet", "out.jsonl", "out.sqlite", "out.duckdb"])
def test_read_back_from_other_outputs_with_a_chosen_limit(folder: Path, output: str) -> None:
    more = {"max_items_per_user": "auto", "mechanism": "laplace", "output": output}
    first, again = (dphist.release(**asked(**more)) for _ in range(2))
    assert again.to_arrow().equals(first.to_arrow())
    assert (again.budget, again.document(), again.written) == (first.budget, first.document(), first.written)
    assert len(bookings(folder)) == 1


def test_what_was_on_offer_is_not_believed_from_a_file(folder: Path) -> None:
    chosen = {**asked(output="out.parquet"), "max_items_per_user": "auto"}
    first = dphist.release(**chosen).document()
    forged = {
        **first["choice"],
        "goal": "keys",
        "certificate": {**first["choice"]["certificate"], "delta": 1e-300},
    }
    place = folder / "out.parquet.certificate.json"
    place.write_text(resealed({**certificate(folder, "out.parquet"), "choice": forged}))
    assert not dphist.verify("out.parquet").verified
    assert dphist.release(**chosen).document()["choice"] == first["choice"]


def test_a_release_into_the_database_that_it_reads(folder: Path) -> None:
    with duckdb.connect("log.duckdb") as connection:
        connection.execute("CREATE TABLE log AS FROM 'events.parquet'")
    into = asked(input="log.duckdb", table="log", output="log.duckdb", output_table="counts")
    first = dphist.release(**into)
    assert bookings(folder)[0].written is not None
    assert dphist.verify("log.duckdb", table="counts").verified
    assert dphist.release(**into).to_arrow() == first.to_arrow()


def test_a_failure_of_the_engine_at_its_end_keeps_what_was_paid_for(folder: Path, monkeypatch: Any) -> None:
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
def test_an_id_is_that_of_one_request(folder: Path, stopped: bool) -> None:
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
    # Neither a folder of the same name elsewhere: paths are compared as a whole.
    (folder / "sub").mkdir()
    with pytest.raises(LedgerError, match="output was"):
        dphist.release(**asked(output="sub/out.csv"))


def test_what_was_released_is_not_drawn_again(folder: Path) -> None:
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
    # Another release in its place, whole and booked, is not that one either.
    (folder / "out.csv").unlink()
    (folder / "out.csv.certificate.json").unlink()
    assert command(folder, *RUN, "--id", "another").code == 0
    assert "not what was written" in command(folder, *RUN).err
    assert len(bookings(folder)) == 2


def test_what_cannot_be_read_is_not_drawn_again(folder: Path) -> None:
    """A database that is not one any more may have held the release, with --force too."""
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
    """A run that ends at a step in this way."""

    def watch(name: str, share: float) -> None:
        if name == step:
            raise end

    with pytest.raises(end) as stopped:
        dphist.release(**asked(progress=watch, **more))
    return stopped.value


@pytest.mark.parametrize("step", ["counting", "adding noise", "writing"])
def test_a_run_that_was_stopped_is_taken_up(folder: Path, step: str) -> None:
    stopped = stop_at(step, KeyboardInterrupt)
    assert "nothing of this attempt was published, copied or seen" in "".join(stopped.__notes__)
    # What was drawn is not handed out: it would be released beside what the next run draws.
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


def test_what_could_not_be_written_closes_the_booking(folder: Path) -> None:
    """Whether a result can be written may depend on it, such as on a full disk: it is not drawn until it fits."""

    def watch(step: str, share: float) -> None:
        (folder / "out.csv").write_text("another's\n")

    with pytest.raises(OutputError, match="choose another id") as failed:
        dphist.release(**asked(progress=watch))
    assert failed.value.release is None
    assert (folder / "out.csv").read_text() == "another's\n"
    (folder / "out.csv").unlink()
    done = command(folder, *RUN)
    assert (done.code, done.out) == (2, "")
    assert "failed after its release was booked (OutputError)" in done.err


def test_a_result_whose_name_is_taken_at_the_last_moment_is_not_drawn_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was noted, and could not be put in place: the booking has its result."""
    settle = Ledger.settle

    def settle_and_take(self: Ledger, *words: Any, **more: Any) -> None:
        settle(self, *words, **more)
        (folder / "out.csv").write_text("another's\n")

    monkeypatch.setattr(Ledger, "settle", settle_and_take)
    with pytest.raises(OutputError, match="choose another id"):
        dphist.release(**asked())
    (folder / "out.csv").unlink()
    done = command(folder, *RUN)
    assert (done.code, done.out) == (1, "")
    assert "missing now. Noise is not drawn twice" in done.err


def test_a_run_is_repeated_a_few_times_only(folder: Path) -> None:
    """Whether it is killed may depend on the events after all."""
    for _ in range(3):
        stop_at("counting", KeyboardInterrupt)
    assert [one.state for one in bookings(folder)] == ["not known to be written after 3 runs"]
    done = command(folder, *RUN)
    assert (done.code, done.out) == (2, "")
    assert "was run 3 times without a result" in done.err
    assert len(bookings(folder)) == 1


def test_a_result_that_cannot_be_noted_is_not_shown(folder: Path, monkeypatch: Any) -> None:
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


def test_a_failure_that_cannot_be_noted_says_so(folder: Path, monkeypatch: Any) -> None:
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
def test_a_signal_while_the_files_get_their_names(folder: Path, number: int, monkeypatch: Any) -> None:
    """It waits until both are there, and the ledger knew of them before: no other result is drawn for a file that
    was moved meanwhile."""
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


def test_another_plan_is_another_release(folder: Path) -> None:
    """The list of public items has grown: the request is the same, and its plan is not."""
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


def test_the_key_of_a_request_file(folder: Path) -> None:
    (folder / "request.toml").write_text(
        'input = "events.parquet"\nuser = "user"\nitem = "item"\nepsilon = 1\ndelta = 1e-7\noutput = "out.csv"\n'
        'max-items-per-user = 2\nledger = "a.ledger"\ndataset = "log"\nid = "weekly-46"\n'
    )
    for _ in range(2):
        assert command(folder, "release", "request.toml").code == 0
    check_done(folder)


# Kills: after each of them the same command finishes the work, with one booking.


def check_retry(one: Scene) -> None:
    """After a kill the same command succeeds; what was whole stays as it is."""
    one.kills += 1
    booked = bookings(one.folder)
    if len(booked) > 1:
        raise Wrong("an id is booked twice")
    whole = None
    with suppress(DphistError, OSError):
        found = certificate(one.folder, "out.csv")
        if (
            booked
            and found.get("booking") == booked[0].receipt()
            and dphist.verify(one.folder / "out.csv").verified
        ):
            whole = content(one.folder)
    noted = booked[0].written if booked else None
    if whole is not None and noted is None:
        raise Wrong("a release is visible, and the ledger does not know of it")
    label = "not booked" if not booked else "booked" if noted is None else "whole" if whole else "noted"
    one.left[label] += 1
    if one.left[label] > 3 and (one.quick or not booked):
        return  # without a booking as without an id, which other tests see to
    again = command(one.folder, *one.words)
    if again.code != 0:
        raise Wrong(f"the next run fails: {again.err}")
    check_done(one.folder)
    if whole is not None and content(one.folder) != whole:
        raise Wrong("what was released is drawn again")
    if noted is not None and sha256(content(one.folder)[0]).hexdigest() != noted["sha256"]:
        raise Wrong("what was noted is drawn again")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("server") / "temp", outputs=("out.csv",)) as made:
        yield made


class IdScene(Scene):
    """The command with an id."""

    @property
    def words(self) -> list[str]:
        return [*RUN, "--force"] if self.force else RUN


def id_scene(place: Path, *, force: bool) -> IdScene:
    template = place / "template"
    template.mkdir()
    log_in(template, MANY)
    if force:
        # An older release, which is replaced.
        done = command(template, "release", "events.parquet", *FLAGS, "--output", "out.csv")
        assert done.code == 0
    return IdScene(template, "out.csv", force)


@pytest.mark.parametrize(
    ("force", "quick"),
    [
        (False, True),
        pytest.param(False, False, marks=pytest.mark.slow),
        pytest.param(True, False, marks=pytest.mark.slow),
    ],
)
def test_a_kill_at_any_event_and_the_same_command_again(
    tmp_path: Path, served: Server, force: bool, quick: bool
) -> None:
    """At each event of Python that names a file: before the booking, before and between the files, at the note.

    In the quick run the command is repeated after three kills of each kind.
    """
    one = id_scene(tmp_path, force=force)
    one.quick = quick
    kill_at_each(served, one, lambda: check_retry(one))
    # Kills have hit all that can be left.
    assert set(one.left) == {"not booked", "booked", "whole", "noted"}


def test_kills_find_noise_that_is_drawn_twice(
    tmp_path: Path, served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power: a run that takes no notice of what an earlier one has written is caught."""
    from dphist.releasing import spending

    monkeypatch.setattr(spending, "_find_release", lambda *_: None)
    one = id_scene(tmp_path, force=True)
    with pytest.raises((Wrong, AssertionError, LedgerError)):
        kill_at_each(served, one, lambda: check_retry(one), backwards=True)
    assert one.left["whole"] + one.left["noted"] > 0


# Two runs at once.


@contextmanager
def waiting(folder: Path, step: str) -> Iterator[subprocess.Popen[str]]:
    """A run of the id that has come to this step, and waits there for a line."""
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
        # Other ids do not wait for it.
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


@pytest.mark.parametrize(
    "step", ["adding noise", *(pytest.param(one, marks=pytest.mark.slow) for one in ("counting", "writing"))]
)
def test_a_run_that_was_killed_is_taken_up(folder: Path, step: str) -> None:
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


def test_what_is_not_an_id_stays_as_it_was(folder: Path) -> None:
    found = dphist.release(
        events(COUNTS), user="user", item="item", epsilon=1.0, delta=1e-7, max_items_per_user=2,
        ledger=folder / "a.ledger", dataset="log",
    )  # fmt: skip
    assert "id" not in found.document()["request"]
    (booking,) = bookings(folder)
    assert (booking.id, booking.run) == (None, None)
    assert (
        command(folder, "release", "events.parquet", *BUDGET, "--top", "3", *BOOKED, "--output", "a.csv").code == 0
    )
    assert len(bookings(folder)) == 2
    assert Counter(one.id for one in bookings(folder)) == {None: 2}
