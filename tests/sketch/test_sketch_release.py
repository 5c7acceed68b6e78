"""Releases of sketches: which plans hold for them, and certificates that are verified or forged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dphist
from dphist.aliases import JsonObject
from dphist.certificate.verify import SEEDED
from dphist.errors import InvalidParameter, NotPrivate, OutputError
from dphist.ledger import Ledger
from dphist.model import LatticeNoise
from dphist.sketch import MisraGries
from dphist.sketch.counters import Counters
from release_data import plan_facts, resealed, restate

FilesOf = Callable[..., dict[str, bytes]]
BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
K = 20


@cache
def planned(**options: Any) -> dphist.Plan:
    return dphist.plan(**BUDGET, **options)


@pytest.fixture(scope="module")
def sketch() -> MisraGries:
    """Two items of 900 and 700 users, and 2,000 items of one user each, mixed in nine batches."""
    items = ["tea"] * 900 + ["milk"] * 700 + [f"own {n}" for n in range(2000)]
    made = MisraGries(K)
    for start in range(0, 3600, 400):
        rows = np.random.default_rng(1).permutation(3600)[start : start + 400]
        made.update_columns(pa.array(rows), pa.array([items[row] for row in rows]))
    return made


@pytest.mark.parametrize(
    "options",
    [
        {"max_nonzero": K}, {"top": K}, {"top": K, "offset": "independent"},
        {"max_nonzero": K, "mechanism": "laplace"}, {"max_nonzero": 100, "max_items_per_user": K},
        *(pytest.param(more, marks=pytest.mark.slow) for more in (
            {"max_nonzero": 5 * K}, {"top": K + 1}, {"top": K, "offset": "none"}, {"max_items_per_user": K},
            {"max_nonzero": K, "minimize": "noise"},
        )),
    ],
)  # fmt: skip
def test_plans_that_hold_are_released_written_and_verified(
    sketch: MisraGries, options: dict[str, Any], tmp_path: Path
) -> None:
    found = sketch.release(planned(**options)).write(tmp_path / "out.parquet")
    assert found.private
    assert found.items.to_pylist() == ["tea", "milk"]
    verified = dphist.verify(tmp_path / "out.parquet")
    assert verified.verified, verified
    document = found.document()
    assert document["guarantee"]["conditions"] == ["one-update-per-user"]
    assert "provided that every user came in one update of one sketch" in found.guarantee
    assert any("sketch with 20 counters" in note for note in found.caveats)
    assert document["request"]["sketch"] == "misra-gries"
    assert document["request"]["sketch-size"] == K
    assert ("offset" in document["request"]) == found.plan.releases_offset


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_nonzero": K - 1}, "lets one user touch 19 counts.*size 20.*single item can change all 20"),
        ({"max_items_per_user": 5}, "lets one user touch 5 counts"),
        ({"max_nonzero": K, "max_items_per_user": 5}, "lets one user touch 5 counts"),
        ({"top": K - 1}, "lets one user touch 19 counts"),
        ({"top": K, "max_items_per_user": 1}, "lets one user touch 1 counts"),
        ({"public_items": K}, "public list"),
        ({"max_nonzero": K, "noise": "continuous"}, "continuous noise"),
    ],
)
def test_plans_that_do_not_hold_are_refused(sketch: MisraGries, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        sketch.release(planned(**options))


def test_a_changed_plan_is_refused(sketch: MisraGries) -> None:
    plan = planned(max_nonzero=K)
    assert isinstance(plan.noise, LatticeNoise)
    with pytest.raises(NotPrivate):
        sketch.release(replace(plan, noise=replace(plan.noise, tau_steps=plan.noise.tau_steps // 2)))
    with pytest.raises(InvalidParameter, match="plan must be a"):
        sketch.release("plan")  # type: ignore[arg-type]


def test_a_seed_repeats_and_is_not_private(sketch: MisraGries, tmp_path: Path) -> None:
    plan = planned(top=K)
    again = MisraGries.from_bytes(sketch.to_bytes())
    one, other = (made.release(plan, seed=4, round=True, count_name="users") for made in (sketch, again))
    assert one.to_arrow().equals(other.to_arrow())
    assert not one.private
    assert "NOT PRIVATE" in repr(one)
    assert one.to_arrow().column_names == ["item", "users"]
    assert one.counts.dtype == np.int64
    one.write(tmp_path / "out.csv")
    assert dphist.verify(tmp_path / "out.csv").problems == (
        "the noise was made from a seed: the release is not private",
    )
    with pytest.raises(InvalidParameter, match="different names"):
        sketch.release(plan, count_name="item")
    with pytest.raises(InvalidParameter, match="round must be"):
        sketch.release(plan, round=1)  # type: ignore[arg-type]


def test_nothing_is_booked_for_an_output_that_cannot_be_written(sketch: MisraGries, tmp_path: Path) -> None:
    plan = dphist.plan(epsilon=1, delta=1e-6, max_nonzero=sketch.k)
    ledger = Ledger.init(tmp_path / "budget.ledger", "log", epsilon=3, delta=1e-5)
    (tmp_path / "taken.csv").write_text("mine")
    for name in ("none/out.csv", "taken.csv"):
        with pytest.raises(OutputError):
            sketch.release(plan, output=tmp_path / name, ledger=tmp_path / "budget.ledger", dataset="log")
    assert ledger.account("log").bookings == ()


def test_an_empty_sketch_releases_no_rows_with_the_right_types(tmp_path: Path) -> None:
    for plan in (planned(max_nonzero=K), planned(top=K)):
        found = MisraGries(K, {"day": "date32"}).release(plan)
        assert len(found) == 0
        assert found.to_arrow().schema.types == [pa.date32(), pa.float64()]
        found.write(tmp_path / "out.parquet", force=True)
        assert dphist.verify(tmp_path / "out.parquet").verified


@pytest.mark.parametrize("option", ["max_nonzero", "top"])
def test_counts_are_the_counters_and_with_an_offset_what_was_subtracted_too(
    sketch: MisraGries, option: str
) -> None:
    """The mean of 250 releases of one count, with secure noise.

    False alarm: 1e-9, two-sided normal at 6.11 standard errors. Power: the two possible means differ by more than
    10 standard errors, so a wrong one is missed with probability below 1e-4.
    """
    plan = planned(top=K) if option == "top" else planned(max_nonzero=K)
    table, subtracted = sketch._as_table(), sketch._subtracted
    expected = table["tea"] + (subtracted if option == "top" else 0)
    draws = [float(sketch.release(plan).counts[0]) for _ in range(250)]
    error = plan.total_noise / math.sqrt(250)
    assert subtracted > 10 * error
    assert abs(np.mean(draws) - expected) < 6.11 * error


@pytest.mark.parametrize("option", ["max_nonzero", "top"])
def test_the_largest_numbers_are_cut_without_an_error(option: str) -> None:
    counters = Counters((pa.array(["tea"], pa.large_string()),), np.array([2**53]), 2**53)
    huge = MisraGries.of_counters(1000, MisraGries(1000).kind, counters)
    both = huge.merge(MisraGries.from_bytes(huge.to_bytes()))
    bounds: dict[str, Any] = {option: 1000}
    for made in (huge, both):
        found = made.release(dphist.plan(**BUDGET, **bounds), seed=1)
        assert isinstance(found.plan.noise, LatticeNoise)
        cap = 2**53 // found.plan.noise.lattice
        assert found.counts[0] == pytest.approx(2 * cap if option == "top" else cap)
        assert MisraGries.from_bytes(made.to_bytes()).to_bytes() == made.to_bytes()
    # More users can be added, and the result can be read again.
    huge.update({"tea"})
    assert huge._as_counters().counts.tolist() == [2**53]
    assert MisraGries.from_bytes(huge.to_bytes()).to_bytes() == huge.to_bytes()


@pytest.fixture(scope="module")
def release_of(sketch: MisraGries, tmp_path_factory: pytest.TempPathFactory) -> FilesOf:
    """The files of a release, made once for each plan."""

    @cache
    def files(**options: Any) -> dict[str, bytes]:
        folder = tmp_path_factory.mktemp("release")
        sketch.release(planned(**options)).write(folder / "out.csv")
        assert dphist.verify(folder / "out.csv").verified
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    return files


def written(files: dict[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder / "out.csv"


def forged(path: Path, change: Callable[[JsonObject], None]) -> dphist.Verification:
    """Change a certificate, with all entries that follow from plan and request, seal it again, and verify it."""
    certificate = Path(f"{path}.certificate.json")
    document = json.loads(certificate.read_text())
    change(document)
    restate(document, document["plan"])
    certificate.write_text(resealed(document))
    return dphist.verify(path)


@pytest.mark.parametrize(
    "other",
    [
        {"max_items_per_user": 1}, {"max_nonzero": K - 1}, {"max_nonzero": K, "max_items_per_user": 3},
        {"top": K}, {"public_items": K},
    ],
)  # fmt: skip
def test_forged_plans_are_refused(release_of: FilesOf, other: dict[str, int], tmp_path: Path) -> None:
    plan = plan_facts(planned(**other))
    path = written(release_of(max_nonzero=K), tmp_path)
    assert not forged(path, lambda document: document.update(plan=plan)).verified


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sketch-size", K + 1), ("sketch-size", 0), ("sketch-size", True), ("sketch-size", "20"),
        ("sketch", "other"),
        ("sketch", None), ("sketch-size", None), ("max-items-per-user", 1), ("top", K), ("offset", "opposite"),
        ("offset", "none"), ("max-nonzero", K), ("items", "list.csv"), ("lower-threshold", 5), ("query", "SELECT"),
        ("epsilon", 0.1), ("seed", 3), ("anything", 1),
    ],
)  # fmt: skip
def test_forged_requests_are_refused(release_of: FilesOf, key: str, value: object, tmp_path: Path) -> None:
    path = written(release_of(max_nonzero=K), tmp_path)
    assert not forged(path, lambda document: document["request"].update({key: value})).verified


def test_forged_conditions_are_refused(release_of: FilesOf, tmp_path: Path) -> None:
    path = written(release_of(top=K), tmp_path)
    certificate = Path(f"{path}.certificate.json")
    document = json.loads(certificate.read_text())
    document["guarantee"]["conditions"] = []
    certificate.write_text(resealed(document))
    assert dphist.verify(path).problems == (
        "the certificate's entry 'guarantee' is not that of its plan and request",
    )


def test_seeds_of_any_size_are_recorded(sketch: MisraGries, tmp_path: Path) -> None:
    """As text where JSON has no number for them in all languages."""
    seed = 2**70
    path = tmp_path / "out.csv"
    sketch.release(planned(max_nonzero=K), seed=seed, output=path)
    document = json.loads(Path(f"{path}.certificate.json").read_text())
    assert document["request"]["seed"] == str(seed)
    assert dphist.verify(path).problems == (SEEDED,)
