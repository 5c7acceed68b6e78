"""Small tables of events for the tests of whole releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa


def events(counts: Mapping[Any, int], *, items_per_user: int = 1, shuffle: int | None = None) -> pa.Table:
    """Events such that item i has counts[i] users; a user has up to `items_per_user` items, each twice."""
    users: list[int] = []
    items: list[Any] = []
    start = 0
    names = list(counts)
    for first in range(0, len(names), items_per_user):
        group = names[first : first + items_per_user]
        for name in group:
            users += range(start, start + counts[name])
            items += [name] * counts[name]
        start += max(counts[name] for name in group)
    table = pa.table({"user": users + users, "item": items + items})
    if shuffle is None:
        return table
    return table.take(pa.array(np.random.default_rng(shuffle).permutation(table.num_rows)))


def as_dict(release: Any) -> dict[Any, float]:
    """Released items with their counts."""
    table = release.to_arrow()
    return dict(zip(table.column(0).to_pylist(), table.column(release.names.count).to_pylist(), strict=True))
