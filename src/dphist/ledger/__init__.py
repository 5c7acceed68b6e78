"""The ledger: per dataset a total of privacy, and every spend of it, in a file that is only appended to."""

from __future__ import annotations

from dphist.ledger.accounts import MOST_COUNTED, Account, Accounts, Booking
from dphist.ledger.booking import Ledger
from dphist.ledger.checkpoint import Checkpoint
from dphist.ledger.composing import (
    ACCOUNTINGS,
    Composer,
    ConcentratedComposer,
    ProfileComposer,
    Spend,
    SumComposer,
)

__all__ = [
    "ACCOUNTINGS",
    "MOST_COUNTED",
    "Account",
    "Accounts",
    "Booking",
    "Checkpoint",
    "Composer",
    "ConcentratedComposer",
    "Ledger",
    "ProfileComposer",
    "Spend",
    "SumComposer",
]
