"""Independent oracle for the profile of a release: everything is enumerated from the definitions.

A release is a pair of laws over its outcomes, one for the data with a user (P) and one without (Q); their
divergence is the sum of (P - e^epsilon Q)_+ over all. Nothing here knows of chords or certificates. Laws are cut
where they are below 10^-33; sums are in extended precision, right to about 10^-17.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Literal

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray

from oracles import Real, real

Long = NDArray[np.longdouble]
Kind = Literal["shared", "new"]
Laws = tuple[Long, Long]
CUT = 33
"""Weights below 10^-33 of the largest are left out."""


@dataclass(frozen=True)
class Step:
    """One release in lattice steps: noise of law `weight(z)`; a new count passes iff it is above `limit`."""

    weight: Callable[[int], mpf]
    reach: int
    unit: int
    limit: int
    cap: int


@cache
def gaussian_step(*, lattice: int, variance: Real, limit: int, cap: int) -> Step:
    """Discrete Gaussian noise: weights exp(-z^2/(2 V))."""
    v = real(variance)
    reach = int(mp.ceil(mp.sqrt(2 * v * CUT * mp.log(10)))) + 1
    return Step(lambda z: mp.exp(-(mpf(z) ** 2) / (2 * v)), reach, lattice, limit, cap)


@cache
def laplace_step(*, scale: Real, limit: int, cap: int) -> Step:
    """Discrete Laplace noise: weights exp(-|z|/scale)."""
    b = real(scale)
    reach = int(mp.ceil(b * CUT * mp.log(10))) + 1
    return Step(lambda z: mp.exp(-abs(mpf(z)) / b), reach, 1, limit, cap)


@cache
def _law(step: Step) -> Long:
    """Probabilities of the noise from -reach to reach."""
    weights = [step.weight(z) for z in range(-step.reach, step.reach + 1)]
    whole = mp.fsum(weights)
    return np.array([np.longdouble(mp.nstr(w / whole, 25)) for w in weights], dtype=np.longdouble)


def _item(step: Step, kind: Kind) -> Laws:
    """The outcome of one item of the user, if it is kept: P with the user, Q without.

    A shared count is so large that it always passes: its noisy value moves by one unit. A new one shows its value
    if it passes, and otherwise the last outcome: nothing. Without the user nothing is all there is.
    """
    law = _law(step)
    if kind == "shared":
        still = np.zeros(step.unit, dtype=np.longdouble)
        return np.concatenate((still, law)), np.concatenate((law, still))
    above = np.arange(-step.reach, step.reach + 1) > step.limit
    with_user = np.append(np.where(above, law, 0), law[~above].sum())
    without = np.zeros_like(with_user)
    without[-1] = 1
    return with_user, without


def release_laws(step: Step, kinds: Sequence[Kind]) -> Laws:
    """The laws of a release for a user with items of these kinds, of which `cap` are kept at random."""
    items = [_item(step, kind) for kind in kinds]
    without = reduce(np.multiply.outer, [q for _, q in items])
    if step.cap >= len(items):
        return reduce(np.multiply.outer, [p for p, _ in items]).ravel(), without.ravel()
    assert step.cap == 1
    parts = [
        reduce(np.multiply.outer, [p if i == kept else q for i, (p, q) in enumerate(items)])
        for kept in range(len(items))
    ]
    return np.asarray(sum(parts) / len(parts)).ravel(), without.ravel()


def divergence(p: Long, q: Long, factor: np.longdouble) -> np.longdouble:
    """Sum of (p - factor q)_+."""
    return np.longdouble(np.maximum(p - factor * q, 0).sum())


def delta_profile_upper(step: Step, kinds: Sequence[Kind], *, epsilon: float) -> float:
    """The divergence of one release for one kind of user, the larger of both orders, at any real epsilon."""
    p, q = release_laws(step, kinds)
    factor = np.exp(np.longdouble(epsilon))
    return float(max(divergence(p, q, factor), divergence(q, p, factor)))
