"""The sentences about a plan: they are true for every dataset, and name the threshold that is applied."""

from __future__ import annotations

import pytest

import dphist
from dphist.planning.explain import explain


@pytest.mark.parametrize("options", [{"top": 100, "offset": "none"}, {"max_nonzero": 100}])
def test_a_subtracted_count_that_is_not_added_back_is_named(options: dict[str, int | str]) -> None:
    """Once there are more items, 132 users alone are not enough."""
    sentences = " ".join(explain(dphist.plan(epsilon=1, delta=1e-6, **options)))  # type: ignore[arg-type]
    assert "an item with 132 users, and 132 more than the item of rank 101 if there is one, has" in sentences
    assert "counts are not zero" not in sentences


def test_nothing_is_subtracted_by_a_limit_per_user() -> None:
    sentences = " ".join(explain(dphist.plan(epsilon=1, delta=1e-6, max_nonzero=100, max_items_per_user=3)))
    assert "users has a 50 % chance" in sentences
    assert "rank" not in sentences.partition("Other limits")[0].partition("--top")[0]
