"""Independent oracle: the exact divergence of one count and one vector of two columns, by summing over the noise.

The mechanism releases b H + Z and T + (Y1, Y2), all whole numbers, where Pr[x] is proportional to exp(-x^2/(2V))
for Z (variance V) and for Y1 and Y2 (variance U). One user moves the count by b and the vector by (v1, v2). The
divergence is the sum over all outputs of max(P - e^epsilon Q, 0), term by term; in the last coordinate, where the
positive terms are those on one side of a point, by tails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Draws beyond this many deviations have a probability below 1e-16.
_FAR = 8.5


def _law(variance: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    most = int(_FAR * variance**0.5)
    x = np.arange(-most, most + 1)
    weights = np.exp(-(x.astype(np.float64) ** 2) / (2.0 * variance))
    return x, weights / weights.sum()


def vector_divergence(
    *, lattice: int, variance: float, vector: float, moves: tuple[int, int], epsilon: float
) -> float:
    """The hockey-stick divergence of the outputs without the user from those with the user.

    Without the user, the output is (z, y1, y2); with the user it is moved by (b, v1, v2).
    """
    first, second = sorted(moves, key=abs)
    (x, p), (y, q) = _law(variance), _law(vector)
    if second == 0:
        counted = np.zeros_like(p)
        counted[lattice:] = p[:-lattice]
        return float(np.maximum(counted - np.exp(epsilon) * p, 0.0).sum())
    second, most = abs(second), int(y[-1])
    # tails[k] = Pr[Y >= k - most], 1 below and 0 above.
    tails = np.concatenate([np.cumsum(q[::-1])[::-1], [0.0]])

    def tail(point: NDArray[np.int64]) -> NDArray[np.float64]:
        return tails[np.clip(point + most, 0, tails.size - 1)]

    def mass(law: NDArray[np.float64], point: NDArray[np.int64]) -> NDArray[np.float64]:
        place = point + law.size // 2
        inside = (place >= 0) & (place < law.size)
        return np.where(inside, law[np.clip(place, 0, law.size - 1)], 0.0)

    total = 0.0
    wide = np.arange(-most - abs(first), most + abs(first) + 1)
    for z in range(int(x[0]) - lattice, int(x[-1]) + lattice + 1):
        point = np.array([z])
        with_user, without = float(mass(p, point - lattice)[0]), float(mass(p, point)[0])
        # ln(P/Q) is linear in the output: b (2 z - b)/(2 V) + v1 (2 y1 - v1)/(2 U) + v2 (2 y2 - v2)/(2 U).
        rest = epsilon - lattice * (2 * z - lattice) / (2 * variance) - first * (2 * wide - first) / (2 * vector)
        from_here = np.ceil(rest * vector / second + second / 2).astype(np.int64)
        up = with_user * mass(q, wide - first) * tail(from_here - second)
        down = without * mass(q, wide) * tail(from_here)
        total += float(np.maximum(up - np.exp(epsilon) * down, 0.0).sum())
    return total


def renyi_of_order_two(variance: float, move: int) -> float:
    """ln of the sum of P^2/Q for one draw moved by `move`, term by term."""
    x, p = _law(variance)
    moved = np.exp(-((x - move).astype(np.float64) ** 2) / (2.0 * variance))
    moved /= moved.sum()
    return float(np.log((moved**2 / p).sum()))
