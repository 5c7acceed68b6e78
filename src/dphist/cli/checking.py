"""`dphist check`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dphist.cli.base import AsJson, app, print_json, write_out
from dphist.cli.flags import input_option, option, takes
from dphist.cli.running import stoppable
from dphist.errors import InvalidParameter


@app.command()
@takes(
    "user", "item", "where", "table", "query", "input_format", "encoding", "delimiter", "decimal", "null_items",
    "sum", "mean", "vector", "memory", "threads", "temp_folder", required=("user", "item"),
)  # fmt: skip
def check(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="INPUT",
            help="A file, glob or folder, a database, or - for standard input, as for dphist release.",
            show_default=False,
            rich_help_panel="Input",
        ),
    ] = None,
    *,
    input: Annotated[
        list[str] | None,
        input_option(metavar="INPUT", help="Input, instead of the argument; may be repeated."),
    ] = None,
    epsilon: Annotated[float, option("epsilon", help="ε of the release that is predicted. [1]")] = 1.0,
    delta: Annotated[float, option("delta", help="δ of the release that is predicted. [1e-6]")] = 1e-6,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Show how an input is read and what to fix before a release. NOT PRIVATE: for your eyes only.

    It prints true numbers and values of the data, and writes no file: do not publish what it prints, and keep it
    out of logs. It finds numbers with a decimal comma, other encodings, open quotes, dates in several formats, a
    wrong user column and bounds that clamp everything, and names the option that helps.

    \b
    Examples:
      dphist check orders.csv --user customer --item product
      dphist check orders.csv --user customer --item product \\
        --sum amount:0:500 --where "country = 'Norway'"
      dphist check umsatz.csv --encoding latin-1 --decimal , \\
        --user kunde --item artikel --sum betrag:0:500
    \b
    Exit code 0: there is nothing to fix. 1: a finding needs action. 2: bad
    parameters or unreadable input.
    """
    from dphist.simulation.check import check as run

    if (source is None) == (not input):
        raise InvalidParameter("give one input, as the argument or with --input" if source else "missing: INPUT")
    with stoppable():
        result = run(input or source, epsilon=epsilon, delta=delta, **options)
    if as_json:
        print_json(result.to_dict())
    else:
        write_out(f"{result}\n")
    if not result.ok:
        raise typer.Exit(1)
