"""A trial release of counts that are public or made up: how many items pass, and how far off they are.

A simulation: its noise comes from a seed, so that nothing here is private.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from dphist.calibrate.quick import release_probability
from dphist.errors import InvalidParameter
from dphist.releases.histogram import release_histogram
from dphist.types import Noise, Plan

IntArray = NDArray[np.int64]
Spread = Literal["same", "geometric"]
MOST_ITEMS: Final = 10**6
_SHOWN: Final = 50


@dataclass(frozen=True)
class Population:
    """Counts from the largest down: of all users' items, and of those that a cap leaves."""

    whole: IntArray
    capped: IntArray
    names: tuple[str, ...] | None = None


def zipf_population(
    *, items: int, users: int, exponent: float, mean_items: float, spread: Spread, cap: int | None
) -> Population:
    """Expected users per item: the i-th item has a share proportional to i^-exponent.

    Each user has `mean_items` items, or a geometric number with that mean; a cap keeps at most `cap` of them.
    No item has more users than there are.
    """
    if not 1 <= items <= MOST_ITEMS:
        raise InvalidParameter(f"items must be between 1 and {MOST_ITEMS}, not {items}")
    if not 0.0 <= exponent <= 5.0:
        raise InvalidParameter(f"exponent must be between 0 and 5, not {exponent:g}")
    if not 1.0 <= mean_items <= items:
        raise InvalidParameter(f"mean_items must be between 1 and the {items} items, not {mean_items:g}")
    shares = np.arange(1.0, items + 1.0) ** -exponent
    shares /= shares.sum()

    def counts(each: float) -> IntArray:
        return np.minimum(np.rint(users * each * shares), users).astype(np.int64)

    return Population(counts(mean_items), counts(_kept(mean_items, spread, cap)))


def _kept(mean: float, spread: Spread, cap: int | None) -> float:
    """The mean of min(X, cap) for the number X of a user's items."""
    if cap is None:
        return mean
    if spread == "same":
        return min(mean, float(cap))
    # X is geometric on 1, 2, ...: the sum of Pr[X > j] = (1 - 1/mean)^j over j < cap.
    return mean * -np.expm1(cap * np.log1p(-1.0 / mean)) if mean > 1.0 else 1.0


def given_population(counts: IntArray, names: tuple[str, ...] | None) -> Population:
    """Counts that were given, from the largest down; they are taken for those after the cap."""
    order = np.argsort(-counts, kind="stable")
    sorted_names = None if names is None else tuple(names[i] for i in order[:_SHOWN])
    return Population(counts[order], counts[order], sorted_names)


def trial(plan: Plan, population: Population, seed: int) -> dict[str, Any]:
    """One release with noise from a seed, and what is expected of any."""
    if isinstance(plan.noise, Noise):
        raise InvalidParameter("continuous noise cannot be drawn: choose discrete noise to simulate a release")
    counts = population.capped
    bound = plan.contract.max_nonzero
    promised = bound is not None and not plan.releases_offset
    if promised:
        # The promise is kept as whoever makes it must keep it: before the data is looked at.
        counts = counts[:bound]
    places = np.arange(counts.size)
    release = release_histogram(places, counts, plan, seed=seed, promise_max_nonzero=promised)
    index = np.asarray(release.items, dtype=np.int64)
    noisy = np.asarray(release.counts, dtype=np.float64)
    whole, total = population.whole, int(population.whole.sum())
    errors = np.abs(noisy - whole[index])
    present = counts[counts > 0].astype(np.float64)
    floor = float(counts[bound]) if plan.releases_offset and bound is not None and bound < counts.size else 0.0
    above = present[present > floor] - floor
    return {
        "items": int((whole > 0).sum()),
        "users_items": total,
        "cut": int((population.capped[counts.size :] > 0).sum()),
        "kept": int(counts.sum()) / total if total else 0.0,
        "released": len(index),
        "expected": float(release_probability(plan.noise, above).sum()),
        "mean_absolute_error": float(errors.mean()) if errors.size else None,
        "share": float(whole[index].sum()) / total if total else 0.0,
        "top": _top(population, index, noisy),
    }


def _top(population: Population, index: IntArray, noisy: NDArray[np.float64]) -> list[dict[str, Any]]:
    """The largest true counts beside what was released of them."""
    released = dict(zip(index.tolist(), noisy.tolist(), strict=True))
    return [
        {
            "item": str(i + 1) if population.names is None else population.names[i],
            "true": int(population.whole[i]),
            "released": released.get(i),
        }
        for i in range(min(_SHOWN, population.whole.size))
    ]
