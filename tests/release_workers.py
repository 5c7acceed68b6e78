"""Processes that release with a ledger, for tests: they race, or they book too late.

`race` reads folders, one per line, releases the events of each once and says "released" or what refused it.
`late WORDS` is the command `dphist WORDS`, but books when the release is written.
`small WORDS` is the command `dphist WORDS` on a disk that takes no file above 100,000 bytes.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import dphist
from dphist.cli import main
from dphist.errors import DphistError, OverBudget
from dphist.releases import events, spending


class Late:
    """A booking that is yet to be made."""

    def __init__(self, *asked: Any) -> None:
        self._asked = asked

    def receipt(self) -> dict[str, Any]:
        return {}

    def settle(self, written: Any) -> None:
        spending.book(*self._asked).settle(written)


def race() -> None:
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        try:
            dphist.release(
                folder / "events.parquet", user="user", item="item", epsilon=1.0, delta=1e-7, max_items_per_user=2,
                ledger=folder / "a.ledger", dataset="log", output=folder / f"{os.getpid()}.csv",
            )  # fmt: skip
            said = "released"
        except OverBudget:
            said = "refused"
        except DphistError as error:
            said = f"error: {error}"
        sys.stdout.write(said + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    mode = sys.argv.pop(1)
    if mode == "late":
        vars(events)["book"] = Late
    if mode == "small":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    race() if mode == "race" else main()
