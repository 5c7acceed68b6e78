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


def is_spark_frame(value: object) -> bool:
    """Whether it is a DataFrame of Spark, in whatever way it talks to its cluster.

    By the names of its classes: whoever has no such frame need not load Spark to learn it.
    """
    names = {(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__}
    return ("pyspark", "DataFrame") in names
