"""The certificate as a document of JSON, sealed so that an accidental change of it is noticed."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any, Final, Protocol

from dphist.errors import InvalidParameter
from dphist.privacy.types import FORMAT

SEAL: Final = "self_sha256"
SIGNATURE: Final = "signature"
# Certificates take a few KB; that of a folder has 150 bytes for each of its files besides.
LARGEST_CERTIFICATE: Final = 16 << 20


class Sign(Protocol):
    """Signs documents with the key of this fingerprint."""

    fingerprint: str

    def __call__(self, document: dict[str, Any], /) -> dict[str, str]:
        """The signature, as it is written into the document."""


def seal(document: dict[str, Any], output: dict[str, Any], sign: Sign | None = None) -> str:
    """The text of a certificate: the document, facts of the output, a signature, and its own digest."""
    try:
        # Through JSON and back, so that the digest is over what a reader will see.
        plain: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **document}, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise InvalidParameter("the certificate's document holds a value that JSON cannot hold") from None
    plain["output"] = output
    if sign is not None:
        plain[SIGNATURE] = sign(plain)
    plain[SEAL] = self_digest(plain)
    return certificate_text(plain)


def certificate_text(document: dict[str, Any]) -> str:
    """The only text that `parse_certificate` accepts for this document.

    What cannot be seen, or turns the direction of a line, is escaped: a reader sees what is verified.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return re.sub(r"[^\n -~]", lambda c: c[0] if c[0].isprintable() else json.dumps(c[0])[1:-1], text) + "\n"


def output_facts(plain: Any, kind: str, name: str, digest: str) -> dict[str, Any]:
    """The table that a certificate belongs to."""
    types = [str(each) for each in plain.schema.types]
    shape = {"columns": plain.column_names, "types": types, "rows": plain.num_rows}
    return {"name": name, "kind": kind, "sha256": digest, **shape}


def self_digest(document: dict[str, Any]) -> str:
    """SHA-256 over the document without its seal: sorted keys, no spaces."""
    rest = {key: value for key, value in document.items() if key != SEAL}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parse_certificate(text: str | bytes, title: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The document of a certificate, and its problems; `title` names it in sentences."""
    if len(text) > LARGEST_CERTIFICATE:
        return None, [too_large(title)]
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        document = json.loads(plain, parse_constant=_refuse, object_pairs_hook=named_once)
        if not isinstance(document, dict) or not str(document.get("format")).startswith("dphist"):
            return None, [f"{title} is not a dphist certificate"]
        # Two texts of one content may look different to people or to other parsers: 1.0 and 1e0, a byte order
        # mark, characters that are not seen.
        unusual = certificate_text(document) != plain
    except _NamedTwiceError as error:
        return None, [f"{title} has a key twice, and readers may take either value: {str(error)!r}"]
    except (ValueError, RecursionError, MemoryError):
        return None, [f"{title} is damaged: it is not JSON"]
    if unusual:
        return document, [f"{title} is not in the form that dphist writes: it was edited"]
    if not isinstance(document.get("output"), dict) or not isinstance(document.get(SEAL), str):
        return document, [f"{title} is not a dphist certificate of a release"]
    return document, [] if document[SEAL] == self_digest(document) else [
        f"{title} does not match its own digest: it was changed or damaged"
    ]


def too_large(title: str) -> str:
    """The problem of a certificate that is not read at all."""
    return f"{title} is larger than {LARGEST_CERTIFICATE >> 20} MiB, too large for a certificate"


class _NamedTwiceError(ValueError):
    """The same key twice in one object."""


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; readers differ in which of two values of one key they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _NamedTwiceError(next(name for name in names if names.count(name) > 1)[:80])
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON, where 1, 1.0 and true are three; keys may come in any order."""
    try:
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return False


def output_of(document: dict[str, Any] | None) -> dict[str, Any]:
    """The facts of the output; empty where a document has none."""
    output = (document or {}).get("output")
    return output if isinstance(output, dict) else {}


def types_of(output: dict[str, Any], names: list[str]) -> dict[str, str]:
    """The Arrow type of each column by its name, as far as the certificate has them."""
    columns, types = output.get("columns"), output.get("types")
    if not isinstance(columns, list) or not isinstance(types, list) or len(columns) != len(types):
        return {}
    pairs = zip(columns, types, strict=True)
    return {c: t for c, t in pairs if isinstance(c, str) and isinstance(t, str) and c in names}
