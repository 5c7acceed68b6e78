"""From the counters of a sketch to a private release."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dphist.errors import InvalidParameter
from dphist.sketch.counters import Counters, taken
from dphist.sketch.kinds import ItemKind
from dphist.types import Plan

if TYPE_CHECKING:
    from dphist.releases.result import Release


def release_counters(
    counters: Counters, kind: ItemKind, plan: Plan, *, k: int, count_name: str, rounded: bool, seed: int | None
) -> Release:
    """Noise and threshold for the counters, and a record from which anybody can check the promise."""
    from dphist.releases.accuracy import added_columns
    from dphist.releases.histogram import release_sketch
    from dphist.releases.pyarrow_kind import KIND
    from dphist.releases.sources import checked_names

    names = checked_names(kind.names, count_name)
    if not isinstance(rounded, bool):
        raise InvalidParameter(f"rounded must be True or False, not {rounded!r}")
    # In the order of the items: so a seed repeats a release, whatever the order of the users was.
    order = KIND.order(np.zeros(counters.counts.size), counters.items)
    columns = tuple(taken(column, order) for column in counters.items)
    raw = release_sketch(
        columns, counters.counts[order], plan, size=k, subtracted=counters.subtracted, names=names, seed=seed
    )
    counts, _ = added_columns(raw.counts, raw.plan, count_name, error=False, interval=None, rounded=rounded)
    asked: dict[str, Any] = dict(raw.request)
    if count_name != "count":
        asked["count-name"] = count_name
    if rounded:
        asked["round"] = True
    return replace(raw, counts=counts, request=asked)
