"""The numbers of golden.json: the quick cases in every run, all of them and those of Spark in the slow one."""

from __future__ import annotations

from fractions import Fraction

import golden
import pytest


def changed(section: str, *, quick: bool) -> list[str]:
    """The differences from golden.json in a section."""
    stored = golden.read_golden()[section]
    found = golden.compute(section, quick=quick)
    assert found
    assert quick or found.keys() == stored.keys()
    return [f"{name}: {line}" for name in found for line in golden.differences(stored.get(name), found.get(name))]


@pytest.mark.parametrize("section", ["plans", "commands", "releases_duckdb"])
def test_quick_cases_are_as_before(section: str) -> None:
    assert changed(section, quick=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("section", list(golden.SECTIONS))
def test_all_cases_are_as_before(section: str) -> None:
    assert changed(section, quick=False) == []


def test_facts_are_numbers_and_names_and_no_words() -> None:
    document = {
        "epsilon": 0.1, "variance": "7/3", "half": Fraction(1, 2), "rule": "opposite", "option": "--top 3",
        "sum": ["a:0:5"], "gamma": None, "notes": ["Two words."], "file": "a/b.csv", "at": "2026-11-16T07:24:23Z",
        "version": "0.1.0", "digest": "5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9",
    }  # fmt: skip
    facts = {"epsilon": 0.1, "variance": "7/3", "half": "1/2", "rule": "opposite", "option": "--top 3"}
    assert golden.facts_only(document) == facts | {"sum": ["a:0:5"]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": 0.1}, {"a": 0.10000000000000002}), ({"a": "1/3"}, {"a": "2/6"}), ({"a": 1}, {}), ({}, {"a": 1}),
        ({"a": True}, {"a": 1}), ([1, 2], [1]), (None, {"a": 1}), ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}),
    ],
)  # fmt: skip
def test_every_difference_is_found(old: object, new: object) -> None:
    assert len(list(golden.differences(old, new))) == 1
    assert list(golden.differences(old, old)) == []


@pytest.mark.parametrize(
    ("key", "error"),
    [("to 9 digits", 1e-9), ("delta_lower", 1e-12), ("csh-tighter", 1e-12)],
)
def test_only_numbers_in_double_precision_may_differ_in_their_last_digits(key: str, error: float) -> None:
    def differences(factor: float) -> list[str]:
        return list(golden.differences({key: {"a": [0.1]}}, {key: {"a": [0.1 * factor]}}))

    assert differences(1 + error / 2) == []
    assert len(differences(1 + 2 * error)) == 1
