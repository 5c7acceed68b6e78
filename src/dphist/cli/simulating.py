"""`dphist simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dphist.cli.base import (
    AsJson,
    Delta,
    Epsilon,
    Force,
    app,
    option,
    print_json,
    print_table,
    wrap,
    write_error,
    write_out,
)
from dphist.errors import InvalidParameter

if TYPE_CHECKING:
    from dphist.simulation.simulate import Simulation


@app.command()
def simulate(
    epsilon: Epsilon,
    delta: Delta,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="INPUT",
            help="PUBLIC data: a file, glob, folder or database.",
            rich_help_panel="Input",
        ),
    ] = None,
    zipf: Annotated[
        str | None,
        typer.Option(
            metavar="S,N,USERS[,ITEMS]",
            help="Synthetic data instead: N items, up to 1e8, by Zipf's law with exponent S; users have ITEMS of "
            "them on average, by a geometric law. [ITEMS: 10]",
            rich_help_panel="Input",
        ),
    ] = None,
    user: Annotated[str | None, option("user")] = None,
    item: Annotated[list[str] | None, option("item")] = None,
    caps: Annotated[
        str | None, typer.Option(metavar="M,M,...", help="Limits per user to try. [1, 2, 3, 4, 6, 8, ...]")
    ] = None,
    tops: Annotated[
        str | None, typer.Option(metavar="K,K,...", help="Top-k steps to try. [10, 100, ..., 100000]")
    ] = None,
    no_auto: Annotated[
        bool, typer.Option("--no-auto", help="Leave out the limit that is chosen privately.")
    ] = False,
    goal: Annotated[
        Literal["counts", "keys", "mass"],
        typer.Option("--for", help="What matters: accurate counts, many items, or little missing mass."),
    ] = "counts",
    table: Annotated[str | None, option("table")] = None,
    query: Annotated[str | None, option("query")] = None,
    where: Annotated[str | None, option("where")] = None,
    input_format: Annotated[str | None, option("input_format")] = None,
    null_items: Annotated[bool, option("null_items")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png|.svg|.html", help="Draw the candidates.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Predict the utility of releases, for many plans. NOT PRIVATE: for public or synthetic data only.

    Items released, the share of users missing, mean and relative error, for limits per user that drop or spread
    the excess, top-k steps and a limit that is chosen privately; and which of them to choose. Run it on public
    data that is similar to yours, never on yours.

    \b
    Examples:
      dphist simulate --zipf 1.1,100000,50000 --epsilon 1 --delta 1e-6
      dphist simulate --from public.parquet --user user --item word \\
        --epsilon 1 --delta 1e-6 --for keys
      dphist simulate --from public.csv --user user --item word \\
        --epsilon 1 --delta 1e-6 --caps 1,10,100 --tops 1000 \\
        --plot candidates.png
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
        write_error(f"Wrote {plot}")


def _numbers(flag: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidParameter(f"{flag} must be whole numbers separated by commas, not {text!r}") from None


def _show(result: Simulation) -> None:
    """As text; on a terminal with the best candidate in bold."""
    from dphist.simulation.population import NOTICE

    write_out(f"{wrap(NOTICE)}\n\n{wrap(result.title)}\n\n")
    cells = result.cells()
    best = next((place for place, row in enumerate(cells) if row[0].endswith("*")), None)
    print_table(result.columns, cells, bold=best)
    if not result.hopeless:
        write_out(f"\n{wrap(result.bias_title)}\n\n")
        print_table(result.bias_columns, result.bias_cells())
    write_out(f"\n{wrap(result.recommendation(flags=True))}\n")
