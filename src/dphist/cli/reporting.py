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
    from dphist.report.writing import report_file

    data = report_file(name, output, certificate=certificate, public_key=public_key, force=force)
    with closed_pipe_ignored():
        show(data, f"Report written to {output}\n", as_json, quiet)


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
