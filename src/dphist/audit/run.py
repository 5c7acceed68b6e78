"""The audit of a plan, as the command runs it: plan, build, attack with secure randomness."""

from __future__ import annotations

from dphist.audit.empirical import AuditResult, audit
from dphist.calibrate.planning import plan
from dphist.mechanisms.family import FamilyMechanism
from dphist.sampling.tap import SecureTap


def audit_plan(
    *, epsilon: float, delta: float, max_nonzero: int | None, max_items_per_user: int | None, runs: int
) -> AuditResult:
    """Attack the family's mechanism with the best discrete plan for this budget and contract."""
    made = plan(
        epsilon=epsilon,
        delta=delta,
        max_nonzero=max_nonzero,
        max_items_per_user=max_items_per_user,
        noise="discrete",
    )
    return audit(FamilyMechanism(made), tap=SecureTap(), runs=runs)
