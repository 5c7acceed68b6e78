"""`dphist sketch`: build, merge and release sketches of streams."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dphist.cli.base import (
    AsJson,
    Delta,
    Epsilon,
    Force,
    Quiet,
    closed_pipe_ignored,
    group,
    option,
    print_json,
    progress_bars,
    stoppable,
    whole_number,
    wrap,
    write_out,
)
from dphist.cli.planning import show_plan
from dphist.cli.releasing import DryRun, release_facts, show_release
from dphist.counting.task import Resources
from dphist.counting.workspace import check_address_space
from dphist.errors import InvalidParameter

if TYPE_CHECKING:
    from dphist.sketch import MisraGries


sketch = group(
    "sketch",
    "Sketches of streams (Misra-Gries): at most K counters, merged and released. Sketch files are SECRET.",
)

_SECRET = "SECRET: it holds true counts and is not private. Keep it as secret as the events."

Input = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Files, globs or folders (Parquet, CSV, JSON lines, Arrow), or a database. All files with events of "
        "the same users must be in one build.",
    ),
]
Size = Annotated[
    int,
    typer.Option(
        "--size", metavar="K", parser=whole_number, help="Largest number of counters.", rich_help_panel="Output"
    ),
]
ExpectedSize = Annotated[
    int | None, typer.Option("--size", metavar="K", parser=whole_number, help="Refuse a sketch of another size.")
]
SketchOutput = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="File of the sketch; only its owner can read it.",
        rich_help_panel="Output",
    ),
]
Sketches = Annotated[list[str], typer.Argument(metavar="SKETCH", help="Sketches of DIFFERENT users.")]
One = Annotated[str, typer.Argument(metavar="SKETCH", help="A file of dphist sketch build or merge.")]
Offset = Annotated[
    Literal["opposite", "independent", "none"],
    typer.Option("--offset", help="How the subtracted count is released and added again; none leaves it out."),
]


@sketch.command()
def build(
    inputs: Input,
    user: Annotated[str, option("user")],
    item: Annotated[list[str], option("item")],
    size: Size,
    output: SketchOutput,
    where: Annotated[str | None, option("where")] = None,
    table: Annotated[str | None, option("table")] = None,
    query: Annotated[str | None, option("query")] = None,
    input_format: Annotated[str | None, option("input_format")] = None,
    force: Force = False,
    memory: Annotated[str | None, option("memory")] = None,
    threads: Annotated[int | None, option("threads")] = None,
    temp_folder: Annotated[str | None, option("temp_folder")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Build the sketch of user events.

    A user must be in ONE build, with all events: give all files that have events of the same users together.
    THE SKETCH IS SECRET: it holds true counts. Nothing is private before `dphist sketch release`.

    \b
    Examples:
      dphist sketch build log.parquet --user user_id --item query \\
        --size 1000 -o log.sketch
      dphist sketch build 'users-0/*.csv' --user user --item country \\
        --item page --where "status = '200'" --size 1000 \\
        --memory 2GB -o users-0.sketch
    \b
    Exit code 0: built. 1: the sketch could not be written. 2: bad parameters
    or unreadable input. 130, 143: interrupted; nothing was written.
    """
    check_address_space(Resources(memory))
    from dphist.sketch import build as build_sketch
    from dphist.sketch.counters import check_place, write_secret

    check_place(output, force=force)
    with stoppable() as placed, progress_bars(quiet) as watcher:
        built = build_sketch(
            inputs[0] if len(inputs) == 1 else inputs, size, user=user, item=item, table=table, query=query,
            where=where, input_format=input_format, memory=memory, threads=threads, temp_folder=temp_folder,
            progress=None if watcher is None else lambda share: watcher("counting", share),
        )  # fmt: skip
        write_secret(output, built.to_bytes(), force=force, placed=placed.append)
    _show_sketch(built, output, as_json, quiet)


@sketch.command()
def merge(
    sketches: Sketches, output: SketchOutput, force: Force = False, as_json: AsJson = False, quiet: Quiet = False
) -> None:
    """Merge sketches of DIFFERENT users into one.

    No user may be in two of them: split the events by user before the sketches are built, for example by a hash of
    the user. A user who is in two sketches counts twice and is NOT protected by the release. THE SKETCH IS SECRET.

    Merge ALL AT ONCE: then the order of the sketches does not matter. If you merge in several steps, fix
    beforehand which sketches are merged with which, never "as they complete": then nobody is protected.

    \b
    Example:
      dphist sketch merge users-0.sketch users-1.sketch -o all.sketch
    """
    from dphist.sketch import MisraGries
    from dphist.sketch.counters import check_place, write_secret

    check_place(output, force=force)
    for number, name in enumerate(sketches):
        if any(_same_file(name, other) for other in sketches[:number]):
            raise InvalidParameter(f"the sketch {name} is given twice: its users would count twice")
    with stoppable() as placed:
        first, *others = [MisraGries.load(name) for name in sketches]
        merged = first.merge(*others)
        write_secret(output, merged.to_bytes(), force=force, placed=placed.append)
    _show_sketch(merged, output, as_json, quiet)


@sketch.command()
def release(
    name: One,
    epsilon: Epsilon,
    delta: Delta,
    output: Annotated[str | None, option("output")] = None,
    size: ExpectedSize = None,
    offset: Offset = "opposite",
    mechanism: Annotated[Literal["best", "gaussian", "laplace"], option("mechanism")] = "best",
    minimize: Annotated[Literal["threshold", "noise"], option("minimize")] = "threshold",
    count_name: Annotated[str, option("count_name")] = "count",
    round_counts: Annotated[bool, option("round")] = False,
    output_table: Annotated[str | None, option("output_table")] = None,
    output_format: Annotated[str | None, option("output_format")] = None,
    sign: Annotated[str | None, option("sign")] = None,
    force: Annotated[bool, option("force")] = False,
    ledger: Annotated[str | None, option("ledger")] = None,
    dataset: Annotated[str | None, option("dataset")] = None,
    seed: Annotated[int | None, option("seed")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Release a sketch: noise, threshold, and a certificate beside the result.

    The guarantee holds if every user was in one build, and in one of the sketches that were merged, all at once or
    in an order that was fixed beforehand. Releasing a sketch again, or the events it was built from, adds to the
    privacy loss.

    \b
    Examples:
      dphist sketch release all.sketch --epsilon 1 --delta 1e-6 -o queries.parquet
      dphist sketch release all.sketch --epsilon 1 --delta 1e-6 -o queries.csv \\
        --sign release.key
      dphist sketch release all.sketch --epsilon 1 --delta 1e-6 -o queries.csv \\
        --ledger budget.db --dataset log
      dphist sketch release all.sketch --epsilon 1 --delta 1e-6 --dry-run
      dphist verify queries.parquet
    \b
    Exit code 0: released. 1: the result could not be written. 2: bad
    parameters or unreadable input. 3: over budget. 130, 143: interrupted;
    nothing was written.
    """
    from dphist.outputs.write import check_target, target_of
    from dphist.planning.planner import plan as make_plan
    from dphist.releasing.spending import remaining_after
    from dphist.signatures import signer_of
    from dphist.sketch import MisraGries

    if mechanism == "laplace" and offset != "none":
        raise InvalidParameter("--mechanism laplace releases no offset: give --offset none with it")
    if sign is not None and output is None:
        raise InvalidParameter("--sign needs --output: it signs the written release")
    # Before the sketch is read: an unusable key is an error at once.
    signer = None if sign is None else signer_of(sign)
    found = MisraGries.load(name, k=size)
    contract = {"max_nonzero": found.k} if offset == "none" else {"top": found.k, "offset": offset}
    chosen: dict[str, Any] = {"mechanism": mechanism, "minimize": minimize, **contract}
    plan = make_plan(epsilon=epsilon, delta=delta, **chosen)
    if dry_run:
        _show_plan(plan, as_json)
        return
    if output is None:
        raise InvalidParameter("give --output NAME (or --dry-run): a release is written with its certificate")
    target = replace(target_of(output, output_table, output_format), sign=signer)
    # What cannot be written is an error before noise is drawn.
    check_target(target, force=force, columns=[*found.kind.names, count_name])
    with stoppable() as placed:
        result = found.release_and_write(
            plan, target, count_name=count_name, rounded=round_counts, seed=seed, ledger=ledger, dataset=dataset,
            force=force, placed=placed.append,
        )  # fmt: skip
    left = "" if ledger is None or dataset is None else remaining_after(ledger, dataset, result.receipt)
    with closed_pipe_ignored():
        if as_json:
            print_json({**release_facts(result), **({"remaining": left} if left else {})})
        elif not quiet:
            show_release(result)
            if left:
                write_out("\n" + wrap(f"Remaining budget of the dataset {dataset!r}: {left}") + "\n")


def _show_plan(plan: Any, as_json: bool) -> None:
    from dphist.planning.explain import explain

    if as_json:
        print_json({"plan": plan.to_dict(), "advice": explain(plan)})
        return
    show_plan(plan, explain(plan))
    write_out("\nNothing was released (--dry-run).\n")


def _show_sketch(built: MisraGries, output: str, as_json: bool, quiet: bool) -> None:
    """Where the sketch is, and that it is secret; no number from the data."""
    with closed_pipe_ignored():
        if as_json:
            columns = {name: str(kind) for name, kind in zip(built.kind.names, built.kind.types, strict=True)}
            print_json({"output": output, "size": built.k, "items": columns, "secret": True})
        elif not quiet:
            write_out(f"Sketch of size {built.k:,} written to {output}\n\n{wrap(_SECRET)}\n")


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one == other
