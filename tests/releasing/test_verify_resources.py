"""`verify` of files that anybody may have made: small ones that decode to gigabytes, pipes, devices, odd JSON."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.outputs import readback
from dphist.outputs.certificate_text import LARGEST_CERTIFICATE, SEAL, parse_certificate, self_digest
from release_data import resealed


def document_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{path}.certificate.json").read_text())
    return found


def certify(path: Path, **output: Any) -> None:
    """A certificate by a forger, for whatever is in the file."""
    document = document_of(path)
    document["output"] |= {"sha256": sha256(path.read_bytes()).hexdigest(), **output}
    Path(f"{path}.certificate.json").write_text(resealed(document))


def verified_within(path: Path, megabytes: int, table: int = 1024) -> dict[str, Any]:
    """What the command prints; it may take this many MiB of memory, and a table of a small file this many."""
    code = (
        "import resource, sys; from dphist.cli import main; from dphist.outputs import readback\n"
        f"readback.LEAST_BYTES = {table << 20}\n"
        f"resource.setrlimit(resource.RLIMIT_DATA, ({megabytes << 20}, resource.RLIM_INFINITY))\n"
        "sys.argv[:1] = ['dphist', 'verify', '--json']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 1, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not found["verified"]
    return found


BOMB_ROWS = 40_000_000


def test_parquet_that_decodes_to_gigabytes(released: Callable[[str], Path]) -> None:
    """Before: 16 bytes of memory and more for each of its rows, whatever their number."""
    path = released("out.parquet")
    part = pa.table({"item": pa.repeat("tea", 1_000_000), "count": pa.repeat(900.0, 1_000_000)})
    with pq.ParquetWriter(path, part.schema, compression="zstd", write_statistics=False) as writer:
        for _ in range(BOMB_ROWS // part.num_rows):
            writer.write_table(part, row_group_size=part.num_rows)
    assert path.stat().st_size < 200_000
    # Rows that the certificate does not have are not decoded.
    certify(path)
    assert "as many rows" in str(verified_within(path, 512, 8 << 10)["problems"])
    certify(path, rows=BOMB_ROWS)
    assert "takes more than 64 MiB of memory" in str(verified_within(path, 512, 64)["problems"])


def test_one_long_text_many_times(released: Callable[[str], Path]) -> None:
    """A batch of a few rows is 2 GB by itself: the child runs out of what it may take, and says so."""
    path = released("out.parquet")
    item = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["x" * 1_000_000])
    table = pa.table({"item": item, "count": [900.0] * 2000})
    pq.write_table(table, path, store_schema=False, dictionary_pagesize_limit=1 << 27, compression="zstd")
    assert path.stat().st_size < 1000
    certify(path, rows=2000)
    assert "MiB of memory" in str(verified_within(path, 768, 64)["problems"])


def test_compressed_arrow_and_columns_of_nothing(released: Callable[[str], Path]) -> None:
    path = released("out.arrow")
    rows = 8_000_000
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, pa.schema({"item": pa.int64(), "count": pa.float64()}), options=options) as writer:
        writer.write_batch(
            pa.record_batch([pa.nulls(rows, pa.int64()), pa.nulls(rows, pa.float64())], names=["item", "count"])
        )
    assert path.stat().st_size < 100_000
    certify(path, rows=rows, types=["int64", "double"])
    assert "more than 64 MiB of memory" in str(verified_within(path, 1024, 64)["problems"])
    # A null takes no room at all until it is used.
    nothing = pa.record_batch([pa.nulls(10**9), pa.nulls(10**9)], names=["item", "count"])
    with pa.ipc.new_file(path, nothing.schema) as writer:
        writer.write_batch(nothing)
    certify(path, rows=10**9, types=["null", "null"])
    assert "more than 1,024 MiB of memory" in str(verified_within(path, 3 * 1024)["problems"])


def test_what_stands_for_many_values_is_refused(released: Callable[[str], Path]) -> None:
    path = released("out.arrow")
    for column in (
        pa.array(["tea"] * 2).dictionary_encode(),
        pa.array(["tea"] * 2, pa.string_view()),
        pa.array([None, None], pa.list_(pa.null(), 1_000_000_000)),
        pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["tea"])),
    ):
        table = pa.table([column, pa.array([900.0, 700.0])], names=["item", "count"])
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        certify(path, types=[str(kind) for kind in table.schema.types])
        found = dphist.verify(path)
        assert (
            found.problems[0] == "out.arrow cannot be read as arrow: it has a column of a type that no release has"
        )


def test_a_reader_that_does_not_end(released: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readback, "SECONDS", 0.0)
    found = dphist.verify(released("out.parquet"))
    assert found.problems[0] == "out.parquet cannot be read as parquet: reading it takes longer than 0 seconds"


def promptly(action: Callable[[], Any]) -> Any:
    """Its result, or a failure in place of a test that hangs: opening a pipe waits for its other end for ever."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(action())
        except dphist.DphistError as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120)
    assert results, "it hangs"
    return results[0]


def test_pipes_devices_and_folders_are_no_certificates(released: Callable[[str], Path], tmp_path: Path) -> None:
    path = released("out.csv")
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/zero", "/dev/null"):
        found = promptly(partial(dphist.verify, path, certificate=place))
        assert found.problems[0].endswith("cannot be read: it is not a regular file"), place
        assert not found.verified
    for place in (tmp_path / "pipe", "/dev/zero"):
        assert isinstance(promptly(partial(dphist.verify, place)), dphist.InputError)


def test_a_pipe_inside_of_a_folder_and_beside_a_database(released: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "part-0.parquet")
    assert not promptly(lambda: dphist.verify(folder)).verified
    path = released("out.sqlite")
    os.mkfifo(f"{path}-journal")
    found = promptly(lambda: dphist.verify(path))
    assert "not a file" in found.problems[0]


def test_certificates_of_any_size(released: Callable[[str], Path], tmp_path: Path) -> None:
    """A sparse file of 12 GB is refused by its size."""
    path = released("out.csv")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(12 << 30)
    limit = resource.getrlimit(resource.RLIMIT_DATA)
    found = dphist.verify(path, certificate=huge)
    assert resource.getrlimit(resource.RLIMIT_DATA) == limit
    assert found.problems == ("huge.json is larger than 16 MiB, too large for a certificate",)
    huge.write_text("[" * LARGEST_CERTIFICATE)
    assert dphist.verify(path, certificate=huge).problems == ("huge.json is damaged: it is not JSON",)


def test_a_key_twice_has_two_meanings(released: Callable[[str], Path]) -> None:
    """The first `guarantee` is for the reader's eyes, the last one is what Python's reader takes."""
    path = released("out.csv")
    certificate = Path(f"{path}.certificate.json")
    text = certificate.read_text()
    for key in ("guarantee", "epsilon", "rows"):
        start = text.index(f'"{key}"')
        certificate.write_text(text[:start] + f'"{key}": "Nothing at all is revealed.",\n  ' + text[start:])
        assert json.loads(certificate.read_text()) == json.loads(text)
        assert dphist.verify(path).problems == (
            f"out.csv.certificate.json has the key {key!r} twice: readers could disagree on its value",
        )


def test_one_content_has_one_text(released: Callable[[str], Path]) -> None:
    path = released("out.csv")
    text = Path(f"{path}.certificate.json").read_text()
    document = json.loads(text)
    assert parse_certificate(text, "it") == (document, [])
    changed = {
        "a byte order mark": "\ufeff" + text,
        "more behind it": text + "{}",
        "spaces": text.replace('": ', '":  ', 1),
        "another way to write a number": text.replace("1e-06", "0.000001", 1),
        "an escape": text.replace('"epsilon"', '"epsilo\\u006e"', 1),
        "no end of line": text.rstrip(),
        "in one line": json.dumps(document),
        "lines of another system": text.replace("\n", "\r\n"),
    }
    for what, one in changed.items():
        assert one != text, what
        assert parse_certificate(one, "it")[1], what
    # What turns a line round is escaped where it is written, and refused where it is not.
    document["request"]["user"] = "user\u202e\u2066"
    document[SEAL] = self_digest(document)
    sealed = resealed(document)
    assert "\\u202e\\u2066" in sealed
    assert parse_certificate(sealed, "it")[1] == []
    assert parse_certificate(sealed.replace("\\u202e", "\u202e"), "it")[1]


def test_a_line_of_json_with_a_column_twice(released: Callable[[str], Path]) -> None:
    path = released("out.jsonl")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"count"', '"count":5000.0,"count"'), *lines[1:]]) + "\n")
    certify(path)
    assert dphist.verify(path).problems[0] == "out.jsonl cannot be read as jsonl"
