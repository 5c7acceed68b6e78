"""`series`: verify the releases of a folder, one for each period, and stack them into one table.

A series reads released numbers and certificates only. Nothing in it is a release of its own.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from io import BytesIO
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np
import pyarrow as pa

from dphist.accounting import gaussian_of_plan
from dphist.aliases import ArrowArray, ArrowColumn, JsonObject
from dphist.certificate.endings import CERTIFICATE, FOLDER_CERTIFICATE, suffix_kind
from dphist.certificate.numbers import half_width
from dphist.certificate.plans import is_difference, plan_of
from dphist.certificate.reading import Readback
from dphist.certificate.request import MARGIN, EventsRequest
from dphist.certificate.schema import Certificate, decode
from dphist.certificate.verify import SEEDED, Verification, read_and_verify
from dphist.display import Grid, count_items, figure, join_words, plain_number, printable, shorten, upper_figure
from dphist.errors import InputError, InvalidParameter, NotVerified, OutputError, package
from dphist.ledger.schema import Receipt
from dphist.model import Budget, Plan
from dphist.outputs.formats import write_rows
from dphist.outputs.target import Target, already_exists, target_of
from dphist.outputs.write import check_formulas
from dphist.proof.gaussian import delta_of_squared_move
from dphist.publishing import write_file
from dphist.releasing.periods import Period, period_in
from dphist.releasing.result import ALL, ROWS_SHOWN
from dphist.releasing.summary import LEVEL, NOT_PRIVATE
from dphist.signatures import Trust

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

PERIOD: Final = "period"
_LOW: Final = "low"
_HIGH: Final = "high"
_THREADS: Final = 4
# Names in a sentence.
_NAMED: Final = 6
# Gives an epsilon within a thousandth.
_HALVINGS: Final = 12

Item = tuple[object, ...]
Point = tuple[float, float, float]
# How the cost of several releases is computed.
Rule = Literal["sum", "gdp", "gdp-rounded"]
_RULES: Final[Mapping[Rule, str]] = {
    "sum": "the sums of theirs",
    "gdp": "by gdp accounting at the sum of their δ",
    "gdp-rounded": "by gdp accounting at the sum of their δ, rounded down to one digit",
}


@dataclass(frozen=True)
class Part:
    """A release of a series. `level` is that of its margins, `doubt` why they cannot be trusted."""

    period: Period
    name: str
    rows: int
    plan: Plan
    level: float
    private: bool
    booking: Receipt | None = field(compare=False)
    doubt: str | None
    limited: bool
    left_out: tuple[str, ...]
    table: pa.Table = field(repr=False, compare=False)

    @property
    def budget(self) -> Budget:
        return self.plan.budget

    @property
    def margin(self) -> float | None:
        """The usual margin of its counts."""
        values = _doubles(self.table.column(MARGIN))
        return float(np.median(values)) if values.size else None

    def plan_words(self) -> str:
        limit = "" if self.plan.noise.in_rounds else f", {self.plan.mechanism}"
        level = "" if self.level == LEVEL else f", margins of {100 * self.level:g} %"
        return f"ε = {plain_number(self.budget.epsilon)}, δ = {plain_number(self.budget.delta)}{limit}{level}"

    def to_dict(self) -> JsonObject:
        return {
            "period": self.period.name, "start": self.period.start.isoformat(), "release": self.name,
            "rows": self.rows, "epsilon": self.budget.epsilon, "delta": self.budget.delta,
            "margin": self.margin, "private": self.private, "booking": self.booking,
        }  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What the releases cost together: they are booked for one dataset of one ledger."""

    ledger: str
    dataset: str
    releases: int
    epsilon: float
    delta: float
    rule: Rule

    def __str__(self) -> str:
        return (
            f"Together the {self.releases:,} releases cost each user ε = {plain_number(self.epsilon)} and δ = "
            f"{upper_figure(self.delta)}, {_RULES[self.rule]}. They are booked for the dataset {self.dataset!r} "
            "in one ledger. Its other bookings come on top, and its total may have another δ, with another ε: "
            "dphist ledger show LEDGER."
        )

    def to_dict(self) -> JsonObject:
        return {
            "ledger": self.ledger, "dataset": self.dataset, "releases": self.releases, "epsilon": self.epsilon,
            "delta": self.delta, "rule": self.rule,
        }  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Series(Grid):
    """The releases of a folder, all verified, in the order of their periods.

    Attributes:
        folder: The folder.
        items: The item columns, with the mark of totals, which is part of an item.
        count: The name of the count column.
        parts: The releases, each with its `period`, `name`, `rows`, `plan` and `booking`.
        table: All rows: `period`, the item, the count, `margin`, and `low` and `high` if a release has intervals.
        ignored: The names in the folder that are not data files.
        totals: The item columns over which the releases have totals.
    """

    folder: str
    items: tuple[str, ...]
    count: str
    parts: tuple[Part, ...]
    table: pa.Table
    ignored: tuple[str, ...] = ()
    totals: tuple[str, ...] = ()

    texts: ClassVar[int] = 1

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def private(self) -> bool:
        """False if the noise of a release was made from a seed."""
        return all(part.private for part in self.parts)

    @cached_property
    def periods(self) -> tuple[Period, ...]:
        """All periods from the first to the last, including those without a release."""
        found = [self.parts[0].period]
        while found[-1] < self.parts[-1].period:
            found.append(found[-1].following())
        return tuple(found)

    @property
    def missing(self) -> tuple[Period, ...]:
        """The periods in between that have no release."""
        released = {part.period for part in self.parts}
        return tuple(period for period in self.periods if period not in released)

    @cached_property
    def lines(self) -> Mapping[Item, Mapping[int, Point]]:
        """Of each item (count, low, high) by the place of its period, where released; the largest items first."""
        places = {period.name: place for place, period in enumerate(self.periods)}
        keys = zip(*(self.table.column(name).to_pylist() for name in self.items), strict=True)
        counts, margins = (_doubles(self.table.column(name)) for name in (self.count, MARGIN))
        bounded = _LOW in self.table.column_names
        lows, highs = (
            _doubles(self.table.column(name)) if bounded else np.full(counts.size, np.nan)
            for name in (_LOW, _HIGH)
        )
        lows = np.where(np.isnan(lows), counts - margins, lows)
        highs = np.where(np.isnan(highs), counts + margins, highs)
        found: dict[Item, dict[int, Point]] = {}
        periods = map(str, self.table.column(PERIOD).to_pylist())
        rows = zip(keys, periods, counts.tolist(), lows.tolist(), highs.tolist(), strict=True)
        for key, period, *point in rows:
            count, low, high = point
            found.setdefault(tuple(map(_hashable, key)), {})[places[period]] = (count, low, high)
        largest = sorted(found.items(), key=lambda line: -sum(point[0] for point in line[1].values()))
        return dict(largest)

    @property
    def always(self) -> int:
        """How many items are in every release."""
        return sum(len(line) == len(self.parts) for line in self.lines.values())

    @cached_property
    def cost(self) -> Cost | None:
        """What the releases cost together; None unless all are booked for one dataset of one ledger.

        Also None if the ledger was replaced by an earlier copy: then bookings have the same number.
        """
        receipts = [part.booking for part in self.parts if part.booking is not None]
        places = {(receipt["ledger"], receipt["dataset"]) for receipt in receipts}
        if len(receipts) < len(self.parts) or len(places) != 1:
            return None
        ((ledger, dataset),) = places
        if len({receipt["entry"] for receipt in receipts}) < len(receipts):
            return None
        return Cost(ledger, dataset, len(self.parts), *cost_of([part.plan for part in self.parts]))

    @property
    def headline(self) -> str:
        """How many releases and items there are, and of which periods."""
        number = len(self.parts)
        always = f"{self.always:,} of them in every release" if number > 1 else "in one release"
        periods = self.parts[0].period.name + (f" to {self.parts[-1].period.name}" if number > 1 else "")
        releases = "1 release" if number == 1 else f"{number:,} releases"
        return f"{releases}, {periods}: {count_items(len(self.lines))}, {always}"

    def notes(self) -> list[str]:
        """What may be compared, what gaps mean, and what is unusual about this series."""
        level = {part.level for part in self.parts}
        share = f"{100 * next(iter(level)):g} %" if len(level) == 1 else "the stated"
        limited = [part.period.name for part in self.parts if part.limited]
        notes = [
            "A count is the noisy number of users of an item in one period. The true number is within count ± "
            f"margin with {share} probability, for each count on its own.",
            "Two periods of an item may be compared: every release has noise of its own, so the margin of a "
            "difference is √(margin₁² + margin₂²). A difference within its margin may be noise; among many items, "
            "some exceed it by chance.",
            "A gap is not zero: the item was below the threshold or not found in that period, and its number of "
            "users is not known.",
            "Counts of different periods must not be added up: who comes back is counted in each of them.",
        ]
        if self.missing:
            notes.append(f"There is no release of {_some([period.name for period in self.missing])}.")
        if limited:
            notes.append(
                f"Margins of releases with a user limit ({_some(limited)}) cover the noise, not what the limit "
                "leaves out."
            )
        left_out = dict.fromkeys(name for part in self.parts for name in part.left_out)
        if left_out:
            notes.append(
                f"Sums, means and vectors are left out ({_some([printable(name) for name in left_out])}): the "
                "releases have them."
            )
        doubtful = [part for part in self.parts if part.doubt is not None]
        if doubtful:
            names = _some([part.period.name for part in doubtful])
            notes.append(f"Do not rely on the margins of {names}: {printable(str(doubtful[0].doubt))}.")
        return [*notes, *self._plan_notes()]

    def _plan_notes(self) -> list[str]:
        runs = [(words, list(parts)) for words, parts in groupby(self.parts, key=Part.plan_words)]
        if len(runs) == 1:
            return []
        named = [f"{words} ({parts[0].period} to {parts[-1].period})" for words, parts in runs]
        more = f", and {len(runs) - _NAMED:,} more changes" if len(runs) > _NAMED else ""
        return [
            f"The plan changes: {'; then '.join(named[:_NAMED])}{more}. Each count has the margin of its own plan."
        ]

    def cost_words(self) -> str:
        """What the releases cost together, as a sentence."""
        if not self.private:
            return f"{NOT_PRIVATE}."
        if self.cost is not None:
            return str(self.cost)
        return (
            "What the releases cost together is not stated, because they are not all booked for one dataset of "
            "one ledger, without an earlier copy in between. If their users are the same, the costs add up: "
            "release with --ledger."
        )

    def changes(self, before: str | None = None, after: str | None = None) -> pa.Table:
        """The items in both periods, with the change and its margin; the largest changes in margins come first.

        `before` and `after` are names of periods, by default of the first and the last release.
        """
        first = self._part_of(before or self.parts[0].period.name)
        last = self._part_of(after or self.parts[-1].period.name)
        old = {key: place for place, key in enumerate(_keys(first.table, self.items))}
        pairs = [(old[key], place) for place, key in enumerate(_keys(last.table, self.items)) if key in old]
        was, now = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
        one, two = (_doubles(part.table.column(self.count))[at] for part, at in ((first, was), (last, now)))
        margin = np.hypot(_doubles(first.table.column(MARGIN))[was], _doubles(last.table.column(MARGIN))[now])
        order = np.argsort(-np.abs(two - one) / np.where(margin > 0.0, margin, np.inf), kind="stable")
        numbers = {"before": one, "after": two, "change": two - one, MARGIN: margin}
        return pa.table(
            {
                **{name: last.table.column(name).take(now[order]) for name in self.items},
                **{name: pa.array(values[order]) for name, values in numbers.items()},
            }
        )

    def _part_of(self, period: str) -> Part:
        found = next((part for part in self.parts if part.period.name == period), None)
        if found is None:
            raise InvalidParameter(f"there is no release of {period}: the series is {self.headline}")
        return found

    # As tables.

    def to_arrow(self) -> pa.Table:
        """The table, as an Arrow table."""
        return self.table

    def to_pandas(self) -> pd.DataFrame:
        """The table, as a pandas DataFrame."""
        frame: pd.DataFrame = self.table.to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """The table, as a polars DataFrame."""
        frame: pl.DataFrame = package("polars").from_arrow(self.table)
        return frame

    def to_duckdb(self, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
        """The table, as a DuckDB relation in this `connection`, or in DuckDB's default connection."""
        duckdb = package("duckdb")
        relation: DuckDBPyRelation = (duckdb if connection is None else connection).from_arrow(self.table)
        return relation

    def write(self, output: str | os.PathLike[str], *, force: bool = False, escape_formulas: bool = False) -> None:
        """Write the table to a file whose ending sets the format, outside the folder of the releases.

        Args:
            output: The file: .parquet, .csv, .tsv, .jsonl or .arrow.
            force: Replace an existing file.
            escape_formulas: CSV and TSV: put ' before text that a spreadsheet would run as a formula.
        """
        target = series_target(self.folder, output, force=force, escape_formulas=escape_formulas)
        file = BytesIO()
        write_rows(self.table, target.kind, file, lambda: None, escape_formulas=escape_formulas)
        write_file(target.path, file.getvalue(), force=force)

    # As text.

    @property
    def title(self) -> str:
        return self.headline if self.private else f"{NOT_PRIVATE}\n{self.headline}"

    @property
    def columns(self) -> tuple[str, ...]:
        ends = dict.fromkeys((self.parts[0].period.name, self.parts[-1].period.name))
        return (*self.shown_items, *ends, "released")

    @property
    def shown_items(self) -> tuple[str, ...]:
        """The item columns as they are displayed: totals have a text of their own in place of the mark."""
        return self.items[:-1] if self.totals else self.items

    def shown_values(self, item: Item) -> list[tuple[object, bool]]:
        """The values of an item by `shown_items`, and whether each is a total over all values."""
        if not self.totals:
            return [(value, False) for value in item]
        *values, total = item
        named = zip(self.shown_items, values, strict=True)
        return [(value, value is None and bool(total) and name in self.totals) for name, value in named]

    def item_texts(self, item: Item) -> list[str]:
        return [ALL if total else item_text(value) for value, total in self.shown_values(item)]

    def cells(self) -> list[tuple[str, ...]]:
        """The largest items with their first and last counts."""
        places = {period: place for place, period in enumerate(self.periods)}
        ends = list(dict.fromkeys((places[self.parts[0].period], places[self.parts[-1].period])))
        rows = []
        for item in list(self.lines)[:ROWS_SHOWN]:
            line = self.lines[item]
            counts = (_count_words(line[place]) if place in line else "-" for place in ends)
            rows.append((*self.item_texts(item), *counts, f"{len(line):,} of {len(self.parts):,}"))
        return rows

    def to_dict(self) -> JsonObject:
        """The keys of `dphist series --json`."""
        return {
            "folder": self.folder,
            "headline": self.headline,
            "private": self.private,
            "items": list(self.items),
            "count": self.count,
            "rows": self.table.num_rows,
            "different_items": len(self.lines),
            "items_in_every_release": self.always,
            "releases": [part.to_dict() for part in self.parts],
            "missing_periods": [period.name for period in self.missing],
            "cost": None if self.cost is None else self.cost.to_dict(),
            "ignored": list(self.ignored),
            "notes": [*self.notes(), self.cost_words()],
        }


def item_text(value: object) -> str:
    return "(missing)" if value is None else shorten(printable(str(value))) or "(empty)"


def _count_words(point: Point) -> str:
    count, low, high = point
    margin = "" if math.isnan(low) else f" ±{figure((high - low) / 2.0)}"
    return f"{figure(count)}{margin}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return join_words(names) if more <= 1 else join_words([*names[:_NAMED], f"{more:,} more"])


def _hashable(value: object) -> object:
    return repr(value) if isinstance(value, (list, dict)) else value


def _keys(table: pa.Table, items: Sequence[str]) -> Iterator[Item]:
    columns = (table.column(name).to_pylist() for name in items)
    return (tuple(map(_hashable, row)) for row in zip(*columns, strict=True))


def _doubles(column: ArrowColumn) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The numbers of a column; NaN where there is none."""
    values = [math.nan if value is None else float(value) for value in column.to_pylist()]
    return np.array(values, dtype=np.float64)


def cost_of(plans: Sequence[Plan]) -> tuple[float, float, Rule]:
    """An (epsilon, delta) of all these releases together, and its rule.

    delta is the sum of theirs, rounded down to one digit if epsilon then still is below the sum of theirs. A total
    of a ledger usually has one digit: the sum may exceed a total that what was spent does not.

    *Guarantee*: holds if the plans were fixed in advance, or together stay within a total that was, as in a
    ledger. Both numbers are sums of the plans', or what their squared moves and events add up to.
    """
    numbers = Counter(plans)
    whole = sum((Fraction(plan.budget.epsilon) * times for plan, times in numbers.items()), Fraction())
    delta = sum((Fraction(plan.budget.delta) * times for plan, times in numbers.items()), Fraction())
    most = float(upper_figure(float(whole), 12))
    above = math.nextafter(float(delta), math.inf)
    if len(plans) == 1:
        return most, above, "sum"
    moves = [(gaussian_of_plan(plan), times) for plan, times in numbers.items()]
    squared = sum((move.squared * times for move, times in moves), Fraction())
    event = sum((Fraction(move.event) * times for move, times in moves), Fraction())
    rounded = _one_digit(float(delta))
    if (epsilon := _epsilon_of_move(squared, Fraction(rounded) - event, most)) < most:
        return epsilon, rounded, "gdp-rounded"
    if (epsilon := _epsilon_of_move(squared, delta - event, most)) < most:
        return epsilon, above, "gdp"
    return most, above, "sum"


def _epsilon_of_move(squared: Fraction, delta: Fraction, most: float) -> float:
    """An epsilon at which this squared move has at most this delta; `most` if none below it was found."""
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = float(upper_figure(0.5 * (low + high)))
        fits = delta > 0 and Fraction(delta_of_squared_move(squared, epsilon=middle)) <= delta
        low, high = (low, min(high, middle)) if fits else (middle, high)
    return high


def _one_digit(number: float) -> float:
    """The number rounded down to one significant digit; sums such as 2.9999999999999996e-8 are 3e-8."""
    digits, _, power = f"{number:.12e}".partition("e")
    return float(f"{digits[0]}e{power}")


def series_target(
    folder: str, output: str | os.PathLike[str], *, force: bool, escape_formulas: bool = False
) -> Target:
    """Where to write the table of a series; raises an error if that is no new file outside the folder."""
    target = target_of(output, objects=False)
    if target.is_database or target.kind == "folder":
        raise InvalidParameter("a series is written to a local file, such as series.parquet or series.csv")
    check_formulas(target, escape_formulas)
    place = os.path.realpath(target.path.parent)
    if place == os.path.realpath(folder) or place.startswith(os.path.realpath(folder) + os.sep):
        raise InvalidParameter(
            f"{printable(str(target.path))} cannot be written: every data file in {printable(folder)} must be a "
            "release, so write the series outside of it"
        )
    if not target.path.parent.is_dir():
        raise OutputError(f"{printable(str(target.path))} cannot be written: there is no folder {place}")
    if os.path.lexists(target.path) and not force:
        raise already_exists(printable(str(target.path)))
    return target


def series(folder: str | os.PathLike[str], *, public_key: str | os.PathLike[str] | None = None) -> Series:
    """Verify all releases of a folder and stack them into one table.

    The name of each release has its period, such as 2026-W46.parquet or queries-2026-11-19.csv. Noise from a seed,
    for tests, is accepted and stated.

    >>> import dphist, pandas
    >>> from pathlib import Path
    >>> log = pandas.DataFrame({"user": range(900), "query": ["tea"] * 600 + ["milk"] * 300})
    >>> options = {"user": "user", "item": "query", "epsilon": 1, "delta": 1e-6, "top": 2, "force": True}
    >>> Path("stacked").mkdir(exist_ok=True)
    >>> for week in ("2026-W45", "2026-W46"):
    ...     result = dphist.release(log, **options, output=f"stacked/{week}.csv")
    >>> weeks = dphist.series("stacked")
    >>> print(weeks.headline)
    2 releases, 2026-W45 to 2026-W46: 2 items, 2 of them in every release

    Args:
        folder: A folder in which every data file is a release that verifies.
        public_key: As for `verify`: every release must be signed with this key.

    Raises:
        NotVerified: A release does not match its certificate, or is not signed with the key.
        InvalidParameter: The releases have different columns, or a name has no period.
    """
    place = Path(folder)
    if not place.is_dir():
        raise InputError(f"there is no folder {printable(str(place))}")
    names, ignored = _releases_in(place)
    if not names:
        raise InputError(
            f"there is no release in {printable(str(place))}: releases are files such as 2026-W46.parquet with "
            f"their certificates, 2026-W46.parquet{CERTIFICATE}"
        )
    trust = Trust.of(public_key, None)
    with ThreadPoolExecutor(_THREADS) as pool:
        read = list(pool.map(lambda name: _read(place / name, trust), names))
    wrong = [(name, found) for name, found in zip(names, read, strict=True) if isinstance(found, str)]
    if wrong:
        reasons = "; ".join(f"{printable(name)}: {reason}" for name, reason in wrong[:_NAMED])
        more = f"; and {len(wrong) - _NAMED:,} more" if len(wrong) > _NAMED else ""
        where = f"{len(wrong):,} of {len(names):,} files in {printable(str(place))}"
        raise NotVerified(f"{where} cannot be in a series: {reasons}{more}. Restore them, or move them away")
    found = [part for part in read if not isinstance(part, str)]
    claims = sorted(found, key=lambda claim: claim[0].period)
    _check_alike(claims)
    parts, requests = zip(*claims, strict=True)
    request = requests[0]
    items = request.item_columns
    return Series(
        str(place), items, request.count_name, parts, _stack(parts), tuple(ignored), totals=request.totals
    )


def _releases_in(folder: Path) -> tuple[list[str], list[str]]:
    """The names of data files, also of those that only a certificate mentions, and all other names."""
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    data = {name for name in names if suffix_kind(name) is not None and not name.endswith(CERTIFICATE)}
    data |= {name.removesuffix(CERTIFICATE) for name in names if name.endswith(CERTIFICATE)}
    data |= {name for name in names if (folder / name / FOLDER_CERTIFICATE).exists()}
    known = data | {f"{name}{CERTIFICATE}" for name in data}
    return sorted(data), [name for name in names if name not in known]


def _read(path: Path, trust: Trust) -> tuple[Part, EventsRequest] | str:
    """A verified release with its request, or why it cannot be in a series."""
    try:
        verified, found = read_and_verify(path, trust=trust)
    except InputError as error:
        return error.marked
    problems = [problem for problem in verified.problems if problem != SEEDED]
    if problems or found.document is None or found.table is None:
        return printable("; ".join(problems) or "it cannot be read")
    try:
        return _part_of(path, verified, found)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        # The certificate of a seeded release is not checked completely.
        return f"its certificate is invalid ({type(error).__name__})"


def _part_of(path: Path, verified: Verification, found: Readback) -> tuple[Part, EventsRequest] | str:
    assert found.document is not None
    assert found.table is not None
    stated = decode(found.document)
    assert isinstance(stated, Certificate)
    request, plan, period = stated.request, plan_of(stated.plan), period_in(path.name)
    signed_as = period_in(stated.output.name)
    if period is None:
        return "its name has no period, such as 2026-W46, 2026-11 or 2026-11-19"
    if signed_as is not None and signed_as != period:
        return f"it was released as {printable(stated.output.name)}, which is another period"
    if not isinstance(request, EventsRequest):
        return "it is not a release of events"
    if is_difference(plan, request):
        return "its counts are differences from a count that is not released"
    names = set(request.item_columns)
    if names & {PERIOD, MARGIN, _LOW, _HIGH}:
        return f"its item column {' and '.join(sorted(names & {PERIOD, MARGIN, _LOW, _HIGH}))} needs another name"
    findings = stated.findings or None
    booking = None if found.document.get("booking") is None else found.document["booking"]
    part = Part(
        period, path.name, found.table.num_rows, plan, float(request.interval or LEVEL), verified.private,
        booking, None if findings is None else findings.reason, not plan.noise.in_rounds and request.items is None,
        tuple(aggregate.name for aggregate in request.aggregates), _rows_of(found.table, request, plan, period),
    )  # fmt: skip
    return part, request


def _rows_of(table: pa.Table, request: EventsRequest, plan: Plan, period: Period) -> pa.Table:
    """The rows of one release in the columns of a series."""
    columns: dict[str, ArrowColumn | ArrowArray] = {name: table.column(name) for name in request.item_columns}
    counts = table.column(request.count_name)
    columns[PERIOD] = pa.array([period.name] * table.num_rows, pa.string())
    columns[request.count_name] = counts
    if MARGIN in table.column_names and plan.noise.in_rounds:
        columns[MARGIN] = table.column(MARGIN)
    else:
        width = half_width(plan, float(request.interval or LEVEL))
        columns[MARGIN] = pa.array([width] * table.num_rows, pa.float64())
    if request.interval is not None:
        columns[_LOW], columns[_HIGH] = (table.column(f"{request.count_name}_{end}") for end in (_LOW, _HIGH))
    return pa.table(columns)


def _check_alike(claims: Sequence[tuple[Part, EventsRequest]]) -> None:
    """Raise `InvalidParameter` for two releases of one period, periods of different lengths, or other columns."""
    for (one, _), (two, _) in pairwise(claims):
        if one.period == two.period:
            raise InvalidParameter(
                f"{printable(one.name)} and {printable(two.name)} are both of {one.period}: a series has one "
                "release of each period, so give each kind of release its own folder"
            )
    _check_same("periods of one length", [(part, f"a {part.period.kind}") for part, _ in claims])
    _check_same(
        "the same columns",
        [
            (part, f"the columns {', '.join([*request.item_columns, request.count_name])}")
            for part, request in claims
        ],
    )
    _check_same(
        "the same <--total>",
        [
            (part, f"totals over {join_words(request.totals)}" if request.totals else "no totals")
            for part, request in claims
        ],
    )
    types = [
        (
            part,
            f"items of the type {', '.join(str(part.table.schema.field(c).type) for c in request.item_columns)}",
        )
        for part, request in claims
    ]
    _check_same("items of the same type", types)
    _check_same("the same users", [(part, f"the user column {request.user}") for part, request in claims])


def _check_same(what: str, described: Sequence[tuple[Part, str]]) -> None:
    """Raise `InvalidParameter` that names the releases that differ from most."""
    usual = Counter(words for _, words in described).most_common(1)[0][0]
    others = [f"{part.name} has {words}" for part, words in described if words != usual]
    if others:
        more = f"; and {len(others) - _NAMED:,} more" if len(others) > _NAMED else ""
        raise InvalidParameter(
            printable(
                f"the releases of a series need {what}: most have {usual}, but {'; '.join(others[:_NAMED])}"
                f"{more}. Move them to another folder"
            )
        )


def _stack(parts: Sequence[Part]) -> pa.Table:
    """All rows. Numbers are doubles unless all releases have whole ones."""
    names = list(dict.fromkeys(name for part in parts for name in part.table.column_names))
    if _LOW in names:  # after the margin, even if the first release has no interval
        names = [name for name in names if name not in (_LOW, _HIGH)] + [_LOW, _HIGH]
    types = {}
    for name in names:
        found = {part.table.schema.field(name).type for part in parts if name in part.table.column_names}
        types[name] = found.pop() if len(found) == 1 else pa.float64()
    tables = [
        pa.table(
            {
                name: part.table.column(name).cast(types[name])
                if name in part.table.column_names
                else pa.nulls(part.rows, types[name])
                for name in names
            }
        )
        for part in parts
    ]
    return pa.concat_tables(tables)
