"""The ledger: a total privacy budget per dataset, and all spends of it, in an append-only file."""

from dphist.ledger.accounts import Account, Booking, Remaining, Spend, SumComposer
from dphist.ledger.store import Checkpoint, Ledger

__all__ = ["Account", "Booking", "Checkpoint", "Ledger", "Remaining", "Spend", "SumComposer"]
