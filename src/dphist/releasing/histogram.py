"""`release_histogram`: noise and threshold for histograms that were counted elsewhere; and for sketches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from dphist.errors import InvalidParameter, package
from dphist.privacy.types import LatticeNoise, Noise, Plan, PublicNoise
from dphist.releasing.document import Nonzero, certify_again, nonzero_rule
from dphist.releasing.noise import (
    LARGEST_EXACT,
    Cut,
    IntArray,
    NoiseStage,
    Piece,
    Total,
    blocks,
    check_counts,
    counts_of,
    largest_counts,
    numbers_of,
)
from dphist.releasing.request import origins
from dphist.releasing.result import (
    ARROW,
    SHAPES,
    Form,
    Names,
    Package,
    Release,
    frame_form,
    has_repeats,
    is_series,
    objects,
)
from dphist.sampling.tap import SecureTap, SeededTap, Tap

# Rows that meet noise together: enough for the compiled sampler, and some 150 MB of working memory.
BATCH_SIZE: Final = 1 << 22


def release_histogram(
    items: Any,
    counts: Any = None,
    plan: Plan | None = None,
    *,
    item: str | Sequence[str] = "item",
    count: str = "count",
    seed: int | None = None,
    batch_size: int = BATCH_SIZE,
    promise_max_nonzero: bool = False,
) -> Release:
    """Noisy counts above the threshold, for a histogram that was counted elsewhere.

    Give `items` and `counts` (lists, numpy, Series of pandas or polars, Arrow arrays), or a frame instead of both
    (pandas, polars, Arrow) with the names of its columns in `item` and `count`, or batches of either. All batches
    share one draw. `to_native()` of the result has the kind that came in.

    A plan with `max_nonzero` alone is kept by the top-k step: the (max_nonzero + 1)-th largest count is subtracted
    from all. That reads the data twice. `promise_max_nonzero` says that no possible dataset has more non-zero
    counts; then nothing is subtracted, and nothing is released should the data have more.
    That one user touches at most `max_items_per_user` counts, each by one, cannot be seen in counts: it is the
    caller's promise, always. `seed` is for tests: what it makes is not private.

    >>> import dphist
    >>> plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=10, noise="discrete")
    >>> release_histogram(["tea", "rare"], [5000, 1], plan, seed=1).items
    ['tea']
    """
    sound = certify_again(plan)
    if sound.contract.spread is not None:
        raise InvalidParameter(
            "a plan with spread is for user events, whose items dphist.release weighs: plan with excess='drop'"
        )
    if isinstance(sound.noise, PublicNoise):
        raise InvalidParameter("a plan for a public list of items is for dphist.release, which reads the list")
    if sound.sums:
        raise InvalidParameter("a plan with sums is for dphist.release, which makes sums of each user's values")
    rule = nonzero_rule(sound, promised=promise_max_nonzero)
    names = checked_names(item, count)
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise InvalidParameter(f"batch_size must be a whole number of at least 1, not {batch_size!r}")
    tap: Tap = SecureTap() if seed is None else SeededTap(seed)
    assert not isinstance(sound.noise, Noise)
    source = source_of(items, counts, names, lattice=sound.noise.lattice)
    if rule is Nonzero.TOP_K and not source.again:
        raise InvalidParameter(
            "a plan with max_nonzero reads the data twice, and this stream can be read only once: give a function "
            "that starts it again, a list of batches or a frame, or promise_max_nonzero=True if that bound holds"
        )
    return _release(source, sound, rule, names, tap, int(batch_size))


def _release(source: Source, plan: Plan, rule: Nonzero, names: Names, tap: Tap, size: int) -> Release:
    """Both passes. Nothing leaves before the last block was checked."""
    total, floor = Total(), 0
    if rule is Nonzero.TOP_K:
        assert plan.contract.max_nonzero is not None
        floor, total = _floor(source, plan.contract.max_nonzero + 1, size)
    stage = NoiseStage(plan, rule, names, tap, Cut(floor))
    for block in blocks(source.pieces(), size):
        stage.add(block)
    if rule is Nonzero.TOP_K and stage.seen != total:
        raise InvalidParameter("the batches must be the same at both readings, and they were not")
    return stage.release()


def _floor(source: Source, rank: int, size: int) -> tuple[int, Total]:
    """The count of this rank over all blocks, 0 where fewer are positive, and what was seen."""
    largest, total = np.empty(0, dtype=np.int64), Total()
    for block in blocks(source.pieces(), size):
        counts = counts_of(block)
        largest, total = largest_counts(largest, counts, rank), total.after(counts)
    return int(largest.min()) if largest.size == rank else 0, total


# Histograms, as they come in.


@dataclass(frozen=True)
class Source:
    """Pieces of one histogram; `again` if they can be read a second time."""

    pieces: Callable[[], Iterator[Piece]]
    again: bool


def checked_names(item: str | Sequence[str], count: str) -> Names:
    """The names of the columns, each used once."""
    items = (item,) if isinstance(item, str) else tuple(item)
    every = (*items, count)
    if not items or not all(isinstance(name, str) for name in every) or len(set(every)) < len(every):
        raise InvalidParameter(f"item and count must be different names of columns, not {item!r} and {count!r}")
    return Names(items, count)


def source_of(items: Any, counts: Any, names: Names, *, lattice: int) -> Source:
    """The pieces of a histogram in any form."""
    form, batches = frame_form(items), items
    if counts is not None:
        if form is not None:
            raise InvalidParameter("a frame holds its counts: name their column with count=, and give the plan=")
        batches = [(items, counts)]
    elif form is not None:
        frame = items if origins(items) & SHAPES.keys() else package("pyarrow").table(items)
        _check_names(frame, form, names)
        batches = frame if form.shape == "reader" else [frame]
    elif isinstance(items, (str, bytes)) or not (callable(items) or isinstance(items, Iterable)):
        raise InvalidParameter(
            f"a histogram must be a frame or batches of (items, counts), not {type(items).__name__}"
        )

    def pieces() -> Iterator[Piece]:
        for batch in batches() if callable(batches) else batches:
            yield _piece_of(batch, form, names, lattice)

    return Source(pieces, again=callable(batches) or iter(batches) is not batches)


def _check_names(frame: Any, form: Form, names: Names) -> None:
    if form.package == "pandas":
        present = list(frame.columns)
    else:
        present = list(frame.schema.names if form.package == "pyarrow" else frame.collect_schema().names())
    for name in (*names.items, names.count):
        if present.count(name) != 1:
            found = "more than one" if name in present else "no"
            raise InvalidParameter(f"the frame has {found} column {name!r}: name yours with item= and count=")


def _piece_of(batch: Any, form: Form | None, names: Names, lattice: int) -> Piece:
    """A frame, of this form if it is known, or a pair of items and counts."""
    own = frame_form(batch)
    if form is None and own is not None and own.shape != "reader":
        _check_names(batch, own, names)
        form = own
    if form is not None:
        frame = batch.select([*names.items, names.count]).collect() if form.shape == "lazy" else batch
        columns, numbers = [frame[name] for name in names.items], frame[names.count]
    elif isinstance(batch, tuple) and len(batch) == 2:
        form, columns, numbers = Form(_package_of(batch[0])), [batch[0]], batch[1]
    else:
        raise InvalidParameter(f"a batch must be (items, counts) or a frame, not {type(batch).__name__}")
    arrays, counts = tuple(_array(column, "items") for column in columns), _array(numbers, "counts")
    if len(arrays[0]) != len(counts):
        raise InvalidParameter("items and counts must have the same length")
    whole = check_counts(numbers_of(counts), lattice=lattice)
    if has_repeats(arrays):
        raise InvalidParameter("items must differ, and one of them comes twice: add up the counts of equal items")
    types = tuple(column.dtype for column in columns) if form.package == "pandas" else ()
    return Piece(replace(form, types=types), arrays, whole)


def _package_of(values: object) -> Package:
    if isinstance(values, (list, tuple)):
        return "list"
    if isinstance(values, np.ndarray):
        return "numpy"
    if "pandas" in origins(values):
        return "pandas"
    return "polars" if "polars" in origins(values) else "pyarrow"


def _array(values: Any, name: str) -> Any:
    """A column as an array of Arrow, or of numpy where that is what it is or where Arrow has no type for it."""
    if isinstance(values, (list, tuple)):
        return objects(values)
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise InvalidParameter(f"items and counts must be one-dimensional, not of shape {values.shape}")
        return values
    if not is_series(values) or not (origins(values) & SHAPES.keys() or hasattr(values, "__arrow_c_stream__")):
        raise InvalidParameter(
            f"{name} must be a list, a numpy array, a Series of pandas or polars or an Arrow array, "
            f"not {type(values).__name__}"
        )
    if _package_of(values) == "pandas" and isinstance(values.dtype, np.dtype):
        return values.to_numpy()
    pa = package("pyarrow")
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    try:
        array = values.to_arrow() if _package_of(values) == "polars" else pa.array(values)
    except (pa.ArrowException, TypeError, ValueError):
        return objects(list(values))
    return objects(list(values)) if isinstance(array.type, pa.BaseExtensionType) else array


# Sketches.


def sketch_problem(plan: Plan, size: int) -> str | None:
    """Why a certified plan does not hold for sketches of this size; None if it does.

    One user moves up to `size` counters of a sketch, all up or all down, however few items the user has.
    Neighbours are those of a top-k step, with what was subtracted in total: plans with an offset hold too.
    """
    if plan.sums:
        return "a plan with sums does not hold for a sketch, which counts only"
    if plan.contract.spread is not None:
        return "a plan with spread does not hold for a sketch, which counts whole items"
    if isinstance(plan.noise, PublicNoise):
        return "a plan for a public list of items does not hold for a sketch, whose items are not public"
    if plan.contract.items < size:
        return (
            f"the plan lets one user touch {plan.contract.items} counts, and in a sketch of size {size} a user "
            f"with a single item can change all {size}: plan with max_nonzero={size} or top={size}, and without "
            "a smaller max_items_per_user"
        )
    return None


def sketch_request(plan: Plan, size: int, seed: int | None) -> dict[str, Any]:
    """What a certificate says was asked for, of a sketch."""
    seeded = {} if seed is None else {"seed": seed}
    offset = {"offset": plan.noise.offset} if isinstance(plan.noise, LatticeNoise) and plan.releases_offset else {}
    return {
        "sketch": "misra-gries", "sketch-size": size, "epsilon": plan.budget.epsilon, "delta": plan.budget.delta,
        **seeded, **offset,
    }  # fmt: skip


def release_sketch(
    columns: tuple[Any, ...], counts: IntArray, plan: Plan, *, subtracted: int, names: Names, seed: int | None
) -> Release:
    """Noise and threshold for the counters of a sketch in Arrow columns; with a plan for it, the offset is added.

    The plan is certified and holds for the sketch (`sketch_problem`), which has no more counters than its size:
    nothing is subtracted here.
    """
    assert not isinstance(plan.noise, Noise)
    # No error where counts are too large, nor where too much was subtracted: it would tell of them.
    largest = LARGEST_EXACT // plan.noise.lattice
    tap: Tap = SecureTap() if seed is None else SeededTap(seed)
    rule, cut = Nonzero.PROMISED, Cut()
    if plan.releases_offset:
        rule, cut = Nonzero.TOP_K, Cut(min(subtracted, largest))
    # The stage takes what was subtracted again.
    whole = np.minimum(counts, largest) + cut.subtracted
    stage = NoiseStage(plan, rule, names, tap, cut, distinct=True)
    stage.add([Piece(ARROW, columns, whole)])
    return stage.release()
