"""What a release promises, in words that a privacy officer can hold it to. Bounds are rounded up."""

from __future__ import annotations

import math
from typing import Final

from dphist.display import raised
from dphist.privacy.types import Budget
from dphist.report.sentences import figure

# How far a factor may exceed e^epsilon, and how many delta that costs: 1/(1 - 1/1.1) = 11.
SLACK: Final = 1.1
DELTAS: Final = 11


def at_most(share: float) -> str:
    """A bound on a share of one in percent: never less than it is, with more digits near the ends."""
    near = min(share, 1.0 - share)
    if 0.0 < near < 1e-5:
        return "100 %" if share > 0.5 else "0.001 %"
    digits = 1 if near >= 0.01 else 3
    # A number that was rounded to its digits already is not raised by what a double cannot hold.
    bound = math.ceil(share * 100.0 * 10**digits - 1e-7) / 10**digits
    return f"{bound:.{digits}f} %" if bound < 100.0 else "100 %"


def one_in(probability: float) -> str:
    """A small probability as people say it: one in at least so many."""
    return (
        f"1 in {math.floor(1.0 / probability * (1 + 1e-12)):,}" if probability >= 1e-12 else raised(probability, 2)
    )


def _about(exponent: float, times: float = 1.0) -> str:
    """times e^exponent in digits, where people can read them."""
    return (
        f" (about {figure(times * math.exp(exponent))})"
        if exponent < 30.0
        else f" (epsilon = {raised(exponent, 6)})"
    )


def moved(prior: float, epsilon: float) -> float:
    """Where a belief can go at most when its odds are multiplied by e^epsilon."""
    return prior / (prior + (1.0 - prior) * math.exp(-epsilon))


def promise(budget: Budget, delta_at_zero: float, guarantee: str = "") -> tuple[str, ...]:
    """What an attacker can learn at this budget, and what the guarantee rests on.

    `delta_at_zero` bounds how far apart the outputs of neighbours are, as a total variation.
    """
    epsilon, delta = budget.epsilon, budget.delta
    # The success of the best guess from even odds is (1 + d)/2, d the total variation; epsilon alone allows more.
    exponent = math.exp(-epsilon)
    generic = (1.0 + delta * exponent) / (1.0 + exponent)
    guess = min((1.0 + delta_at_zero) / 2.0, generic)
    # Where somebody else counted, the guarantee is for those alone who have no more items than it says.
    bounded = "no user contributes to more than" in guarantee
    whoever = (
        "if that person has no more items than the guarantee rests on"
        if bounded
        else "and however many items that person had"
    )
    return (
        "The promise is about any one person: it bounds how well anybody can tell from this release whether that "
        f"person was in the data, whatever else they know, {whoever}.",
        "Say someone thinks it as likely as not that a certain person is in the data. Without this release "
        f"they guess right in 50 % of cases; with it, in at most {at_most(guess)}.",
        "In the terms of the definition: for anything that could be seen, its probability with the person in the "
        f"data is at most e^epsilon{_about(epsilon)} times that without, plus delta = {raised(delta, 6)} "
        f"({one_in(delta)}); and the other way round.",
        _beliefs(epsilon, delta),
        *_provided(guarantee),
    )


def _beliefs(epsilon: float, delta: float) -> str:
    """How far a belief can go, and how seldom further.

    With the loss L = ln P/Q and s = 1.1: delta >= E[(1 - e^(epsilon - L))^+] >= (1 - 1/s) Pr[L > epsilon + ln s],
    under P, and the more so under Q, where what speaks for P is rarer still; and so for what speaks for Q.
    """
    rare = DELTAS * delta
    if rare >= 1.0:
        return f"delta = {raised(delta, 6)} is so large that nothing can be said of how far a belief may go."
    most = epsilon + math.log(SLACK)
    return (
        f"Put as beliefs: the release raises the odds that the person is in the data by a factor of more than "
        f"{SLACK:g} e^epsilon{_about(epsilon, SLACK)} only with a probability of at most {DELTAS} delta = "
        f"{raised(rare)} ({one_in(rare)}); it lowers them by more than that with no larger probability. Apart "
        f"from that rare case, a belief of 1 % becomes at most {at_most(moved(0.01, most))}, a belief of 50 % at "
        f"most {at_most(moved(0.5, most))}. This is the most that a single, unlucky release can do; how often a "
        "guess is right, above, is the average over all releases that could have come out."
    )


def _provided(guarantee: str) -> list[str]:
    """What nobody can see in the release, and the guarantee rests on."""
    condition = guarantee.partition(", provided that ")[2]
    return [f"All of this rests on what no proof can show: that {condition}"] if condition else []
