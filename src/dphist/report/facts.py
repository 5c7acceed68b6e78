"""The facts of a report, from a verified release and its certificate. They contain no true counts."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np

from dphist.accounting.profile import certified_delta
from dphist.certificate.numbers import half_width, rounding_step
from dphist.certificate.plans import is_difference, is_perhaps_reduced, plan_of
from dphist.certificate.reading import match_values, read_certificate
from dphist.certificate.request import MARGIN, TOTAL, AnyRequest, SketchRequest, count_column
from dphist.certificate.schema import Counts, Findings, Statement, decode
from dphist.certificate.text import certificate_text
from dphist.certificate.verify import SEEDED, Verification, read_and_verify, verify_document, verify_readback
from dphist.display import printable
from dphist.errors import LARGEST_EPSILON, DphistError, InputError, InvalidParameter, NotVerified
from dphist.model import Plan, RoundsNoise
from dphist.planning.utility import count_noise
from dphist.proof.numerics import FloatArray, IntArray
from dphist.releasing.result import ALL, Release
from dphist.releasing.summary import LEVEL, Summary, column_digits, summarize
from dphist.signatures import Trust

if TYPE_CHECKING:
    import pyarrow as pa

    from dphist.aliases import ArrowColumn, JsonObject, Numbers


CountsKind = Literal["users", "estimates", "differences", "perhaps_reduced", "sketch"]
# Kinds of counts for which a report computes intervals if the release has none.
WITH_INTERVALS: Final = ("users", "sketch")
# Items that could be mistaken for another are quoted.
_QUOTED: Final = re.compile(r'^"*\((?:missing|empty|all)\)"*$|^[ \u3000]|[ \u3000]$')
# Invisible characters: control characters, line ends, odd spaces, direction marks and others that Unicode lets
# readers ignore. Two items that differ only in these would look the same.
_UNSEEN: Final = (
    "\x00-\x1f\x7f-\xa0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
# Joiners between emojis and selectors after them change how they look, so they stay.
_PICTURE: Final = "\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_JOINED: Final = f"(?<=[{_PICTURE}\ufe0f])\u200d(?=[{_PICTURE}])|(?<=[{_PICTURE}])\ufe0f"
_INVISIBLE: Final = re.compile(f"({_JOINED})|[{_UNSEEN}]")
# Longer items are cut in the middle, because addresses often differ only at their ends; they unfold.
LONGEST_ITEM: Final = 80
# Certified points of the curve; with shared noise each takes a tenth of a second.
_POINTS: Final = 41
_POINTS_SHARED: Final = 21
_SELECTION_POINTS: Final = 121


@dataclass(frozen=True)
class TextColumn:
    """A column of texts as `label_item` makes them: a missing item is None, and an empty one an empty text."""

    name: str
    values: tuple[str | None, ...]
    by_number: bool = False
    kind: ClassVar[str] = "text"

    def texts(self, first: int) -> list[str]:
        return ["(missing)" if text is None else text or "(empty)" for text in self.values[:first]]


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers rounded to `digits`, of margins, or of intervals.

    The values of intervals are their lower ends; `half` is half their width if they are the counts ± `half`.
    """

    name: str
    kind: Literal["number", "margin", "interval"]
    values: tuple[float, ...]
    digits: int = 0
    upper: tuple[float, ...] = ()
    half: float | None = None

    def texts(self, first: int) -> list[str]:
        numbers, *upper = (
            [f"{value:,.{self.digits}f}" for value in values[:first]]
            for values in (self.values, *([self.upper] if self.kind == "interval" else []))
        )
        if self.kind == "margin":
            return ["unknown" if number == "nan" else f"±{number}" for number in numbers]
        if self.kind == "number":
            return ["–" if number == "nan" else number for number in numbers]
        return [" to ".join(ends) for ends in zip(numbers, *upper, strict=True)]


@dataclass(frozen=True)
class ReleasedRows:
    """All released rows in columns, the largest counts first.

    Each number comes before its margin or its interval at `level`. `width` is half the interval of a count, if the
    release has no intervals and they can be computed.
    """

    labels: tuple[TextColumn, ...]
    numbers: tuple[NumberColumn, ...]
    count: str
    total: int
    width: float | None
    level: float

    @property
    def columns(self) -> tuple[TextColumn | NumberColumn, ...]:
        return self.labels + self.numbers

    @property
    def items(self) -> tuple[str, ...]:
        """The names of the item columns."""
        return tuple(column.name for column in self.labels)

    @property
    def counts(self) -> tuple[float, ...]:
        return self.numbers[self._place].values

    @property
    def margins(self) -> tuple[float, ...] | None:
        """Half the width of the interval of each count, in a release in rounds."""
        after = self.numbers[self._place + 1 : self._place + 2]
        return after[0].values if after and after[0].kind == "margin" else None

    @property
    def intervals(self) -> tuple[Sequence[float], Sequence[float]] | None:
        """The lower and the upper ends of the intervals of the counts."""
        margins: Iterable[float] | None = self.margins
        if margins is None:
            # They follow the counts, or the standard errors of the counts.
            after = (one for one in self.numbers[self._place + 1 : self._place + 3] if one.kind == "interval")
            interval = next(after, None)
            if interval is None or interval.half is None:
                return None if interval is None else (interval.values, interval.upper)
            margins = repeat(interval.half, self.total)
        pairs = list(zip(self.counts, margins, strict=True))
        return [count - margin for count, margin in pairs], [count + margin for count, margin in pairs]

    @property
    def place(self) -> int:
        """Of the counts among the columns."""
        return len(self.labels) + self._place

    @property
    def _place(self) -> int:
        return [column.name for column in self.numbers].index(self.count)

    def first(self, number: int) -> tuple[list[str], list[list[str]]]:
        """Names of all columns and the first rows as texts."""
        rows = zip(*(column.texts(number) for column in self.columns), strict=True)
        return [column.name for column in self.columns], [list(row) for row in rows]


def label_item(item: str) -> str:
    """An item or a name as people see it: invisible characters are spelled out as in Python.

    It is quoted if it starts or ends with a space, or could be mistaken for a missing or an empty item or a total.
    """
    text = _INVISIBLE.sub(lambda match: match[0] if match[1] else ascii(match[0])[1:-1], item)
    return f'"{text}"' if _QUOTED.search(item) else text


def digits_of(deviation: float) -> int:
    """How many decimals a number with this noise deserves."""
    return max(0, 1 - math.floor(math.log10(deviation)))


def rows_of(table: pa.Table, plan: Plan, request: AnyRequest, decimals: int | None) -> ReleasedRows:
    """The rows of a release from its Arrow table."""
    name, asked = count_column(request, table), request.interval
    place, in_rounds = table.column_names.index(name), plan.noise.in_rounds
    numbers = {title: _numbers(table.column(title)) for title in table.column_names[place:]}
    counts, level = numbers[name], float(asked or LEVEL)
    digits = column_digits(plan, request, counts, numbers)
    by_size = np.argsort(-counts, kind="stable")
    ordered = table.take(by_size) if table.num_rows else table
    labels = tuple(text_column(title, ordered.column(title)) for title in table.column_names[:place])
    if request.total:
        labels = with_totals(labels[:-1], ordered.column(TOTAL), request.total)
    columns = []
    # The intervals of the release, or else those of its noise. Margins say the same as the intervals of counts.
    width: float | None = None
    ends: Mapping[str, Numbers] = {} if asked is None else numbers
    if asked is None and counts_kind(plan, request) in WITH_INTERVALS:
        width = half_width(plan, LEVEL) + rounding_step(decimals) / 2.0
        middle = counts.astype(np.float64)
        ends = {f"{name}_low": middle - width, f"{name}_high": middle + width}
    bounded = [title for title in numbers if f"{title}_low" in ends and f"{title}_high" in ends]
    hidden = {f"{title}{end}" for title in bounded for end in ("_low", "_high")} if asked is not None else set()
    for title in numbers:
        if title in hidden:
            continue
        values = _round_all(numbers[title][by_size], digits[title])
        if in_rounds and title == MARGIN:
            columns.append(NumberColumn(f"{MARGIN} ({100 * level:g} %)", "margin", values, digits[name]))
            continue
        columns.append(NumberColumn(_printable(title), "number", values, digits[title]))
        base = title.removesuffix("_standard_error")
        # An interval follows its number, or the standard error of its number.
        follows = base in bounded and (title != base or f"{base}_standard_error" not in numbers)
        if follows and not (in_rounds and base == name):
            low, high = (_round_all(ends[f"{base}_{end}"][by_size], digits[base]) for end in ("low", "high"))
            label = f"{100 * level:g} % interval" + (f" of {_printable(base)}" if len(bounded) > 1 else "")
            half = width if base == name else None
            columns.append(NumberColumn(label, "interval", low, digits[base], upper=high, half=half))
    return ReleasedRows(labels, tuple(columns), _printable(name), table.num_rows, width, level)


def _numbers(column: ArrowColumn) -> Numbers:
    if str(column.type).startswith("int") and not column.null_count:
        return np.asarray(column.to_pylist(), dtype=np.int64)
    return np.asarray(column.to_pylist(), dtype=np.float64)


def text_column(name: str, column: ArrowColumn) -> TextColumn:
    import pyarrow as pa

    try:
        values = column.cast(pa.string()).to_pylist()
    except (pa.ArrowException, ValueError):
        try:
            values = column.to_pylist()
        except (OverflowError, ValueError):  # a time that Python cannot hold
            values = ["?"] * len(column)
    # Lone surrogates, which come from file names, cannot be encoded.
    texts = (
        None if value is None else label_item(str(value).encode("utf-8", "backslashreplace").decode())
        for value in values
    )
    is_number = str(column.type).startswith(("int", "uint", "float", "double", "decimal"))
    return TextColumn(_printable(name), tuple(texts), is_number)


def with_totals(
    labels: tuple[TextColumn, ...], marks: ArrowColumn, totals: Sequence[str]
) -> tuple[TextColumn, ...]:
    """The columns of items, in which totals have the text `ALL`; the mark is then of no more use."""
    marked, names = marks.to_pylist(), {_printable(name) for name in totals}

    def shown(label: TextColumn) -> TextColumn:
        texts = zip(label.values, marked, strict=True)
        return replace(label, values=tuple(ALL if text is None and total else text for text, total in texts))

    return tuple(shown(label) if label.name in names else label for label in labels)


def cut_item(item: str, longest: int = LONGEST_ITEM) -> str:
    """The item without its middle if it is longer; two thirds of what is left are its beginning."""
    head = (longest - 1) * 2 // 3
    return item if len(item) <= longest else f"{item[:head]}…{item[head + 1 - longest :]}"


def _printable(name: str) -> str:
    return label_item(printable(name))


def _round_all(values: Numbers, digits: int) -> tuple[float, ...]:
    numbers = (round(float(value), digits) for value in values.tolist())
    return tuple(int(n) if digits == 0 and math.isfinite(n) else n for n in numbers)


def counts_kind(plan: Plan, request: AnyRequest) -> CountsKind:
    if plan.noise.in_rounds:
        return "estimates"
    if is_difference(plan, request):
        return "differences"
    if is_perhaps_reduced(plan, request):
        return "perhaps_reduced"
    return "sketch" if isinstance(request, SketchRequest) else "users"


@dataclass(frozen=True)
class Selection:
    """The effect of the threshold. Each point has a true count, its probability of release, and the bias and the
    standard deviation of the error of a released count.

    With a lower threshold the distribution is shifted by what is removed. With a top-k step, true counts are
    relative to the count that it subtracts, which is secret; `axis` says what they are.
    """

    points: tuple[tuple[int, float, float, float], ...]
    unlikely: int | None
    even: int
    likely: int
    axis: str
    # How many of the items that pass are kept, if a user limit replaces a top-k step.
    largest: int | None = None

    def to_dict(self) -> JsonObject:
        return {
            "axis": self.axis,
            "largest_of_those_that_pass": self.largest,
            "count_released_with_1_percent": self.unlikely,
            "count_released_with_50_percent": self.even,
            "count_released_with_99_percent": self.likely,
            "by_count": [
                {"count": count, "probability": p, "bias": bias, "standard_deviation": deviation}
                for count, p, bias, deviation in self.points
            ],
        }


def selection_of(plan: Plan, request: AnyRequest, decimals: int | None = None) -> Selection | None:
    """None if every item is released, or in rounds, where it depends on what is found."""
    if math.isinf(plan.threshold) or plan.noise.in_rounds:
        return None
    # If a user limit replaces the top-k step, nothing is subtracted.
    relative = (plan.releases_offset or request.top is not None) and plan.contract.max_nonzero is not None
    asked = request.lower_threshold
    lower = 1 if relative else asked
    law, deviation = count_noise(plan.noise), math.hypot(plan.sigma, plan.sigma_shared)
    middle = plan.noise.threshold + lower - 1
    first, last = max(lower, math.floor(middle - 4.0 * deviation)), math.ceil(middle + 5.0 * deviation) + 1
    unlikely, even, likely = (law.passing_count(aim) + lower - 1 for aim in (0.01, 0.5, 0.99))
    counts = np.unique(np.append(np.linspace(first, last, _SELECTION_POINTS).astype(np.int64), even))
    errors = selection_errors(plan, counts, lower, decimals=decimals)
    points = zip(counts.tolist(), *(values.tolist() for values in errors), strict=True)
    axis = "true number of users counted"
    if isinstance(request, SketchRequest):
        axis = "counter of the sketch"
    elif relative:
        # With a lower threshold, at least `asked - 1` is subtracted.
        least = f", or minus {asked - 1:,} if that is more" if asked > 1 else ""
        axis = f"true count minus that of the item ranked {plan.contract.nonzero + 1:,.0f}{least}"
    elif is_perhaps_reduced(plan, request):
        axis = "true count, minus what was subtracted from all"
    top = request.top
    return Selection(
        tuple(points), unlikely=unlikely - 1 if unlikely > lower else None, even=even, likely=likely, axis=axis,
        largest=top if isinstance(top, int) and plan.contract.max_nonzero is None else None,
    )  # fmt: skip


def selection_errors(
    plan: Plan, counts: IntArray, lower: int = 1, *, decimals: int | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Probability of release by true count; bias and standard deviation of the error of released counts."""
    probability, bias, variance = count_noise(plan.noise).released(counts - (lower - 1))
    return probability, bias, np.sqrt(variance + rounding_step(decimals) ** 2 / 12.0)


def curve_of(plan: Plan) -> tuple[tuple[float, float], ...]:
    """Certified points (epsilon, delta) up to twice the budget's epsilon."""
    points = _POINTS if plan.sigma_shared == 0.0 else _POINTS_SHARED
    epsilon, last = plan.budget.epsilon, min(2.0 * plan.budget.epsilon, LARGEST_EPSILON)
    # delta at the budget's epsilon, the point in the middle, is in the certificate.
    wanted = [x for place in range(points) if (x := last * place / (points - 1)) != epsilon]
    deltas = map(certified_delta(plan), wanted)
    return tuple(sorted([*zip(wanted, deltas, strict=True), (epsilon, plan.proof.delta)]))


@dataclass(frozen=True)
class Step:
    """Where items were found, and how many. In a round, the `evidence` that an item needs and its `noise`."""

    name: str
    items: int
    evidence: float | None = None
    noise: float | None = None


@dataclass(frozen=True)
class Rounds:
    """How items were found and measured.

    `users` are noisy numbers of users by number of released items, up to `most` of them in each group, with the
    standard deviation `deviation`. Users with more items than `count` are in groups by all of their items.
    `limit` is that of the measurement, 0 without one, and `measured` the standard deviation of its noise in
    users; `needed` the users with which an item is found half of the time.
    """

    steps: tuple[Step, ...]
    most: tuple[int, ...]
    count: int
    users: tuple[int, ...]
    deviation: float
    alone: bool
    limit: int
    measured: float
    needed: int | None
    reason: str | None

    @property
    def labels(self) -> list[str]:
        labels = [f"{b:,}" if b == a + 1 else f"{a + 1:,} to {b:,}" for a, b in pairwise((0, *self.most))]
        if self.most[-1] > self.count:
            labels[-1] = f"more than {self.most[-2]:,}"
        return [f"{label} in all" if b > self.count else label for b, label in zip(self.most, labels, strict=True)]

    @property
    def drawn(self) -> int:
        """How many numbers are drawn: all but the last ones, if they are within the noise."""
        above = (place for place, users in enumerate(self.users) if users > 3.0 * self.deviation)
        return min(len(self.users), max(max(above, default=0) + 2, 4))

    def to_dict(self) -> JsonObject:
        return {
            "found": [vars(step) for step in self.steps],
            "users_needed": self.needed,
            "limit": self.limit,
            "standard_deviation": self.deviation,
            "noisy_users": [
                {"released_items_of_a_user": label, "users": users}
                for label, users in zip(self.labels, self.users, strict=True)
            ],
            "reason": self.reason,
        }


def rounds_of(noise: RoundsNoise, findings: Findings, request: AnyRequest) -> Rounds:
    public, alone, *in_rounds = findings.found
    steps = []
    if noise.listed or request.known is not None:
        steps.append(Step("public list" if noise.listed else "known in advance", public))
    if noise.alone is not None:
        steps.append(Step("users with one item", alone, noise.alone.threshold, noise.alone.sigma))
    steps += [
        Step(f"round {place + 1}", items, noise.thresholds_steps[place] / noise.lattice, noise.deviation(place))
        for place, items in enumerate(in_rounds)
    ]
    return Rounds(
        tuple(steps),
        findings.bounds,
        noise.most_items,
        tuple(round(users / noise.lattice) for users in findings.sizes),
        noise.sigma_sizes,
        noise.alone is not None,
        findings.limit,
        math.sqrt(sum(noise.measure_noise(max(1, findings.limit)))) / noise.lattice,
        findings.needed,
        None if findings.reason is None else printable(findings.reason),
    )


@dataclass(frozen=True)
class Origin:
    """The certificate's text and place, and the `options` of `dphist verify` for this release.

    A release in memory has no certificate, even if it was also written.
    """

    certificate: str | None = None
    place: str = ""
    options: tuple[str, ...] = ()
    written: bool = True


@dataclass(frozen=True)
class Facts:
    """Everything in a report, as numbers and names; `dphist.report.words` turns them into sentences."""

    stated: Statement
    plan: Plan
    verified: Verification
    origin: Origin
    kind: CountsKind
    rows: ReleasedRows
    selection: Selection | None
    curve: tuple[tuple[float, float], ...]
    rounds: Rounds | None
    summary: Summary

    @property
    def private(self) -> bool:
        return self.verified.private

    @property
    def request(self) -> AnyRequest:
        return self.stated.request

    @property
    def delta_certified(self) -> float:
        delta = self.verified.delta_certified
        return self.plan.proof.delta if delta is None else delta


def gather_facts(
    release: Release | str | os.PathLike[str],
    *,
    certificate: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
) -> Facts:
    """Verify a release and gather its facts. Raises `NotVerified` for any problem except a seed.

    A release in memory that was written to a database has a `certificate` too.
    """
    trust = Trust.of(public_key, None)
    if isinstance(release, Release) and certificate is None:
        if public_key is not None:
            raise InvalidParameter("public_key needs a written release: pass its path")
        document: JsonObject | None = release.document()
        rows: pa.Table | None = release.to_arrow()
        verified = verify_document(document, rows, "FILE")
        origin = Origin(written=release.written is not None)
    else:
        if isinstance(release, Release):
            found = match_values(release.to_arrow(), *read_certificate(Path(certificate or "")), "the release")
            verified = verify_readback(found, "FILE", certificate, trust)
        else:
            verified, found = read_and_verify(release, certificate=certificate, trust=trust)
        document, rows, origin = found.document, found.table, Origin()
        if document is not None:
            origin = _origin(document, verified.address, certificate, public_key)
    refuse_unverified(verified)
    assert document is not None
    assert rows is not None
    try:
        return facts_of(document, rows, verified, origin)
    except DphistError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        # The certificate of a seeded release is not checked completely.
        raise InputError(f"the certificate is invalid ({type(error).__name__})") from None


def refuse_unverified(verified: Verification) -> None:
    problems = [problem for problem in verified.problems if problem != SEEDED]
    if problems:
        message = f"cannot report {verified.address}: it is not verified: {'; '.join(problems)}"
        raise NotVerified(printable(message))


def facts_of(document: JsonObject, table: pa.Table, verified: Verification, origin: Origin) -> Facts:
    stated = decode(document)
    plan, request = plan_of(stated.plan), stated.request
    kind, rows = counts_kind(plan, request), rows_of(table, plan, request, stated.counts.decimals)
    findings, rounds = stated.findings or None, None
    if plan.rounds is not None and findings is not None:
        rounds = rounds_of(plan.rounds, findings, request)
    summary = summarize(
        plan, request, items=rows.total, largest=largest_users(rows, kind, stated.counts),
        private=verified.private, findings=findings,
        margins=None if rows.margins is None else np.array(rows.margins, dtype=np.float64),
    )  # fmt: skip
    return Facts(
        stated, plan, verified, origin, kind, rows, selection_of(plan, request, stated.counts.decimals),
        curve_of(plan), rounds, summary,
    )  # fmt: skip


def largest_users(rows: ReleasedRows, kind: CountsKind, counts: Counts) -> float | None:
    """Users of the largest item, apart from noise; a sketch overestimates them by at most the offset."""
    spare = (counts.offset or 0.0) if kind == "sketch" else 0.0
    return rows.counts[0] - spare if rows.total else None


def _origin(
    document: JsonObject,
    address: str,
    certificate: str | os.PathLike[str] | None,
    public_key: str | os.PathLike[str] | None,
) -> Origin:
    files = [("--certificate", certificate), ("--public-key", public_key)]
    options = [(flag, None if path is None else Path(path).name) for flag, path in files]
    output = document.get("output")
    kind = output.get("kind") if isinstance(output, dict) else None
    if certificate is not None:
        place = Path(certificate).name
    elif kind == "folder":
        place = f"{Path(address).name}/_certificate.json"
    else:
        place = f"{Path(address).name}.certificate.json"
    flags = tuple(word for flag, value in options if value is not None for word in (flag, value))
    return Origin(certificate_text(document), place, flags)
