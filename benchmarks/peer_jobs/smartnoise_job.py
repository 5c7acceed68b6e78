"""Users per item with SmartNoise SQL on a pandas frame: Laplace noise, and keys with few users censored.

Arguments: input, output, cap, epsilon, delta.
"""

# mypy: ignore-errors
# The library is not installed where types are checked.

import sys

import pandas as pd
from snsql import Privacy, from_df

source, output, cap, epsilon, delta = sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:])
events = pd.read_parquet(source, columns=["user", "item"])
kind = "int" if events["item"].dtype.kind in "iu" else "string"
table = {
    "row_privacy": False,
    "censor_dims": True,
    "max_ids": cap,
    "sample_max_ids": True,
    "user": {"type": "int", "private_id": True},
    "item": {"type": kind},
}
reader = from_df(events, privacy=Privacy(epsilon=epsilon, delta=delta), metadata={"": {"main": {"events": table}}})
query = "SELECT item, COUNT(DISTINCT user) AS n FROM main.events GROUP BY item"
margin = reader.get_simple_accuracy(query, alpha=0.05)[1]
_, *rows = reader.execute(query)
pd.DataFrame(rows, columns=["item", "count"]).assign(margin=margin).to_parquet(output)
