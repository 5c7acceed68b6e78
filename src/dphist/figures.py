"""Figures that are returned, for notebooks and papers: of plans, comparisons and simulations.

Each is a figure of matplotlib, which a notebook shows by itself and `savefig` writes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dphist.accounting.plan_profile import certified_delta
from dphist.calibrate.comparison import Comparison
from dphist.errors import InvalidParameter
from dphist.report.canvas import new_figure
from dphist.report.figure import check_format, comparison_figure
from dphist.simulation.prediction import least_hope
from dphist.simulation.result import NOTICE, Simulation
from dphist.simulation.tails import release_probability as probability_of
from dphist.types import Plan

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
    return figure


def plan(planned: Plan) -> Figure:
    """A plan in two panels: its privacy profile, and which counts are released."""
    panels = 1 if planned.mechanism == "known-domain" else 2
    figure = new_figure(5.6 * panels, 4.2)
    _draw_profile(figure.add_subplot(1, panels, 1), planned, None)
    if panels == 2:
        _draw_probability(figure.add_subplot(1, panels, 2), planned)
    return figure


def profile(planned: Plan, epsilons: Iterable[float] | None = None) -> Figure:
    """delta against epsilon, certified at every point; without epsilons from 0 to twice the budget's."""
    figure = new_figure(6.4, 4.2)
    _draw_profile(figure.add_subplot(), planned, epsilons)
    return figure


def release_probability(planned: Plan) -> Figure:
    """The probability to be released, by how many users an item has."""
    if planned.mechanism == "known-domain":
        raise InvalidParameter("all of a public list is released: there is no probability to draw")
    figure = new_figure(6.4, 4.2)
    _draw_probability(figure.add_subplot(), planned)
    return figure


def simulation(simulated: Simulation) -> Figure:
    """Items, missing share and mean error of all candidates: caps as lines, top-k steps as points."""
    figure = new_figure(13.0, 4.2)
    figure.suptitle(f"{NOTICE}\n{simulated.title}", fontsize="small")
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
    return figure


_PANELS: Final = (
    ("items", "items released", False),
    ("missing", "share of pairs missing", False),
    ("mean_error", "mean error of a released count", True),
)


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
    more = " more than the count after the largest" if planned.releases_offset else " of an item"
    axes.set_xlabel(f"users{more}")
    axes.set_ylabel("probability to be released (%)")
    axes.set_title("Which counts are released")
    axes.legend(fontsize="small")


def save_simulation(simulated: Simulation, path: Path) -> None:
    """Write the figure as PNG, SVG, or an HTML page that needs no network."""
    check_format(path)
    figure = simulation(simulated)
    try:
        if path.suffix.lower() != ".html":
            figure.savefig(path, dpi=150)
            return
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg")
        svg, said = drawing.getvalue(), escape(simulated.reason)
        svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{said}"', 1)
        path.write_text(_PAGE.format(figure=svg, table=simulated._repr_html_()), encoding="utf-8")
    except OSError as error:
        raise InvalidParameter(f"the plot {str(path)!r} cannot be written: {error.strerror}") from None


_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>dphist: a simulation, not private</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }}
figure {{ margin: 0; background: white; overflow-x: auto; }}
svg {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin: 2rem 0; display: block; overflow-x: auto; }}
caption {{ text-align: left; padding: .5rem 0; }}
th, td {{ padding: .25rem .75rem; border-bottom: 1px solid #8888; text-align: right; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
</style>
</head>
<body>
<h1>Utility before privacy is spent</h1>
<figure>
{figure}
</figure>
{table}
</body>
</html>
"""
