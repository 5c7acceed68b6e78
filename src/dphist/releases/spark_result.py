"""A release that Spark holds: as a DataFrame of its own, or in a folder that its executors wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from numpy.typing import NDArray

from dphist.releases.pyarrow_kind import KIND
from dphist.releases.result import Release
from dphist.releases.sources import Form, Names

SHOWN: Final = 10
# What a release on the cluster has in common with its first rows.
_SHARED: Final = (
    "certificate", "plan", "private", "names", "form", "offset", "request", "came", "written", "sums", "chosen",
    "receipt", "created",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Head(Release):
    """The first rows of a release of `total` rows."""

    total: int = 0

    def __len__(self) -> int:
        return self.total


class SparkRelease(Release):
    """A release on the cluster.

    `to_spark()` is the DataFrame: its rows are computed once and kept, and it has no memory of how they were made.
    `collect()` brings all rows here, and so does whatever else needs them, such as `to_pandas()` or `counts`.
    """

    def __init__(self, frame: Any, head: Head) -> None:
        self.__dict__.update(frame=frame, head=head)
        for name in _SHARED:
            self.__dict__[name] = getattr(head, name)

    frame: Any
    head: Head

    def __len__(self) -> int:
        return self.head.total

    def to_spark(self, session: Any = None) -> Any:
        """The release as a DataFrame of Spark: the one that is there, unless another session is named."""
        return self.frame if session is None else super().to_spark(session)

    def to_native(self) -> Any:
        """The release as the data came."""
        return self.frame

    @cached_property
    def _collected(self) -> Release:
        return collected(self.frame.toArrow(), self.head)

    def collect(self) -> Release:
        """All rows in this process, the largest count first."""
        return self._collected

    @property
    def columns(self) -> tuple[Any, ...]:
        """The item's columns, brought here."""
        return self.collect().columns

    @property
    def counts(self) -> NDArray[Any]:
        """The noisy counts, brought here."""
        return self.collect().counts

    @property
    def added(self) -> Mapping[str, NDArray[Any]]:
        """The columns that were asked for beside the counts, brought here."""
        return self.collect().added

    def _frame(self, package: str) -> Any:
        return self.collect()._frame(package)

    def write(
        self,
        output: str | os.PathLike[str],
        *,
        table: str | None = None,
        force: bool = False,
        sign: str | os.PathLike[str] | None = None,
        escape_formulas: bool = False,
    ) -> SparkRelease:
        """Write the release with its certificate, both or neither: from the executors to a folder, else from here.

        A folder is named with a slash at its end, or by an address that Spark knows, such as hdfs://...
        """
        from dphist.outputs.spark_folder import write_folder
        from dphist.outputs.writing import check_formulas, target_of, write_release
        from dphist.signatures import signer_of

        target = replace(target_of(output, table), sign=signer_of(sign))
        check_formulas(target, escape_formulas)
        if target.kind == "folder":
            return self.with_written(write_folder(self.frame, self.document(), target, force=force))
        written = write_release(
            self.to_arrow(), self.document(), target, force=force, escape_formulas=escape_formulas
        )
        return self.with_written(written)

    def with_written(self, written: Any) -> SparkRelease:
        """The same release, which knows where it was written to."""
        return SparkRelease(self.frame, replace(self.head, written=written))

    def __repr__(self) -> str:
        return repr(self.head)

    def _repr_html_(self) -> str:
        return self.head._repr_html_()


def collected(table: Any, model: Release) -> Release:
    """A release in memory from the rows of an output, in the order of a release."""
    columns = [table.column(place).combine_chunks() for place in range(table.num_columns)]
    items = [_one(column) for column in columns[: len(model.names.items)]]
    count, *added = [KIND.numbers(column) for column in columns[len(model.names.items) :]]
    order = KIND.order(count, items)
    return Release(
        tuple(KIND.take(column, order) for column in items), count[order], model.certificate, model.plan,
        model.private, model.names, Form(KIND, "frame", "pyarrow"), model.offset,
        {name: column[order] for name, column in zip(_added_names(table, model.names), added, strict=True)},
        model.request, model.came, model.written, chosen=model.chosen, receipt=model.receipt,
        created=model.created,
    )  # fmt: skip


def _added_names(table: Any, names: Names) -> list[str]:
    added: list[str] = table.column_names[len(names.items) + 1 :]
    return added


def _one(column: Any) -> Any:
    import pyarrow as pa

    return column if not isinstance(column, pa.ChunkedArray) else pa.concat_arrays(column.chunks)


def largest_rows(frame: Any, items: int, limit: int) -> Any:
    """The rows with the largest counts, of a frame whose first columns are the item's and the next the count."""
    from pyspark.sql import functions as sql

    names = [f"n{place}" for place in range(len(frame.columns))]
    ordered = frame.toDF(*names).orderBy(sql.col(names[items]).desc(), *names[:items])
    return ordered.limit(limit).toDF(*frame.columns)


def headed(frame: Any, model: Release, total: int | None = None) -> SparkRelease:
    """A release that stays where it is, with its first rows at hand."""
    first = largest_rows(frame, len(model.names.items), SHOWN).toArrow()
    return _with_head(frame, first, model, int(frame.count()) if total is None else total)


def headed_if_possible(frame: Any, model: Release, total: int) -> SparkRelease:
    """A release that is written already: that its first rows cannot be shown does not undo it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return headed(frame, model, total)
    except Exception:
        nothing = to_arrow_schema(frame.schema, timezone="UTC").empty_table()
    return _with_head(frame, nothing, model, total)


def _with_head(frame: Any, first: Any, model: Release, total: int) -> SparkRelease:
    rows = collected(first, model)
    fields = {name: getattr(rows, name) for name in rows.__dataclass_fields__}
    return SparkRelease(frame, Head(**fields, total=total))
