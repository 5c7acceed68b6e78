"""Whole releases by Spark: what they return and write, and that they equal those of DuckDB."""

from __future__ import annotations

import json
import shutil
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import dphist
from dphist.certificate.endings import whole_digest
from dphist.certificate.text import SEAL, certificate_text, self_digest
from dphist.cli import commands
from dphist.errors import InputError, InvalidParameter, OutputError
from dphist.model import LaplaceNoise
from dphist.signatures import make_key
from dphist.spark.noise import SparkRelease
from spark_cluster import ON_SPARK
from spark_shared import shared_session

pytestmark = ON_SPARK

ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}
USERS = 3000


def events() -> pa.Table:
    """Users with up to three items, some of them rare, and repeated rows."""
    rows = [(user, item) for user in range(USERS) for item in ("tea", f"item {user % 5}", f"rare {user}")]
    users, items = zip(*(rows + rows[:500]), strict=True)
    return pa.table({"user": users, "item": items, "kind": [item[0] for item in items]})


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_session("local")


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(events())


WAYS: dict[str, dict[str, Any]] = {
    "cap": {"max_items_per_user": 3},
    "laplace": {"max_items_per_user": 3, "mechanism": "laplace"},
    "top": {"top": 4},
    "top, paper's offset": {"top": 4, "offset": "independent"},
    "differences": {"top": 4, "offset": "none"},
    "top of a cap": {"top": 10000, "max_items_per_user": 3},
    "top with a cap": {"top": 100, "max_items_per_user": 32},
    "promise": {"max_nonzero": 4_000, "epsilon": 8.0},
    "lower threshold": {"max_items_per_user": 3, "lower_threshold": 100},
    "two columns": {"max_items_per_user": 3, "item": ("first=kind", "item"), "round": True},
}
QUICK_WAYS = {"cap", "top", "two columns"}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way in QUICK_WAYS else pytest.mark.slow) for way in WAYS]
)
def test_the_release_is_that_of_duckdb(frame: DataFrame, way: str) -> None:
    """The same plan, the same items, counts within the noise of both; false alarms below 1e-9 in total.

    Delta is small enough that none of 3,000 items of a single user passes in either release.
    """
    asked = {**ASKED, "delta": 1e-13, **WAYS[way]}
    ours, theirs = dphist.release(frame, **asked), dphist.release(events(), **asked)
    assert isinstance(ours, SparkRelease)
    assert ours.plan.to_dict() == theirs.plan.to_dict()
    assert ours.document()["guarantee"] == theirs.document()["guarantee"]
    assert (ours.private, ours.names.items) == (True, theirs.names.items)
    table, other = ours.to_arrow(), theirs.to_arrow()
    assert table.schema.names == other.schema.names
    assert table.schema.types == other.schema.types
    width = (20 if isinstance(ours.plan.noise, LaplaceNoise) else 10) * ours.plan.total_noise + 1
    for count, item in zip(theirs.counts, other.column("item").to_pylist(), strict=True):
        # Only items well above the threshold are certain to be in both.
        if count - width > ours.document()["counts"]["threshold"]:
            where = table.column("item").to_pylist().index(item)
            assert abs(ours.counts[where] - count) <= width
    # All counts are far from the threshold.
    assert len(ours) == len(theirs) >= 1
    assert len(ours) == ours.to_spark().count() == table.num_rows


def test_a_broken_promise_releases_nothing(frame: DataFrame) -> None:
    """A bound that a top-k step can enforce is enforced; together with a smaller limit it is a promise."""
    asked: dict[str, Any] = {**ASKED, "max_nonzero": 50}
    assert len(dphist.release(frame, **asked)) > 0
    assert len(dphist.release(frame, **asked, max_items_per_user=25)) == 0
    assert len(dphist.release(frame, **asked, max_items_per_user=25, where="item not like 'rare%'")) > 0


@pytest.mark.parametrize("kind", ["arrow", pytest.param("spark", marks=pytest.mark.slow)])
def test_public_items(frame: DataFrame, spark: SparkSession, kind: str) -> None:
    listed = pa.table({"item": ["tea", "item 1", "nobody has this", "rare 7"]})
    given = listed if kind == "arrow" else spark.createDataFrame(listed)
    counts = (
        dphist.release(frame, **ASKED, items=given, max_items_per_user=3).to_pandas().set_index("item")["count"]
    )
    assert sorted(counts.index) == listed.column("item").sort().to_pylist()
    assert abs(counts["tea"] - USERS) < 200
    assert abs(counts["nobody has this"]) < 200


def test_columns_beside_the_counts(frame: DataFrame) -> None:
    more: dict[str, Any] = {"standard_error": True, "interval": 0.9, "count_name": "people"}
    found = dphist.release(frame, **ASKED, max_items_per_user=3, **more)
    names = ["item", "people", "people_standard_error", "people_low", "people_high"]
    assert found.to_spark().columns == found.to_pandas().columns.tolist() == found.to_polars().columns == names
    assert [kind for _, kind in found.to_spark().dtypes] == ["string", *["double"] * 4]
    assert (found.added["people_low"] < found.counts).all()
    assert sorted(found.counts, reverse=True) == found.counts.tolist()
    assert "more" not in found.table_text()
    assert repr(found).startswith("6 items released")
    assert "<table>" in found._repr_html_()


def test_folders(frame: DataFrame, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    found = dphist.release(frame, **ASKED, max_items_per_user=3, output=f"{folder}/")
    assert found.written is not None
    assert found.written.address == f"{folder}/"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    verified = dphist.verify(folder)
    assert verified.verified, verified
    assert sorted(pq.read_table(folder).to_pylist(), key=str) == sorted(found.to_arrow().to_pylist(), key=str)
    with pytest.raises(OutputError, match="already exists"):
        found.write(f"{folder}/")
    again = found.write(f"file://{folder}", force=True)
    assert again.written is not None
    assert again.written.digest != ""
    assert dphist.verify(folder).verified
    single = found.write(tmp_path / "one.parquet")
    assert dphist.verify(tmp_path / "one.parquet").verified
    assert single.written is not None
    assert single.written.address.endswith("one.parquet")


def test_changed_folders_are_noticed(frame: DataFrame, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    dphist.release(frame, **ASKED, max_items_per_user=3, output=f"{folder}/")
    part = next(folder.glob("*.parquet"))
    good, certificate = part.read_bytes(), (folder / "_certificate.json").read_bytes()

    def said() -> str:
        found = dphist.verify(folder)
        assert not found.verified
        return " ".join(found.problems)

    part.write_bytes(good[:-1] + b"x")
    assert "do not match the digests" in said()
    part.write_bytes(good)
    (folder / "part-99999.parquet").write_bytes(good)
    assert "do not match the digests" in said()
    (folder / "part-99999.parquet").unlink()
    (folder / "more").mkdir()
    assert "do not match the digests" in said()
    (folder / "more").rmdir()
    part.unlink()
    assert "do not match the digests" in said()
    part.write_bytes(good)
    changed = json.loads(certificate)
    changed["output"]["rows"] += 1
    (folder / "_certificate.json").write_text(json.dumps(changed))
    assert "it was edited" in said()
    (folder / "_certificate.json").unlink()
    assert "no certificate" in said()
    (folder / "_certificate.json").write_bytes(certificate)
    assert dphist.verify(folder).verified


@pytest.mark.slow
def test_signed_folders(frame: DataFrame, tmp_path: Path) -> None:
    """The signature covers the digest of each file: a folder that is moved, changed or resealed is refused."""
    make_key(tmp_path / "key")
    folder = tmp_path / "out"
    found = dphist.release(frame, **ASKED, max_items_per_user=3, output=f"{folder}/", sign=tmp_path / "key")
    verified = partial(dphist.verify, public_key=tmp_path / "key.pub")
    assert verified(folder).signature == "trusted"
    assert verified(folder).verified, verified(folder)
    assert found.written is not None
    assert found.written.signed_by == verified(folder).signed_by
    assert verified(f"{folder}/").verified
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    assert dphist.verify(other).verified
    assert "has the name 'other'" in verified(other).problems[0]
    found.write(tmp_path / "one.csv", sign=tmp_path / "key")
    assert verified(tmp_path / "one.csv").verified
    found.write(f"file://{folder}", force=True, sign=tmp_path / "key")
    assert verified(folder).verified
    # One file without its rows, with all digests recomputed.
    part, certificate = next(folder.glob("*.parquet")), folder / "_certificate.json"
    table = pq.read_table(part)
    pq.write_table(table.slice(0, 0), part)
    document = json.loads(certificate.read_text())
    document["output"]["files"][part.name] = sha256(part.read_bytes()).hexdigest()
    document["output"]["sha256"] = whole_digest(document["output"]["files"])
    document["output"]["rows"] -= table.num_rows
    for signed in (True, False):
        if not signed:
            del document["signature"]
        document[SEAL] = self_digest(document)
        certificate.write_text(certificate_text(document))
        assert dphist.verify(folder).verified is not signed
        assert not verified(folder).verified


def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(events(), tmp_path / "log.parquet")
    said = [str(tmp_path / "log.parquet"), "--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6"]
    said += ["--engine", "spark", "--max-items-per-user", "3", "--json", "--output"]
    result = CliRunner().invoke(commands(), ["release", *said, str(tmp_path / "out.csv")])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] >= 5
    assert dphist.verify(tmp_path / "out.csv").verified


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"engine": "duckdb"}, InvalidParameter, "needs the engine spark"),
        ({"master": "local[2]"}, InvalidParameter, "one is there already"),
        ({"spark_conf": "spark.x"}, InvalidParameter, "spark.NAME=VALUE"),
        ({"item": "nothing"}, InputError, "has no column 'nothing'"),
        ({"where": "nothing > 1"}, InputError, "condition"),
        ({"output": "nowhere/at/all/"}, OutputError, "cannot be written"),
        ({"output": "wasb9://x/y"}, OutputError, "no file system wasb9://"),
        ({"output": "x/", "output_format": "csv"}, InvalidParameter, "folders of Parquet"),
    ],
)
def test_what_cannot_be_done(frame: DataFrame, more: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        dphist.release(frame, **{**ASKED, "max_items_per_user": 3, **more})


def test_only_spark_writes_folders(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="only Spark can write a folder"):
        dphist.release(events(), **ASKED, max_items_per_user=3, output=f"{tmp_path}/out/")
    with pytest.raises(InvalidParameter, match="only Spark can write a folder"):
        dphist.release(events(), **ASKED, max_items_per_user=3).write("s3://bucket/x")


def test_other_releases_go_to_spark(spark: SparkSession) -> None:
    found = dphist.release(events(), **ASKED, max_items_per_user=3)
    rows = found.to_spark(spark)
    assert [tuple(row) for row in rows.collect()] == [tuple(row.values()) for row in found.to_arrow().to_pylist()]
