"""A figure of matplotlib that a notebook shows by itself, with or without its magic words."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, Any

from dphist.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@cache
def _figure_class() -> Any:
    from matplotlib.figure import Figure

    class ShownFigure(Figure):  # type: ignore[misc, unused-ignore]
        """A figure that is its own picture."""

        def _repr_png_(self) -> bytes:
            drawn = io.BytesIO()
            self.savefig(drawn, format="png", dpi=96, metadata={"Description": str(self.get_label())})
            return drawn.getvalue()

    return ShownFigure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, on white: its lines have fixed colours."""
    try:
        figure_class = _figure_class()
    except ImportError as error:
        raise MissingExtra("figures need matplotlib: pip install 'dphist[plot]'") from error
    figure: Figure = figure_class(figsize=(width, height), layout="constrained")
    return figure
