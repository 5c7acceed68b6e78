"""The public API: names, exceptions, representations."""

from __future__ import annotations

import dataclasses
import doctest

import pytest

import dphist
from dphist import errors


def test_every_public_name_exists_and_dir_lists_it() -> None:
    for name in dphist.__all__:
        assert getattr(dphist, name) is not None
        assert name in dir(dphist)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dphist.nothing  # noqa: B018


def test_every_exception_is_public_and_a_dphist_error() -> None:
    defined = [value for value in vars(errors).values() if getattr(value, "__module__", "") == errors.__name__]
    for kind in (value for value in defined if isinstance(value, type)):
        assert issubclass(kind, dphist.DphistError)
        assert getattr(dphist, kind.__name__) is kind
    assert issubclass(dphist.InvalidParameter, ValueError)
    assert issubclass(dphist.MissingExtra, ImportError)


def test_the_example_of_the_package() -> None:
    result = doctest.testmod(dphist)
    assert result.attempted > 0
    assert result.failed == 0


def test_results_are_frozen_and_printable() -> None:
    plan = dphist.plan(epsilon=0.35, delta=1e-5, max_nonzero=10, noise="continuous")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.analysis = "gshm-exact"  # type: ignore[misc]
    assert "97.23725559" in str(plan)
    assert "<table>" in plan._repr_html_()
    assert plan.to_dict()["threshold"] == plan.threshold
    table = dphist.compare(epsilon=0.35, delta=1e-5, max_nonzero=10)
    assert "<caption>epsilon = 0.35" in table._repr_html_()
    checked = dphist.certify(epsilon=0.35, sigma=18.0, gamma="sqrt", tau=99.0, max_nonzero=10)
    assert "csh-tighter" in str(checked)
    assert "<table>" in checked._repr_html_()


@pytest.mark.parametrize("bad", [True, "1", 2.0])
def test_counts_must_be_whole_numbers(bad: object) -> None:
    with pytest.raises(errors.InvalidParameter, match="max_nonzero must be a whole number"):
        dphist.Contract(bad)  # type: ignore[arg-type]


def test_epsilon_must_be_a_number() -> None:
    with pytest.raises(errors.InvalidParameter, match="epsilon must be a number, not 'one'"):
        dphist.Budget("one", 0.1)  # type: ignore[arg-type]
