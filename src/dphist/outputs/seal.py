"""The certificate as a document of JSON, sealed so that an accidental change of it is noticed."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final, Protocol

from dphist.errors import InvalidParameter
from dphist.types import FORMAT

SEAL: Final = "self_sha256"
SIGNATURE: Final = "signature"


class Sign(Protocol):
    """Makes the signature of a document. `fingerprint` tells whose it is."""

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key."""

    def __call__(self, document: dict[str, Any], /) -> dict[str, str]:
        """The signature, as it is written into the document."""


def sealed(document: dict[str, Any], output: dict[str, Any], sign: Sign | None = None) -> str:
    """The text of a certificate: the document, what it is the certificate of, a signature, and its own digest."""
    try:
        # Through JSON and back, so that the digest is over what a reader will see.
        plain: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **document}, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise InvalidParameter("the certificate's document holds what JSON cannot write") from None
    plain["output"] = output
    for key in (SIGNATURE, SEAL):
        plain.pop(key, None)
    if sign is not None:
        plain[SIGNATURE] = sign(plain)
    plain[SEAL] = self_digest(plain)
    return text_of(plain)


def text_of(document: dict[str, Any]) -> str:
    """A document as it is written."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, from the name of a file
        text = json.dumps(document, indent=2, allow_nan=False)
    return text + "\n"


def is_canonical(text: str | bytes, document: dict[str, Any]) -> bool:
    """Whether it is the very text that is written for this document: no key twice, no other form of a number."""
    given = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        return given == text_of(document).encode()
    except (ValueError, RecursionError):
        return False


def facts(plain: Any, kind: str, name: str, digest: str) -> dict[str, Any]:
    """What a certificate says of the table that it belongs to."""
    types = [str(each) for each in plain.schema.types]
    shape = {"columns": plain.column_names, "types": types, "rows": plain.num_rows}
    return {"name": name, "kind": kind, "sha256": digest, **shape}


def self_digest(document: dict[str, Any]) -> str:
    """SHA-256 over the document without its seal: sorted keys, no spaces."""
    rest = {key: value for key, value in document.items() if key != SEAL}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parsed(text: str | bytes, title: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The document of a certificate, and what is wrong with it; `title` names it in sentences."""
    try:
        document = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None, [f"{title} is damaged: it is not JSON"]
    if not isinstance(document, dict) or not str(document.get("format")).startswith("dphist"):
        return None, [f"{title} is not a dphist certificate"]
    if not isinstance(document.get("output"), dict) or not isinstance(document.get(SEAL), str):
        return document, [f"{title} is not a dphist certificate of a release"]
    if SIGNATURE in document and not is_canonical(text, document):
        return document, [f"{title} was changed after it was signed"]
    return document, [] if document[SEAL] == self_digest(document) else [
        f"{title} was changed after it was written"
    ]


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def output_of(document: dict[str, Any] | None) -> dict[str, Any]:
    """What a document says of the output; empty where it says nothing that can be used."""
    output = (document or {}).get("output")
    return output if isinstance(output, dict) else {}


def types_of(output: dict[str, Any], names: list[str]) -> dict[str, str]:
    """The Arrow type of each column by its name, as far as the certificate has them."""
    columns, types = output.get("columns"), output.get("types")
    if not isinstance(columns, list) or not isinstance(types, list) or len(columns) != len(types):
        return {}
    pairs = zip(columns, types, strict=True)
    return {c: t for c, t in pairs if isinstance(c, str) and isinstance(t, str) and c in names}
