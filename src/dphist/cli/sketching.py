"""`dphist sketch`: build, merge and release sketches of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dphist
from dphist.cli.base import (
    AsJson,
    Force,
    Quiet,
    closed_pipe_ignored,
    group,
    show,
    whole_number,
)
from dphist.cli.flags import input_option, option, output_option, takes
from dphist.cli.releasing import DryRun, remaining_budget, show_dry_run, show_release
from dphist.cli.running import progress_bars, stoppable
from dphist.counting.task import Resources
from dphist.counting.workspace import check_address_space
from dphist.display import fill
from dphist.errors import InvalidParameter
from dphist.signatures import signer_of

if TYPE_CHECKING:
    from dphist.sketch import MisraGries


sketch = group("sketch", "Build, merge and release Misra-Gries sketches of streams. Sketch files are SECRET.")

_SECRET = "SECRET: it holds true counts and is not private. Keep it as secret as the events."

SketchOutput = Annotated[
    str, output_option("-o", "--output", metavar="FILE", help="Sketch file; only its owner can read it.")
]


@sketch.command()
@takes(
    "user", "item", "where", "table", "query", "input_format", "memory", "threads", "temp_folder",
    required=("user", "item"),
)  # fmt: skip
def build(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Files, globs or folders (Parquet, CSV, JSON lines, Arrow), or a database. All files with events "
            "of the same users must be in one build.",
        ),
    ],
    *,
    size: Annotated[int, output_option(metavar="K", parser=whole_number, help="Largest number of counters.")],
    output: SketchOutput,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Build a sketch of user events.

    All events of a user must be in ONE build: pass all files with events of the same users together. THE SKETCH IS
    SECRET: it holds true counts. Only `dphist sketch release` makes it private.

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
    check_address_space(Resources(options.get("memory")))
    from dphist.sketch.files import build_file

    with stoppable() as placed, progress_bars(quiet) as watcher:
        progress = None if watcher is None else lambda share: watcher("counting", share)
        built = build_file(inputs, size, output, force=force, placed=placed.append, progress=progress, **options)
    _show_sketch(built, output, as_json, quiet)


@sketch.command()
def merge(
    sketches: Annotated[list[str], typer.Argument(metavar="SKETCH", help="Sketches of DIFFERENT users.")],
    output: SketchOutput,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Merge sketches of DIFFERENT users into one.

    No user may be in two of them: split the events by user before building, for example by a hash of the user id.
    A user in two sketches counts twice and is NOT protected by the release. THE SKETCH IS SECRET.

    Merge ALL AT ONCE: then the order of the sketches does not matter. If you merge in several steps, fix in
    advance which sketches are merged with which. Merging them as they complete protects no one.

    \b
    Example:
      dphist sketch merge users-0.sketch users-1.sketch -o all.sketch
    """
    from dphist.sketch.files import merge_files

    with stoppable() as placed:
        merged = merge_files(sketches, output, force=force, placed=placed.append)
    _show_sketch(merged, output, as_json, quiet)


@sketch.command()
@takes(
    "epsilon", "delta", "minimize", "count_name", "round", "output_table", "output_format",
    "certificate", "sign", "force", "ledger", "dataset", "seed", required=("epsilon", "delta"),
)  # fmt: skip
def release(
    name: Annotated[str, typer.Argument(metavar="SKETCH", help="File written by dphist sketch build or merge.")],
    *,
    output: Annotated[
        str | None,
        option(
            "output",
            help="Where to write: .parquet, .csv, .tsv, .jsonl, .arrow, .csv.gz or a database. The certificate is "
            "written next to it. - is standard output, as CSV.",
        ),
    ] = None,
    size: Annotated[
        int | None, input_option(metavar="K", parser=whole_number, help="Refuse a sketch of another size.")
    ] = None,
    mechanism: Annotated[
        Literal["best", "gaussian", "laplace"],
        option("mechanism", help="Kind of noise; best is the one with the lower threshold. [best]"),
    ] = "best",
    offset: Annotated[
        Literal["opposite", "independent", "none"],
        option(
            "offset",
            help="How the subtracted count is released and added back: with noise opposite to the shared noise, "
            "with independent noise (the paper's rule), or not at all. [opposite]",
        ),
    ] = "opposite",
    count_name: str = "count",
    round: bool = False,
    sign: str | None = None,
    force: bool = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Release a sketch with noise, a threshold and a certificate.

    The guarantee holds if every user was in only one build, and the sketches were merged all at once or in an
    order fixed in advance. Releasing a sketch again, or the events it was built from, adds to the privacy loss.

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
    from dphist.sketch.files import plan_of_sketch, target_of_release

    if mechanism == "laplace" and offset != "none":
        raise InvalidParameter("<--mechanism laplace> cannot release the offset: give <--offset none> as well")
    if sign is not None and output is None:
        raise InvalidParameter("<--sign> needs <--output>: it signs the written release")
    signer = None if sign is None else signer_of(sign)
    loaded = dphist.sketch.MisraGries.load(name, k=size)
    budget = {name: options[name] for name in ("epsilon", "delta", "minimize") if name in options}
    planned = plan_of_sketch(loaded, offset, mechanism=mechanism, **budget)
    if dry_run:
        show_dry_run(planned, as_json, "Nothing was released (--dry-run).")
        return
    if output is None:
        raise InvalidParameter("give <--output NAME> or <--dry-run>: a release is written with its certificate")
    target = target_of_release(
        name, output, table=options.get("output_table"), file_format=options.get("output_format"),
        certificate=options.get("certificate"), signer=signer, key=sign,
    )  # fmt: skip
    with stoppable() as placed:
        booking = {name: options[name] for name in ("ledger", "dataset", "seed") if name in options}
        result = loaded.release(
            planned, output=target, count_name=count_name, round=round, force=force, placed=placed.append,
            **booking,
        )  # fmt: skip
    left = remaining_budget(result, options.get("ledger"))
    with closed_pipe_ignored():
        show_release(result, as_json, quiet, left)


def _show_sketch(built: MisraGries, output: str, as_json: bool, quiet: bool) -> None:
    columns = {name: str(kind) for name, kind in zip(built.kind.names, built.kind.types, strict=True)}
    text = f"Sketch of size {built.k:,} written to {output}\n\n{fill(_SECRET)}\n"
    with closed_pipe_ignored():
        show({"output": output, "size": built.k, "items": columns, "secret": True}, text, as_json, quiet)
