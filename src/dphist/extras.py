"""Packages that only some inputs and outputs need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dphist.errors import MissingExtra


def postgres_driver() -> Any:
    """The driver of PostgreSQL, for reading and for writing."""
    try:
        return import_module("adbc_driver_postgresql.dbapi")
    except ImportError:
        raise MissingExtra("PostgreSQL needs a driver: pip install 'dphist[postgres]'") from None


def package(name: str) -> Any:
    """A package that only some inputs need, loaded when one of them comes."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(f"this needs the package {name}: pip install {name}") from None
