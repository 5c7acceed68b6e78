"""Parquet on Spark: files of this machine by their schemas, whose types meet as in `grouped_files`.

Times are cut to microseconds, and those of a day are text, for Spark has no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dphist.engines.failures import attempt
from dphist.engines.files import readable
from dphist.engines.grouped_files import DECIMAL, NOTHING, joined
from dphist.engines.sources import demand
from dphist.engines.spark_sources import SparkSource, address, by_places, located, union
from dphist.engines.spark_types import FLOATS, KEPT
from dphist.errors import InputError

# Whole numbers by what they can hold; the last is what Spark reads numbers of 64 bits without a sign as.
WHOLE: Final = ("tinyint", "smallint", "int", "bigint", "decimal(20,0)")
UNKNOWN: Final = "{what} cannot be read: it is damaged, or has a column of a type that Spark does not know"


@dataclass(frozen=True)
class Group:
    """Files with the same columns: their frame, its names, and the types they have in Arrow, if any."""

    file: str
    frame: Any
    names: list[str]
    arrow: dict[str, str]

    def column(self, name: str) -> Any:
        """A column of its frame in a type that is counted."""
        from pyspark.sql import functions as sql

        column = self.frame[f"n{self.names.index(name)}"]
        if self.arrow.get(name) == "null":
            return sql.lit(None)
        if self.arrow.get(name, "").startswith("timestamp[ns"):
            # Which Spark reads as numbers.
            moment = sql.timestamp_micros(sql.call_function("div", column, sql.lit(1000)))
            return moment if "tz=" in self.arrow[name] else moment.cast("timestamp_ntz")
        return column

    def kind(self, name: str) -> tuple[str, str]:
        """The type that Spark has for a column, and the one that DuckDB has."""
        kind = str(self.frame.select(self.column(name)).dtypes[0][1])
        if self.arrow.get(name) == "null":
            return kind, NOTHING
        known = "UBIGINT" if self.arrow.get(name) == "uint64" else {**KEPT, **FLOATS}.get(kind, kind)
        return kind, known.upper()


def parquet_source(session: Any, files: list[str], what: str) -> SparkSource:
    """Parquet files of this machine."""
    import pyarrow.parquet as pq

    if not readable(files):
        raise InputError(f"{what} is empty: it has not even columns")
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for path in files:
        schema = attempt(lambda path=path: pq.read_schema(path), f"the file {path!r}")  # type: ignore[misc]
        for entry in schema:
            if str(entry.type).startswith("decimal256"):
                raise InputError(f"the column {entry.name!r} of {path!r} has decimals of more than 38 digits")
        alike.setdefault(tuple((entry.name, str(entry.type)) for entry in schema), []).append(path)
    groups = [
        attempt(lambda some=some, header=header: _group(session, some, header), f"the file {some[0]!r}", UNKNOWN)  # type: ignore[misc]
        for header, some in alike.items()
    ]
    return SparkSource(what, groups[0].names, lambda wanted, _probe: _selected(groups, wanted, what))


def _group(session: Any, files: list[str], header: tuple[tuple[str, str], ...]) -> Group:
    names = [name for name, _ in header]
    frame = located(session.read, files, names).parquet(*(address(path) for path in files))
    if frame.columns[: len(names)] != names:
        raise ValueError("Spark reads other columns")
    numbered = frame.toDF(*(f"n{k}" for k in range(len(frame.columns))))
    return Group(files[0], numbered, list(frame.columns), dict(header))


def _selected(groups: list[Group], wanted: list[str], what: str) -> Any:
    for group in groups:
        demand(f"the file {group.file!r}", group.names, wanted)
    targets = []
    for name in wanted:
        kinds = [group.kind(name) for group in groups]
        joined(what, name, [known for _, known in kinds])
        targets.append(one_type([kind for kind, known in kinds if known != NOTHING]))
    return union([
        group.frame.select(*(
            group.column(name).cast(target).alias(f"c{k}")
            for k, (name, target) in enumerate(zip(wanted, targets, strict=True))
        ))
        for group in groups
    ])  # fmt: skip


def one_type(kinds: list[str]) -> str:
    """The type that holds all values of types that can be joined; text where there can be no value at all."""
    different = list(dict.fromkeys(kinds))
    if len(different) <= 1:
        return (different or ["string"])[0]
    if set(different) <= set(WHOLE):
        return max(different, key=WHOLE.index)
    if set(different) <= set(FLOATS):
        return "double"
    found = [DECIMAL.fullmatch(kind.upper()) for kind in different]
    sizes = [(int(one[1]) - int(one[2]), int(one[2])) for one in found if one is not None]
    whole, fraction = max(n for n, _ in sizes), max(n for _, n in sizes)
    return f"decimal({whole + fraction},{fraction})"


def far_parquet_source(session: Any, places: list[str], what: str) -> SparkSource:
    """Parquet of other machines; columns that differ between files must have one type."""
    frame = session.read.option("mergeSchema", "true").parquet(*places)
    names = list(frame.columns)
    return SparkSource(what, names, lambda wanted, _probe: by_places(frame, names, wanted))
