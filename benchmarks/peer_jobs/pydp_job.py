"""Users per item with PyDP, the Python wheel of Google's C++ library: its noise and threshold for unknown keys.

Arguments: input, output, cap, epsilon, delta. The library sees one count at a time, so polars removes duplicates,
chooses each user's items and counts. The strategy divides delta between noise and threshold.
"""

# mypy: ignore-errors
# The library is not installed where types are checked.

import sys

import polars as pl
from pydp.algorithms.partition_selection import create_partition_strategy

source, output, cap, epsilon, delta = sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:])
chosen = pl.col("item").unique().shuffle().head(cap)
events = pl.scan_parquet(source).group_by("user").agg(chosen).explode("item")
counts = events.group_by("item").len().collect()
strategy = create_partition_strategy("gaussian", epsilon, delta, cap)
noisy = map(strategy.noised_value_if_should_keep, counts["len"])
rows = [(item, count) for item, count in zip(counts["item"], noisy, strict=True) if count is not None]
pl.DataFrame(rows, schema={"item": counts["item"].dtype, "count": pl.Float64}, orient="row").write_parquet(output)
