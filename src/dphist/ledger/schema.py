"""The entries of a ledger: what each kind states in its body, field by field."""

from __future__ import annotations

import json
from typing import Annotated, ClassVar, Final, TypedDict

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from dphist.aliases import JsonObject

FORMAT: Final = "dphist-ledger-1"


class Body(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The body of an entry. Other fields than those of its kind are refused."""

    kind: ClassVar[str]

    def to_dict(self) -> JsonObject:
        body: JsonObject = msgspec.to_builtins(self)
        return body


class LedgerBody(Body, kw_only=True, frozen=True):
    """The first entry."""

    kind: ClassVar[str] = "ledger"
    format: Annotated[str, Meta(pattern=f"^{FORMAT}$")]
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$", max_length=32)]


class DatasetBody(Body, kw_only=True, frozen=True):
    kind: ClassVar[str] = "dataset"
    epsilon: float
    delta: float
    accounting: str


class Rule(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The accounting that the first booking of a dataset fixed; `share` is for gdp and zcdp."""

    name: str
    share: Annotated[float, Meta(gt=0.0, lt=1.0)] | UnsetType = UNSET


class BookingBody(Body, kw_only=True, frozen=True):
    """A spend. With an `id`, `run` is the request of the run."""

    kind: ClassVar[str] = "booking"
    epsilon: float
    delta: float
    profile: JsonObject | None
    document: JsonObject
    accounting: Rule | UnsetType = UNSET
    id: str | UnsetType = UNSET
    run: JsonObject | UnsetType = UNSET


class RunBody(Body, kw_only=True, frozen=True):
    """Another run of the id of a booking."""

    kind: ClassVar[str] = "run"
    booking: int


class SettlementBody(Body, kw_only=True, frozen=True):
    """Where the release of a booking was written."""

    kind: ClassVar[str] = "settlement"
    booking: int
    sha256: str
    address: str


class FailureBody(Body, kw_only=True, frozen=True):
    kind: ClassVar[str] = "failure"
    booking: int
    error: str


AnyBody = LedgerBody | DatasetBody | BookingBody | RunBody | SettlementBody | FailureBody
BODIES: Final[dict[str, type[AnyBody]]] = {
    body.kind: body for body in (LedgerBody, DatasetBody, BookingBody, RunBody, SettlementBody, FailureBody)
}
# As in certificate/schema.py: while one thread imports this, so that msgspec does not crash.
for _body in BODIES.values():
    msgspec.json.Decoder(_body)


def decode_body(kind: str, text: str) -> AnyBody:
    """The body of an entry; a `ValueError` or `RecursionError` unless it has the schema of its kind."""
    # By `json`, which keeps lone surrogates and large whole numbers in the documents of bookings.
    return msgspec.convert(json.loads(text), BODIES[kind])


class Receipt(TypedDict):
    """A booking as certificates record it; its hash finds it again."""

    ledger: str
    dataset: str
    entry: int
    hash: str


class Outcome(TypedDict):
    """Where the release of a booking was written, and the SHA-256 of its data."""

    sha256: str
    address: str
