"""The subcommand that makes keys."""

from __future__ import annotations

from typing import Annotated

import typer

from dphist.cli.base import AsJson, app, print_json, shown, write_out


@app.command()
def keygen(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The file of the private key; KEY.pub is its public one.")
    ],
    as_json: AsJson = False,
) -> None:
    """Make a key pair (Ed25519) that signs releases and ledger checkpoints.

    KEY is the private key, for its owner alone: whoever has it can sign in your name. Hand KEY.pub, or its
    fingerprint, to those who verify. Nothing is ever replaced.

    \b
    Examples:
      dphist keygen release.key
      dphist release log.parquet --user user_id --item query --epsilon 1 --delta 1e-6 \\
        --max-items-per-user 20 --output queries.parquet --sign release.key
      dphist verify queries.parquet --public-key release.key.pub
    """
    from dphist.signatures import make_key

    fingerprint = make_key(key)
    with shown():
        if as_json:
            print_json({"private_key": key, "public_key": f"{key}.pub", "fingerprint": fingerprint})
        else:
            write_out(f"Private key  {key} (keep it secret)\nPublic key   {key}.pub\n")
            write_out(f"Fingerprint  {fingerprint}\n")
