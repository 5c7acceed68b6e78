"""How much is tested in which run, and by which process: tests that share slow starts go to one, and go first."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

# What several files share: the JVM of Spark, a server of PostgreSQL, a browser and the releases that are reported.
_SHARED: Final = {
    "spark": re.compile(r"/test_(sketch_)?spark_?\w*\.py::|\[.*\bspark\b(?!\.(py|md))|_about_spark"),
    "postgres": re.compile(r"postgres"),
    "report": re.compile(r"/test_(report_\w+|charts)\.py::"),
}


# `make test-slow` draws all examples of a test, `make test` the first third of them, but at least eight, because
# fewer find little.
THOROUGH: Final = os.environ.get("DPHIST_TESTS") == "thorough"


def examples(number: int) -> int:
    """How many examples to draw in this run."""
    return number if THOROUGH else min(number, max(8, number // 3))


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
    """The name of the group of a test: what it shares with other files, or its own file."""
    shared = (name for name, pattern in _SHARED.items() if pattern.search(test))
    return next(shared, Path(test.partition("::")[0]).stem)


class Together(LoadScopeScheduling):  # type: ignore[misc]  # a class without types
    """Whole groups, the largest first: that of Spark, while other processes run all else."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
