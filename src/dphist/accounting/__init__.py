"""Accounting: what a plan costs, in the terms of those who add up the costs of many releases.

`profile_of_plan` holds a plan's certified deltas, and `to_pld` gives them to dp_accounting, which composes them.
`gaussian_of_plan` is for the Gaussian filter of a ledger, `zcdp_of_plan` and `renyi_of_plan` for zCDP and Renyi
accountants.
"""

from dphist.accounting.concentrated import renyi_of_plan, zcdp_of_plan
from dphist.accounting.gaussian import gaussian_of_plan
from dphist.accounting.pld import to_pld
from dphist.accounting.profile import Profile, profile_of_plan

__all__ = ["Profile", "gaussian_of_plan", "profile_of_plan", "renyi_of_plan", "to_pld", "zcdp_of_plan"]
