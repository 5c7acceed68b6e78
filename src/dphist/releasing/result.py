"""The result of a release: items, noisy counts and the certificate. No true count is in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dphist.display import html_grid, html_table, printable, text_grid
from dphist.errors import InvalidParameter, package
from dphist.planning.utility import ESTIMATES
from dphist.privacy.types import Budget, Certificate, Plan
from dphist.releasing.certificate import NO_GUARANTEE, document_of, guarantee, not_covered, now
from dphist.releasing.frames import Form, Names, Package, native_column, native_frame, take_rows
from dphist.releasing.soundness import Chosen
from dphist.releasing.summary import (
    INTERVALS_OF_ESTIMATES,
    INTERVALS_OF_NOISE,
    NOT_PRIVATE,
    Summary,
    column_digits,
    summarize,
)

if TYPE_CHECKING:
    from dphist.outputs.write import Target, Written


_ROWS_SHOWN: Final = 10


@dataclass(frozen=True)
class Facts:
    """What a certificate says beside the plan: what was asked for, how the cap was chosen, where it was booked."""

    request: Mapping[str, Any] = field(default_factory=dict)
    chosen: Chosen | None = None
    receipt: Mapping[str, Any] | None = None

    def add_to(self, release: Release) -> Release:
        """The release with them. The request is plain data: a release must not keep the events alive."""
        certificate = release.certificate if self.chosen is None else self.chosen.plan.certificate
        return replace(
            release, request=self.request, chosen=self.chosen, receipt=self.receipt, certificate=certificate
        )


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """Released items with their noisy counts, the largest first.

    `columns` are the item's columns in the kind they came in, `counts` an array of numpy. `private` is False where
    a seed made the noise. `certificate` was computed from the plan's numbers when the release was made. `offset`
    is the noisy count that a top-k step had subtracted; it is in the counts already. `added` are the columns that
    were asked for beside the counts; `written` says where the release was written to. `sums` are those around the
    middles of the plan's ranges, noisy, from which the added columns of sums and means were made. `chosen` says
    how the bound on the items of a user was chosen, `receipt` where the release is booked, `created` when it was
    made.
    """

    columns: tuple[Any, ...]
    counts: NDArray[Any]
    certificate: Certificate
    plan: Plan
    private: bool
    names: Names
    form: Form = field(default_factory=Form)
    offset: float | None = None
    added: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    came: Form | None = None
    written: Any = None
    sums: tuple[NDArray[np.float64], ...] = ()
    chosen: Chosen | None = None
    receipt: Mapping[str, Any] | None = None
    created: str = field(default_factory=now)

    # Spark writes folders where others write objects. Without a type it is not a field.
    _writes_objects = True

    def __len__(self) -> int:
        return int(self.counts.size)

    @property
    def budget(self) -> Budget:
        """What the release spends in all: the budget of its plan, and that of the choice of a cap."""
        return self.plan.budget if self.chosen is None else self.chosen.plan.budget

    @property
    def items(self) -> Any:
        """The released items: a column of the kind they came in, or a tuple of columns if there are several."""
        columns = tuple(self._native_items(self.form.package).values())
        return columns[0] if len(columns) == 1 else columns

    def to_native(self) -> Any:
        """The release as the data came: the same kind of frame, or items and counts as such columns."""
        form = self.form if self.came is None else self.came
        if form.shape == "columns":
            return self.items, native_column(self.counts, self.names.count, form.package)
        if form.shape == "relation":
            return self.to_duckdb()
        frame = self._frame(form.package)
        if form.shape == "lazy":
            return frame.lazy()
        return frame.to_reader() if form.shape == "reader" else frame

    def to_pandas(self) -> Any:
        """A pandas DataFrame; its `attrs` say whether it is private."""
        return self._frame("pandas")

    def to_polars(self) -> Any:
        """A polars DataFrame, which has no place to say whether it is private."""
        return self._frame("polars")

    def to_arrow(self) -> Any:
        """An Arrow table; the metadata of its schema say whether it is private."""
        return self._frame("pyarrow")

    def to_duckdb(self, connection: Any = None) -> Any:
        """A DuckDB relation, in this connection or DuckDB's own default one."""
        duckdb = package("duckdb")
        return (duckdb if connection is None else connection).from_arrow(self.to_arrow())

    def to_spark(self, session: Any = None) -> Any:
        """A Spark DataFrame, in this session or the active one."""
        from dphist.counting.spark_session import frame_in

        return frame_in(session, self.to_arrow())

    def _native_items(self, package: Package) -> dict[str, Any]:
        types = self.form.types or (None,) * len(self.columns)
        each = zip(self.names.items, self.columns, types, strict=True)
        return {name: native_column(column, name, package, dtype) for name, column, dtype in each}

    def _frame(self, package: Package) -> Any:
        columns = self._native_items(package)
        for name, numbers in ((self.names.count, self.counts), *self.added.items()):
            columns[name] = native_column(numbers, name, package)
        return native_frame(columns, package, self._note())

    @property
    def guarantee(self) -> str:
        """The privacy guarantee as a sentence."""
        return guarantee(self.plan, self.request, self.budget) if self.private else NO_GUARANTEE

    @property
    def not_covered(self) -> list[str]:
        """What a reader might assume and should not, as sentences."""
        return not_covered(self.plan, self.request)

    def document(self) -> dict[str, Any]:
        """The certificate of this release as plain data: its guarantee, its plan and what was asked for."""
        return deepcopy(self._document)

    @cached_property
    def _document(self) -> dict[str, Any]:
        from dphist import __version__

        return document_of(
            self.plan, self.request, private=self.private, offset=self.offset, version=__version__,
            created=self.created, chosen=self.chosen, receipt=self.receipt,
        )  # fmt: skip

    def write(
        self,
        output: str | os.PathLike[str],
        *,
        table: str | None = None,
        force: bool = False,
        sign: str | os.PathLike[str] | None = None,
        escape_formulas: bool = False,
    ) -> Self:
        """Write the release and its certificate, both or neither.

        The ending of the name says the format: .parquet, .csv, .tsv, .jsonl, .arrow; or a database and a table.
        Spark also writes folders, named with a slash at the end or by an address such as hdfs://...
        `sign` is the file of a private key that signs both.
        With `escape_formulas` a spreadsheet takes no text in a CSV file for a formula.
        """
        from dphist.outputs.write import check_formulas, target_of
        from dphist.signatures import signer_of

        target = target_of(output, table, objects=self._writes_objects)
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
        """The same release, with the place that it was written to."""
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
        """How many items, how exact, what is hidden, how private; as facts and in words."""
        # A count of a sketch may exceed the number of users, by no more than the offset.
        spare = (self.offset or 0.0) if "sketch" in self.request else 0.0
        return summarize(
            self.plan, self.request, self.budget, items=len(self),
            largest=float(self.counts.max()) - spare if self.counts.size else None,
            correction=None if self.chosen is None else self.chosen.correction,
            rough=self.chosen is not None and self.chosen.rough, private=self.private,
        )  # fmt: skip

    def _texts(self, column: Any, where: NDArray[np.int64]) -> list[str]:
        """Values as a terminal may show them: nothing in them can move the cursor or fail."""
        try:
            values = [str(value) for value in native_column(take_rows(column, where), "", "list")]
        except (OverflowError, ValueError):  # a time that Python cannot hold
            values = ["?"] * where.size
        return [printable(value) for value in values]

    def _first_rows(self) -> list[tuple[str, ...]]:
        """The first rows as texts, under the names of the columns; no more digits than the noise leaves."""
        where = np.arange(min(len(self), _ROWS_SHOWN), dtype=np.int64)
        texts = [self._texts(column, where) for column in self.columns]
        shown = {self.names.count: self.counts, **self.added}
        digits = column_digits(self.plan, self.request, self.counts, shown)
        # Estimates first, where there are any: they answer the question.
        first = [name for name in self.added if name in ESTIMATES and self.chosen is not None]
        order = [*first, *(name for name in shown if name not in first)]
        numbers = [[f"{n:,.{digits[name]}f}" for n in shown[name][where]] for name in order]
        return [(*self.names.items, *order), *zip(*texts, *numbers, strict=True)]

    def table_text(self) -> str:
        """The first rows, and how many more there are."""
        if not len(self):
            hint = "(In frames, numbers of 2^53 and more count as missing; types='fixed' counts them.)"
            return hint if self.request.get("types") == "text" else ""
        head, *rows = self._first_rows()
        more = f"\n... and {len(self) - _ROWS_SHOWN:,} more" if len(self) > _ROWS_SHOWN else ""
        about = f"\n{self._about_intervals}" if self._about_intervals else ""
        return text_grid(head, rows, left=len(self.names.items)) + more + about

    @property
    def _about_intervals(self) -> str:
        """What intervals leave out, to be said beside them."""
        if self.request.get("interval") is None or not self.summary.limit_leaves_out:
            return ""
        return INTERVALS_OF_ESTIMATES if self.chosen is not None else INTERVALS_OF_NOISE

    def __repr__(self) -> str:
        return "\n".join(self.summary.lines(self.table_text()))

    def _repr_html_(self) -> str:
        head, *rows = self._first_rows()
        found, more = self.summary, ""
        if len(self) > _ROWS_SHOWN:
            more = f"<p>... and {len(self) - _ROWS_SHOWN:,} more</p>"
        notes = [text for text in (self._about_intervals, found.why_few, *found.warnings) if text]
        return (
            html_table(found.headline, found.rows(), warning="" if self.private else NOT_PRIVATE)
            + (html_grid("", head, rows) if rows else "")
            + more
            + "".join(f"<p>{escape(note)}</p>" for note in notes)
        )
