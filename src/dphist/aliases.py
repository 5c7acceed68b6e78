"""Names for types in annotations: JSON objects, and Arrow's arrays without the parameters of its stubs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

JsonObject: TypeAlias = dict[str, Any]
ArrowArray: TypeAlias = "pa.Array[Any]"
ChunkedArray: TypeAlias = "pa.ChunkedArray[Any]"
ArrowColumn: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
