"""Small tables of events for the tests of whole releases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from dphist.certificate.text import SEAL, certificate_text, self_digest


def events(counts: Mapping[Any, int], *, items_per_user: int = 1, shuffle: int | None = None) -> pa.Table:
    """Events in which item i has counts[i] users; a user has up to `items_per_user` items, each twice."""
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
    return table.take(pa.array(np.random.default_rng(shuffle).permutation(table.num_rows), pa.int64()))


def as_dict(release: Any) -> dict[Any, float]:
    """Released items with their counts."""
    table = release.to_arrow()
    return dict(zip(table.column(0).to_pylist(), table.column(release.names.count).to_pylist(), strict=True))


def plan_facts(plan: Any) -> dict[str, Any]:
    """The plan as it stands in a certificate."""
    from dphist.certificate.schema import plan_part

    facts: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(plan_part(plan)))
    return facts


def plan_from(facts: Mapping[str, Any]) -> Any:
    """The plan in a certificate, certified again."""
    from dphist.certificate.plans import plan_of
    from dphist.certificate.schema import AnyPlan

    part: AnyPlan = msgspec.convert(facts, AnyPlan)
    return plan_of(part)


def restate(document: dict[str, Any], plan_data: dict[str, Any], budget: Any = None) -> None:
    """Replace the plan in a certificate and everything that follows from it, like a careful forger."""
    from dphist.certificate.request import AnyRequest
    from dphist.certificate.statement import statement_of

    try:
        plan, request = plan_from(plan_data), msgspec.convert(document["request"], AnyRequest)
        due = statement_of(
            plan, request, private=True, offset=document["counts"]["offset"],
            decimals=document["counts"]["decimals"], version="0", created="2026-01-01T00:00:00Z",
        ).to_dict()  # fmt: skip
    except ValueError:  # nothing follows from a request or a plan that the schema refuses
        return
    document["plan"] = plan_data
    for name in ("guarantee", "caveats", "counts"):
        document[name] = due[name]
    if budget is not None:
        document["guarantee"] |= {"epsilon": budget.epsilon, "delta": budget.delta}


def resealed(document: dict[str, Any]) -> str:
    """The text of a certificate with a recomputed seal."""
    try:
        document[SEAL] = self_digest(document)
        return certificate_text(document)
    except ValueError:  # numbers that dphist never writes
        return json.dumps(document)
