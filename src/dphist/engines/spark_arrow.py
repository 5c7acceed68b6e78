"""Arrow data in types that Spark has, with no value changed but times finer than a microsecond."""

from __future__ import annotations

from typing import Any


def spark_ready(data: Any, names: list[str]) -> Any:
    """A table under the names of its columns, from a table or a reader."""
    import pyarrow as pa

    table = data if isinstance(data, pa.Table) else pa.Table.from_batches(data, data.schema)
    columns = [_converted(table.column(place)) for place in range(table.num_columns)]
    return pa.table(columns, names=names)


def _converted(column: Any) -> Any:
    import pyarrow as pa

    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        return _converted(column.cast(kind.value_type))
    target = _target(kind)
    if target is None:
        return column
    if types.is_time(kind) or types.is_duration(kind):
        return pa.chunked_array(
            [pa.array([str(v) if v is not None else None for v in column.to_pylist()], target)]
        )
    return column.cast(target, safe=not types.is_timestamp(kind))


def _target(kind: Any) -> Any:
    """The type that Spark has in place of this one; None where it has this very one."""
    import pyarrow as pa

    types = pa.types
    plain = {
        pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0), pa.large_string(): pa.string(), pa.string_view(): pa.string(),
        pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(), pa.date64(): pa.date32(),
        pa.float16(): pa.float32(), pa.null(): pa.string(),
    }  # fmt: skip
    if kind in plain:
        return plain[kind]
    if types.is_timestamp(kind):
        return None if kind.unit == "us" else pa.timestamp("us", kind.tz)
    if types.is_time(kind) or types.is_duration(kind) or types.is_decimal256(kind):
        return pa.string()
    return pa.binary() if types.is_fixed_size_binary(kind) else None
