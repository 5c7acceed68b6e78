"""Misra-Gries sketches with dictionaries, from the definitions alone: slow and plain.

A sketch is a pair of counters (item -> positive count) and the total by which all counters were lowered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet

Sketch = tuple[dict[Hashable, int], int]
UserSet = AbstractSet[Hashable]


def lowered(counters: dict[Hashable, int], k: int) -> Sketch:
    """One is taken from every counter, and zeros are dropped, until no more than k are left."""
    times, left = 0, {item: count for item, count in counters.items() if count > 0}
    while len(left) > k:
        left = {item: count - 1 for item, count in left.items() if count > 1}
        times += 1
    return left, times


def with_users(sketch: Sketch, users: Iterable[UserSet], k: int) -> Sketch:
    """All these users at once: each adds one to every item of their set."""
    counters = Counter(sketch[0])
    for items in users:
        counters.update(items)
    left, times = lowered(dict(counters), k)
    return left, sketch[1] + times


def merged(sketches: Sequence[Sketch], k: int) -> Sketch:
    """Counters are added up and lowered again."""
    counters: Counter[Hashable] = Counter()
    for one, _ in sketches:
        counters.update(one)
    left, times = lowered(dict(counters), k)
    return left, sum(taken for _, taken in sketches) + times


def classic(users: Iterable[Sequence[Hashable]], k: int) -> Sketch:
    """The sketch of 1982, element by element: a new element takes a free counter, or one from all counters."""
    counters: dict[Hashable, int] = {}
    times = 0
    for items in users:
        for item in items:
            if item in counters:
                counters[item] += 1
            elif len(counters) < k:
                counters[item] = 1
            else:
                counters = {known: count - 1 for known, count in counters.items() if count > 1}
                times += 1
    return counters, times


def users_of(users: Iterable[UserSet]) -> Counter[Hashable]:
    """The exact histogram: how many users each item has."""
    counts: Counter[Hashable] = Counter()
    for items in users:
        counts.update(items)
    return counts


def is_neighbour(without: Sketch, together: Sketch, k: int) -> bool:
    """Whether one more user moved the sketch as a user may: (+v, 0) or (-v, +1), v of zeros and ones.

    Both have at most k counters.
    """
    if max(len(without[0]), len(together[0])) > k:
        return False
    items = without[0].keys() | together[0].keys()
    moves = {together[0].get(item, 0) - without[0].get(item, 0) for item in items}
    return (moves <= {0, 1} and together[1] == without[1]) or (moves <= {0, -1} and together[1] == without[1] + 1)
