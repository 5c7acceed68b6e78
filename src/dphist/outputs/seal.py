"""The certificate as a document of JSON, sealed so that an accidental change of it is noticed."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final

from dphist.errors import InvalidParameter
from dphist.types import FORMAT

SEAL: Final = "self_sha256"


def sealed(document: dict[str, Any], output: dict[str, Any]) -> str:
    """The text of a certificate: the document, what it is the certificate of, and its own digest."""
    try:
        # Through JSON and back, so that the digest is over what a reader will see.
        plain: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **document}, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise InvalidParameter("the certificate's document holds what JSON cannot write") from None
    plain["output"] = output
    plain.pop(SEAL, None)
    plain[SEAL] = self_digest(plain)
    text = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, from the name of a file
        text = json.dumps(plain, indent=2, allow_nan=False)
    return text + "\n"


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
