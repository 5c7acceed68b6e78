"""Commands that plan, certify, compare and simulate. They read no private data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dphist
from dphist.certificate.aggregates import bounds_from, vector_bounds_from
from dphist.cli.base import (
    AsJson,
    Force,
    app,
    print_json,
    print_table,
    show,
    whole_number,
    write_error,
    write_out,
)
from dphist.cli.flags import PLAN, advanced_option, input_option, option, takes
from dphist.display import fill
from dphist.errors import InvalidParameter
from dphist.proof.verdict import verdict_of

if TYPE_CHECKING:
    from fractions import Fraction

    from dphist.model import Budget, Plan
    from dphist.simulation.simulate import Simulation

Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE.png|.svg", help="Also draw a chart.")]


@app.command()
@takes(
    "epsilon", "delta", "max_nonzero", "max_items_per_user", "goal", "top", "public_items", "offset",
    "mechanism", "gamma", "minimize", "sum", "vector", "weight", of=PLAN, required=("epsilon", "delta"),
)  # fmt: skip
def plan(
    *,
    sum: Sequence[str] = (),
    vector: Sequence[str] = (),
    weight: Sequence[float] | None = None,
    noise: Annotated[
        Literal["continuous", "discrete"] | None,
        advanced_option(
            help="Only discrete noise can be drawn exactly. [discrete; continuous for the paper's analyses]"
        ),
    ] = None,
    analysis: Annotated[
        Literal["best", "exact", "gshm-add-the-deltas", "gshm-exact", "csh-add-the-deltas", "csh-tighter"],
        advanced_option(
            metavar="ANALYSIS",
            help="Privacy analysis that determines the plan: best, exact, or one of the paper's: gshm-exact, "
            "gshm-add-the-deltas, csh-tighter, csh-add-the-deltas.",
        ),
    ] = "best",
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Compute the least noise and the lowest threshold for a privacy budget.

    Reads no data. Every plan is certified in ball arithmetic. Without a bound: the rounds of `dphist release`.

    \b
    Examples:
      dphist plan --epsilon 1 --delta 1e-6
      dphist plan --epsilon 1 --delta 1e-6 --max-items-per-user 20
      dphist plan --epsilon 1 --delta 1e-6 --goal keys
      dphist plan --epsilon 1 --delta 1e-6 --top 1000
      dphist plan --epsilon 1 --delta 1e-6 --max-items-per-user 20 --sum 0:500
      dphist plan --epsilon 1 --delta 1e-6 --max-items-per-user 20 --vector 3:10
      dphist plan --epsilon 0.35 --delta 1e-5 --max-nonzero 51914 --json
      dphist plan --epsilon 1 --delta 1e-6 --max-nonzero 1000 \\
        --max-items-per-user 100 --minimize noise
    """
    result = dphist.plan(noise=noise, analysis=analysis, sums=_bounds(sum, vector), weights=weight, **options)
    advice = dphist.explain(result) if result.noise.kind == "discrete" else []
    if as_json:
        print_json({**result.to_dict(), "advice": advice})
    else:
        show_plan(result, advice)


def _bounds(sums: Sequence[str], vectors: Sequence[str]) -> list[tuple[Fraction | int, ...]]:
    return [*map(bounds_from, sums), *map(vector_bounds_from, vectors)]


def show_plan(plan: Plan, advice: list[str]) -> None:
    write_out(f"{plan}\n")
    for sentence in (*(f"Note: {note}" for note in plan.notes), privacy_sentence(plan.budget), *advice):
        write_out(f"\n{fill(sentence)}\n")


def privacy_sentence(budget: Budget) -> str:
    return f"Privacy: {verdict_of(budget).sentence}."


@app.command()
@takes(
    "epsilon", "sigma", "tau", "sigma_shared", "gamma", "max_nonzero", "max_items_per_user",
    of=PLAN, required=("epsilon", "sigma"),
)  # fmt: skip
def certify(
    *,
    delta: Annotated[
        float | None,
        option("delta", help="Fail (exit code 2) if the plan's delta is larger. Without --tau: find the least."),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Also compute delta itself, by trying all neighbours; may take minutes."),
    ] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Bound the delta of a given plan, under every applicable analysis.

    \b
    Examples:
      dphist certify --epsilon 0.35 --sigma 1113.76 --gamma sqrt \\
        --tau 6987.3 --max-nonzero 51914
      dphist certify --epsilon 1 --sigma 30 --tau 165 \\
        --max-items-per-user 50 --delta 1e-6 --json
    \b
    The least tau for given noise:
      dphist certify --epsilon 1 --delta 1e-6 --sigma 30 \\
        --max-items-per-user 50
    """
    result = dphist.certify(delta=delta, exact=exact, **options)
    show(result.to_dict(), f"{result}\n", as_json)


@app.command()
@takes("delta", "max_items_per_user", "sum", "vector", "weight", of=PLAN, required=("delta",))
def compare(
    epsilon: Annotated[list[float], option("epsilon", help="Privacy loss ε, above 0; may be repeated.")],
    *,
    sum: Sequence[str] = (),
    vector: Sequence[str] = (),
    weight: Sequence[float] | None = None,
    max_nonzero: Annotated[
        list[int] | None, option("max_nonzero", help="Public bound on the number of items; may be repeated.")
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="With --json: add the least tau for every noise, as in the chart.")
    ] = False,
    plot: Plot = None,
    force: Force = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Compare noise and threshold of all mechanisms and analyses, as a table and a chart.

    With --sum or --vector: of the ways to release sums with the counts.

    \b
    Examples:
      dphist compare --epsilon 1 --delta 1e-6 --max-items-per-user 20
      dphist compare --epsilon 1 --delta 1e-6 --max-nonzero 1000 --sum 0:100
      dphist compare --epsilon 0.35 --delta 1e-5 --max-nonzero 51914 \\
        --plot figure.png
    \b
    Both panels of the paper's figure, for its epsilon = 0.35 and for 0.349, to
    which the thresholds in its caption belong:
      dphist compare --epsilon 0.35 --epsilon 0.349 --delta 1e-5 \\
        --max-nonzero 51914 --max-nonzero 10 --plot figure.png
    """
    sums = _bounds(sum, vector)
    bounds: list[int | None] = [*max_nonzero] if max_nonzero else [None]
    if sums or weight:
        if plot is not None:
            raise InvalidParameter("<--plot> cannot be used with <--sum>, <--vector> or <--weight>")
        asked = [
            {"epsilon": e, "delta": options["delta"], "max_nonzero": k, **options} for e in epsilon for k in bounds
        ]
        tables = [dphist.compare_sums(**given, sums=sums, weights=weight) for given in asked]
        ways = [{**given, "ways": table.to_dict()} for given, table in zip(asked, tables, strict=True)]
        show({"comparisons": ways}, "\n\n".join(map(str, tables)) + "\n", as_json)
        return
    draw = _plot_writer(plot, force)
    results = [dphist.compare(epsilon=e, max_nonzero=k, **options) for e in epsilon for k in bounds]
    if curves and not as_json:
        raise InvalidParameter("<--curves> needs <--json>; <--plot> draws the curves")
    data = {"comparisons": [result.to_dict(curves=curves) for result in results]}
    show(data, "\n\n".join(map(str, results)) + "\n", as_json)
    draw(results)


def _plot_writer(plot: Path | None, force: bool) -> Callable[[object], None]:
    """Check the file of a plot, if there is one, and return what draws a result in it."""
    if plot is None:
        return lambda _: None
    from dphist.report.writing import check_plot, write_plot

    check_plot(plot, force=force)

    def draw(result: object) -> None:
        write_plot(result, plot, force=force)
        write_error(f"Wrote {plot}")

    return draw


@app.command()
@takes(
    "sigma", "tau", "sigma_shared", "gamma", "max_nonzero", "max_items_per_user", of=PLAN,
    required=("sigma", "tau"),
)  # fmt: skip
def profile(
    epsilon: Annotated[
        list[float] | None, option("epsilon", help="Compute delta at this epsilon; may be repeated.")
    ] = None,
    delta: Annotated[
        list[float] | None, option("delta", help="Compute epsilon at this delta; may be repeated.")
    ] = None,
    *,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Compute the privacy profile of a given plan: delta for each epsilon, epsilon for each delta.

    Epsilon is infinite for a delta below the probability that a new count passes the threshold.

    \b
    Examples:
      dphist profile --sigma 30 --tau 165 --max-items-per-user 50 \\
        --epsilon 0.5 --epsilon 1 --delta 1e-5
    """
    from dphist.accounting.profile import profile_of

    pairs = profile_of(epsilons=epsilon or [], deltas=delta or [], **options)
    if as_json:
        rows = [{"epsilon": e if math.isfinite(e) else None, "delta": d} for e, d in pairs]
        print_json({"profile": rows})
        return
    cells = [(f"{e:.8g}" if math.isfinite(e) else "infinite", f"{d:.8g}") for e, d in pairs]
    print_table(("epsilon", "delta"), cells, left=0)


@app.command()
@takes("epsilon", "delta", "max_nonzero", "max_items_per_user", of=PLAN, required=("epsilon", "delta"))
def audit(
    *,
    runs: Annotated[int, typer.Option(metavar="N", parser=whole_number, help="Number of attacks.")] = 10**6,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Attack a plan with a bound and compare the result with its certificate.

    The attack gives a lower bound on delta. The attacked histograms are synthetic; none of your data is read. A
    delta below about 0.001 cannot be detected, so audit at a large delta, such as 0.05. Exit code 1 if the attack
    contradicts the certificate.

    \b
    Examples:
      dphist audit --epsilon 1 --delta 0.05 --max-nonzero 10
    """
    from dphist.audit import PlannedMechanism
    from dphist.audit import audit as attack
    from dphist.sampling.rng import SecureRng

    result = attack(PlannedMechanism(dphist.plan(noise="discrete", **options)), rng=SecureRng(), runs=runs)
    show(result.to_dict(), f"{result}\n", as_json)
    if result.contradicts:
        raise typer.Exit(1)


@app.command()
@takes(
    "epsilon", "delta", "user", "item", "total", "table", "query", "where", "input_format", "encoding",
    "delimiter", "decimal", "null_items", required=("epsilon", "delta"),
)  # fmt: skip
def simulate(
    source: Annotated[
        str | None,
        input_option("--from", metavar="INPUT", help="PUBLIC data: a file, glob, folder or database."),
    ] = None,
    zipf: Annotated[
        str | None,
        input_option(
            metavar="S,N,USERS[,ITEMS]",
            help="Synthetic data instead: N items, up to 1e8, by Zipf's law with exponent S. The number of items "
            "per user is geometric with mean ITEMS. [ITEMS: 10]",
        ),
    ] = None,
    *,
    limits: Annotated[
        str | None, typer.Option(metavar="M,M,...", help="Limits per user to try. [1, 2, 3, 4, 6, 8, ...]")
    ] = None,
    tops: Annotated[
        str | None, typer.Option(metavar="K,K,...", help="Top-k steps to try. [10, 100, ..., 100000]")
    ] = None,
    goal: Annotated[
        Literal["accuracy", "keys", "mass"],
        typer.Option(help="Recommend for accurate counts, for many items, or for little missing mass."),
    ] = "accuracy",
    plot: Plot = None,
    force: Force = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Predict the accuracy of many plans and recommend one. NOT PRIVATE: for public or synthetic data only.

    Compares the default, limits per user and top-k steps by the number of released items, the missing users, and
    the mean and relative error. Run it on public data that is similar to yours, never on yours.

    \b
    Examples:
      dphist simulate --zipf 1.1,100000,50000 --epsilon 1 --delta 1e-6
      dphist simulate --from public.parquet --user user --item word \\
        --epsilon 1 --delta 1e-6 --goal keys
      dphist simulate --from public.csv --user user --item word \\
        --epsilon 1 --delta 1e-6 --limits 1,10,100 --tops 1000 \\
        --plot candidates.png
    """
    draw = _plot_writer(plot, force)
    result = dphist.simulate(
        source, zipf=zipf, limits=_numbers("<--limits>", limits), tops=_numbers("<--tops>", tops), goal=goal,
        **options,
    )  # fmt: skip
    if as_json:
        print_json(result.to_dict())
    else:
        _show_simulation(result)
    draw(result)


def _numbers(option: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidParameter(f"{option} must be whole numbers separated by commas, not {text!r}") from None


def _show_simulation(result: Simulation) -> None:
    from dphist.simulation.population import NOTICE

    write_out(f"{fill(NOTICE)}\n\n{fill(result.title)}\n\n")
    print_table(result.columns, result.cells())
    write_out(f"\n{fill(privacy_sentence(result.budget))}\n\n{fill(result.recommendation(flags=True))}\n")
