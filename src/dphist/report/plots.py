"""Figures of matplotlib as files: PNG, SVG, or an HTML page that needs no network, each with its words."""

from __future__ import annotations

import io
import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dphist.errors import InvalidParameter, OutputError
from dphist.report.writing import write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMATS: Final = (".png", ".svg", ".html")


def check_plot(path: Path, *, force: bool) -> None:
    """Refuse a file that no figure can be written to, or that is there already, before any work is done."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidParameter(f"the plot must end in {', '.join(FORMATS)}, not {path.name!r}")
    if not path.resolve().parent.is_dir():
        raise InvalidParameter(f"the folder of the plot {str(path)!r} does not exist")
    if path.is_dir():
        raise InvalidParameter(f"the plot {str(path)!r} is a folder")
    if os.path.lexists(path) and not force:
        raise OutputError(f"the plot {str(path)!r} exists already; --force replaces it")


def save_plot(figure: Figure, path: Path, *, title: str, tables: str, force: bool) -> None:
    """Write a figure, whose label has it in words; the page has `tables` below it."""
    check_plot(path, force=force)
    kind, words, drawing = path.suffix.lower().removeprefix("."), str(figure.get_label()), io.BytesIO()
    told = {"Title": f"dphist: {title}", "Description": words}
    figure.savefig(drawing, format="svg" if kind == "html" else kind, dpi=150, metadata=told)
    content = drawing.getvalue()
    if kind == "html":
        svg = content.decode()
        svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(words)}"', 1)
        content = _PAGE.format(title=escape(title), figure=svg, tables=tables).encode()
    write_files({path: content}, force=force)


_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>dphist: {title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }}
h1::first-letter {{ text-transform: uppercase; }}
figure {{ margin: 0; background: white; overflow-x: auto; }}
svg {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin: 2rem 0; display: block; overflow-x: auto; }}
caption {{ text-align: left; font-weight: bold; padding: .5rem 0; }}
th, td {{ padding: .25rem .75rem; border-bottom: 1px solid #8888; text-align: right; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
</style>
</head>
<body>
<h1>{title}</h1>
<figure>
{figure}
</figure>
{tables}
</body>
</html>
"""
