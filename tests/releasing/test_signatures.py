"""Signatures detect changed, swapped, renamed and older releases, and ledgers that were rolled back."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

import dphist
from dphist.certificate.text import SEAL, certificate_text, parse_certificate, self_digest, signed_bytes
from dphist.certificate.verify import examine
from dphist.errors import DphistError, InputError, InvalidParameter, LedgerError, NotVerified, OutputError
from dphist.ledger import Checkpoint, Ledger, Spend, SumComposer
from dphist.ledger.store import NOTHING, digest
from dphist.signatures import Trust, fingerprint_of, make_key, read_public_key, signer_of
from exports import certificate_of, export, verify
from ledger_data import tamper
from release_commands import FLAGS, command, log_in
from release_data import events

pytestmark = pytest.mark.usefixtures("decoded_here")
KINDS = ["q.csv", "q.jsonl", "q.parquet", "q.duckdb", "q.sqlite"]
PLAN = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=7)
# The order of Ed25519's group.
ORDER = 2**252 + 27742317777372353535851937790883648493


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the publisher's key, `own`, and a forger's, `other`."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("own", "other"):
        make_key(folder / name)
    return folder


def write(path: Path, key: Path | None, counts: tuple[int, int] = (900, 700), **more: Any) -> None:
    dphist.release_histogram(["tea", "milk"], list(counts), PLAN).write(path, sign=key, **more)


def sealed_again(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a certificate and compute its digest again, as a forger without the key can."""
    certificate = certificate_of(path)
    document = json.loads(certificate.read_text())
    change(document)
    document.pop(SEAL)
    document[SEAL] = ""
    with suppress(ValueError):  # text that is not Unicode has no digest
        document[SEAL] = self_digest(document)
    certificate.write_text(certificate_text(document))


def put_signature(signature: Any, document: dict[str, Any]) -> None:
    document["signature"] = signature


def refused(path: Path, key: Path, **more: Any) -> dphist.Verification:
    found = verify(path, public_key=f"{key}.pub", **more)
    assert not found.verified
    assert found.problems
    return found


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_output(tmp_path: Path, keys: Path, name: str) -> None:
    path = tmp_path / name
    write(path, keys / "own")
    found = verify(path, public_key=keys / "own.pub")
    assert found.verified, found
    own = fingerprint_of(read_public_key(keys / "own.pub"))
    assert (found.signature, found.signed_by) == ("trusted", own)
    assert found.to_dict()["signed_by"] == own
    # Without the public key, only the fingerprint is known.
    found = verify(path)
    assert (found.verified, found.signature, found.signed_by) == (True, "valid", own)
    assert "--public-key" in str(found)
    assert refused(path, keys / "other").signature == "other key"
    # Replaced by a valid release with another key, then by one without a signature.
    write(path, keys / "other", (90_000, 700), force=True)
    assert verify(path).verified
    assert refused(path, keys / "own").signature == "other key"
    write(path, None, (90_000, 700), force=True)
    found = verify(path)
    assert (found.verified, found.signature, found.signed_by) == (True, "missing", None)
    assert "not signed" in str(found)
    assert refused(path, keys / "own").signature == "missing"


def test_changed_counts_sealed_again(tmp_path: Path, keys: Path) -> None:
    path = tmp_path / "q.csv"
    write(path, keys / "own")
    header, _, *rest = path.read_text().splitlines(keepends=True)
    path.write_text(header + '"tea",90000\n' + "".join(rest))

    def changed(document: dict[str, Any]) -> None:
        document["output"]["sha256"] = sha256(path.read_bytes()).hexdigest()

    sealed_again(path, changed)
    assert refused(path, keys / "own").signature == "invalid"
    assert not dphist.verify(path).verified
    sealed_again(path, lambda document: (document.pop("signature"), document["output"].update(database="x")))
    assert not dphist.verify(path).verified
    sealed_again(path, lambda document: (document.update(signature=None), document["output"].pop("database")))
    # Without its signature it is valid: only the expected key shows the forgery.
    sealed_again(path, lambda document: document.pop("signature"))
    assert dphist.verify(path).verified
    assert refused(path, keys / "own").signature == "missing"
    signer = signer_of(keys / "other")
    sealed_again(path, lambda document: document.update(signature=signer(signed_bytes(document))))
    assert dphist.verify(path).verified
    assert refused(path, keys / "own").signature == "other key"


def test_every_statement_is_signed(tmp_path: Path, keys: Path) -> None:
    """No value in the certificate can be changed, even with a new digest."""
    path = tmp_path / "q.csv"
    write(path, keys / "own")
    original = certificate_of(path).read_bytes()

    def leaves(data: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        steps = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
        return [leaf for key, value in steps for leaf in leaves(value, (*way, key))] or [way]

    ways = [way for way in leaves(json.loads(original)) if way != (SEAL,)]
    assert len(ways) > 40
    for way in ways:
        for value in (None, "x"):
            document = json.loads(original)
            place = document
            for key in way[:-1]:
                place = place[key]
            if place[way[-1]] == value:
                continue
            place[way[-1]] = value
            document[SEAL] = self_digest(document)
            trust = Trust.of(keys / "own.pub", None)
            assert examine(document, path, None, trust).problems, way


def test_swapped_releases(tmp_path: Path, keys: Path) -> None:
    one, two = tmp_path / "january.csv", tmp_path / "february.csv"
    write(one, keys / "own")
    write(two, keys / "own", (500, 300))

    def swap(*pairs: tuple[Path, Path]) -> None:
        for first, second in pairs:
            aside = tmp_path / "aside"
            first.rename(aside)
            second.rename(first)
            aside.rename(second)

    data, certificates = (one, two), (certificate_of(one), certificate_of(two))
    for pairs in ([data], [certificates], [data, certificates]):
        swap(*pairs)
        for path in data:
            refused(path, keys / "own")
        swap(*pairs)
    # Both, under each other's name: valid, but in the wrong place.
    swap(data, certificates)
    assert dphist.verify(one).verified
    assert "has the name 'january.csv'" in refused(one, keys / "own").problems[0]
    swap(data, certificates)
    for path in data:
        assert dphist.verify(path, public_key=keys / "own.pub").verified
    # Through a link, and with the other certificate.
    (tmp_path / "link.csv").symlink_to(one)
    refused(tmp_path / "link.csv", keys / "own", certificate=certificates[0])
    refused(one, keys / "own", certificate=certificates[1])


@pytest.mark.parametrize("name", ["q.sqlite", "q.duckdb"])
def test_swapped_tables_and_databases(tmp_path: Path, keys: Path, name: str) -> None:
    """An export has any name; what was signed is the name of the certificate."""
    path, own = tmp_path / name, keys / "own"
    for table, counts in (("january", (900, 700)), ("february", (500, 300))):
        write(path, own, counts, output_table=table)
    assert verify(path, "january", public_key=f"{own}.pub").verified
    (other := tmp_path / "other").mkdir()
    for old, new in (("january", "february"), ("february", "january")):
        shutil.copyfile(certificate_of(path, old), certificate_of(other / name, new))
    for file in (export(path, "january"), export(path, "february")):
        for table in ("january", "february"):
            refused(file, own, certificate=certificate_of(other / name, table))
    february = export(path, "february")
    assert dphist.verify(february, certificate=certificate_of(other / name, "january")).verified
    (problem,) = refused(february, own, certificate=certificate_of(other / name, "january")).problems
    assert problem == f"the release has the name '{name}.january', but was signed as '{name}.february'"
    # As the table of another database.
    shutil.copyfile(certificate_of(path, "february"), other / f"other{name}.february.certificate.json")
    refused(february, own, certificate=other / f"other{name}.february.certificate.json")


def test_flipped_bits(tmp_path: Path, keys: Path) -> None:
    """100 bits of certificate and data through `verify`, and one bit of every byte of the certificate."""
    path = tmp_path / "q.csv"
    write(path, keys / "own")
    trust, draws = Trust.of(keys / "own.pub", None), random.Random(7)
    certificate = certificate_of(path)
    original = certificate.read_bytes()

    def flipped(good: bytes, place: int) -> bytes:
        return good[:place] + bytes([good[place] ^ 1 << draws.randrange(8)]) + good[place + 1 :]

    for file in (certificate, path):
        good = file.read_bytes()
        for _ in range(50):
            file.write_bytes(flipped(good, draws.randrange(len(good))))
            refused(path, keys / "own")
        file.write_bytes(good)
    for place in range(len(original)):
        document, problems = parse_certificate(flipped(original, place), "certificate")
        assert problems or examine(document, path, None, trust).problems, place
    # All bits of the signature.
    start, end = original.index(b'"signature"'), original.index(b'"self_sha256"')
    for place in range(start, end):
        for bit in range(8):
            changed = original[:place] + bytes([original[place] ^ 1 << bit]) + original[place + 1 :]
            document, problems = parse_certificate(changed, "certificate")
            assert problems or examine(document, path, None, trust).problems, (place, bit)
    assert dphist.verify(path, public_key=keys / "own.pub").verified


def test_the_bytes_of_a_signed_certificate(tmp_path: Path, keys: Path) -> None:
    """Other texts with the same content are refused."""
    path = tmp_path / "q.csv"
    write(path, keys / "own")
    certificate = certificate_of(path)
    good = certificate.read_text()
    twice = good.replace('  "guarantee": ', '  "guarantee": "Perfectly private.",\n  "guarantee": ', 1)
    for text in (
        twice, good + "\n", good.replace("1e-06", "1E-06", 1), good.replace("1e-06", "0.000001", 1),
        json.dumps(json.loads(good)), good.replace('"private"', '"priv\\u0061te"', 1), "\ufeff" + good,
    ):  # fmt: skip
        assert text != good
        certificate.write_text(text)
        refused(path, keys / "own")
        assert not dphist.verify(path).verified
    certificate.write_bytes(good.encode("utf-16"))
    refused(path, keys / "own")
    certificate.write_text(good)
    assert dphist.verify(path, public_key=keys / "own.pub").verified


def test_malformed_signatures(tmp_path: Path, keys: Path) -> None:
    path = tmp_path / "q.csv"
    write(path, keys / "own")
    original = certificate_of(path).read_text()
    good = json.loads(original)["signature"]
    key, value = good["public_key"], good["value"]
    raw = base64.b64decode(value)
    larger = raw[:32] + (int.from_bytes(raw[32:], "little") + ORDER).to_bytes(32, "little")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    loose = key[:-2] + letters[letters.index(key[-2]) + 1] + "="
    assert base64.b64decode(loose) == base64.b64decode(key)
    bad: list[Any] = [
        None, 5, "x", [], {}, [good], {**good, "more": 1}, {**good, "algorithm": "ed25519ph"},
        {**good, "algorithm": "none"}, {**good, "algorithm": None}, {"value": value, "public_key": key},
        {**good, "public_key": loose}, {**good, "value": base64.b64encode(larger).decode()},
        {**good, "value": ""}, {**good, "value": value[:-4]}, {**good, "value": value + "AAAA"},
        {**good, "value": value + "\n"}, {**good, "value": " " + value}, {**good, "value": value.rstrip("=")},
        {**good, "value": "é" * 88}, {**good, "value": "!" * 88}, {**good, "value": [value]}, {**good, "value": 7},
        {**good, "public_key": base64.b64encode(bytes(32)).decode()}, {**good, "public_key": value},
        {**good, "public_key": base64.b64encode(b"\xff" * 32).decode()}, {**good, "public_key": {}},
        {**good, "value": base64.b64encode(bytes(64)).decode()}, {**good, "value": "\ud800" * 88},
    ]  # fmt: skip
    for signature in bad:
        sealed_again(path, partial(put_signature, signature))
        for found in (dphist.verify(path), dphist.verify(path, public_key=keys / "own.pub")):
            assert not found.verified, signature
            assert (found.signature, found.signed_by) == ("invalid", None)
            assert any("signature" in problem for problem in found.problems), found
        certificate_of(path).write_text(original)
    assert dphist.verify(path, public_key=keys / "own.pub").verified


def test_older_releases(tmp_path: Path, keys: Path) -> None:
    """An older release is genuine; only its signed date shows its age."""
    path = tmp_path / "q.csv"
    write(path, keys / "own")
    old = [file.read_bytes() for file in (path, certificate_of(path))]
    made = json.loads(old[1])["created"]
    write(path, keys / "own", (901, 701), force=True)
    for file, content in zip((path, certificate_of(path)), old, strict=True):
        file.write_bytes(content)
    found = dphist.verify(path, public_key=keys / "own.pub", not_before=made)
    assert found.verified
    assert made in str(found)
    assert dphist.verify(path, public_key=keys / "own.pub", not_before="2020-01-01").verified
    for date in ("2999-01-01", "2999-01-01T00:00:00Z", "2999-01-01T00:00:00+02:00", datetime(2999, 1, 1)):
        assert f"was made {made}, before 2999" in refused(path, keys / "own", not_before=date).problems[0]
    sealed_again(path, lambda document: document.update(created="2999-12-31T00:00:00Z"))
    assert refused(path, keys / "own", not_before="2999-01-01").signature == "invalid"
    with pytest.raises(InvalidParameter, match="needs public_key"):
        dphist.verify(path, not_before="2020-01-01")
    for wrong in ("yesterday", "", 5):
        with pytest.raises(InvalidParameter, match="must be a date"):
            dphist.verify(path, public_key=keys / "own.pub", not_before=wrong)  # type: ignore[arg-type]


def test_invalid_dates(tmp_path: Path, keys: Path) -> None:
    signer = signer_of(keys / "own")
    trust = Trust.of(keys / "own.pub", "2020-01-01")
    for created in (None, "", "2999", "2999-13-01T00:00:00Z", "9999-99-99T99:99:99Z", 5, "2021-01-01T00:00:00Z\n"):
        document: dict[str, Any] = {
            "created": created,
            "output": {"name": "q", "kind": "csv", "sha256": "0" * 64, "columns": [], "rows": 0},
        }
        document["signature"] = signer(signed_bytes(document))
        assert examine(document, tmp_path / "q", None, trust).problems, created


# Keys that cannot be used.


def pem(key: Any, *, public: bool = False, password: bytes | None = None, ssh: bool = False) -> bytes:
    if public:
        found: bytes = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return found
    form = serialization.PrivateFormat.OpenSSH if ssh else serialization.PrivateFormat.PKCS8
    hidden = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    secret: bytes = key.private_bytes(serialization.Encoding.PEM, form, hidden)
    return secret


def unusable_keys(folder: Path, *, public: bool) -> dict[str, tuple[Path, str]]:
    """Files that are not a key for signing, or for verifying, each with its message."""
    own = ed25519.Ed25519PrivateKey.generate()
    form = "public key in PEM form" if public else "private key in PEM form"
    contents = {
        "rsa": (pem(rsa.generate_private_key(65537, 2048), public=public), "not an Ed25519 key"),
        "curve": (pem(ec.generate_private_key(ec.SECP256R1()), public=public), "not an Ed25519 key"),
        "wrong half": (pem(own, public=not public), "private key, which" if public else "is a public key"),
        "garbage": (os.urandom(500), form),
        "empty": (b"", form),
        "text": (b"-----BEGIN PRIVATE KEY-----\nnot base64\n-----END PRIVATE KEY-----\n", "private key"),
        "cut": (pem(own, public=public)[:60], form),
        "huge": (b"-----" * (1 << 16), "larger than"),
        "ssh": (pem(own, ssh=True), "private key, which" if public else form),
    }
    found = {}
    for name, (content, message) in contents.items():
        file = folder / name
        file.write_bytes(content)
        file.chmod(0o600)
        found[name] = (file, message)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe", 0o600)
    (folder / "loop").symlink_to(folder / "loop")
    for name, message in (
        ("folder", "not a regular file"),
        ("pipe", "not a regular file"),
        ("loop", "cannot be read"),
    ):
        found[name] = (folder / name, message)
    found["device"] = (Path("/dev/zero"), "not a regular file")
    found["missing"] = (folder / "missing", "does not exist")
    return found


def test_invalid_private_keys(tmp_path: Path) -> None:
    """They are refused before anything is read, booked or written."""
    log_in(tmp_path)
    entries = Ledger.open(tmp_path / "a.ledger").accounts().chain.number
    bad = unusable_keys(tmp_path, public=False)
    make_key(tmp_path / "open")
    for mode in (0o640, 0o604, 0o620, 0o666):
        name = f"open{mode:o}"
        shutil.copyfile(tmp_path / "open", tmp_path / name)
        (tmp_path / name).chmod(mode)
        bad[name] = (tmp_path / name, "open to other users")
    for name, (file, message) in bad.items():
        with pytest.raises(InputError, match=message):
            signer_of(file)
        if name not in ("wrong half", "missing", "open640"):
            continue
        asked = ["--sign", str(file), "--output", "q.csv", "--ledger", "a.ledger", "--dataset", "log"]
        done = command(tmp_path, "release", "events.parquet", *FLAGS, *asked)
        assert done.code == 2, (name, done)
        assert done.err.count("\n") == 1, done.err
        assert message in done.err, (name, done.err)
        with pytest.raises(InputError, match=message):
            dphist.release_histogram(["tea"], [900], PLAN).write(tmp_path / "q.csv", sign=file)
        done = command(tmp_path, "ledger", "checkpoint", "a.ledger", "--sign", str(file), "--output", "c.json")
        assert (done.code, message in done.err) == (2, True), (name, done.err)
    assert not list(tmp_path.glob("q.csv*"))
    assert not list(tmp_path.glob("c.json*"))
    assert not list(tmp_path.glob(".dphist*"))
    assert Ledger.open(tmp_path / "a.ledger").accounts().chain.number == entries
    for name in ("", "a\0b"):
        with pytest.raises(InvalidParameter, match="name of a file"):
            signer_of(name)


def test_invalid_public_keys(tmp_path: Path, keys: Path) -> None:
    write(tmp_path / "q.csv", keys / "own")
    for name, (file, message) in unusable_keys(tmp_path, public=True).items():
        with pytest.raises(InputError, match=message):
            read_public_key(file)
        if name not in ("wrong half", "missing"):
            continue
        for words in (["verify", "q.csv"], ["report", "q.csv", "--json"]):
            done = command(tmp_path, *words, "--public-key", str(file))
            assert done.code == 2, (name, done)
            assert done.err.count("\n") == 1, done.err
            assert message in done.err, (name, done.err)
            assert not done.out


def test_encrypted_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "key").write_bytes(pem(own, password=b"a secret phrase"))
    (tmp_path / "key").chmod(0o600)
    monkeypatch.delenv("DPHIST_KEY_PASSPHRASE", raising=False)
    with pytest.raises(InputError, match="is encrypted: set DPHIST_KEY_PASSPHRASE"):
        signer_of(tmp_path / "key")
    for wrong in ("another", "\udcff"):
        monkeypatch.setenv("DPHIST_KEY_PASSPHRASE", wrong)
        with pytest.raises(InputError, match="or DPHIST_KEY_PASSPHRASE is not its passphrase"):
            signer_of(tmp_path / "key")
    monkeypatch.setenv("DPHIST_KEY_PASSPHRASE", "a secret phrase")
    signer = signer_of(tmp_path / "key")
    assert signer.fingerprint == fingerprint_of(own.public_key().public_bytes_raw())
    # Ignored for a key that is not encrypted.
    make_key(tmp_path / "plain")
    assert signer_of(tmp_path / "plain") is not None


# New keys.


def test_keygen(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        done = command(tmp_path, "keygen", "key", "--json")
    finally:
        os.umask(before)
    assert done.data["fingerprint"] == fingerprint_of(read_public_key(tmp_path / "key.pub"))
    assert set(done.data) == {"private_key", "public_key", "fingerprint"}
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.pub"]
    signer = signer_of(tmp_path / "key")
    assert signer.fingerprint == done.data["fingerprint"]
    assert done.data["fingerprint"] in repr(signer)
    assert done.data["fingerprint"] in command(tmp_path, "keygen", "next").out + repr(signer)
    assert read_public_key(tmp_path / "key.pub") != read_public_key(tmp_path / "next.pub")


def test_no_key_is_ever_replaced(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    good = [(tmp_path / name).read_bytes() for name in ("key", "key.pub")]
    done = command(tmp_path, "keygen", "key")
    assert (done.code, "already exists" in done.err) == (1, True)
    assert [(tmp_path / name).read_bytes() for name in ("key", "key.pub")] == good
    (tmp_path / "half.pub").write_text("somebody's")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("half", "dangling", "nothing/key", ".", "a\0b"):
        with pytest.raises(DphistError):
            make_key(f"{tmp_path}/{name}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "half.pub", "key", "key.pub"]


def test_no_private_key_without_its_public_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process creates the public key at the last moment."""
    real = os.link

    def late(source: Any, target: Any, **more: Any) -> None:
        if str(target).endswith(".pub"):
            Path(target).write_text("somebody's")
        real(source, target, **more)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(OutputError, match="already exists"):
        make_key(tmp_path / "key")
    assert [path.name for path in tmp_path.iterdir()] == ["key.pub"]
    assert (tmp_path / "key.pub").read_text() == "somebody's"


# Commands.


def test_a_signed_and_booked_release_by_command(tmp_path: Path) -> None:
    log_in(tmp_path)
    secret = tmp_path / "my-secret-place"
    secret.mkdir()
    made = command(tmp_path, "keygen", "my-secret-place/key", "--json").data
    asked = ["--sign", "my-secret-place/key", "--ledger", "a.ledger", "--dataset", "log"]
    done = command(tmp_path, "release", "events.parquet", *FLAGS, *asked, "--output", "q.csv", "--json")
    assert done.data["signed_by"] == made["fingerprint"]
    found = command(tmp_path, "verify", "q.csv", "--public-key", made["public_key"], "--json").data
    assert (found["verified"], found["signature"]) == (True, "trusted")
    assert found["signed_by"] == made["fingerprint"]
    done = command(tmp_path, "release", "events.parquet", *FLAGS, *asked, "--output", "r.csv")
    assert f"Signed by    {made['fingerprint']}" in done.out
    assert command(tmp_path, "verify", "r.csv", "--public-key", made["public_key"]).code == 0
    assert command(
        tmp_path, "verify", "r.csv", "--public-key", made["public_key"], "--not-before", "2999-01-01"
    ).code
    # Neither the key nor its path is written anywhere.
    key = (secret / "key").read_bytes().splitlines()[1]
    for file in tmp_path.iterdir():
        if file.is_file():
            content = file.read_bytes()
            assert b"my-secret-place" not in content, file
            assert key not in content, file


def test_request_files(tmp_path: Path) -> None:
    log_in(tmp_path)
    make_key(tmp_path / "key")
    (tmp_path / "request.toml").write_text(
        'input = "events.parquet"\nuser = "user"\nitem = "item"\nepsilon = 1\ndelta = 1e-7\n'
        'max-items-per-user = 2\noutput = "q.parquet"\nsign = "key"\n'
    )
    assert command(tmp_path, "release", "request.toml").code == 0
    assert dphist.verify(tmp_path / "q.parquet", public_key=tmp_path / "key.pub").verified
    assert "sign" not in json.loads(certificate_of(tmp_path / "q.parquet").read_text())["request"]


def test_a_signature_needs_an_output(tmp_path: Path, keys: Path) -> None:
    with pytest.raises(InvalidParameter, match="sign needs output"):
        dphist.release(
            events({"tea": 900}), user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=1,
            sign=keys / "own",
        )  # fmt: skip
    words = ["sketch", "release", "no.sketch", "--epsilon", "1", "--delta", "1e-6", "--sign", str(keys / "own")]
    done = command(tmp_path, *words)
    assert (done.code, "--sign needs --output" in done.err) == (2, True)


def test_a_release_does_not_replace_its_key(tmp_path: Path) -> None:
    make_key(tmp_path / "key.csv")
    good = (tmp_path / "key.csv").read_bytes()
    with pytest.raises(InvalidParameter, match="cannot write the release to"):
        dphist.release(
            events({"tea": 900}), user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=1,
            output=tmp_path / "key.csv", sign=tmp_path / "key.csv", force=True,
        )  # fmt: skip
    assert (tmp_path / "key.csv").read_bytes() == good


def test_sketches(tmp_path: Path, keys: Path) -> None:
    pq.write_table(events({"tea": 900, "milk": 700}), tmp_path / "e.parquet")
    built = ["e.parquet", "--user", "user", "--item", "item", "--size", "20", "--output", "s.sketch"]
    assert command(tmp_path, "sketch", "build", *built).code == 0
    asked = ["s.sketch", "--epsilon", "1", "--delta", "1e-6", "--output", "q.csv", "--sign", str(keys / "own")]
    done = command(tmp_path, "sketch", "release", *asked, "--json")
    assert done.data["signed_by"] == fingerprint_of(read_public_key(keys / "own.pub"))
    assert dphist.verify(tmp_path / "q.csv", public_key=keys / "own.pub").verified
    refused(tmp_path / "q.csv", keys / "other")


def test_reports(tmp_path: Path, keys: Path) -> None:
    write(tmp_path / "q.csv", keys / "own")
    own = fingerprint_of(read_public_key(keys / "own.pub"))
    assert own in dphist.make_report(tmp_path / "q.csv", public_key=keys / "own.pub")
    data = command(tmp_path, "report", "q.csv", "--public-key", str(keys / "own.pub"), "--json").data
    assert (data["signature"], data["signed_by"]) == ("trusted", own)
    assert data["verify"] == "dphist verify q.csv --public-key own.pub"
    with pytest.raises(NotVerified, match="another key"):
        dphist.make_report(tmp_path / "q.csv", public_key=keys / "other.pub")
    done = command(tmp_path, "report", "q.csv", "--public-key", str(keys / "other.pub"), "--output", "r.html")
    assert (done.code, (tmp_path / "r.html").exists()) == (1, False)
    with pytest.raises(InvalidParameter, match="a written release"):
        dphist.make_report(dphist.release_histogram(["tea"], [900], PLAN), public_key=keys / "own.pub")


def test_cryptography_is_not_imported_before_it_is_needed() -> None:
    script = (
        "import sys, dphist; import dphist.cli; assert not any('cryptography' in name for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# Ledgers.


def booked(path: Path, times: int) -> Ledger:
    ledger = Ledger.init(path, "log", epsilon=3, delta=1e-5, accounting="sum")
    for _ in range(times):
        ledger.book("log", Spend(0.1, 1e-7), SumComposer())
    return ledger


def shown(folder: Path, keys: Path, checkpoint: str = "c.json", *more: str) -> Any:
    against = ["--checkpoint", checkpoint, "--public-key", str(keys / "own.pub")]
    return command(folder, "ledger", "show", "a.ledger", *against, *more)


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """A new chain with valid hashes and changed bookings."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT * FROM entries ORDER BY number").fetchall()
    previous = NOTHING
    for number, kind, dataset, created, body, _, _ in rows:
        if kind == "booking":
            data = json.loads(body)
            change(data)
            body = json.dumps(data, sort_keys=True, separators=(",", ":"))
        value = digest(number, kind, dataset, created, body, previous)
        tamper(
            path,
            f"UPDATE entries SET body = ?, previous = ?, hash = ? WHERE number = {number}",
            values=(body, previous, value),
        )
        previous = value


def test_checkpoints_of_ledgers(tmp_path: Path, keys: Path) -> None:
    path = tmp_path / "a.ledger"
    ledger = booked(path, 2)
    older = path.read_bytes()
    ledger.book("log", Spend(0.1, 1e-7), SumComposer())
    made = command(
        tmp_path, "ledger", "checkpoint", "a.ledger", "--sign", str(keys / "own"), "--output", "c.json", "--json"
    ).data
    assert (made["entry"], made["hash"]) == (5, ledger.accounts().chain.hash)
    assert made["signed_by"] == fingerprint_of(read_public_key(keys / "own.pub"))
    ledger.book("log", Spend(0.2, 1e-7), SumComposer())
    newer = path.read_bytes()
    done = shown(tmp_path, keys, "c.json", "--json")
    assert (done.code, done.data["checkpoint"]["entry"], done.data["head"]["entry"]) == (0, 5, 6)
    assert "entry 5 of" in shown(tmp_path, keys).out

    # Rolled back to before the checkpoint: a valid ledger.
    path.write_bytes(older)
    assert command(tmp_path, "ledger", "show", "a.ledger").code == 0
    done = shown(tmp_path, keys)
    assert (done.code, "entries are missing" in done.err) == (2, True), done
    # Rolled back, then booked until it is as long.
    again = Ledger.open(path)
    for _ in range(2):
        again.book("log", Spend(0.01, 1e-7), SumComposer())
    assert "its entries are different" in shown(tmp_path, keys).err
    # A new chain in which every booking costs less.
    path.write_bytes(newer)
    rewritten(path, lambda body: body.update(epsilon=0.001))
    done = command(tmp_path, "ledger", "show", "a.ledger", "--json")
    assert done.data["datasets"][0]["bookings"][0]["epsilon"] == 0.001
    assert "its entries are different" in shown(tmp_path, keys).err
    # Replaced by another ledger.
    path.unlink()
    booked(path, 5)
    assert "checkpoint is of the ledger" in shown(tmp_path, keys).err
    path.write_bytes(newer)
    assert shown(tmp_path, keys).code == 0


def test_forged_checkpoints(tmp_path: Path, keys: Path) -> None:
    ledger = booked(tmp_path / "a.ledger", 2)
    good = tmp_path / "c.json"
    ledger.checkpoint().write(good, sign=keys / "own")
    text, bad = good.read_text(), tmp_path / "bad.json"
    ledger.checkpoint().write(tmp_path / "other.json", sign=keys / "other")
    signer = signer_of(keys / "own")
    document = json.loads(text)
    forged: list[Any] = [
        {**document, "entry": 2}, {**document, "hash": "0" * 64}, {**document, "ledger": "0" * 32},
        {**document, "created": "2999-01-01T00:00:00Z"}, {**document, "more": 1}, {**document, "signature": None},
        {key: value for key, value in document.items() if key != "signature"},
        # Signed by the same key, but as a certificate.
        {**document, "signature": signer(signed_bytes(document))},
        json.loads((tmp_path / "other.json").read_text()), [document], "x", None,
    ]  # fmt: skip
    contents = [json.dumps(data, indent=2).encode() + b"\n" for data in forged]
    contents += [b"", b"{", b"\xff" * 50, b"[" * 60_000, b" " * (1 << 20), text.encode() + b" "]
    for content in contents:
        bad.write_bytes(content)
        with pytest.raises(DphistError) as wrong:
            Checkpoint.read(bad, public_key=keys / "own.pub")
        assert "\n" not in str(wrong.value)
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "/dev/zero", ".", "nowhere.json"):
        with pytest.raises(InputError):
            Checkpoint.read(tmp_path / name, public_key=keys / "own.pub")
    bad.write_bytes(contents[0])
    done = shown(tmp_path, keys, "bad.json")
    assert (done.code, done.err.count("\n")) == (2, 1), done
    raw, draws = text.encode(), random.Random(3)
    for place in range(len(raw)):
        bad.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << draws.randrange(8)]) + raw[place + 1 :])
        with pytest.raises(LedgerError):
            Checkpoint.read(bad, public_key=keys / "own.pub")
    assert Checkpoint.read(good, public_key=keys / "own.pub").entry == 4
    for words in (["--checkpoint", "c.json"], ["--public-key", str(keys / "own.pub")]):
        done = command(tmp_path, "ledger", "show", "a.ledger", *words)
        assert (done.code, "go together" in done.err) == (2, True)


def test_a_signed_checkpoint_is_not_a_signed_certificate(tmp_path: Path, keys: Path) -> None:
    booked(tmp_path / "a.ledger", 1).checkpoint().write(tmp_path / "c.json", sign=keys / "own")
    document = json.loads((tmp_path / "c.json").read_text())
    assert examine(document, tmp_path / "c", None, Trust.of(keys / "own.pub", None)).status == "invalid"


def test_no_checkpoint_is_replaced(tmp_path: Path, keys: Path) -> None:
    ledger = booked(tmp_path / "a.ledger", 1)
    (tmp_path / "c.json").write_text("older")
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere")
    for name in ("c.json", "link.json", "no/c.json", "."):
        with pytest.raises(OutputError):
            ledger.checkpoint().write(tmp_path / name, sign=keys / "own")
    assert (tmp_path / "c.json").read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ledger", "c.json", "link.json"]


def test_the_booking_of_a_signed_release_cannot_be_changed(tmp_path: Path, keys: Path) -> None:
    """A forger who names another booking could hide that this release was never paid for."""
    path, ledger = tmp_path / "q.csv", tmp_path / "log.ledger"
    Ledger.init(ledger, "log", epsilon=2, delta=1e-5)
    dphist.release(
        events({"tea": 900, "milk": 700}), user="user", item="item", epsilon=1.0, delta=1e-6, max_items_per_user=2,
        ledger=ledger, dataset="log", output=path, sign=keys / "own",
    )  # fmt: skip
    assert dphist.verify(path, public_key=keys / "own.pub").signature == "trusted"
    original = certificate_of(path).read_text()
    for name, value in (("entry", 77), ("hash", "0" * 64), ("ledger", "0" * 32)):
        change = {name: value}
        sealed_again(path, lambda document, change=change: document["booking"].update(change))  # type: ignore[misc]
        found = dphist.verify(path, public_key=keys / "own.pub")
        assert found.signature == "invalid", f"the signature does not cover the booking's {name}"
        assert not found.verified
        certificate_of(path).write_text(original)


def test_the_signature_covers_every_entry_that_a_document_may_have(tmp_path: Path, keys: Path) -> None:
    """Whatever optional entries the example lacks: each may be changed, added or removed only with the key."""
    path = tmp_path / "q.csv"
    write(path, keys / "own")
    document, trust = json.loads(certificate_of(path).read_text()), Trust.of(keys / "own.pub", None)
    optional = {name: {"a": 1} for name in ("booking", "choice", "caveats", "private", "created", "anything else")}
    everything = {**document, **optional}
    everything["signature"] = signer_of(keys / "own")(signed_bytes(everything))
    assert examine(everything, path, None, trust).status == "trusted"
    for name in everything.keys() - {"signature", SEAL}:
        rest = {key: value for key, value in everything.items() if key != name}
        for forged in (rest, {**everything, name: {"a": 2}}):
            assert examine(forged, path, None, trust).status == "invalid", f"{name!r} is not signed"
