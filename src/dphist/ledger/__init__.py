"""The ledger: per dataset a total of privacy, and every spend of it, in a file that is only appended to."""

from dphist.ledger.accounts import Spend, SumComposer
from dphist.ledger.store import Checkpoint, Ledger

__all__ = ["Checkpoint", "Ledger", "Spend", "SumComposer"]
