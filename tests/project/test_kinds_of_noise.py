"""Each kind of noise is known wherever kinds are told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from dphist.accounting.concentrated import renyi_of_noise
from dphist.accounting.gaussian import cost_of_noise
from dphist.certificate.schema import AnyPlan
from dphist.model import DrawnNoise, RoundsNoise
from dphist.planning.explain import MECHANISMS
from dphist.planning.utility import count_noise
from dphist.proof.certify import certify_drawn

QUESTIONS: dict[str, Callable[[type], object]] = {
    "delta": certify_drawn.dispatch,
    "cost": cost_of_noise.dispatch,
    "curve": renyi_of_noise.dispatch,
    "tails": count_noise.dispatch,
}


@pytest.mark.parametrize("kind", get_args(DrawnNoise))
def test_every_question_knows_every_noise(kind: type) -> None:
    known = {name for name, answer in QUESTIONS.items() if answer(kind) is not answer(object)}
    # What rounds show of counts is measured, not predicted from their noise.
    assert known == QUESTIONS.keys() - ({"tails"} if kind is RoundsNoise else set())


def test_every_mechanism_has_a_plan_and_a_sentence() -> None:
    tags = {plan.__struct_config__.tag for plan in get_args(AnyPlan)}
    assert tags == MECHANISMS.keys()
