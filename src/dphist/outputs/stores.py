"""A release as a table of a database, and its certificate as a second one, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, Literal, Protocol

from dphist.errors import DphistError, OutputError, package
from dphist.outputs.cells import as_text, digest_of
from dphist.outputs.seal import facts, sealed
from dphist.outputs.targets import Target

# What a database does for a release, and what it is given: columns that it gives back exactly.

CERTIFICATE_COLUMN: Final = "document"
Trouble = Literal["locked", "foreign", "missing", "absent", "other"]


class StoreError(DphistError):
    """A database says no. The reason is the end of a sentence and has no cell in it."""

    def __init__(self, reason: str, trouble: Trouble = "other") -> None:
        super().__init__(reason)
        self.trouble = trouble


class Store(Protocol):
    """One connection to a database, with a transaction under way. All methods raise `StoreError`."""

    def may_create(self, name: str) -> bool:
        """Whether a table of this name may be made by this user."""

    def find(self, name: str) -> str | None:
        """What stands under this name: a table, a view, or nothing."""

    def drop(self, name: str) -> None:
        """Remove a table."""

    def create(self, name: str, table: Any, check: Callable[[], None]) -> None:
        """Make a table of these columns and rows."""

    def create_certificate(self, name: str, text: str) -> None:
        """Make the table of one row that holds the certificate."""

    def batches(self, name: str) -> Iterator[Any]:
        """The rows of a plain table in batches of Arrow, at least one, in types that the digest understands.

        Raises `StoreError` for a view and whatever else is computed when it is read.
        """

    def read_certificate(self, name: str) -> list[Any]:
        """The first two cells of the column of certificates, of a plain table."""

    def commit(self) -> None:
        """Make it last."""

    def close(self) -> None:
        """Close; what was not committed is gone."""


def read_all(store: Store, name: str) -> Any:
    """A table of a database that is trusted: it is the one that was just written."""
    return package("pyarrow").Table.from_batches(list(store.batches(name)))


def not_a_table(name: str) -> StoreError:
    """What is refused where a release or its certificate is read."""
    return StoreError(
        f"{name} is not a plain table, but a view or something else that is computed when it is read"
    )


def not_a_certificate(name: str) -> StoreError:
    """A table with other columns than that of a certificate has."""
    return StoreError(f"{name} is not a table of a certificate")


def quoted(name: str) -> str:
    """A name as all three databases quote it."""
    return '"' + name.replace('"', '""') + '"'


def storable(table: Any, kind: str) -> Any:
    """The table in types that the database holds exactly; text for the rest."""
    pa = package("pyarrow")
    return pa.table([_column(column, kind) for column in table.columns], names=table.column_names)


def _column(column: Any, kind: str) -> Any:
    pa, types = package("pyarrow"), package("pyarrow").types
    given = column.type
    if types.is_boolean(given):
        return column
    if types.is_string(given) or types.is_large_string(given):
        # PostgreSQL holds no NUL, and to fail because of an item would come after the noise: show its symbol.
        compute = package("pyarrow.compute")
        return compute.replace_substring(column, "\x00", "\u2400") if kind == "postgresql" else column
    if types.is_null(given):
        return column.cast(pa.string())
    if types.is_floating(given):
        # Adding zero makes -0.0 to 0.0, which SQLite does by itself.
        wide = column.cast(pa.float32() if given == pa.float16() else given)
        return package("pyarrow.compute").add(wide, pa.scalar(0.0, wide.type))
    if types.is_integer(given):
        if kind == "duckdb" or given in (pa.int16(), pa.int32(), pa.int64()):
            return column
        return _or_text(column, pa.int64())
    if types.is_decimal(given):
        # SQLite would make floats of decimals.
        if kind == "sqlite" or not _short(given):
            return as_text(column)
        return _or_text(column, pa.decimal128(given.precision, given.scale))
    if types.is_date(given):
        return _or_text(column, pa.date32())
    if types.is_time(given):
        return _or_text(column, pa.time64("us"))
    if types.is_timestamp(given):
        return _or_text(column, pa.timestamp("us", None if given.tz is None else "UTC"))
    if types.is_binary(given) or types.is_large_binary(given) or types.is_fixed_size_binary(given):
        return column.cast(pa.binary())
    return as_text(column)


def _short(decimal: Any) -> bool:
    return bool(decimal.precision <= 38 and 0 <= decimal.scale <= decimal.precision)


def _or_text(column: Any, kind: Any) -> Any:
    """The column in this type if not a digit is lost by it."""
    try:
        return column.cast(kind)
    except (package("pyarrow").ArrowException, ValueError):
        return as_text(column)


def store_of(kind: str, address: str, *, writing: bool) -> Store:
    """A connection to a database of this kind. Without `writing` nothing but base tables is read."""
    module = import_module(f"dphist.outputs.{kind}_store")
    store: Store = module.open_store(address, writing)
    return store


@contextmanager
def _opened(target: Target, address: str, *, writing: bool) -> Iterator[Store]:
    """A store whose refusals are sentences on the target."""
    try:
        store = store_of(target.kind, address, writing=writing)
        try:
            yield store
        finally:
            store.close()
    except StoreError as error:
        raise OutputError(f"{target.title()} cannot be written: {error}") from None


def check_database(target: Target, *, force: bool) -> None:
    """Raise `OutputError` if the database cannot be opened, or has tables of these names."""
    with _opened(target, target.address, writing=False) as store:
        _existing(store, target, force)
        if not store.may_create(target.table_name):
            raise StoreError("it is not permitted to this user")


def _existing(store: Store, target: Target, force: bool) -> list[str]:
    """The tables to be replaced."""
    tables = []
    for name in (target.table_name, target.certificate_table):
        found = store.find(name)
        if found is None:
            continue
        where = f"{name} in {target.public_address()}"
        if found != "table":
            raise OutputError(f"{where} exists already and is a {found}: choose another name")
        if not force:
            raise OutputError(
                f"table {where} exists already: choose another name, or replace it with --force (force=True)"
            )
        tables.append(name)
    return tables


def write_database(
    table: Any, document: dict[str, Any], target: Target, address: str, *, force: bool, check: Callable[[], None]
) -> str:
    """Write both tables and return the digest of the rows, which was computed again from what was stored."""
    held = storable(table, target.kind)
    digest = digest_of(held)
    told = facts(table, target.kind, target.table_name, digest)
    if target.sign is not None and target.kind != "postgresql":
        # All databases may have a table of this name: a signature tells them apart.
        told["database"] = target.path.name.encode("utf-8", "backslashreplace").decode()
    text = sealed(document, told, target.sign)
    check()
    with _opened(target, address, writing=True) as store:
        for name in _existing(store, target, force):
            store.drop(name)
        store.create(target.table_name, held, check)
        if digest_of(read_all(store, target.table_name)) != digest:
            raise OutputError(
                f"{target.title()} cannot be written: the database did not keep the values as they are"
            )
        store.create_certificate(target.certificate_table, text)
        check()
        store.commit()
    return digest
