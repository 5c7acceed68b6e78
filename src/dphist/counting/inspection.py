"""How events are read, and what is in them, for `dphist check`.

NOT PRIVATE: everything here is a true number or a value of the data, for the eyes of its operator only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from dphist.counting import sql
from dphist.counting.duckdb import EVENTS, DuckDBEngine, DuckDBSession, Shape, source_of
from dphist.counting.encodings import codec_of
from dphist.counting.expressions import CALL_OR_CAST, columns_of
from dphist.counting.files import csv_headers, files_of
from dphist.counting.lines import Lines, encoding_of_head, find_values, scan_json_lines, scan_lines
from dphist.counting.sql import NUMBER, NUMBER_WITH_COMMA, Opened, Pairs, Relation, number, text
from dphist.counting.task import LONGEST_VALUE, Events, Value, is_frame
from dphist.counting.workspace import attempt
from dphist.errors import DphistError, InputError
from dphist.objects import is_postgres

CHECKED: Final = "dphist_checked"
_EXAMPLES: Final = 3
_LONGEST_EXAMPLE: Final = 60
# Of 12,5 and 1.234,56 the dots of the second are thousands; 1.234 alone could be either.
_GROUPED: Final = r"^\s*[+-]?[0-9]{1,3}(\.[0-9]{3})+\s*$"
_ENGLISH: Final = r"^\s*[+-]?[0-9]{1,3}(,[0-9]{3})+\.[0-9]*\s*$"
_THOUSANDS: Final = r"^\s*[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?\s*$"
# Digits with separators, a sign, a currency or a unit.
_LIKE_NUMBER: Final = r"^\W*([A-Za-z]{1,3}\W*)?[0-9][0-9\s.,'’+-]*([^0-9]{0,4})$"
_REST: Final = "([ T].*)?$"
DATES: Final = {
    "2026-01-31": rf"^\d{{4}}-\d\d?-\d\d?{_REST}",
    "31.01.2026": rf"^\d\d?\.\d\d?\.(\d{{4}}|\d\d){_REST}",
    "31/01/2026 or 01/31/2026": rf"^\d\d?/\d\d?/(\d{{4}}|\d\d){_REST}",
    "2026/01/31": rf"^\d{{4}}/\d\d?/\d\d?{_REST}",
    "31-01-2026": rf"^\d\d?-\d\d?-\d{{4}}{_REST}",
    "20260131": r"^(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])$",
}  # fmt: skip
_DAY_FIRST: Final = r"^(1[3-9]|2\d|3[01])/"
_MONTH_FIRST: Final = r"^\d\d?/(1[3-9]|2\d|3[01])/"
# Of the values of a column of dates, at least this share are dates.
_MOSTLY: Final = 0.9


@dataclass(frozen=True)
class Reading:
    """How the input is read. `separator` is empty except for CSV; types are empty if they are unknown."""

    form: str
    files: int
    encoding: str
    separator: str
    decimal: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Longest:
    """The most bytes of a value of a column, and how many values are too long and count as missing."""

    column: str
    most: int
    missing: int


@dataclass(frozen=True)
class Numbers:
    """A summed column: its values by what they look like, and examples of those that are not numbers.

    `comma` are numbers only with a decimal comma, `point` only with a decimal point. `grouped` could be either
    (1.234), `english` has both (1,234.5), and `thousands` may have (1,234). `like` are not numbers as they are
    read, but look like some.
    """

    column: str
    typed: bool
    values: int
    invalid: int
    comma: int = 0
    point: int = 0
    grouped: int = 0
    english: int = 0
    thousands: int = 0
    like: int = 0
    examples: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Clamped:
    """Users' own sums for an item: how many there are, and how many beyond the bounds."""

    column: str
    low: float
    high: float
    sums: int
    below: int
    above: int


@dataclass(frozen=True)
class Dates:
    """A column of dates in several formats, with the number of values in each."""

    column: str
    formats: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Content:
    """The rows that satisfy the condition, and what is in them."""

    rows: int
    without_user: int
    without_item: int
    kept: int
    users: int
    items: int
    shape: Shape
    longest: tuple[Longest, ...]
    numbers: tuple[Numbers, ...]
    clamped: tuple[Clamped, ...]
    dates: tuple[Dates, ...]
    similar: int
    similar_examples: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Inspection:
    """`lines` is for CSV files. `rows` were read, before any condition. `refused` says why nothing was."""

    what: str
    reading: Reading
    lines: Lines | None = None
    rows: int = 0
    content: Content | None = None
    refused: str = ""


def inspect_events(engine: DuckDBEngine, events: Events, values: Sequence[Value]) -> Inspection:
    """`values` are the columns to sum, with the bounds of those that are clamped one by one."""
    (files, form), lines, codec = _files(events), None, codec_of(events.encoding)
    texts = files if form in ("csv", "tsv") else []
    reading = Reading("", 0, "", "", events.decimal or ".", ())
    if texts:
        heads = {attempt(partial(encoding_of_head, path), f"the file {path!r}") for path in texts} - {""}
        wrong = {head for head in heads if head.startswith("utf-16") != codec.startswith("utf-16")}
        if wrong:
            reading = replace(reading, form="csv", files=len(texts), encoding=events.encoding or "utf-8")
            return Inspection("the input", reading, Lines(encoding=wrong.pop()), refused="see the encoding")
    with engine.session() as session:
        try:
            reading, widths = session.run(partial(_reading, session, events, files, form), "the input")
        except InputError as error:
            # Perhaps the header is in another encoding.
            seen = _text_only(texts) if texts and codec == "utf-8" else Lines()
            if not seen.encoding:
                raise
            reading = replace(reading, form="csv", files=len(texts), encoding="utf-8")
            return Inspection("the input", reading, seen, refused=error.with_flags)
        if texts:
            lines = attempt(lambda: scan_lines([*widths], codec, reading.separator, widths), "the input")
        elif form == "jsonl":
            lines = attempt(lambda: scan_json_lines(files), "the input")
        try:
            rows, what = session.open(events, list(dict.fromkeys(value.column for value in values)))
        except InputError as error:
            if lines is None or not (lines.misplaced.number or lines.swallowed.number):
                raise
            return Inspection("the input", reading, lines, refused=error.with_flags)
        content = _content(session, events, rows, values, what)
        read = content.rows if events.where is None else _all_rows(session, events)
        content = _with_places(content, texts, events, reading.separator)
        return Inspection(what, reading, lines, read, content)


def _files(events: Events) -> tuple[list[str], str]:
    """The input's files, if it has any, and its form."""
    if is_frame(events.source):
        return [], "data in memory"
    if isinstance(events.source, str) and is_postgres(events.source):
        return [], "PostgreSQL"
    return files_of(events.source, events.file_format)


def _text_only(texts: list[str]) -> Lines:
    found = attempt(lambda: scan_lines(texts, "utf-8", ",", dict.fromkeys(texts, 1)), "the input")
    return Lines(encoding=found.encoding, not_text=found.not_text)


def _reading(
    session: DuckDBSession, events: Events, files: list[str], form: str
) -> tuple[Reading, dict[str, int]]:
    """How the input is read, and the number of columns of each CSV file that is not empty."""
    source = source_of(session.connection, events, EVENTS, probe=True)
    names = list(dict.fromkeys(source.names or [events.user]))
    columns = [(column, "") for column in source.names or ()]
    with suppress(DphistError):  # columns that cannot be read, but need not be
        columns = [(column, kind) for column, (_, kind) in source.open(names).columns.items()]
    separator, widths, is_csv = "", dict[str, int](), form in ("csv", "tsv")
    if is_csv:
        separator, headers = csv_headers(files, form, "the input", events.encoding, events.delimiter)
        widths = {path: len(header) for path, header in headers.items()}
    shown = tuple((column, "text" if kind == "VARCHAR" else kind) for column, kind in columns)
    encoding = events.encoding or ("utf-8" if is_csv or form in ("json", "jsonl") else "")
    return Reading(form, len(files), encoding, separator, events.decimal or ".", shown), widths


def _all_rows(session: DuckDBSession, events: Events) -> int:
    """The rows without the condition."""
    rows, what = session.open(replace(events, where=None), [])
    columns = ", ".join(f"count({value})" for value, _, _ in rows.values)  # each must be read to be found invalid
    return int(session.execute(f"SELECT count(*), {columns} FROM {rows.relation}", what)[0][0])


def _content(
    session: DuckDBSession, events: Events, rows: Relation, values: Sequence[Value], what: str
) -> Content:
    items = [f"i{k}" for k in range(len(events.items))]
    columns = ["u", *items]
    session.execute(f"CREATE OR REPLACE TEMP TABLE {CHECKED} AS {_checked(rows, columns)}", what)
    required = ["u"] if events.null_items else columns
    kept = " AND ".join(f"{column} IS NOT NULL" for column in required)
    lost = " OR ".join(f"{column} IS NULL" for column in required[1:]) or "FALSE"
    users, whole = "count(DISTINCT u)", f"count(*) FILTER ({kept})"
    counts = f"count(*), count(*) FILTER (u IS NULL), count(*) FILTER ({lost}), {whole}, {users} FILTER ({kept})"
    lengths = [f"coalesce(max(l{k}), 0), count(*) FILTER (l{k} > {LONGEST_VALUE})" for k in range(len(columns))]
    found = session.execute(f"SELECT {', '.join([counts, *lengths])} FROM {CHECKED}", what)[0]
    read, without_user, without_item, complete, distinct_users, *sizes = map(int, found)
    names = [column for _, _, column in rows.values]
    longest = [Longest(names[k], sizes[2 * k], sizes[2 * k + 1]) for k in range(len(columns))]
    types = rows.types()
    relation = Relation(
        CHECKED,
        tuple((column, kind, own) for column, kind, own in zip(columns, types, names, strict=True)),
        True,
        tuple((f"x{k}", kind, column) for k, (_, kind, column) in enumerate(rows.numbers)),
    )
    pairs = Pairs(events, relation)
    shape = session.shape(pairs, what)
    distinct = f"SELECT DISTINCT {', '.join(items)} FROM {CHECKED} WHERE {kept}"
    total = int(session.execute(f"SELECT count(*) FROM ({distinct})", what)[0][0])
    similar, examples = _similar(session, items, types[1:], distinct, what)
    numbers = tuple(_numbers(session, events, k, rows.numbers[k], what) for k in range(len(rows.numbers)))
    return Content(
        read, without_user, without_item, complete, distinct_users, total, shape, tuple(longest), numbers,
        _clamped(session, relation, events, values, kept, what), tuple(_dates(session, events)), similar, examples,
    )  # fmt: skip


def _checked(rows: Relation, columns: list[str]) -> str:
    """The query of normalized users and items, the bytes of each as l0, l1, ..., and the numbers x0, x1, ..."""
    raw = [f"{value} AS r{k}" for k, (value, _, _) in enumerate((*rows.values, *rows.numbers))]
    made = []
    for k, ((_, kind, _), column) in enumerate(zip(rows.values, columns, strict=True)):
        size = f"strlen(r{k})" if kind == "VARCHAR" else f"octet_length(r{k})" if kind == "BLOB" else "0"
        made += [f"{sql.normalize(f'r{k}', kind)} AS {column}", f"{size} AS l{k}"]
    made += [f"r{len(columns) + k} AS x{k}" for k in range(len(rows.numbers))]
    return f"SELECT {', '.join(made)} FROM (SELECT {', '.join(raw)} FROM {rows.relation})"


def _similar(
    session: DuckDBSession, items: list[str], types: Sequence[str], distinct: str, what: str
) -> tuple[int, tuple[tuple[str, ...], ...]]:
    """How many groups of items differ only in case and spaces, and examples."""
    if "VARCHAR" not in types:
        return 0, ()
    alike = ", ".join(
        rf"lower(trim(regexp_replace({item}, '\s+', ' ', 'g'))) AS {item}" if kind == "VARCHAR" else item
        for item, kind in zip(items, types, strict=True)
    )
    shown = f"concat_ws(', ', {', '.join(f'CAST({item} AS VARCHAR)' for item in items)}) AS shown"
    rows = f"SELECT {shown}, {alike} FROM ({distinct})"
    groups = (
        f"SELECT list(shown ORDER BY shown)[1:4] AS spellings, count(*) AS n FROM ({rows}) GROUP BY "
        f"{', '.join(items)} HAVING count(*) > 1"
    )
    number_of = int(session.execute(f"SELECT count(*) FROM ({groups})", what)[0][0])
    found = session.execute(f"SELECT spellings FROM ({groups}) ORDER BY n DESC, 1 LIMIT {_EXAMPLES}", what)
    return number_of, tuple(tuple(map(str, spellings)) for (spellings,) in found)


def _numbers(
    session: DuckDBSession, events: Events, place: int, summed: tuple[str, str, str], what: str
) -> Numbers:
    _, kind, column = summed
    value = f"nullif(trim(CAST(x{place} AS VARCHAR)), '')"
    parsed = number(f"x{place}", kind, column, events.decimal)
    if not sql.TEXTS.match(kind):
        found = session.execute(f"SELECT count(x{place}), count(*) FILTER (isnan({parsed})) FROM {CHECKED}", what)
        return Numbers(column, True, int(found[0][0]), int(found[0][1]))

    def like(pattern: str) -> str:
        return f"regexp_matches(t, {text(pattern)})"

    point, comma = like(NUMBER), like(NUMBER_WITH_COMMA)
    kinds = [
        "NOT n", f"{comma} AND NOT {point}", f"{point} AND NOT {comma}", like(_GROUPED), like(_ENGLISH),
        like(_THOUSANDS), f"NOT n AND {like(_LIKE_NUMBER)}",
    ]  # fmt: skip
    rows = f"SELECT {value} AS t, ({parsed}) IS NOT NULL AS n FROM {CHECKED}"
    counts = ", ".join(f"count(*) FILTER (t IS NOT NULL AND {one})" for one in kinds)
    total, *numbers = map(int, session.execute(f"SELECT count(t), {counts} FROM ({rows})", what)[0])
    # Numbers in another form first, then what is most frequent.
    frequent = (
        f"SELECT x FROM (SELECT CAST(x{place} AS VARCHAR) AS x, {value} AS t, ({parsed}) IS NOT NULL AS n "
        f"FROM {CHECKED}) WHERE t IS NOT NULL AND NOT n GROUP BY x, t "
        f"ORDER BY ({comma}) DESC, ({like(_LIKE_NUMBER)}) DESC, count(*) DESC, x LIMIT {_EXAMPLES}"
    )
    examples = tuple(str(example) for (example,) in session.execute(frequent, what))
    invalid, commas, points, grouped, english, thousands, alike = numbers
    return Numbers(column, False, total, invalid, commas, points, grouped, english, thousands, alike, examples)


def _clamped(
    session: DuckDBSession, rows: Relation, events: Events, values: Sequence[Value], kept: str, what: str
) -> tuple[Clamped, ...]:
    found = []
    keys = ", ".join(column for column, _, _ in rows.values)
    for value in values:
        if value.vector is not None:
            continue
        place, kind = next((x, kind) for x, kind, column in rows.numbers if column == value.column)
        x = number(place, kind, value.column, events.decimal)
        low, high = float(value.low), float(value.high)
        total = f"coalesce(sum({x}) FILTER (NOT isnan({x})), 0)"
        own = f"SELECT {total} AS s FROM {CHECKED} WHERE {kept} GROUP BY {keys}"
        counts = f"count(*), count(*) FILTER (s < {low!r}::DOUBLE), count(*) FILTER (s > {high!r}::DOUBLE)"
        sums, below, above = map(int, session.execute(f"SELECT {counts} FROM ({own})", what)[0])
        found.append(Clamped(value.column, low, high, sums, below, above))
    return tuple(found)


def _dates(session: DuckDBSession, events: Events) -> list[Dates]:
    """The columns of the items and of the SQL that hold dates in several formats; not those of data in memory."""
    if is_frame(events.source):
        return []  # which perhaps can be read only once
    opened, what = session.run(partial(_open_dates, session, events), "the input")
    found = []
    for column, (expression, kind) in opened.columns.items():
        if kind != "VARCHAR":
            continue
        patterns = [*DATES.values(), _DAY_FIRST, _MONTH_FIRST]
        counts = ", ".join(f"count(*) FILTER (regexp_matches(t, {text(pattern)}))" for pattern in patterns)
        rows = f"SELECT nullif(trim({expression}), '') AS t FROM {opened.relation}"
        query = f"SELECT count(t), {counts} FROM ({rows})"
        total, *numbers = map(int, session.execute(query, what)[0])
        *numbers, day_first, month_first = numbers
        formats = [(form, n) for form, n in zip(DATES, numbers, strict=True) if n]
        if total and sum(n for _, n in formats) >= _MOSTLY * total:
            if day_first and month_first:
                formats = [("31/01/2026", day_first), ("01/31/2026", month_first)]
            if len(formats) > 1:
                found.append(Dates(column, tuple(sorted(formats, key=lambda one: -one[1]))))
    return found


def _open_dates(session: DuckDBSession, events: Events) -> tuple[Opened, str]:
    """The columns of the items, and those that are named in expressions and the condition."""
    source = source_of(session.connection, replace(events, where=None), EVENTS, probe=False)
    texts = [(item.source, "expression") for item in events.items]
    texts += [] if events.where is None else [(events.where, "condition")]
    wanted: list[str] = []
    for written, kind in texts:
        key = source.names is None and kind == "expression" and not CALL_OR_CAST.search(written)
        if key or written in (source.names or ()):
            wanted.append(written)
        else:
            with suppress(DphistError):
                wanted += columns_of(session.connection, written, source.names, kind)
    return source.open(list(dict.fromkeys(wanted))), source.what


def _with_places(content: Content, texts: list[str], events: Events, separator: str) -> Content:
    """The examples with their lines, in CSV files."""
    wanted = {one.column: one.examples for one in content.numbers if one.examples}
    places: dict[tuple[str, str], str] = {}
    if texts and wanted and events.query is None:
        codec = codec_of(events.encoding)
        places = attempt(lambda: find_values(texts, codec, separator, wanted), "the input")
    numbers = tuple(
        replace(
            one,
            examples=tuple(example.strip()[:_LONGEST_EXAMPLE] for example in one.examples),
            places=tuple(places.get((one.column, example), "") for example in one.examples),
        )
        for one in content.numbers
    )
    return replace(content, numbers=numbers)
