"""The steps of a release in the log of services: the logger `dphist`, which is silent unless configured.

A record names a step, and at level DEBUG what is public about it: never a count, an item or any other value, and
no number that comes from the data. The one exception is time. How long a step takes depends on the rows; whoever
sees a log also sees when each record came, so leaving durations out would hide nothing. They are whole seconds,
rounded up. Counting and noise share a record, because the time of the noise alone follows the number of distinct
items, most of which are not released. docs/threat-model.md says who may see a log.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Final

LOGGER: Final = logging.getLogger("dphist")
# Otherwise Python prints warnings of a program that has no logging.
LOGGER.addHandler(logging.NullHandler())

STEPS: Final = ("request", "check", "plan", "book", "count", "noise", "write", "settle")


class StepLog:
    """Logs each step when it is done."""

    def __init__(self) -> None:
        self._done, self._since = 0, time.monotonic()

    def done(self, name: str, **public: object) -> None:
        """All steps up to this one are done. What is `public` about them is logged at level DEBUG."""
        first, self._done = self._done, STEPS.index(name) + 1
        now = time.monotonic()
        seconds, self._since = max(1, math.ceil(now - self._since)), now
        names = STEPS[first : self._done]
        numbers = " and ".join(str(place) for place in range(first + 1, self._done + 1))
        LOGGER.info(
            "step%s %s of %d, %s: at most %d s", "s" * (len(names) > 1), numbers, len(STEPS), " and ".join(names),
            seconds,
            extra={"step": " and ".join(names), "seconds": seconds},
        )  # fmt: skip
        for key, value in public.items():
            if value is not None:
                LOGGER.debug("%s: %s", key.replace("_", " "), value)
