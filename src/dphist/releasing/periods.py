"""Periods of scheduled releases: names such as 2026-W46, the period that ended last, and the release before it.

A command that a scheduler repeats unchanged gets its period from its id: `--id last-week` is the id 2026-W46 in
the week after, and `{period}` in the names of input and output becomes 2026-W46.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

from dphist.errors import InvalidParameter, NotVerified, flag
from dphist.objects import scheme_of
from dphist.releasing.request import STREAM, Request

# A word of `known`, not a file.
PREVIOUS: Final = "previous"
_NAMES: Final = re.compile(
    r"(?<![0-9])(?:(?P<week>\d{4}-W\d{2})|(?P<day>\d{4}-\d{2}-\d{2})|(?P<quarter>\d{4}-Q[1-4])|(?P<month>\d{4}-\d{2}))"
    r"(?![0-9])"
)
_WORD: Final = re.compile(r"(?P<before>(?:.*-)?)(?P<word>last-week|yesterday|last-month|last-quarter)")
_PLACES: Final = re.compile(r"\{(period|start|end)\}")
# Options in which `{period}`, `{start}` and `{end}` are replaced.
_FILLED: Final = ("input", "table", "query", "where", "items", "known", "output", "output_table", "certificate")


@dataclass(frozen=True, order=True)
class Period:
    """A day, an ISO week, a month or a quarter: from `start`, and before `end`."""

    start: date
    end: date
    name: str
    kind: str

    def __str__(self) -> str:
        return self.name

    def following(self) -> Period:
        """The next period of the same kind."""
        return period_at(self.end, self.kind)


def period_at(day: date, kind: str) -> Period:
    """The period of this kind with this day."""
    if kind == "day":
        return Period(day, day + timedelta(1), day.isoformat(), kind)
    if kind == "week":
        start = day - timedelta(day.weekday())
        year, week, _ = start.isocalendar()
        return Period(start, start + timedelta(7), f"{year:04}-W{week:02}", kind)
    months = 3 if kind == "quarter" else 1
    first = (day.month - 1) // months * months + 1
    start = date(day.year, first, 1)
    end = (start + timedelta(31 * months)).replace(day=1)
    name = f"{day.year:04}-Q{(first + 2) // 3}" if kind == "quarter" else f"{day.year:04}-{first:02}"
    return Period(start, end, name, kind)


def period_in(text: str) -> Period | None:
    """The last period that a name contains; None if there is none."""
    found = None
    for match in _NAMES.finditer(text):
        name, kind = match[0], str(match.lastgroup)
        try:
            if kind == "quarter":
                day = date(int(name[:4]), 3 * int(name[-1]), 1)
            else:
                day = date.fromisoformat(f"{name}-01" if kind == "month" else name)
            found = period_at(day, kind)
        except (ValueError, OverflowError):  # such as week 60
            continue
    return found


def last_period(word: str, today: date) -> Period:
    """The period that `last-week`, `yesterday`, `last-month` or `last-quarter` is on this day."""
    kind = "day" if word == "yesterday" else word.removeprefix("last-")
    return period_at(period_at(today, kind).start - timedelta(1), kind)


def fill_period(request: Request, today: date | None = None) -> Request:
    """The request with its period in place of words and places: `last-week`, `{period}`, and `known` previous.

    The day is that of this machine's clock and time zone. A request without any of these is returned as it is.
    """
    word = None if request.id is None else _WORD.fullmatch(request.id)
    if word is not None:
        period = last_period(word["word"], today or date.today())
        request = replace(request, id=f"{word['before']}{period}")
    period_of_id = None if request.id is None else period_in(request.id)
    changed: dict[str, Any] = {
        name: filled
        for name in _FILLED
        if (filled := _filled(getattr(request, name), period_of_id, name)) is not getattr(request, name)
    }
    request = replace(request, **changed) if changed else request
    # Anything but a text may be a frame, which has another ==.
    is_previous = isinstance(request.known, str) and request.known == PREVIOUS
    return replace(request, known=_previous_release(request)) if is_previous else request


def _filled(value: object, period: Period | None, option: str) -> object:
    """The value with the period in its places; values without places are returned themselves."""
    if isinstance(value, (tuple, list)):
        parts = [_filled(part, period, option) for part in value]
        return type(value)(parts) if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not _PLACES.search(text):
        return value
    if period is None:
        name = "the input" if option == "input" else f"<{flag(option)}>"
        raise InvalidParameter(
            f"{name} has {{period}}, {{start}} or {{end}}, which come from <--id>: give one with a period, such "
            "as <--id last-week> or <--id 2026-W46> (a day is 2026-11-19, a month 2026-11; weeks have two digits)"
        )
    names = {"period": period.name, "start": period.start.isoformat(), "end": period.end.isoformat()}
    return _PLACES.sub(lambda match: names[match[1]], text)


def fill_name(name: str, request: Request) -> str:
    """A file name with the period of a request that `fill_period` returned."""
    period = None if request.id is None else period_in(request.id)
    return str(_filled(name, period, "report"))


def _previous_release(request: Request) -> str | None:
    """The newest release before the request's period, next to its output; None if it is the first.

    Raises `NotVerified` unless it verifies: of any other file, the items need not be public.
    """
    output = None if request.output is None else os.fspath(request.output)
    if output is None or output == STREAM or scheme_of(output) or request.output_table is not None:
        raise InvalidParameter(
            f"<--known {PREVIOUS}> looks next to <--output>, which must be a file: name the previous release "
            "itself"
        )
    path = Path(output)
    period = period_in(path.name)
    if period is None:
        raise InvalidParameter(
            f"<--known {PREVIOUS}> needs a period in the name of <--output>, such as releases/{{period}}.parquet "
            "with <--id last-week>, or releases/2026-W46.parquet"
        )
    earlier = [found for found in _releases_like(path, period) if found[0] < period]
    if not earlier:
        return None
    # Verifying imports much, and most requests need none.
    from dphist.certificate.verify import SEEDED, verify

    name = str(max(earlier)[1])
    found = verify(name)
    wrong = [problem for problem in found.problems if problem != SEEDED or request.seed is None]
    if wrong:
        raise NotVerified(
            f"the previous release {name} is not verified ({wrong[0]}), so its items need not be public: restore "
            "it, or leave <--known> out"
        )
    return name


def _releases_like(path: Path, period: Period) -> Iterator[tuple[Period, Path]]:
    """Files whose names differ from this path in the period only."""
    before, _, after = path.name.rpartition(period.name)
    for other in path.parent.iterdir() if path.parent.is_dir() else ():
        if other.name.startswith(before) and other.name.endswith(after):
            middle = other.name[len(before) : len(other.name) - len(after)]
            found = period_in(middle)
            if found is not None and found.name == middle and found.kind == period.kind:
                yield found, other
