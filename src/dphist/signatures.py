"""Ed25519 signatures of certificates and ledger checkpoints.

A signature covers the canonical JSON of a document without its signature and its own digest
(`certificate/text.py`). A certificate holds the SHA-256 of the data, its name and date, and the booking, so one
signature covers the whole release.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal

from dphist.errors import InputError, InvalidParameter, OutputError
from dphist.files import PathLike, checked_path, open_regular

# cryptography is imported where there is a key: most commands have none.
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["make_key"]

SIGNATURE: Final = "signature"
PASSPHRASE: Final = "DPHIST_KEY_PASSPHRASE"
_ALGORITHM: Final = "ed25519"
# A signature of one kind of document is not valid for the other, even with the same key.
CERTIFICATE_DOMAIN: Final = b"dphist-certificate-v1\0"
CHECKPOINT_DOMAIN: Final = b"dphist-checkpoint-v1\0"
_LARGEST_FILE: Final = 1 << 16

Status = Literal["missing", "invalid", "valid", "other key", "trusted"]


def fingerprint_of(public: bytes) -> str:
    """SHA-256 of the 32 bytes of a public key, in base64 without padding."""
    return "SHA256:" + base64.b64encode(sha256(public).digest()).decode().rstrip("=")


class Signer:
    """A private key that signs certificates."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._public = key.public_key().public_bytes_raw()
        self.fingerprint = fingerprint_of(self._public)

    def __repr__(self) -> str:
        return f"Signer({self.fingerprint})"

    def __call__(self, data: bytes, domain: bytes = CERTIFICATE_DOMAIN) -> dict[str, str]:
        """The signature of these bytes, as it stands in a document."""
        return _encode_signature(self._public, self._key.sign(domain + data))


def _encode_signature(public: bytes, value: bytes) -> dict[str, str]:
    key, text = (base64.b64encode(part).decode() for part in (public, value))
    return {"algorithm": _ALGORITHM, "public_key": key, "value": text}


def make_key(path: PathLike) -> str:
    """Write a new Ed25519 key and its public key, and return the key's fingerprint.

    >>> from pathlib import Path
    >>> from dphist.signatures import make_key
    >>> fingerprint = make_key("own.key")
    >>> print(Path("own.key.pub").read_text().splitlines()[0])
    -----BEGIN PUBLIC KEY-----

    Args:
        path: File for the private key, which only its owner can read; the public key is `path` with .pub.

    Raises:
        OutputError: One of the files exists. Keys are never replaced.
    """
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    # `verify` loads this module, and writes nothing.
    from dphist.publishing import write_file

    private = checked_path(path, "a key")
    public = private.with_name(private.name + ".pub")
    for file in (private, public):
        if os.path.lexists(file):
            raise OutputError(f"{file} already exists, and keys are never replaced: choose another name")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
    shared = key.public_key().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    # In this order, so that there is no private key without its public key.
    write_file(public, shared, 0o644)
    write_file(private, secret, 0o600)
    return fingerprint_of(key.public_key().public_bytes_raw())


def signer_of(path: PathLike) -> Signer:
    """Read a private key, encrypted or not, from a file that only its owner can read."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    data = read_small(path, "the private key", private=True)
    if b"PUBLIC KEY-----" in data:
        raise InputError(f"{path} is a public key: sign with the private key that belongs to it")
    passphrase = os.environ.get(PASSPHRASE)
    encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in data
    if encrypted and not passphrase:
        raise InputError(f"the private key {path} is encrypted: set {PASSPHRASE} to its passphrase")
    try:
        key = forms.load_pem_private_key(data, passphrase.encode() if encrypted and passphrase else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        hint = f", or {PASSPHRASE} is not its passphrase" if encrypted else ""
        raise InputError(f"{path} is not a private key in PEM form{hint}: make a key with dphist keygen") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path} is not an Ed25519 key: make a key with dphist keygen")
    return Signer(key)


def read_public_key(path: PathLike) -> bytes:
    """The 32 bytes of the public key in a file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    data = read_small(path, "the public key")
    if b"PRIVATE KEY-----" in data:
        raise InputError(f"{path} is a private key, which only its owner should have: give the public key")
    try:
        key = forms.load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(f"{path} is not a public key in PEM form, as dphist keygen writes it") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{path} is not an Ed25519 key")
    return key.public_bytes_raw()


def read_small(path: PathLike, what: str, *, private: bool = False) -> bytes:
    """The bytes of a regular file of at most 64 KiB; a `private` one must be closed to other users."""
    name = checked_path(path, what)
    try:
        with open_regular(name) as file:
            mode = os.fstat(file.fileno()).st_mode
            if private and os.name == "posix" and mode & 0o077:
                raise InputError(
                    f"{what} {name} is open to other users (mode {stat.S_IMODE(mode):04o}): "
                    f"run chmod 600 {name}, or make a new one if others may have read it"
                )
            data = file.read(_LARGEST_FILE + 1)
    except FileNotFoundError:
        raise InputError(f"{what} {name} does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not the name of a file"
        raise InputError(f"{what} {name} cannot be read: {reason}") from None
    if len(data) > _LARGEST_FILE:
        raise InputError(f"{what} {name} is larger than {_LARGEST_FILE:,} bytes, too large for such a file")
    return data


@dataclass(frozen=True)
class Trust:
    """What a reader trusts: a public key, and no release before a date."""

    public_key: bytes | None = None
    not_before: datetime | None = None

    @classmethod
    def of(cls, public_key: PathLike | None, not_before: str | datetime | None) -> Trust:
        """Read the key from a file; the date is such as 2026-11-01 or 2026-11-01T12:00:00Z."""
        if not_before is not None and public_key is None:
            raise InvalidParameter(
                "<--not-before> needs <--public-key>: anyone can change the date of an unsigned release"
            )
        try:
            date = None if not_before is None else datetime.fromisoformat(str(not_before))
        except ValueError:
            raise InvalidParameter(
                f"<--not-before> must be a date such as 2026-11-01, not {not_before!r}"
            ) from None
        if date is not None and date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return cls(None if public_key is None else read_public_key(public_key), date)


NO_TRUST: Final = Trust()


def examine_signature(
    document: Mapping[str, object], data: bytes, domain: bytes, trusted: bytes | None
) -> tuple[Status, str | None, tuple[str, ...]]:
    """The status of a document's signature of these bytes, its key, and problems."""
    if SIGNATURE not in document:
        return "missing", None, () if trusted is None else ("there is no signature",)
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    problem, signature = "the signature is not one that dphist writes", document[SIGNATURE]
    try:
        if not isinstance(signature, dict):
            raise TypeError
        public, value = (base64.b64decode(signature[name], validate=True) for name in ("public_key", "value"))
        # Base64 has several texts for the same bytes; only the one that dphist writes is valid.
        if signature != _encode_signature(public, value):
            raise ValueError
        key = Ed25519PublicKey.from_public_bytes(public)
        problem = "the signature does not match: the document was changed after it was signed"
        key.verify(value, domain + data)
    except (TypeError, KeyError, ValueError, InvalidSignature, UnsupportedAlgorithm):
        return "invalid", None, (problem,)
    fingerprint = fingerprint_of(public)
    if trusted is None or public == trusted:
        return ("valid" if trusted is None else "trusted"), fingerprint, ()
    problem = f"the signature is by another key, {fingerprint}, not by {fingerprint_of(trusted)}"
    return "other key", fingerprint, (problem,)
