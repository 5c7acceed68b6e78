"""The result of a release: its rows, in any kind of frame, and its certificate. It holds no true count.

Results are built from released values alone: a dictionary of categories, the width of a text array, an index, or a
buffer shared with the input would disclose rows that were not released.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dphist import __version__
from dphist.aliases import ArrowArray, ArrowColumn, JsonObject, Numbers
from dphist.certificate.request import MARGIN, AnyRequest, HistogramRequest, SketchRequest
from dphist.certificate.schema import Findings, Statement
from dphist.certificate.sentences import NO_GUARANTEE, guarantee, not_covered
from dphist.certificate.statement import now, statement_of
from dphist.counting.columns import arrow_numbers, is_series, take_rows
from dphist.counting.task import origins
from dphist.display import html_grid, html_table, printable, shorten, text_grid
from dphist.errors import InvalidParameter, package
from dphist.ledger.schema import Receipt
from dphist.model import Budget, Plan, Proof
from dphist.outputs.target import Target, Written, target_of
from dphist.outputs.write import check_formulas, write_release
from dphist.releasing.plausibility import doubtful_sums
from dphist.releasing.summary import INTERVALS_OF_NOISE, NOT_PRIVATE, Summary, column_digits, summarize
from dphist.signatures import signer_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from pyspark.sql import DataFrame, SparkSession

ROWS_SHOWN: Final = 10
# How people see the column that a total is over.
ALL: Final = "(all)"

Package = Literal["list", "numpy", "pandas", "polars", "pyarrow"]
Shape = Literal["columns", "frame", "lazy", "reader", "relation"]

PACKAGES: Final[set[Package]] = {"pandas", "polars", "pyarrow"}
_SHAPES: Final[dict[str, Shape]] = {
    "DataFrame": "frame", "LazyFrame": "lazy", "Table": "frame", "RecordBatch": "frame",
    "RecordBatchReader": "reader",
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """The kind of frame or columns that the caller passed, and gets back. `types` are those of numpy and pandas.

    A type may hold values, such as categories; the form keeps none that does.
    """

    package: Package
    shape: Shape = "columns"
    types: tuple[object, ...] = field(default=(), compare=False)


ARROW: Final = Form("pyarrow", "frame")


@dataclass(frozen=True)
class Names:
    """The names of the item's columns and of the count."""

    items: tuple[str, ...]
    count: str


def frame_form(value: object) -> Form | None:
    """The form of a frame; None for anything else."""
    shapes = [_SHAPES[base.__name__] for base in type(value).__mro__ if base.__name__ in _SHAPES]
    own = PACKAGES & origins(value)
    if own and shapes:
        return Form(own.pop(), shapes[0])
    if type(value).__name__ == "DuckDBPyRelation":
        return Form("pyarrow", "relation")
    return ARROW if hasattr(value, "__arrow_c_stream__") and not is_series(value) else None


def native_column(column: ArrowColumn, name: str, kind: Package, dtype: Any = None) -> Any:
    """An Arrow column as one of this package; `dtype` is the numpy or pandas type of the caller's column."""
    if kind == "list":
        return column.to_pylist()
    if kind == "numpy":
        array = column.to_numpy(zero_copy_only=False)
        return array if dtype is None else array.astype(dtype)
    if kind == "polars":
        return package("polars").Series(name, column)
    if kind == "pyarrow":
        return column
    if hasattr(dtype, "__from_arrow__"):
        return package("pandas").Series(dtype.__from_arrow__(column), name=name)
    series = column.to_pandas(integer_object_nulls=True).rename(name)
    return series if dtype is None else series.astype(dtype)


# The release.


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """Released items with their noisy counts, largest first.

    It holds no true count. `len(release)` is the number of items; notebooks show a table.

    Attributes:
        columns: The item's columns, as Arrow arrays. `items` has them in the kind that you passed.
        counts: Noisy counts, a numpy array.
        plan: The certified plan.
        private: False if the noise was made from a seed.
        offset: Noisy count that a top-k step subtracted. The counts include it already.
        added: Further columns by name: margins, standard errors, intervals, sums and means.
        request: What was requested, as the certificate records it.
        written: Where the release was written, if it was.
        sums: Noisy sums of the distances from the middle of each range, from which sums and means were computed.
        findings: What was found and measured, of a release in rounds.
        receipt: The booking in the ledger, if there is one: ledger, dataset, entry and hash.
        created: Time of the release, in UTC.
        total: Number of rows, if only the first of them are held here.
        sum_errors: Standard errors of the sums and means of a release in rounds, also if they are not released.
        decimals: Decimals to which counts are rounded, which the noise's standard deviation determines; None if
            they are not rounded.
    """

    columns: tuple[ArrowArray, ...]
    counts: Numbers
    plan: Plan
    private: bool
    names: Names
    form: Form = ARROW
    offset: float | None = None
    added: Mapping[str, Numbers] = field(default_factory=dict)
    request: AnyRequest = field(default_factory=HistogramRequest)
    input_form: Form | None = None
    written: Written | None = None
    sums: tuple[NDArray[np.float64], ...] = ()
    findings: Findings | None = None
    sum_errors: Mapping[str, Numbers] = field(default_factory=dict)
    receipt: Receipt | None = None
    created: str = field(default_factory=now)
    total: int | None = None
    decimals: int | None = None

    # Spark writes s3:// addresses as folders. A class attribute without a type is not a dataclass field.
    _writes_objects = True

    def __len__(self) -> int:
        return int(self.counts.size) if self.total is None else self.total

    @property
    def budget(self) -> Budget:
        """What the release spends: ε and δ."""
        return self.plan.budget

    @property
    def proof(self) -> Proof:
        """The proof of the plan: its certified δ."""
        return self.plan.proof

    @property
    def items(self) -> Any:
        """The released items as a column of the kind that you passed, or as a tuple of several columns."""
        columns = tuple(self._native_items(self.form.package).values())
        return columns[0] if len(columns) == 1 else columns

    def to_native(self) -> Any:
        """The release in the kind that you passed: a frame, or columns of items and counts."""
        form = self.form if self.input_form is None else self.input_form
        if form.shape == "columns":
            numbers = arrow_numbers(self.counts)
            return self.items, (
                self.counts if form.package == "numpy" else native_column(numbers, self.names.count, form.package)
            )
        if form.shape == "relation":
            return self.to_duckdb()
        if form.package == "pandas":
            return self.to_pandas()
        if form.package == "polars":
            return self.to_polars().lazy() if form.shape == "lazy" else self.to_polars()
        return self.to_arrow().to_reader() if form.shape == "reader" else self.to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """A pandas DataFrame. Its `attrs` hold whether it is private."""
        frame: pd.DataFrame = package("pandas").DataFrame(self._native_columns("pandas"))
        frame.attrs.update(self._note())
        return frame

    def to_polars(self) -> pl.DataFrame:
        """A polars DataFrame. Unlike pandas and Arrow, it cannot hold whether it is private."""
        frame: pl.DataFrame = package("polars").DataFrame(self._native_columns("polars"))
        return frame

    def to_arrow(self) -> pa.Table:
        """An Arrow table. The metadata of its schema holds whether it is private."""
        return pa.table(self._native_columns("pyarrow")).replace_schema_metadata(self._note())

    def to_duckdb(self, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
        """A DuckDB relation in this `connection`, or in DuckDB's default connection."""
        duckdb = package("duckdb")
        relation: DuckDBPyRelation = (duckdb if connection is None else connection).from_arrow(self.to_arrow())
        return relation

    def to_spark(self, session: SparkSession | None = None) -> DataFrame:
        """A Spark DataFrame in this `session`, or in the active one."""
        from dphist.spark.session import frame_in

        frame: DataFrame = frame_in(session, self.to_arrow())
        return frame

    def _native_items(self, kind: Package) -> dict[str, Any]:
        types = self.form.types or (None,) * len(self.columns)
        columns = zip(self.names.items, self.columns, types, strict=True)
        return {name: native_column(column, name, kind, dtype) for name, column, dtype in columns}

    def _native_columns(self, kind: Package) -> dict[str, Any]:
        numbers = {self.names.count: self.counts, **self.added}
        return {
            **self._native_items(kind),
            **{name: native_column(arrow_numbers(column), name, kind) for name, column in numbers.items()},
        }

    @property
    def guarantee(self) -> str:
        """The privacy guarantee as a sentence."""
        return guarantee(self.plan, self.request) if self.private else NO_GUARANTEE

    @property
    def caveats(self) -> list[str]:
        """Caveats for readers of the release, as sentences."""
        return not_covered(self.plan, self.request)

    def document(self) -> JsonObject:
        """The certificate as a dictionary: guarantee, plan and request."""
        return self.statement.to_dict()

    @cached_property
    def statement(self) -> Statement:
        """The certificate, without the facts about its output."""
        return statement_of(
            self.plan, self.request, private=self.private, offset=self.offset, version=__version__,
            created=self.created, findings=self.findings, receipt=self.receipt,
            decimals=self.decimals,
        )  # fmt: skip

    def write(
        self,
        output: str | os.PathLike[str],
        *,
        output_table: str | None = None,
        certificate: str | os.PathLike[str] | None = None,
        force: bool = False,
        sign: str | os.PathLike[str] | None = None,
        escape_formulas: bool = False,
    ) -> Self:
        """Write the release and then its certificate.

        Args:
            output: A file whose extension sets the format (.parquet, .csv, .tsv, .jsonl, .arrow) or a database.
                A Spark release can also be written to a folder (`NAME/` or `hdfs://...`).
            output_table: Table of the output database.
            certificate: With a PostgreSQL address: file for the certificate.
            force: Replace an existing release.
            sign: Private key file that signs both.
            escape_formulas: CSV and TSV: put ' before text that a spreadsheet would run as a formula.
        """
        target = target_of(output, output_table, certificate=certificate, objects=self._writes_objects)
        target = target if sign is None else replace(target, sign=signer_of(sign))
        check_formulas(target, escape_formulas)
        return self.with_written(self._write_to(target, force=force, escape_formulas=escape_formulas))

    def _write_to(self, target: Target, *, force: bool, escape_formulas: bool) -> Written:
        if target.kind == "folder":
            raise InvalidParameter(
                f"only Spark can write a folder such as {target.public_address()!r}: name a file"
            )
        return write_release(
            self.to_arrow(), self.document(), target, force=force, escape_formulas=escape_formulas
        )

    def with_written(self, written: Written) -> Self:
        return replace(self, written=written)

    def _note(self) -> dict[str, str]:
        facts = {
            "private": self.private,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "delta_certified": self.proof.delta,
        }
        note = {"dphist": json.dumps(facts)}
        return note if self.private else {**note, "dphist_warning": NOT_PRIVATE}

    @cached_property
    def summary(self) -> Summary:
        """How many items were released, how exact and how private they are, as facts and in words."""
        # A count of a sketch may exceed the number of users by up to the offset.
        spare = (self.offset or 0.0) if isinstance(self.request, SketchRequest) else 0.0
        return summarize(
            self.plan, self.request, items=len(self),
            largest=float(self.counts.max()) - spare if self.counts.size else None,
            private=self.private, findings=self.findings, margins=self.added.get(MARGIN),
            alarms=self._alarms(),
        )  # fmt: skip

    def _alarms(self) -> list[str]:
        """Why the numbers may not be what was meant, if all of them are here."""
        if self.total is not None or not self.plan.sums:
            return []
        margins = self.added.get(MARGIN)
        if margins is not None and self.request.interval is not None:
            margins = margins * (1.96 / -NormalDist().inv_cdf((1.0 - self.request.interval) / 2.0))
        return [*doubtful_sums(self.plan, self.request, self.counts, self.added, margins, self.sum_errors)]

    def _texts(self, column: ArrowArray, where: NDArray[np.int64], *, totals: bool = False) -> list[str]:
        """The beginnings of values as printable text, without control characters.

        With `totals`, a missing value of a total is all of them.
        """
        marked = take_rows(self.columns[-1], where).to_pylist() if totals else [False] * where.size
        try:
            found = zip(take_rows(column, where).to_pylist(), marked, strict=True)
            values = [ALL if value is None and total else str(value) for value, total in found]
        except (OverflowError, ValueError):  # a time outside the range of Python's
            values = ["?"] * where.size
        return [shorten(printable(value)) for value in values]

    def _first_rows(self) -> list[tuple[str, ...]]:
        """The header and the first rows as text, with only as many digits as the noise leaves meaningful."""
        where = np.arange(min(self.counts.size, ROWS_SHOWN), dtype=np.int64)
        named = zip(self.names.items, self.columns, strict=True)
        texts = [self._texts(column, where, totals=name in self.request.total) for name, column in named]
        shown = {self.names.count: self.counts, **self.added}
        digits = column_digits(self.plan, self.request, self.counts, shown)
        numbers = [[f"{n:z,.{digits[name]}f}" for n in column[where]] for name, column in shown.items()]
        return [(*self.names.items, *shown), *zip(*texts, *numbers, strict=True)]

    def table_text(self) -> str:
        """The first rows as a text table, and how many more there are."""
        if not len(self):
            hint = "(In frames, numbers of 2^53 and more count as missing; types='fixed' counts them.)"
            return hint if self.request.types == "text" else ""
        head, *rows = self._first_rows()
        return "\n".join([text_grid(head, rows, left=len(self.names.items)), *self._below_table()])

    def _below_table(self) -> list[str]:
        """How many more rows there are, and what the intervals do not cover."""
        more = [f"... and {len(self) - ROWS_SHOWN:,} more"] if len(self) > ROWS_SHOWN else []
        has_intervals = self.request.interval is not None and self.summary.limit_leaves_out
        return [*more, *([INTERVALS_OF_NOISE] if has_intervals else [])]

    def __repr__(self) -> str:
        return "\n".join(self.summary.lines(self.table_text()))

    def _repr_html_(self) -> str:
        head, *rows = self._first_rows()
        summary = self.summary
        notes = (*self._below_table(), summary.why_few, *summary.warnings)
        return (
            html_table(summary.headline, summary.rows(), warning="" if self.private else NOT_PRIVATE)
            + (html_grid("", head, rows) if rows else "")
            + "".join(f"<p>{escape(note)}</p>" for note in notes if note)
        )
