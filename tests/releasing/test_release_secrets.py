"""Secrets in addresses are never printed, certified or booked, even if something fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dphist
from dphist.errors import DphistError
from dphist.ledger import Ledger
from dphist.objects import without_secrets
from dphist.outputs.target import target_of
from dphist.releasing.request import request_from
from dphist.releasing.spending import _run_facts
from release_commands import command

ASKED = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "1"]
# Addresses, and the secrets in them, before the @ or among the options.
ADDRESSES = [
    ("{}://AKIA:hush@bucket/x{}", ["AKIA", "hush"]),
    ("{}://AKIA:hu/sh@bucket/x{}", ["AKIA", "hu/", "sh@", "hush"]),
    ("{}://AKIA:hu@sh@bucket/x{}", ["AKIA", "hu@", "sh@"]),
    ("{}://AKIA:hu?sh@bucket/x{}", ["AKIA", "hu?", "sh@"]),
    ("{}://AKIA:hu?a=sh@bucket/x{}", ["AKIA", "hu?", "sh@"]),
    (
        "{}://AKIA@bucket/x{}?access_key=other&secret_key=hush&endpoint_override=127.0.0.1:1",
        ["AKIA", "other", "hush"],
    ),
    ("{}://bucket/x{}?access_key=other&secret_key=hu@sh&scheme=http", ["other", "hu@", "sh&", "hush"]),
]


def assert_hidden(text: str, secrets: list[str]) -> None:
    for secret in secrets:
        assert secret not in text, text


def test_addresses_that_are_shown() -> None:
    for given, shown in (
        ("s3://AKIA:sec/ret@bucket/x.csv", "s3://bucket/x.csv"),
        ("s3://AKIAKEY@bucket/data.csv?endpoint_override=localhost:9000", "s3://bucket/data.csv"),
        ("gs://bucket/x?secret=a@b", "gs://..."),
        ("s3a://K:s@e@bucket/x", "s3a://bucket/x"),
        ("abfss://box@account.dfs/x", "abfss://box@account.dfs/x"),
        ("hdfs://user:word@host:8020/x", "hdfs://host:8020/x"),
        ("postgresql://me:word@host/db?password=x&sslmode=require", "postgresql://me@host/db?sslmode=require"),
        ("here/a@b?c.csv", "here/a@b?c.csv"),
    ):
        assert without_secrets(given) == shown


@pytest.mark.parametrize("scheme", ["s3", "gs", "s3a", "hdfs"])
@pytest.mark.parametrize(("form", "secrets"), ADDRESSES)
def test_errors_and_requests(tmp_path: Path, scheme: str, form: str, secrets: list[str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text("user,item\n1,tea\n")
    asked = {"user": "user", "item": "item", "epsilon": 1, "delta": 1e-6, "max_items_per_user": 1}

    def message(*given: object, **more: object) -> str:
        with pytest.raises(DphistError) as caught:
            dphist.release(*given, **{**asked, **more})  # type: ignore[arg-type]
        return str(caught.value)

    out = form.format(scheme, ".foo")
    for said in (
        message(log, output=out),
        message(log, output=form.format(scheme, ".csv"), output_table="t"),
        message(log, output=form.format(scheme, ".csv"), output_format="docx"),
        message(log, output=form.format(scheme, ".sqlite")),
        message(log, ledger=out, dataset="d"),
        message(log, output="-", certificate=out),
        message(log, output=tmp_path / "o.csv", sign=out),
        message(log, temp_folder=out),
    ):
        assert_hidden(said, secrets)
    if scheme in ("s3a", "hdfs"):
        csv = form.format(scheme, ".csv")
        for said in (message(csv), message([csv, log]), message([log, out]), message(log, items=csv)):
            assert_hidden(said, secrets)
        with pytest.raises(DphistError) as caught:
            dphist.verify(csv)
        assert_hidden(str(caught.value), secrets)
    with pytest.raises(DphistError) as caught:
        Ledger.open(out)
    assert_hidden(str(caught.value), secrets)


@pytest.mark.parametrize(("form", "secrets"), ADDRESSES)
def test_what_the_command_prints(tmp_path: Path, form: str, secrets: list[str]) -> None:
    address, out = form.format("s3", ".csv"), form.format("s3a", ".csv")
    (tmp_path / "log.csv").write_text("user,item\n1,tea\n")

    def run(*arguments: str) -> str:
        done = command(tmp_path, *arguments)
        assert_hidden(done.out + done.err, secrets)
        return done.out if done.code == 0 else done.err

    request = json.loads(run("release", address, *ASKED, "-o", out, "--dry-run", "--json"))["request"]
    assert request["input"] == without_secrets(address)
    example = run("release", f"--input={address}", f"-o{address}", "--user", "u", "--epsilon=1")
    assert f"--input={without_secrets(address)}" in example
    assert f"-o{without_secrets(address)}" in example
    assert "unexpected extra argument" in run("release", "log.csv", address)
    assert "is not a number" in run("release", "log.csv", "--epsilon", address)
    run("release", "log.csv", *ASKED, "-o", "o.csv", "--report", address)


def test_a_certificate_and_a_ledger_have_no_secret() -> None:
    values = {"user": "user", "item": "item", "epsilon": 1, "delta": 1e-6}
    for form, secrets in ADDRESSES:
        one, two = form.format("s3", ".csv"), form.format("gs", ".csv")
        request = request_from({**values, "input": [one, two], "items": two, "output": one, "engine": "spark"})
        assert_hidden(json.dumps(request.to_dict()), secrets)
        assert_hidden(json.dumps(request.to_dict(everything=True)), secrets)
    # Spark settings may be secrets, so only their names are booked.
    more = {
        "engine": "spark",
        "spark_conf": "spark.x=hush",
        "output": "o/",
        "ledger": "l",
        "dataset": "d",
        "id": "i",
    }
    request = request_from({**values, "input": "a.csv", **more})
    facts = _run_facts(request, target_of("o/"))
    assert facts["spark-conf"] == ["spark.x"]
    assert_hidden(json.dumps(facts), ["hush"])
    # A column name is recorded unchanged, even if it looks like an address.
    assert request_from({**values, "input": "a", "user": "x://a?b"}).to_dict()["user"] == "x://a?b"


@pytest.mark.parametrize("kind", ["path", "list", "public list"])
def test_the_folders_of_an_input_are_not_published(tmp_path: Path, kind: str) -> None:
    """The certificate and the report are public; folders may name people, projects and machines."""
    folder = tmp_path / "jane-doe-case"
    folder.mkdir()
    for name in ("log.csv", "items.csv"):
        (folder / name).write_text("user,item\n" + "".join(f"{user},tea\n" for user in range(200)))
    given: Any = [folder / "log.csv"] if kind == "list" else folder / "log.csv"
    more: dict[str, Any] = {"items": folder / "items.csv"} if kind == "public list" else {}
    found = dphist.release(
        given, user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=1, output=tmp_path / "o.csv",
        **more,
    )  # fmt: skip
    certificate = (tmp_path / "o.csv.certificate.json").read_text()
    assert "jane-doe" not in certificate + str(found) + repr(found.request)
    assert '"log.csv"' in certificate
    assert dphist.verify(tmp_path / "o.csv").verified
