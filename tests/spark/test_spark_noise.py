"""Noise on Spark's executors: the documented keyed function, one shared draw, and the law of every release.

Statistics may be off by 6.7 standard errors. There are fewer than 40, so false alarms are below 1e-9 in total.
Assertions beside them state what they would detect.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from test_spark_faults import SEED, RepeatedRng

import dphist
import oracles_keyed as oracle
from dphist.errors import InvalidParameter
from dphist.model import LatticeNoise
from dphist.releasing.noise import NoiseSession
from dphist.sampling.rng import KeyedWords
from dphist.sampling.sampler import DiscreteGaussian
from dphist.spark import counting
from dphist.spark import noise as on_spark
from dphist.spark.noise import ExecutorNoise
from spark_cluster import ON_SPARK
from spark_shared import shared_session

pytestmark = ON_SPARK

ALLOWED = 6.7
ITEMS, HIGH = 4000, 40
ASKED: dict[str, Any] = {"user": "user", "epsilon": 1.0, "delta": 1e-3}
CAP: dict[str, Any] = {"item": "item", "max_items_per_user": 1, "mechanism": "gaussian"}
Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    running = shared_session("local")
    settings = {"spark.sql.adaptive.coalescePartitions.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    before = {name: str(running.conf.get(name)) for name in settings}
    for name, value in settings.items():
        running.conf.set(name, value)
    yield running
    for name, value in before.items():
        running.conf.set(name, value)


def release_and_noise(frame: DataFrame, **options: Any) -> tuple[dphist.Release, ExecutorNoise]:
    """A release, and the noise that its executors got."""
    make, noise = on_spark.executor_noise, []

    def executor_noise(*arguments: Any) -> ExecutorNoise:
        noise.append(make(*arguments))
        return noise[-1]

    with mock.patch.object(on_spark, "executor_noise", executor_noise):
        result = dphist.release(frame, **ASKED, **options)
    return result, noise[0]


TEXTS = st.text(alphabet="01:-aé😀", max_size=4) | st.none()
ROWS = st.lists(TEXTS, min_size=1, max_size=4).map(tuple)


@given(ROWS, ROWS)
def test_different_items_have_different_texts(one: tuple[str | None, ...], other: tuple[str | None, ...]) -> None:
    assert oracle.taken_apart(oracle.joined(one)) == one
    assert (oracle.joined(one) == oracle.joined(other)) == (one == other)


def test_spark_joins_and_digests_as_the_oracle(spark: SparkSession) -> None:
    some = [None, "", "a", "1", ":", "1:", "a:1", "1:a", "b", "-", "0:", "é", "😀", "2:é:", "e\u0301"]
    rows = [*product(some, repeat=2), ("a:1", "b"), ("a", "1:b")]
    frame = spark.createDataFrame([(*row, k) for k, row in enumerate(rows)], "a string, b string, n long")
    one, two = counting.hashed_text(frame["a"], "string"), counting.hashed_text(frame["b"], "string")
    digest = counting.digest([(frame["a"], "string"), (frame["b"], "string")], frame["n"])
    found = frame.select(counting.length_prefixed([one, two]), digest, "n").collect()
    assert [row[0] for row in sorted(found, key=lambda row: row[2])] == [oracle.joined(row) for row in rows]
    assert len({row[0] for row in found}) == len(set(rows))
    assert all(bytes(row[1]) == oracle.digest(rows[row[2]], row[2]) for row in found)


def items_of_all_types() -> tuple[str, list[tuple[Any, ...]]]:
    """A schema, and items that differ in one column each, also by missing values."""
    schema = (
        "text string, whole long, small tinyint, day date, instant timestamp, clock timestamp_ntz, real double, "
        "single float, bytes binary, exact decimal(9,2), flag boolean"
    )
    moment = datetime(2024, 2, 29, 23, 59, 58, 120000, UTC)
    first = ("tea", 7, 3, date(1969, 7, 20), moment, datetime(1999, 12, 31, 1, 2, 3), 0.25, 1.5, b"\x00\xff",
             Decimal("-1.50"), True)  # fmt: skip
    others = ("té:1-", -(2**62), -128, date(1500, 1, 1), datetime(1905, 1, 1, tzinfo=UTC),
              datetime(2024, 2, 29, 12, 0, 0, 5), math.inf, math.nan, b"", Decimal("0.05"), False)  # fmt: skip
    changed = [tuple(b if k == place else a for k, a in enumerate(first)) for place, b in enumerate(others)]
    missing = [tuple(None if k == place else a for k, a in enumerate(first)) for place in range(len(first))]
    return schema, [first, *changed, *missing, (None,) * len(first)]


def test_executors_make_the_noise_of_the_oracle_with_one_shared_draw(spark: SparkSession) -> None:
    """For items of all types on several partitions. Without its own noise, every item has the same shared draw."""
    schema, items = items_of_all_types()
    names = [part.split()[0] for part in schema.split(", ")]
    counts = {item: 500 + 7 * place for place, item in enumerate(items)}
    frame = spark.createDataFrame([(counts[item], *item) for item in items], f"n long, {schema}")
    rows = frame.withColumn("user", sql.explode(sql.sequence(sql.lit(1), "n"))).drop("n")
    # Not fresh noise, whose shared draw is zero once in 250 times.
    with mock.patch("dphist.releasing.run.SecureRng", return_value=RepeatedRng(SEED)):
        found, noise = release_and_noise(rows, item=names, max_nonzero=40, null_items=True, types="fixed")
    assert found.private
    running = noise.session
    assert isinstance(running, NoiseSession)
    assert isinstance(running.noise, LatticeNoise)
    assert running.shared != 0
    kept = found.to_spark().collect()
    assert len(kept) == len(found) == len(items)
    # Compared by text, because NaN is not equal to itself, and Spark returns times in other zones.
    by_text = {tuple(map(oracle.written, item)): item for item in items}
    for row in kept:
        item = by_text[tuple(map(oracle.written, map(plain_value, row[:-1], names)))]
        digest = oracle.digest(item, counts[item])
        step = int(oracle.draws(noise.keys[0], [digest], DiscreteGaussian(running.noise.variance))[0])
        exact = counts[item] + (step + running.shared) / running.noise.lattice
        assert row[-1] == round(exact, found.decimals), item


def plain_value(value: Any, name: str) -> Any:
    """Spark returns an instant without its zone, and bytes in an array."""
    if value is None:
        return None
    if name == "instant":
        return value.astimezone(UTC)
    return bytes(value) if name == "bytes" else value


def test_words_are_those_of_the_oracle() -> None:
    key, digests = bytes(range(32)), [oracle.digest([text], 3) for text in "abc"]
    words = KeyedWords(key, np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32))
    rows, numbers = np.array([0, 2, 2, 1]), np.array([0, 0, 1, 2**40])
    expected = [oracle.word(key, digests[row], int(number)) for row, number in zip(rows, numbers, strict=True)]
    assert words.words_numbered(rows, numbers).tolist() == expected
    assert words.words_numbered(np.arange(3), 0).tolist() == [oracle.word(key, digest, 0) for digest in digests]


def flat(spark: SparkSession, edge: int) -> DataFrame:
    """Items that always pass, and as many whose count is at the threshold; every user has one item."""
    ids = spark.range(0, ITEMS * (HIGH + edge), numPartitions=4)
    kind = sql.when(sql.col("id") < ITEMS * HIGH, "high ").otherwise("edge ")
    return ids.select(ids["id"].alias("user"), sql.concat(kind, (ids["id"] % ITEMS).cast("string")).alias("item"))


def noise_of(found: dphist.Release) -> tuple[Floats, float]:
    """The noise of the high counts in the order of their items, and the share of the other counts that passed."""
    pairs = dict(zip(found.columns[0].to_pylist(), found.counts.tolist(), strict=True))
    high = np.array([pairs[f"high {k}"] - HIGH for k in range(ITEMS)])
    return high, (len(pairs) - ITEMS) / ITEMS


def correlation(one: Floats, other: Floats) -> float:
    """In standard errors of the correlation of independent numbers."""
    return float(np.corrcoef(one, other)[0, 1] * math.sqrt(one.size))


def check_law(found: dphist.Release, edge: int) -> None:
    """Mean, variance, and the share of counts at the threshold that pass, by the exact discrete law."""
    high, passed = noise_of(found)
    noise: Any = found.plan.noise
    steps = np.arange(-40 * noise.lattice, 40 * noise.lattice + 1, dtype=np.float64)
    law = np.exp(-(steps**2) / (2 * float(noise.variance)))
    law /= law.sum()
    variance = float(law @ steps**2) / noise.lattice**2
    assert abs(high.mean()) < ALLOWED * math.sqrt(variance / ITEMS)
    assert abs(high.mean() - 1) > ALLOWED * math.sqrt(variance / ITEMS), "a bias of one would not be noticed"
    error = variance * math.sqrt(2 / ITEMS)
    assert abs(high.var() - variance) < ALLOWED * error
    assert abs(high.var() - 1.4 * variance) > ALLOWED * error, "a variance wrong by 40 % would not be noticed"
    limit = noise.lattice + noise.tau_steps - edge * noise.lattice
    for shift, right in ((0, True), (noise.lattice, False)):
        share = float(law[steps > limit + shift].sum())
        spread = ALLOWED * math.sqrt(share * (1 - share) / ITEMS)
        assert (abs(passed - share) < spread) == right, "also: a threshold off by one would not be noticed"


def test_the_law_of_a_release_by_spark_is_that_of_any_release(spark: SparkSession) -> None:
    """Two private releases of the same data by Spark and one by DuckDB are independent."""
    empty = spark.createDataFrame([], "user long, item string")
    edge = round(dphist.release(empty, **ASKED, **CAP).plan.threshold)
    frame = flat(spark, edge)
    (first, noise), (second, other) = release_and_noise(frame, **CAP), release_and_noise(frame, **CAP)
    embedded = dphist.release(frame.toArrow(), **ASKED, **CAP)
    for found in (first, second, embedded):
        assert found.private
        check_law(found, edge)
    assert noise.keys[0] != other.keys[0]
    one, two, three = (noise_of(found)[0] for found in (first, second, embedded))
    for pair in ((one, two), (one, three), (one[1:], one[:-1]), (one[: ITEMS // 2], one[ITEMS // 2 :])):
        assert abs(correlation(*pair)) < ALLOWED
    assert abs(correlation(one, one + two)) > ALLOWED, "half of the noise in common would not be noticed"
    digests = np.array([list(oracle.digest([f"high {k}"], HIGH)) for k in range(ITEMS)])
    for byte in range(16):
        assert abs(correlation(one, digests[:, byte].astype(np.float64))) < ALLOWED
    # Power: noise from the digest without a key is detected.
    words = np.ascontiguousarray(digests.astype(np.uint8)[:, :8]).view("<u8").ravel()
    drawn = noise.session.noise
    assert isinstance(drawn, LatticeNoise)
    sampler = DiscreteGaussian(drawn.variance)
    known = sampler.sample_from_words(words, lambda rows, _: words[rows] ^ np.uint64(1), compiled=False)
    shown = [abs(correlation(known.astype(np.float64), digests[:, byte].astype(np.float64))) for byte in range(8)]
    assert max(shown) > ALLOWED


def test_another_count_of_the_same_item_has_independent_noise() -> None:
    sampler, items = DiscreteGaussian(30), [f"item {k}" for k in range(ITEMS)]
    words = KeyedWords(bytes(32), np.frombuffer(
        b"".join(oracle.digest([item], count) for count in (HIGH, HIGH + 1) for item in items), dtype=np.uint8
    ).reshape(-1, 32))  # fmt: skip
    steps = sampler.sample_from_words(
        words.words_numbered(np.arange(2 * ITEMS), 0), words.words_numbered, compiled=False
    )
    one, two = steps[:ITEMS].astype(np.float64), steps[ITEMS:].astype(np.float64)
    assert abs(correlation(one, two)) < ALLOWED
    assert abs(correlation(one, one + 3 * two)) > ALLOWED, "a tenth of the variance in common would not be noticed"


def test_executors_have_no_fresh_noise(spark: SparkSession) -> None:
    """Their session refuses to draw without a key, also after it was pickled."""
    frame = spark.range(0, 900, numPartitions=2).selectExpr("id as user", "'tea' as item")
    _, noise = release_and_noise(frame, **CAP)
    wire: Any = cloudpickle
    for received in (noise, pickle.loads(wire.dumps(noise))):
        with pytest.raises(InvalidParameter, match="must be repeatable"):
            received.session.release(np.array([900]))
        assert repr(received) == "ExecutorNoise(secret)"


def test_another_sum_of_the_same_item_has_other_noise() -> None:
    rows = np.random.default_rng(1).integers(0, 256, (5, 32), dtype=np.uint8)
    some, other = np.arange(5, dtype=np.int64), np.array([0, 1, 2, 3, -4], dtype=np.int64)
    marked = on_spark.mix_numbers(rows, some)
    assert marked.shape == rows.shape
    assert (marked == on_spark.mix_numbers(rows, some)).all()
    assert (on_spark.mix_numbers(rows, other) == marked).all(axis=1).tolist() == [True] * 4 + [False]
    assert (on_spark.mix_numbers(marked, some) == rows).all()
