"""A release as a table of a database, and its certificate as a second one, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from dphist.errors import OutputError
from dphist.outputs.cells import digest_of
from dphist.outputs.seal import facts, sealed
from dphist.outputs.stores import Store, StoreError, read_all, storable
from dphist.outputs.targets import Target


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
