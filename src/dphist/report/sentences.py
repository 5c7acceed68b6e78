"""What a report says in words: what each number means, what is released, and what is not covered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dphist.display import raised
from dphist.planning.utility import half_width
from dphist.privacy.noise import LaplaceNoise
from dphist.privacy.types import Budget, Plan
from dphist.releasing.certificate import not_covered
from dphist.report.meaning import Meaning
from dphist.report.selection import Selection

_MECHANISMS: Final = {
    "gshm": (
        "Gaussian noise",
        "Each count gets its own Gaussian noise (the Gaussian sparse histogram mechanism).",
    ),
    "csh": (
        "Gaussian noise, a part of it shared",
        "Each count gets its own Gaussian noise, and all counts share one more draw (the correlated mechanism).",
    ),
    "top-k": (
        "top-k with Gaussian noise",
        "The count after the K largest is subtracted from all counts, and added again with noise of its own.",
    ),
    "laplace": ("Laplace noise", "Each count gets its own whole-numbered Laplace noise."),
    "known-domain": (
        "Gaussian noise on a public list",
        "The items come from a public list, so that all of them are released, zeros included.",
    ),
}


CURVE: Final = (
    "A release has not one epsilon and delta, but a curve of them: for every epsilon a delta for which the "
    "promise is proved. Lower is safer."
)


_CUT: Final = "Of those that passed, the {} with the largest noisy counts are in the release, and no more."
VERIFYING: Final = (
    "The certificate holds every number that the proof needs. Anybody can compute it anew with the Python package "
    "dphist, without the data that were counted:"
)


@dataclass(frozen=True)
class Number:
    """A number of the release and one sentence on what it means."""

    label: str
    value: str
    meaning: str


def figure(number: float) -> str:
    """As many digits as a person can use."""
    if number != 0.0 and not 1e-4 <= abs(number) < 1e15:
        return f"{number:.4g}"
    return f"{number:,.0f}" if abs(number) >= 1000.0 else f"{number:.4g}"


def percent(share: float) -> str:
    """A share of one in percent, with more digits near its ends."""
    near = min(share, 1.0 - share)
    if 0.0 < near < 1e-5:
        return "over 99.999 %" if share > 0.5 else "under 0.001 %"
    digits = 0 if near >= 0.1 else 1 if near >= 0.01 else 3
    return f"{100.0 * share:.{digits}f} %"


def numbers(
    plan: Plan, document: Mapping[str, Any], budget: Budget, certified: float | None, meaning: Meaning
) -> tuple[Number, ...]:
    """Mechanism, budget, noise, threshold and bounds."""
    name, said = _MECHANISMS.get(plan.mechanism, (plan.mechanism, ""))
    found = [
        Number(
            "Epsilon",
            raised(budget.epsilon, 6),
            "The privacy loss: whether a person is in the data or not changes the probability of anything that "
            "could be seen by a factor of at most e^epsilon, but for delta. Lower is safer.",
        ),
        Number(
            "Delta",
            raised(budget.delta, 6),
            "What may be added to a probability beside that factor. It is no bound on how often more is learned. "
            "Smaller is safer; it should be well below one over the number of users.",
        ),
    ]
    if certified is not None:
        found.append(
            Number(
                "Delta, as proved",
                raised(certified, 6),
                "Computed anew for this report in ball arithmetic, an upper bound whatever rounding did.",
            )
        )
    found += [Number("Mechanism", name, said), _noise(plan, meaning), *_shared(document)]
    found += _threshold(plan, document)
    return (*found, *_bounds(plan, document), *_sums(document))


def _noise(plan: Plan, meaning: Meaning) -> Number:
    within, often = half_width(plan, 0.95), "3 of 4" if isinstance(plan.noise, LaplaceNoise) else "2 of 3"
    return Number(
        "Noise of a count",
        figure(plan.total_noise),
        f"One standard deviation. About {often} counts are within it of {meaning.around}, 95 % "
        f"within {figure(within)}{'' if math.isinf(plan.threshold) else ', before the threshold selects'}.",
    )


def _shared(document: Mapping[str, Any]) -> list[Number]:
    covariance = document["counts"]["covariance"]
    if covariance == 0.0:
        return []
    # With an offset whose noise is its own, that is in all counts too.
    return [
        Number(
            "Shared noise",
            figure(math.sqrt(covariance)),
            "The noise that all counts have in common. Differences and ranks do not see it; totals do.",
        )
    ]


def _threshold(plan: Plan, document: Mapping[str, Any]) -> list[Number]:
    counts = document["counts"]
    if counts["greater_than"] is None:
        return [Number("Threshold", "none", "Every item of the public list is released.")]
    found = [
        Number(
            "Threshold",
            figure(counts["greater_than"]),
            "A count is released only if it is above this with its noise. That is what hides items of few people."
            + _parts(plan, counts),
        )
    ]
    if counts["offset"] is not None:
        found.append(
            Number(
                "Offset",
                figure(counts["offset"]),
                "The noisy count after the largest ones, which was subtracted and is in all counts again.",
            )
        )
    return found


def _parts(plan: Plan, counts: Mapping[str, Any]) -> str:
    """What a threshold is made of where an offset is in it: the comparison has the last part alone."""
    if counts["offset"] is None:
        return ""
    lower = counts["lower_threshold"]
    removed = f"{lower - 1:,} + " if lower > 1 else ""
    return f" It is the offset + {removed}{figure(plan.threshold)}."


def _bounds(plan: Plan, document: Mapping[str, Any]) -> list[Number]:
    contract, request = plan.contract, document["request"]
    found = [_cap(plan, document)]
    if contract.max_nonzero is not None:
        label, meaning = "Counts at most", "What the analysis rests on: no more counts than this can be non-zero."
        if plan.mechanism == "known-domain":
            label = "Items of the public list"
        elif "top" in request:
            label = "Largest counts"
            meaning = "At most so many counts are released; the next one is subtracted."
        found.append(Number(label, f"{contract.max_nonzero:,}", meaning))
    return found


def _cap(plan: Plan, document: Mapping[str, Any]) -> Number:
    """How many items of a user are counted. A public list is applied before they are chosen."""
    contract, request, label = plan.contract, document["request"], "Items of a user"
    public = plan.mechanism == "known-domain"
    # In counts that were made elsewhere nobody sees how many items a user had.
    # A top-k step has no use for a cap, and none is applied.
    capped = "max-items-per-user" in request and not public and "top" not in request
    if request and (plan.mechanism == "top-k" or (contract.items == contract.max_nonzero and not capped)):
        which = "All items of every user are counted."
        if public:
            which = "All items of the list that a user has are counted; what is not on the list is in no count."
        if public and "max-items-per-user" in request:
            which += " The cap that was asked for is no less than the list is long, and leaves nothing out."
        return Number(label, "not bounded", which)
    if request and "sketch" not in request:
        chosen = "; the number was chosen privately." if "choice" in document else "."
        more = "more items of the list" if public else "more items"
        asked = request.get("max-items-per-user")
        most = asked if isinstance(asked, int) and not public else contract.items
        return Number(label, f"at most {most:,}", f"Of users with {more}, that many were chosen at random{chosen}")
    return Number(label, f"at most {contract.items:,}", "Whoever counted promised this.")


def _sums(document: Mapping[str, Any]) -> list[Number]:
    found = []
    for one in document.get("sums", ()):
        bounds = f"each user's own sum clamped to {one['low']:g} to {one['high']:g}"
        if one["kind"] == "sum":
            error = figure(one["standard_error"])
            meaning = f"Standard error of the sum of {one['column']}, {bounds}."
        else:
            error = f"{figure(one['own_standard_error'])}/n"
            meaning = f"Standard error, or a little more, of the mean of {one['column']} over n users, {bounds}."
        found.append(Number(f"Noise of {one['name']}", error, meaning))
    return found


def selected(plan: Plan, found: Selection | None, *, intervals: bool) -> tuple[str, ...]:
    """What the threshold does, in words."""
    if found is None:
        return (
            "Every item of the public list is released, whatever its count: nothing is selected, and no count is "
            f"biased. Each has a standard error of {figure(plan.total_noise)}.",
        )
    least = "" if found.unlikely is None else f"; up to {found.unlikely:,}, with at most 1 %"
    return (
        f"An item {found.does} by chance, and the more users it has the likelier. From {found.even:,} on "
        f"({found.axis}) it {found.does} with at least 50 %, from {found.likely:,} on with at least 99 %{least}.",
        *([] if found.largest is None else [_CUT.format(f"{found.largest:,}")]),
        "What barely passed is too high on average, for it was luck that lifted it."
        + (" The intervals of the table speak of the noise before this selection." if intervals else ""),
        "These figures follow from the law of the noise, computed in ordinary floating point: they are to help "
        "readers, and are no part of what was verified.",
    )


def uncovered(plan: Plan, document: Mapping[str, Any], rows: int) -> tuple[str, ...]:
    """What a reader might believe and should not: the certificate's own list, and totals."""
    said = not_covered(plan, document["request"])
    if _leaves_nothing_out(plan):
        # The certificate names the cap that was asked for, whatever the length of the list.
        said = [one for one in said if not one.startswith("Users with more than ")]
    data = (
        "The data themselves: nothing here says that they were right, or complete, or that the noise was drawn as "
        "the certificate has it. That is the word of whoever made the release."
    )
    return (*said, *([_total(plan, document["counts"], rows)] if rows > 1 else []), data)


def _leaves_nothing_out(plan: Plan) -> bool:
    """Whether the cap is no less than a public list is long, so that it takes no item from anybody."""
    return plan.mechanism == "known-domain" and plan.contract.items == plan.contract.max_nonzero


def _total(plan: Plan, counts: Mapping[str, Any], rows: int) -> str:
    """How far off a sum of counts is; of those that were selected it is too high besides."""
    covariance, variance = counts["covariance"], counts["standard_error"] ** 2
    error = math.sqrt(max(0.0, rows * (variance - covariance) + rows**2 * covariance))
    public = math.isinf(plan.threshold)
    which = "the sum of" if public else "the noise in the sum of"
    before = "" if public else ", before selection,"
    how = (
        f"which is the root of {figure(variance - covariance)} n + {figure(covariance)} n² with n = {rows:,}"
        if covariance > 0.0
        else f"the noise of one times the root of {rows:,}"
    )
    biased = (
        ""
        if public
        else " But every count near the threshold adds its bias to it, so that the sum of what was released is "
        "too high on average, and by far more than that where many are near."
    )
    return (
        f"Totals: {which} all {rows:,} released counts{before} has a standard error of {figure(error)}, {how}."
        f"{biased} It is no number of users: a user with several items is in several counts"
        + ("." if public else ", and items below the threshold are in none.")
    )
