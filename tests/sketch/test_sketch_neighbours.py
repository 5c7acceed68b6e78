"""Why sketches are private: one more user moves counters and subtracted total by (+v, 0) or (-v, +1)."""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Callable, Hashable
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sketch import state

from dphist.sketch import MisraGries, build, build_batches
from oracles_sketch import Sketch, classic, is_neighbour, merged, users_of, with_users

ITEMS: Final = "abcdefg"
UserSet = frozenset[str]
# A leaf is a list of updates, an update is a list of users; a tree merges leaves and trees.
Leaf = list[list[UserSet]]
Tree = Leaf | tuple[Any, ...]

sets = st.frozensets(st.sampled_from(ITEMS), max_size=len(ITEMS))
leaves = st.lists(st.lists(sets, min_size=1, max_size=4), max_size=6)
trees = st.recursive(leaves, lambda inner: st.lists(inner, min_size=2, max_size=3).map(tuple), max_leaves=5)


def built(tree: Tree, k: int) -> MisraGries:
    if isinstance(tree, tuple):
        first, *others = [built(part, k) for part in tree]
        return first.merge(*others)
    sketch = MisraGries(k)
    for users in tree:
        if len(users) == 1:
            sketch.update(users[0])
        else:
            rows = [(user, item) for user, items in enumerate(users) for item in sorted(items)]
            sketch.update_columns([user for user, _ in rows], [item for _, item in rows])
    return sketch


def by_definition(tree: Tree, k: int) -> Sketch:
    if isinstance(tree, tuple):
        return merged([by_definition(part, k) for part in tree], k)
    sketch: Sketch = {}, 0
    for users in tree:
        sketch = with_users(sketch, users, k)
    return sketch


def everybody(tree: Tree) -> list[UserSet]:
    if isinstance(tree, tuple):
        return [user for part in tree for user in everybody(part)]
    return [user for users in tree for user in users]


def with_one_more(tree: Tree, user: UserSet, choose: random.Random) -> Tree:
    """The same tree with one more user in one of its updates, or in an update of their own."""
    if isinstance(tree, tuple):
        place = choose.randrange(len(tree))
        return *tree[:place], with_one_more(tree[place], user, choose), *tree[place + 1 :]
    place = choose.randrange(len(tree) + 1)
    if place < len(tree) and choose.random() < 0.5:
        return [*tree[:place], [*tree[place], user], *tree[place + 1 :]]
    return [*tree[:place], [user], *tree[place:]]


@given(tree=trees, user=sets, k=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_one_more_user_gives_a_neighbour(tree: Tree, user: UserSet, k: int, seed: int) -> None:
    without, together = built(tree, k), built(with_one_more(tree, user, random.Random(seed)), k)
    assert is_neighbour(state(without), state(together), k)


@given(tree=trees, k=st.integers(1, 5))
def test_sketches_follow_the_definition(tree: Tree, k: int) -> None:
    assert state(built(tree, k)) == by_definition(tree, k)


@given(tree=trees, k=st.integers(1, 5))
def test_the_error_is_within_its_bound(tree: Tree, k: int) -> None:
    counters, subtracted = state(sketch := built(tree, k))
    truth = users_of(everybody(tree))
    pairs = sum(truth.values())
    assert (k + 1) * subtracted <= pairs - sum(counters.values())
    assert subtracted <= sketch.error_bound(pairs)
    for item in ITEMS:
        assert counters.get(item, 0) <= truth[item] <= counters.get(item, 0) + subtracted


@given(tree=st.lists(leaves, min_size=2, max_size=4), k=st.integers(1, 4), seed=st.integers(0, 99))
def test_merging_at_once_does_not_depend_on_the_order_and_subtracts_least(
    tree: list[Leaf], k: int, seed: int
) -> None:
    first, *others = parts = [built(leaf, k) for leaf in tree]
    at_once = first.merge(*others)
    random.Random(seed).shuffle(parts)
    assert MisraGries.merge(*parts).to_bytes() == at_once.to_bytes()
    one_by_one = parts[0]
    for part in parts[1:]:
        one_by_one = one_by_one.merge(part)
    assert at_once._subtracted <= one_by_one._subtracted


def broken(rule: Callable[[list[tuple[Hashable, ...]], int], Sketch], tries: int, seed: int) -> int:
    """For how many of random pairs of neighbours a rule gives sketches that are not neighbours."""
    choose, failures = random.Random(seed), 0
    for _ in range(tries):
        k = choose.randint(1, 4)
        users: list[tuple[Hashable, ...]] = [
            tuple(choose.sample(ITEMS, choose.randint(1, 5))) for _ in range(choose.randint(1, 12))
        ]
        place = choose.randrange(len(users) + 1)
        more = tuple(choose.sample(ITEMS, choose.randint(1, 5)))
        failures += not is_neighbour(rule(users, k), rule([*users[:place], more, *users[place:]], k), k)
    return failures


def whole_sets(users: list[tuple[Hashable, ...]], k: int) -> Sketch:
    sketch = MisraGries(k)
    for items in users:
        sketch.update(items)
    return state(sketch)


def cut_by_number(users: list[tuple[Hashable, ...]], k: int) -> Sketch:
    """Batches of three users each: another user moves all later ones into other batches."""
    sketch: Sketch = {}, 0
    for start in range(0, len(users), 3):
        sketch = with_users(sketch, [set(items) for items in users[start : start + 3]], k)
    return sketch


def shuffled(users: list[tuple[Hashable, ...]], k: int) -> Sketch:
    """One at a time, in an order from a seed: with one more user it is another permutation."""
    return whole_sets(random.Random(3).sample(users, len(users)), k)


def out_of_a_set(users: list[tuple[Hashable, ...]], k: int) -> Sketch:
    """One at a time, in the order of a hash table, which grows with the users and has collisions."""
    places: list[tuple[Hashable, ...] | None] = [None] * (2 * len(users) + 1)
    for items in users:
        place = zlib.crc32(repr(items).encode()) % len(places)
        while places[place] is not None:
            place = (place + 1) % len(places)
        places[place] = items
    return whole_sets([items for items in places if items is not None], k)


def by_popularity(users: list[tuple[Hashable, ...]], k: int) -> Sketch:
    """One at a time, those with the most popular item first."""
    popular = users_of([frozenset(items[:1]) for items in users])
    return whole_sets(sorted(users, key=lambda items: -popular[items[0]]), k)


def parts_of(users: list[tuple[Hashable, ...]], k: int) -> list[Sketch]:
    """A sketch per letter, by the definition; which one a user is in depends on that user alone."""
    sketches: dict[Hashable, Sketch] = {item: ({}, 0) for item in ITEMS}
    for items in users:
        sketches[items[0]] = with_users(sketches[items[0]], [set(items)], k)
    return list(sketches.values())


def one_by_one(parts: list[Sketch], k: int) -> Sketch:
    return functools.reduce(lambda one, other: merged([one, other], k), parts)


def as_they_complete(users: list[tuple[Hashable, ...]], k: int) -> Sketch:
    """Merged one by one, in an order that depends on their contents, like a race."""

    def ready(part: Sketch) -> int:
        return zlib.crc32(repr(sorted(map(repr, part[0].items()))).encode())

    return one_by_one(sorted(parts_of(users, k), key=ready), k)


def test_the_search_detects_broken_rules() -> None:
    """Power of the tests above: they fail for rules that look similar."""
    assert broken(whole_sets, 1000, seed=1) == 0
    assert broken(classic, 1000, seed=1) > 50
    assert broken(cut_by_number, 1000, seed=1) > 50


@pytest.mark.parametrize("tries", [600, pytest.param(3000, marks=pytest.mark.slow)])
def test_the_search_detects_orders_that_depend_on_other_users(tries: int) -> None:
    """Updates and merges are right, and only their order is wrong."""
    assert broken(lambda users, k: merged(parts_of(users, k), k), tries, seed=2) == 0
    assert broken(lambda users, k: one_by_one(parts_of(users, k), k), tries, seed=2) == 0
    for rule in (shuffled, out_of_a_set, by_popularity):
        assert broken(rule, tries, seed=2) > tries // 30, rule.__name__
    assert broken(as_they_complete, tries, seed=2) > tries // 60


def test_another_order_can_change_all_counters() -> None:
    """The same users in another order, and the same sketches merged in another order."""
    one: list[tuple[Hashable, ...]] = [(item,) for item in ["b", "c"] * 1000 + ["a"] * 1000]
    other: list[tuple[Hashable, ...]] = [(item,) for item in ["a", "b", "a", "c"] * 500 + ["b", "c"] * 500]
    assert sorted(one) == sorted(other)
    assert whole_sets(one, 1) == ({"a": 1000}, 1000)
    assert whole_sets(other, 1) == ({}, 1500)
    a, b, c = (MisraGries.from_columns(1, list(range(5)), [item] * 5) for item in "abc")
    assert state(b.merge(c).merge(a)) == ({"a": 5}, 5)
    assert state(a.merge(b).merge(c)) == ({"c": 5}, 5)
    assert {MisraGries.merge(*order).to_bytes() for order in ((a, b, c), (c, a, b), (b, c, a))} == {
        MisraGries.merge(a, b, c).to_bytes()
    }


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    """`build`, `from_columns` and `build_batches` meet the condition on orders by themselves."""
    choose = random.Random(seed)
    rows = [(user, choose.choice(ITEMS)) for user in range(40) for _ in range(3)]
    found = set()
    for _ in range(3):
        choose.shuffle(rows)
        table = pa.table({"user": [row[0] for row in rows], "item": [row[1] for row in rows]})
        names: dict[str, Any] = {"user": "user", "item": "item"}
        found.add(build(table, 3, **names).to_bytes())
        found.add(MisraGries.from_columns(3, table["user"], table["item"]).to_bytes())
        found.add(build_batches(table.to_batches(7), 3, schema=table.schema, **names).to_bytes())
    assert len(found) == 1


def test_element_by_element_one_user_moves_a_counter_by_two() -> None:
    users, one = [("c",), ("b", "c")], ("d", "a", "b")
    assert classic(users, 2) == ({"c": 2, "b": 1}, 0)
    assert classic([*users, one], 2) == ({}, 2)
    assert not is_neighbour(classic(users, 2), classic([*users, one], 2), 2)
    # The whole set at once: 2, 2, 1, 1 less the third largest.
    assert whole_sets([*users, one], 2) == ({"c": 1, "b": 1}, 1)


def test_batches_cut_by_number_move_a_counter_by_two_or_in_both_directions() -> None:
    """Why a batch must not be "the next three users": one more at the front moves all others."""
    users: list[tuple[Hashable, ...]] = [(item,) for item in "aabcca"]
    assert cut_by_number(users, 1) == ({}, 3)  # aab, cca
    assert cut_by_number([("a",), *users], 1) == ({"a": 2}, 2)  # aaa, bcc, a
    users = [(item,) for item in "abdc"]
    assert cut_by_number(users, 2) == ({"c": 1}, 1)  # abd, c
    assert cut_by_number([("a",), *users], 2) == ({"a": 1}, 1)  # aab, dc


@pytest.mark.parametrize(
    ("without", "together"),
    [
        (({"a": 1}, 0), ({"a": 3}, 0)),
        (({"a": 1, "b": 2}, 0), ({"a": 2, "b": 1}, 0)),
        (({"a": 1}, 0), ({"a": 2}, 1)),
        (({"a": 2}, 0), ({"a": 1}, 0)),
        (({}, 0), ({"a": 1, "b": 1, "c": 1}, 0)),
    ],
)
def test_pairs_that_are_not_neighbours(without: Sketch, together: Sketch) -> None:
    assert not is_neighbour(without, together, 2)
