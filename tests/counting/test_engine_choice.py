"""The choice of a user's items is uniform: single items, pairs of items, and choices under two keys.

Every user has ten items and keeps two, one of 45 pairs. If the choice is uniform, the pairs of all users are
multinomial and each statistic is chi-squared. All tests here together fail by chance with probability 1e-9.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from dphist.counting.task import Resources
from engine_cases import QUICK_ON_DUCKDB, Factory, by_engine, histogram, is_spark, task

USERS, ITEMS, KEPT = 8000, 10, 2
ALARM = 1e-9 / 40  # there are fewer than 40 statistics here
PAIRS = {pair: k for k, pair in enumerate(combinations(range(ITEMS), KEPT))}
CASES = [form + kind for form in ("whole number", "text", "two columns") for kind in ("", ", portable")]
KEYS = [bytes([n]) + bytes(range(31)) for n in range(5)]


def statistics(pairs: np.ndarray[Any, Any]) -> dict[str, tuple[float, float]]:
    """Chi-squared statistics of pairs and of items, with their limits."""
    total = pairs.sum()
    of_items = np.array([sum(pairs[k] for pair, k in PAIRS.items() if item in pair) for item in range(ITEMS)])
    expected = total * KEPT / ITEMS
    # Without replacement the covariance makes the sum (n - m)/(n - 1) times a chi-squared variable.
    items = ((of_items - expected) ** 2).sum() / expected * (ITEMS - 1) / (ITEMS - KEPT)
    each = total / len(PAIRS)
    return {
        "pairs": (((pairs - each) ** 2).sum() / each, stats.chi2.isf(ALARM, len(PAIRS) - 1)),
        "items": (items, stats.chi2.isf(ALARM, ITEMS - 1)),
    }


def is_uniform(pairs: np.ndarray[Any, Any]) -> bool:
    return all(value < limit for value, limit in statistics(pairs).values())


def pairs_of(sets: Iterable[tuple[int, ...]]) -> np.ndarray[Any, Any]:
    found = np.zeros(len(PAIRS))
    for kept in sets:
        found[PAIRS[tuple(sorted(kept))]] += 1
    return found


def users_on(engine: Factory) -> int:
    """Fewer on Spark; the limits hold for any number."""
    return USERS // 4 if is_spark(engine) else USERS


def source(form: str, users: int) -> Any:
    """Items that differ between users, so that the histogram shows which user kept which item."""
    user = np.repeat(np.arange(users), ITEMS)
    item = np.tile(np.arange(ITEMS), users)
    if form == "whole number":
        return pa.table({"user": user, "item": user * ITEMS + item})
    if form == "text":
        return pa.table(
            {"user": [f"u{n}" for n in user], "item": [f"{u}/{i}" for u, i in zip(user, item, strict=True)]}
        )
    return pa.table({"user": user, "who": user, "item": item})


def kept_sets(engine: Factory, form: str, key: bytes, portable: bool) -> dict[int, tuple[int, ...]]:
    items = ("who", "item") if form == "two columns" else "item"
    wanted = task(source(form, users_on(engine)), key, portable, items=items, max_items_per_user=KEPT)
    of_user: dict[int, list[int]] = {}
    for found, count in histogram(engine, wanted, Resources(threads=2)).items():
        assert count == 1
        if form == "text":
            user, item = (int(part) for part in found.split("/"))
        else:
            user, item = found if form == "two columns" else divmod(found, ITEMS)
        of_user.setdefault(user, []).append(item)
    assert len(of_user) == users_on(engine)
    assert all(len(kept) == KEPT for kept in of_user.values())
    return {user: tuple(kept) for user, kept in of_user.items()}


@by_engine("case", CASES, ["text"], ["whole number", "two columns, portable"])
def test_items_and_pairs_are_kept_uniformly(engine: Factory, case: str) -> None:
    form, _, portable = case.partition(", ")
    by_key = [kept_sets(engine, form, key, bool(portable)) for key in KEYS[: 3 if is_spark(engine) else 5]]
    assert is_uniform(np.sum([pairs_of(sets.values()) for sets in by_key], axis=0))
    # Two keys choose independently: the overlap of a user's two choices is hypergeometric.
    overlaps = [len(set(a[user]) & set(b[user])) for a, b in combinations(by_key[:3], 2) for user in a]
    found = np.bincount(overlaps, minlength=KEPT + 1)
    expected = len(overlaps) * stats.hypergeom(ITEMS, KEPT, KEPT).pmf(np.arange(KEPT + 1))
    # The three overlaps of three sets are pairwise independent.
    assert ((found - expected) ** 2 / expected).sum() < stats.chi2.isf(ALARM, KEPT)


@QUICK_ON_DUCKDB
@pytest.mark.parametrize("portable", [False, True])
def test_users_with_the_same_items_choose_independently(engine: Factory, portable: bool) -> None:
    users = users_on(engine)
    table = pa.table({"user": np.repeat(np.arange(users), ITEMS), "item": np.tile(np.arange(ITEMS), users)})
    for key in KEYS[:3]:
        found = histogram(engine, task(table, key, portable, max_items_per_user=KEPT))
        of_items = np.array([found[item] for item in range(ITEMS)])
        expected = users * KEPT / ITEMS
        value = ((of_items - expected) ** 2).sum() / expected * (ITEMS - 1) / (ITEMS - KEPT)
        assert value < stats.chi2.isf(ALARM, ITEMS - 1)
        # Not too even either: taking turns is not random.
        assert value > stats.chi2.ppf(ALARM, ITEMS - 1)


def test_the_statistics_detect_choices_that_are_not_uniform() -> None:
    random = np.random.default_rng(20240607)
    total = USERS * len(KEYS)
    fair = random.random((total, ITEMS))
    assert is_uniform(pairs_of(map(tuple, np.argsort(fair)[:, :KEPT].tolist())))
    first = pairs_of([(0, 1)] * total)
    assert not is_uniform(first)
    # One item with a tenth more weight than the others.
    heavier = fair ** np.where(np.arange(ITEMS) == 0, 1 / 1.1, 1.0)
    assert not is_uniform(pairs_of(map(tuple, np.argsort(-heavier)[:, :KEPT].tolist())))
    # All items equally often, but neighbours together: only the pairs show it.
    start = random.integers(0, ITEMS, total)
    together = pairs_of([(int(n), int(n + 1) % ITEMS) for n in start])
    value, limit = statistics(together)["items"]
    assert value < limit
    assert not is_uniform(together)


@QUICK_ON_DUCKDB
def test_the_choice_does_not_depend_on_row_order_or_threads(engine: Factory) -> None:
    random = np.random.default_rng(7)
    rows = 30_000 if is_spark(engine) else 300_000
    user, item = random.integers(0, rows // 100, rows), random.zipf(1.5, rows) % 5000
    again = random.permutation(len(user))
    results = []
    for order in (slice(None), again):
        table = pa.table({"user": user[order], "item": item[order]})
        for threads in (2,) if is_spark(engine) else (1, 2):  # a session of Spark has its own
            for portable in (False, True):
                wanted = task(table, portable=portable, max_items_per_user=20)
                results.append(histogram(engine, wanted, Resources(threads=threads)))
    assert all(found == results[0] for found in results[::2])
    assert all(found == results[1] for found in results[1::2])
    assert results[0] != results[1]
