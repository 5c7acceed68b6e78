"""Subcommands that plan, certify and compare. No data is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dphist.cli.base import (
    AsJson,
    Delta,
    Epsilon,
    Force,
    GammaOption,
    MaxItems,
    MaxNonzero,
    PublicItems,
    app,
    number,
    option,
    print_json,
    print_table,
    whole_number,
    wrap,
    write_error,
    write_out,
)

if TYPE_CHECKING:
    from dphist.privacy.types import Plan


# A given plan by its numbers, for `certify` and `profile`.
Sigma = Annotated[
    float,
    typer.Option("--sigma", metavar="S", parser=number, help="Standard deviation of each count's own noise."),
]
Tau = Annotated[float, typer.Option("--tau", metavar="T", parser=number, help="Threshold minus one.")]
SigmaShared = Annotated[
    float | None,
    typer.Option("--sigma-shared", metavar="C", parser=number, help="Standard deviation of the shared noise. [0]"),
]


ExcessOption = Annotated[
    Literal["drop", "spread"],
    option(
        "excess",
        help="Items of a user beyond the limit: drop leaves them out; spread counts up to 16 times as many, each "
        "with a smaller weight.",
    ),
]


@app.command()
def plan(
    epsilon: Epsilon,
    delta: Delta,
    max_nonzero: MaxNonzero = None,
    max_items_per_user: MaxItems = None,
    excess: ExcessOption = "drop",
    top: Annotated[int | None, option("top")] = None,
    public_items: PublicItems = None,
    offset: Annotated[Literal["opposite", "independent", "none"] | None, option("offset")] = None,
    mechanism: Annotated[Literal["best", "gaussian", "laplace"], option("mechanism")] = "best",
    noise: Annotated[
        Literal["continuous", "discrete"] | None,
        typer.Option(
            help="Discrete noise can be drawn exactly. [discrete; continuous for the paper's]",
            rich_help_panel="Advanced",
        ),
    ] = None,
    analysis: Annotated[
        Literal["best", "exact", "gshm-add-the-deltas", "gshm-exact", "csh-add-the-deltas", "csh-tighter"],
        typer.Option(
            metavar="ANALYSIS",
            help="Privacy analysis that chooses the plan: best, exact, or one of the paper's: gshm-exact, "
            "gshm-add-the-deltas, csh-tighter, csh-add-the-deltas.",
            rich_help_panel="Advanced",
        ),
    ] = "best",
    gamma: GammaOption = None,
    minimize: Annotated[Literal["threshold", "noise"], option("minimize")] = "threshold",
    sums: Annotated[
        list[str] | None,
        option("sum", metavar="LOW:HIGH", help="Plan a sum of values between LOW and HIGH; may be repeated."),
    ] = None,
    weight: Annotated[list[float] | None, option("weight")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan a release: the least noise and threshold for a privacy budget.

    No data is read. Every plan is certified in ball arithmetic, whichever analysis chose it.

    \b
    Examples:
      dphist plan --epsilon 1 --delta 1e-6 --max-items-per-user 20
      dphist plan --epsilon 1 --delta 1e-6 --max-items-per-user 20 \\
        --excess spread
      dphist plan --epsilon 1 --delta 1e-6 --top 1000
      dphist plan --epsilon 1 --delta 1e-6 --max-items-per-user 20 --sum 0:500
      dphist plan --epsilon 0.35 --delta 1e-5 --max-nonzero 51914 --json
      dphist plan --epsilon 1 --delta 1e-6 --max-nonzero 1000 \\
        --max-items-per-user 100 --minimize noise
    """
    from dphist.planning.explain import explain
    from dphist.planning.planner import plan as make_plan
    from dphist.releasing.aggregates import bounds_from

    result = make_plan(
        epsilon=epsilon, delta=delta, max_nonzero=max_nonzero, max_items_per_user=max_items_per_user,
        top=top, public_items=public_items, offset=offset, mechanism=mechanism, noise=noise, analysis=analysis,
        gamma=gamma, minimize=minimize, sums=[bounds_from(text) for text in sums or []],
        weights=weight or None, excess=excess,
    )  # fmt: skip
    advice = explain(result) if result.noise.kind == "discrete" else []
    if as_json:
        print_json({**result.to_dict(), "advice": advice})
    else:
        show_plan(result, advice)


def show_plan(plan: Plan, advice: list[str]) -> None:
    """A plan for people: its numbers, its notes and what it means."""
    write_out(f"{plan}\n")
    for sentence in (*(f"Note: {note}" for note in plan.notes), *advice):
        write_out(f"\n{wrap(sentence)}\n")


@app.command()
def certify(
    epsilon: Epsilon,
    sigma: Sigma,
    tau: Tau,
    sigma_shared: SigmaShared = None,
    gamma: GammaOption = None,
    max_nonzero: MaxNonzero = None,
    max_items_per_user: MaxItems = None,
    excess: ExcessOption = "drop",
    delta: Annotated[
        float | None, option("delta", help="Fail (exit code 2) if the plan's delta is larger.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Certify a given plan: its delta under every analysis that applies.

    \b
    Examples:
      dphist certify --epsilon 0.35 --sigma 1113.76 --gamma sqrt \\
        --tau 6987.3 --max-nonzero 51914
      dphist certify --epsilon 1 --sigma 30 --tau 165 \\
        --max-items-per-user 50 --delta 1e-6 --json
    """
    from dphist.planning.compare import certify as certify_plan

    result = certify_plan(
        epsilon=epsilon, sigma=sigma, tau=tau, sigma_shared=sigma_shared, gamma=gamma,
        max_nonzero=max_nonzero, max_items_per_user=max_items_per_user, delta=delta, excess=excess,
    )  # fmt: skip
    if as_json:
        print_json(result.to_dict())
    else:
        write_out(f"{result}\n")


@app.command()
def compare(
    epsilon: Annotated[list[float], option("epsilon", help="Privacy loss ε, above 0; may be repeated.")],
    delta: Delta,
    max_nonzero: Annotated[
        list[int] | None, option("max_nonzero", help="Bound on the number of non-zero counts; may be repeated.")
    ] = None,
    max_items_per_user: MaxItems = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png|.svg|.html", help="Draw tau against noise.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compare all mechanisms and analyses: a table, and the paper's figure.

    \b
    Examples:
      dphist compare --epsilon 1 --delta 1e-6 --max-items-per-user 20
      dphist compare --epsilon 0.35 --delta 1e-5 --max-nonzero 51914 \\
        --plot figure.png
    \b
    Both panels of the paper's figure, for epsilon = 0.35 and the 0.349 of
    its text:
      dphist compare --epsilon 0.35 --epsilon 0.349 --delta 1e-5 \\
        --max-nonzero 51914 --max-nonzero 10 --plot figure.png
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
        write_error(f"Wrote {plot}")


@app.command()
def profile(
    sigma: Sigma,
    tau: Tau,
    epsilon: Annotated[
        list[float] | None, option("epsilon", help="Where to evaluate delta; may be repeated.")
    ] = None,
    delta: Annotated[list[float] | None, option("delta", help="Where to find epsilon; may be repeated.")] = None,
    sigma_shared: SigmaShared = None,
    gamma: GammaOption = None,
    max_nonzero: MaxNonzero = None,
    max_items_per_user: MaxItems = None,
    excess: ExcessOption = "drop",
    as_json: AsJson = False,
) -> None:
    """Privacy profile of a given plan: certified delta for each epsilon, epsilon for each delta.

    \b
    Examples:
      dphist profile --sigma 30 --tau 165 --max-items-per-user 50 \\
        --epsilon 0.5 --epsilon 1 --delta 1e-5
    """
    from dphist.planning.compare import profile_of

    pairs = profile_of(
        sigma=sigma, tau=tau, sigma_shared=sigma_shared, gamma=gamma, max_nonzero=max_nonzero,
        max_items_per_user=max_items_per_user, epsilons=epsilon or [], deltas=delta or [], excess=excess,
    )  # fmt: skip
    if as_json:
        print_json({"profile": [{"epsilon": e, "delta": d} for e, d in pairs]})
        return
    print_table(("epsilon", "delta"), [(f"{e:.8g}", f"{d:.8g}") for e, d in pairs], left=0)


@app.command()
def audit(
    epsilon: Epsilon,
    delta: Delta,
    max_nonzero: MaxNonzero = None,
    max_items_per_user: MaxItems = None,
    excess: ExcessOption = "drop",
    runs: Annotated[int, typer.Option(metavar="N", parser=whole_number, help="Number of attacks.")] = 10**6,
    as_json: AsJson = False,
) -> None:
    """Audit a plan by attack: a lower bound on its delta, to compare with the certificate.

    The attacked histograms are synthetic; none of your data is read. The attack resolves about 0.001 in delta, so
    audit at a large delta, such as 0.05. Exit code 1 if the attack contradicts the certificate.

    \b
    Examples:
      dphist audit --epsilon 1 --delta 0.05 --max-nonzero 10
    """
    from dphist.audit import audit_plan

    result = audit_plan(
        epsilon=epsilon, delta=delta, max_nonzero=max_nonzero, max_items_per_user=max_items_per_user,
        excess=excess, runs=runs,
    )  # fmt: skip
    if as_json:
        print_json(result.to_dict())
    else:
        write_out(f"{result}\n")
    if result.contradicts:
        raise typer.Exit(1)
