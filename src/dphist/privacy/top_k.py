"""The top-k step with its offset: the (k+1)-th largest count c is subtracted from all, and released with noise.

Adding a user moves (counts, c) by (+v, 0) or by (-v, +1), v of zeros and ones: opposite signs. So c is released
with the opposite of the shared noise,

    y_i = H~_i + Z_i + W,    c~ = c + Z_c - W,    y_i + c~ = H_i + Z_i + Z_c,

and W cancels in the counts. Derivation and comparison with the paper's rule: docs/theory/top-k.md.
"""

from __future__ import annotations

from typing import Final

from flint import arb

from dphist.errors import InvalidParameter
from dphist.privacy.balls import shift_divergence
from dphist.privacy.lattice import Combination, DiscreteFamily, upper_factor
from dphist.privacy.noise import LatticeNoise, OffsetRule
from dphist.privacy.types import Contract

# How far the offset's own noise has to move, in halves of a count, when c does not change and when it does.
_HALVES: Final[dict[OffsetRule, tuple[int, int]]] = {"none": (0, 0), "opposite": (1, 1), "independent": (0, 2)}


def squared_sensitivity_top_k(*, shared: float, gamma: float, rule: OffsetRule, extra: float = 0.0) -> float:
    """Squared sensitivity, in units of 1/sigma^2, of `shared` counts and their offset, both moved at their worst.

        (j + gamma + h^2 gamma)/4 + extra j,    h = 1 for the opposite offset, 2 for the independent one, 0 without

    Guarantee: an upper bound, attained up to parity (of j for the opposite offset, else of j + gamma).
    Valid for: offset noise of the variance of the shared noise, sigma^2/gamma.
    Source: `sec:top-k`, whose sqrt(k + 5 sqrt k) is the independent rule at gamma = sqrt k; the other goes beyond.
    """
    return (shared + gamma * (1 + max(_HALVES[rule]) ** 2)) / 4.0 + extra * shared


class TopKFamily(DiscreteFamily):
    """The bounds of the family with one more coordinate, the offset; users are not bounded.

    Every noise moves by half a count: W by +1/2, each Z_i by +1/2 or -1/2, Z_c by what is left. All signs have the
    same likelihood ratio, so one bound serves every v, both movements of c and both directions.
    """

    def __init__(self, noise: LatticeNoise, contract: Contract, *, epsilon: float, scale: float) -> None:
        if contract.max_nonzero is None or contract.items != contract.max_nonzero:
            raise InvalidParameter(
                "a top-k step keeps no bound on the items of a user: its plan has max_nonzero alone"
            )
        super().__init__(noise, contract, epsilon=epsilon, scale=scale)

    def gaussian_worst(self, new: int) -> arb:
        """Upper bound of delta over all moves of the shared counts and of c when `new` counts stay hidden.

        Fewer shared counts are a projection of more, so those of the most shared ones bound them all.
        """
        worst = arb(0)
        for halves in set(_HALVES[self.noise.offset]):
            worst = worst.max(self._delta_of_move(int(self.contract.nonzero) - new, halves))
        return worst

    def _delta_of_move(self, shared: int, halves: int) -> arb:
        """delta of moving `shared` counts and W by half a count each, and Z_c by `halves` of them."""
        gamma, lattice = self.noise.gamma_whole, self.noise.lattice
        assert gamma is not None
        if shared == 0:
            return self._offset_alone(halves)
        total = shared + gamma + halves**2 * gamma
        spreads = [self.variance / 2, 1 / (gamma**2 / (self.variance * shared) + 1 / self.shared)]
        if halves:
            before = self.variance * (shared + gamma)
            spreads.append(1 / ((halves * gamma) ** 2 / before + 1 / self.shared))
        half = lattice // 2
        counts = Combination(self.variance * total, half * total, half, upper_factor(spreads, shared))
        # Which sums move depends on who the user is: as if all of them did.
        return self.sums.with_sums(counts, shared).divergence(self.epsilon)

    def _offset_alone(self, halves: int) -> arb:
        """No shared count: the offset moves by one count, or not at all, with all the noise it has."""
        if halves == 0:
            return arb(0)
        draws = 2 if self.noise.offset == "opposite" else 1
        divergence = shift_divergence(variance=self.shared * draws, shift=self.noise.lattice, epsilon=self.epsilon)
        return divergence * upper_factor([self.shared / 2], draws) if draws > 1 else divergence
