"""How much a budget protects, in words, so that commands, reports and the page agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from dphist.display import plain_number
from dphist.privacy.types import Budget

Level = Literal["strong", "moderate", "weak", "very weak"]
LEVELS: Final[tuple[Level, ...]] = ("strong", "moderate", "weak", "very weak")
# The largest epsilon of each level but the last. e^3 is 20: from there on a belief of 5 % may pass 50 %.
_EPSILONS: Final = (1.0, 3.0, 10.0)
# And the largest delta: one user in a hundred thousand, in a thousand, in ten.
_DELTAS: Final = (1e-5, 1e-3, 1e-1)


@dataclass(frozen=True)
class Verdict:
    """The level of protection, what it means for a guess about one person, and what to warn of."""

    level: Level
    sentence: str
    warnings: tuple[str, ...]

    @property
    def weak(self) -> bool:
        """Whether it needs a warning."""
        return bool(self.warnings)


def verdict_of(budget: Budget, largest_count: float | None = None) -> Verdict:
    """How much a budget protects. With the largest released count, a delta above one over it is noticed too."""
    epsilon, delta = budget.epsilon, budget.delta
    of_epsilon = sum(epsilon > most for most in _EPSILONS)
    users = max(1.0, largest_count or 1.0)
    # Among so many users as one item has, delta should leave hardly one without protection.
    of_delta = max(sum(delta > most for most in _DELTAS), sum(delta * users > most for most in (0.1, 1.0)))
    level = LEVELS[max(of_epsilon, of_delta)]
    warnings = []
    if of_epsilon >= 2:
        near = "counts may be close to the true ones, and " if of_epsilon == 3 else ""
        warnings.append(
            f"ε = {plain_number(epsilon)} is a {LEVELS[of_epsilon]} guarantee: {near}a guess whether a given "
            f"person is in the data, 50 % before, may be right {_percent(right_guesses(budget))} of the time. Use "
            "ε of 1 or less for sensitive data."
        )
    if of_delta >= 2:
        many = f"1 in {1.0 / delta:,.0f} users" if delta < 0.5 else "most users"
        known = f", and one item has about {users:,.0f}" if delta * users > 1.0 and users > 1.0 else ""
        warnings.append(
            f"δ = {plain_number(delta)} is too large: it allows all data of {many} to be published{known}. "
            "Choose δ well below 1 / number of users."
        )
    sentence = (
        f"{level}: someone who thinks it as likely as not that a given person is in the data, and now guesses, is "
        f"right at most {_percent(right_guesses(budget))} of the time"
    )
    return Verdict(level, sentence, tuple(warnings))


def right_guesses(budget: Budget) -> float:
    """The largest share of right guesses whether one person is in the data, if both are as likely beforehand.

    Guarantee: for any test, Pr[right] = (1 + TV)/2, and (epsilon, delta) on both sides allow a total variation of
    TV <= (e^epsilon - 1 + 2 delta)/(e^epsilon + 1).
    """
    shrink = math.exp(-budget.epsilon)
    return min(1.0, (1.0 + budget.delta * shrink) / (1.0 + shrink))


def _percent(share: float) -> str:
    """Rounded up to a tenth of a percent."""
    return f"{math.ceil(1000.0 * share - 1e-9) / 10.0:g} %"
