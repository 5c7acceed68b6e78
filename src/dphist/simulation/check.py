"""`check`: how an input is read, what is in it, and what to fix before a release, for its operator only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from dphist.aliases import JsonObject
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.inspection import Content, Inspection, Numbers, inspect_events
from dphist.counting.lines import Lines
from dphist.counting.sql import name as quoted
from dphist.counting.streams import read_once
from dphist.counting.task import LONGEST_VALUE, Resources, Value
from dphist.display import count_items, fill, join_words, plain_number, printable
from dphist.model import Budget
from dphist.planning.rounds import MOST_ITEMS
from dphist.releasing.request import Request
from dphist.releasing.run import spool_input
from dphist.simulation.population import population_of_shape, reading_request
from dphist.simulation.rounds import TooLarge
from dphist.simulation.simulate import Prediction, predict

# The first and the last line of everything that is shown.
NOTICE: Final = "NOT PRIVATE: true numbers of your data, for your eyes only. Never publish or file them."
READING: Final = (
    "user", "item", "sum", "mean", "vector", "where", "table", "query", "input_format", "encoding", "delimiter",
    "decimal", "null_items", "types", "memory", "threads", "temp_folder",
)  # fmt: skip
# A column of users is suspicious from so many rows, and other findings from these shares of the rows or sums.
_ENOUGH: Final = 20
_SOME: Final = 0.01
_HALF: Final = 0.5
_ALL: Final = 0.99
_QUANTILES: Final = (0.5, 0.9, 0.99)
_NAMES_SHOWN: Final = 40
_FORMS: Final = {
    "csv": "CSV", "tsv": "TSV", "json": "JSON", "jsonl": "JSON lines", "parquet": "Parquet", "arrow": "Arrow",
    "duckdb": "DuckDB", "sqlite": "SQLite",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What was found, and what to do. A note needs no action."""

    action: bool
    about: str
    text: str
    advice: str = ""

    def to_dict(self) -> JsonObject:
        return {"action": self.action, "about": self.about, "finding": self.text, "advice": self.advice or None}


@dataclass(frozen=True, repr=False)
class Check:
    """What `dphist check` shows. NOT PRIVATE: it holds true numbers and values of the data.

    Attributes:
        inspection: What was read: the format, lines, columns and rows.
        findings: What was found, each with `action` (whether it must be mended), `about`, `text` and `advice`.
        budget: The budget of the predicted release.
        prediction: What the default release would show; None if it cannot be predicted.
        null_items: Whether missing items count.
        private: Always False.
    """

    inspection: Inspection
    findings: tuple[Finding, ...]
    budget: Budget
    prediction: Prediction | None
    null_items: bool = False

    private: ClassVar[bool] = False

    @property
    def ok(self) -> bool:
        """Whether there is nothing to fix."""
        return not any(finding.action for finding in self.findings)

    def to_dict(self) -> JsonObject:
        """The keys of `dphist check --json`."""
        seen, content = self.inspection, self.inspection.content
        reading = seen.reading
        return {
            "private": False,
            "notice": NOTICE,
            "ok": self.ok,
            "findings": [finding.to_dict() for finding in self.findings],
            "reading": {
                "format": reading.form, "files": reading.files, "encoding": reading.encoding or None,
                "delimiter": reading.separator or None, "quote": '"' if reading.separator else None,
                "decimal": reading.decimal,
                "columns": [{"name": name, "type": kind or None} for name, kind in reading.columns],
            },
            "refused": seen.refused or None,
            "unreadable": _unreadable(seen),
            "rows": None if content is None else _row_facts(seen, content),
            "longest": [] if content is None else [
                {"column": one.column, "bytes": one.most, "too_long": one.missing} for one in content.longest
            ],
            "numbers": [] if content is None else [
                {
                    "column": one.column, "values": one.values, "not_numbers": one.invalid,
                    "examples": [
                        {"text": text, "line": place or None}
                        for text, place in zip(one.examples, one.places or one.examples, strict=True)
                    ],
                }
                for one in content.numbers
            ],
            "clamped": [] if content is None else [
                {
                    "column": one.column, "low": one.low, "high": one.high, "sums": one.sums, "below": one.below,
                    "above": one.above,
                }
                for one in content.clamped
            ],
            "items_per_user": None if content is None else _items_per_user(content),
            "prediction": None if self.prediction is None else {
                "epsilon": self.budget.epsilon, "delta": self.budget.delta,
                **{name: getattr(self.prediction, name) for name in ("items", "missing", "mean_error")},
            },
        }  # fmt: skip

    def __repr__(self) -> str:
        words = "nothing to fix" if self.ok else f"{sum(one.action for one in self.findings)} to fix"
        return f"<Check of {self.inspection.what}: {words}; print it to see more. {NOTICE}>"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield fill(NOTICE)
        yield ""
        yield from self._finding_lines()
        for title, rows in (("How it is read", self._reading_rows()), ("What is in it", self._content_rows())):
            if rows:
                width = max(len(label) for label, _ in rows)
                yield from ("", title)
                yield from (fill(printable(text), f"  {label:<{width}}  ") for label, text in rows)
        yield ""
        yield fill(NOTICE)

    def _finding_lines(self) -> Iterator[str]:
        if not self.findings:
            yield "Nothing to fix."
        for number, finding in enumerate(self.findings, 1):
            kind = "Fix" if finding.action else "Note"
            yield fill(printable(f"{finding.text} {finding.advice}".rstrip()), f"{number}. {kind}: ")

    def _reading_rows(self) -> list[tuple[str, str]]:
        reading = self.inspection.reading
        files = f", {reading.files:,} files" if reading.files > 1 else ""
        rows = [("Format", f"{_FORMS.get(reading.form, reading.form)}{files}")]
        if reading.encoding:
            rows.append(("Encoding", reading.encoding))
        if reading.separator:
            shown = "tab" if reading.separator == "\t" else reading.separator
            rows += [("Separator", shown), ("Quote", '"')]
        rows.append(("Decimal sign", f"{reading.decimal} (of numbers in text)"))
        names = [f"{name} ({kind})" if kind else name for name, kind in reading.columns]
        more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
        if names:
            rows.append(("Columns", ", ".join(names[:_NAMES_SHOWN]) + more))
        return rows

    def _content_rows(self) -> list[tuple[str, str]]:
        seen, content = self.inspection, self.inspection.content
        if content is None:
            return [("Rows", f"none: {seen.refused}")]
        rows = [("Rows", f"{seen.rows:,}")]
        if content.rows != seen.rows:
            rows.append(("Matching", f"{content.rows:,} satisfy the condition"))
        skipped = _unreadable(seen)
        if skipped is not None:
            where = skipped["lines"]
            rows.append(("Unreadable", f"{skipped['rows']:,}" + (f" ({where})" if where else "")))
        rows += [
            ("No user", f"{content.without_user:,} rows"),
            ("No item", f"{content.without_item:,} rows" + (", counted as an item" if self.null_items else "")),
            ("Users", f"{content.users:,}"),
            ("Items", f"{content.items:,}"),
        ]
        facts = _items_per_user(content)
        if content.users:
            spread = ", ".join(
                f"{share:.0%} of users have at most {facts['quantiles'][f'{share:g}']:,}" for share in _QUANTILES
            )
            over = f"{facts['share_over_256']:.2%} have more than {MOST_ITEMS}"
            rows.append(("Per user", f"{spread}; the most is {count_items(facts['most'])}. {over}"))
        for one in content.longest:
            if one.most:
                over = f"; {one.missing:,} of more than {LONGEST_VALUE:,} are missing" if one.missing else ""
                rows.append(("Longest", f"{one.column}: {one.most:,} bytes{over}"))
        rows += [("Numbers", _number_words(one)) for one in content.numbers]
        for clamped in content.clamped:
            bounds = f"{plain_number(clamped.low)}:{plain_number(clamped.high)}"
            rows.append((
                "Clamped", f"{clamped.column} to {bounds}: of {clamped.sums:,} sums of one user and item, "
                f"{clamped.below:,} are below and {clamped.above:,} above"
            ))  # fmt: skip
        if self.prediction is not None:
            rows.append(("Release", self._prediction_words(content)))
        return rows

    def _prediction_words(self, content: Content) -> str:
        """What the default release would show; sums are left out of the prediction."""
        made = self.prediction
        assert made is not None
        budget = f"ε = {plain_number(self.budget.epsilon)}, δ = {plain_number(self.budget.delta)}"
        words = (
            f"by default ({budget}) about {made.items:,.0f} of {count_items(content.items)}, with "
            f"{1.0 - made.missing:.0%} of all pairs of a user and an item"
        )
        if made.mean_error is not None and made.items >= _HALF:
            words += f"; a count is off by {made.mean_error:,.0f} users on average"
        return words + ("; sums make it fewer" if content.numbers else "")


def _unreadable(seen: Inspection) -> JsonObject | None:
    """Rows of CSV files that were skipped, as far as it is known where."""
    lines = seen.lines
    if lines is None or seen.content is None:
        return None
    parts = [("too few columns", lines.too_few), ("not text", lines.not_text), ("not JSON", lines.not_json)]
    places = "; ".join(f"{label}: {found.words}" for label, found in parts if found.number)
    return {"rows": max(0, lines.rows - seen.rows), "lines": places}


def _row_facts(seen: Inspection, content: Content) -> JsonObject:
    return {
        "read": seen.rows, "matching": content.rows, "without_user": content.without_user,
        "without_item": content.without_item, "users": content.users, "items": content.items,
    }  # fmt: skip


def _items_per_user(content: Content) -> JsonObject:
    sizes = content.shape[0]
    users = sum(number for _, number in sizes)

    def quantile(share: float) -> int:
        below = 0
        for size, number in sizes:
            below += number
            if below >= share * users:
                return size
        return 0

    over = sum(number for size, number in sizes if size > MOST_ITEMS)
    return {
        "quantiles": {f"{share:g}": quantile(share) for share in _QUANTILES},
        "most": sizes[-1][0] if sizes else 0,
        "share_over_256": over / users if users else 0.0,
    }


def _number_words(one: Numbers) -> str:
    words = f"{one.column}: {one.values:,} values, {one.invalid:,} of them not numbers"
    return f"{words} ({_examples(one)})" if one.invalid and one.examples else words


def _examples(one: Numbers) -> str:
    shown = []
    for example, place in zip(one.examples, one.places or one.examples, strict=True):
        shown.append(f"{example!r}" + (f" in line {place}" if place and one.places else ""))
    return ", ".join(shown)


# The findings.


def _plural(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def findings_of(seen: Inspection, request: Request) -> tuple[Finding, ...]:
    """What needs action first."""
    found: list[Finding] = []
    if seen.lines is not None:
        found += _of_encoding(seen, seen.lines, request)
        found += _of_lines(seen.lines, refused=bool(seen.refused))
    if seen.content is not None:
        lost = 0 if seen.lines is None else seen.lines.rows - seen.rows
        found += _of_rows(seen.content, request, complete=lost <= _SOME * seen.rows)
        for one in seen.content.numbers:
            found += _of_numbers(one, request.decimal or ".")
        found += _of_content(seen.content)
    return tuple(sorted(found, key=lambda finding: not finding.action))


def _of_encoding(seen: Inspection, lines: Lines, request: Request) -> Iterator[Finding]:
    now, found = request.encoding or "utf-8", lines.not_text
    if lines.encoding.startswith("utf-16"):
        yield Finding(
            True, "encoding", f"The file is UTF-16, but is read as {now}.", f"Give --encoding {lines.encoding}."
        )
    elif lines.encoding == "utf-8":
        advice = "Leave --encoding out."
        yield Finding(True, "encoding", f"The file is UTF-8, but is read as {now}.", advice)
    elif found.number:
        # A row is skipped if a column that is read is not text.
        skipped = lines.rows - seen.rows - lines.too_few.number
        end = "the file is refused" if seen.refused else f"{_plural(max(0, skipped), 'row')} skipped"
        text = f"{_plural(found.number, 'line')} not in {now} ({found.words}): {end}."
        advice = "Give the encoding in which the file was written with --encoding."
        if lines.encoding:
            advice = f"Give --encoding {lines.encoding}: then line {found.first[0]} has {found.example!r}."
        yield Finding(bool(seen.refused) or skipped > 0, "encoding", text, advice)


def _of_lines(lines: Lines, *, refused: bool) -> Iterator[Finding]:
    fix = (
        "Close it, and double quotes inside quoted values; best write the file with a CSV library, or as Parquet."
    )
    if lines.misplaced.number:
        end = "the file is refused." if refused else "values may be cut."
        yield Finding(True, "quotes", f"A quote is misplaced or not closed ({lines.misplaced.words}): {end}", fix)
    if lines.swallowed.number:
        text = (
            f"{_plural(lines.swallowed_rows, 'line')} between a quote and the next look like rows, but are read "
            f"as one value ({lines.swallowed.words})."
        )
        yield Finding(True, "quotes", text, f"Was a quote not closed? {fix}")
    if lines.too_many.number:
        text = (
            f"{_plural(lines.too_many.number, 'row')} with more columns than the header ({lines.too_many.words}), "
            f"such as {lines.too_many.example!r}: what is beyond is ignored."
        )
        advice = "Put values that contain the separator (such as 12,5 between commas) in quotes."
        yield Finding(True, "columns", text, advice)
    if lines.not_json.number:
        text = f"{_plural(lines.not_json.number, 'line')} not in JSON, skipped ({lines.not_json.words})."
        yield Finding(lines.not_json.number >= _SOME * max(lines.rows, 1), "rows", text)
    if lines.too_few.number:
        many = lines.too_few.number >= _SOME * max(lines.rows, 1)
        text = f"{_plural(lines.too_few.number, 'row')} with fewer columns than the header, skipped"
        yield Finding(many, "columns", f"{text} ({lines.too_few.words}).", "Fill their columns." if many else "")


def _of_rows(content: Content, request: Request, *, complete: bool) -> Iterator[Finding]:
    """Of users, only if the rows are `complete`: a few of a user's rows say little."""
    if not content.rows:
        what = "satisfies the condition" if request.where is not None else "can be read"
        yield Finding(True, "rows", f"No row {what}.", "Nothing would be released: check the file and --where.")
        return
    for column, number, label in (
        (request.user, content.without_user, "user"),
        (", ".join(column.source for column in request.columns), content.without_item, "item"),
    ):
        if number >= _HALF * content.rows and not (label == "item" and request.null_items):
            text = f"{number:,} of {content.rows:,} rows have no {label} in {column!r} and do not count."
            yield Finding(True, label, text, f"Is it the right column for --{label}?")
    if content.users == 1 and content.kept > 1:
        text = f"The user column {request.user!r} has the same value in all rows: there is one user."
        yield Finding(True, "user", text, "Nothing would be released: name the column of the people with --user.")
    elif complete and content.users == content.kept >= _ENOUGH:
        text = (
            f"The user column {request.user!r} is different in every row, as the number of a row or an order is."
        )
        advice = (
            "If a person can have several rows, name the column of the person with --user: the release would "
            "protect single rows only."
        )
        yield Finding(True, "user", text, advice)
    for one in content.longest:
        if one.missing:
            values = f"{_plural(one.missing, 'value')} of {one.column!r}"
            text = f"{values} with more than {LONGEST_VALUE:,} bytes, counted as missing."
            yield Finding(False, "length", text)


def _of_numbers(one: Numbers, sign: str) -> Iterator[Finding]:
    example = _examples(one)
    some = (
        f"{one.invalid:,} of {one.values:,} values of {one.column!r} are not numbers and add nothing ({example})."
    )
    column = one.column if one.column.isidentifier() else quoted(one.column)
    replaced = f"--query \"SELECT ..., replace({column}, {{}}, '') AS {column} FROM input\""
    if one.typed or not one.values:
        return
    if sign == "." and (one.english or (one.comma and one.comma == one.thousands and one.point)):
        advice = f"Remove the commas between thousands: {replaced.format(repr(','))}."
        yield Finding(True, "numbers", some, advice)
    elif sign == "." and one.comma:
        mixed = f" {one.point:,} others have a decimal point: write all alike." if one.point > one.grouped else ""
        yield Finding(True, "numbers", f"{some} They have a decimal comma.", f"Give --decimal ,.{mixed}")
    elif sign == "," and one.point:
        text = f"{some} They have a decimal point."
        yield Finding(True, "numbers", text, "Leave --decimal out." if not one.comma else "Write all alike.")
    elif one.like:
        advice = f"Remove what is not part of the number, for example with {replaced.format(repr(' EUR'))}."
        yield Finding(True, "numbers", some, advice)
    elif one.invalid:
        all_ = one.invalid >= _ALL * one.values
        yield Finding(all_, "numbers", some, "Is it the right column?" if all_ else "")
    elif sign == "." and one.grouped >= _ALL * one.values:
        text = f"Every value of {one.column!r} has three digits after its dot: it is read as a decimal point."
        yield Finding(False, "numbers", text, "If the dots separate thousands, give --decimal ,.")


def _of_content(content: Content) -> Iterator[Finding]:
    for clamped in content.clamped:
        beyond = clamped.below + clamped.above
        if clamped.sums and beyond >= _HALF * clamped.sums:
            all_ = beyond >= _ALL * clamped.sums
            bounds = f"{plain_number(clamped.low)}:{plain_number(clamped.high)}"
            share = f"{beyond / clamped.sums:.0%} of the sums of {clamped.column!r} of one user and item"
            advice = "Are the bounds in the unit of the column? Choose them by what is known without the data."
            yield Finding(all_, "bounds", f"{share} are beyond {bounds} and clamped.", advice)
    for dates in content.dates:
        forms = join_words([f"{number:,} like {form}" for form, number in dates.formats])
        text = f"{dates.column!r} has dates in several formats: {forms}. One day is several items."
        yield Finding(True, "dates", text, "Write all dates alike, best as 2026-01-31.")
    if content.similar:
        shown = "; ".join(", ".join(map(repr, spellings)) for spellings in content.similar_examples)
        text = f"{_plural(content.similar, 'group')} of items that differ only in case or spaces ({shown})."
        yield Finding(False, "items", text, 'To count them together: --item "NAME=lower(trim(COLUMN))".')


def check(input: Any, *, epsilon: float = 1.0, delta: float = 1e-6, **options: Any) -> Check:
    """Show how an input is read, what is in it, and what to fix before it is released. NOT PRIVATE.

    The result holds true numbers and values of the data, for the eyes of its operator only. It is never written to
    a file.

    >>> import dphist, pandas
    >>> log = pandas.DataFrame({"user": ["a", "a", "b"], "item": ["x", "y", "x"], "paid": ["1,5", "2,5", "3"]})
    >>> found = dphist.check(log, user="user", item="item", sum="paid:0:10")
    >>> print(found.ok, "-", found.findings[0].advice)
    False - Give --decimal ,.

    Args:
        input: The events, in any form that `dphist.release` reads.
        epsilon: ε of the default release that is predicted.
        delta: δ of that release.
        **options: What is read, as for `dphist.release`: `user`, `item`, `sum`, `mean`, `vector`, `where`,
            `table`, `query`, `input_format`, `encoding`, `delimiter`, `decimal`, `null_items` and `types`.
    """
    budget = Budget(epsilon, delta)
    request = reading_request(input, budget, "check", READING, options)
    folder = None if request.temp_folder is None else Path(request.temp_folder)
    engine = DuckDBEngine(Resources(request.memory, request.threads, folder))
    values = [
        Value(column, low, high, vector=place if len(columns) > 1 else None)
        for place, (columns, low, high) in enumerate(request.sums)
        for column in columns
    ]
    with engine, read_once(request.events()) as given_events, spool_input(request, given_events) as events:
        seen = inspect_events(engine, events, values)
    prediction = None
    if seen.content is not None and seen.content.shape[0]:
        population = population_of_shape(seen.content.shape, label_of(input))
        try:
            prediction = predict(budget, population, "goal", "accuracy")
        except TooLarge:
            prediction = None
    return Check(seen, findings_of(seen, request), budget, prediction, request.null_items)


def label_of(source: object) -> str:
    return os.path.basename(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "the input"
