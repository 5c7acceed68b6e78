"""Releases from standard input, which leaves no copy, and to standard output; and packed text files."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import chdir, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import dphist
from dphist.certificate import reading as reader
from dphist.certificate.text import certificate_text, self_digest
from dphist.cli import main
from dphist.errors import InvalidParameter
from engine_cases import json_lines
from processes import wait_until

ASKED = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6"]
CAPPED = [*ASKED, "--max-items-per-user", "1"]
SECRET = "S3CR3T-cell"


def events() -> Any:
    return pa.table({"user": range(900), "item": ["tea"] * 600 + ["milk, hot"] * 299 + [SECRET]})


def packed(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "parquet":
        pa.parquet.write_table(events(), out)
    elif kind == "arrow":
        with pa.ipc.new_stream(out, events().schema) as writer:
            writer.write_table(events())
    elif kind == "jsonl":
        out.write(json_lines(events()).encode())
    elif kind == "json":
        out.write(json.dumps(events().to_pylist()).encode())
    else:
        pa.csv.write_csv(events(), out, pa.csv.WriteOptions(delimiter="\t" if kind == "tsv" else ","))
    return out.getvalue()


def run(folder: Path, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """`dphist` in this process, with its own folder for temporary files, which must be empty at the end."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    streams = [io.TextIOWrapper(io.BytesIO(given)) for given in (data, b"", b"")]
    with (
        patch.multiple(sys, argv=["dphist", *arguments], stdin=streams[0], stdout=streams[1], stderr=streams[2]),
        patch.object(tempfile, "tempdir", str(work)), chdir(folder),
    ):  # fmt: skip
        try:
            main()
            code: Any = 0
        except SystemExit as end:
            code = end.code
    for stream in streams[1:]:
        stream.flush()
    out, err = (stream.buffer.getvalue() for stream in streams[1:])
    assert list(work.iterdir()) == []
    assert SECRET.encode() not in out + err
    return subprocess.CompletedProcess(arguments, int(code or 0), out, err)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "parquet", "arrow"])
def test_events_from_standard_input(tmp_path: Path, kind: str) -> None:
    data = packed(kind)
    if kind == "csv":
        data = gzip.compress(data)  # found by its first bytes
    # Where the limit is chosen, the events are read twice.
    asked = ASKED if kind == "csv" else CAPPED
    words = ["release", "-", "--input-format", kind, *asked, "--output", "out.csv"]
    done = run(tmp_path, *words, data=data)
    assert done.returncode == 0, done.stderr
    assert dphist.verify(tmp_path / "out.csv").verified
    request = json.loads((tmp_path / "out.csv.certificate.json").read_text())["request"]
    assert request["input"] == "-"
    assert request["input-format"] == kind
    found = pa.csv.read_csv(tmp_path / "out.csv")
    assert set(found["item"].to_pylist()) == {"tea", "milk, hot"}


def test_invalid_standard_input(tmp_path: Path) -> None:
    asked = ["release", "-", *CAPPED, "--output", "out.csv"]
    for more, data, message in (
        ([], b"user,item\n", "standard input needs --input-format"),
        (["--input-format", "sqlite"], b"", "standard input needs --input-format"),
        (["--input-format", "csv", "--engine", "spark"], b"user,item\n", "Spark cannot read standard input"),
        (["--input-format", "csv"], b"", "standard input is empty"),
        (["--input-format", "csv"], b"user,thing\n1,2\n", "standard input has no column 'item'"),
        (["--input-format", "parquet"], b"PAR1 not PAR1", "standard input cannot be read"),
        (["--input-format", "csv.gz"], b"", "standard input needs --input-format"),
        (["--input-format", "csv", "--item", "upper(item)"], b"user,item\n1,2\n", '--item "NAME=upper(item)"'),
    ):
        done = run(tmp_path, *asked, *more, data=data)
        assert done.returncode == 2
        assert message in done.stderr.decode()
        assert "work" not in done.stderr.decode()
    assert not (tmp_path / "out.csv").exists()


@pytest.fixture
def interrupts() -> Iterator[None]:
    """A shell ignores SIGINT for processes in the background, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_the_copy_of_standard_input_is_removed_after_a_signal(tmp_path: Path, how: signal.Signals) -> None:
    work = tmp_path / "work"
    work.mkdir()
    command = [sys.executable, "-m", "dphist", "release", "-", "--input-format", "csv", *CAPPED]
    with subprocess.Popen(
        [*command, "--output", "out.csv", "--temp-folder", str(work)], cwd=tmp_path, stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        # More than is kept in memory, and no end of file.
        process.stdin.write(b"user,item\n" + b"1,some item or other\n" * 200_000)
        process.stdin.flush()
        wait_until(
            lambda: any(path.stat().st_size for path in work.glob("dphist-*/input.csv")), "the spooled file"
        )
        (copy,) = work.glob("dphist-*/input.csv")
        assert copy.stat().st_mode & 0o777 == 0o600
        assert copy.parent.stat().st_mode & 0o777 == 0o700
        while process.poll() is None:
            # Python misses a signal that comes just before it waits for input.
            process.send_signal(how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
        wait_until(lambda: not list(work.iterdir()), "the end of the private folder")
        process.stdin.close()
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.usefixtures("quick_curve", "plans_once")
@pytest.mark.parametrize("kind", [None, "csv", "tsv", "jsonl"])
def test_a_release_to_standard_output(tmp_path: Path, kind: str | None) -> None:
    more = [] if kind is None else ["--output-format", kind]
    out = ["--output", "-", "--certificate", "sealed.json"]
    again = ["release", "-", "--input-format", "csv", *CAPPED, *out, *more]
    done = run(tmp_path, *again, data=packed("csv"))
    assert done.returncode == 0, done.stderr
    first = {"jsonl": b'{"item":"tea","count":', "tsv": b'"item"\t"count"\n'}.get(kind or "", b'"item","count"\n')
    assert done.stdout.startswith(first)
    assert len(done.stdout.splitlines()) == (2 if kind == "jsonl" else 3)
    assert b"sealed.json" in done.stderr
    (tmp_path / "data").write_bytes(done.stdout)
    assert dphist.verify(tmp_path / "data", certificate=tmp_path / "sealed.json").verified
    (tmp_path / "data").write_bytes(done.stdout.replace(b"tea", b"tee"))
    assert not dphist.verify(tmp_path / "data", certificate=tmp_path / "sealed.json").verified
    if kind != "csv":
        return
    (tmp_path / "data").write_bytes(done.stdout)
    checked = run(tmp_path, "verify", "data", "--certificate", "sealed.json")
    assert checked.returncode == 0
    assert run(tmp_path, "report", "data", "--certificate", "sealed.json", "--json").returncode == 0
    # Nothing is replaced, and nothing is printed, without --force.
    refused = run(tmp_path, *again, data=packed("csv"))
    assert refused.returncode == 1
    assert refused.stdout == b""
    assert b"sealed.json already exists" in refused.stderr
    summary = run(tmp_path, *again, "--force", "--json", data=packed("csv"))
    assert summary.stdout.startswith(first)
    assert json.loads(summary.stderr)["output"] == "standard output"


def test_signed_data_has_the_name_of_its_certificate(tmp_path: Path) -> None:
    run(tmp_path, "keygen", "k")
    asked = ["release", "-", "--input-format", "csv", *CAPPED, "--output", "-", "--sign", "k", "--certificate"]
    refused = run(tmp_path, *asked, "sealed.json", data=packed("csv"))
    assert refused.returncode == 2
    assert refused.stdout == b""
    assert b"NAME.certificate.json" in refused.stderr
    done = run(tmp_path, *asked, "queries.csv.certificate.json", data=packed("csv"))
    (tmp_path / "queries.csv").write_bytes(done.stdout)
    checked = run(tmp_path, "verify", "queries.csv", "--public-key", "k.pub")
    assert checked.returncode == 0, checked.stdout


def test_a_closed_pipe(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(packed("csv"))
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "dphist", "release", "log.csv", *CAPPED, "--output=-", "--certificate", "c.json"],
        stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, check=False,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == 1
    assert b"standard output cannot be written" in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv"]


@pytest.mark.parametrize("unbuffered", [pytest.param("", marks=pytest.mark.slow), "1"])
def test_a_short_write_is_continued(tmp_path: Path, unbuffered: str) -> None:
    (tmp_path / "log.csv").write_bytes(packed("csv"))
    (tmp_path / "list.csv").write_text("item\n" + "".join(f"item {number}\n" for number in range(2000)))
    command = [sys.executable, "-m", "dphist", "release", "log.csv", *CAPPED, "--items", "list.csv"]
    reading, writing = os.pipe()
    room = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(
        [*command, "--output", "-", "--certificate", "sealed.json"], cwd=tmp_path, stdout=writing,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    ) as process:  # fmt: skip
        os.close(writing)

        def held() -> int:
            return int.from_bytes(fcntl.ioctl(reading, termios.FIONREAD, bytes(4)), sys.byteorder)

        # The pipe is full, so the process is in a write, which stopping ends with a short count.
        wait_until(lambda: held() == room or process.poll() is not None, "a full pipe")
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.send_signal(signal.SIGCONT)
        with open(reading, "rb") as pipe:
            data = pipe.read()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert len(data.splitlines()) == 2001
    (tmp_path / "data").write_bytes(data)
    assert dphist.verify(tmp_path / "data", certificate=tmp_path / "sealed.json").verified


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"output": "-"}, "output='-' needs certificate"),
        ({"output": "a.csv", "certificate": "b.json"}, "certificate is for output='-'"),
        ({"certificate": "b.json"}, "certificate is for output='-'"),
        ({"output": "-", "certificate": "b.json", "output_format": "parquet"}, "can be csv, tsv, jsonl"),
        ({"output": "-", "certificate": "b.json", "output_table": "t"}, "table is for databases"),
        ({"output": "-", "certificate": "log.csv"}, "cannot write the release to"),
        (
            {"output": "-", "certificate": "budget.db", "ledger": "budget.db", "dataset": "d"},
            "it is the ledger",
        ),
    ],
)
def test_invalid_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_bytes(packed("csv"))
    with pytest.raises(InvalidParameter, match=message):
        dphist.release(
            "log.csv", user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=1, force=True, **more
        )
    assert (tmp_path / "log.csv").read_bytes() == packed("csv")


@pytest.mark.usefixtures("plans_once")
@pytest.mark.parametrize("kind", ["csv.gz", "tsv.gz", "jsonl.gz"])
def test_packed_text_is_the_same_for_the_same_rows(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        dphist.release(
            events(), user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=1, seed=5,
            output=tmp_path / f"{name}.{kind}",
        )  # fmt: skip
    first = (tmp_path / f"a.{kind}").read_bytes()
    assert first == (tmp_path / f"b.{kind}").read_bytes()
    assert b"tea" in gzip.decompress(first)
    # It can be read as an input again.
    again = dphist.release(
        tmp_path / f"a.{kind}", user="count", item="item", epsilon=1, delta=1e-6, max_items_per_user=1, seed=5
    )
    assert len(again) == 0


@pytest.mark.parametrize("kind", ["csv.gz", "jsonl.gz"])
def test_packed_text_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    dphist.release(events(), user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=1, output=path)
    assert dphist.verify(path).verified
    certificate = tmp_path / f"a.{kind}.certificate.json"
    for data, message in (
        (gzip.compress(b"\n" * (1 << 22)), "unpacks to more than"),
        (path.read_bytes()[:-9], "cannot be read as"),
        (b"\x1f\x8b" + bytes(40), "cannot be read as"),
        (b"not gzip", "cannot be read as"),
    ):
        monkeypatch.setattr(reader, "LEAST_TEXT", 1 << 20)
        document = json.loads(certificate.read_text())
        document["output"]["sha256"] = sha256(data).hexdigest()
        document["self_sha256"] = self_digest(document)
        certificate.write_text(certificate_text(document))
        path.write_bytes(data)
        problems = dphist.verify(path).problems
        assert message in str(problems)
