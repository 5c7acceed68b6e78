"""Users per item with diffprivlib, for known items only: a histogram over public bins with Laplace noise.

Arguments: input, output, cap, epsilon, delta. The items are the integers from 0 to 999,999. Each bin has the noise
of one record, so a user with `cap` records gets epsilon / cap for each (group privacy); delta is not used.
"""

# mypy: ignore-errors
# The library is not installed where types are checked.

import sys

import numpy as np
import polars as pl
from diffprivlib.tools import histogram

source, output, cap, epsilon = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
items = 1_000_000
chosen = pl.col("item").unique().shuffle().head(cap)
events = pl.scan_parquet(source).group_by("user").agg(chosen).explode("item").collect()
counts, _ = histogram(events["item"].to_numpy(), epsilon=epsilon / cap, bins=items, range=(-0.5, items - 0.5))
pl.DataFrame({"item": np.arange(items), "count": counts}).write_parquet(output)
