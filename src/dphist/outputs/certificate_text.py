"""The text of certificates: JSON in the one form that dphist writes and accepts, with its own digest."""

from __future__ import annotations

import json
import re
from collections import Counter
from hashlib import sha256
from typing import Any, Final, Protocol

from dphist.errors import InvalidParameter

SEAL: Final = "self_sha256"
SIGNATURE: Final = "signature"
# Certificates take a few KB; that of a Spark folder has another 150 bytes for each of its files.
LARGEST_CERTIFICATE: Final = 16 << 20


class Sign(Protocol):
    fingerprint: str

    def __call__(self, document: dict[str, Any], /) -> dict[str, str]:
        """The signature, as it stands in the document."""


def seal(document: dict[str, Any], output: dict[str, Any], sign: Sign | None = None) -> str:
    """The text of a certificate: the document, facts about the output, a signature, and its own digest."""
    from dphist.privacy.types import FORMAT  # not at the top, because the decoder process imports this module

    try:
        # Through JSON and back, so that the digest covers exactly what is read later.
        plain: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **document}, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise InvalidParameter("the certificate's document has a value that JSON cannot represent") from None
    plain["output"] = output
    if sign is not None:
        plain[SIGNATURE] = sign(plain)
    plain[SEAL] = self_digest(plain)
    return certificate_text(plain)


def certificate_text(document: dict[str, Any]) -> str:
    """The only text that `parse_certificate` accepts for this document.

    Characters that are invisible, or change the direction of text, are escaped: people see what is verified.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return re.sub(r"[^\n -~]", lambda c: c[0] if c[0].isprintable() else json.dumps(c[0])[1:-1], text) + "\n"


def output_facts(plain: Any, kind: str, name: str, digest: str) -> dict[str, Any]:
    return {
        "name": name, "kind": kind, "sha256": digest, "columns": plain.column_names,
        "types": [str(column) for column in plain.schema.types], "rows": plain.num_rows,
    }  # fmt: skip


def self_digest(document: dict[str, Any]) -> str:
    """SHA-256 of the document without this digest, as JSON with sorted keys and no spaces."""
    rest = {key: value for key, value in document.items() if key != SEAL}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def parse_certificate(text: str | bytes, title: str) -> tuple[dict[str, Any] | None, list[str]]:
    """The document of a certificate, if it has one, and problems as sentences that call it `title`."""
    if len(text) > LARGEST_CERTIFICATE:
        return None, [f"{title} is larger than {LARGEST_CERTIFICATE >> 20} MiB, too large for a certificate"]
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        document = json.loads(plain, object_pairs_hook=unique_keys)
        if not isinstance(document, dict) or not str(document.get("format")).startswith("dphist"):
            return None, [f"{title} is not a dphist certificate"]
        # Other texts with the same content, such as 1e0 for 1.0, may look different to people or other parsers.
        edited = certificate_text(document) != plain
    except _NamedTwiceError as error:
        return None, [f"{title} has the key {str(error)!r} twice: readers could disagree on its value"]
    except (ValueError, RecursionError, MemoryError):
        return None, [f"{title} is damaged: it is not JSON"]
    if edited:
        return document, [f"{title} is not in the form that dphist writes: it was edited"]
    if not isinstance(document.get("output"), dict) or not isinstance(document.get(SEAL), str):
        return document, [f"{title} is not a dphist certificate of a release"]
    return document, [] if document[SEAL] == self_digest(document) else [
        f"{title} does not match its own digest: it was changed or damaged"
    ]


class _NamedTwiceError(ValueError):
    pass


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises if a key occurs twice, because readers differ in which value they take."""
    values = dict(pairs)
    if len(values) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _NamedTwiceError(name[:80])
    return values


def same_json(first: Any, second: Any) -> bool:
    """Whether two values are the same JSON, where 1, 1.0 and true differ; keys may be in any order."""
    try:
        return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return False


def output_of(document: dict[str, Any] | None) -> dict[str, Any]:
    output = (document or {}).get("output")
    return output if isinstance(output, dict) else {}


def types_of(output: dict[str, Any], names: list[str]) -> dict[str, str]:
    """The Arrow type of each column, as far as the certificate names it."""
    columns, types = output.get("columns"), output.get("types")
    if not isinstance(columns, list) or not isinstance(types, list) or len(columns) != len(types):
        return {}
    pairs = zip(columns, types, strict=True)
    return {c: t for c, t in pairs if isinstance(c, str) and isinstance(t, str) and c in names}
