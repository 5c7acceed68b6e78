"""The certificate of continuous noise is an upper bound whatever errors the doubles have."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from flint import arb
from hypothesis import given, settings
from hypothesis import strategies as st
from test_exact import as_oracle, epsilons, noises

import oracles
import oracles_family as family_oracle
from dphist.model import Contract, NeighbourCase, Noise
from dphist.proof import balls, continuous
from dphist.proof.continuous import BallFamily, certify_family
from dphist.proof.exact import CaseDelta, delta_family
from dphist.proof.numerics import Blocks
from scheduling import examples


@given(st.floats(1e-300, 1e300))
def test_upper_never_rounds_down(value: float) -> None:
    with balls.precision(200):
        ball = arb(value) * (1 + arb(2) ** -120)
        assert arb(balls.upper(ball)) >= ball
        assert balls.upper(ball) <= math.nextafter(value, math.inf)
        assert balls.upper(arb(value)) == value
    assert balls.upper(arb("nan")) == math.inf


@settings(max_examples=examples(25))
@given(noise=noises, count=st.integers(1, 10**6))
def test_infinite_event_encloses_the_truth(noise: Noise, count: int) -> None:
    truth = oracles.infinite_event(count=count, **as_oracle(noise))
    family = BallFamily(noise, Contract(count), epsilon=0.1, scale=float(truth))
    with balls.precision(family.bits):
        upper = balls.upper(family.infinite_event(count))
    assert upper >= float(truth) * (1.0 - 1e-16)
    assert upper <= float(truth) * (1.0 + 1e-13)


@settings(max_examples=examples(10))
@given(noise=noises, epsilon=epsilons, j=st.integers(1, 6), r=st.integers(1, 5), data=st.data())
def test_chords_bound_the_offset_bound_and_converge(
    noise: Noise, epsilon: float, j: int, r: int, data: st.DataObject
) -> None:
    s = data.draw(st.integers(1, j))
    a = s / (j + noise.gamma)
    truth = max(
        family_oracle.offset_bound(j=j, r=r, s=s, a=a, epsilon=epsilon, direction=d, **as_oracle(noise))
        for d in ("add", "remove")
    )
    case = continuous.OffsetCase(noise, shared=j, new=r, changed=s, offset=a, epsilon=epsilon, scale=float(truth))
    with balls.precision(160):
        coarse, fine = continuous.offset_bound_upper(case, 40), continuous.offset_bound_upper(case, 400)
    assert coarse >= fine >= float(truth)
    assert fine <= float(truth) * (1.0 + 2e-3)


@settings(max_examples=examples(4))
@given(shape=st.sampled_from([(2, 2), (3, 2), (5, 1)]), noise=noises, epsilon=epsilons)
def test_certificate_against_all_neighbours(shape: tuple[int, int], noise: Noise, epsilon: float) -> None:
    k, m = shape
    truth, _ = family_oracle.delta_family(k=k, m=m, epsilon=epsilon, **as_oracle(noise))
    result = certify_family(noise, Contract(k, m), epsilon=epsilon)
    assert result.delta >= float(truth) * (1.0 - 1e-15)
    assert result.delta_lower <= float(truth) * (1.0 + 1e-8)
    assert result.delta == pytest.approx(delta_family(noise, Contract(k, m), epsilon=epsilon).delta, rel=1e-5)


PLANS = [
    (Noise(18.0, 8.7, 40.0), Contract(20, 20), 0.01),
    (Noise(30.0, 0.0, 165.0), Contract(None, 50), 1.0),
    pytest.param(Noise(40.0, 4.0, 165.0), Contract(500, 50), 0.7, marks=pytest.mark.slow),
    pytest.param(Noise(17.66, 9.93, 96.4), Contract(10, 10), 0.35, marks=pytest.mark.slow),
    pytest.param(Noise(30.0, 5.0, 165.0), Contract(None, 50), 1.0, marks=pytest.mark.slow),
    (Noise(0.9, 0.4, 4.0), Contract(6, 6), 8.0),
]


@pytest.mark.parametrize(("noise", "contract", "epsilon"), PLANS)
def test_certificate_holds_if_the_doubles_are_wrong(
    noise: Noise, contract: Contract, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the doubles call every case negligible, they propose one coarse block; the balls still bound delta."""
    honest = certify_family(noise, contract, epsilon=epsilon)

    def careless(*_: object, **__: object) -> CaseDelta:
        return CaseDelta(honest.delta * 1e-3, NeighbourCase(contract.nonzero, 0, 1, "either"))

    def one_block(*_: object, **__: object) -> Blocks:
        one, last = np.array([1], dtype=np.int64), np.array([contract.items - 1], dtype=np.int64)
        return Blocks(one, last, np.array([0.0]))

    monkeypatch.setattr(continuous, "delta_family", careless)
    monkeypatch.setattr(continuous, "mixed_blocks", one_block)
    monkeypatch.setattr(continuous, "sum_bound", lambda *_, **__: np.array([0.0]))
    fooled = certify_family(noise, contract, epsilon=epsilon)
    assert fooled.delta >= honest.delta_lower
    assert fooled.delta >= honest.delta * (1.0 - 1e-5)


def test_an_accepted_plan_has_every_block_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a mixture is between the fast value and the budget, so stopping early would go unnoticed."""
    noise, contract = Noise(21.98, 21.98 / math.sqrt(2.459), 66.75), Contract(33, 12)
    seen: set[int] = set()

    def recorded(method: Any) -> Any:
        def wrapper(self: BallFamily, first: int, last: int, *rest: float) -> Any:
            seen.update(range(first, last + 1))
            return method(self, first, last, *rest)

        return wrapper

    monkeypatch.setattr(BallFamily, "sum_block", recorded(BallFamily.sum_block))
    monkeypatch.setattr(BallFamily, "offset_block", recorded(BallFamily.offset_block))
    assert certify_family(noise, contract, epsilon=0.0, budget=0.0609).delta <= 0.0609
    assert seen == set(range(1, 12))


def test_a_block_is_bounded_by_both_offsets_together(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets: list[float] = []

    def hopeless(case: continuous.OffsetCase, goal: float) -> float:
        offsets.append(case.offset)
        return 2.0 * goal

    monkeypatch.setattr(continuous, "_enough_chords", hopeless)
    family = BallFamily(Noise(18.0, 8.7, 40.0), Contract(20, 20), epsilon=0.01, scale=0.1)
    assert family.offset_block(3, 3, 0.1) == 0.2
    assert len(offsets) == 2
    assert offsets[0] <= 0.5 <= offsets[1]


@pytest.mark.parametrize(
    ("noise", "contract", "epsilon"),
    [
        pytest.param(
            Noise(18.48, 18.48 / math.sqrt(0.2035), 126.1), Contract(37, 16), 0.0, marks=pytest.mark.slow
        ),
        pytest.param(Noise(21.98, 21.98 / math.sqrt(2.459), 66.75), Contract(33, 12), 0.0, marks=pytest.mark.slow),
        (Noise(3.0, 9.0, 30.0), Contract(5, 5), 0.05),
    ],
)
def test_chords_stay_tight_with_much_shared_noise(noise: Noise, contract: Contract, epsilon: float) -> None:
    """g drops from 1 to almost 0 within the range of integration: no ball may blow up there."""
    fast = delta_family(noise, contract, epsilon=epsilon).delta
    assert certify_family(noise, contract, epsilon=epsilon).delta == pytest.approx(fast, rel=1e-5)


def test_an_interrupt_is_not_lost_in_the_integrator() -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    with balls.precision(64), pytest.raises(KeyboardInterrupt):
        balls.integral(interrupted, arb(0), arb(1), absolute=1e-9)


@pytest.mark.slow
def test_masses_that_underflow_leave_a_certificate() -> None:
    result = certify_family(Noise(1.0, 0.5, 100.0), Contract(50), epsilon=800.0)
    assert 0.0 <= result.delta < 1e-300


def test_unbounded_k_is_the_limit_of_large_k() -> None:
    """Without max_nonzero the shared noise counts as known: the limit of k to infinity, from above."""
    noise = Noise(30.0, 5.0, 165.0)
    unbounded = certify_family(noise, Contract(None, 50), epsilon=1.0).delta
    bounded = [certify_family(noise, Contract(k, 50), epsilon=1.0).delta for k in (50, 10**3, 10**9)]
    assert bounded == sorted(bounded)
    assert bounded[-1] <= unbounded
    assert bounded[-1] == pytest.approx(unbounded, rel=1e-6)


FORKED = """
import os, signal, threading
import dphist
from dphist.proof.balls import precision

inside, done = threading.Event(), threading.Event()

def hold():
    with precision(500):
        inside.set()
        done.wait()

threading.Thread(target=hold, daemon=True).start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=1)
    os._exit(0)
done.set()
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_during_a_certificate_plans() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_one_new_and_one_changed_count_are_worst_for_two_items() -> None:
    """As for discrete noise: the mixed neighbours of m = 2 exceed the pure ones."""
    noise, numbers = Noise(3.2, 3.2, 6.3), {"sigma": 3.2, "sigma_shared": 3.2, "tau": 6.3, "epsilon": 0.05}
    changed, mixed, new = (
        float(family_oracle.delta_case(j=10 - r, r=r, s=2 - r, direction="add", **numbers)) for r in (0, 1, 2)
    )
    assert mixed > 1.02 * max(changed, new)
    fast = delta_family(noise, Contract(10, 2), epsilon=0.05).delta
    assert fast >= mixed * (1 - 1e-9), "mixed neighbours are not in the analysis of m = 2"
    certified = certify_family(noise, Contract(10, 2), epsilon=0.05).delta
    assert certified >= mixed * (1 - 1e-9), "mixed neighbours are not in the certificate of m = 2"
