"""Sketches as bytes and as files: round trips, and every kind of damage is detected without leaking a value."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from dphist.aliases import ArrowArray, JsonObject
from dphist.errors import InputError, InvalidParameter, OutputError
from dphist.sketch import MisraGries

DAMAGED = "its contents are not those of a sketch"


@pytest.fixture
def data() -> bytes:
    sketch = MisraGries.from_columns(3, pa.array(range(9)), ["a secret item", "tea", "milk"] * 3)
    sketch.update({"tea", "x", "y"})
    return sketch.to_bytes()


def forged(header: JsonObject, columns: dict[str, ArrowArray]) -> bytes:
    """Bytes with a valid checksum."""
    payload, table = io.BytesIO(), pa.table(columns)
    with pa.ipc.new_stream(payload, table.schema) as writer:
        writer.write_table(table)
    return sealed(json.dumps(header).encode(), payload.getvalue())


def sealed(header: bytes, payload: bytes, version: int = 1) -> bytes:
    whole = struct.pack("<8sHI", b"dphistMG", version, len(header)) + header + payload
    return whole + hashlib.sha256(whole).digest()


HEADER: JsonObject = {"k": 3, "subtracted": 1, "names": ["item"]}
TEXTS = pa.array(["tea", "milk"], pa.large_string())
NO_UNICODE = pa.Array.from_buffers(pa.large_string(), 2, [*TEXTS.buffers()[:2], pa.py_buffer(b"\xff" * 7)])
GOOD: dict[str, ArrowArray] = {"i0": TEXTS, "count": pa.array([5, 2])}


def test_the_forgery_without_a_change_is_a_sketch() -> None:
    sketch = MisraGries.from_bytes(forged(HEADER, GOOD))
    assert (dict(sketch._as_table()), sketch._subtracted, sketch.k) == ({"tea": 5, "milk": 2}, 1, 3)
    assert MisraGries.from_bytes(forged({**HEADER, "subtracted": 2**53}, GOOD))._subtracted == 2**53


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ({"k": 1}, {}), ({"k": 0}, {}), ({"k": True}, {}), ({"k": "3"}, {}), ({"k": None}, {}),
        ({"subtracted": -1}, {}), ({"subtracted": 0.5}, {}), ({"subtracted": True}, {}),
        ({"subtracted": 2**64}, {}), ({"names": []}, {}), ({"names": ["a", "b"]}, {}), ({"names": [5]}, {}),
        ({"names": 7}, {}), ({"names": "x"}, {"i0": pa.array([1, 1])}),
        ({}, {"count": pa.array([5, 0])}), ({}, {"count": pa.array([5, -2])}),
        ({}, {"count": pa.array([5, 2**54])}), ({}, {"count": pa.array([5.0, 2.0])}),
        ({}, {"count": pa.array([5, None])}), ({}, {"count": TEXTS}),
        ({}, {"i0": pa.array(["tea", "tea"], pa.large_string())}),
        ({}, {"i0": pa.array(["tea", None], pa.large_string())}), ({}, {"i0": pa.array(["tea", "milk"])}),
        ({}, {"i0": pa.array([[1], [2]])}), ({}, {"i0": pa.array([1, 2], pa.int8())}),
        ({}, {"i0": pa.array([0.5, float("nan")])}), ({}, {"i0": TEXTS.dictionary_encode()}),
        ({}, {"i0": NO_UNICODE}), ({}, {"i0": pa.array([-0.0, 0.0])}), ({}, {"i0": pa.array([1.0, -0.0])}),
        ({"subtracted": 2**53 + 1}, {}), ({"names": "x"}, {}), ({"names": {"item": 1}}, {}), ({"more": 1}, {}),
        ({}, {"i1": pa.array([1, 2])}),
    ],
)  # fmt: skip
def test_forged_contents_are_refused(header: JsonObject, columns: dict[str, ArrowArray]) -> None:
    with pytest.raises(InputError, match=f"^the sketch is damaged: {DAMAGED}$") as raised:
        MisraGries.from_bytes(forged({**HEADER, **header}, {**GOOD, **columns}))
    assert raised.value.__context__ is None
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "data",
    [
        *(sealed(header, b"") for header in (b"{", b"[]", b"\xff", b"[" * 99999)),
        sealed(json.dumps(HEADER).encode(), b"not Arrow"),
        forged(HEADER, {"x": TEXTS, "count": GOOD["count"]}),
        forged(HEADER, {"i0": TEXTS, "counts": GOOD["count"]}),
    ],
    ids=range(7),
)
def test_unreadable_parts(data: bytes) -> None:
    with pytest.raises(InputError, match=DAMAGED):
        MisraGries.from_bytes(data)


def test_a_change_of_any_byte_is_detected(data: bytes) -> None:
    MisraGries.from_bytes(data)
    for place in range(len(data)):
        for bit in (1, 128):
            changed = bytearray(data)
            changed[place] ^= bit
            with pytest.raises(InputError, match=r"is damaged|not a sketch of dphist|has the version") as raised:
                MisraGries.from_bytes(bytes(changed))
            assert "\n" not in str(raised.value)
            assert "tea" not in str(raised.value)


def test_a_missing_end_or_beginning_is_detected(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(InputError, match=r"is damaged|not a sketch of dphist"):
            MisraGries.from_bytes(data[:length])
    for other in (data + b"x", data[1:], data * 2):
        with pytest.raises(InputError):
            MisraGries.from_bytes(other)


def test_another_version_another_size_and_not_bytes(data: bytes) -> None:
    with pytest.raises(InputError, match="has the version 2, but this dphist reads version 1"):
        MisraGries.from_bytes(sealed(b"{}", b"", version=2))
    with pytest.raises(InputError, match=r"^the sketch has the size 3, not 1000$"):
        MisraGries.from_bytes(data, k=1000)
    assert MisraGries.from_bytes(data, k=3).k == 3
    with pytest.raises(InvalidParameter, match="from bytes, not from str"):
        MisraGries.from_bytes("sketch")  # type: ignore[arg-type]


def test_equal_sketches_have_equal_bytes_and_can_be_continued() -> None:
    one, other = MisraGries(4), MisraGries(4)
    for item in ("b", "a", "c"):
        one.update({item})
    for item in ("c", "b", "a"):
        other.update({item})
    assert one.to_bytes() == other.to_bytes()
    again = MisraGries.from_bytes(one.to_bytes())
    for sketch in (one, again):
        sketch.update({"a", "d", "e"})
    assert again.to_bytes() == one.to_bytes()


def test_only_the_owner_can_read_a_file_and_only_force_replaces_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.sketch"
    old = os.umask(0)
    try:
        MisraGries.from_bytes(data).save(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert MisraGries.load(path).to_bytes() == data
    with pytest.raises(OutputError, match="already exists"):
        MisraGries(3).save(path)
    assert path.read_bytes() == data
    MisraGries(3).save(path, force=True)
    assert path.read_bytes() == MisraGries(3).to_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.sketch"], "nothing unfinished is left"
    with pytest.raises(InputError, match=r"the sketch .*a\.sketch has the size 3, not 4"):
        MisraGries.load(path, k=4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no/folder", "there is no folder"),
        (".", "it is a folder"),
        ("", "needs the name of a file"),
        ("a\0b", "name"),
    ],
)
def test_bad_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((OutputError, InvalidParameter), match=message):
        MisraGries(3).save(name)
    with pytest.raises(InputError, match=r"does not exist|cannot read"):
        MisraGries.load(name)


def test_a_file_that_appears_at_the_last_moment_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    path = tmp_path / "a.sketch"
    monkeypatch.setattr(os, "fsync", lambda _: path.write_bytes(b"another file"))
    with pytest.raises(OutputError, match="already exists: choose another name"):
        MisraGries.from_bytes(data).save(path)
    assert path.read_bytes() == b"another file"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.sketch"]
    monkeypatch.undo()
    MisraGries.from_bytes(data).save(path, force=True)
    assert path.read_bytes() == data


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        MisraGries.from_bytes(data).save(tmp_path / "a.sketch")
    assert list(tmp_path.iterdir()) == []
