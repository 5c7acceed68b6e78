"""`release_histogram`: kinds of frames, batches, bad input, secrecy."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dphist
from dphist.certificate.plans import Nonzero, certificate_of, nonzero_rule
from dphist.counting.columns import item_column, release_order
from dphist.errors import DphistError, InvalidParameter, NotPrivate
from dphist.model import Budget, Contract, LatticeNoise, Plan
from dphist.releasing.histogram import largest_counts, release_histogram
from dphist.releasing.result import Release
from dphist.releasing.summary import NOT_PRIVATE

# Imported by name, because mypy would complain about missing types.
pd: Any = import_module("pandas")
pl: Any = import_module("polars")
pa: Any = import_module("pyarrow")

GSHM = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=10, noise="discrete")
CSH = dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=20, noise="discrete")
BOTH = dphist.plan(epsilon=0.35, delta=1e-5, max_nonzero=1000, max_items_per_user=100, noise="discrete")
ITEMS = ["tea", "a secret of great length", "coffee", "water"]
COUNTS = [700, 1, 900, 0]
FRAME = {"drink": ITEMS, "size": [1, 2, 3, 4], "other": [5, 6, 7, 8], "users": COUNTS}

COLUMNS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "numpy": np.array,
    "objects": lambda values: np.array(values, dtype=object),
    "pandas": pd.Series,
    "pandas index": pd.Index,
    "pandas category": lambda values: pd.Series(values, dtype="category"),
    "polars": pl.Series,
    "polars category": lambda values: pl.Series(values, dtype=pl.Categorical),
    "arrow": pa.array,
    "arrow chunks": lambda values: pa.chunked_array([values[:1], values[1:]]),
    "arrow dictionary": lambda values: pa.array(values).dictionary_encode(),
}
FRAMES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "polars lazy": pl.LazyFrame,
    "arrow": pa.table,
    "arrow batch": lambda data: pa.RecordBatch.from_pydict(data),
    "arrow reader": lambda data: pa.table(data).to_reader(),
}


def listed(column: Any) -> list[Any]:
    return list(column.to_pylist() if hasattr(column, "to_pylist") else column)


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_keep_their_kind(kind: str) -> None:
    given = COLUMNS[kind](ITEMS)
    counts = COLUMNS[kind.split(maxsplit=1)[0]](COUNTS)
    release = release_histogram(given, counts, GSHM, seed=1)
    items, noisy = release.to_native()
    assert listed(items) == ["coffee", "tea"]
    assert listed(noisy) == release.counts.tolist()
    assert (
        type(items).__module__.split(".")[0]
        == type(list(given) if kind == "tuple" else given).__module__.split(".")[0]
    )
    # Nothing that is attached to a column may contain unreleased items.
    assert "secret" not in repr(items.__reduce_ex__(2)) if hasattr(items, "dtype") else True
    assert "secret" not in repr(getattr(items, "dtype", ""))
    for frame in (release.to_pandas(), release.to_polars().to_pandas(), release.to_arrow().to_pandas()):
        assert list(frame.columns) == ["item", "count"]
        assert frame["item"].tolist() == ["coffee", "tea"]
        assert frame["count"].dtype == np.float64


def test_text_widths_categories_and_indexes_reveal_nothing() -> None:
    assert release_histogram(np.array(ITEMS), COUNTS, GSHM, seed=1).items.dtype == np.dtype("<U6")
    frame = pd.DataFrame({"item": pd.Categorical(ITEMS), "count": COUNTS}, index=[9, 8, 7, 6])
    out = release_histogram(frame, plan=GSHM, seed=1).to_native()
    assert not isinstance(out["item"].dtype, pd.CategoricalDtype)
    assert out.index.tolist() == [0, 1]
    nested = pa.array([[i] for i in ITEMS], pa.list_(pa.dictionary(pa.int32(), pa.string())))
    assert release_histogram(nested, COUNTS, GSHM, seed=1).items.to_pylist() == ['["coffee"]', '["tea"]']


def reachable(value: Any) -> list[Any]:
    """All objects that Python reaches from a value, without modules and code."""
    found: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if id(one) not in found and not isinstance(one, (type, ModuleType, FunctionType)):
            found[id(one)] = one
            waiting += gc.get_referents(one)
    return list(found.values())


SPARSE = pd.Series(pd.arrays.SparseArray([1, 7_000_017, 2, 7_000_019], fill_value=7_000_017))
HOLDING: dict[str, Any] = {
    **{name: build(ITEMS) for name, build in COLUMNS.items() if name not in ("list", "tuple")},
    "pandas category index": pd.CategoricalIndex(ITEMS),
    "pandas index of categories": pd.Series(ITEMS, index=pd.CategoricalIndex(ITEMS)),
    "pandas dictionary": pd.Series(ITEMS, dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string()))),
    "pandas sparse": SPARSE,
    "polars enum": pl.Series(ITEMS, dtype=pl.Enum(ITEMS)),
    "arrow slice": pa.array(["a secret before", *ITEMS, "a secret after"])[1:-1],
    "arrow struct": pa.array([{"drink": drink} for drink in ITEMS]),
    "arrow list": pa.array([[drink] for drink in ITEMS]),
}


@pytest.mark.parametrize("kind", HOLDING)
def test_a_release_holds_no_unreleased_item(kind: str) -> None:
    """Neither pickled nor in what it refers to: categories, a fill value, a buffer of the whole column."""
    given, secrets = HOLDING[kind], (b"secret", "secret".encode("utf-32-le"), (7_000_017).to_bytes(4, "little"))
    assert any(secret in pickle.dumps(given) for secret in secrets)
    for release in (
        release_histogram(given, COUNTS, GSHM, seed=1),
        release_histogram([(given, COUNTS), (given[:0], [])], plan=GSHM, seed=1),
    ):
        assert len(release) == 2
        pickled = pickle.dumps(release)
        assert not [secret for secret in secrets if secret in pickled]
        for one in reachable(release):
            assert "secret" not in repr(one) if isinstance(one, (str, bytes, np.ndarray, pd.Index)) else True
            assert not (isinstance(one, int) and one == 7_000_017)


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("item", ["drink", ("size", "drink")])
def test_frames_keep_their_kind(kind: str, item: str | tuple[str, ...]) -> None:
    given = FRAMES[kind](FRAME)
    release = release_histogram(given, plan=GSHM, item=item, count="users", seed=1)
    out = release.to_native()
    expected = pa.Table if kind == "arrow batch" else type(given)
    assert isinstance(out, expected)
    if isinstance(out, pl.LazyFrame):
        out = out.collect()
    elif isinstance(out, pa.RecordBatchReader):
        out = out.read_all()
    names = (item,) if isinstance(item, str) else item
    frame = out if isinstance(out, pd.DataFrame) else out.to_pandas()
    assert list(frame.columns) == [*names, "users"]
    assert frame["drink"].tolist() == ["coffee", "tea"]
    assert frame["users"].dtype == np.float64


@pytest.mark.parametrize("kind", FRAMES)
def test_empty_frames_give_empty_frames(kind: str) -> None:
    empty = FRAMES[kind]({"item": np.array([], dtype=np.int64), "count": np.array([], dtype=np.int64)})
    release = release_histogram(empty, plan=GSHM)
    assert len(release) == 0
    assert release.to_arrow().num_rows == 0
    assert "0 items" in repr(release)


TYPES: dict[str, Any] = {
    "nullable": pd.Series([2**60 + 1, None], dtype="Int64"),
    "zone": pd.Series(pd.date_range("2026-01-01", periods=2, tz="Europe/Berlin")),
    "nanoseconds": pd.Series(pd.to_datetime(["2026-01-01 00:00:00.000000001", None])),
    "by Arrow": pd.Series(["a", None], dtype=pd.ArrowDtype(pa.string())),
    "objects": pd.Series(["tea", "x"], dtype=object),
    "decimal": pl.Series("item", [Decimal("1.50"), None]),
    "large": pl.Series("item", [2**64 - 1, None], dtype=pl.UInt64),
    "duration": pl.Series("item", [1, None], dtype=pl.Duration("ns")),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_and_nulls_are_kept(name: str) -> None:
    given = TYPES[name]
    frame = pd.DataFrame({"item": given}) if isinstance(given, pd.Series) else pl.DataFrame({"item": given})
    counts = [10**9, 10**6]
    frame = (
        frame.assign(count=counts) if isinstance(given, pd.Series) else frame.with_columns(count=pl.Series(counts))
    )
    out = release_histogram(frame, plan=GSHM).to_native()["item"]
    assert out.dtype == given.dtype
    assert [repr(value) for value in out.to_list()] == [repr(value) for value in given.to_list()]


def test_batches_of_different_types_are_joined() -> None:
    """As from `pandas.read_csv` in chunks: a missing value turns whole numbers into floats."""
    columns: dict[str, list[Any]] = {
        "int64": [1, 2], "float64": [0.5, None], "str": ["a", None], "category": ["x", "y"], "object": [(1,), 3],
    }  # fmt: skip
    for pair in (("int64", "float64"), ("str", "category"), ("category", "int64"), ("object", "str")):
        frames = [pd.DataFrame({"item": pd.Series(columns[one], dtype=one), "count": 10**6}) for one in pair]
        assert len(release_histogram(frames, plan=GSHM).to_native()) == 4
    polars = [pl.DataFrame({"item": [item], "count": [10**6]}) for item in (1, "a")]
    assert sorted(release_histogram(polars, plan=GSHM).items.to_list()) == ["1", "a"]


UNTYPED: list[Any] = [None, 3, "x", 2.5, (1, [2]), True, {"a": None}]


@pytest.mark.parametrize("kind", ["list", "objects", "pandas objects"])
def test_values_without_a_type_are_text(kind: str) -> None:
    """If values decided on a type, one item could change how all others are released."""
    given = COLUMNS[kind](UNTYPED) if kind in COLUMNS else pd.Series(UNTYPED, dtype=object)
    items = release_histogram(given, [10**6] * len(UNTYPED), GSHM).items
    assert {item for item in items if isinstance(item, str)} == {"3", "x", "2.5", "[1,[2]]", "true", '{"a":null}'}
    assert release_histogram([5, "tea"], [10**6, 1], GSHM).items == ["5"]
    with pytest.raises(InvalidParameter, match="occurs twice"):
        release_histogram([5, "5"], [10**6, 1], GSHM)


def test_nested_items_are_json_and_types_that_arrow_lacks_are_refused() -> None:
    nested = pa.array([{"a": [1, None]}, {"a": []}])
    assert release_histogram(nested, [10**6, 1], GSHM).items.to_pylist() == ['{"a":[1,null]}']
    for column in (
        pd.Series(pd.period_range("2026-01", periods=2, freq="M")), pl.Series([2**100, 1], dtype=pl.Int128),
        np.array([1j, 2j]),
    ):  # fmt: skip
        with pytest.raises(InvalidParameter, match="Arrow has no type for items"):
            release_histogram(column, [10**6, 1], GSHM)


def test_any_frame_with_the_arrow_interface_is_accepted() -> None:
    relation = duckdb.sql("SELECT 'tea' AS item, 1000000 AS count UNION ALL SELECT 'rare', 1")
    assert relation is not None

    class Other:
        def __arrow_c_stream__(self, requested: Any = None) -> Any:
            assert relation is not None
            return relation.to_arrow_table().__arrow_c_stream__(requested)

    assert release_histogram(Other(), plan=GSHM).to_native().column("item").to_pylist() == ["tea"]
    out = release_histogram(relation, plan=GSHM).to_native()
    assert isinstance(out, duckdb.DuckDBPyRelation)
    assert [row[0] for row in out.fetchall()] == ["tea"]


def test_all_kinds_agree_and_order_is_by_noisy_count_then_item() -> None:
    rng = np.random.default_rng(2)
    items = [f"item {i}" for i in rng.permutation(3000)]
    counts = rng.integers(60, 200, 3000).tolist()
    results = [
        release_histogram(make(items), counts, GSHM, seed=3) for name, make in COLUMNS.items() if name != "tuple"
    ]
    rows = list(zip(listed(results[0].items), results[0].counts.tolist(), strict=True))
    assert rows == sorted(rows, key=lambda row: (-row[1], row[0]))
    assert len({count for _, count in rows}) < len(rows), "no ties, so the test says nothing of their order"
    for result in results[1:]:
        assert list(zip(listed(result.items), result.counts.tolist(), strict=True)) == rows


ODD: dict[str, list[Any]] = {
    "floats with NaN and null": [2.5, None, float("nan"), -1.0, float("inf")],
    "objects": [None, 3, "x", 2.5, (1, 2), float("nan"), True, Decimal("1.5"), ("float",)],
}


@pytest.mark.parametrize("kind", ODD)
def test_items_with_equal_counts_have_one_order(kind: str) -> None:
    """NaN and a missing item tied: rows before the sort decided."""
    items, found = ODD[kind], set()
    for shuffle in range(30):
        chosen = [items[place] for place in np.random.default_rng(shuffle).permutation(len(items))]
        column = item_column(pa.array(chosen) if kind.startswith("floats") else chosen)
        order = release_order(np.full(len(items), 7.0), (column,))
        found.add(" ".join(repr(chosen[place]) for place in order))
    assert len(found) == 1


def test_strict_threshold_and_zero_counts_never_released() -> None:
    counts = np.r_[np.zeros(50_000, dtype=np.int64), np.full(200_000, round(GSHM.threshold))]
    release = release_histogram(np.arange(counts.size), counts, GSHM, seed=4)
    assert release.items.min() >= 50_000
    assert release.counts.min() > GSHM.threshold
    step = 1 / GSHM.noise.lattice
    assert release.counts.min() == GSHM.threshold + step
    # Half of the others pass, within 6 standard deviations and the position of the threshold between two counts.
    assert abs(len(release) / 200_000 - 0.5) < 0.05


def cut(items: Any, counts: Any, size: int) -> list[tuple[Any, Any]]:
    return [(items[i : i + size], counts[i : i + size]) for i in range(0, len(items), size)]


def test_seeded_results_do_not_depend_on_how_the_batches_were_cut() -> None:
    items, counts = np.arange(5000), np.random.default_rng(1).integers(0, 400, 5000)
    whole = release_histogram(items, counts, GSHM, seed=5, batch_size=700)
    for size in (1, 99, 700, 5000):
        cuts = release_histogram(iter(cut(items, counts, size)), plan=GSHM, seed=5, batch_size=700)
        assert cuts.items.tolist() == whole.items.tolist()
        assert cuts.counts.tolist() == whole.counts.tolist()


@pytest.mark.parametrize("size", [np.int8(34), np.uint8(200), np.int16(100)])
def test_narrow_batch_sizes_do_not_wrap_around(size: Any) -> None:
    """A row that got noise twice would have two chances to pass the threshold."""
    items, counts = np.arange(400), np.random.default_rng(1).integers(0, 400, 400)
    narrow = release_histogram(items, counts, GSHM, seed=5, batch_size=size)
    whole = release_histogram(items, counts, GSHM, seed=5, batch_size=int(size))
    assert narrow.items.tolist() == whole.items.tolist()
    assert narrow.counts.tolist() == whole.counts.tolist()


def test_all_batches_share_one_draw() -> None:
    """With 20 counts of 10^6 their mean noise is the shared draw, up to sigma/sqrt(20)."""
    assert CSH.sigma_shared > 0
    items, counts = np.arange(20), np.full(20, 10**6)
    means: dict[int, list[float]] = {1: [], 20: []}
    for seed in range(600):
        for size, into in means.items():
            release = release_histogram(items, counts, CSH, seed=seed, batch_size=size)
            into.append(float((release.counts - 10**6).mean()))
    expected = CSH.sigma_shared**2 + CSH.sigma**2 / 20
    own = CSH.sigma**2 / 20
    for values in means.values():
        # The relative deviation of a chi-square with 599 degrees of freedom is 0.058.
        assert abs(np.var(values) / expected - 1) < 0.3
    assert own / expected < 0.6
    # The same seed gives the same shared draw for batches of any size.
    differences = np.array(means[1]) - np.array(means[20])
    assert np.var(differences) < 2.6 * own


def test_the_top_k_step_enforces_the_bound() -> None:
    """With 30 counts and k = 20, the 21st largest is subtracted."""
    counts = np.array([100_000 + 1000 * i for i in range(30)])
    release = release_histogram(np.arange(30), counts, CSH, seed=1)
    assert set(release.items.tolist()) <= set(range(10, 30))
    floor = counts[9]
    noise = release.counts - (counts[release.items] - floor)
    assert np.abs(noise).max() < 8 * CSH.total_noise
    assert len(release) >= 18
    streamed = release_histogram(lambda: iter(cut(np.arange(30), counts, 4)), plan=CSH, seed=1)
    assert streamed.items.tolist() == release.items.tolist()
    assert streamed.counts.tolist() == release.counts.tolist()


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 12), st.integers(1, 9))
def test_the_largest_counts_are_found_in_any_batches(counts: list[int], rank: int, size: int) -> None:
    largest = np.empty(0, dtype=np.int64)
    for start in range(0, len(counts), size):
        largest = largest_counts(largest, np.array(counts[start : start + size], dtype=np.int64), rank)
    assert sorted(largest, reverse=True) == sorted(filter(None, counts), reverse=True)[:rank]


def test_a_stream_for_one_reading_is_refused_before_it_is_read() -> None:
    def stream() -> Iterator[tuple[list[int], list[int]]]:
        raise AssertionError("it was read")
        yield [], []

    with pytest.raises(InvalidParameter, match="only once"):
        release_histogram(stream(), plan=CSH)
    reader = pa.table({"item": [1], "count": [10**5]}).to_reader()
    with pytest.raises(InvalidParameter, match="only once"):
        release_histogram(reader, plan=CSH)
    assert release_histogram(reader, plan=CSH, guarantee_max_nonzero=True).items.to_pylist() == [1]


def test_batches_that_change_between_readings_are_refused() -> None:
    calls: list[int] = []

    def batches() -> Iterator[tuple[list[int], list[int]]]:
        calls.append(1)
        return iter([([1], [10**5 + len(calls)])])

    with pytest.raises(InvalidParameter, match="at the second reading"):
        release_histogram(batches, plan=CSH)


def test_two_bounds_need_a_promise_because_top_k_would_break_one() -> None:
    """After a top-k step one user with one item can change every count, which a plan with both bounds excludes."""
    with pytest.raises(InvalidParameter, match="guarantee_max_nonzero"):
        release_histogram([1], [10**5], BOTH)
    assert release_histogram([1], [10**5], BOTH, guarantee_max_nonzero=True).items == ["1"]
    many = np.arange(1001)
    assert len(release_histogram(many[:1000], np.full(1000, 10**6), BOTH, guarantee_max_nonzero=True)) == 1000
    assert len(release_histogram(many, np.full(1001, 10**6), BOTH, guarantee_max_nonzero=True)) == 0


def test_seeded_releases_are_marked_as_not_private() -> None:
    seeded, real = (release_histogram(ITEMS, COUNTS, GSHM, seed=seed) for seed in (1, None))
    assert not seeded.private
    assert real.private
    for text in (repr(seeded), seeded._repr_html_(), str(seeded.to_pandas().attrs), str(seeded.to_arrow().schema)):
        assert NOT_PRIVATE in text
    for text in (repr(real), real._repr_html_(), str(real.to_pandas().attrs), str(real.to_arrow().schema)):
        assert "NOT PRIVATE" not in text
        assert "epsilon" in text or "ε" in text
    with pytest.raises(dataclasses.FrozenInstanceError):
        real.private = True  # type: ignore[misc]
    with pytest.raises(InvalidParameter, match="seed"):
        release_histogram(ITEMS, COUNTS, GSHM, seed=-1)


def test_html_is_escaped_and_long_releases_are_cut() -> None:
    release = release_histogram([f"<b>{i}" for i in range(30)], [10**6] * 30, GSHM)
    assert "<b>" not in release._repr_html_()
    assert "and 20 more" in repr(release)


def test_a_release_whose_rows_could_not_be_read_can_be_printed() -> None:
    """As of a folder that Spark has written."""
    release = release_histogram(pa.array(["a"]), [10**6], GSHM)
    unread = dataclasses.replace(release, columns=(pa.array([], "string"),), counts=release.counts[:0], total=25)
    assert "25 items" in repr(unread)
    assert "25 items" in unread._repr_html_()


def test_secure_releases_differ() -> None:
    items, counts = np.arange(100), np.full(100, 10**6)
    first, second = (release_histogram(items, counts, GSHM) for _ in range(2))
    assert sorted(first.counts.tolist()) != sorted(second.counts.tolist())


def with_noise(plan: Plan, **changes: Any) -> Plan:
    return dataclasses.replace(plan, noise=dataclasses.replace(plan.noise, **changes))


def test_unsound_plans_are_refused() -> None:
    assert isinstance(CSH.noise, LatticeNoise)
    tampered = [
        with_noise(CSH, tau_steps=CSH.noise.tau_steps * 9 // 10),
        with_noise(CSH, variance=CSH.noise.variance * Fraction(8, 10), variance_shared=Fraction(0)),
        with_noise(CSH, variance_shared=Fraction(0)),
        dataclasses.replace(CSH, contract=Contract(25)),
        dataclasses.replace(CSH, contract=Contract(None, 20)),
        dataclasses.replace(GSHM, budget=dphist.Budget(0.9, 1e-6)),
        dataclasses.replace(GSHM, budget=dphist.Budget(1.0, 1e-7)),
    ]
    for plan in tampered:
        with pytest.raises(NotPrivate, match="does not keep its budget"):
            release_histogram([1], [10**6], plan)
    continuous = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=10, noise="continuous")
    with pytest.raises(InvalidParameter, match="continuous noise"):
        release_histogram([1], [10**6], continuous)
    with pytest.raises(InvalidParameter, match=r"must be a dphist\.Plan"):
        release_histogram([1], [10**6])


def test_the_certificate_is_recomputed() -> None:
    lie = dataclasses.replace(GSHM, proof=dataclasses.replace(GSHM.proof, delta=1e-30))
    release = release_histogram([1], [10**6], lie)
    assert release.proof == GSHM.proof == release.plan.proof


BAD_COUNTS: dict[str, tuple[list[Any], str]] = {
    "negative": ([7919, -7919], "between 0 and 2"),
    "nan": ([7919.0, float("nan")], "NaN|null"),
    "infinite": ([7919.0, float("inf")], "between 0 and 2"),
    "fractional": ([7919.0, 7919.5], "whole numbers"),
    "beyond 2^53": ([7919, 2**53 + 1], "between 0 and 2"),
    "null": ([7919, None], "NaN|null"),
    "text": (["7919", "7919"], "numbers|type"),
    "truth": ([True, False], "numbers|type"),
}


@pytest.mark.parametrize("bad", BAD_COUNTS)
@pytest.mark.parametrize("kind", ["list", "numpy", "objects", "pandas", "polars", "arrow"])
def test_bad_counts_have_one_clear_error(bad: str, kind: str) -> None:
    values, message = BAD_COUNTS[bad]
    column = COLUMNS[kind](values)
    with pytest.raises(InvalidParameter, match=message) as error:
        release_histogram([1, 2], column, GSHM)
    assert "7919" not in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["list", "numpy", "pandas", "polars", "arrow", "arrow dictionary"])
def test_duplicates_are_refused(kind: str) -> None:
    with pytest.raises(InvalidParameter, match="occurs twice"):
        release_histogram(COLUMNS[kind](["a", "b", "a"]), [1, 2, 3], GSHM)


@pytest.mark.parametrize("kind", FRAMES)
def test_duplicates_of_several_columns_are_refused(kind: str) -> None:
    data = {"a": [1, 1, 2], "b": ["x", "y", "x"], "count": [9, 9, 9]}
    release_histogram(FRAMES[kind](data), plan=GSHM, item=("a", "b"))
    with pytest.raises(InvalidParameter, match="occurs twice"):
        release_histogram(FRAMES[kind](data), plan=GSHM, item="a")


def test_other_bad_input() -> None:
    cases: list[tuple[Callable[[], Release], str]] = [
        (lambda: release_histogram([1, 2], [1], GSHM), "same length"),
        (lambda: release_histogram("ab", [1, 2], GSHM), "items must be"),
        (lambda: release_histogram([1], 5, GSHM), "counts must be"),
        (lambda: release_histogram(np.ones((2, 2)), np.ones((2, 2)), GSHM), "one dimension"),
        (lambda: release_histogram(5, plan=GSHM), "must be a frame or batches"),
        (lambda: release_histogram([5], plan=GSHM), "a batch must be"),
        (lambda: release_histogram(pd.DataFrame(FRAME), plan=GSHM), "no column 'item'"),
        (lambda: release_histogram(pd.DataFrame(FRAME), COUNTS, GSHM), "holds its counts"),
        (
            lambda: release_histogram(pd.DataFrame(FRAME), plan=GSHM, item="users", count="users"),
            "different names",
        ),
        (lambda: release_histogram([1], [1], GSHM, batch_size=0), "batch_size"),
        (lambda: release_histogram([([1], [1]), (np.array([2]), [1])], plan=GSHM), "the same type"),
        (lambda: release_histogram([([1], [10**6]), ([1], [10**6])], plan=GSHM), "in two batches"),
    ]
    for call, message in cases:
        with pytest.raises(InvalidParameter, match=message):
            call()


def test_decimals_and_nullable_numbers_are_counts() -> None:
    for counts in (
        [Decimal(10**6)],
        pd.Series([10**6], dtype="Int64"),
        pd.Series([10**6], dtype="Float64"),
        pd.Series([10**6], dtype="int64[pyarrow]"),
        pl.Series([Decimal(10**6)]),
        pa.array([Decimal(10**6)]),
        pl.Series([10**6], dtype=pl.UInt32),
        np.array([10**6], dtype=np.uint64),
        np.array([1e6]),
    ):
        assert release_histogram(["x"], counts, GSHM).items == ["x"]


SECRETS = st.integers(10**6, 2**60)


@given(st.lists(SECRETS, min_size=1, max_size=5), st.sampled_from(["list", "numpy", "pandas", "polars", "arrow"]))
def test_no_error_repeats_a_count(secrets: list[int], kind: str) -> None:
    worst: list[list[Any]] = [
        [*secrets, -1], [-value for value in secrets], [*(float(value) for value in secrets), 0.5],
        [*secrets, 2**62], [*secrets, None], [str(value) for value in secrets],
        [*(float(value) for value in secrets), float("nan")],
    ]  # fmt: skip
    for values in worst:
        with pytest.raises(DphistError) as error:
            release_histogram(list(range(len(values))), COLUMNS[kind](values), GSHM)
        assert error.value.__cause__ is None
        for value in secrets:
            assert str(value) not in str(error.value)
            assert str(float(value)) not in str(error.value)


def test_only_the_package_of_the_input_is_imported() -> None:
    code = (
        "import sys, dphist\n"
        "from dphist.releasing.histogram import release_histogram\n"
        "plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=10, noise='discrete')\n"
        "release_histogram(['a'], [10**6], plan)\n"
        "assert not {'polars', 'numba'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_long_stream_needs_bounded_memory() -> None:
    """2*10^7 items in batches of 10^5; all at once would need 320 MB for items and counts alone."""
    code = (
        "import resource, numpy as np, dphist\n"
        "from dphist.releasing.histogram import release_histogram\n"
        "plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=10, noise='discrete')\n"
        "def batches():\n"
        "    for i in range(200):\n"
        "        counts = np.ones(10**5, dtype=np.int64)\n"
        "        counts[::1000] = 10**6\n"
        "        yield np.arange(i * 10**5, (i + 1) * 10**5), counts\n"
        "release_histogram([([1], [1])], plan=plan)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "release = release_histogram(batches(), plan=plan, batch_size=1 << 20)\n"
        # A count of one passes with probability 10^-7.
        "assert 20_000 <= len(release) <= 20_030, len(release)\n"
        "assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 120_000\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_shared_noise_relies_on_max_nonzero_even_where_its_certificate_does_not() -> None:
    """The profile that a ledger composes holds only with that bound: it must be promised, however much noise."""
    plan = dphist.plan(epsilon=0.5, delta=1e-7, max_nonzero=50, max_items_per_user=2, gamma=10)
    generous = dataclasses.replace(plan, budget=Budget(2.0, 1e-3))
    assert generous.sigma_shared > 0
    # Its certificate holds without max_nonzero too, so it alone would not ask for a promise.
    assert certificate_of(generous.noise, Contract(None, 2), generous.budget).delta <= 1e-3
    assert nonzero_rule(generous, promised=True) is Nonzero.PROMISED, "max_nonzero is not enforced"
    with pytest.raises(InvalidParameter, match="guarantee_max_nonzero"):
        nonzero_rule(generous, promised=False)
    without = dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=50, max_items_per_user=2)
    assert without.sigma_shared == 0
    assert nonzero_rule(without, promised=False) is Nonzero.NOT_NEEDED
