"""Cost of signatures: releases and verifications with and without one.

python benchmarks/signatures.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import dphist
from dphist.certificate.text import signed_bytes
from dphist.certificate.verify import examine
from dphist.ledger import Checkpoint, Ledger
from dphist.signatures import Trust, make_key, signer_of

ROUNDS = 31


def seconds(*actions: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Median time of each action; they alternate, so that other load affects all of them."""
    found: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for times, action in zip(found, actions, strict=True):
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in found]


def compare(name: str, plain: Callable[[], object], signed: Callable[[], object], rounds: int = ROUNDS) -> None:
    without, with_it = seconds(plain, signed, rounds=rounds)
    print(
        f"{name:<42} {without * 1e3:8.2f} ms {with_it * 1e3:8.2f} ms   x {with_it / without:.3f}"
        f"   {1e3 * (with_it - without):+.2f} ms"
    )


def releases(folder: Path, items: int) -> None:
    counts = np.random.default_rng(2).integers(500, 10**6, items)
    table = pa.table({"item": [f"item {n}" for n in range(items)], "count": counts})
    found = dphist.release_histogram(table, plan=dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=9))
    plain, signed, key = folder / "plain.parquet", folder / "signed.parquet", folder / "key"
    compare(
        f"write {items:,} items",
        lambda: found.write(plain, force=True),
        lambda: found.write(signed, force=True, sign=key),
    )
    compare(
        f"verify {items:,} items",
        lambda: dphist.verify(plain),
        lambda: dphist.verify(signed, public_key=folder / "key.pub"),
    )


def whole_release(folder: Path) -> None:
    users = np.arange(200_000)
    events = pa.table({"user": users, "item": users % 100})
    run = partial(
        dphist.release, events, user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=9, force=True
    )
    compare(
        "release 200,000 events",
        lambda: run(output=folder / "plain.csv"),
        lambda: run(output=folder / "signed.csv", sign=folder / "key"),
    )


def commands(folder: Path) -> None:
    """Whole commands, including the start of Python and of the signature library."""
    words = [sys.executable, "-m", "dphist", "verify"]
    compare(
        "dphist verify, the whole command",
        lambda: subprocess.run([*words, folder / "plain.csv"], check=True, capture_output=True),
        lambda: subprocess.run(
            [*words, folder / "signed.csv", "--public-key", folder / "key.pub"], check=True, capture_output=True
        ),
        rounds=7,
    )


def checkpoints(folder: Path) -> None:
    ledger = Ledger.init(folder / "ledger", "log", epsilon=3, delta=1e-6)
    ledger.checkpoint().write(folder / "checkpoint", sign=folder / "key")
    compare(
        "open a ledger, and with its checkpoint",
        lambda: Ledger.open(folder / "ledger"),
        lambda: Ledger.open(
            folder / "ledger", checkpoint=Checkpoint.read(folder / "checkpoint", public_key=folder / "key.pub")
        ),
    )


def alone(folder: Path) -> None:
    """Signing and verifying a certificate in memory."""
    signer, trust = signer_of(folder / "key"), Trust.of(folder / "key.pub", None)
    assert signer is not None
    document = json.loads(Path(folder, "signed.csv.certificate.json").read_text(encoding="utf-8"))
    signing, checking = seconds(
        lambda: signer(signed_bytes(document)),
        lambda: examine(document, folder / "signed.csv", None, trust),
        rounds=1000,
    )
    print(f"a signature alone: made in {signing * 1e3:.3f} ms, checked in {checking * 1e3:.3f} ms")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_key(folder / "key")
        print(f"{'median of ' + str(ROUNDS):<42}    unsigned      signed     ratio      more")
        for items in (100, 100_000):
            releases(folder, items)
        whole_release(folder)
        commands(folder)
        checkpoints(folder)
        alone(folder)


if __name__ == "__main__":
    main()
