"""The options of `dphist.release` by their types, for editors and type checkers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypedDict

from dphist.calibrate.gammas import Gamma


class Options(TypedDict, total=False):
    """The options of `dphist.release`, which are the fields of a request but its input."""

    user: str
    item: str | Sequence[str]
    epsilon: float
    delta: float
    max_items_per_user: int | str | None
    cap_share: float | None
    sum: str | Sequence[str]
    mean: str | Sequence[str]
    weight: float | Sequence[float]
    top: int | None
    max_nonzero: int | None
    items: Any
    offset: str | None
    lower_threshold: int
    mechanism: str
    gamma: Gamma | None
    minimize: str
    table: str | None
    query: str | None
    where: str | None
    input_format: str | None
    types: str | None
    input_name: str | None
    null_items: bool
    count_name: str
    standard_error: bool
    interval: float | None
    round: bool
    output: str | os.PathLike[str] | None
    output_table: str | None
    output_format: str | None
    sign: str | os.PathLike[str] | None
    escape_formulas: bool
    force: bool
    engine: str | None
    master: str | None
    spark_conf: str | Sequence[str]
    memory: str | None
    threads: int | None
    temp_folder: str | os.PathLike[str] | None
    ledger: str | os.PathLike[str] | None
    dataset: str | None
    seed: int | None
