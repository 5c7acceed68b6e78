"""Accounting: plans as privacy profiles, and what many releases spend together.

A plan's certified deltas become a `Profile`. Profiles compose tightly (`compose`, `total_delta`), and become the
privacy loss distributions of dp_accounting (`to_pld`). `plan_many` plans releases together under one total.
`zcdp_of_plan` and `renyi_of_plan` are for accountants of those kinds.
"""

from __future__ import annotations

from dphist.accounting.composition import (
    Composition,
    compose,
    to_pld,
    total_delta,
)
from dphist.accounting.concentrated import Concentrated, RenyiCurve, renyi_of_plan, zcdp_of_plan
from dphist.accounting.many import JointPlan, plan_many
from dphist.accounting.profile import Profile, profile_of_plan

__all__ = [
    "Composition",
    "Concentrated",
    "JointPlan",
    "Profile",
    "RenyiCurve",
    "compose",
    "plan_many",
    "profile_of_plan",
    "renyi_of_plan",
    "to_pld",
    "total_delta",
    "zcdp_of_plan",
]
