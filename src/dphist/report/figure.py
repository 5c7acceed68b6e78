"""The paper's figure, live: least tau against total noise for every analysis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dphist.errors import InvalidParameter
from dphist.planning.compare import Comparison, Frontier, frontier
from dphist.report.canvas import new_figure
from dphist.report.plots import save_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Okabe and Ito's palette, told apart by colour-blind readers; the line styles tell them apart in print.
_STYLES: Final[dict[str, tuple[str, str, str, str]]] = {
    "gshm-add-the-deltas": ("#D55E00", "--", "s", "GSHM, add the deltas"),
    "gshm-exact": ("#009E73", "-", "o", "GSHM, exact"),
    "csh-add-the-deltas": ("#E69F00", "--", "D", "CSH, add the deltas"),
    "csh-tighter": ("#56B4E9", "-.", "^", "CSH, tighter (the paper)"),
    "exact": ("#000000", "-", "*", "CSH, exact (dphist)"),
}


def curve_label(analysis: str) -> str:
    """What a curve is called in the legend."""
    return _STYLES[analysis][3]


def frontiers(comparison: Comparison) -> list[Frontier]:
    """The curves of one panel."""
    budget, contract = comparison.budget, comparison.contract
    shared = math.inf if contract.max_nonzero is None else math.sqrt(contract.max_nonzero)
    names = [name for name in _STYLES if name.startswith("gshm") or math.isfinite(shared)]
    largest = 1.3 * max(row.total_noise for row in comparison.rows if row.analysis in _STYLES)
    return [
        frontier(
            epsilon=budget.epsilon, delta=budget.delta, analysis=name, max_nonzero=contract.max_nonzero,
            max_items_per_user=contract.max_items_per_user,
            gamma=None if name.startswith("gshm") else shared, largest_noise=largest,
        )
        for name in names
    ]  # fmt: skip


def comparison_figure(comparisons: Comparison | Sequence[Comparison]) -> Figure:
    """A panel for each comparison: curves, their minima marked, dotted lines at the least noise."""
    if isinstance(comparisons, Comparison):
        comparisons = [comparisons]
    if not comparisons:
        raise InvalidParameter("a figure needs at least one comparison")
    columns = min(2, len(comparisons))
    rows = math.ceil(len(comparisons) / columns)
    figure = new_figure(6.4 * columns, 4.8 * rows)
    for index, comparison in enumerate(comparisons):
        _panel(figure.add_subplot(rows, columns, index + 1), comparison)
    figure.set_label(describe(comparisons))
    return figure


def _panel(axes: Any, comparison: Comparison) -> None:
    highest = 0.0
    lines: dict[float, str] = {}
    minima = {row.analysis.split(",")[0]: row for row in reversed(comparison.rows)}
    for curve in frontiers(comparison):
        colour, style, marker, label = _STYLES[curve.analysis]
        noise, tau = minima[curve.analysis].total_noise, minima[curve.analysis].tau
        xs, ys = zip(*curve.points, strict=True)
        # The exact curves of GSHM and CSH lie on each other: a wide one below a thin one shows both.
        width = 5.0 if curve.analysis == "gshm-exact" else 1.5
        axes.plot(xs, ys, linestyle=style, color=colour, linewidth=width, label=f"{label}: {tau:,.1f}")
        axes.plot([noise], [tau], marker=marker, markersize=9, color=colour)
        lines.setdefault(round(curve.least_noise, 6), colour)
        highest = max(highest, tau)
    for least, colour in lines.items():
        axes.axvline(least, linestyle=":", color=colour, linewidth=1)
    axes.set_ylim(0.0, 1.6 * highest)
    axes.set_xlabel("total noise (standard deviation of a released count)")
    axes.set_ylabel("least tau (threshold less one)")
    axes.set_title(comparison.title)
    axes.legend(fontsize="small")


def describe(comparisons: Sequence[Comparison]) -> str:
    """The figure in words, for those who do not see it."""
    sentences = []
    for comparison in comparisons:
        best = min(comparison.rows, key=lambda row: row.tau)
        sentences.append(
            f"For {comparison.title} the lowest threshold is {best.threshold:.1f} "
            f"({best.mechanism}, {best.analysis}), {best.ratio:.3f} times the exact GSHM's."
        )
    return " ".join(sentences)


def write_figure(comparisons: Sequence[Comparison], path: Path, *, force: bool = False) -> None:
    """Write the figure as PNG, SVG, or an HTML page that needs no network; with `force` over an existing file."""
    tables = "\n".join(comparison._repr_html_() for comparison in comparisons)
    save_plot(comparison_figure(comparisons), path, title="mechanisms compared", tables=tables, force=force)
