"""Charts as files: SVG by our own hand, PNG by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from dphist.errors import MissingExtra
from dphist.report.charts import BarChart, Chart, LineChart
from dphist.report.marks import SOFTWARE
from dphist.report.svg import bar_number, svg

FigureFormat = Literal["svg", "png"]
# The same colours and dashes as on the page.
_TONES: Final = (("#0072b2", "-"), ("#b94e00", "--"), ("#00795a", ":"))
_OTHER: Final = "#768b9c"


def figure_bytes(chart: Chart, format: FigureFormat) -> bytes:
    """One chart as the content of a file."""
    return svg(chart, alone=True).encode() if format == "svg" else _png(chart)


def _png(chart: Chart) -> bytes:
    import io

    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            "PNG figures need matplotlib: pip install 'dphist[plot]', or --figure-format svg"
        ) from error
    tall = 3.9 if isinstance(chart, LineChart) else 0.9 + 0.45 * len(chart.bars)
    figure = Figure(figsize=(6.4 if isinstance(chart, LineChart) else 8.0, tall), layout="constrained")
    axes = figure.add_subplot()
    if isinstance(chart, LineChart):
        _draw_lines(axes, chart)
    else:
        _draw_bars(axes, chart)
    figure.suptitle(_plain(chart.title))
    content = io.BytesIO()
    # The words go with the picture, where programs for the blind find them.
    figure.savefig(content, dpi=150, format="png", metadata={"Software": SOFTWARE, "Description": chart.words})
    return content.getvalue()


def _plain(text: str) -> str:
    """No formula: a dollar sign in a name is a dollar sign."""
    return text.replace("$", r"\$")


def _draw_lines(axes: Any, chart: LineChart) -> None:
    for (colour, style), one in zip(_TONES, chart.series, strict=False):
        axes.plot(
            one.xs,
            one.ys,
            color=colour,
            linestyle=style,
            linewidth=2,
            marker="o" if one.knots else "",
            markersize=3.5,
            label=one.label,
        )
    for mark in chart.marks:
        if mark.y is None:
            axes.axvline(mark.x, color="#57606a", linestyle="--", linewidth=1)
            high = 0.03 if chart.share_y else 0.93
            axes.annotate(f" {mark.label}", (mark.x, high), xycoords=("data", "axes fraction"))
        else:
            axes.plot([mark.x], [mark.y], "o", color=_TONES[1][0])
            axes.annotate(mark.label, (mark.x, mark.y), xytext=(6, 6), textcoords="offset points")
    if chart.log_y:
        axes.set_yscale("log")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_bars(axes: Any, chart: BarChart) -> None:
    bars = tuple(reversed(chart.bars))
    colours = [_TONES[0][0] if bar.own else _OTHER for bar in bars]
    places, values = range(len(bars)), [bar.value for bar in bars]
    if chart.log_x:
        axes.set_xscale("log")
        axes.scatter(values, places, color=colours, zorder=3)
    else:
        values = [max(0.0, value) for value in values]
        axes.barh(places, values, color=colours)
    for place, value, bar in zip(places, values, bars, strict=True):
        axes.annotate(bar_number(bar.value), (value, place), xytext=(6, -4), textcoords="offset points")
    axes.set_yticks(places, [_plain(bar.label) for bar in bars])
    axes.set_xlabel(chart.x_label)
    axes.margins(x=0.3)
    axes.grid(axis="x", alpha=0.3)


def figure_files(charts: Sequence[Chart], folder: Path, format: FigureFormat) -> dict[str, tuple[Path, bytes]]:
    """The file and the content of each chart, by its name; nothing is written yet."""
    return {chart.name: (folder / f"{chart.name}.{format}", figure_bytes(chart, format)) for chart in charts}
