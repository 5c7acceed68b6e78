"""Pairs of neighbours, each with a score of the output: the attack is to guess H from a high score or a low one.

Whatever the score, the bound on delta is valid: a poor score only makes it weak.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dphist.mechanisms.base import FloatArray
from dphist.types import Contract

Score = Callable[[FloatArray], FloatArray]
BoolArray = NDArray[np.bool_]

# Far above any threshold that an audit can see something of, and small enough to keep 33 bits of fraction.
LARGE: Final = 10**6
# One user of m = 50,000 items needs no audit of 50,000 columns: a smaller pair is a valid pair.
MOST_ITEMS: Final = 64


@dataclass(frozen=True)
class Case:
    """Neighbours H (with the user) and H' (without), and how to learn a score from runs of both.

    `fit(values, values_neighbour)` sees the runs set aside for choosing, a row each, NaN where nothing was
    released.
    """

    name: str
    counts: tuple[int, ...]
    neighbour: tuple[int, ...]
    fit: Callable[[FloatArray, FloatArray], Score]


def family_case(name: str, *, shared: int, changed: int, new: int) -> Case:
    """`shared` large counts in both, `changed` of them one higher in H, and `new` counts of one in H alone."""
    neighbour = (LARGE,) * shared + (0,) * new
    counts = (LARGE + 1,) * changed + (LARGE,) * (shared - changed) + (1,) * new

    def fit(values: FloatArray, values_neighbour: FloatArray) -> Score:
        return _linear_score(values, values_neighbour, shared=shared, changed=changed)

    return Case(name, counts, neighbour, fit)


def _linear_score(values: FloatArray, values_neighbour: FloatArray, *, shared: int, changed: int) -> Score:
    """Fisher's discriminant of the shared counts; infinite where a new count was released.

    The log-likelihood ratio of correlated normal noise is linear in the counts, and by symmetry in two means: of
    the changed and of the unchanged. Fisher's weights are its weights, learnt without knowing the noise.
    """

    def features(rows: FloatArray) -> FloatArray:
        kept = np.nan_to_num(rows[:, :shared] - LARGE, nan=-float(LARGE))
        groups = [group for group in (kept[:, :changed], kept[:, changed:]) if group.shape[1] > 0]
        return np.stack([group.mean(axis=1) for group in groups], axis=1) if groups else np.zeros((len(rows), 1))

    def some_new(rows: FloatArray) -> BoolArray:
        return np.asarray(~np.isnan(rows[:, shared:]).all(axis=1))

    one, other = features(values[~some_new(values)]), features(values_neighbour)
    weights = np.zeros(other.shape[1])
    if len(one) > 1:
        pooled = np.atleast_2d(np.cov(one, rowvar=False)) + np.atleast_2d(np.cov(other, rowvar=False))
        weights = np.linalg.pinv(pooled) @ (one.mean(axis=0) - other.mean(axis=0))

    def score(rows: FloatArray) -> FloatArray:
        return np.where(some_new(rows), np.inf, features(rows) @ weights)

    return score


def finest_bit(values: FloatArray) -> FloatArray:
    """-e for the lowest set bit 2^e of a row's values, the finest of them; -inf where there is none.

    Floats added to counts carry bits whose fineness depends on the size of the noise, hence on the count.
    """
    mantissa, exponent = np.frexp(values)
    whole = np.where(np.isfinite(values), mantissa * 2.0**53, 0.0).astype(np.int64)
    lowest = (whole & -whole).astype(np.float64)
    with np.errstate(divide="ignore"):
        fineness = 53.0 - exponent - np.log2(lowest)
    return np.asarray(np.where(lowest > 0, fineness, -np.inf).max(axis=1), dtype=np.float64)


def bits_case(contract: Contract) -> Case:
    """Counts of 2 or of 1, read by the fineness of their bits."""
    items = min(contract.items, MOST_ITEMS)
    return Case("finest bit of counts 2 or 1", (2,) * items, (1,) * items, lambda _one, _other: finest_bit)


def standard_cases(contract: Contract) -> tuple[Case, ...]:
    """Worst-case neighbours under a contract: only new counts, none, both, and the bits of small counts."""
    items = min(contract.items, MOST_ITEMS)
    most = items if math.isinf(contract.nonzero) else min(int(contract.nonzero), MOST_ITEMS)
    cases = [family_case(f"{items} new counts", shared=0, changed=0, new=items)]
    if most > items:
        name = f"{items} new counts beside {most - items} shared ones"
        cases.append(family_case(name, shared=most - items, changed=0, new=items))
    # The worst number of changes is (gamma + j)/2, and gamma is near sqrt k; without shared noise it is m.
    for changed in sorted({items, min(items, round((most + math.sqrt(most)) / 2))}):
        name = f"{changed} of {most} shared counts changed"
        cases.append(family_case(name, shared=most, changed=changed, new=0))
    new = items // 2
    if new > 0:
        shared = most - new
        changed = min(items - new, shared)
        name = f"{new} new counts, {changed} of {shared} shared counts changed"
        cases.append(family_case(name, shared=shared, changed=changed, new=new))
    return (*cases, bits_case(contract))
