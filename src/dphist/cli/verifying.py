"""`dphist verify`, which loads nothing that plans, counts or draws."""

from __future__ import annotations

import os
from typing import Annotated

import typer

import dphist
from dphist.cli.base import AsJson, Quiet, app, show
from dphist.errors import InputError

Name = Annotated[str, typer.Argument(metavar="RELEASE", help="A released file or folder, or an exported table.")]
Certificate = Annotated[
    str | None,
    typer.Option("--certificate", metavar="FILE", help="The certificate, if it is not next to the release."),
]
PublicKey = Annotated[
    str | None,
    typer.Option("--public-key", metavar="FILE", help="Refuse a release that was not signed with this key."),
]


@app.command()
def verify(
    name: Name,
    certificate: Certificate = None,
    public_key: PublicKey = None,
    not_before: Annotated[
        str | None, typer.Option(metavar="DATE", help="With --public-key: refuse a release older than this date.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Verify that a release matches its certificate, and that the certificate proves its guarantee.

    The proof is recomputed from the numbers in the certificate. Exit code 1 if anything is wrong. Digests detect
    accidental changes; a signature and --public-key show who made the release. No check can show that the noise
    was really drawn.

    \b
    Examples:
      dphist verify queries.parquet
      dphist verify queries.parquet --public-key release.key.pub \\
        --not-before 2026-11-01
      dphist verify queries.csv \\
        --certificate results.duckdb.queries.certificate.json
    """
    check_exists(name)
    found = dphist.verify(name, certificate=certificate, public_key=public_key, not_before=not_before)
    show(found.to_dict(), f"{found}\n", as_json, quiet and found.verified)
    if not found.verified:
        raise typer.Exit(1)


def check_exists(name: str) -> None:
    """Report a missing file before anything large is imported."""
    if "://" not in name and not os.path.exists(name):
        raise InputError(f"there is no file {name}")
