"""The result of a release: its rows, in any kind of frame, and its certificate. It holds no true count.

A column is an Arrow array, or a numpy array if Arrow has no type for it. Results are built from released values
alone: a dictionary of categories, the width of a text array, an index, or a buffer shared with the input would
disclose rows that were not released.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dphist.certificate.request import MARGIN
from dphist.certificate.schema import Findings, Statement
from dphist.certificate.sentences import NO_GUARANTEE, guarantee, not_covered
from dphist.certificate.statement import now, statement_of
from dphist.display import html_grid, html_table, printable, shorten, text_grid
from dphist.errors import InvalidParameter, package
from dphist.privacy.types import Budget, Certificate, Plan
from dphist.releasing.request import origins
from dphist.releasing.summary import (
    INTERVALS_OF_NOISE,
    NOT_PRIVATE,
    Summary,
    column_digits,
    summarize,
)

if TYPE_CHECKING:
    from dphist.outputs.target import Target, Written


ROWS_SHOWN: Final = 10

Positions = NDArray[np.int64]
Package = Literal["list", "numpy", "pandas", "polars", "pyarrow"]
Shape = Literal["columns", "frame", "lazy", "reader", "relation"]

_SERIES: Final = {"Series", "Index", "Array", "ChunkedArray"}
SHAPES: Final[dict[str, dict[str, Shape]]] = {
    "pandas": {"DataFrame": "frame"},
    "polars": {"DataFrame": "frame", "LazyFrame": "lazy"},
    "pyarrow": {"Table": "frame", "RecordBatch": "frame", "RecordBatchReader": "reader"},
}
# Kinds of numpy arrays with a total order: whole numbers, truth values, text and times.
_SORTABLE: Final = "iubUSmM"
# Types of Python objects with a total order, but for NaN.
_ORDERED: Final = {bool, int, float, str, bytes}


@dataclass(frozen=True)
class Form:
    """The kind of frame or columns that the caller passed, and gets back. `types` are those of pandas columns.

    A type may hold values, such as categories; the form keeps none that does.
    """

    package: Package = "numpy"
    shape: Shape = "columns"
    types: tuple[Any, ...] = field(default=(), compare=False)


ARROW: Final = Form("pyarrow", "frame")


@dataclass(frozen=True)
class Names:
    """The names of the item's columns and of the count."""

    items: tuple[str, ...]
    count: str


def frame_form(value: object) -> Form | None:
    """The form of a frame; None for anything else."""
    for name in origins(value) & SHAPES.keys():
        for base in type(value).__mro__:
            if base.__name__ in SHAPES[name]:
                return Form(name, SHAPES[name][base.__name__])  # type: ignore[arg-type]
    if type(value).__name__ == "DuckDBPyRelation":
        return Form("pyarrow", "relation")
    return ARROW if hasattr(value, "__arrow_c_stream__") and not is_series(value) else None


def is_series(value: object) -> bool:
    """Whether a value is a single column of pandas, polars or Arrow."""
    return bool(_SERIES & {base.__name__ for base in type(value).__mro__})


# Columns of items.


def objects(values: Sequence[Any]) -> NDArray[Any]:
    """A one-dimensional array of these objects, even if they are sequences themselves."""
    return np.fromiter(values, dtype=object, count=len(values))


def take_rows(column: Any, where: Positions) -> Any:
    """These rows as a new array that shares nothing with the column; texts are no wider than the longest."""
    if isinstance(column, np.ndarray):
        taken: Any = np.asarray(column)[where]
        return np.array(taken.tolist(), dtype=taken.dtype.kind) if taken.dtype.kind in "US" else taken
    pa = package("pyarrow")
    taken = one_chunk(column.take(arrow_numbers(where)))
    if pa.types.is_dictionary(taken.type):
        taken = taken.dictionary_decode()
    if "dictionary" in str(taken.type):
        raise InvalidParameter(
            "items must not have dictionaries or categories inside lists or structs: decode them"
        )
    # A view would share the buffers of the whole column; a copy made through Python objects does not.
    return pa.array(taken.to_pylist(), taken.type) if "view" in str(taken.type) else taken


def join_rows(columns: Sequence[Any]) -> Any:
    """One array from several, in a type that holds them all."""
    plain = [isinstance(column, np.ndarray) for column in columns]
    if all(plain):
        return np.concatenate(columns)
    if any(plain):
        return objects([value for column in columns for value in _keys(column).tolist()])
    pa = package("pyarrow")
    try:
        tables = [pa.table({"item": column}) for column in columns]
        return one_chunk(pa.concat_tables(tables, promote_options="permissive").column("item"))
    except pa.ArrowException:
        raise InvalidParameter("the items of all batches must be of one type") from None


def has_repeats(columns: Sequence[Any]) -> bool:
    """Whether two rows are equal in all columns. Arrow compares them if it can."""
    if any(isinstance(column, np.ndarray) for column in columns):
        return _keys_repeat([_keys(column) for column in columns])
    pa = package("pyarrow")
    types = [column.type for column in columns]
    if any(pa.types.is_nested(kind) or "view" in str(kind) for kind in types):
        return _keys_repeat([_keys(column) for column in columns])
    if len(columns) == 1 and not pa.types.is_dictionary(types[0]):
        # Much faster than grouping.
        distinct = package("pyarrow.compute").count_distinct(columns[0], mode="all").as_py()
        return bool(distinct < len(columns[0]))
    names = [str(place) for place in range(len(columns))]
    table = pa.table(dict(zip(names, columns, strict=True))).unify_dictionaries()
    return bool(table.group_by(names).aggregate([]).num_rows < table.num_rows)


def release_order(counts: NDArray[np.float64], columns: Sequence[Any]) -> Positions:
    """Positions by descending count, then by the item's columns: the order reveals nothing but the rows.

    Arrow sorts them if it can, because sorting millions of Python strings is slow.
    """
    if any(isinstance(column, np.ndarray) or not _is_sortable(column.type) for column in columns):
        ranks = [_ranks(_keys(column)) for column in columns]
        return np.lexsort((*reversed(ranks), -counts)).astype(np.int64)
    names = [str(place) for place in range(len(columns))]
    table = package("pyarrow").table({"count": arrow_numbers(counts), **dict(zip(names, columns, strict=True))})
    keys = [("count", "descending"), *((name, "ascending") for name in names)]
    return as_numpy(package("pyarrow.compute").sort_indices(table, sort_keys=keys)).astype(np.int64)


def _is_sortable(kind: Any) -> bool:
    """Types with a total order in Arrow. Floats are not: Arrow does not order NaN and null."""
    types = package("pyarrow").types
    checks = (
        types.is_integer, types.is_string, types.is_large_string, types.is_date, types.is_timestamp,
        types.is_decimal, types.is_binary, types.is_large_binary,
    )  # fmt: skip
    return any(check(kind) for check in checks)


def _keys(column: Any) -> NDArray[Any]:
    if isinstance(column, np.ndarray):
        return np.asarray(column)
    if package("pyarrow").types.is_integer(column.type) and column.null_count == 0:
        return as_numpy(one_chunk(column))
    return objects(column.to_pylist())


def _ranks(key: NDArray[Any]) -> NDArray[Any]:
    """An array that numpy sorts the way the key should be sorted."""
    if key.dtype.kind in _SORTABLE or (key.dtype.kind == "f" and not np.isnan(key).any()):
        return key
    values = key.tolist()
    kinds = {type(v) for v in values}
    if len(kinds) == 1 and kinds <= _ORDERED and not any(v != v for v in values):
        return _places(values)
    try:
        return _places([_sort_key(v) for v in values])
    except (TypeError, ValueError, ArithmeticError):
        # Values that cannot be compared or hashed are sorted by their text.
        return _places([(type(v).__name__, repr(v)) for v in values])


def _sort_key(value: Any) -> tuple[Any, ...]:
    """A key with a total order: if items tied, or had a partial order, the rows before the sort would decide."""
    kind = type(value).__name__
    if isinstance(value, tuple):
        return kind, tuple(map(_sort_key, value))
    if isinstance(value, (set, frozenset)):
        return kind, tuple(sorted(map(_sort_key, value)))
    # NaN is before all numbers, and not the same as None.
    return (kind, value) if value == value else (kind,)


def _places(values: list[Any]) -> NDArray[np.int64]:
    """The position of each value among the sorted distinct values."""
    place = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return np.array([place[value] for value in values], dtype=np.int64)


def _keys_repeat(keys: Sequence[NDArray[Any]]) -> bool:
    if len(keys) == 1 and keys[0].dtype.kind in _SORTABLE:
        ordered = np.sort(keys[0])
        return bool((ordered[1:] == ordered[:-1]).any())
    rows = zip(*(key.tolist() for key in keys), strict=True) if len(keys) > 1 else iter(keys[0].tolist())
    return len({_hashable(row) for row in rows}) < keys[0].size


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float) and value != value:
        return "nan", None  # NaN is one item, although it is not equal to itself
    try:
        hash(value)
    except TypeError:
        return type(value).__name__, repr(value)
    return value  # type: ignore[no-any-return]


def as_numpy(array: Any) -> NDArray[Any]:
    """Numbers without nulls as a numpy array. Arrow's `to_numpy` would import pandas if it is installed."""
    if len(array) == 0:
        return np.empty(0, dtype=np.dtype(array.type.to_pandas_dtype()))
    return np.from_dlpack(array)


def arrow_numbers(values: NDArray[Any]) -> Any:
    """Numbers as an Arrow array, likewise without importing pandas."""
    pa = package("pyarrow")
    if values.dtype.kind not in "iuf" or values.dtype.itemsize < 4 or not values.dtype.isnative:
        return pa.array(values)
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, pa.py_buffer(values)])


def one_chunk(column: Any) -> Any:
    pa = package("pyarrow")
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    return combined if not isinstance(combined, pa.ChunkedArray) else pa.concat_arrays(combined.chunks)


def native_column(column: Any, name: str, kind: Package, dtype: Any = None) -> Any:
    """An array as a column of this package; `dtype` is the pandas type of the caller's column."""
    from_numpy = isinstance(column, np.ndarray)
    values = column.tolist() if from_numpy and column.dtype.kind == "O" else column
    if kind == "list":
        return column.tolist() if from_numpy else column.to_pylist()
    if kind == "numpy":
        return column if from_numpy else _keys(column)
    if kind == "polars":
        return package("polars").Series(name, values)
    if kind == "pyarrow":
        if not from_numpy:
            return column
        return package("pyarrow").array(values) if values is not column else arrow_numbers(column)
    pd = package("pandas")
    if from_numpy:
        return pd.Series(values, dtype=dtype, name=name)
    if hasattr(dtype, "__from_arrow__"):
        return pd.Series(dtype.__from_arrow__(column), name=name)
    return column.to_pandas(integer_object_nulls=True).rename(name)


def native_frame(columns: dict[str, Any], kind: Package, note: dict[str, str]) -> Any:
    """A frame of this package. Pandas keeps the note in its attrs, Arrow in its schema."""
    if kind == "pandas":
        frame = package("pandas").DataFrame(columns)
        frame.attrs.update(note)
        return frame
    if kind == "polars":
        return package("polars").DataFrame(columns)
    return package("pyarrow").table(columns).replace_schema_metadata(note)


# The release.


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """Released items with their noisy counts, largest first.

    Attributes:
        columns: The item's columns, as Arrow or numpy arrays. `items` has them in the kind that you passed.
        counts: Noisy counts, a numpy array.
        plan: The certified plan.
        private: False if the noise was made from a seed.
        offset: Noisy count that a top-k step subtracted. The counts include it already.
        added: Further columns by name: margins, standard errors, intervals, sums and means.
        request: What was requested, as the certificate records it.
        written: Where the release was written, if it was.
        sums: Noisy sums of the distances from the middle of each range, from which sums and means were computed.
        findings: What was found and measured, of a release in rounds.
        receipt: The booking in the ledger, if there is one.
        created: Time of the release.
        total: Number of rows, if only the first of them are held here.
        decimals: Decimals to which counts are rounded, which the noise's standard deviation determines; None if
            they are not rounded.
    """

    columns: tuple[Any, ...]
    counts: NDArray[Any]
    plan: Plan
    private: bool
    names: Names
    form: Form = field(default_factory=Form)
    offset: float | None = None
    added: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    input_form: Form | None = None
    written: Any = None
    sums: tuple[NDArray[np.float64], ...] = ()
    findings: Findings | None = None
    receipt: Mapping[str, Any] | None = None
    created: str = field(default_factory=now)
    total: int | None = None
    decimals: int | None = None

    # Spark writes s3:// addresses as folders. A class attribute without a type is not a dataclass field.
    _writes_objects = True

    def __len__(self) -> int:
        return int(self.counts.size) if self.total is None else self.total

    @property
    def budget(self) -> Budget:
        """What the release spends in total."""
        return self.plan.budget

    @property
    def certificate(self) -> Certificate:
        """The certificate of the plan."""
        return self.plan.certificate

    @property
    def items(self) -> Any:
        """The released items as a column of the kind that you passed, or as a tuple of several columns."""
        columns = tuple(self._native_items(self.form.package).values())
        return columns[0] if len(columns) == 1 else columns

    def to_native(self) -> Any:
        """The release in the kind that you passed: a frame, or columns of items and counts."""
        form = self.form if self.input_form is None else self.input_form
        if form.shape == "columns":
            return self.items, native_column(self.counts, self.names.count, form.package)
        if form.shape == "relation":
            return self.to_duckdb()
        frame = self._frame(form.package)
        if form.shape == "lazy":
            return frame.lazy()
        return frame.to_reader() if form.shape == "reader" else frame

    def to_pandas(self) -> Any:
        """A pandas DataFrame. Its `attrs` hold whether it is private."""
        return self._frame("pandas")

    def to_polars(self) -> Any:
        """A polars DataFrame. Unlike pandas and Arrow, it cannot hold whether it is private."""
        return self._frame("polars")

    def to_arrow(self) -> Any:
        """An Arrow table. The metadata of its schema holds whether it is private."""
        return self._frame("pyarrow")

    def to_duckdb(self, connection: Any = None) -> Any:
        """A DuckDB relation in this connection, or in DuckDB's default connection."""
        duckdb = package("duckdb")
        return (duckdb if connection is None else connection).from_arrow(self.to_arrow())

    def to_spark(self, session: Any = None) -> Any:
        """A Spark DataFrame in this session, or in the active one."""
        from dphist.counting.spark_session import frame_in

        return frame_in(session, self.to_arrow())

    def _native_items(self, package: Package) -> dict[str, Any]:
        types = self.form.types or (None,) * len(self.columns)
        columns = zip(self.names.items, self.columns, types, strict=True)
        return {name: native_column(column, name, package, dtype) for name, column, dtype in columns}

    def _frame(self, package: Package) -> Any:
        columns = self._native_items(package)
        for name, numbers in ((self.names.count, self.counts), *self.added.items()):
            columns[name] = native_column(numbers, name, package)
        return native_frame(columns, package, self._note())

    @property
    def guarantee(self) -> str:
        """The privacy guarantee as a sentence."""
        return guarantee(self.plan, self.request) if self.private else NO_GUARANTEE

    @property
    def not_covered(self) -> list[str]:
        """Caveats for readers of the release, as sentences."""
        return not_covered(self.plan, self.request)

    def document(self) -> dict[str, Any]:
        """The certificate as a dictionary: guarantee, plan and request."""
        return self.statement.to_dict()

    @cached_property
    def statement(self) -> Statement:
        """The certificate, without the facts about its output."""
        from dphist import __version__

        return statement_of(
            self.plan, self.request, private=self.private, offset=self.offset, version=__version__,
            created=self.created, findings=self.findings, receipt=self.receipt,
            decimals=self.decimals,
        )  # fmt: skip

    def write(
        self,
        output: str | os.PathLike[str],
        *,
        table: str | None = None,
        certificate: str | os.PathLike[str] | None = None,
        force: bool = False,
        sign: str | os.PathLike[str] | None = None,
        escape_formulas: bool = False,
    ) -> Self:
        """Write the release and then its certificate.

        Args:
            output: A file whose extension sets the format (.parquet, .csv, .tsv, .jsonl, .arrow) or a database.
                A Spark release can also be written to a folder (`NAME/` or `hdfs://...`).
            table: Table of the output database.
            certificate: With a PostgreSQL address: file for the certificate.
            force: Replace an existing release.
            sign: Private key file that signs both.
            escape_formulas: CSV and TSV: put ' before text that a spreadsheet would run as a formula.
        """
        from dphist.outputs.target import target_of
        from dphist.outputs.write import check_formulas
        from dphist.signatures import signer_of

        target = target_of(output, table, certificate=certificate, objects=self._writes_objects)
        target = target if sign is None else replace(target, sign=signer_of(sign))
        check_formulas(target, escape_formulas)
        return self.with_written(self._write_to(target, force=force, escape_formulas=escape_formulas))

    def _write_to(self, target: Target, *, force: bool, escape_formulas: bool) -> Written:
        from dphist.outputs.write import write_release

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
            "delta_certified": self.certificate.delta,
        }
        note = {"dphist": json.dumps(facts)}
        return note if self.private else {**note, "dphist_warning": NOT_PRIVATE}

    @cached_property
    def summary(self) -> Summary:
        """How many items were released, how exact and how private they are, as facts and in words."""
        # A count of a sketch may exceed the number of users by up to the offset.
        spare = (self.offset or 0.0) if "sketch" in self.request else 0.0
        return summarize(
            self.plan, self.request, items=len(self),
            largest=float(self.counts.max()) - spare if self.counts.size else None,
            private=self.private, findings=self.findings, margins=self.added.get(MARGIN),
        )  # fmt: skip

    def _texts(self, column: Any, where: NDArray[np.int64]) -> list[str]:
        """The beginnings of values as printable text, without control characters."""
        try:
            values = [str(value) for value in native_column(take_rows(column, where), "", "list")]
        except (OverflowError, ValueError):  # a time outside the range of Python's
            values = ["?"] * where.size
        return [shorten(printable(value)) for value in values]

    def _first_rows(self) -> list[tuple[str, ...]]:
        """The header and the first rows as text, with only as many digits as the noise leaves meaningful."""
        where = np.arange(min(self.counts.size, ROWS_SHOWN), dtype=np.int64)
        texts = [self._texts(column, where) for column in self.columns]
        shown = {self.names.count: self.counts, **self.added}
        digits = column_digits(self.plan, self.request, self.counts, shown)
        numbers = [[f"{n:z,.{digits[name]}f}" for n in column[where]] for name, column in shown.items()]
        return [(*self.names.items, *shown), *zip(*texts, *numbers, strict=True)]

    def table_text(self) -> str:
        """The first rows as a text table, and how many more there are."""
        if not len(self):
            hint = "(In frames, numbers of 2^53 and more count as missing; types='fixed' counts them.)"
            return hint if self.request.get("types") == "text" else ""
        head, *rows = self._first_rows()
        more = f"\n... and {len(self) - ROWS_SHOWN:,} more" if len(self) > ROWS_SHOWN else ""
        about = f"\n{self._about_intervals}" if self._about_intervals else ""
        return text_grid(head, rows, left=len(self.names.items)) + more + about

    @property
    def _about_intervals(self) -> str:
        """What the intervals do not cover."""
        if self.request.get("interval") is None or not self.summary.limit_leaves_out:
            return ""
        return INTERVALS_OF_NOISE

    def __repr__(self) -> str:
        return "\n".join(self.summary.lines(self.table_text()))

    def _repr_html_(self) -> str:
        head, *rows = self._first_rows()
        summary = self.summary
        more = f"... and {len(self) - ROWS_SHOWN:,} more" if len(self) > ROWS_SHOWN else ""
        notes = (more, self._about_intervals, summary.why_few, *summary.warnings)
        return (
            html_table(summary.headline, summary.rows(), warning="" if self.private else NOT_PRIVATE)
            + (html_grid("", head, rows) if rows else "")
            + "".join(f"<p>{escape(note)}</p>" for note in notes if note)
        )
