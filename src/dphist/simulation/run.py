"""`simulate`: utility before privacy is spent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dphist.errors import InvalidParameter
from dphist.releases.request import Request
from dphist.simulation.candidates import Prediction, capped, chosen, topped, tops_to_try
from dphist.simulation.population import Population, caps_to_try, population_of
from dphist.simulation.result import GOALS, Goal, Simulation
from dphist.simulation.zipf import Zipf, zipf_from
from dphist.types import Budget


def simulate(
    source: Any = None,
    *,
    epsilon: float,
    delta: float,
    zipf: Zipf | Sequence[float] | str | None = None,
    caps: Sequence[int] | None = None,
    tops: Sequence[int] | None = None,
    auto: bool = True,
    goal: str = "counts",
    **columns: Any,
) -> Simulation:
    """Predict what releases of this data would be worth, for many plans; NOT PRIVATE, for public data alone.

    `source` is what `dphist.release` takes, of data that is public, with `user` and `item` and, if need be,
    `table`, `query`, `where`, `input_format` and `null_items`. In its place `zipf` is (exponent, items, users) or
    (exponent, items, users, mean items of a user). Candidates are `caps`, `tops` (an empty list for none of them)
    and, with `auto`, a cap that is chosen privately. `goal` says what is recommended: the `counts` nearest to the
    truth, the most `keys`, or the least missing `mass`.

    >>> import dphist
    >>> made_up = dphist.simulate(zipf=(1.1, 10_000, 50_000), epsilon=1, delta=1e-6, auto=False)
    >>> made_up.private
    False
    """
    budget, wanted = Budget(epsilon, delta), _goal(goal)
    # What is wrong with these is said before anything is read.
    caps_to_try(1, caps)
    tops_to_try(1, tops)
    if (source is None) == (zipf is None):
        raise InvalidParameter("give public data or a law for made-up data (zipf), and not both")
    if zipf is None:
        population = _counted(source, budget, caps, columns)
    else:
        if columns:
            raise InvalidParameter(f"made-up data has no {next(iter(columns))!r}")
        population = zipf_from(zipf).population(caps)
    return Simulation(population, budget, wanted, _candidates(population, budget, caps, tops, auto))


def _counted(source: Any, budget: Budget, caps: Sequence[int] | None, columns: dict[str, Any]) -> Population:
    allowed = {"user", "item", "table", "query", "where", "input_format", "null_items"}
    for name in columns:
        if name not in allowed:
            raise InvalidParameter(f"simulate has no {name!r}")
    for name in ("user", "item"):
        if columns.get(name) is None:
            raise InvalidParameter(f"the column of the {name} must be given")
    given = {name: value for name, value in columns.items() if value is not None}
    # As a release reads it, so that the same columns mean the same.
    request = Request(
        input=source, epsilon=budget.epsilon, delta=budget.delta, max_items_per_user=1, engine="duckdb", **given
    )
    label = os.path.basename(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "a frame"
    return population_of(request.events(), label, caps)


def _candidates(
    population: Population, budget: Budget, caps: Sequence[int] | None, tops: Sequence[int] | None, auto: bool
) -> tuple[Prediction, ...]:
    found = [capped(budget, cap, population) for cap in caps_to_try(population.largest, caps)]
    if auto:
        found.append(chosen(budget, population))
    found += [topped(budget, top, population) for top in tops_to_try(population.items, tops)]
    if not found:
        raise InvalidParameter("there is no candidate: give caps, tops or auto")
    return tuple(found)


def _goal(goal: str) -> Goal:
    for one in GOALS:
        if goal == one:
            return one
    raise InvalidParameter(f"the goal must be one of {', '.join(GOALS)}, not {goal!r}")
