"""The text of certificates: JSON in the one form that dphist writes and accepts, with its own digest.

Digest and signature are of the document's canonical JSON (RFC 8785), which any language can compute.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import rfc8785

from dphist.aliases import JsonObject
from dphist.errors import InvalidParameter
from dphist.signatures import SIGNATURE, Signer

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "dphist-certificate/2"
SEAL: Final = "self_sha256"
# Characters that Unicode ignores by default, and the empty one of Braille. For Python they are printable.
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# Certificates take a few KB; that of a Spark folder has another 150 bytes for each of its files.
LARGEST_CERTIFICATE: Final = 16 << 20


def seal(document: JsonObject, output: JsonObject, sign: Signer | None = None) -> str:
    """The text of a certificate: the document, facts about the output, a signature, and its own digest."""
    try:
        # Through JSON and back, so that the digest covers exactly what is read later.
        text = json.dumps({"format": FORMAT, **document}, allow_nan=False)
        plain: JsonObject = json.loads(text, parse_float=_number)
        plain["output"] = output
        if sign is not None:
            plain[SIGNATURE] = sign(signed_bytes(plain))
        plain[SEAL] = self_digest(plain)
    except (TypeError, ValueError, RecursionError):
        raise InvalidParameter("the certificate's document has a value that JSON cannot represent") from None
    return certificate_text(plain)


def _number(text: str) -> float:
    """Without -0.0, which has the canonical form of 0.0."""
    return float(text) + 0.0


def certificate_text(document: JsonObject) -> str:
    """The only text that `parse_certificate` accepts for this document.

    Characters that are invisible, or change the direction of text, are escaped: people see what is verified.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return re.sub(r"[^\n -~]", _visible, text) + "\n"


def _visible(character: re.Match[str]) -> str:
    shown = character[0].isprintable() and not _INVISIBLE.match(character[0])
    return character[0] if shown else json.dumps(character[0])[1:-1]


def output_facts(plain: pa.Table, kind: str, name: str, digest: str) -> JsonObject:
    return {
        "name": name, "kind": kind, "sha256": digest, "columns": plain.column_names,
        "types": [str(column) for column in plain.schema.types], "rows": plain.num_rows,
    }  # fmt: skip


def self_digest(document: JsonObject) -> str:
    """SHA-256 of the canonical JSON of the document without this digest; a `ValueError` if it has none."""
    return sha256(_canonical(document, SEAL)).hexdigest()


def signed_bytes(document: JsonObject) -> bytes:
    """What a signature covers: the canonical JSON of the document without the signature and its own digest."""
    return _canonical(document, SIGNATURE, SEAL)


def _canonical(document: JsonObject, *without: str) -> bytes:
    return rfc8785.dumps({key: value for key, value in document.items() if key not in without})


def _matches_own_digest(document: JsonObject) -> bool:
    try:
        return bool(document[SEAL] == self_digest(document))
    except (ValueError, RecursionError):  # such as NaN, which has no canonical form
        return False


def parse_certificate(text: str | bytes, title: str) -> tuple[JsonObject | None, list[str]]:
    """The document of a certificate, if it has one, and problems as sentences that call it `title`."""
    if len(text) > LARGEST_CERTIFICATE:
        return None, [f"{title} is larger than {LARGEST_CERTIFICATE >> 20} MiB, too large for a certificate"]
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        document = json.loads(plain, object_pairs_hook=unique_keys, parse_float=_number)
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
    return document, [] if _matches_own_digest(document) else [
        f"{title} does not match its own digest: it was changed or damaged"
    ]


class _NamedTwiceError(ValueError):
    pass


def unique_keys(pairs: list[tuple[str, object]]) -> JsonObject:
    """A JSON object; raises if a key occurs twice, because readers differ in which value they take."""
    values = dict(pairs)
    if len(values) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _NamedTwiceError(name[:80])
    return values


def same_json(first: object, second: object) -> bool:
    """Whether two values are the same JSON, where 1, 1.0 and true differ; keys may be in any order."""
    try:
        return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return False
