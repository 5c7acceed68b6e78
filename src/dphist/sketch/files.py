"""Sketches from file to file: build, merge and release them, without writing over what is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dphist.errors import InvalidParameter
from dphist.model import Plan
from dphist.outputs.target import Target, target_of
from dphist.outputs.write import have_common_source, refuse_own_input, same_file
from dphist.planning.planner import plan
from dphist.signatures import Signer
from dphist.sketch.build import build
from dphist.sketch.counters import check_place, write_secret
from dphist.sketch.misra_gries import MisraGries

Placed = Callable[[Path], None]


def build_file(
    inputs: Sequence[str],
    size: int,
    output: str,
    *,
    force: bool = False,
    placed: Placed | None = None,
    **options: Any,
) -> MisraGries:
    """Write the sketch of these inputs, with the options of `build`."""
    check_place(output, force=force)
    if have_common_source(output, inputs):
        raise InvalidParameter(f"cannot write the sketch to {output}: it is the input; choose another output")
    built = build(inputs[0] if len(inputs) == 1 else inputs, size, **options)
    write_secret(output, built.to_bytes(), force=force, placed=placed)
    return built


def merge_files(
    sketches: Sequence[str], output: str, *, force: bool = False, placed: Placed | None = None
) -> MisraGries:
    """Write the sketch that these sketches of different users make together."""
    check_place(output, force=force)
    for number, name in enumerate(sketches):
        if any(same_file(name, other) for other in sketches[:number]):
            raise InvalidParameter(f"the sketch {name} is given twice: its users would count twice")
    first, *others = [MisraGries.load(name) for name in sketches]
    merged = first.merge(*others)
    write_secret(output, merged.to_bytes(), force=force, placed=placed)
    return merged


def plan_of_sketch(sketch: MisraGries, offset: str, **budget: Any) -> Plan:
    """The plan of a release, with the options of `dphist.plan`; `offset` may be none."""
    if offset == "none":
        return plan(max_nonzero=sketch.k, **budget)
    return plan(top=sketch.k, offset=offset, **budget)


def target_of_release(
    sketch: str,
    output: str,
    *,
    table: str | None = None,
    file_format: str | None = None,
    certificate: str | None = None,
    signer: Signer | None = None,
    key: str | None = None,
) -> Target:
    """Where to release a sketch. Raises if it would be the sketch itself, or the `key` of the signer."""
    target = target_of(output, table, file_format, None if output == "-" else certificate)
    target = replace(target, sign=signer)
    refuse_own_input(target, sketch, key=key)
    return target
