"""A checkpoint: what a ledger was at some time, signed, so that an older copy or a new chain is noticed later."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from dphist.errors import LedgerError
from dphist.outputs.seal import SIGNATURE, certificate_text
from dphist.signatures import (
    CHECKPOINT_DOMAIN,
    PathLike,
    checked_path,
    examine_signature,
    read_public_key,
    read_small,
    signer_of,
    write_new,
)

FORMAT: Final = "dphist-checkpoint/1"


@dataclass(frozen=True)
class Checkpoint:
    """The id of a ledger, how many entries it had, and the hash of the last, which depends on all of them."""

    ledger: str
    entry: int
    hash: str
    created: str

    def write(self, path: PathLike, *, sign: PathLike) -> str:
        """Write it to a new file, signed by the private key in the file `sign`; the fingerprint of that key."""
        place, signer = checked_path(path, "a checkpoint"), signer_of(sign)
        assert signer is not None
        document: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        document[SIGNATURE] = signer(document, CHECKPOINT_DOMAIN)
        write_new(place, certificate_text(document).encode(), 0o644)
        return signer.fingerprint

    @classmethod
    def read(cls, path: PathLike, *, public_key: PathLike) -> Checkpoint:
        """A checkpoint that the owner of the public key signed; raises `LedgerError` for anything else."""
        trusted, data = read_public_key(public_key), read_small(path, "the checkpoint")
        try:
            document = json.loads(data.decode())
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise LedgerError(f"{path} is not a checkpoint of a ledger")
        _, _, problems = examine_signature(document, CHECKPOINT_DOMAIN, trusted)
        if problems or certificate_text(document).encode() != data:
            reason = problems[0] if problems else "it was changed after it was signed"
            raise LedgerError(f"the checkpoint {path} is refused: {reason}")
        # Signed by a key that is trusted: hence these are what `write` wrote.
        return cls(*(document[name] for name in ("ledger", "entry", "hash", "created")))
