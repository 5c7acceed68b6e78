"""`dphist ledger`: the total budget of a dataset, and how much of it is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dphist
from dphist.cli.base import (
    AsJson,
    closed_pipe_ignored,
    group,
    print_json,
    print_table,
    show,
    whole_number,
    write_out,
)
from dphist.cli.flags import PLAN, option, takes
from dphist.display import fill, join_words
from dphist.errors import InvalidParameter

if TYPE_CHECKING:
    from dphist.aliases import JsonObject
    from dphist.ledger import Checkpoint
    from dphist.ledger.accounts import Account, Booking
    from dphist.ledger.store import Accounts


ledger = group("ledger", "Keep all releases of a dataset within one privacy budget.")

File = Annotated[str, typer.Argument(metavar="FILE", help="The ledger file, on a local disk.")]
Dataset = Annotated[str, typer.Option("--dataset", metavar="NAME", help="Name of the dataset.")]
Expect = Annotated[
    str | None,
    typer.Option(
        "--expect", metavar="HASH", help="Fail (exit code 2) unless the ledger has the entry with this hash."
    ),
]
Accounting = Annotated[
    Literal["auto", "gdp", "zcdp", "sum"],
    typer.Option(
        "--accounting",
        help="How releases add up. gdp: tight for Gaussian noise. zcdp: also for Laplace noise. sum: epsilons and "
        "deltas are added. auto: whichever of them fits most releases like the first one. Later releases may "
        "depend on earlier results.",
    ),
]


@ledger.command()
def init(
    file: File,
    dataset: Dataset,
    epsilon: Annotated[float, option("epsilon", help="Total ε of all releases of the dataset.")],
    delta: Annotated[float, option("delta", help="Total δ of all releases of the dataset, e.g. 1e-6.")],
    accounting: Accounting = "auto",
    as_json: AsJson = False,
) -> None:
    """Set the total budget of a dataset, in a new or existing ledger.

    The total covers all releases of the dataset and cannot be changed. Only the owner of the file can read it.

    \b
    Examples:
      dphist ledger init budget.ledger --dataset searches --epsilon 3 --delta 1e-6
      dphist ledger init budget.ledger --dataset orders --epsilon 1 \\
        --delta 1e-6 --accounting sum
    """
    from dphist.releasing.fitting import describe_capacity

    account = dphist.ledger.Ledger.init(
        file, dataset, epsilon=epsilon, delta=delta, accounting=accounting
    ).account(dataset)
    total = f"epsilon {account.total.epsilon!r} and delta {account.total.delta!r}"
    budget = f"The total budget of the dataset {account.name!r} in {file} is {total}."
    text = f"{budget}\n{fill(describe_capacity(account))}\n"
    with closed_pipe_ignored():
        show({"ledger": file, **_facts(account)}, text, as_json)


@ledger.command("show")
def show_ledger(
    file: File,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only this dataset. [all]")] = None,
    expect: Expect = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Fail (exit code 2) unless the ledger continues this checkpoint."),
    ] = None,
    public_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --checkpoint: the key that signed it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the ledger; show its bookings and the remaining budget.

    A booking counts in full, even if its release failed. With --dataset, --json also prints the certificates.

    \b
    Examples:
      dphist ledger show budget.ledger
      dphist ledger show budget.ledger --dataset searches --json
      dphist ledger show budget.ledger --checkpoint november.json \\
        --public-key release.key.pub
      dphist ledger show budget.ledger --expect \\
        5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9
    """
    if (checkpoint is None) != (public_key is None):
        raise InvalidParameter(
            "<--checkpoint> and <--public-key> go together: without its signature, a checkpoint proves nothing"
        )
    known = None
    if checkpoint is not None and public_key is not None:
        known = dphist.ledger.Checkpoint.read(checkpoint, public_key=public_key)
    accounts = dphist.ledger.Ledger.open(file, expect=expect, checkpoint=known).accounts()
    chosen = [accounts.find(dataset)] if dataset is not None else list(accounts.datasets.values())
    with closed_pipe_ignored():
        if as_json:
            facts = _ledger_facts(accounts, file, chosen, certificates=dataset is not None)
            print_json({**facts, "checkpoint": None if known is None else asdict(known)})
        else:
            _show_accounts(accounts, file, chosen, known)


@ledger.command("checkpoint")
def make_checkpoint(
    file: File,
    sign: Annotated[str, typer.Option(metavar="KEY", help="The private key; see dphist keygen.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="A new file.")],
    as_json: AsJson = False,
) -> None:
    """Sign the current state of the ledger: its id, number of entries, last hash, and the date.

    Keep the checkpoint out of reach of anyone who can write the ledger. With it, `dphist ledger show` refuses a
    ledger that was rolled back, rewritten or replaced.

    \b
    Examples:
      dphist ledger checkpoint budget.ledger --sign release.key \\
        -o november.json
      dphist ledger show budget.ledger --checkpoint november.json \\
        --public-key release.key.pub
    """
    checkpoint = dphist.ledger.Ledger.open(file).checkpoint()
    signed_by = checkpoint.write(output, sign=sign)
    text = (
        f"Checkpoint {output}: entry {checkpoint.entry} of the ledger {checkpoint.ledger}\nSigned by {signed_by}\n"
    )
    with closed_pipe_ignored():
        show({"output": output, **asdict(checkpoint), "signed_by": signed_by}, text, as_json)


def _number_of(unit: str) -> object:
    help = f"Plan this many {unit}: how much each can cost, what it will show, and its command."
    return typer.Option(f"--{unit}", metavar="N", parser=whole_number, help=help, rich_help_panel="Privacy")


@ledger.command()
@takes(
    "epsilon", "delta", "max_nonzero", "max_items_per_user", "top", "public_items", "mechanism", of=PLAN,
)  # fmt: skip
def plan(
    file: File,
    dataset: Dataset,
    *,
    weeks: Annotated[int | None, _number_of("weeks")] = None,
    days: Annotated[int | None, _number_of("days")] = None,
    months: Annotated[int | None, _number_of("months")] = None,
    quarters: Annotated[int | None, _number_of("quarters")] = None,
    releases: Annotated[int | None, _number_of("releases")] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Check whether a release would fit the remaining budget, or plan a series of releases. Books nothing.

    With --epsilon and --delta: whether the release fits, and how often. With --weeks, --days, --months, --quarters
    or --releases: the largest budget for each of so many equal releases. Plans as `dphist release` would, with
    these limits or in rounds. Exit code 3 if it does not fit.

    \b
    Examples:
      dphist ledger plan budget.ledger --dataset searches --weeks 52
      dphist ledger plan budget.ledger --dataset searches --epsilon 1 --delta 1e-7
      dphist ledger plan budget.ledger --dataset searches --epsilon 1 \\
        --delta 1e-7 --max-items-per-user 20
    """
    numbers = {"weeks": weeks, "days": days, "months": months, "quarters": quarters, "releases": releases}
    given: dict[str, Any] = {unit: number for unit, number in numbers.items() if number is not None}
    flags = [f"<--{name}>" for name in (*(n for n in ("epsilon", "delta") if n in options), *given)]
    if flags not in (["<--epsilon>", "<--delta>"], *([f"<--{unit}>"] for unit in numbers)):
        raise InvalidParameter(
            "give <--epsilon> and <--delta> of a release, or one of <--weeks>, <--days>, <--months>, <--quarters> "
            "and <--releases>" + (f", not {join_words(flags)}" if flags else "")
        )
    account = dphist.ledger.Ledger.open(file).account(dataset)
    if given:
        planned = dphist.plan_series(file, dataset, **given, **options)
        rows = planned.rows()
        width = max(len(label) for label, _ in rows)
        lines = [fill(text, f"{label:<{width}}  ") for label, text in rows]
        text = "\n".join([*lines, "", "The command of each release, with your own input and columns:", ""])
        with closed_pipe_ignored():
            show({**_facts(account), **planned.to_dict()}, f"{text}\n{planned.command}\n", as_json)
        return
    from dphist.releasing.fitting import fit_of

    fit = fit_of(account, **options)
    fits = "It fits" if fit.fits else "It does not fit"
    first = f" It would be the first release, which fixes the accounting: {fit.fixes}." if fit.fixes else ""
    text = fill(f"{fits}. Remaining budget of the dataset {account.name!r}: {fit.remaining}.{first}") + "\n"
    with closed_pipe_ignored():
        show({**_facts(account), **fit.to_dict()}, text, as_json)
    if not fit.fits:
        raise typer.Exit(3)


def _facts(account: Account) -> JsonObject:
    total = {"epsilon": account.total.epsilon, "delta": account.total.delta, "accounting": account.accounting}
    left = account.left(account.composer)
    return {"dataset": account.name, **total, **left, "bookings": len(account.bookings)}


def _ledger_facts(accounts: Accounts, file: str, chosen: Sequence[Account], *, certificates: bool) -> JsonObject:
    def entry(booking: Booking) -> JsonObject:
        facts = {
            **booking.receipt(), "created": booking.created, "epsilon": booking.spend.epsilon,
            "delta": booking.spend.delta, "state": booking.state, "written": booking.written,
            **({} if booking.id is None else {"id": booking.id}),
        }  # fmt: skip
        return {**facts, "certificate": booking.spend.document} if certificates else facts

    return {
        "file": file,
        "ledger": accounts.id,
        "head": {"entry": accounts.chain.number, "hash": accounts.chain.hash},
        "datasets": [
            {**_facts(account), "bookings": [entry(booking) for booking in account.bookings]} for account in chosen
        ],
    }


def _show_accounts(accounts: Accounts, file: str, chosen: Sequence[Account], known: Checkpoint | None) -> None:
    write_out(f"Ledger {accounts.id} in {file}\n")
    write_out(f"Head: entry {accounts.chain.number}, {accounts.chain.hash}\n")
    if known is not None:
        write_out(f"Checkpoint: entry {known.entry} of {known.created} is in it\n")
    write_out("\n")
    rows = []
    for account in chosen:
        total = (repr(account.total.epsilon), repr(account.total.delta))
        remaining = str(account.remaining())
        rows.append((account.name, *total, account.accounting, str(len(account.bookings)), remaining))
    print_table(("dataset", "total epsilon", "total delta", "accounting", "bookings", "remaining"), rows, left=6)
    bookings = [booking for account in chosen for booking in account.bookings]
    if bookings:
        write_out("\n")
        ids = ("id",) if any(booking.id for booking in bookings) else ()
        head = ("entry", "dataset", "booked", "epsilon", "delta", *ids, "release", "where")
        cells = [
            (
                str(booking.number), booking.dataset, booking.created, repr(booking.spend.epsilon),
                repr(booking.spend.delta), *((booking.id or "",) if ids else ()), booking.state,
                "" if booking.written is None else booking.written["address"],
            )
            for booking in bookings
        ]  # fmt: skip
        print_table(head, cells, left=len(head))
