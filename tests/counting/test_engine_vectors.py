"""Vectors against brute force: clipped to a norm on every engine, in whole steps, whatever the values are."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dphist.counting.task import Value
from engine_cases import EACH_ENGINE, Factory, drawn
from sum_cases import ODD, TEXTS, number, own_steps, sums, value

HOSTILE = [*ODD, None, 2.0**63, -(2.0**63), 2.0**-1074, 1.7976931348623157e308, 0.6, 0.8, 3.0, 4.0, 1 / 3]
TYPES = {"x": pa.float64(), "y": pa.float64(), "t": pa.string()}
columns = st.tuples(
    st.sampled_from(HOSTILE) | st.floats(), st.sampled_from(HOSTILE) | st.floats(-2, 2),
    st.none() | st.sampled_from([*TEXTS, "1e308", "-0.0", "5e-324", "9223372036854775808"]),
)  # fmt: skip
norms = st.sampled_from(
    [Fraction(1), Fraction(5), Fraction(1, 3), Fraction(10**15), Fraction(1, 10**9), Fraction(10) ** 300]
)


def columns_of(norm: Fraction, half_steps: int, *names: str) -> tuple[Value, ...]:
    return tuple(Value(name, -norm, norm, half_steps, vector=1) for name in names)


def fine_total(cells: list[Any], scale: float) -> int:
    """Brute force: a user's cells of one column in fine steps, with whole numbers of any size."""
    total = 0
    for x in map(number, cells):
        if x is not None:
            scaled = x * scale + 0.5
            total += math.floor(scaled) if abs(scaled) <= 2**50 else int(math.copysign(2**50, scaled))
    return min(max(total, -(2**50)), 2**50)


def check_vector(steps: tuple[int, ...], cells: list[list[Any]], wanted: Value) -> None:
    """With exact fractions: within the norm, and within a step of the user's sums, clipped."""
    reach = wanted.half_steps
    assert sum(step**2 for step in steps) <= reach**2, "longer than the reach"
    fine = [fine_total(own, wanted.scale) for own in cells]
    square, unit = sum(part**2 for part in fine), Fraction(reach, 2**30)
    # The root of the square from below, to 60 more bits.
    length = Fraction(math.isqrt(square << 120), 1 << 60)
    shrink = min(Fraction(1), 2**30 / length) if length else Fraction(1)
    for step, part in zip(steps, fine, strict=True):
        assert abs(step - part * shrink * unit) <= 1 + Fraction(1, 10**6)


@EACH_ENGINE
@drawn(
    many=24, users=st.lists(st.lists(columns, min_size=1, max_size=3), min_size=1, max_size=40), norm=norms,
    half_steps=st.sampled_from([2**20, 2**12, 16]),
)  # fmt: skip
def test_no_value_makes_a_vector_longer_than_its_norm(
    engine: Factory, users: list[list[tuple[Any, ...]]], norm: Fraction, half_steps: int
) -> None:
    """One user for each item, so that the sums of an item are that user's own steps."""
    rows = [(place, place, *cells) for place, own in enumerate(users) for cells in own]
    random.Random(len(rows)).shuffle(rows)
    names = ("user", "item", *TYPES)
    arrays = {name: pa.array([row[k] for row in rows], TYPES.get(name)) for k, name in enumerate(names)}
    wanted = columns_of(norm, half_steps, *TYPES)
    found = sums(engine, pa.table(arrays), wanted)
    assert found.keys() == set(range(len(users)))
    for place, own in enumerate(users):
        users_of_item, *steps = found[place]
        assert users_of_item == 1
        check_vector(tuple(steps), [list(column) for column in zip(*own, strict=True)], wanted[0])


@EACH_ENGINE
def test_engines_agree_on_every_step(engine: Factory) -> None:
    """By the definition in `Value`, in doubles; beside a sum of the same column, and with several vectors."""
    generator = random.Random(3)
    cells = [(generator.gauss(0, 1), generator.choice(HOSTILE), generator.gauss(0, 3)) for _ in range(300)]
    table = pa.table({
        "user": range(300), "item": range(300),
        **{name: pa.array([row[k] for row in cells], pa.float64()) for k, name in enumerate("xyz")},
    })  # fmt: skip
    wide = tuple(Value(name, Fraction(-2), Fraction(2), 2**20, vector=7) for name in "xyz")
    narrow = tuple(Value(name, Fraction(-1), Fraction(1), 32, vector=2) for name in "zx")
    total = value("x", 0, 1)
    found = sums(engine, table, (*wide, total, *narrow))
    for place, row in enumerate(cells):
        by_name = dict(zip("xyz", row, strict=True))
        expected = [1]
        for part in (wide, narrow):
            fine = [float(fine_total([by_name[one.column]], one.scale)) for one in part]
            length = 0.0
            for one in fine:
                length += one * one
            most, length = 2.0**30 - 2.0**-10, math.sqrt(length)
            own = [(one * (most / length) if length > most else one) / 2.0 ** part[0].fine_bits for one in fine]
            near = [math.floor(one + 0.5) for one in own]
            inside = sum(one * one for one in near) <= part[0].half_steps ** 2
            expected += near if inside else [math.trunc(one) for one in own]
            if part is wide:
                expected.append(own_steps([by_name["x"]], total))
        assert list(found[place]) == expected
