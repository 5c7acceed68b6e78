"""`dphist report`, `explore` and `keygen`, and the report of `dphist release --report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from dphist.errors import DphistError, InvalidParameter, OutputError

if TYPE_CHECKING:
    from dphist.outputs.target import Target
    from dphist.outputs.write import ProtectedFile
    from dphist.releasing.request import Request
    from dphist.releasing.result import Release


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
    file that needs no network and prints well.

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
        raise InvalidParameter("name the page to write, such as --output report.html, or use --json")
    from dphist.outputs.write import protected_files
    from dphist.report.facts import gather_facts
    from dphist.report.render import render, report_data
    from dphist.report.writing import check_report, write_report

    kept = protected_files(name, certificate)
    if output is not None:
        check_report(output, kept, force=force)
    facts = gather_facts(name, certificate=certificate, public_key=public_key)
    if output is not None:
        write_report(render(facts), output, kept, force=force)
    with closed_pipe_ignored():
        data = {"report": None if output is None else str(output), **report_data(facts)}
        show(data, f"Report written to {output}\n", as_json, quiet)


def check_report_of(name: str, request: Request) -> None:
    """Raise, before any event is read or anything booked, if the report of a release could not be written."""
    from dphist.report.writing import check_report

    target = _target_of(request)
    check_report(Path(name), _protected_files(request, target), force=request.force)
    if target is None:
        return
    if target.is_stdout:
        raise InvalidParameter(
            "--report has to read the release back: write it to a file instead of standard output"
        )
    master = request.master or dict(request.spark_settings).get("spark.master", "local")
    # Only files on this machine can be read back.
    if target.kind == "folder" and ("://" in target.address or not master.startswith("local")):
        raise InvalidParameter(
            f"--report has to read the release back, but a cluster writes {target.public_address()}: leave out "
            "--report, and run dphist report FOLDER where the folder can be read"
        )


def _target_of(request: Request) -> Target | None:
    from dphist.outputs.target import target_of

    if request.output is None:
        return None
    return target_of(
        request.output, request.output_table, request.output_format, request.certificate,
        objects=request.engine_name != "spark",
    )  # fmt: skip


def _protected_files(request: Request, target: Target | None) -> list[ProtectedFile]:
    from dphist.outputs.write import protected_files

    certificate = None if target is None or target.is_object else target.certificate_path
    return protected_files(request.output, certificate, input=request.input, items=request.items)


def report_release(name: str, request: Request, result: Release) -> OutputError | None:
    """Write the report of a release that was just written.

    Returns an error instead of raising it: the release itself has succeeded.
    """
    target = _target_of(request)
    assert target is not None
    try:
        from dphist.report.render import make_report
        from dphist.report.writing import write_report

        if target.is_database:
            page = make_report(result, certificate=target.certificate_path)
        else:
            page = make_report(target.address)
        write_report(page, Path(name), _protected_files(request, target), force=request.force)
    except Exception as error:
        if isinstance(error, DphistError):
            reason = error.with_flags
        else:
            reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        return OutputError(f"the release was written, but its report was not: {reason}")
    return None


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
    from dphist.signatures import make_key

    fingerprint = make_key(key)
    text = f"Private key  {key} (keep it secret)\nPublic key   {key}.pub\nFingerprint  {fingerprint}\n"
    with closed_pipe_ignored():
        show({"private_key": key, "public_key": f"{key}.pub", "fingerprint": fingerprint}, text, as_json, quiet)
