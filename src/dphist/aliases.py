"""Names for types in annotations: JSON objects, columns of numbers, Arrow's arrays without their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

JsonObject: TypeAlias = dict[str, Any]
Numbers: TypeAlias = "NDArray[np.number[Any]]"
ArrowArray: TypeAlias = "pa.Array[Any]"
ChunkedArray: TypeAlias = "pa.ChunkedArray[Any]"
ArrowColumn: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"
