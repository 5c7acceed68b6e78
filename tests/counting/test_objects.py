"""Events from S3 and releases to S3, through Arrow's client and a server on this machine."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import dphist
from dphist.errors import InputError, InvalidParameter, OutputError
from dphist.objects import is_object, without_secrets, write_object
from engine_cases import json_lines
from object_server import ObjectServer, object_server
from release_commands import command

SECRET = "S3CR3T-cell"
ASKED: dict[str, Any] = {
    "user": "user", "item": "item", "epsilon": 1, "delta": 1e-6, "max_items_per_user": 1,
}  # fmt: skip


def events(start: int = 0) -> Any:
    items = ["tea"] * 600 + ["milk"] * 299 + [SECRET]
    return pa.table({"user": [str(start + user) for user in range(900)], "item": items})


def as_csv(table: Any) -> bytes:
    return "".join(["user,item\n", *(f"{row['user']},{row['item']}\n" for row in table.to_pylist())]).encode()


def as_parquet(table: Any) -> bytes:
    out = pa.BufferOutputStream()
    pa.parquet.write_table(table, out)
    return bytes(out.getvalue())


@pytest.fixture(scope="module")
def running() -> Iterator[ObjectServer]:
    with object_server() as server:
        yield server


@pytest.fixture
def store(running: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectServer]:
    """A store with some logs, of which no copies may be left."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(work))
    running.failing = running.broken_part = None
    running.objects = {
        "lake/one.csv": as_csv(events()),
        "lake/one.csv.gz": gzip.compress(as_csv(events())),
        "lake/one.parquet": as_parquet(events()),
        "lake/one.jsonl": json_lines(events()).encode(),
        "lake/many/day=1/a.parquet": as_parquet(events()),
        "lake/many/day=2/b.parquet": as_parquet(events(5000)),
        "lake/many/_notes/c.parquet": b"not a log",
    }
    yield running
    assert list(work.iterdir()) == []


def released(source: Any, **more: Any) -> dict[Any, float]:
    release = dphist.release(source, **{**ASKED, **more})
    return {item: count for item, count, *_ in (row.values() for row in release.to_arrow().to_pylist())}


def is_near(counts: dict[Any, float], expected: dict[Any, int]) -> bool:
    # Noise beyond 40 has a probability below 1e-9 with this budget.
    return counts.keys() == expected.keys() and all(abs(counts[key] - expected[key]) < 40 for key in expected)


@pytest.mark.usefixtures("quick_curve", "plans_once")
@pytest.mark.parametrize("name", ["one.csv", "one.csv.gz", "one.parquet", "one.jsonl"])
def test_reading_an_object(store: ObjectServer, name: str) -> None:
    assert is_near(released(f"s3://lake/{name}{store.options}"), {"tea": 600, "milk": 299})
    if name == "one.csv":
        # Read once, although the events are counted twice to choose the limit.
        store.requests.clear()
        dphist.release(f"s3://lake/{name}{store.options}", **{**ASKED, "max_items_per_user": None})
        assert store.requests.count(f"GET lake/{name}") == 1


def test_folders_and_patterns(store: ObjectServer, tmp_path: Path) -> None:
    both = {"tea": 1200, "milk": 598}
    for source in ("s3://lake/many", "s3://lake/many/", "s3://lake/many/day=*/*.parquet", "s3://lake/**/day=*/*"):
        assert is_near(released(f"{source}{store.options}"), both), source
    assert is_near(released(f"s3://lake/many/day=2/*{store.options}"), {"tea": 600, "milk": 299})
    # Folders named key=value add columns, also for conditions, expressions and queries.
    days = f"s3://lake/many/{store.options}"
    assert is_near(released(days, item="day"), {"1": 900, "2": 900})
    assert is_near(released(days, item="d=day || item", where="item = 'tea'"), {"1tea": 600, "2tea": 600})
    query = "SELECT user, upper(item) AS item FROM input WHERE day = '1'"
    assert is_near(released(days, query=query), {"TEA": 600, "MILK": 299})
    pa.parquet.write_table(events(9000), tmp_path / "here.parquet")
    mixed = [f"s3://lake/one.parquet{store.options}", str(tmp_path / "here.parquet")]
    assert is_near(released(mixed), both)


def test_a_list_of_objects_without_end_is_refused(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dphist.objects._LONGEST_LISTING", 1.0)
    store.endless = True
    try:
        with pytest.raises(InputError, match="is not complete after 1 seconds"):
            dphist.release(f"s3://lake{store.options}", **ASKED)
    finally:
        store.endless = False  # the client that was left behind ends


def test_missing_objects_and_columns(store: ObjectServer) -> None:
    for source, message in (
        ("s3://lake/none.csv", "there is no object s3://lake/none.csv"),
        ("s3://lake/none/*.csv", "there is no object"),
        ("s3://other/one.csv", "there is no object"),
        ("s3://lake/many/day=1/*.csv", "there is no object"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            released(source + store.options)
        assert SECRET not in str(caught.value)
    with pytest.raises(InputError, match=r"'s3://lake/one.csv' has no column 'who'; its columns are"):
        released(f"s3://lake/one.csv{store.options}", user="who")
    with pytest.raises(InputError, match="several formats, such as 's3://lake/"):
        released(f"s3://lake/{store.options}")
    store.failing = ("GET", "one.csv")
    with pytest.raises(InputError, match=r"s3://lake/one.csv cannot be read: check the address"):
        released(f"s3://lake/one.csv{store.options}")
    with pytest.raises(InputError, match="cannot be read from hdfs:// addresses"):
        released("hdfs://lake/one.csv")


@pytest.mark.usefixtures("decoded_here", "plans_once")
@pytest.mark.parametrize("name", ["q.parquet", "deep/er/q.jsonl.gz"])
def test_writing_a_release(store: ObjectServer, tmp_path: Path, name: str) -> None:
    source, out = f"s3://lake/one.csv{store.options}", f"s3://lake/out/{name}{store.options}"
    before = dict(store.objects)
    release = dphist.release(source, **ASKED, output=out)
    assert release.written is not None
    assert release.written.address == f"s3://lake/out/{name}"
    assert release.written.certificate == f"s3://lake/out/{name}.certificate.json"
    new = {key for key in store.objects.keys() - before.keys() if not key.endswith("/")}
    assert new == {f"lake/out/{name}", f"lake/out/{name}.certificate.json"}
    assert dphist.verify(out).verified
    assert dphist.verify(out, certificate=f"s3://lake/out/{name}.certificate.json{store.options}").verified
    # Copies are valid too.
    local = tmp_path / Path(name).name
    local.write_bytes(store.objects[f"lake/out/{name}"])
    Path(f"{local}.certificate.json").write_bytes(store.objects[f"lake/out/{name}.certificate.json"])
    assert dphist.verify(local).verified
    written = dict(store.objects)
    with pytest.raises(OutputError, match="already exists: choose another name"):
        dphist.release(source, **ASKED, output=out)
    assert store.objects == written
    dphist.release(source, **ASKED, output=out, force=True)
    assert dphist.verify(out).verified
    store.objects[f"lake/out/{name}"] += b"\n"
    assert not dphist.verify(out).verified
    del store.objects[f"lake/out/{name}.certificate.json"]
    assert "there is no certificate" in dphist.verify(out).problems[0]
    del store.objects[f"lake/out/{name}"]
    with pytest.raises(InputError, match="there is no file s3://lake/out/"):
        dphist.verify(out)


def test_no_certificate_is_left_next_to_other_data(store: ObjectServer) -> None:
    source, out = f"s3://lake/one.csv{store.options}", f"s3://lake/q.parquet{store.options}"
    for failing in ("q.parquet", "q.parquet.certificate.json"):
        for method in ("POST", "PUT"):
            store.failing = (method, failing)
            with pytest.raises(OutputError, match="cannot be written: check the address"):
                dphist.release(source, **ASKED, output=out)
            assert not any("q.parquet" in key for key in store.objects)
    store.failing = None
    dphist.release(source, **ASKED, output=out)
    old = dict(store.objects)
    for failing in ("q.parquet", "q.parquet.certificate.json"):
        store.objects = dict(old)
        store.failing = ("POST", failing)
        with pytest.raises(OutputError, match="cannot be written"):
            dphist.release(source, **ASKED, output=out, force=True)
        assert "lake/q.parquet.certificate.json" not in store.objects


def test_an_object_that_fails_midway_is_not_left_behind(store: ObjectServer) -> None:
    out, data = f"s3://lake/large.csv{store.options}", bytes(11_000_000)
    for part in (1, 2):
        store.broken_part = part
        with pytest.raises(InputError, match=r"large\.csv cannot be written"):
            write_object(out, data)
        assert "lake/large.csv" not in store.objects
    store.broken_part = None
    write_object(out, data)
    assert store.objects["lake/large.csv"] == data
    # An older object stays.
    store.failing = ("POST", "large.csv")
    with pytest.raises(InputError, match=r"large\.csv cannot be written"):
        write_object(out, data[:9])
    assert store.objects["lake/large.csv"] == data


def test_a_public_list_cannot_be_an_object(store: ObjectServer) -> None:
    listed = f"s3://KEY:hush@lake/one.csv{store.options}"
    with pytest.raises(
        InvalidParameter, match="items cannot be read from s3:// addresses: download the list"
    ) as c:
        released(f"s3://lake/one.csv{store.options}", items=listed)
    assert "hush" not in str(c.value)


def test_invalid_outputs(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    one = f"s3://lake/one.csv{store.options}"
    before = dict(store.objects)
    for source, out, message in (
        (one, "one.csv", "cannot write the release to"),
        (f"s3://lake/many/{store.options}", "many/q.parquet", "cannot write the release to"),
        (f"s3://lake/**{store.options}", "q.parquet", "cannot write the release to"),
        (one, "q.sqlite", "a database cannot be written"),
        (one, "q", "only Spark can write a folder"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            dphist.release(source, **ASKED, output=f"s3://lake/{out}{store.options}", force=True)
    assert store.objects == before
    assert without_secrets("s3://KEY:SECRET@lake/a.csv?x=y") == "s3://lake/a.csv"
    assert [scheme for scheme in ("s3", "gs", "s3a", "hdfs") if is_object(f"{scheme}://lake/a")] == ["s3", "gs"]


def test_the_command_and_the_environment(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{store.server_address[1]}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")

    assert command(tmp_path, "keygen", "k").code == 0
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in ASKED.items()]
    words = ["release", "s3://lake/one.csv", *flags, "--output", "s3://lake/q.csv", "--sign", "k", "--json"]
    done = command(tmp_path, *words)
    assert done.code == 0, done.err
    assert done.data["output"] == "s3://lake/q.csv"
    assert json.loads(store.objects["lake/q.csv.certificate.json"])["request"]["input"] == "s3://lake/one.csv"
    assert command(tmp_path, "verify", "s3://lake/q.csv", "--public-key", "k.pub").code == 0
    assert "users per item" in command(tmp_path, "report", "s3://lake/q.csv", "--json").out
    assert SECRET not in done.out + done.err + store.objects["lake/q.csv"].decode()
