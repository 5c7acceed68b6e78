"""`dphist ledger`: the total budget of a dataset, and how much of it is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dphist.cli.base import (
    PLAN,
    AsJson,
    closed_pipe_ignored,
    group,
    print_json,
    print_table,
    show,
    takes,
    write_out,
)
from dphist.display import fill
from dphist.errors import InvalidParameter

if TYPE_CHECKING:
    from dphist.ledger import Checkpoint, Spend
    from dphist.ledger.accounts import Account, Booking, Composer
    from dphist.ledger.store import Accounts
    from dphist.planning.auto_cap import ChoicePlan
    from dphist.privacy.types import Plan


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
    Literal["auto", "zcdp", "pld", "sum"],
    typer.Option(
        "--accounting",
        help="How releases add up. zcdp: tightly, however they are chosen. sum: epsilons and deltas are added. "
        "auto: the first release decides, before its noise is drawn: the one of the two by which more releases "
        "like it fit. pld: a little tighter than zcdp, but only if all releases are fixed before the first result "
        "is seen.",
    ),
]


@ledger.command()
@takes("epsilon", "delta", required=("epsilon", "delta"))
def init(
    file: File, dataset: Dataset, *, accounting: Accounting = "auto", as_json: AsJson = False, **budget: float
) -> None:
    """Give a dataset its total budget, in a new or an existing ledger.

    The total holds for all releases of the dataset together and cannot be changed. Only its owner can read the
    file.

    \b
    Examples:
      dphist ledger init budget.ledger --dataset searches --epsilon 3 --delta 1e-6
      dphist ledger init budget.ledger --dataset orders --epsilon 1 \\
        --delta 1e-6 --accounting sum
    """
    from dphist.ledger import Ledger

    made = Ledger.init(file, dataset, accounting=accounting, **budget).account(dataset)
    total = f"epsilon {made.total.epsilon!r} and delta {made.total.delta!r}"
    text = f"The dataset {made.name!r} has {total} in the ledger {file}.\n{fill(_what_it_buys(made))}\n"
    with closed_pipe_ignored():
        show({"ledger": file, **_facts(made)}, text, as_json)


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
    """Show what was booked and what remains; the whole ledger is checked.

    A booking counts in full, whether or not its release is known to have been written. With --dataset, --json also
    prints the certificates.

    \b
    Examples:
      dphist ledger show budget.ledger
      dphist ledger show budget.ledger --dataset searches --json
      dphist ledger show budget.ledger --checkpoint november.json \\
        --public-key release.key.pub
      dphist ledger show budget.ledger --expect \\
        5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9
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
            _show_accounts(accounts, file, chosen, known)


@ledger.command("checkpoint")
def make_checkpoint(
    file: File,
    sign: Annotated[str, typer.Option(metavar="KEY", help="The private key; see dphist keygen.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="A new file.")],
    as_json: AsJson = False,
) -> None:
    """Sign the state of the ledger: its id, its number of entries, the hash of the last one, and the date.

    Keep the checkpoint where those who can write the ledger cannot. `dphist ledger show` compares the ledger with
    it later, and refuses one that was rolled back, rewritten or replaced.

    \b
    Examples:
      dphist ledger checkpoint budget.ledger --sign release.key \\
        -o november.json
      dphist ledger show budget.ledger --checkpoint november.json \\
        --public-key release.key.pub
    """
    from dphist.ledger import Ledger

    made = Ledger.open(file).checkpoint()
    signed_by = made.write(output, sign=sign)
    text = f"Checkpoint {output}: entry {made.entry} of the ledger {made.ledger}\nSigned by {signed_by}\n"
    with closed_pipe_ignored():
        show({"output": output, **asdict(made), "signed_by": signed_by}, text, as_json)


@ledger.command()
@takes(
    "epsilon", "delta", "max_nonzero", "max_items_per_user", "top", "public_items", "mechanism", of=PLAN,
    required=("epsilon", "delta"),
)  # fmt: skip
def plan(
    file: File,
    dataset: Dataset,
    *,
    epsilon: float,
    delta: float,
    mechanism: str = "best",
    as_json: AsJson = False,
    **contract: int,
) -> None:
    """Show whether a release would fit the remaining budget, and how many of them. Nothing is booked.

    The release is planned, as `dphist release` would do it: with these limits, or with an automatic limit on the
    items of each user. Exit code 3 if it does not fit.

    \b
    Examples:
      dphist ledger plan budget.ledger --dataset searches --epsilon 1 --delta 1e-7
      dphist ledger plan budget.ledger --dataset searches --epsilon 1 \\
        --delta 1e-7 --max-items-per-user 20
    """
    from dphist.ledger import Ledger
    from dphist.releasing.spending import price_of, spend_of

    account = Ledger.open(file).account(dataset)
    spend, composer = price_of(_plan_for(epsilon, delta, mechanism, contract), account)

    def spend_at(other: float, by: Composer) -> Spend:
        return spend_of(_plan_for(other, delta, mechanism, contract), by.accounting)

    left = account.remaining(composer, spend, spend_at=spend_at)
    facts = {
        **_facts(account), "fits": left.more > 0, "more": left.more,
        "delta_with_it": account.delta_with([spend], composer), "largest_epsilon": left.largest_epsilon,
    }  # fmt: skip
    fits = "It fits" if left.more else "It does not fit"
    decides = f" It would be the first release, which fixes the accounting: {composer.accounting}."
    start = "" if account.accounting == composer.accounting else decides
    text = fill(f"{fits}. Remaining budget of the dataset {account.name!r}: {left}.{start}") + "\n"
    with closed_pipe_ignored():
        show(facts, text, as_json)
    if not left.more:
        raise typer.Exit(3)


def _composer(account: Account) -> Composer:
    from dphist.ledger.accounts import composer_for

    # Before anything is booked both ways say the same: nothing is spent.
    return composer_for(
        "sum" if account.accounting == "auto" else account.accounting, account.total, account.share
    )


def _plan_for(epsilon: float, delta: float, mechanism: str, contract: dict[str, Any]) -> Plan | ChoicePlan:
    """The plan of a release; without a contract that of an automatic limit."""
    from dphist.planning.planner import plan as make_plan
    from dphist.privacy.types import Budget
    from dphist.releasing.document import choice_for

    if not contract:
        return choice_for(Budget(epsilon, delta), mechanism=mechanism)
    return make_plan(epsilon=epsilon, delta=delta, mechanism=mechanism, **contract)


def _what_it_buys(account: Account) -> str:
    """What a new total is enough for: one release, or one every week of a year."""
    from dphist.releasing.spending import WEEKS, weekly_budget

    total = account.total
    each = None if account.accounting == "pld" else weekly_budget(account)
    one = f"one release with epsilon {total.epsilon:g} and delta {total.delta:g}"
    weekly = (
        f"about {WEEKS} weekly releases with epsilon {each.epsilon:g} and delta {each.delta:g} each (with a "
        "limit on the items of each user, such as --max-items-per-user 20)"
        if each is not None
        else ""
    )
    if account.accounting == "zcdp":
        return f"That is enough for {weekly}." if weekly else ""
    return f"That is enough for {one}" + (f", or for {weekly}." if weekly else ".")


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
        remaining = account.remaining_in_words(_composer(account))
        total = (repr(account.total.epsilon), repr(account.total.delta))
        rows.append((account.name, *total, account.accounting, str(len(account.bookings)), remaining))
    print_table(("dataset", "total epsilon", "total delta", "accounting", "bookings", "remaining"), rows, left=6)
    bookings = [booking for account in chosen for booking in account.bookings]
    if bookings:
        write_out("\n")
        # Without ids there is no column for them.
        ids = ("id",) if any(booking.id for booking in bookings) else ()
        head = ("entry", "dataset", "booked", "epsilon", "delta", *ids, "release", "where")
        cells = [
            (
                str(one.number), one.dataset, one.created, repr(one.spend.epsilon), repr(one.spend.delta),
                *((one.id or "",) if ids else ()), one.state, str((one.written or {}).get("address", "")),
            )
            for one in bookings
        ]  # fmt: skip
        print_table(head, cells, left=len(head))
