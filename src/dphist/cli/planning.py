"""Subcommands that plan, certify and compare. No data is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dphist.cli import releasing as flags
from dphist.cli.base import (
    AsJson,
    Delta,
    Epsilon,
    GammaOption,
    MaxItems,
    MaxNonzero,
    app,
    gamma_from,
    number,
    print_json,
    whole_number,
    write_error,
    write_out,
)
from dphist.cli.releasing import show_plan

# A given plan by its numbers, as `certify` and `profile` take it.
Sigma = Annotated[
    float, typer.Option("--sigma", metavar="S", parser=number, help="Noise of each count (deviation).")
]
Tau = Annotated[float, typer.Option("--tau", metavar="T", parser=number, help="Threshold less one.")]
SigmaShared = Annotated[
    float | None,
    typer.Option("--sigma-shared", metavar="C", parser=number, help="Shared noise (deviation); default 0."),
]


@app.command()
def plan(
    epsilon: Epsilon,
    delta: Delta,
    max_nonzero: MaxNonzero = None,
    max_items_per_user: MaxItems = None,
    top: flags.Top = None,
    public_items: flags.PublicItems = None,
    offset: flags.Offset = None,
    mechanism: Annotated[
        Literal["best", "gaussian", "laplace"], typer.Option("--mechanism", help="Kind of noise.")
    ] = "best",
    noise: Annotated[
        Literal["continuous", "discrete"] | None,
        typer.Option("--noise", help="Kind of noise.  [default: discrete; continuous for the paper's analyses]"),
    ] = None,
    analysis: Annotated[
        Literal["best", "exact", "gshm-add-the-deltas", "gshm-exact", "csh-add-the-deltas", "csh-tighter"],
        typer.Option("--analysis", help="Which privacy analysis chooses the plan."),
    ] = "best",
    gamma: GammaOption = None,
    minimize: Annotated[
        Literal["threshold", "noise"], typer.Option("--minimize", help="What is to be least.")
    ] = "threshold",
    sums: Annotated[
        list[str] | None,
        typer.Option(
            "--sum", metavar="LOW:HIGH", help="Beside the counts a sum of values within these; may be repeated."
        ),
    ] = None,
    weight: flags.Weight = None,
    as_json: AsJson = False,
) -> None:
    """Plan a release: the least noise and threshold for a privacy budget.

    No data is read. The plan is certified in ball arithmetic, whatever analysis chose it.

    \b
    Examples:
      dphist plan --epsilon 1 --delta 1e-6 --max-items-per-user 20
      dphist plan --epsilon 1 --delta 1e-6 --top 1000
      dphist plan --epsilon 1 --delta 1e-6 --max-items-per-user 20 --sum 0:500
      dphist plan --epsilon 0.35 --delta 1e-5 --max-nonzero 51914 --json
      dphist plan --epsilon 1 --delta 1e-6 --max-nonzero 1000 --max-items-per-user 100 --minimize noise
    """
    from dphist.planning.planner import plan as make_plan
    from dphist.releasing.aggregates import bounds_from
    from dphist.report.words import explain

    result = make_plan(
        epsilon=epsilon, delta=delta, max_nonzero=max_nonzero, max_items_per_user=max_items_per_user,
        top=top, public_items=public_items, offset=offset, mechanism=mechanism, noise=noise, analysis=analysis,
        gamma=gamma_from(gamma), minimize=minimize, sums=[bounds_from(text) for text in sums or []],
        weights=weight or None,
    )  # fmt: skip
    advice = explain(result) if result.noise.kind == "discrete" else []
    if as_json:
        print_json({**result.to_dict(), "advice": advice})
    else:
        show_plan(result, advice)


@app.command()
def certify(
    epsilon: Epsilon,
    sigma: Sigma,
    tau: Tau,
    sigma_shared: SigmaShared = None,
    gamma: GammaOption = None,
    max_nonzero: MaxNonzero = None,
    max_items_per_user: MaxItems = None,
    delta: Annotated[
        float | None,
        typer.Option("--delta", metavar="D", parser=number, help="Fail (exit code 2) if the plan exceeds it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Certify a given plan: its delta under every analysis that applies.

    \b
    Examples:
      dphist certify --epsilon 0.35 --sigma 1113.76 --gamma sqrt --tau 6987.3 --max-nonzero 51914
      dphist certify --epsilon 1 --sigma 30 --tau 165 --max-items-per-user 50 --delta 1e-6 --json
    """
    from dphist.planning.certify import certify as certify_plan

    result = certify_plan(
        epsilon=epsilon, sigma=sigma, tau=tau, sigma_shared=sigma_shared, gamma=gamma_from(gamma),
        max_nonzero=max_nonzero, max_items_per_user=max_items_per_user, delta=delta,
    )  # fmt: skip
    if as_json:
        print_json(result.to_dict())
    else:
        write_out(f"{result}\n")


@app.command()
def compare(
    epsilon: Annotated[
        list[float], typer.Option("--epsilon", metavar="E", parser=number, help="Privacy loss; may be repeated.")
    ],
    delta: Delta,
    max_nonzero: Annotated[
        list[int] | None,
        typer.Option(
            "--max-nonzero",
            metavar="K",
            parser=whole_number,
            help="Bound on the non-zero counts; may be repeated.",
        ),
    ] = None,
    max_items_per_user: MaxItems = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png|.svg|.html", help="Draw tau against noise.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing plot.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare all mechanisms and analyses: a table, and the paper's figure.

    \b
    Examples:
      dphist compare --epsilon 1 --delta 1e-6 --max-items-per-user 20
      dphist compare --epsilon 0.35 --delta 1e-5 --max-nonzero 51914 --plot figure.png
    \b
    Both panels of the paper's figure, for epsilon = 0.35 and the 0.349 its text quotes:
      dphist compare --epsilon 0.35 --epsilon 0.349 --delta 1e-5 --max-nonzero 51914 --max-nonzero 10 \\
        --plot figure.png
    """
    from dphist.planning.compare import compare as compare_all

    if plot is not None:
        from dphist.report.files import check_plot

        check_plot(plot, force=force)
    bounds: list[int | None] = [*max_nonzero] if max_nonzero else [None]
    results = [
        compare_all(epsilon=e, delta=delta, max_nonzero=k, max_items_per_user=max_items_per_user)
        for e in epsilon
        for k in bounds
    ]
    if as_json:
        print_json({"comparisons": [result.to_dict() for result in results]})
    else:
        write_out("\n\n".join(str(result) for result in results) + "\n")
    if plot is not None:
        from dphist.report.charts import chart
        from dphist.report.render import save_plot

        tables = [result._repr_html_() for result in results]
        save_plot(chart(results), plot, title="mechanisms compared", tables=tables, force=force)
        write_error(f"Wrote {plot}\n")


@app.command()
def profile(
    sigma: Sigma,
    tau: Tau,
    epsilon: Annotated[
        list[float] | None,
        typer.Option("--epsilon", metavar="E", parser=number, help="Where to evaluate delta; may be repeated."),
    ] = None,
    delta: Annotated[
        list[float] | None,
        typer.Option("--delta", metavar="D", parser=number, help="Where to find epsilon; may be repeated."),
    ] = None,
    sigma_shared: SigmaShared = None,
    gamma: GammaOption = None,
    max_nonzero: MaxNonzero = None,
    max_items_per_user: MaxItems = None,
    as_json: AsJson = False,
) -> None:
    """Privacy profile of a given plan: certified delta for each epsilon, epsilon for each delta.

    \b
    Examples:
      dphist profile --sigma 30 --tau 165 --max-items-per-user 50 --epsilon 0.5 --epsilon 1 --delta 1e-5
    """
    from dphist.planning.certify import profile_of

    pairs = profile_of(
        sigma=sigma, tau=tau, sigma_shared=sigma_shared, gamma=gamma_from(gamma), max_nonzero=max_nonzero,
        max_items_per_user=max_items_per_user, epsilons=epsilon or [], deltas=delta or [],
    )  # fmt: skip
    if as_json:
        print_json({"profile": [{"epsilon": e, "delta": d} for e, d in pairs]})
        return
    write_out(f"{'epsilon':>14}  {'delta':>14}\n")
    for e, d in pairs:
        write_out(f"{e:>14.8g}  {d:>14.8g}\n")


@app.command()
def audit(
    epsilon: Epsilon,
    delta: Delta,
    max_nonzero: MaxNonzero = None,
    max_items_per_user: MaxItems = None,
    runs: Annotated[
        int, typer.Option("--runs", metavar="N", parser=whole_number, help="How often to attack.")
    ] = 10**6,
    as_json: AsJson = False,
) -> None:
    """Audit a plan by attack: a lower bound on its delta, to hold against the certificate.

    Nothing of yours is read: the attacked histograms are made up. It resolves about 0.001 in delta, so audit
    at a large delta, such as 0.05. Exit code 1 if the certificate is contradicted.

    \b
    Examples:
      dphist audit --epsilon 1 --delta 0.05 --max-nonzero 10
    """
    from dphist.audit import audit_plan

    result = audit_plan(
        epsilon=epsilon, delta=delta, max_nonzero=max_nonzero, max_items_per_user=max_items_per_user, runs=runs
    )
    if as_json:
        print_json(result.to_dict())
    else:
        write_out(f"{result}\n")
    if result.contradicts:
        raise typer.Exit(1)
