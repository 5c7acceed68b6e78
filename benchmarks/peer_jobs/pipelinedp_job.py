"""Users per item with PipelineDP on its local backend: Gaussian noise, thresholded after aggregation.

Arguments: input, output, cap, epsilon, delta.
"""

# mypy: ignore-errors
# The library is not installed where types are checked.

import sys

import pandas as pd
import pipeline_dp

source, output, cap, epsilon, delta = sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:])
events = pd.read_parquet(source, columns=["user", "item"])
rows = list(zip(events["user"].tolist(), events["item"].tolist(), strict=True))
accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=epsilon, total_delta=delta)
engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
wanted = pipeline_dp.AggregateParams(
    metrics=[pipeline_dp.Metrics.PRIVACY_ID_COUNT],
    noise_kind=pipeline_dp.NoiseKind.GAUSSIAN,
    max_partitions_contributed=cap,
    max_contributions_per_partition=1,
    partition_selection_strategy=pipeline_dp.PartitionSelectionStrategy.GAUSSIAN_THRESHOLDING,
    post_aggregation_thresholding=True,
)
columns = pipeline_dp.DataExtractors(
    privacy_id_extractor=lambda row: row[0],
    partition_extractor=lambda row: row[1],
    value_extractor=lambda _: 1,
)
result = engine.aggregate(rows, wanted, columns)
accountant.compute_budgets()
found = [(item, metrics.privacy_id_count) for item, metrics in result]
pd.DataFrame(found, columns=["item", "count"]).to_parquet(output)
