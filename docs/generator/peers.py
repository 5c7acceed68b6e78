"""Tables, sentences and the figure about other tools, from benchmarks/results/peers.json: part of `make docs`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from peer_results import Installation, Job, Results, read_results

from dphist.report.charts import BLUE, GREEN, GREY, LEAF, ORANGE, PURPLE, VERMILLION, Chart

ROOT = Path(__file__).resolve().parents[2]
FIGURE = ROOT / "docs" / "images" / "peers.svg"
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("peers.md", "speed.md", "spark.md")),
    *sorted((ROOT / "docs" / "migrate").glob("*.md")),
]
_BLOCK = re.compile(r"(<!-- peers: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

SHORT = {"SmartNoise SQL": "SmartNoise", "Tumult Analytics": "Tumult"}
ENVIRONMENTS = {
    "dphist": "dphist",
    "dphist-spark": "dphist with Spark",
    "opendp": "OpenDP",
    "pydp": "PyDP",
    "pipelinedp": "PipelineDP",
    "qrlew": "PyQrlew and DuckDB",
    "smartnoise": "SmartNoise SQL",
    "tumult": "Tumult Analytics",
    "diffprivlib": "diffprivlib",
}


@dataclass(frozen=True)
class Row:
    """The runs of one tool on one job: medians, or the reason why there are none."""

    tool: str
    failure: str = ""
    cpu: float = 0.0
    wall: float = 0.0
    peak: float = 0.0
    items: float = 0.0
    error: float = 0.0
    distance: float = 0.0
    recall: float = 0.0
    held: float | None = None


def rows(results: Results, job: str) -> list[Row]:
    """One row per tool, dphist first, then by CPU seconds; failures last."""
    found = []
    for tool in dict.fromkeys(run.tool for run in results.runs if run.job == job):
        runs = [run for run in results.runs if run.job == job and run.tool == tool]
        failed = [run for run in runs if run.failure]
        good = [run.quality for run in runs if run.quality is not None]
        if failed or not good:
            found.append(Row(tool, failed[0].failure if failed else "no result"))
            continue
        held = [one.held for one in good if one.held is not None]
        found.append(
            Row(
                tool,
                "",
                median(run.cpu for run in runs),
                median(run.wall for run in runs),
                median(run.peak_mib for run in runs),
                median(one.items for one in good),
                median(one.error for one in good),
                median(one.distance for one in good),
                median(one.recall for one in good),
                median(held) if held else None,
            )
        )
    return sorted(found, key=lambda row: (not row.tool.startswith("dphist"), bool(row.failure), row.cpu))


def job_named(results: Results, name: str) -> Job | None:
    return next((job for job in results.jobs if job.name == name), None)


def table(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in body)]) + "\n"


def percent(share: float | None) -> str:
    return "none given" if share is None else f"{100 * share:.0f} %"


def job_table(results: Results, name: str) -> str:
    """A job in a sentence and its table."""
    job = job_named(results, name)
    if job is None or job.skipped:
        return f"Not measured: {job.skipped if job else 'this job was left out'}.\n"
    first = rows(results, name)
    public = name == "known"
    head = [
        "tool",
        "CPU s",
        "wall s",
        "peak MiB",
        "items",
        "error",
        "distance",
        "intervals hold",
        "recall",
        "lines",
    ]
    body = []
    for row in first:
        if row.failure:
            body.append([row.tool, row.failure, *[""] * (len(head) - 2)])
            continue
        cells = [
            row.tool, f"{row.cpu:.1f}", f"{row.wall:.1f}", f"{row.peak:,.0f}", f"{row.items:,.0f}",
            f"{row.error:,.1f}", f"{row.distance:.3f}", percent(row.held), f"{row.recall:.3f}",
            str(results.lines.get(row.tool, "")),
        ]  # fmt: skip
        body.append(cells)
    said = (
        f"{job.events:,} events, {job.pairs:,} distinct pairs, {job.users:,} users, {job.items:,} items, "
        f"{job.common:,} of them with 200 users or more; at most {job.cap} items per user"
        f"{', all items public' if public else ''}. Limits: {job.seconds:g} s, {job.gib:g} GiB.\n\n"
    )
    return said + table(head, body)


def machine_sentence(results: Results) -> str:
    machine = results.machine
    java = f", Java {machine.java}" if machine.java else ""
    return (
        f"Measured on {machine.date}: {machine.cores} cores ({machine.processor}), {machine.memory_gib:.0f} GiB, "
        f"{machine.system}, Python {machine.python}{java}.\n"
    )


def growth_jobs(results: Results) -> list[Job]:
    return sorted((job for job in results.jobs if job.name.startswith("growth")), key=lambda job: job.events)


def growth_table(results: Results) -> str:
    """CPU seconds by number of events; a tool stops where it exceeds a limit."""
    jobs = growth_jobs(results)
    if not jobs:
        return "Not measured.\n"
    found = {job.name: {row.tool: row for row in rows(results, job.name)} for job in jobs}
    tools = dict.fromkeys(tool for each in found.values() for tool in each)
    body = []
    for tool in tools:
        cells = [tool]
        for job in jobs:
            row = found[job.name].get(tool)
            if row is None:
                cells.append("")
            elif row.failure.startswith("not run"):
                cells.append("not run")
            else:
                cells.append(row.failure or f"{row.cpu:.1f} s, {row.peak:,.0f} MiB")
        body.append(cells)
    return table(["CPU s and peak MiB", *(f"{job.events:,} events" for job in jobs)], body)


def installation_table(results: Results) -> str:
    body = []
    for one in sorted(results.installations, key=lambda one: (bool(one.failure), one.megabytes)):
        name = f"{ENVIRONMENTS[one.environment]} {one.version}".strip()
        if one.failure:
            body.append([name, one.python, one.failure, "", ""])
        else:
            cells = [f"{one.megabytes:,.0f}", f"{one.packages}", f"{one.import_cpu:.2f}"]
            body.append([name, one.python, *cells])
    if not body:
        return "Not measured.\n"
    return table(["environment", "Python", "MB", "packages", "import, CPU s"], body)


def ratio_table(results: Results) -> str:
    """How many times the CPU seconds of dphist each tool takes."""
    names = [job.name for job in results.jobs if job.name in ("common, 10", "common, 50", "words")]
    names = [name for name in names if any(row.tool == "dphist" for row in rows(results, name))]
    found = {name: {row.tool: row for row in rows(results, name)} for name in names}
    tools = dict.fromkeys(tool for name in names for tool in found[name] if not tool.startswith("dphist"))

    def cell(name: str, tool: str) -> str:
        row = found[name].get(tool)
        if row is None:
            return ""
        if row.failure:
            return row.failure
        return " / ".join(f"{row.cpu / found[name][ours].cpu:.1f}" for ours in ("dphist, limit", "dphist"))

    return table(
        ["CPU, times dphist's", *names], [[tool, *(cell(name, tool) for name in names)] for tool in tools]
    )


def readme_table(results: Results) -> str:
    """Items and CPU seconds of the common job."""
    names = ["common, 10", "common, 50"]
    found = {name: {row.tool: row for row in rows(results, name)} for name in names}
    tools = [tool for tool in found[names[0]] if tool not in ("dphist, goal keys", "dphist on Spark, limit")]
    tools.sort(key=lambda tool: tool != "dphist")

    def cell(tool: str, said: Callable[[Row], str]) -> str:
        each = [found[name].get(tool) for name in names]
        return "/".join("none" if row is None or row.failure else said(row) for row in each)

    def items_and_cpu(tool: str) -> list[str]:
        return [cell(tool, lambda row: f"{row.items:,.0f}"), cell(tool, lambda row: f"{row.cpu:.1f}")]

    job = job_named(results, names[0])
    said = (
        f"{job.pairs if job else 0:,} (user, item) pairs, ε = 1, δ = 10⁻⁶, at most m items per user (first row: "
        "no limit);\n[all columns](docs/peers.md):\n\n"
    )
    return said + table(
        ["m = 10/50", "items", "CPU seconds"], [[SHORT.get(tool, tool), *items_and_cpu(tool)] for tool in tools]
    )


def spark_table(results: Results) -> str:
    name = "common, 10"
    wanted = ("dphist, limit", "dphist on Spark, limit", "Tumult Analytics")
    body = [
        [row.tool, row.failure, "", ""]
        if row.failure
        else [row.tool, f"{row.cpu:.1f}", f"{row.wall:.1f}", f"{row.peak:,.0f}"]
        for row in rows(results, name)
        if row.tool in wanted
    ]
    return table(["tool", "CPU s", "wall s", "peak MiB"], body)


# Where dphist is not ahead


@dataclass(frozen=True)
class Measure:
    """A column: how to read it, whether more is better, and why another tool can be ahead in it."""

    name: str
    read: Callable[[Row], float]
    style: str
    more: bool
    why: str


MEASURES = (
    Measure(
        "CPU",
        lambda row: row.cpu,
        ".1f",
        False,
        "PyDP draws one floating-point number per count in C++ and has nothing to search for, certify or write; "
        "a fixed part of each dphist run is start, plan and certificate ([planning](speed.md#planning)). Rounds "
        "pass over the pairs several times",
    ),
    Measure(
        "peak memory",
        lambda row: row.peak,
        ",.0f",
        False,
        "DuckDB uses memory that is free; `--memory` limits it. polars, under PyDP and OpenDP, drops "
        "what the limit leaves out while it groups by user",
    ),
    Measure(
        "items",
        lambda row: row.items,
        ",.0f",
        True,
        "with the same limit the noise differs little, and rounds, the default, find several times as many items",
    ),
    Measure(
        "error of released counts",
        lambda row: row.error,
        ",.1f",
        False,
        "a mean over other items cannot be compared. *Distance* covers all items. PyQrlew limits users when it "
        "selects items, but not when it counts them, so its counts miss less than those of others with the limit",
    ),
    Measure(
        "distance",
        lambda row: row.distance,
        ".3f",
        False,
        "with the limit, most of the distance is what the limit drops, as with all tools; rounds drop nothing",
    ),
    Measure("recall", lambda row: row.recall, ".3f", True, "items near 200 users are found or not by chance"),
)
ROUNDING = 1.02
TARGETS = {"OpenDP": 5}
OTHER_TARGET = 20


def targets(results: Results) -> str:
    """The project's own targets on the common job, dphist with the same limit, and whether they are met."""
    body = []
    for name in ("common, 10", "common, 50"):
        found = {row.tool: row for row in rows(results, name)}
        ours = found.get("dphist, limit")
        if ours is None or ours.failure:
            continue
        for row in found.values():
            if row.tool.startswith("dphist") or row.failure:
                continue
            target, times = TARGETS.get(row.tool, OTHER_TARGET), row.cpu / ours.cpu
            more, closer = ours.items > row.items, ours.error < row.error
            met = times >= target and more and closer
            cells = [f"{times:.1f} (target {target})", "yes" if more else "no", "yes" if closer else "no"]
            body.append([name, row.tool, *cells, "met" if met else "missed"])
    return table(["job", "tool", "CPU, times dphist's", "dphist has more items", "and less error", ""], body)


def behind(results: Results) -> str:
    """By measure: the tools that are ahead of dphist, with and without the limit, and why."""
    lines = []
    for measure in MEASURES:
        cases = []
        for name in ("common, 10", "common, 50", "words"):
            found = rows(results, name)
            for ours in (row for row in found if row.tool in ("dphist", "dphist, limit") and not row.failure):
                others = (row for row in found if not row.tool.startswith("dphist") and not row.failure)
                cases += [
                    f"{row.tool} before *{ours.tool}* ({name}: "
                    f"{measure.read(row):{measure.style}}, dphist {measure.read(ours):{measure.style}})"
                    for row in others
                    if ahead(measure.read(row), measure.read(ours), measure.more)
                ]
        if cases:
            lines.append(f"- **{measure.name}**: {'; '.join(cases)}. Why: {measure.why}.")
    lines += installation_behind(results.installations)
    return "\n".join(lines or ["Nowhere."]) + "\n"


def ahead(other: float, ours: float, more: bool) -> bool:
    """Whether the other number is better by more than two percent."""
    return other > ours * ROUNDING if more else other * ROUNDING < ours


def installation_behind(installations: list[Installation]) -> list[str]:
    good = {one.environment: one for one in installations if not one.failure}
    if "dphist" not in good:
        return []
    ours = good["dphist"]
    reads: list[tuple[str, Callable[[Installation], float], str]] = [
        (
            "size",
            lambda one: one.megabytes,
            "pyarrow, DuckDB and scipy are most of it: the formats, the engine and the certified search",
        ),
        ("packages", lambda one: one.packages, "tables in the terminal, signatures and certificates need some"),
        ("import", lambda one: one.import_cpu, "some modules load with the package, most when they are needed"),
    ]
    lines = []
    for name, read, why in reads:
        cases = [ENVIRONMENTS[one.environment] for one in good.values() if ahead(read(one), read(ours), False)]
        cases = [case for case in cases if not case.startswith("dphist")]
        if cases:
            lines.append(f"- **installation, {name}**: {', '.join(cases)}. Why: {why}.")
    return lines


# The figure

STYLES = {
    "dphist, limit": (BLUE, [1, 0]),
    "dphist": (BLUE, [7, 4]),
    "dphist on Spark, limit": (BLUE, [2, 3]),
    "OpenDP": (ORANGE, [1, 0]),
    "PyDP": (GREEN, [1, 0]),
    "PipelineDP": (VERMILLION, [1, 0]),
    "PyQrlew": (PURPLE, [1, 0]),
    "SmartNoise SQL": (LEAF, [1, 0]),
    "Tumult Analytics": (GREY, [1, 0]),
}


def figure(results: Results) -> Chart:
    """CPU seconds against events, both logarithmic."""
    jobs = growth_jobs(results)
    values = [
        {"events": job.events, "cpu": row.cpu, "tool": row.tool}
        for job in jobs
        for row in rows(results, job.name)
        if not row.failure
    ]
    said = "; ".join(
        f"{tool}: "
        + ", ".join(f"{one['cpu']:.1f} s at {one['events']:,}" for one in values if one["tool"] == tool)
        for tool in STYLES
        if any(one["tool"] == tool for one in values)
    )
    scale = {"domain": list(STYLES), "range": [color for color, _ in STYLES.values()]}
    dash = {"domain": list(STYLES), "range": [dashes for _, dashes in STYLES.values()]}
    tool = {"field": "tool", "type": "nominal", "title": None, "legend": {"symbolType": "stroke"}}
    powers = {"values": [10**power for power in range(10)]}
    number = {"type": "quantitative", "scale": {"type": "log"}}
    spec = {
        "width": 430,
        "height": 300,
        "data": {"values": values},
        "encoding": {
            "x": {**number, "field": "events", "title": "events", "axis": {**powers, "format": "~s"}},
            "y": {**number, "field": "cpu", "title": "CPU seconds", "axis": powers},
            "color": {**tool, "scale": scale},
        },
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2.2}, "encoding": {"strokeDash": {**tool, "scale": dash}}},
            {"mark": {"type": "point", "filled": True, "size": 45, "opacity": 1}},
        ],
    }
    return Chart("peers", "CPU seconds by number of events", f"CPU seconds by number of events. {said}.", spec)


# Pages


def script_block(name: str) -> str:
    """The script that `make peers` runs, without its docstring. Not `python`: the tests do not run it."""
    text = (ROOT / "benchmarks" / "peer_jobs" / f"{name}_job.py").read_text(encoding="utf-8")
    return "```py\n" + text.partition("where types are checked.\n\n")[2] + "```\n"


BLOCKS: dict[str, Callable[[Results], str]] = {
    "machine": machine_sentence,
    "common_10": lambda results: job_table(results, "common, 10"),
    "common_50": lambda results: job_table(results, "common, 50"),
    "words": lambda results: job_table(results, "words"),
    "known": lambda results: job_table(results, "known"),
    "growth": growth_table,
    "installations": installation_table,
    "behind": behind,
    "targets": targets,
    "ratios": ratio_table,
    "readme": readme_table,
    "spark": spark_table,
    "code_opendp": lambda _: script_block("opendp"),
    "code_pipelinedp": lambda _: script_block("pipelinedp"),
    "code_pydp": lambda _: script_block("pydp"),
    "code_tumult": lambda _: script_block("tumult"),
}


def filled(page: str, results: Results) -> str:
    """The page with each marked block as the results give it."""

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}\n{BLOCKS[match[2]](results)}\n{match[4]}"

    return _BLOCK.sub(block, page)


def write() -> list[Path]:
    results = read_results()
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    FIGURE.write_text(figure(results).svg() + "\n", encoding="utf-8")
    return [*PAGES, FIGURE]
