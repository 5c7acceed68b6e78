"""How outputs are named, and which parts of their names are shown."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import dphist
from dphist.errors import InvalidParameter, MissingExtra, OutputError
from dphist.outputs.target import Target, check_columns, target_of
from dphist.outputs.write import check_target
from release_commands import BOOKED, FLAGS, command, log_in

KINDS = {
    "parquet": ["a.parquet", "a.PQ"],
    "csv": ["a.csv"],
    "tsv": ["a.tsv"],
    "jsonl": ["a.b.jsonl", "a.ndjson"],
    "csv.gz": ["a.b.csv.gz"],
    "tsv.gz": ["a.TSV.GZ"],
    "jsonl.gz": ["a.ndjson.gz"],
    "arrow": ["a.arrow", "a.feather"],
    "duckdb": ["a.duckdb", "a.ddb"],
    "sqlite": ["a.sqlite", "a.sqlite3", "a.db"],
    "postgresql": ["postgres://h/db", "PostgreSQL://h/db"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
def test_kinds(kind: str, name: str) -> None:
    target = target_of(name, certificate="c.json" if kind == "postgresql" else None)
    assert target.kind == kind
    assert target.table == ("release" if target.is_database else None)


def test_certificates_of_one_stem_differ() -> None:
    assert target_of("x/a.csv").certificate_path == Path("x/a.csv.certificate.json")
    assert target_of(Path("x/a.parquet")).certificate_title() == "x/a.parquet.certificate.json"
    assert target_of("x/a.db").certificate_title() == "x/a.db.release.certificate.json"
    for table in ("My/Table", "my/table"):
        assert target_of("a.db", table).certificate_title() == "a.db.my%2ftable.certificate.json"
    target = target_of("postgresql://h/db", certificate="x/queries.certificate.json")
    assert (target.certificate_title(), target.name) == ("x/queries.certificate.json", "queries")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("a.txt",), "has no known ending"),
        (("a.gz",), "has no known ending"),
        (("a.parquet.gz",), "has no known ending"),
        (("a",), "has no known ending"),
        (("",), "must be the name of a file"),
        (("a\0.csv",), "must be the name of a file"),
        (("hdfs://host/a.csv", "t"), "is a folder"),
        (("hdfs://host/a", None, "csv"), "folders of Parquet"),
        (("s3://bucket/a.csv", "t"), "table is for databases"),
        (("s3://bucket/a", "t"), "is a folder"),
        (("s3://bucket/a.duckdb",), "a database cannot be written to s3://bucket/a.duckdb"),
        (("-",), "has no known ending"),
        (("-", None, "parquet", "c.json"), "standard output can be csv, tsv, jsonl"),
        (("-", None, None, "folder/.."), "certificate must be the name of a file"),
        (("folder/", "t"), "is a folder"),
        (("a.csv", None, "folder"), "output_format must be one of"),
        (("a.csv", "t"), "table is for databases"),
        (("a.csv", None, "excel"), "output_format must be one of"),
        (("a.csv", None, "postgresql"), "output_format must be one of"),
        (("postgresql://h/db", None, "csv"), "output_format"),
        (("a.db", ""), "table must be a name"),
        (("a.db", "a\0"), "table must be a name"),
        (("a.db", "SQLite_x"), "must not begin with sqlite_"),
        (("postgresql://h/db",), "needs certificate"),
        (("postgresql://h/db", ".t", None, "c"), "schema"),
        (("postgresql://h/db", "s.", None, "c"), "schema"),
        (("postgresql://h/db", "é" * 32, None, "c"), "too long"),
        (("postgresql://h/db", None, None, "x/.."), "certificate must be the name of a file"),
    ],
)
def test_invalid_outputs(values: tuple[str, str | None, str | None], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        target_of(*values)


@pytest.mark.parametrize("address", ["s3://bucket/a", "hdfs://host/out", "file:///tmp/out", "out/", "./out/"])
def test_folders_that_only_spark_writes(address: str) -> None:
    for target in (target_of(address), target_of(address, objects=False)):
        assert (target.kind, target.table, target.is_database, target.is_object) == ("folder", None, False, False)


@pytest.mark.parametrize("address", ["s3://bucket/x/a.csv", "gs://bucket/x/a.csv", "s3://bucket/x/a.csv?region=r"])
def test_objects(address: str) -> None:
    target = target_of(address)
    assert (target.kind, target.is_object, target.is_database) == ("csv", True, False)
    assert target.title() == address.partition("?")[0]
    assert target.certificate_title() == f"{target.title()}.certificate.json"
    assert target_of("s3://KEY:secret@bucket/a.csv").title() == "s3://bucket/a.csv"
    assert target_of("s3://bucket/a", None, "parquet").is_object
    # Spark writes a folder of this name.
    assert target_of(address, objects=False).kind == "folder"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:secret@h:5432/db", "postgresql://u@h:5432/db"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("postgres://h:5432/db?sslmode=require", "postgres://h:5432/db?sslmode=require"),
        ("postgresql://h/db?user=u&password=secret", "postgresql://h/db?user=u"),
        ("postgresql://h/db?pass%77ord=secret&sslpassword=secret", "postgresql://h/db"),
        ("postgresql://u:sec?ret@h/db", "postgresql://u@h/db"),
        ("postgresql://u:p@secret@h/db", "postgresql://u@h/db"),
        ("postgresql://u:@h/db", "postgresql://u@h/db"),
        ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db"),
        ("postgresql://[::1]/db", "postgresql://[::1]/db"),
        ("postgresql:///db?host=/tmp", "postgresql:///db?host=/tmp"),
        ("postgresql://a:1,b:2/db", "postgresql://a:1,b:2/db"),
    ],
)
def test_passwords_are_not_shown(address: str, shown: str) -> None:
    target = target_of(address, certificate="c.json")
    assert target.public_address() == shown
    assert "secret" not in repr(target)


@pytest.mark.parametrize(
    "password",
    ["sec/ret", "12sec/ret3", "se:cr@e/t", "s@e/c:r?et", "/secret", "se?c/ret", "sec1/ret", "1/sec?ret"],
)
def test_passwords_without_quoting_are_not_shown_either(password: str) -> None:
    shown = target_of(f"postgresql://u:{password}@h:5432/db", certificate="c").public_address()
    assert password not in shown
    for part in ("sec", "ret", "se:", "cr"):
        assert part not in shown


def test_names_of_columns() -> None:
    check_columns(target_of("a.csv"), ["", "a", "A"])
    with pytest.raises(OutputError, match="cannot have a column named"):
        check_columns(target_of("a.db"), ["a", ""])
    with pytest.raises(OutputError, match="too long"):
        check_columns(target_of("postgresql://h/d", certificate="c"), ["x" * 64])


def test_a_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    real = importlib.import_module

    def without(name: str) -> object:
        if name.startswith("adbc"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr("dphist.errors.import_module", without)
    with pytest.raises(MissingExtra, match=r"pip install adbc-driver-manager adbc-driver-postgresql$"):
        check_target(Target("postgresql://h/db", "t", "postgresql", certificate="c.json"), force=False)


RED = "\x1b[31mred"


@pytest.mark.usefixtures("quick_curve", "plans_once")
@pytest.mark.parametrize("output", [f"{RED}.csv", pytest.param(f"{RED}.sqlite", marks=pytest.mark.slow)])
def test_a_name_with_an_escape_sequence_is_shown_as_text(tmp_path: Path, output: str) -> None:
    log_in(tmp_path)
    os.rename(tmp_path / "events.parquet", tmp_path / f"{RED}.parquet")
    (tmp_path / f"{RED}.txt").write_text("no ledger")
    words = ["release", f"{RED}.parquet", *FLAGS, "--output", output]
    flows = [
        ["ledger", "init", f"{RED}.ledger", "--dataset", "log", "--epsilon", "3", "--delta", "1e-6"],
        ["ledger", "show", f"{RED}.ledger"],
        [*words, *BOOKED],
        [*words, *BOOKED],
        ["ledger", "show", "a.ledger"],
        ["verify", output],
        ["report", output, "--json"],
        ["report", output, "--output", f"{RED}0.html"],
        [*words, "--report", f"{RED}.html", "--force"],
        ["verify", f"{RED}.parquet"],
        ["verify", f"missing{RED}.csv"],
        ["release", f"missing{RED}.csv", *FLAGS, "--output", "b.csv"],
        ["release", f"{RED}.txt", *FLAGS, "--output", "b.csv"],
        ["ledger", "show", f"{RED}.txt"],
        ["ledger", "show", f"missing{RED}"],
        ["release", f"{RED}.parquet", *FLAGS, "--output", "b.csv", "--where", RED],
        ["release", f"{RED}.parquet", *FLAGS[2:], "--user", RED, "--output", "b.csv"],
        ["sketch", "build", f"{RED}.parquet", "--user", "user", "--item", "item", "--output", f"{RED}.sketch"],
    ]
    # The report with charts is slow.
    for words in flows[:8] + flows[9:] if output.endswith("csv") else [flows[place] for place in (2, 3, 5, 7, 8)]:
        done = command(tmp_path, *words)
        assert "\x1b" not in done.out + done.err, words
        assert done.out + done.err
    assert "\\x1b[31mred" in command(tmp_path, *words[:0], "verify", f"missing{RED}.csv").err


def test_the_command_prints_in_one_place() -> None:
    """So that no print of a name can forget to escape it."""
    folder = Path(dphist.__file__).parent / "cli"
    printing = {
        path.name
        for path in folder.glob("*.py")
        if re.search(r"std(out|err)\.write|typer\.echo|(?<!\.)\bprint\(", path.read_text(encoding="utf-8"))
    }
    assert printing == {"base.py"}
