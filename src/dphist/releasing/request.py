"""The columns of numbers that are published, wherever noise was added: in this process or on executors."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from dphist.counting.events import Column, Events, is_frame
from dphist.errors import LARGEST_COUNT, InputError, InvalidParameter, finite_number, is_spark_frame
from dphist.outputs.targets import without_password
from dphist.planning.planner import Gamma
from dphist.planning.utility import added_columns
from dphist.privacy.types import Budget, Plan
from dphist.releasing.aggregates import Aggregate, Published, aggregates_of, published_sums, summed

# The options of `dphist.release` by their types, for editors and type checkers.


class Options(TypedDict, total=False):
    """The options of `dphist.release`, which are the fields of a request but its input."""

    user: str
    item: str | Sequence[str]
    epsilon: float
    delta: float
    max_items_per_user: int | str | None
    cap_share: float | None
    sum: str | Sequence[str]
    mean: str | Sequence[str]
    weight: float | Sequence[float]
    top: int | None
    max_nonzero: int | None
    items: Any
    offset: str | None
    lower_threshold: int
    mechanism: str
    gamma: Gamma | None
    minimize: str
    table: str | None
    query: str | None
    where: str | None
    input_format: str | None
    types: str | None
    input_name: str | None
    null_items: bool
    count_name: str
    standard_error: bool
    interval: float | None
    round: bool
    output: str | os.PathLike[str] | None
    output_table: str | None
    output_format: str | None
    sign: str | os.PathLike[str] | None
    escape_formulas: bool
    force: bool
    engine: str | None
    master: str | None
    spark_conf: str | Sequence[str]
    memory: str | None
    threads: int | None
    temp_folder: str | os.PathLike[str] | None
    ledger: str | os.PathLike[str] | None
    dataset: str | None
    seed: int | None


# The request: everything a release was asked for, as frozen data. Nothing is opened yet.

ENGINES: Final = ("duckdb", "spark")
AUTO: Final = "auto"
TYPES: Final = ("text", "fixed", "none")
TEXT_FILE: Final = re.compile(r"\.(csv|tsv|json|jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)
# What affects neither privacy nor the numbers, so that a certificate has no use for it.
_NOT_RECORDED: Final = (
    "output", "output_table", "output_format", "escape_formulas", "sign", "force", "memory", "threads",
    "temp_folder", "master", "spark_conf", "ledger",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to read, what to promise, what to write. The names are those of the flags of `dphist release`."""

    input: Any
    user: str
    item: tuple[str, ...]
    epsilon: float
    delta: float
    max_items_per_user: int | str | None = None
    cap_share: float | None = None
    sum: tuple[str, ...] = ()
    mean: tuple[str, ...] = ()
    weight: tuple[float, ...] = ()
    top: int | None = None
    max_nonzero: int | None = None
    items: Any = None
    offset: str | None = None
    lower_threshold: int = 1
    mechanism: str = "best"
    gamma: Gamma | None = None
    minimize: str = "threshold"
    table: str | None = None
    query: str | None = None
    where: str | None = None
    input_format: str | None = None
    types: str | None = None
    input_name: str | None = None
    null_items: bool = False
    count_name: str = "count"
    standard_error: bool = False
    interval: float | None = None
    round: bool = False
    output: str | os.PathLike[str] | None = None
    output_table: str | None = None
    output_format: str | None = None
    sign: str | os.PathLike[str] | None = None
    escape_formulas: bool = False
    force: bool = False
    engine: str | None = None
    master: str | None = None
    spark_conf: tuple[str, ...] = ()
    memory: str | None = None
    threads: int | None = None
    temp_folder: str | os.PathLike[str] | None = None
    ledger: str | os.PathLike[str] | None = None
    dataset: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "item", _names("item", self.item))
        budget = Budget(self.epsilon, self.delta)
        object.__setattr__(self, "epsilon", budget.epsilon)
        object.__setattr__(self, "delta", budget.delta)
        for name in ("sum", "mean", "weight"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, (str, int, float)) else tuple(given))
        self._check_types()
        self._check_contract()
        self._check_ledger()
        self._check_output()
        for name in ("null_items", "standard_error", "round", "escape_formulas", "force"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(f"{flag(name)} must be true or false, not {getattr(self, name)!r}")
        self._check_engine()

    def _check_types(self) -> None:
        """Where types come from: frames are read as text by default, CSV and JSON have none, others say theirs."""
        if self.types not in (None, *TYPES):
            raise InvalidParameter(f"types must be 'text' or 'fixed', not {self.types!r}")
        if self.types is None:
            default = "text" if is_frame(self.input) else "none" if self._is_text_file() else "fixed"
            object.__setattr__(self, "types", default)

    def _is_text_file(self) -> bool:
        paths = self.input if isinstance(self.input, (tuple, list)) else [self.input]
        names = [f".{self.input_format.lstrip('.')}"] if isinstance(self.input_format, str) else paths
        return all(TEXT_FILE.search(str(name)) for name in names)

    def _check_engine(self) -> None:
        if self.engine is not None and self.engine not in ENGINES:
            raise InvalidParameter(f"engine must be one of {', '.join(ENGINES)}, not {self.engine!r}")
        if self.engine == "duckdb" and is_spark_frame(self.input):
            raise InvalidParameter("a DataFrame of Spark is for the engine spark, not for duckdb")
        given = self.spark_conf
        object.__setattr__(self, "spark_conf", (given,) if isinstance(given, str) else tuple(given))
        self.spark_settings()
        for name in ("master", "spark_conf"):
            if getattr(self, name) and self.engine_name() != "spark":
                raise InvalidParameter(f"{flag(name)} is for --engine spark")

    def engine_name(self) -> str:
        """The engine: the one that is named, else Spark for its own DataFrames and DuckDB for all others."""
        return self.engine or ("spark" if is_spark_frame(self.input) else "duckdb")

    def spark_settings(self) -> tuple[tuple[str, str], ...]:
        """The settings of Spark by their names."""
        pairs = []
        for text in self.spark_conf:
            name, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
            if not equals or not name.startswith("spark."):
                # A value may be a secret, so the text is not repeated.
                raise InvalidParameter("--spark-conf must be of the form spark.NAME=VALUE, and one is not")
            pairs.append((name, value))
        return tuple(pairs)

    def _check_contract(self) -> None:
        self._check_cap()
        for name in ("max_items_per_user", "top", "max_nonzero", "lower_threshold", "threads"):
            value = getattr(self, name)
            if value is None or (name == "max_items_per_user" and value == AUTO):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_COUNT:
                raise InvalidParameter(
                    f"{flag(name)} must be a whole number from 1 to {LARGEST_COUNT}, not {value!r}"
                )
        ways = [name for name in ("top", "max_nonzero", "items") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise InvalidParameter(f"give one of {' and '.join(flag(way) for way in ways)}, not both")
        if not ways and self.max_items_per_user is None:
            raise InvalidParameter(
                "one user could change everything: give --max-items-per-user M (at most M random items each), "
                "--top K (the K largest counts), --max-nonzero K (a public bound) or --items FILE (a public list)"
            )
        if self.items is not None and self.lower_threshold != 1:
            raise InvalidParameter("--lower-threshold makes no sense with --items: no item of the list is removed")
        if self.offset is not None and self.top is None:
            raise InvalidParameter("--offset is for --top alone")
        if self.gamma is not None and self.max_nonzero is None:
            raise InvalidParameter("--gamma is for --max-nonzero: without it there is no shared noise to choose")

    def _check_cap(self) -> None:
        """What is asked of a cap that is chosen privately."""
        if self.max_items_per_user == AUTO and (self.top is not None or self.max_nonzero is not None):
            raise InvalidParameter(f"--max-items-per-user {AUTO} has no use for --top or --max-nonzero")
        if isinstance(self.max_items_per_user, str) and self.max_items_per_user != AUTO:
            raise InvalidParameter(
                f"--max-items-per-user must be a whole number or {AUTO}, not {self.max_items_per_user!r}"
            )
        if self.cap_share is not None:
            share = finite_number("cap_share", self.cap_share)
            if self.max_items_per_user != AUTO or not 0.0 < share <= 0.5:
                raise InvalidParameter(
                    f"--cap-share is for --max-items-per-user {AUTO}: a share above 0 and at most 0.5, "
                    f"not {self.cap_share!r}"
                )

    def cap(self) -> int | None:
        """The bound on the items of a user, where it is given by number."""
        assert not isinstance(self.max_items_per_user, str)
        return self.max_items_per_user

    def _check_ledger(self) -> None:
        if (self.ledger is None) != (self.dataset is None):
            raise InvalidParameter(
                "--ledger and --dataset go together: a ledger keeps one budget for each dataset"
            )
        if self.ledger is not None and self.seed is not None:
            raise InvalidParameter("--seed makes no private release, so that a ledger has nothing to book")

    def aggregates(self) -> tuple[Aggregate, ...]:
        """The sums and means that were asked for, sums first."""
        return aggregates_of({"sum": self.sum, "mean": self.mean})

    def sums(self) -> tuple[tuple[str, Fraction, Fraction], ...]:
        """The different sums that they need: columns and their bounds."""
        return summed(self.aggregates())

    def _check_output(self) -> None:
        if self.sign is not None and self.output is None:
            raise InvalidParameter("--sign needs --output: what is signed is a written release")
        if self.interval is not None:
            share = finite_number("interval", self.interval)
            if not 0.0 < share < 1.0:
                raise InvalidParameter(f"--interval must be between 0 and 1, not {self.interval!r}")
            if self.offset == "none":
                raise InvalidParameter(
                    "--interval needs the offset of --top: without it the counts are differences"
                )
        if self.input_name is not None and (
            not isinstance(self.input_name, str) or not self.input_name.strip() or len(self.input_name) > 200
        ):
            raise InvalidParameter("--input-name must be a name of at most 200 characters, and not empty")
        if self.user in {column.source for column in self.columns()}:
            raise InvalidParameter(f"the column {self.user!r} cannot be both the user and the item")
        taken = {column.name for column in self.columns()}
        for name in self.added_columns():
            if not isinstance(name, str) or not name or name in taken:
                raise InvalidParameter(
                    f"two columns would be called {name!r}: name the counts with --count-name, sums and means "
                    "with NAME=COLUMN:LOW:HIGH"
                )
            taken.add(name)
        if self.weight and len(self.weight) != len(self.sums()):
            raise InvalidParameter(
                f"give one --weight for each sum: there are {len(self.sums())} sums (a mean of the same values is "
                f"the same sum) and {len(self.weight)} weights"
            )
        if self.sum or self.mean:
            self._check_sums()

    def _check_sums(self) -> None:
        if self.mechanism == "laplace":
            raise InvalidParameter("--sum and --mean need Gaussian noise, not --mechanism laplace")
        if self.offset == "none":
            raise InvalidParameter("--sum and --mean beside --top need its offset")

    def added_columns(self) -> list[str]:
        """The columns of numbers in the output."""
        look = Published(self.standard_error, self.interval)
        names = [self.count_name, *(one.name for one in self.aggregates())]
        return [column for name in names for column in look.names(name)]

    def output_columns(self) -> list[str]:
        """All columns of the output, in order."""
        return [*(column.name for column in self.columns()), *self.added_columns()]

    def columns(self) -> tuple[Column, ...]:
        """The item's columns; `NAME=COLUMN` reads one column and gives it another name."""
        return tuple(Column.parse(text) for text in self.item)

    def events(self) -> Events:
        """Where the events are."""
        return Events(
            self.input, self.user, self.columns(), self.table, self.query, self.where, self.input_format,
            self.null_items, as_text=self.types == "text",
        )  # fmt: skip

    def public_items(self) -> Events | None:
        """Where the public list of items is: columns of the same names as in the output."""
        if self.items is None:
            return None
        columns = tuple(Column(column.name, column.name) for column in self.columns())
        # A list has no users; any of its columns serves in that place.
        return Events(self.items, columns[0].name, columns, null_items=self.null_items)

    def to_dict(self) -> dict[str, Any]:
        """Plain data by the names of the flags, without what was left at its default and without passwords."""
        data: dict[str, Any] = {}
        for entry in fields(self):
            # Made plain before it is compared: frames compare with nothing but frames.
            value = _plain(getattr(self, entry.name))
            if value != _plain(entry.default) and entry.name not in _NOT_RECORDED:
                data[flag(entry.name).removeprefix("--")] = value
        # What the input is to be called, in place of its path.
        name = data.pop("input-name", None)
        return data if name is None else {**data, "input": name}


def flag(name: str) -> str:
    """How a parameter is called on the command line."""
    return "--" + name.replace("_", "-")


def _names(what: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidParameter(f"{what} must be the name of a column or a list of them, not {value!r}")
    return names


def _plain(value: Any) -> Any:
    """As JSON can hold it; a frame is named by its type, a path by its text, an address without its password."""
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    if isinstance(value, (str, os.PathLike)):
        return without_password(os.fspath(value))
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"


def _by_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by their names with _; an unknown name is an error."""
    known = {entry.name for entry in fields(Request)}
    given: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {near[0].replace('_', '-')!r}?" if near else ""
            raise InvalidParameter(f"there is no such key in a request as {key!r}{hint}")
        if name in given:
            raise InvalidParameter(f"the key {key!r} is given twice")
        given[name] = value
    return given


def request_from(values: Mapping[str, Any]) -> Request:
    """A request from the names of the flags, with - or _."""
    given = _by_name(values)
    for name in ("input", "user", "item", "epsilon", "delta"):
        if given.get(name) is None:
            what = "an input" if name == "input" else flag(name)
            raise InvalidParameter(f"a release needs {what}")
    return Request(**given)


def read_request(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The names and values of a request file."""
    try:
        return _by_name(tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise InvalidParameter(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise InvalidParameter(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def count_column(request: Mapping[str, Any], table: Any) -> str:
    """How the counts of a release are called: as it was asked for; those of a histogram are its last column."""
    return str(request.get("count-name", "count") if request else table.column_names[-1])


@dataclass(frozen=True)
class Columns:
    """The columns of numbers in the output: how they are called and what they say."""

    count: str
    error: bool
    interval: float | None
    rounded: bool
    aggregates: tuple[Aggregate, ...] = ()

    @classmethod
    def of(cls, request: Request) -> Columns:
        """Those that were asked for."""
        return cls(
            request.count_name, request.standard_error, request.interval, request.round, request.aggregates()
        )

    def numbers(
        self, values: NDArray[np.float64], sums: Sequence[NDArray[np.float64]], plan: Plan
    ) -> dict[str, NDArray[Any]]:
        """The columns by their names, for these noisy counts and sums."""
        noisy, added = added_columns(
            values, plan, self.count, error=self.error, interval=self.interval, rounded=self.rounded
        )
        beside = published_sums(values, sums, plan, self.aggregates, Published(self.error, self.interval))
        return {self.count: noisy, **added, **beside}
