"""`verify`: recompute the guarantee of a release from its certificate alone, and notice what was changed."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from dphist.errors import DphistError
from dphist.releases.document import plan_from
from dphist.releases.soundness import certified
from dphist.types import FORMAT, Plan


@dataclass(frozen=True)
class Verification:
    """What was checked and found. Without a problem the release is as it was written, and its guarantee holds."""

    address: str
    checks: tuple[str, ...]
    problems: tuple[str, ...]
    private: bool
    delta_certified: float | None

    @property
    def verified(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of `dphist verify --json`."""
        return {
            "address": self.address,
            "verified": self.verified,
            "private": self.private,
            "delta_certified": self.delta_certified,
            "checks": list(self.checks),
            "problems": list(self.problems),
        }

    def __str__(self) -> str:
        lines = [f"ok       {check}" for check in self.checks]
        lines += [f"PROBLEM  {problem}" for problem in self.problems]
        if self.verified:
            lines.append(f"{self.address} is verified.")
        else:
            lines.append(f"{self.address} is NOT verified.")
        return "\n".join(lines)


def verify(
    address: str | os.PathLike[str],
    *,
    table: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
) -> Verification:
    """Check a release against its certificate: that neither was changed, and that its numbers prove its promise.

    The certificate shows by which numbers the noise was to be drawn, and the proof is computed anew from them.
    That the noise was indeed drawn so is the word of whoever made the release.
    """
    from dphist.outputs.readback import read_release
    from dphist.releases.request import without_password

    found = read_release(address, table, certificate)
    checks, problems = [], list(found.problems)
    document = found.document if isinstance(found.document, dict) else None
    if not problems:
        checks.append("the data and the certificate are as they were written")
    delta, private = None, False
    if document is not None and document.get("format") != FORMAT:
        problems.append(f"the certificate is not of the format {FORMAT}")
    elif document is not None:
        private = document.get("private") is True
        if not private:
            problems.append("the noise was made from a seed, so that nobody is protected")
        delta = _check_guarantee(document, checks, problems)
        _check_counts(found.table, document, checks, problems)
    return Verification(without_password(os.fspath(address)), tuple(checks), tuple(problems), private, delta)


def _check_guarantee(document: dict[str, Any], checks: list[str], problems: list[str]) -> float | None:
    """The delta of the plan's own numbers, computed anew."""
    try:
        claimed = plan_from(document.get("plan"))
        proved = certified(claimed)
    except DphistError as error:
        problems.append(str(error))
        return None
    delta = proved.certificate.delta
    if claimed.certificate.delta < delta:
        problems.append(f"the certificate claims a delta of {claimed.certificate.delta!r}, and it is {delta!r}")
    else:
        checks.append(
            f"the plan is ({proved.budget.epsilon:g}, {proved.budget.delta:g})-differentially private: "
            f"its delta, computed anew in ball arithmetic, is at most {delta:.6g}"
        )
    _check_request(document.get("request"), proved, problems)
    return delta


def _check_request(request: Any, plan: Plan, problems: list[str]) -> None:
    """That the plan is one for what was asked: the same budget, and no bound that was not asked for."""
    if not isinstance(request, dict) or not request:
        return
    asked = (request.get("epsilon"), request.get("delta"))
    if asked != (plan.budget.epsilon, plan.budget.delta):
        problems.append("the plan has another budget than the request")
    bound = request.get("max-items-per-user")
    counts = request.get("top", request.get("max-nonzero"))
    kept = [value for value in (bound, counts) if isinstance(value, int)]
    if "items" not in request and (not kept or plan.contract.items < min(kept)):
        problems.append("the plan relies on a bound that was not asked for")


def _check_counts(table: Any, document: dict[str, Any], checks: list[str], problems: list[str]) -> None:
    """That every released count has passed the threshold."""
    counts, request = document.get("counts"), document.get("request")
    if table is None or not isinstance(counts, dict) or not isinstance(request, dict):
        return
    passes, name = counts.get("greater_than"), request.get("count-name", "count")
    if isinstance(passes, bool) or not isinstance(passes, (int, float)) or name not in table.column_names:
        return
    slack = 0.5 if request.get("round") is True else 0.0
    least = min((value for value in table.column(name).to_pylist() if value is not None), default=math.inf)
    # The threshold is compared in whole steps before it is written as a decimal number: allow for its last digit.
    if least + slack <= passes - 1e-9 * abs(passes):
        problems.append("a count is below the threshold")
    else:
        checks.append("all counts are above the threshold")
