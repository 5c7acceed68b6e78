"""The ledger: per dataset a total of privacy, and every spend of it, in a file that is only appended to."""

from __future__ import annotations

from dphist.ledger.composing import (
    ACCOUNTINGS,
    AUTO,
    Composer,
    ConcentratedComposer,
    ProfileComposer,
    Spend,
    SumComposer,
)
from dphist.ledger.ledger import MOST_COUNTED, Account, Accounts, Booking, Checkpoint, Ledger, Remaining

__all__ = [
    "ACCOUNTINGS",
    "AUTO",
    "MOST_COUNTED",
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
