"""The queries of a histogram: users per item, and their sums; and how many items users have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dphist.engines.sql import COUNT, Rows
from dphist.engines.value_sql import fine_steps, number, steps
from dphist.types import Events
from dphist.types.values import Value

ITEMS: Final = "items"
# Items are alike if the mean size of their users differs by less than a thirtieth.
_ALIKE: Final = 32


def value_names(values: tuple[Value, ...]) -> list[str]:
    """The columns of the sums in a histogram."""
    return [f"v{k}" for k in range(len(values))]


@dataclass(frozen=True)
class Pairs:
    """Users `u` and items `i0`, `i1`, ..., with repeats: what all queries begin with.

    With `listed` (a table of keys k0, k1, ... and entries p0, p1, ...) only keys of it are among them.
    """

    events: Events
    rows: Rows
    listed: str | None = None
    values: tuple[Value, ...] = ()

    @property
    def items(self) -> list[str]:
        """The item's columns."""
        return [f"i{k}" for k in range(len(self.events.items))]

    @property
    def equal(self) -> str:
        """How a column of an item is compared with that of a key."""
        return "IS NOT DISTINCT FROM" if self.events.null_items else "="

    def plain(self) -> str:
        """The query, with repeats of pairs."""
        columns = ["u", *self.items]
        source = self.rows.select(columns, ["u"] if self.events.null_items else columns)
        if self.listed is None:
            return source
        match = " AND ".join(f"e.{item} {self.equal} l.k{k}" for k, item in enumerate(self.items))
        return (
            f"SELECT * FROM ({source}) AS e SEMI JOIN (SELECT * FROM {self.listed} WHERE matched) AS l ON {match}"
        )

    def summed(self) -> str:
        """Each pair once, with the user's own sums for the item in steps, v0, v1, ..."""
        columns = ", ".join(["u", *self.items])
        found = [number(f"x{k}", kind, column) for k, (_, kind, column) in enumerate(self.rows.numbers)]
        numbers = ", ".join(f"{x} AS x{k}" for k, x in enumerate(found))
        places = {column: f"x{k}" for k, (_, _, column) in enumerate(self.rows.numbers)}
        fine = ", ".join(f"{fine_steps(places[v.column], v)} AS f{k}" for k, v in enumerate(self.values))
        sums = ", ".join(f"sum(f{k}) AS s{k}" for k in range(len(self.values)))
        own = ", ".join(f"{steps(f's{k}', value)} AS v{k}" for k, value in enumerate(self.values))
        rows = f"SELECT {columns}, {fine} FROM (SELECT {columns}, {numbers} FROM ({self.plain()}))"
        return f"SELECT {columns}, {own} FROM (SELECT {columns}, {sums} FROM ({rows}) GROUP BY {columns})"


def histogram(
    pairs: Pairs, cap: int | None, order: str, lower: int, few_repeats: bool = False
) -> tuple[str, list[str]]:
    """The query of the counts, and the names of its item columns. Few repeats change its speed, never its result.

    A public list is applied before a user's items are chosen, and every entry is in the result. Sums follow the
    count; which items of a user are chosen does not depend on them.
    """
    items, listed = pairs.items, pairs.listed
    counts = _sums(pairs, cap, order) if pairs.values else _counts(pairs, cap, order, few_repeats)
    if listed is None:
        return (counts if lower <= 1 else f"{counts} HAVING {COUNT} >= {lower}"), items
    match = " AND ".join(["l.matched = c.matched", *(f"l.k{k} {pairs.equal} c.{i}" for k, i in enumerate(items))])
    entries = [f"p{k}" for k in range(len(items))]
    found = ", ".join(f"coalesce(c.{name}, 0) AS {name}" for name in (COUNT, *value_names(pairs.values)))
    return (
        f"SELECT {', '.join(f'l.{p}' for p in entries)}, {found} FROM {listed} AS l "
        f"LEFT JOIN (SELECT *, TRUE AS matched FROM ({counts})) AS c ON {match}"
    ), entries


def _counts(pairs: Pairs, cap: int | None, order: str, few_repeats: bool) -> str:
    """Users per item, each user with at most `cap` items."""
    source, columns = pairs.plain(), ", ".join(pairs.items)
    if cap is None:
        return f"SELECT {columns}, count(DISTINCT u) AS {COUNT} FROM ({source}) GROUP BY {columns}"
    if few_repeats:
        # Equal rows share their rank: where there are few of them this spares making the rows distinct first.
        ranked = (
            f"SELECT u, {columns}, dense_rank() OVER (PARTITION BY u ORDER BY {order}, {columns}) AS place "
            f"FROM ({source})"
        )
        return (
            f"SELECT {columns}, count(DISTINCT u) AS {COUNT} FROM ({ranked}) WHERE place <= {cap} "
            f"GROUP BY {columns}"
        )
    # DISTINCT first: a user's items are ranked once each, however often they occur.
    ranked = (
        f"SELECT {columns}, row_number() OVER (PARTITION BY u ORDER BY {order}, {columns}) AS place "
        f"FROM (SELECT DISTINCT u, {columns} FROM ({source}))"
    )
    return f"SELECT {columns}, count(*) AS {COUNT} FROM ({ranked}) WHERE place <= {cap} GROUP BY {columns}"


def _sums(pairs: Pairs, cap: int | None, order: str) -> str:
    """Users per item and the sums of their values; what a user has for an item is added up before the choice."""
    columns, names = ", ".join(pairs.items), value_names(pairs.values)
    own, where = pairs.summed(), ""
    if cap is not None:
        ranks = f"row_number() OVER (PARTITION BY u ORDER BY {order}, {columns}) AS place"
        own, where = f"SELECT {columns}, {', '.join(names)}, {ranks} FROM ({own})", f" WHERE place <= {cap}"
    # At most 2^21 a user: no sum leaves 64 bits.
    totals = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in names)
    return f"SELECT {columns}, count(*) AS {COUNT}, {totals} FROM ({own}){where} GROUP BY {columns}"


def repeats(pairs: Pairs) -> str:
    """The query of how many rows there are, and how many of them differ, for one user in 256."""
    source = replace(pairs, listed=None).plain()
    sample = f"WITH s AS MATERIALIZED (SELECT * FROM ({source}) WHERE hash(u) % 256 = 0) "
    return f"{sample}SELECT (SELECT count(*) FROM s), (SELECT count(*) FROM (SELECT DISTINCT * FROM s))"


def sizes(pairs: Pairs) -> str:
    """The query of how many users have how many different items: one row for each number of items."""
    columns = ", ".join(["u", *pairs.items])
    own = f"SELECT u, count(*) AS {ITEMS} FROM (SELECT DISTINCT {columns} FROM ({pairs.plain()})) GROUP BY u"
    return f"SELECT {ITEMS}, count(*) AS {COUNT} FROM ({own}) GROUP BY {ITEMS}"


def sized(pairs: Pairs) -> str:
    """The query of all different pairs: the item's columns, and how many items the user of the pair has."""
    columns = ", ".join(pairs.items)
    return (
        f"SELECT {columns}, count(*) OVER (PARTITION BY u) AS {ITEMS} "
        f"FROM (SELECT DISTINCT u, {columns} FROM ({pairs.plain()}))"
    )


def kept(pairs: Pairs, source: str, caps: Sequence[int]) -> str:
    """The query of groups of like items: their users, their number, and for each cap what it keeps of the users.

    Of a user with n items a cap m keeps each with the chance min(1, m/n): the sums of these chances and of their
    squares, as means over the group. Alike are items of as many users, whose sizes have nearly the same mean
    logarithm.
    """
    chances = [(f"least(1e0, {int(cap)}e0 / {ITEMS})", f"m{k}", f"q{k}") for k, cap in enumerate(caps)]
    own = "".join(f", sum({p}) AS {mean}, sum({p} * {p}) AS {square}" for p, mean, square in chances)
    means = "".join(f", avg({mean}) AS {mean}, avg({square}) AS {square}" for _, mean, square in chances)
    columns = ", ".join(pairs.items)
    each = f"SELECT count(*) AS {COUNT}, round({_ALIKE} * avg(ln({ITEMS}))) AS alike{own} FROM {source}"
    return f"SELECT {COUNT}, count(*) AS number{means} FROM ({each} GROUP BY {columns}) GROUP BY {COUNT}, alike"
