"""How much is tested in which run, and by which process: tests that share slow starts go to one, and go first."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

# Sessions of Spark share one JVM; the tests of some files share a browser, the server of a page, or slow results.
_SPARK: Final = re.compile(r"/test_(sketch_)?spark_?\w*\.py::|\[.*\bspark\b(?!\.(py|md))|_about_spark")
_FILES: Final = re.compile(r"(?:^|/)(test_(?:explore\w*|report_browser|reprs))\.py::")


# `make test-slow` draws all examples of a test, `make test` the first third of them.
THOROUGH: Final = os.environ.get("DPHIST_TESTS") == "thorough"


def examples(number: int) -> int:
    """How many examples to draw in this run."""
    return number if THOROUGH else max(3, number // 3)


def crossed(*values: Sequence[Any]) -> list[Any]:
    """All combinations of the values of several parameters, of which the last has the fewest values.

    `make test` runs one for each combination of the others: of two parameters each value once or more, of three
    each pair of values. The rest are slow.
    """
    assert len(values[-1]) == min(map(len, values))
    found = []
    for *places, last in product(*(range(len(each)) for each in values)):
        marks = () if sum(places) % len(values[-1]) == last else pytest.mark.slow
        found.append(
            pytest.param(*(each[n] for each, n in zip(values, [*places, last], strict=True)), marks=marks)
        )
    return found


def group_of(test: str) -> str:
    """The name of the group of a test; a test that shares nothing is a group of its own."""
    if _SPARK.search(test):
        return "spark"
    file = _FILES.search(test)
    return test if file is None else file[1]


class Together(LoadScopeScheduling):  # type: ignore[misc]  # a class without types
    """Whole groups, the largest first: that of Spark, while other processes run all else."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
