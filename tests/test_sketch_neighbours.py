"""What privacy rests on: one more user moves a sketch by (+v, 0) or (-v, +1), however it was built and merged."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphist.sketch import MisraGries
from oracles_sketch import Sketch, classic, is_neighbour, merged, users_of, with_users

ITEMS: Final = "abcdefg"
UserSet = frozenset[str]
# A leaf is a list of updates, an update a list of users who come at once; a tree merges leaves and trees.
Leaf = list[list[UserSet]]
Tree = Leaf | tuple[Any, ...]

sets = st.frozensets(st.sampled_from(ITEMS), max_size=len(ITEMS))
leaves = st.lists(st.lists(sets, min_size=1, max_size=4), max_size=6)
trees = st.recursive(leaves, lambda inner: st.lists(inner, min_size=2, max_size=3).map(tuple), max_leaves=5)


def state(sketch: MisraGries) -> Sketch:
    return dict(sketch._as_table()), sketch._subtracted


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
def test_one_more_user_moves_a_sketch_as_a_user_may(tree: Tree, user: UserSet, k: int, seed: int) -> None:
    without, together = built(tree, k), built(with_one_more(tree, user, random.Random(seed)), k)
    assert is_neighbour(state(without), state(together), k)


@given(tree=trees, k=st.integers(1, 5))
def test_sketches_are_what_the_definition_says(tree: Tree, k: int) -> None:
    assert state(built(tree, k)) == by_definition(tree, k)


@given(tree=trees, k=st.integers(1, 5))
def test_the_error_is_within_its_bound(tree: Tree, k: int) -> None:
    counters, subtracted = state(sketch := built(tree, k))
    truth = users_of(everybody(tree))
    pairs = sum(truth.values())
    assert (k + 1) * subtracted <= pairs - sum(counters.values())
    assert subtracted <= (sketch.error_bound(pairs) if pairs else 0)
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


def broken(rule: Any, tries: int, seed: int) -> int:
    """How many of random neighbours a rule moves as no user may."""
    choose, found = random.Random(seed), 0
    for _ in range(tries):
        k = choose.randint(1, 4)
        users = [tuple(choose.sample(ITEMS, choose.randint(1, 5))) for _ in range(choose.randint(1, 12))]
        place = choose.randrange(len(users) + 1)
        one = tuple(choose.sample(ITEMS, choose.randint(1, 5)))
        found += not is_neighbour(rule(users, k), rule([*users[:place], one, *users[place:]], k), k)
    return found


def whole_sets(users: list[tuple[Hashable, ...]], k: int) -> Sketch:
    sketch = MisraGries(k)
    for items in users:
        sketch.update(items)
    return state(sketch)


def cut_by_number(users: list[tuple[Hashable, ...]], k: int) -> Sketch:
    """Batches of three users each, wherever they begin: another user moves everybody after into other batches."""
    sketch: Sketch = {}, 0
    for start in range(0, len(users), 3):
        sketch = with_users(sketch, [set(items) for items in users[start : start + 3]], k)
    return sketch


def test_the_search_finds_rules_that_are_broken_and_ours_is_not() -> None:
    """The power of the tests above: the same question of rules that look much alike."""
    assert broken(whole_sets, 2000, seed=1) == 0
    assert broken(classic, 2000, seed=1) > 100
    assert broken(cut_by_number, 2000, seed=1) > 100


def test_element_by_element_one_user_moves_a_counter_by_two() -> None:
    users, one = [("c",), ("b", "c")], ("d", "a", "b")
    assert classic(users, 2) == ({"c": 2, "b": 1}, 0)
    assert classic([*users, one], 2) == ({}, 2)
    assert not is_neighbour(classic(users, 2), classic([*users, one], 2), 2)
    # The whole set at once: 2, 2, 1, 1 less the third largest.
    assert whole_sets([*users, one], 2) == ({"c": 1, "b": 1}, 1)


def test_batches_that_are_cut_by_number_move_a_counter_by_two_or_to_both_sides() -> None:
    """Why a batch must not be "the next three users": one more at the front, and all after them change places."""
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
def test_the_question_itself_can_be_answered_no(without: Sketch, together: Sketch) -> None:
    assert not is_neighbour(without, together, 2)
