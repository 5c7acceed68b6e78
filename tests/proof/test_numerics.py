"""Searches that pass what they return, roundings to the safe side, and blocks."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from flint import arb
from hypothesis import given
from hypothesis import strategies as st

from dphist.errors import NoPlan
from dphist.proof import balls
from dphist.proof.numerics import (
    FloatArray,
    IntArray,
    bound_over_blocks,
    crossing_breaks,
    normal_reach,
    panel_nodes,
)
from dphist.proof.searches import golden_minimum, least_passing, least_whole_passing, log_excess, round_up


@given(st.floats(1e-290, 1e290), st.integers(2, 15))
def test_round_up_is_not_below_and_hardly_above(value: float, digits: int) -> None:
    rounded = round_up(value, digits)
    assert rounded >= value
    assert rounded <= value * (1.0 + 1.1 * 10.0 ** (1 - digits)) + 5e-324


@given(st.floats(1e-12, 1e12), st.floats(1e-9, 1e9), st.floats(0.2, 5.0))
def test_least_passing_returns_what_it_tested(root: float, start: float, power: float) -> None:
    tested: list[tuple[float, bool]] = []

    def excess(x: float) -> float:
        value = log_excess((root / x) ** power, 1.0)
        tested.append((x, value <= 0.0))
        return value

    least = least_passing(excess, start)
    assert (least, True) in tested
    assert least == pytest.approx(root, rel=1e-11)
    assert all(x < least or passed for x, passed in tested)
    assert len(tested) < 220


def test_least_passing_of_a_step() -> None:
    """A step has no slope to follow; bisection still closes in."""
    least = least_passing(lambda x: 1.0 if x < math.pi else -1.0, 0.01)
    assert math.pi <= least <= math.pi * (1.0 + 1e-12)


def test_least_passing_gives_up_where_nothing_passes() -> None:
    with pytest.raises(NoPlan):
        least_passing(lambda _: 1.0, 1.0)


@given(st.integers(1, 10**9), st.one_of(st.integers(1, 10**9), st.floats(0.5, 2.0)), st.integers(0, 3))
def test_least_whole_passing(root: int, near: float, shape: int) -> None:
    """Nearly a line, a parabola, a logarithm, and a step, which has no slope to follow."""
    tested: list[int] = []
    curves = (lambda n: root - 0.5 - n, lambda n: (root - 0.5) ** 2 - n**2,
              lambda n: math.log((root - 0.5) / n), lambda n: 1.0 if n < root else -1e3)  # fmt: skip

    def excess(n: int) -> float:
        tested.append(n)
        return float(curves[shape](n))

    start = max(1, round(near * root)) if isinstance(near, float) else near
    assert least_whole_passing(excess, start) == root
    assert root in tested
    assert root == 1 or root - 1 in tested
    assert min(tested) >= 1
    assert len(tested) <= 80


@given(st.floats(1e-300, 1.0), st.floats(1e-300, 1.0))
def test_log_excess_has_the_sign_of_the_comparison(value: float, target: float) -> None:
    assert (log_excess(value, target) <= 0.0) == (value <= target)


def test_golden_minimum() -> None:
    argument, value = golden_minimum(lambda x: (x - 0.3) ** 2 + 1.0, -2.0, 5.0, tolerance=1e-7)
    assert argument == pytest.approx(0.3, abs=1e-6)
    assert value == pytest.approx(1.0)


@given(last=st.integers(1, 5000), peak=st.floats(0.0, 1.0), enough=st.floats(0.0, 1.0), growth=st.floats(1.2, 5.0))
def test_blocks_partition_and_bound(last: int, peak: float, enough: float, growth: float) -> None:
    """f(n) = rising part + falling part; the bound of a block takes each at its worst end."""
    rising = np.sqrt(np.arange(last + 1) / last) * peak
    falling = (1.0 - np.arange(last + 1) / last) ** 2 * (1.0 - peak)
    values = rising + falling

    def upper(first: IntArray, end: IntArray) -> FloatArray:
        return np.asarray(rising[end] + falling[first])

    blocks = bound_over_blocks(upper, 1, last, enough=enough, relative=1e-6, growth=growth)
    order = np.argsort(blocks.first)
    first, end = blocks.first[order], blocks.last[order]
    assert first[0] == 1
    assert end[-1] == last
    assert (first[1:] == end[:-1] + 1).all()
    truth = values[1:].max()
    assert blocks.maximum >= truth * (1.0 - 1e-15)
    assert blocks.maximum <= max(truth, enough) * (1.0 + 2e-6)


def test_quadrature_of_a_kink_at_a_crossing() -> None:
    """The positive part of a parabola: exact once its two roots are breakpoints."""

    def curve(x: FloatArray) -> FloatArray:
        return np.asarray(2.0 - x * x)

    breaks = np.concatenate([[[-3.0, 3.0]], crossing_breaks(curve, 1.0, np.zeros(1), -3.0, 3.0)], axis=1)
    x, weights = panel_nodes(breaks)
    assert (weights * np.maximum(curve(x) - 1.0, 0.0)).sum() == pytest.approx(4.0 / 3.0, rel=1e-12)


def test_reach_leaves_nothing_of_note_outside() -> None:
    for smallest in (0.1, 1e-5, 1e-100):
        assert math.erfc(normal_reach(smallest) / math.sqrt(2.0)) < smallest * 1e-13


@given(st.floats(-1e200, 1e200), st.floats(0.0, 1e200), st.sampled_from([2, 20, 53, 200]))
def test_upper_is_the_upper_end_of_a_ball(middle: float, radius: float, bits: int) -> None:
    """Against exact rationals: not below the upper end, which every certified delta relies on."""
    with balls.precision(bits):
        ball = arb(middle, radius)
    end = Fraction(middle) + Fraction(radius)
    assert Fraction(balls.upper(ball)) >= end, "the certified number is below a point of the ball"


def test_upper_of_known_balls() -> None:
    """A wide ball, an end between two doubles, and no bound at all."""
    assert 3.0 <= balls.upper(arb(2, 1)) <= 3.0 + 1e-6
    assert 1.0 <= balls.upper(arb(-1).union(arb(1))) <= 1.0 + 1e-6
    with balls.precision(200):
        third = arb(1) / 3
    assert Fraction(1, 3) < Fraction(balls.upper(third)) == Fraction(math.nextafter(1 / 3, 1))
    assert balls.upper(arb("nan")) == balls.upper(arb("inf")) == math.inf
