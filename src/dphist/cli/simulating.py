"""The subcommand that predicts what releases would be worth, from public or made-up data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dphist.cli import releasing as flags
from dphist.cli.base import AsJson, Delta, Epsilon, app, print_json, write_error, write_out
from dphist.cli.releasing import wrapped
from dphist.errors import InvalidParameter

if TYPE_CHECKING:
    from dphist.simulation.simulate import Simulation


@app.command()
def simulate(
    epsilon: Epsilon,
    delta: Delta,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="INPUT", help="PUBLIC data: a file, glob, folder or database."),
    ] = None,
    zipf: Annotated[
        str | None,
        typer.Option(
            "--zipf",
            metavar="S,N,USERS[,ITEMS]",
            help="In its place made-up data: N items, up to 1e8, by Zipf's law with exponent S; users have ITEMS "
            "of them in the mean, by a geometric law. [ITEMS: 10]",
        ),
    ] = None,
    user: flags.User = None,
    item: flags.Item = None,
    caps: Annotated[
        str | None, typer.Option("--caps", metavar="M,M,...", help="Caps to try. [1, 2, 3, 4, 6, 8, ...]")
    ] = None,
    tops: Annotated[
        str | None, typer.Option("--tops", metavar="K,K,...", help="Top-k steps to try. [10, 100, ..., 100000]")
    ] = None,
    no_auto: Annotated[
        bool, typer.Option("--no-auto", help="Leave out the cap that is chosen privately.")
    ] = False,
    goal: Annotated[
        Literal["counts", "keys", "mass"],
        typer.Option("--for", help="What matters: counts near the truth, many keys, or little missing mass."),
    ] = "counts",
    table: flags.Table = None,
    query: flags.Query = None,
    where: flags.Where = None,
    input_format: flags.InputFormat = None,
    null_items: flags.NullItems = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png|.svg|.html", help="Draw the candidates.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing plot.")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict what releases would be worth, for many plans. NOT PRIVATE: for public or synthetic data only.

    Items released, the share of users missing, mean and relative error, for caps, top-k steps and a cap that is
    chosen privately; and which of them to take. Run it on public data that is like yours, never on yours.

    \b
    Examples:
      dphist simulate --zipf 1.1,100000,50000 --epsilon 1 --delta 1e-6
      dphist simulate --from public.parquet --user user --item word --epsilon 1 --delta 1e-6 --for keys
      dphist simulate --from public.csv --user user --item word --epsilon 1 --delta 1e-6 --caps 1,10,100 \\
        --tops 1000 --plot candidates.png
    """
    from dphist.simulation.simulate import simulate as run

    if plot is not None:
        from dphist.report.files import check_plot

        check_plot(plot, force=force)
    read = {
        "user": user, "item": item or None, "table": table, "query": query, "where": where,
        "input_format": input_format, "null_items": null_items or None,
    }  # fmt: skip
    columns = read if source is not None else {name: value for name, value in read.items() if value is not None}
    result = run(
        source, epsilon=epsilon, delta=delta, zipf=zipf, caps=_numbers("--caps", caps),
        tops=_numbers("--tops", tops), auto=not no_auto, goal=goal, **columns,
    )  # fmt: skip
    if as_json:
        print_json(result.to_dict())
    else:
        _show(result)
    if plot is not None:
        from dphist.report.charts import chart
        from dphist.report.render import save_plot

        title, tables = "a simulation, not private", [result._repr_html_()]
        save_plot(chart(result), plot, title=title, tables=tables, force=force)
        write_error(f"Wrote {plot}\n")


def _numbers(flag: str, text: str | None) -> list[int] | None:
    """Whole numbers with commas between them."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidParameter(f"{flag} must be whole numbers with commas between them, not {text!r}") from None


def _show(result: Simulation) -> None:
    """As text; on a terminal with the best candidate in bold."""
    from dphist.display import text_grid
    from dphist.simulation.population import NOTICE

    write_out(f"{wrapped(NOTICE)}\n\n{wrapped(result.title)}\n\n")
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table

        shown = Table(*result.columns, box=box.SIMPLE_HEAD)
        for column in shown.columns[1:]:
            column.justify = "right"
        for cells in result.cells():
            shown.add_row(*cells, style="bold" if cells[0].endswith("*") else None)
        Console().print(shown)
    else:
        write_out(text_grid(result.columns, result.cells()) + "\n")
    write_out(f"\n{wrapped(result.reason)}\n")
