"""The subcommand that opens the page. No data is read."""

from __future__ import annotations

from typing import Annotated

import typer

from dphist.cli.base import app, whole_number


@app.command()
def explore(
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", parser=whole_number, help="Port to listen on; 0 takes a free one."),
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, and open no browser.")
    ] = False,
) -> None:
    """Explore plans in the browser: sliders, all mechanisms side by side, a simulated release.

    The page is on this computer alone, behind a token that is in the printed address. It reads no data of
    yours; counts that you upload to it must be public or made up. Ctrl-C ends it.

    \b
    Examples:
      dphist explore
      dphist explore --port 8123 --no-browser
    """
    from dphist.outputs.interrupts import interruptible
    from dphist.web.server import serve

    # The file that leads the browser to the page is removed after whatever signal.
    with interruptible():
        serve(port=port, browser=not no_browser)
