"""`dphist report`, `explore` and `keygen`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dphist.cli.base import (
    AsJson,
    Quiet,
    app,
    closed_pipe_ignored,
    show,
    whole_number,
)
from dphist.cli.flags import option
from dphist.cli.verifying import Certificate, Name, PublicKey, check_exists
from dphist.errors import InvalidParameter
from dphist.signatures import make_key


@app.command()
def report(
    name: Name,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The page to write, such as report.html.")
    ] = None,
    certificate: Certificate = None,
    public_key: PublicKey = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier report, and nothing else.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Explain a release: counts with error bars, the privacy guarantee, and what the numbers leave out.

    The release is verified first; one that does not match its certificate gets no report. The report is one HTML
    file that needs no network. Printed, it is two pages; its links print everything, or a declaration to sign.

    \b
    Examples:
      dphist report queries.parquet -o report.html
      dphist report queries.parquet -o report.html --public-key release.key.pub
      dphist report queries.csv -o report.html \\
        --certificate results.duckdb.queries.certificate.json
      dphist report queries.parquet --json
    \b
    Exit code 0: written. 1: the release is not verified, or the report could
    not be written. 2: bad parameters.
    """
    check_exists(name)
    if output is None and not as_json:
        raise InvalidParameter("name the page to write, such as <--output> report.html, or use <--json>")
    from dphist.report.writing import report_file, shown_name

    data = report_file(name, output, certificate=certificate, public_key=public_key, force=force)
    with closed_pipe_ignored():
        show(data, "" if output is None else f"Report written to {shown_name(output)}\n", as_json, quiet)


@app.command()
def series(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder of releases, one for each period.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The table: .parquet, .csv, .tsv, .jsonl or .arrow."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="A page with charts, such as series.html.")
    ] = None,
    public_key: PublicKey = None,
    escape_formulas: Annotated[
        bool,
        option(
            "escape_formulas", help="CSV and TSV: put ' before text that a spreadsheet would run as a formula."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier table and report.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Stack the releases of a folder into one table and a chart over time, with margins.

    Every release is verified first; if one does not match its certificate, there is no series. The name of each
    release has its period, such as 2026-W46.parquet, 2026-11.csv or queries-2026-11-19.parquet. Sums, means and
    vectors are left out.

    \b
    Examples:
      dphist series releases
      dphist series releases -o series.parquet --report series.html
      dphist series releases --json --public-key release.key.pub
    \b
    Exit code 0: all releases are verified. 1: a release is not verified, or a
    file could not be written. 2: bad parameters, or releases that do not fit
    together.
    """
    from dphist.display import fill
    from dphist.releasing.series import series_target
    from dphist.report.writing import series_report, shown_name

    if output is not None:
        series_target(folder, output, force=force, escape_formulas=escape_formulas)
    elif escape_formulas:
        raise InvalidParameter("<--escape-formulas> needs <--output>")
    found, data = series_report(folder, page, public_key=public_key, force=force)
    if output is not None:
        found.write(output, force=force, escape_formulas=escape_formulas)
    files = {"Table": output, "Report": None if page is None else shown_name(page)}
    notes = [*found.notes(), found.cost_words()]
    if found.ignored:
        notes.append(f"No data files, left out: {', '.join(found.ignored)}.")
    lines = [
        str(found),
        *(["\n" + "\n".join(f"{k:<8} {v}" for k, v in files.items() if v)] if output or page else []),
    ]
    text = "\n".join([*lines, *("\n" + fill(note) for note in notes)]) + "\n"
    with closed_pipe_ignored():
        show({**data, "output": None if output is None else str(output)}, text, as_json, quiet)


@app.command()
def explore(
    port: Annotated[
        int, typer.Option(metavar="N", parser=whole_number, help="Port to listen on; 0 picks a free one.")
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address without opening a browser.")
    ] = False,
) -> None:
    """Explore plans in the browser, with sliders and a trial release.

    The page is served on this computer only, at an address with a random token. It reads none of your data; upload
    only public or synthetic counts. Ctrl-C stops it.

    \b
    Examples:
      dphist explore
      dphist explore --port 8123 --no-browser
    """
    from dphist.explore.app import serve

    serve(port=port, browser=not no_browser)


@app.command()
def keygen(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="File for the private key; the public key is KEY.pub.")
    ],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Create an Ed25519 key pair for signing releases and ledger checkpoints.

    Keep KEY, the private key, secret: anyone who has it can sign in your name. Give KEY.pub, or its fingerprint,
    to those who verify. Existing files are never replaced.

    \b
    Examples:
      dphist keygen release.key
      dphist release log.parquet --user user_id --item query \\
        --epsilon 1 --delta 1e-6 --sign release.key -o queries.parquet
      dphist verify queries.parquet --public-key release.key.pub
    """
    fingerprint = make_key(key)
    text = f"Private key  {key} (keep it secret)\nPublic key   {key}.pub\nFingerprint  {fingerprint}\n"
    with closed_pipe_ignored():
        show({"private_key": key, "public_key": f"{key}.pub", "fingerprint": fingerprint}, text, as_json, quiet)
