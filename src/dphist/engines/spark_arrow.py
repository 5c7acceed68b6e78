"""Arrow data in types that Spark has, with no value changed but times finer than a microsecond, which are cut.

Times of a day, durations and decimals of more than 38 digits become text; numbers of 64 bits without a sign become
decimals.
"""

from __future__ import annotations

from typing import Any


def arrow_frame(session: Any, data: Any, names: list[str]) -> Any:
    """A frame of Spark under these names, from a table or a reader."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    table = data if isinstance(data, pa.Table) else pa.Table.from_batches(data, data.schema)
    columns = [_converted(table.column(place)) for place in range(table.num_columns)]
    ready = pa.table(columns, names=names)
    # Else a time without a zone would be one of the session's.
    return session.createDataFrame(ready, from_arrow_schema(ready.schema, prefer_timestamp_ntz=True))


def _converted(column: Any) -> Any:
    import pyarrow as pa

    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        return _converted(column.cast(kind.value_type))
    target = _target(kind)
    if target is None:
        return column
    if types.is_time(kind) or types.is_duration(kind):
        cut = column.cast(pa.time64("us") if types.is_time(kind) else pa.duration("us"), safe=False)
        return pa.chunked_array(
            [pa.array([None if cell is None else str(cell) for cell in cut.to_pylist()], target)]
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
