"""`release_histogram`: noise and threshold for histograms that were counted elsewhere, and for sketches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dphist.aliases import ArrowArray
from dphist.certificate.plans import Nonzero, certify_again, nonzero_rule
from dphist.certificate.request import HistogramRequest
from dphist.counting.columns import arrow_column, as_numpy, has_repeats, item_column, one_chunk
from dphist.counting.task import origins
from dphist.errors import InvalidParameter, check_unicode, package, positive_count
from dphist.model import Plan
from dphist.releasing.noise import (
    LARGEST_EXACT,
    CountRows,
    IntArray,
    Subtracted,
    Total,
    begin,
    blocks,
    check_counts,
    counts_of,
    release_blocks,
)
from dphist.releasing.result import ARROW, PACKAGES, Form, Names, Package, Release, frame_form
from dphist.sampling.rng import Rng, SecureRng, SeededRng

# Rows that get noise together: enough for the compiled sampler, with about 150 MB of working memory.
BATCH_SIZE: Final = 1 << 22


def release_histogram(
    items: object,
    counts: object = None,
    plan: Plan | None = None,
    *,
    item: str | Sequence[str] = "item",
    count: str = "count",
    seed: int | None = None,
    batch_size: int = BATCH_SIZE,
    guarantee_max_nonzero: bool = False,
) -> Release:
    """Add noise to a histogram that was counted elsewhere, and release the counts above the threshold.

    You guarantee that one user changes at most `max_items_per_user` counts, by at most 1 each: counts alone cannot
    show it. A plan with `max_nonzero` alone is enforced by a top-k step, which reads the data twice: the
    (max_nonzero + 1)-th largest count is subtracted from all.

    >>> import dphist
    >>> plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=10)
    >>> print(dphist.release_histogram(["tea", "rare"], [5000, 1], plan, seed=1).items)
    ['tea']

    Args:
        items: Items (a list, a numpy array, a Series or an Arrow array) with their `counts`; or a frame (pandas,
            polars, Arrow) with both; or batches of either, which share one draw of noise.
        counts: The true counts: whole numbers, one for each item. Left out for frames and batches.
        plan: From `dphist.plan`, with `max_items_per_user`, `max_nonzero` or `top`.
        item: Of a frame: the item's column, or a list of several.
        count: Of a frame: the column of counts. Also the name of the count column in the result.
        seed: For tests: seed of the noise. The release is NOT PRIVATE.
        batch_size: Rows that get noise together, which limits memory.
        guarantee_max_nonzero: You guarantee that no possible dataset has more than `max_nonzero` non-zero counts.
            Then nothing is subtracted, and if the data has more after all, nothing is released.

    Raises:
        InvalidParameter: The counts are not whole numbers, or the plan is for something else than counts.
    """
    sound = certify_again(plan)
    if sound.noise.in_rounds:
        raise InvalidParameter(
            "a plan in rounds needs user events, as in dphist.release: plan with max_items_per_user"
        )
    if sound.noise.public:
        raise InvalidParameter("a plan for a public list of items is for dphist.release only")
    if sound.sums:
        raise InvalidParameter("a plan with sums needs user events, as in dphist.release")
    rule = nonzero_rule(sound, promised=guarantee_max_nonzero)
    names = checked_names(item, count)
    # An int: sums of narrow numpy integers would wrap around, and rows get noise twice.
    batch_size = positive_count("batch_size", batch_size)
    rng: Rng = SecureRng() if seed is None else SeededRng(seed)
    top_k = rule is Nonzero.TOP_K
    pieces = _pieces_of(items, counts, names, lattice=sound.steps_of_count, twice=top_k)
    floor, total = 0, None
    if top_k:
        floor, total = _floor(blocks(pieces(), batch_size), int(sound.contract.nonzero) + 1)
    session = begin(sound, rng, Subtracted(floor))
    release = release_blocks(blocks(pieces(), batch_size), session, rule, names, expected=total)
    return replace(release, request=HistogramRequest(guarantee_max_nonzero=rule is Nonzero.PROMISED))


def _floor(histogram: Iterable[list[CountRows]], rank: int) -> tuple[int, Total]:
    """The count of this rank, 0 if fewer counts are positive, and the totals of this reading."""
    largest, total = np.empty(0, dtype=np.int64), Total()
    for block in histogram:
        counts = counts_of(block)
        largest, total = largest_counts(largest, counts, rank), total.after(counts)
    return int(largest.min()) if largest.size == rank else 0, total


def largest_counts(known: IntArray, more: IntArray, rank: int) -> IntArray:
    """The `rank` largest positive counts of both arrays."""
    candidates = np.concatenate([known, more[more > 0]])
    return candidates if candidates.size <= rank else np.partition(candidates, -rank)[-rank:]


# Reading a histogram of any kind.


def checked_names(item: str | Sequence[str], count: str) -> Names:
    """Raises `InvalidParameter` unless the names differ."""
    items = (item,) if isinstance(item, str) else tuple(item)
    names = (*items, count)
    if not items or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidParameter(f"item and count must be different names of columns, not {item!r} and {count!r}")
    check_unicode(names)
    return Names(items, count)


def _pieces_of(
    items: Any, counts: object, names: Names, *, lattice: int, twice: bool
) -> Callable[[], Iterator[CountRows]]:
    """A function that reads the pieces of the histogram; it must work `twice` for a top-k step."""
    form, batches = frame_form(items), items
    if counts is not None:
        if form is not None:
            raise InvalidParameter(
                "a frame holds its counts: name their column with count=, and pass the plan as plan="
            )
        batches = [(items, counts)]
    elif form is not None:
        frame = items if origins(items) & PACKAGES else pa.table(items)
        _check_names(frame, form, names)
        batches = frame if form.shape == "reader" else [frame]
    elif isinstance(items, (str, bytes)) or not (callable(items) or isinstance(items, Iterable)):
        raise InvalidParameter(
            f"a histogram must be a frame or batches of (items, counts), not {type(items).__name__}"
        )

    if twice and not callable(batches) and iter(batches) is batches:
        raise InvalidParameter(
            "a plan with max_nonzero reads the data twice, and this stream can be read only once: pass a function "
            "that restarts it, a list of batches or a frame, or guarantee_max_nonzero=True if the bound holds"
        )

    def pieces() -> Iterator[CountRows]:
        for batch in batches() if callable(batches) else batches:
            yield _piece_of(batch, form, names, lattice)

    return pieces


def _check_names(frame: Any, form: Form, names: Names) -> None:
    if form.package == "pandas":
        present = list(frame.columns)
    else:
        present = list(frame.schema.names if form.package == "pyarrow" else frame.collect_schema().names())
    for name in (*names.items, names.count):
        if present.count(name) != 1:
            problem = "more than one" if name in present else "no"
            raise InvalidParameter(
                f"the frame has {problem} column {name!r}: name your columns with item= and count="
            )


def _piece_of(batch: Any, form: Form | None, names: Names, lattice: int) -> CountRows:
    """The batch is a frame, of this form if it is known, or a pair of items and counts."""
    batch_form = frame_form(batch)
    if form is None and batch_form is not None and batch_form.shape != "reader":
        _check_names(batch, batch_form, names)
        form = batch_form
    if form is not None:
        frame = batch.select([*names.items, names.count]).collect() if form.shape == "lazy" else batch
        columns, numbers = [frame[name] for name in names.items], frame[names.count]
    elif isinstance(batch, tuple) and len(batch) == 2:
        form, columns, numbers = Form(_package_of(batch[0])), [batch[0]], batch[1]
    else:
        raise InvalidParameter(f"a batch must be (items, counts) or a frame, not {type(batch).__name__}")
    items, counts = tuple(map(item_column, columns)), check_counts(_count_array(numbers), lattice=lattice)
    if len(items[0]) != len(counts):
        raise InvalidParameter("items and counts must have the same length")
    if has_repeats(items):
        raise InvalidParameter("an item occurs twice: add up the counts of equal items")
    typed = form.package in ("numpy", "pandas")
    types = tuple(_kept_type(column.dtype) for column in columns) if typed else ()
    return CountRows(replace(form, types=types), items, counts)


def _kept_type(dtype: object) -> object:
    """The type that the result gets back; None if the type itself may hold items that are not released."""
    if isinstance(dtype, np.dtype):
        # Without the width, which is that of the longest text.
        return np.dtype(dtype.kind) if dtype.kind in "US" else dtype
    pd = package("pandas")
    # The categories of one, the fill value of the other, and whatever a type of another package holds.
    holds_values = isinstance(dtype, (pd.CategoricalDtype, pd.SparseDtype))
    return dtype if type(dtype).__module__.partition(".")[0] == "pandas" and not holds_values else None


def _package_of(values: object) -> Package:
    if isinstance(values, (list, tuple)):
        return "list"
    if isinstance(values, np.ndarray):
        return "numpy"
    own = PACKAGES & origins(values)
    return own.pop() if own else "pyarrow"


def _count_array(values: Any) -> NDArray[Any]:
    """Counts as a numpy array of numbers. Error messages never contain a count."""
    if isinstance(values, np.ma.MaskedArray):
        raise InvalidParameter("counts must not be masked: a masked count is a null")
    if isinstance(values, (list, tuple)):
        return _whole_numbers(values)
    kind = getattr(values, "dtype", None)
    if isinstance(kind, np.dtype) and np.ndim(values) == 1:
        return _whole_numbers(values) if kind.kind == "O" else np.asarray(values)
    column = arrow_column(values, "counts")
    if column.null_count > 0:
        raise InvalidParameter("counts must not be null")
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return as_numpy(one_chunk(column))
    return _whole_numbers(column.to_pylist())


def _whole_numbers(values: Sequence[object] | NDArray[Any]) -> IntArray:
    numbers = []
    for value in values:
        if value is None:
            raise InvalidParameter("counts must not be null")
        if isinstance(value, bool) or not isinstance(
            value, (int, float, Decimal, Fraction, np.integer, np.floating)
        ):
            raise InvalidParameter("all counts must be numbers")
        if value != value:
            raise InvalidParameter("counts must not be NaN")
        if not 0 <= value <= LARGEST_EXACT:
            raise InvalidParameter("all counts must be between 0 and 2^53")
        if value != int(value):
            raise InvalidParameter("counts must be whole numbers")
        numbers.append(int(value))
    return np.array(numbers, dtype=np.int64)


# Sketches.


def release_sketch(
    columns: tuple[ArrowArray, ...],
    counts: IntArray,
    plan: Plan,
    *,
    subtracted: int,
    names: Names,
    seed: int | None,
) -> Release:
    """Noise and threshold for the counters of a sketch, whose items are Arrow columns.

    The plan must be certified and hold for the sketch (`sketch_problem`). If it releases an offset, the noisy
    total that the sketch has `subtracted` is added to every count.
    """
    # Clamped, because an error for too large a number would reveal it.
    largest = LARGEST_EXACT // plan.steps_of_count
    rng: Rng = SecureRng() if seed is None else SeededRng(seed)
    rule, cut = Nonzero.PROMISED, Subtracted()
    if plan.releases_offset:
        rule, cut = Nonzero.TOP_K, Subtracted(min(subtracted, largest))
    # The session subtracts this amount again.
    whole = np.minimum(counts, largest) + cut.subtracted
    block = [CountRows(ARROW, columns, whole)]
    return release_blocks([block], begin(plan, rng, cut), rule, names, distinct=True)
