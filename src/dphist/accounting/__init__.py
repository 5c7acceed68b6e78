"""Accounting: plans as privacy profiles, and the privacy loss of many releases together.

A `Profile` holds a plan's certified deltas. Profiles compose tightly (`compose`), and convert to the privacy loss
distributions of dp_accounting (`to_pld`). `plan_many` plans releases together under one total. `gaussian_of_plan`
is for the Gaussian filter of a ledger, `zcdp_of_plan` and `renyi_of_plan` for zCDP and Renyi accountants.
"""

from dphist.accounting.composition import compose, to_pld
from dphist.accounting.concentrated import renyi_of_plan, zcdp_of_plan
from dphist.accounting.gaussian import gaussian_of_plan
from dphist.accounting.many import plan_many
from dphist.accounting.profile import Profile, profile_of_plan

__all__ = [
    "Profile",
    "compose",
    "gaussian_of_plan",
    "plan_many",
    "profile_of_plan",
    "renyi_of_plan",
    "to_pld",
    "zcdp_of_plan",
]
