"""How much a budget protects, in the same words for commands, reports and the page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dphist.display import plain_number
from dphist.model import Budget

LEVELS: Final = ("strong", "moderate", "weak", "very weak")
# The largest epsilon of each level but the last. From 3 on (e^3 is 20), a suspicion of 5 % may become 50 %.
_EPSILONS: Final = (1.0, 3.0, 10.0)
_DELTAS: Final = (1e-5, 1e-3, 1e-1)


@dataclass(frozen=True)
class Verdict:
    """The level of protection, what it means for a guess about one person, and warnings."""

    level: str
    sentence: str
    warnings: tuple[str, ...]

    @property
    def weak(self) -> bool:
        return bool(self.warnings)


def verdict_of(budget: Budget, largest_count: float | None = None) -> Verdict:
    """How much a budget protects. With the largest released count, delta is also compared with 1 over it."""
    epsilon, delta = budget.epsilon, budget.delta
    of_epsilon = sum(epsilon > most for most in _EPSILONS)
    users = max(1.0, largest_count or 1.0)
    # Among the users of one item, delta should leave hardly any unprotected.
    of_delta = max(sum(delta > most for most in _DELTAS), sum(delta * users > most for most in (0.1, 1.0)))
    level = LEVELS[max(of_epsilon, of_delta)]
    warnings = []
    if of_epsilon >= 2:
        near = "counts may be close to the true ones, and " if of_epsilon == 3 else ""
        warnings.append(
            f"ε = {plain_number(epsilon)} is a {LEVELS[of_epsilon]} guarantee: {near}{guess_words(budget)}. Use ε "
            "of 1 or less for sensitive data."
        )
    if of_delta >= 2:
        many = f"1 in {1.0 / delta:,.0f} users" if delta < 0.5 else "most users"
        known = f", and one item has about {users:,.0f}" if delta * users > 1.0 and users > 1.0 else ""
        warnings.append(
            f"δ = {plain_number(delta)} is too large: it allows all data of {many} to be published{known}. "
            "Choose δ well below 1 / number of users."
        )
    return Verdict(level, f"{level}: {guess_words(budget)}", tuple(warnings))


def guess_words(budget: Budget) -> str:
    """What the budget guarantees, as one number: it follows from epsilon and delta alone."""
    return (
        "an observer with even odds on whether a given person is in the data guesses right at most "
        f"{_percent(right_guesses(budget))} of the time"
    )


def right_guesses(budget: Budget) -> float:
    """The largest share of right guesses whether one person is in the data, from even odds.

    Guarantee: for any test, Pr[right] = (1 + TV)/2, and (epsilon, delta) on both sides allow a total variation of
    TV <= (e^epsilon - 1 + 2 delta)/(e^epsilon + 1).
    """
    shrink = math.exp(-budget.epsilon)
    return min(1.0, (1.0 + budget.delta * shrink) / (1.0 + shrink))


def _percent(share: float) -> str:
    """Rounded up to a tenth of a percent."""
    return f"{math.ceil(1000.0 * share - 1e-9) / 10.0:g} %"
