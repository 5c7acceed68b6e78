"""The frozen data that everything else passes around. Only what affects privacy lives here."""

from __future__ import annotations

from dphist.types.certificate import FORMAT, Certificate, Direction, NeighbourCase
from dphist.types.checks import LARGEST_COUNT, LARGEST_EPSILON, SMALLEST_DELTA, finite_number, positive_number
from dphist.types.choice import DEFAULT_CAPS, CapChoice, caps_up_to
from dphist.types.contract import Budget, Contract
from dphist.types.events import Column, Events
from dphist.types.noise import (
    LARGEST_SCALE,
    LEAST_SCALE,
    OFFSET_RULES,
    LaplaceNoise,
    LatticeNoise,
    Noise,
    OffsetRule,
    PublicNoise,
    gamma_from,
)
from dphist.types.plan import ANALYSES, AnalysisName, AnyNoise, Objective, Plan
from dphist.types.sums import SumNoise
from dphist.types.tables import html_grid, html_table, text_grid, text_table
from dphist.types.values import HALF_STEPS, Value

__all__ = [
    "ANALYSES",
    "DEFAULT_CAPS",
    "FORMAT",
    "HALF_STEPS",
    "LARGEST_COUNT",
    "LARGEST_EPSILON",
    "LARGEST_SCALE",
    "LEAST_SCALE",
    "OFFSET_RULES",
    "SMALLEST_DELTA",
    "AnalysisName",
    "AnyNoise",
    "Budget",
    "CapChoice",
    "Certificate",
    "Column",
    "Contract",
    "Direction",
    "Events",
    "LaplaceNoise",
    "LatticeNoise",
    "NeighbourCase",
    "Noise",
    "Objective",
    "OffsetRule",
    "Plan",
    "PublicNoise",
    "SumNoise",
    "Value",
    "caps_up_to",
    "finite_number",
    "gamma_from",
    "html_grid",
    "html_table",
    "positive_number",
    "text_grid",
    "text_table",
]
