"""`verify` of hostile files: small ones that decode to gigabytes, pipes, devices and ambiguous JSON."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.aliases import ArrowArray
from dphist.certificate import reading
from dphist.certificate.text import LARGEST_CERTIFICATE, SEAL, parse_certificate, self_digest
from release_data import resealed


def document_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{path}.certificate.json").read_text())
    return found


def certify(path: Path, **output: Any) -> None:
    """Forge a certificate for whatever is in the file."""
    document = document_of(path)
    document["output"] |= {"sha256": sha256(path.read_bytes()).hexdigest(), **output}
    Path(f"{path}.certificate.json").write_text(resealed(document))


_LIMITED = """
import json, resource, sys
import dphist
from dphist.certificate import reading
from dphist.certificate import reading
for path, process, table in json.load(sys.stdin):
    reading.LEAST_BYTES = table << 20
    resource.setrlimit(resource.RLIMIT_DATA, (process << 20, resource.RLIM_INFINITY))
    print(json.dumps(dphist.verify(path).problems))
"""


def test_small_files_that_decode_to_gigabytes(released: Callable[[str], Path], tmp_path: Path) -> None:
    """Each is verified within the MiB that the process may take, and those that a table may take."""
    cases: list[tuple[Path, int, int, str]] = []

    # 10 million rows of 216 bytes in a few KB.
    path = released("out.parquet")
    item = pa.DictionaryArray.from_arrays(np.zeros(1_000_000, np.int32), ["x" * 200])
    part = pa.table({"item": item, "count": pa.repeat(900.0, 1_000_000)})
    options: dict[str, Any] = {"compression": "zstd", "write_statistics": False, "store_schema": False}
    with pq.ParquetWriter(path, part.schema, **options) as writer:
        for _ in range(10):
            writer.write_table(part, row_group_size=part.num_rows)
    assert path.stat().st_size < 200_000
    # Rows that the certificate does not have are not decoded.
    certify(path)
    cases.append((path, 512, 8 << 10, "as many rows"))
    many = copy_release(path, tmp_path / "many.parquet")
    certify(many, rows=10_000_000)
    cases.append((many, 512, 64, "takes more than 64 MiB of memory"))

    # One long text, 2,000 times: a single batch takes 2 GB.
    long = copy_release(path, tmp_path / "long.parquet")
    item = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["x" * 1_000_000])
    table = pa.table({"item": item, "count": [900.0] * 2000})
    pq.write_table(table, long, store_schema=False, dictionary_pagesize_limit=1 << 27, compression="zstd")
    assert long.stat().st_size < 1000
    certify(long, rows=2000)
    cases.append((long, 768, 64, "MiB of memory"))

    # Compressed Arrow.
    path, rows = released("out.arrow"), 5_000_000
    empty = pa.record_batch([pa.nulls(rows, pa.int64()), pa.nulls(rows, pa.float64())], names=["item", "count"])
    with pa.ipc.new_file(str(path), empty.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(empty)
    assert path.stat().st_size < 100_000
    certify(path, rows=rows, types=["int64", "double"])
    cases.append((path, 1024, 64, "more than 64 MiB of memory"))

    # Nulls take no memory until they are used.
    nulls = copy_release(path, tmp_path / "nulls.arrow")
    nothing = pa.record_batch([pa.nulls(10**9), pa.nulls(10**9)], names=["item", "count"])
    with pa.ipc.new_file(str(nulls), nothing.schema) as writer:
        writer.write_batch(nothing)
    certify(nulls, rows=10**9, types=["null", "null"])
    cases.append((nulls, 3 * 1024, 1024, "more than 1,024 MiB of memory"))

    asked = json.dumps([(str(path), process, table) for path, process, table, _ in cases])
    done = subprocess.run([sys.executable, "-c", _LIMITED], input=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, (path, *_, message) in zip(done.stdout.splitlines(), cases, strict=True):
        assert message in line, path


def copy_release(path: Path, name: Path) -> Path:
    shutil.copy(f"{path}.certificate.json", f"{name}.certificate.json")
    return Path(shutil.copy(path, name))


def test_types_that_stand_for_many_values_are_refused(released: Callable[[str], Path]) -> None:
    path = released("out.arrow")
    columns: tuple[ArrowArray, ...] = (
        pa.array(["tea"] * 2).dictionary_encode(),
        pa.array(["tea"] * 2, pa.string_view()),
        pa.array([None, None], pa.list_(pa.null(), 1_000_000_000)),
        pa.array([["tea"], ["milk"]]),
        pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["tea"])),
    )
    for column in columns:
        table = pa.table([column, pa.array([900.0, 700.0])], names=["item", "count"])
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
        certify(path, types=[str(kind) for kind in table.schema.types])
        found = dphist.verify(path)
        assert (
            found.problems[0] == "out.arrow cannot be read as arrow: it has a column of a type that no release has"
        )


def test_a_reader_that_does_not_end(released: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 0.0)
    found = dphist.verify(released("out.parquet"))
    assert found.problems[0] == "out.parquet cannot be read as parquet: reading it takes longer than 0 seconds"


def promptly(action: Callable[[], Any]) -> Any:
    """The result, or a failure instead of a test that hangs: opening a pipe waits for its other end forever."""
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


def test_pipes_and_devices_are_refused(released: Callable[[str], Path], tmp_path: Path) -> None:
    path = released("out.csv")
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/zero", "/dev/null"):
        found = promptly(partial(dphist.verify, path, certificate=place))
        assert found.problems[0].endswith("cannot be read: it is not a regular file"), place
        assert not found.verified
    for place in (tmp_path / "pipe", "/dev/zero"):
        assert isinstance(promptly(partial(dphist.verify, place)), dphist.InputError)


def test_a_pipe_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "part-0.parquet")
    assert not promptly(lambda: dphist.verify(folder)).verified


def test_large_certificates_are_refused(released: Callable[[str], Path], tmp_path: Path) -> None:
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


def test_a_repeated_key_is_refused(released: Callable[[str], Path]) -> None:
    """People may read the first value, and Python takes the last one."""
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


def test_a_certificate_has_only_one_valid_text(released: Callable[[str], Path]) -> None:
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
    for what, other in changed.items():
        assert other != text, what
        assert parse_certificate(other, "it")[1], what
    # Characters that change the direction of a line are escaped, and refused if they are not.
    document["request"]["user"] = "user\u202e\u2066"
    document[SEAL] = self_digest(document)
    sealed = resealed(document)
    assert "\\u202e\\u2066" in sealed
    assert parse_certificate(sealed, "it")[1] == []
    assert parse_certificate(sealed.replace("\\u202e", "\u202e"), "it")[1]


def test_a_json_line_with_a_repeated_column(released: Callable[[str], Path]) -> None:
    path = released("out.jsonl")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"count"', '"count":5000.0,"count"'), *lines[1:]]) + "\n")
    certify(path)
    assert dphist.verify(path).problems[0] == "out.jsonl cannot be read as jsonl"
