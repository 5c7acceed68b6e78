"""The ledger: per dataset a total of privacy, and every spend of it, in a file that is only appended to."""

from __future__ import annotations

from dphist.ledger.accounts import (
    ACCOUNTINGS,
    AUTO,
    Account,
    Booking,
    Composer,
    ConcentratedComposer,
    ProfileComposer,
    Remaining,
    Spend,
    SumComposer,
)
from dphist.ledger.store import Accounts, Checkpoint, Ledger

__all__ = [
    "ACCOUNTINGS",
    "AUTO",
    "Account",
    "Accounts",
    "Booking",
    "Checkpoint",
    "Composer",
    "ConcentratedComposer",
    "Ledger",
    "ProfileComposer",
    "Remaining",
    "Spend",
    "SumComposer",
]
