"""`dphist ledger`: the total budget of a dataset, and how much of it is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dphist.cli.base import (
    AsJson,
    Delta,
    Epsilon,
    MaxItems,
    MaxNonzero,
    PublicItems,
    closed_pipe_ignored,
    group,
    option,
    print_json,
    print_table,
    wrap,
    write_out,
)
from dphist.errors import InvalidParameter

if TYPE_CHECKING:
    from dphist.ledger import Account, Accounts, Booking, Checkpoint, Composer, Spend


ledger = group("ledger", "Ledgers: a total budget per dataset; every release is booked before its noise is drawn.")

File = Annotated[str, typer.Argument(metavar="FILE", help="The ledger, a file on a local disk.")]
Dataset = Annotated[str, typer.Option("--dataset", metavar="NAME", help="Name of the dataset.")]
Expect = Annotated[
    str | None,
    typer.Option(
        "--expect", metavar="HASH", help="Fail (exit code 2) unless the ledger has the entry with this hash."
    ),
]
Accounting = Annotated[
    Literal["zcdp", "pld", "sum"],
    typer.Option(
        "--accounting",
        help="How releases add up. zcdp: tightly, however they are chosen. sum: epsilons and deltas are added. "
        "pld: a little tighter than zcdp, but only if all releases are fixed before the first result is seen.",
    ),
]


@ledger.command()
def init(
    file: File,
    dataset: Dataset,
    epsilon: Epsilon,
    delta: Delta,
    accounting: Accounting = "zcdp",
    as_json: AsJson = False,
) -> None:
    """Give a dataset its total budget, in a new or an existing ledger.

    The total holds for all releases of the dataset together and cannot be changed. Only its owner can read the
    file.

    \b
    Examples:
      dphist ledger init budget.ledger --dataset searches --epsilon 3 --delta 1e-6
      dphist ledger init budget.ledger --dataset orders --epsilon 1 --delta 1e-6 --accounting sum
    """
    from dphist.ledger import Ledger

    made = Ledger.init(file, dataset, epsilon=epsilon, delta=delta, accounting=accounting).account(dataset)
    with closed_pipe_ignored():
        if as_json:
            print_json({"ledger": file, **_facts(made)})
        else:
            total = f"epsilon {made.total.epsilon!r} and delta {made.total.delta!r}"
            write_out(f"The dataset {made.name!r} has {total} in the ledger {file}\n")


@ledger.command()
def show(
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
    """Show what was booked and what remains; the whole ledger is checked.

    A booking counts in full, whether or not its release is known to have been written. With --dataset, --json also
    prints the certificates.

    \b
    Examples:
      dphist ledger show budget.ledger
      dphist ledger show budget.ledger --dataset searches --json
      dphist ledger show budget.ledger --checkpoint november.json --public-key release.key.pub
      dphist ledger show budget.ledger --expect 5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9
    """
    from dphist.ledger import Checkpoint, Ledger

    if (checkpoint is None) != (public_key is None):
        raise InvalidParameter(
            "--checkpoint and --public-key go together: a checkpoint is only as good as its signature"
        )
    known = None
    if checkpoint is not None and public_key is not None:
        known = Checkpoint.read(checkpoint, public_key=public_key)
    accounts = Ledger.open(file, expect=expect, checkpoint=known).accounts()
    chosen = [accounts.find(dataset)] if dataset is not None else list(accounts.datasets.values())
    with closed_pipe_ignored():
        if as_json:
            facts = _ledger_facts(accounts, file, chosen, certificates=dataset is not None)
            print_json({**facts, "checkpoint": None if known is None else asdict(known)})
        else:
            _show(accounts, file, chosen, known)


@ledger.command("checkpoint")
def make_checkpoint(
    file: File,
    sign: Annotated[str, typer.Option(metavar="KEY", help="The private key; see dphist keygen.")],
    output: Annotated[str, typer.Option(metavar="FILE", help="A new file.")],
    as_json: AsJson = False,
) -> None:
    """Sign the state of the ledger: its id, its number of entries, the hash of the last one, and the date.

    Keep the checkpoint where those who can write the ledger cannot. `dphist ledger show` compares the ledger with
    it later, and refuses one that was rolled back, rewritten or replaced.

    \b
    Examples:
      dphist ledger checkpoint budget.ledger --sign release.key --output november.json
      dphist ledger show budget.ledger --checkpoint november.json --public-key release.key.pub
    """
    from dphist.ledger import Ledger

    made = Ledger.open(file).checkpoint()
    signed_by = made.write(output, sign=sign)
    with closed_pipe_ignored():
        if as_json:
            print_json({"output": output, **asdict(made), "signed_by": signed_by})
        else:
            write_out(f"Checkpoint {output}: entry {made.entry} of the ledger {made.ledger}\n")
            write_out(f"Signed by {signed_by}\n")


@ledger.command()
def plan(
    file: File,
    dataset: Dataset,
    epsilon: Epsilon,
    delta: Delta,
    max_nonzero: MaxNonzero = None,
    max_items_per_user: MaxItems = None,
    top: Annotated[int | None, option("top")] = None,
    public_items: PublicItems = None,
    as_json: AsJson = False,
) -> None:
    """Show whether a release would fit the remaining budget, and how many of them. Nothing is booked.

    With a limit on items, as in `dphist plan`, the release is planned, and unless the accounting is sum it counts
    by what its own noise spends, so that more of them fit. Exit code 1 if it does not fit.

    \b
    Examples:
      dphist ledger plan budget.ledger --dataset searches --epsilon 1 --delta 1e-7
      dphist ledger plan budget.ledger --dataset searches --epsilon 1 --delta 1e-7 --max-items-per-user 20
    """
    from dphist.ledger import Ledger

    account = Ledger.open(file).account(dataset)
    composer = _composer(account)
    contract = {
        "max_nonzero": max_nonzero, "max_items_per_user": max_items_per_user, "top": top,
        "public_items": public_items,
    }  # fmt: skip
    spend = _spend_of(
        account, epsilon, delta, {key: value for key, value in contract.items() if value is not None}
    )
    more = account.more_that_fit(spend, composer)
    facts = {
        **_facts(account), "fits": more > 0, "more": more, "delta_with_it": account.delta_with([spend], composer),
        "largest_epsilon": None if more else account.largest_epsilon(delta, composer),
    }  # fmt: skip
    with closed_pipe_ignored():
        if as_json:
            print_json(facts)
        else:
            _show_fit(account, facts)
    if not more:
        raise typer.Exit(1)


def _composer(account: Account) -> Composer:
    from dphist.releasing.spending import composer_for

    return composer_for(account.accounting, account.total)


def _spend_of(account: Account, epsilon: float, delta: float, contract: dict[str, Any]) -> Spend:
    """The spend of a release as it would be booked; without a contract, its budget."""
    from dphist.ledger import Spend
    from dphist.planning.planner import plan as make_plan
    from dphist.releasing.spending import spend_of

    if not contract:
        return Spend(epsilon, delta)
    return spend_of(make_plan(epsilon=epsilon, delta=delta, **contract), account.accounting)


def _state(booking: Booking) -> str:
    return "not known to be written" if booking.written is None else "written"


def _facts(account: Account) -> dict[str, Any]:
    """A dataset as data; the same keys in all commands."""
    total = {"epsilon": account.total.epsilon, "delta": account.total.delta, "accounting": account.accounting}
    left = account.left(_composer(account))
    return {"dataset": account.name, **total, **left, "bookings": len(account.bookings)}


def _ledger_facts(
    accounts: Accounts, file: str, chosen: Sequence[Account], *, certificates: bool
) -> dict[str, Any]:
    def entry(booking: Booking) -> dict[str, Any]:
        facts = {
            **booking.receipt(), "created": booking.created, "epsilon": booking.spend.epsilon,
            "delta": booking.spend.delta, "state": _state(booking), "written": booking.written,
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


def _show(accounts: Accounts, file: str, chosen: Sequence[Account], known: Checkpoint | None) -> None:
    write_out(f"Ledger {accounts.id} in {file}\n")
    write_out(f"Head: entry {accounts.chain.number}, {accounts.chain.hash}\n")
    if known is not None:
        write_out(f"Checkpoint: entry {known.entry} of {known.created} is in it\n")
    write_out("\n")
    rows = []
    for account in chosen:
        remaining = account.remaining_in_words(_composer(account))
        total = (repr(account.total.epsilon), repr(account.total.delta))
        rows.append((account.name, *total, account.accounting, str(len(account.bookings)), remaining))
    print_table(("dataset", "total epsilon", "total delta", "accounting", "bookings", "remaining"), rows, left=6)
    bookings = [booking for account in chosen for booking in account.bookings]
    if bookings:
        write_out("\n")
        head = ("entry", "dataset", "booked", "epsilon", "delta", "release", "where")
        print_table(head, [_row(booking) for booking in bookings], left=7)


def _row(booking: Booking) -> tuple[str, ...]:
    spend, where = booking.spend, (booking.written or {}).get("address", "")
    budget = (repr(spend.epsilon), repr(spend.delta))
    return (str(booking.number), booking.dataset, booking.created, *budget, _state(booking), str(where))


def _show_fit(account: Account, facts: dict[str, Any]) -> None:
    from dphist.ledger import MOST_COUNTED

    more, largest = facts["more"], facts["largest_epsilon"]
    remaining = (
        f"the remaining budget of the dataset {account.name!r}: {account.remaining_in_words(_composer(account))}"
    )
    if more:
        number = "One such release fits" if more == 1 else f"{more} such releases fit"
        if more >= MOST_COUNTED:
            number = f"{more} such releases and more fit"
        sentence = f"{number} in {remaining}."
    else:
        hint = f"; with this delta the largest epsilon is {largest!r}" if largest else ""
        sentence = f"It does not fit in {remaining}{hint}."
    write_out(wrap(sentence) + "\n")
