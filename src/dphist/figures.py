"""Figures that are returned, for notebooks and papers: of plans, comparisons and simulations.

Each is a figure of matplotlib, which a notebook shows by itself and `savefig` writes. `figure.get_label()` has it
in words, for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dphist.accounting.profile import certified_delta
from dphist.errors import InvalidParameter
from dphist.planning.compare import Comparison
from dphist.planning.utility import count_noise
from dphist.planning.utility import release_probability as probability_of
from dphist.privacy.types import Plan
from dphist.report.canvas import new_figure
from dphist.report.figure import comparison_figure, describe
from dphist.report.plots import save_plot
from dphist.simulation.population import NOTICE
from dphist.simulation.predict import least_hope
from dphist.simulation.simulate import Simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Okabe and Ito's palette, told apart by colour-blind readers.
_BLUE: Final = "#0072B2"
_ORANGE: Final = "#D55E00"
_GREEN: Final = "#009E73"
_POINTS: Final = 41


def comparison(comparisons: Comparison | Sequence[Comparison]) -> Figure:
    """Least tau against noise for every analysis, a panel for each comparison: the paper's figure."""
    return comparison_figure(comparisons)


def thresholds(compared: Comparison) -> Figure:
    """The thresholds of all mechanisms and analyses, as bars."""
    figure = new_figure(6.4, 0.6 + 0.5 * len(compared.rows))
    axes = figure.add_subplot()
    names = [f"{row.mechanism}, {row.analysis}" for row in compared.rows]
    best = min(row.threshold for row in compared.rows)
    bars = axes.barh(
        names,
        [row.threshold for row in compared.rows],
        color=[_ORANGE if row.threshold == best else _BLUE for row in compared.rows],
    )
    axes.bar_label(bars, [f"{row.threshold:,.1f}" for row in compared.rows], padding=3)
    axes.invert_yaxis()
    wide = max(row.threshold for row in compared.rows) > 20.0 * best
    if wide:
        axes.set_xscale("log")
    axes.margins(x=0.3 if wide else 0.15)
    axes.set_xlabel("threshold")
    axes.set_title(compared.title)
    return _in_words(figure, describe([compared]))


def plan(planned: Plan) -> Figure:
    """A plan in two panels: its privacy profile, and which counts are released."""
    panels = 1 if planned.mechanism == "known-domain" else 2
    figure = new_figure(5.6 * panels, 4.2)
    _draw_profile(figure.add_subplot(1, panels, 1), planned, None)
    if panels == 2:
        _draw_probability(figure.add_subplot(1, panels, 2), planned)
    return _in_words(figure, _profile_in_words(planned), *([_release_in_words(planned)] if panels == 2 else []))


def profile(planned: Plan, epsilons: Iterable[float] | None = None) -> Figure:
    """delta against epsilon, certified at every point; without epsilons from 0 to twice the budget's."""
    figure = new_figure(6.4, 4.2)
    _draw_profile(figure.add_subplot(), planned, epsilons)
    return _in_words(figure, _profile_in_words(planned))


def release_probability(planned: Plan) -> Figure:
    """The probability to be released, by how many users an item has."""
    if planned.mechanism == "known-domain":
        raise InvalidParameter("all of a public list is released: there is no probability to draw")
    figure = new_figure(6.4, 4.2)
    _draw_probability(figure.add_subplot(), planned)
    return _in_words(figure, _release_in_words(planned))


def simulation(simulated: Simulation) -> Figure:
    """Items, missing share and mean error of all candidates: caps as lines, top-k steps as points."""
    figure = new_figure(13.0, 4.2)
    # A file's name may have dollar signs, which are no formula.
    figure.suptitle(f"{NOTICE}\n{simulated.title}", fontsize="small", parse_math=False)
    for place, (name, label, log) in enumerate(_PANELS, 1):
        axes = figure.add_subplot(1, len(_PANELS), place)
        for kind, colour, style in (("cap", _BLUE, "o-"), ("top", _ORANGE, "s:")):
            rows = [one for one in simulated.candidates if one.kind == kind and getattr(one, name) is not None]
            if rows:
                xs, ys = [one.value or 1 for one in rows], [getattr(one, name) for one in rows]
                what = "at most m items a user" if kind == "cap" else "the k largest"
                axes.plot(xs, ys, style, color=colour, label=what)
        for one in (one for one in simulated.candidates if one.kind == "auto" and getattr(one, name) is not None):
            axes.axhline(getattr(one, name), color=_GREEN, linestyle="--", label="m chosen privately")
        axes.set_xscale("log")
        if log:
            axes.set_yscale("log")
        axes.set_xlabel("m or k")
        axes.set_title(label)
    axes.legend(fontsize="small")
    return _in_words(figure, NOTICE, f"{simulated.title}.", simulated.reason)


_PANELS: Final = (
    ("items", "items released", False),
    ("missing", "share of pairs missing", False),
    ("mean_error", "mean error of a released count", True),
)


def _in_words(figure: Figure, *sentences: str) -> Figure:
    """The figure with its text alternative."""
    figure.set_label(" ".join(sentences))
    return figure


def _profile_in_words(planned: Plan) -> str:
    budget = planned.budget
    return (
        f"Certified delta falls with epsilon: at epsilon {budget.epsilon:g} it is "
        f"{planned.certificate.delta:.6g}, within {budget.delta:g}."
    )


def _release_in_words(planned: Plan) -> str:
    law = count_noise(planned.noise)
    return (
        f"From {law.passing_count(0.5):,} {_users(planned)} on it is released with at least 50 %, from "
        f"{law.passing_count(0.99):,} on with at least 99 %."
    )


def _users(planned: Plan) -> str:
    return f"users{' more than the count after the largest' if planned.releases_offset else ' of an item'}"


def _draw_profile(axes: Any, planned: Plan, epsilons: Iterable[float] | None) -> None:
    at = certified_delta(planned)
    given = None if epsilons is None else sorted(float(epsilon) for epsilon in epsilons)
    xs = list(np.linspace(0.0, 2.0 * planned.budget.epsilon, _POINTS)) if given is None else given
    axes.plot(xs, [at(x) for x in xs], color=_BLUE)
    axes.plot([planned.budget.epsilon], [planned.certificate.delta], "o", color=_ORANGE, label="the budget")
    axes.set_yscale("log")
    axes.set_xlabel("epsilon")
    axes.set_ylabel("certified delta")
    axes.set_title("Privacy profile")
    axes.legend(fontsize="small")


def _draw_probability(axes: Any, planned: Plan) -> None:
    reach = planned.threshold - max(0.0, least_hope(planned))
    low, high = max(1.0, planned.threshold - 0.5 * reach), planned.threshold + 0.5 * reach
    counts = np.unique(np.rint(np.linspace(low, math.ceil(high), 401)))
    axes.plot(counts, 100.0 * probability_of(planned.noise, counts), color=_BLUE)
    axes.axvline(planned.threshold, color=_ORANGE, linestyle=":", label=f"threshold {planned.threshold:,.1f}")
    axes.set_xlabel(_users(planned))
    axes.set_ylabel("probability to be released (%)")
    axes.set_title("Which counts are released")
    axes.legend(fontsize="small")


def save_simulation(simulated: Simulation, path: Path, *, force: bool = False) -> None:
    """Write the figure as PNG, SVG, or an HTML page that needs no network; with `force` over an existing file."""
    title, table = "a simulation, not private", simulated._repr_html_()
    save_plot(simulation(simulated), path, title=title, tables=table, force=force)
