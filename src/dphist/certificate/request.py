"""What was requested, as a certificate records it: of events, of a sketch, or of a histogram counted elsewhere.

`Asked` holds what an options object and a recorded request have in common: their columns, and which options
exclude each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, Struct

from dphist.aliases import JsonObject
from dphist.certificate.aggregates import Aggregate, Summed, aggregates_of, distinct_sums
from dphist.errors import LARGEST_COUNT, InvalidParameter, check_unicode, flag
from dphist.model import OffsetRule, Plan

if TYPE_CHECKING:
    import pyarrow as pa

# The column beside each count of a release in rounds: half the width of its interval, 95 % unless asked otherwise.
MARGIN: Final = "margin"
# The column after those of the item that marks totals, in a release that has some.
TOTAL: Final = "total"
# How an input that can be read only once is recorded: nearly always it is the result of a query.
STREAM_INPUT: Final = "Arrow stream"
_QUERY_INPUT: Final = re.compile(rf"(^|\()(polars\.LazyFrame|_?duckdb\.DuckDBPyRelation|{STREAM_INPUT})\)?$")

Text = Annotated[str, Meta(min_length=1)]
Texts = tuple[Text, ...]
Source = Text | Texts
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1, le=LARGEST_COUNT)]
# RFC 8785 has no larger whole numbers; they are recorded as text.
LARGEST_WHOLE: Final = (1 << 53) - 1
Seed = (
    Annotated[int, Meta(ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)] | Annotated[str, Meta(pattern=r"^-?[0-9]+$(?!\n)")]
)


@dataclass(frozen=True)
class Column:
    """An input column or expression (`source`) and its name in the output."""

    name: str
    source: str

    @classmethod
    def parse(cls, text: str) -> Column:
        """Parse `COLUMN`, or `NAME=COLUMN` to rename it."""
        name, equals, source = text.partition("=")
        return cls(name, source) if equals and name and source else cls(text, text)


class Asked:
    """The options of a release of events that decide on its columns and its contract."""

    if TYPE_CHECKING:
        user: str
        item: str | Sequence[str]
        total: str | Sequence[str]
        null_items: bool
        max_items_per_user: int | None
        goal: str | None
        known: object
        top: int | None
        offset: str | None
        max_nonzero: int | None
        items: object
        lower_threshold: int
        mechanism: str
        gamma: float | Literal["sqrt"] | None
        minimize: str
        sum: str | Sequence[str]
        mean: str | Sequence[str]
        vector: str | Sequence[str]
        weight: float | Sequence[float]
        count_name: str
        standard_error: bool
        interval: float | None

    @property
    def in_rounds(self) -> bool:
        """Whether items are found in rounds and then measured, without a limit on the items of a user."""
        return self.max_items_per_user is None and self.top is None and self.max_nonzero is None

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The item's columns."""
        return tuple(Column.parse(text) for text in self.item)

    @property
    def totals(self) -> tuple[str, ...]:
        """The names of the item columns whose values are taken together in further rows, in the item's order."""
        return tuple(column.name for column in self.columns if column.name in self.total)

    @property
    def item_columns(self) -> tuple[str, ...]:
        """The item's columns in the output, with the mark of totals."""
        return (*(column.name for column in self.columns), *([TOTAL] if self.total else []))

    @cached_property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """The sums, means and columns of vectors, in this order."""
        return aggregates_of({"sum": self.sum, "mean": self.mean, "vector": self.vector})

    @cached_property
    def sums(self) -> tuple[Summed, ...]:
        """The distinct (columns, low, high) that sums, means and vectors need."""
        return distinct_sums(self.aggregates)

    @property
    def bounds(self) -> tuple[tuple[Fraction, Fraction, int], ...]:
        """The bounds of the sums, as in a plan."""
        return tuple((low, high, len(columns)) for columns, low, high in self.sums)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each sum, in order; empty if they are chosen automatically."""
        assert isinstance(self.weight, tuple)
        return self.weight

    def number_columns(self) -> list[str]:
        """The columns of numbers in the output: counts and aggregates, with their errors and intervals."""
        error = ["_standard_error"] if self.standard_error else []
        endings = ["", *error, *(["_low", "_high"] if self.interval is not None else [])]
        margin = [MARGIN] if self.in_rounds else []
        counts = [self.count_name, *margin, *(self.count_name + end for end in endings[1:])]
        return [*counts, *(aggregate.name + end for aggregate in self.aggregates for end in endings)]

    def output_columns(self) -> list[str]:
        return [*self.item_columns, *self.number_columns()]

    def check_contract(self) -> None:
        """Raise `InvalidParameter` for bounds that exclude each other."""
        bounds = [name for name in ("top", "max_nonzero", "items") if getattr(self, name) is not None]
        if len(bounds) > 1:
            raise InvalidParameter(f"give one of {' and '.join(f'<{flag(name)}>' for name in bounds)}, not both")
        self._check_rounds()
        if self.items is not None and self.lower_threshold != 1:
            raise InvalidParameter(
                "<--lower-threshold> cannot be used with <--items>: all items of a list are released"
            )
        if self.offset is not None and self.top is None:
            raise InvalidParameter("<--offset> needs <--top>")
        if self.gamma is not None and self.max_nonzero is None:
            tuned = "; with <--items> and <--top> it is chosen by the plan" if self.items or self.top else ""
            raise InvalidParameter(f"<--gamma> needs <--max-nonzero>{tuned}")
        if isinstance(self.gamma, float) and not self.gamma.is_integer():
            raise InvalidParameter(f"<--gamma> must be a whole number of at least 1, not {self.gamma:g}")

    def _check_rounds(self) -> None:
        """What a release in rounds cannot be combined with; `known` and `goal` are for it alone."""
        for name in ("known", "goal"):
            if getattr(self, name) is not None and (self.items is not None or not self.in_rounds):
                given = next(
                    one for one in ("items", "max_items_per_user", "top", "max_nonzero") if getattr(self, one)
                )
                raise InvalidParameter(f"<{flag(name)}> cannot be used with <{flag(given)}>")
        if self.in_rounds:
            fixed = {"lower_threshold": 1, "minimize": "threshold"}
            wrong = [name for name, default in fixed.items() if getattr(self, name) != default]
            wrong += ["mechanism"] if self.mechanism == "laplace" else []
            if wrong:
                value = f" {getattr(self, wrong[0])}" if wrong[0] != "lower_threshold" else ""
                raise InvalidParameter(f"<{flag(wrong[0])}{value}> needs a limit: give <--max-items-per-user> too")

    def check_columns(self) -> None:
        """Raise `InvalidParameter` for columns that cannot be released together."""
        if self.interval is not None:
            if not 0.0 < self.interval < 1.0 - 1e-15:  # half of the rest must differ from 1
                raise InvalidParameter(f"<--interval> must be between 0 and 1, not {self.interval!r}")
            if self.offset == "none":
                raise InvalidParameter(
                    "<--interval> cannot be used with <--offset none>: the counts are differences"
                )
        if self.user in {column.source for column in self.columns}:
            raise InvalidParameter(f"the column {self.user!r} cannot be both the user and the item")
        self._check_totals()
        used = set(self.item_columns)
        check_unicode(self.output_columns())
        for name in self.number_columns():
            if not name or name in used:
                raise InvalidParameter(
                    f"two columns would be called {name!r}: rename the item with <--item NAME=COLUMN>, the counts "
                    "with <--count-name>, sums and means with NAME=COLUMN:LOW:HIGH, vectors by their NAME"
                )
            used.add(name)
        if self.weights and len(self.weights) != len(self.sums):
            raise InvalidParameter(
                f"give one <--weight> for each sum or vector: there are {len(self.sums)} (a mean of "
                "the same values "
                f"is the same sum) and {len(self.weights)} weights"
            )
        if self.aggregates and self.mechanism == "laplace":
            raise InvalidParameter(
                "<--sum>, <--mean> and <--vector> need Gaussian noise, not <--mechanism laplace>"
            )
        if self.aggregates and self.offset == "none":
            raise InvalidParameter("<--sum>, <--mean> and <--vector> cannot be used with <--offset none>")

    def _check_totals(self) -> None:
        """What totals cannot be combined with."""
        names = [column.name for column in self.columns]
        unknown = [name for name in self.total if name not in names]
        if unknown or len(set(self.total)) < len(self.total):
            listed = ", ".join(map(repr, names))
            raise InvalidParameter(
                f"<--total> must name item columns ({listed}), each once, not {', '.join(map(repr, self.total))}"
            )
        if self.total and TOTAL in names:
            raise InvalidParameter(
                f"<--total> adds a column {TOTAL!r}: rename the item of that name with <--item NAME=COLUMN>"
            )
        if self.null_items and len(self.total) > 1:
            raise InvalidParameter(
                "<--null-items> can be used with one <--total> only: with several, missing items could not be "
                "told from totals"
            )
        if self.total and self.lower_threshold != 1:
            # One user may bring a count up to T, and with it up to T users into a total.
            raise InvalidParameter(
                "<--lower-threshold> cannot be used with <--total>: totals of data without small counts are not "
                "covered by the guarantee"
            )


class Recorded(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="kebab",
    tag_field="kind", dict=True,
):  # fmt: skip
    """A request in a certificate; `kind` names what was released. Defaults are not recorded."""

    def to_dict(self) -> JsonObject:
        """The options by flag names, as `Release.request` has them."""
        data: JsonObject = msgspec.json.decode(msgspec.json.encode(self))
        return {name: value for name, value in data.items() if name != "kind"}


class EventsRequest(Asked, Recorded, frozen=True, kw_only=True, tag="events"):
    """User events, with the options of `dphist release`. Defaults, folders and passwords are not recorded.

    Attributes:
        kind: User events.
        total: Item columns over which there are totals.
        types: Of the columns: "text" in a frame, "fixed" if they were declared before, "none" in text files.
        max_items_per_user: Limit on the items of one user; without one, items were found in rounds.
        offset: With `top`: how the subtracted count is released.
        max_nonzero: Public bound on the number of items.
        lower_threshold: Counts below it were removed before noise was added.
        sum: Sums, as COLUMN:LOW:HIGH or NAME=COLUMN:LOW:HIGH.
        mean: Means, likewise.
        vector: Vectors, as NAME=COLUMN,...:NORM.
        round: Whether counts are whole numbers.
        dataset: Dataset of the ledger that booked the release.

    Declared:
        input: Name of the input, or names; of a frame, its type.
        user: Column of the users.
        item: Columns that are counted: COLUMN, NAME=COLUMN or NAME=EXPRESSION. The name in the release is checked.
        where: Condition for events that count.
        table: Table of the input database.
        query: Query for the input.
        input_format: Format of the input, if it did not follow from its name.
        encoding: Encoding of a CSV file, if it is not UTF-8.
        delimiter: Character between columns of a CSV file, if it was given.
        decimal: Decimal sign of a CSV file, if it is not a dot.
        null_items: Whether a missing item counts as an item.
        known: Name of a list of items that were public already.
        items: Name of a public list of items, all of which are released. That there is one is checked.
        mechanism: Kind of noise that was asked for.
        goal: Whether rounds spent the budget on accurate counts or on finding items.
        minimize: What the plan minimizes.
        weight: Share of the budget for each sum and vector, if it was given.
        interval: Level of confidence intervals and of margins. With a limit on users it is checked.
        engine: Engine that counted, if it was given.
    """

    input: Source
    user: Text
    item: Annotated[Texts, Meta(min_length=1)]
    total: Texts = ()
    where: Text | None = None
    table: Text | None = None
    query: Text | None = None
    input_format: Text | None = None
    encoding: Text | None = None
    delimiter: Text | None = None
    decimal: Literal[".", ","] | None = None
    null_items: bool = False
    types: Literal["text", "fixed", "none"]
    epsilon: Positive
    delta: Positive
    max_items_per_user: Count | None = None
    goal: Literal["accuracy", "keys"] | None = None
    known: Source | None = None
    top: Count | None = None
    offset: OffsetRule | None = None
    max_nonzero: Count | None = None
    items: Source | None = None
    lower_threshold: Count = 1
    mechanism: Literal["best", "gaussian", "laplace"] = "best"
    gamma: float | Literal["sqrt"] | None = None
    minimize: Literal["threshold", "noise"] = "threshold"
    seed: Seed | None = None
    sum: Texts = ()
    mean: Texts = ()
    vector: Texts = ()
    weight: tuple[Positive, ...] = ()
    count_name: Text = "count"
    standard_error: bool = False
    interval: float | None = None
    round: bool = False
    dataset: Text | None = None
    engine: Literal["duckdb", "spark"] | None = None

    def check(self) -> None:
        """Raise `InvalidParameter` unless a release could have been asked for this."""
        self.check_contract()
        self.check_columns()
        if len({column.name for column in self.columns}) < len(self.columns):
            raise InvalidParameter("two item columns have the same name")
        if self.table is not None and self.query is not None:
            raise InvalidParameter("give a table or a query, not both")


class _Counted:
    """The options of events that the others leave at their defaults."""

    max_items_per_user: ClassVar[None] = None
    top: ClassVar[None] = None
    max_nonzero: ClassVar[None] = None
    lower_threshold: ClassVar[int] = 1
    items: ClassVar[None] = None
    known: ClassVar[None] = None
    goal: ClassVar[None] = None
    input: ClassVar[None] = None
    query: ClassVar[None] = None
    types: ClassVar[None] = None
    null_items: ClassVar[bool] = False
    total: ClassVar[tuple[str, ...]] = ()
    interval: ClassVar[None] = None
    aggregates: ClassVar[tuple[Aggregate, ...]] = ()


class SketchRequest(_Counted, Recorded, frozen=True, kw_only=True, tag="sketch"):
    """A sketch of a stream.

    Attributes:
        kind: A sketch.
        sketch: The kind of sketch.
        sketch_size: Largest number of counters.
    """

    sketch: Literal["misra-gries"]
    sketch_size: Count
    epsilon: Positive
    delta: Positive
    seed: Seed | None = None
    offset: OffsetRule | None = None
    count_name: Text = "count"
    round: bool = False
    dataset: Text | None = None


class HistogramRequest(_Counted, Recorded, frozen=True, kw_only=True, tag="histogram"):
    """Counts from elsewhere: nothing about them is recorded.

    Attributes:
        kind: A histogram.
        guarantee_max_nonzero: Whether the publisher guarantees the bound on non-zero counts.
    """

    seed: ClassVar[None] = None
    offset: ClassVar[None] = None
    dataset: ClassVar[None] = None
    round: ClassVar[bool] = False
    guarantee_max_nonzero: bool = False


AnyRequest = EventsRequest | SketchRequest | HistogramRequest


def request_of(options: Mapping[str, object]) -> AnyRequest:
    """The recorded request with these options by flag names; a `ValueError` if there is none."""
    kind = "sketch" if "sketch" in options else "events" if "user" in options else "histogram"
    request: AnyRequest = msgspec.convert({"kind": kind, **options}, AnyRequest)
    return request


def is_query(recorded: object) -> bool:
    """Whether a recorded input is a stream, lazy frame or relation: the result of a query over many users."""
    return isinstance(recorded, str) and _QUERY_INPUT.search(recorded) is not None


def recordable_seed(seed: int | None) -> int | str | None:
    """The seed as it is recorded: as text if RFC 8785 has no number for it."""
    return seed if seed is None or abs(seed) <= LARGEST_WHOLE else str(seed)


def request_for_plan(options: Mapping[str, object]) -> EventsRequest:
    """A request of any events with these options by flag names, to say what a plan would give."""
    columns = {"input": "-", "user": "user", "item": ["item"], "types": "none"}
    return msgspec.convert({"kind": "events", **columns, **options}, EventsRequest)


def count_column(request: AnyRequest, table: pa.Table) -> str:
    """Name of the count column; of a histogram it is the last one."""
    return str(table.column_names[-1] if isinstance(request, HistogramRequest) else request.count_name)


def sketch_request(plan: Plan, size: int, **options: Any) -> SketchRequest:
    """The request of a sketch, as the certificate records it; further options are those of any release."""
    offset = plan.noise.offset if plan.releases_offset else None
    return SketchRequest(
        sketch="misra-gries", sketch_size=size, epsilon=plan.budget.epsilon, delta=plan.budget.delta,
        offset=offset, **options,
    )  # fmt: skip
