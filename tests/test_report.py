"""What a report says is what an independent computation says, and no true count is in it."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.calibrate.certification import delta_at
from dphist.report.charts import charts_of
from dphist.report.making import FORMATS, render, report_facts
from dphist.report.selection import released_with, selection
from dphist.report.sentences import moved, promise
from dphist.types import Budget, LatticeNoise, Plan
from report_cases import BUDGET, COUNTS, KINDS, made, released

# Their parts are in others as well.
SLOW = ("top-k, independent", "lower threshold", "duckdb")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in KINDS]
)
def test_every_kind_of_release_has_every_format(name: str) -> None:
    facts = made(name)[1]
    assert facts.private
    assert facts.rows.total == json.loads(facts.certificate)["output"]["rows"]
    for format in FORMATS:
        text = render(facts, format)
        assert facts.certificate_name in text or format != "html"
        assert "nan" not in re.findall(r"[a-z]+", text.split("<script")[0])
    assert json.dumps(facts.to_dict(), allow_nan=False)
    assert {"guarantee"} <= {chart.name for chart in charts_of(facts)}
    sizes, receipt = facts.sizes is not None, bool(facts.receipt)
    assert (sizes, receipt) == (name == "chosen cap", name == "booked")
    assert (facts.selection is None) == (name == "known-domain")


def test_the_curve_is_the_certified_one() -> None:
    for name in ("gshm", "csh", "top-k", "sums"):
        facts = made(name)[1]
        for epsilon, delta in facts.curve[::10]:
            assert delta == delta_at(facts.plan, epsilon)
        at = dict(facts.curve)[facts.plan.budget.epsilon]
        assert at == facts.plan.certificate.delta <= facts.budget.delta
        assert all(after <= before for (_, before), (_, after) in zip(facts.curve, facts.curve[1:], strict=False))


def exact_law(noise: LatticeNoise) -> dict[int, Any]:
    """The law of the sum of both draws, by convolution at many digits."""

    def law(variance: Fraction) -> dict[int, Any]:
        if variance == 0:
            return {0: mpmath.mpf(1)}
        reach = int(9 * math.sqrt(variance)) + 2
        weights = {x: mpmath.exp(-mpmath.mpf(x * x) / (2 * mpmath.mpf(variance.numerator) / variance.denominator))
                   for x in range(-reach, reach + 1)}  # fmt: skip
        whole = mpmath.fsum(weights.values())
        return {x: weight / whole for x, weight in weights.items()}

    own, shared = law(noise.variance), law(noise.variance_shared)
    both: dict[int, Any] = {}
    for a, p in shared.items():
        for b, q in own.items():
            both[a + b] = both.get(a + b, 0) + p * q
    return both


@pytest.mark.parametrize(
    "noise",
    [
        LatticeNoise(2, Fraction(4), Fraction(0), 9),
        LatticeNoise(2, Fraction(40), Fraction(0), 31),
        LatticeNoise(2, Fraction(36), Fraction(4), 30),
    ],
    ids=["rough", "plain", "shared"],
)
def test_probability_and_error_are_those_of_the_discrete_law(noise: LatticeNoise) -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=10)
    plan = Plan(plan.budget, plan.contract, noise, plan.analysis, plan.certificate)
    counts = np.array([1, 5, 9, 14, 16, 20, 40])
    law = exact_law(noise)
    found = released_with(plan, counts, lower=3)
    for count, *numbers in zip(counts, *found, strict=True):
        passed = {x: p for x, p in law.items() if (int(count) - 2) * 2 + x > 2 + noise.limit}
        whole = mpmath.fsum(passed.values())
        assert numbers[0] == pytest.approx(float(whole) if count >= 3 else 0.0, rel=1e-9, abs=1e-15)
        if whole > 1e-8:
            mean = mpmath.fsum(x * p for x, p in passed.items()) / whole / 2
            second = mpmath.fsum(x * x * p for x, p in passed.items()) / whole / 4
            assert numbers[1] == pytest.approx(float(mean), rel=1e-8, abs=1e-9)
            assert numbers[2] == pytest.approx(float(mpmath.sqrt(second - mean**2)), rel=1e-6)


def test_laplace_noise_in_closed_form() -> None:
    plan = dphist.plan(epsilon=0.5, delta=1e-4, max_items_per_user=1)
    assert plan.mechanism == "laplace"
    q, threshold = math.exp(-0.5), plan.threshold
    counts = np.array([1, int(threshold) - 3, int(threshold), int(threshold) + 1, int(threshold) + 30])
    for count, *numbers in zip(counts, *released_with(plan, counts), strict=True):
        law = {x: (1 - q) / (1 + q) * q ** abs(x) for x in range(-300, 301) if count + x > threshold}
        whole = math.fsum(law.values())
        mean = math.fsum(x * p for x, p in law.items()) / whole
        spread = math.sqrt(math.fsum((x - mean) ** 2 * p for x, p in law.items()) / whole)
        assert numbers == pytest.approx([whole, mean, spread], rel=1e-9)


@pytest.mark.parametrize("rule", ["opposite", "independent"])
def test_errors_of_top_k_by_simulation(rule: Any) -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, top=20, offset=rule)
    generator, size = np.random.default_rng(5), 400_000
    own, shared, offset = (generator.normal(0.0, s, size) for s in (plan.sigma, *[plan.sigma_shared] * 2))
    for count in (int(plan.threshold - plan.sigma), int(plan.threshold), int(plan.threshold + 2 * plan.sigma)):
        passed = count + own + shared > plan.threshold
        error = (own + offset if rule == "opposite" else own + shared + offset)[passed]
        probability, bias, deviation = (float(n[0]) for n in released_with(plan, np.array([count])))
        spread = 5.0 * plan.total_noise / math.sqrt(passed.sum())
        # The noise that is drawn is discrete: up to half a step of the lattice is its own.
        step = 0.5 / plan.noise.lattice  # type: ignore[union-attr]
        assert probability == pytest.approx(passed.mean(), abs=0.004 + step / plan.sigma)
        assert bias == pytest.approx(error.mean(), abs=spread + step)
        assert deviation == pytest.approx(error.std(), abs=spread + step)


def test_large_and_small_noise_agree() -> None:
    """The sum over the law and the normal law with half a step's correction, where both are exact."""
    plan = dphist.plan(epsilon=0.001, delta=1e-6, max_items_per_user=30)
    assert plan.sigma * plan.noise.lattice > 1000  # type: ignore[union-attr]
    from dphist.report import selection as module

    counts = np.linspace(1, 2 * plan.threshold, 9).astype(np.int64)
    summed, limit = released_with(plan, counts), module._SUMMED
    try:
        module._SUMMED = 1.0  # type: ignore[misc]
        normal = released_with(plan, counts)
    finally:
        module._SUMMED = limit  # type: ignore[misc]
    for one, other in zip(summed, normal, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-9)


def test_marks_of_the_selection() -> None:
    for options in ({"max_items_per_user": 3}, {"max_items_per_user": 1}, {"max_nonzero": 100}, {"top": 30}):
        plan = dphist.plan(epsilon=1.0, delta=1e-6, **options)  # type: ignore[arg-type]
        found = selection(plan, {})
        assert found is not None
        assert found.unlikely is not None
        at = released_with(plan, np.array([found.unlikely, found.unlikely + 1, found.even - 1, found.even,
                                           found.likely - 1, found.likely]))[0]  # fmt: skip
        assert at[0] < 0.01 <= at[1] <= at[2] < 0.5 <= at[3] <= at[4] < 0.99 <= at[5]


def test_the_comparison_is_dphist_compare() -> None:
    facts = made("csh")[1]
    rows = {row.analysis: row for row in dphist.compare(epsilon=1.0, delta=1e-6, max_nonzero=50).rows}
    peers = {peer.label: peer for peer in facts.peers}
    assert peers["Gaussian noise, exact analysis"].threshold == rows["gshm-exact"].threshold
    assert peers["Laplace noise"].noise == rows["scale m/epsilon"].total_noise
    own = peers["This release"]
    assert (own.noise, own.threshold) == (facts.plan.total_noise, facts.plan.threshold)
    assert own.threshold is not None
    assert own.threshold < min(p.threshold for p in facts.peers if not p.own and p.threshold is not None) * 1.01


def test_the_promise_is_what_a_budget_allows() -> None:
    assert moved(0.5, 1.0) == pytest.approx(math.e / (1 + math.e))
    # From odds of 1 to 99 to odds of e to 99.
    assert moved(0.01, 1.0) == pytest.approx(math.e / (99 + math.e))
    assert "at most 73 %" in promise(Budget(1.0, 1e-6), 1.0)[1]
    assert "at most 55 %" in promise(Budget(1.0, 1e-6), 0.1)[1]
    assert "e^500" in promise(Budget(500.0, 1e-6), 1.0)[2]


def test_totals_count_what_is_shared() -> None:
    facts = made("csh")[1]
    noise, rows = facts.plan.noise, facts.rows.total
    error = math.sqrt(noise.sigma**2 * rows + noise.sigma_shared**2 * rows**2)
    assert any(f"standard error of {error:.4g}" in sentence for sentence in facts.uncovered)
    plain = made("gshm")[1]
    assert any(f"standard error of {plain.plan.total_noise * 20**0.5:.4g}" in one for one in plain.uncovered)


def test_no_true_count_is_in_a_report(tmp_path: Path) -> None:
    """From a seed, so that it is the same each time: whatever is true of the data is nowhere in it."""
    counts = {f"item {place}": 70_001 + 1_013 * place for place in range(6)} | {"rare secret": 3, "rarer": 2}
    path = released(tmp_path, counts=counts, max_items_per_user=30, seed=3)
    facts = report_facts(path)
    for format in FORMATS:
        text = render(facts, format)
        digits = set(re.findall(r"\d+", text.replace(",", "")))
        for number in (*counts.values(), sum(counts.values()), max(counts.values()) * 2):
            assert number < 10 or str(number) not in digits, number
        assert "rare secret" not in text
        assert "NOT PRIVATE" in text


def test_a_release_in_memory_has_the_report_of_its_file(tmp_path: Path) -> None:
    from release_data import events

    result = dphist.release(events(COUNTS), **BUDGET, max_items_per_user=2)
    facts = report_facts(result)
    assert facts.private
    assert facts.rows.total == 20
    assert json.loads(facts.certificate)["plan"] == json.loads(json.dumps(result.plan.to_dict()))
    assert "dphist verify FILE" in dphist.make_report(result, "text")


def test_rows_are_sorted_and_of_any_type(tmp_path: Path) -> None:
    table = pa.table({
        "user": list(range(3000)),
        "day": pa.array([19000 + i % 3 for i in range(3000)], pa.date32()),
        "n": pa.array([None if i % 3 == 0 else 2**62 + i % 3 for i in range(3000)], pa.int64()),
    })  # fmt: skip
    path = tmp_path / "out.parquet"
    dphist.release(
        table, user="user", item=["day", "n"], epsilon=1.0, delta=1e-6, max_items_per_user=1, null_items=True,
        output=path,
    )  # fmt: skip
    rows = report_facts(path).rows
    assert rows.items == ("day", "n")
    assert sorted(map(str, rows.columns[1].values)) == ["4611686018427387905", "4611686018427387906", "None"]
    assert rows.columns[1].by_number
    assert "2022-01-08" in rows.columns[0].values
    counts = rows.columns[2].values
    assert list(counts) == sorted(counts, reverse=True)
    written = pq.read_table(path).column("count").to_pylist()
    assert sorted(counts) == pytest.approx(sorted(written), abs=0.5)
    assert "(missing)" in dphist.make_report(path, "text")


def test_a_slow_plan_has_fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends and the promise itself come first; each point is certified all the same."""
    from dphist.report import facts

    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=20)
    assert facts._coarse_first(5)[:3] == [0, 5, 4]
    assert sorted(facts._coarse_first(40)) == list(range(41))
    monkeypatch.setattr(facts, "_SECONDS", -1.0)
    result = dphist.release_histogram(["tea", "milk"], [5000, 4000], plan)
    short = report_facts(result)
    assert [epsilon for epsilon, _ in short.curve] == [0.0, 1.0]
    assert short.curve[0][1] == delta_at(plan, 0.0)
    assert 'class="knot' in render(short, "html")
