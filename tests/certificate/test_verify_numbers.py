"""`verify` of numbers that no release has: larger than any that can be drawn, or written in another way."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from flint import ctx

import dphist
from dphist.certificate.aggregates import bounds_from
from dphist.certificate.schema import decode
from dphist.certificate.text import certificate_text
from dphist.errors import InvalidParameter
from dphist.model import Contract, LatticeNoise
from dphist.proof import balls, lattice
from release_data import events, resealed

COUNTS = {"tea": 900, "milk": 700, "bread": 500}
LARGE = 10**16
# Each with at most 1 GiB of memory; without a limit on the work, one of them took hours.
FORGED: dict[str, dict[str, Any]] = {
    "shared noise": {"variance_steps": str(10**12), "variance_shared_steps": str(10**12), "tau_steps": 10**7},
    "the largest shared noise": {"variance_steps": str(LARGE), "variance_shared_steps": str(LARGE)},
    "many mixtures": {
        "lattice": 8192, "variance_steps": str(LARGE), "variance_shared_steps": "204081632", "tau_steps": 10**5,
        "max_nonzero": 500, "max_items_per_user": 50, "epsilon": 1e-9,
    },
    "sums without a common unit": {
        "max_nonzero": 10**4, "max_items_per_user": 10**4, "tau_steps": 10**5,
        "variance_steps": "1000", "variance_shared_steps": "1000",
        "sums": [
            {"low": "-1", "high": "1", "sigma": 1.0, "reach_steps": 1 << 20,
             "variance_steps": f"{10**59 + 2 * k + 1}/{10**50 + 9 * k + 1}"} for k in range(64)
        ],
    },
}  # fmt: skip
_LIMITED = """
import json, resource, sys
import msgspec
from dphist.certificate.plans import plan_of
from dphist.certificate.schema import AnyPlan
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
for facts in json.load(sys.stdin):
    try:
        print(plan_of(msgspec.convert(facts, AnyPlan)).proof.delta)
    except ValueError as error:
        print(type(error).__name__)
"""


def test_huge_numbers_take_little_work() -> None:
    base = {
        "mechanism": "csh", "epsilon": 1.0, "delta": 1e-9, "delta_certified": 1e-9, "max_nonzero": 3,
        "max_items_per_user": 3, "noise": "discrete", "sigma": 1.0, "sigma_shared": 1.0, "gamma": None,
        "total_noise": 1.0, "tau": 1.0, "threshold": 1.0, "lattice": 2, "tau_steps": 10**9,
    }  # fmt: skip
    plans = json.dumps([base | forged for forged in FORGED.values()])
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED], input=plans, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == len(FORGED)


def restate_plan(changed: dict[str, str], document: dict[str, Any]) -> None:
    document["plan"] |= changed


def test_what_cannot_be_drawn_is_refused(release: Path) -> None:
    plan = json.loads(certificate_of(release).read_text())["plan"]
    for changed in ({"variance_steps": str(LARGE + 1)}, {"variance_steps": "1" + "0" * 40}):
        found = forged(release, partial(restate_plan, changed))
        assert found.problems[-1] == "the certificate's plan cannot be read (ValueError)"
    assert plan["mechanism"] == "top-k"


@pytest.mark.parametrize("variance", [40_000, 900_000])
@pytest.mark.parametrize("limit", [2, 60, 1500, 6000])
def test_blocks_of_shared_draws_are_an_upper_bound(
    variance: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = LatticeNoise(2, Fraction(variance), Fraction(variance), limit)
    events_of: list[list[Any]] = []
    with balls.precision(256):
        for most in (1 << 26, 0):
            monkeypatch.setattr(lattice, "_MOST_BITS", most)
            monkeypatch.setattr(lattice, "_BLOCKS", 4096)
            family = lattice.DiscreteFamily(noise, Contract(100), epsilon=1.0, scale=1e-9)
            events_of.append([family.infinite_event(count) for count in (1, 7, 100)])
            assert len(family._passing) < 4200 or most
        for exact, block in zip(*events_of, strict=True):
            assert exact < block
            # As near as the size of a block; where nearly every count passes, 1 is the bound.
            assert block < exact * 1.3 or limit < 100
    assert ctx.prec < 256


@pytest.mark.parametrize("delta", [1e-9, 1e-30])
def test_a_plan_with_more_shared_noise_than_can_be_drawn(delta: float) -> None:
    """Its search once did not end."""
    plan = dphist.plan(epsilon=1e-9, delta=delta, top=3)
    assert plan.proof.delta <= delta
    assert plan.threshold == pytest.approx(plan.total_noise * 6, rel=1.0)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A top-k release, whose counts include a noisy offset."""
    path = tmp_path / "out.csv"
    dphist.release(
        events(COUNTS), user="user", item="item", epsilon=1.0, delta=1e-6, top=2, output=path, standard_error=True
    )
    assert dphist.verify(path).verified
    return path


def same(document: dict[str, Any]) -> None:
    """The certificate as it is."""


def certificate_of(path: Path) -> Path:
    return Path(f"{path}.certificate.json")


def forged(path: Path, change: Callable[[dict[str, Any]], Any]) -> dphist.Verification:
    """The verification after a change of the certificate, with the digest that the data has now."""
    document = json.loads(certificate_of(path).read_text())
    document["output"]["sha256"] = sha256(path.read_bytes()).hexdigest()
    change(document)
    certificate_of(path).write_text(resealed(document))
    return dphist.verify(path)


def test_an_offset_far_below_zero(release: Path) -> None:
    """It lowers the threshold: everything would be above it."""

    def lower(document: dict[str, Any]) -> None:
        counts = document["counts"]
        counts["threshold"] += -1e6 - counts["offset"]
        counts["offset"] = -1e6

    assert (
        "the certificate's offset is further below zero than its noise can be" in forged(release, lower).problems
    )


def test_a_version_with_a_line_break(release: Path) -> None:
    document = json.loads(certificate_of(release).read_text())
    with pytest.raises(InvalidParameter):
        decode(document | {"dphist": document["dphist"] + "\n"})


@pytest.mark.parametrize("bounds", ["٠:٥", "0:５", "0:1e٣"])
def test_digits_of_other_scripts(bounds: str) -> None:
    with pytest.raises(InvalidParameter, match="is not a number"):
        bounds_from(bounds)


@pytest.mark.parametrize("ending", ["csv", "tsv.gz", "jsonl"])
def test_numbers_in_another_form(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    dphist.release(
        events(COUNTS), user="user", item="item", epsilon=1.0, delta=1e-6, max_items_per_user=3, output=path
    )
    raw = gzip.decompress(path.read_bytes()) if ending.endswith("gz") else path.read_bytes()
    match = re.search("[0-9]{3,}([.][0-9]+)?", raw.decode())
    assert match is not None
    count, text = match[0], "a count is not a number"
    for other in (f"0{count}", f" {count}", f"{count}e0", f"+{count}", *([f"{count}0"] if "." in count else [])):
        changed = raw.replace(count.encode(), other.encode(), 1)
        path.write_bytes(gzip.compress(changed) if ending.endswith("gz") else changed)
        assert forged(path, same).problems[0] in (f"out.{ending} cannot be read as {ending}", text), other


def test_an_item_twice(release: Path) -> None:
    lines = release.read_text().splitlines()
    release.write_text("\n".join([*lines, lines[-1]]) + "\n")
    found = forged(release, lambda document: document["output"].update(rows=len(lines)))
    assert "an item is in the release twice" in found.problems


@pytest.mark.parametrize("character", ["\u3164", "\u115f", "\u034f", "\ufe0f", "\U000e0101", "\u2800"])
def test_invisible_characters_are_escaped(character: str) -> None:
    text = certificate_text({"user": f"id{character}"})
    assert character not in text
    assert json.loads(text) == {"user": f"id{character}"}
    assert "né" in certificate_text({"user": "né"})
