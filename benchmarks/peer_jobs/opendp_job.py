"""Users per item with OpenDP: integer Gaussian noise and a threshold for unknown keys, over polars.

Arguments: input, output, cap, epsilon, delta. polars removes duplicates and chooses each user's items. For
Gaussian noise the context takes rho and delta, so a search finds the largest rho whose conversion, at half of
delta, stays within epsilon; the other half is for the threshold.
"""

# mypy: ignore-errors
# The library is not installed where types are checked.

import sys

import opendp.prelude as dp
import polars as pl
from opendp.accuracy import summarize_polars_measurement

source, output, cap, epsilon, delta = sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:])
dp.enable_features("contrib")


def within_budget(rho):
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    gaussian = dp.m.make_gaussian(*space, scale=(1 / (2 * rho)) ** 0.5)
    return dp.c.make_zCDP_to_approxDP(gaussian).map(1.0).epsilon(delta / 2) <= epsilon


rho = dp.binary_search(within_budget, bounds=(1e-6, 1.0))
chosen = pl.col("item").unique().shuffle().head(cap)
events = pl.scan_parquet(source).group_by("user").agg(chosen).explode("item").collect()
context = dp.Context.compositor(
    data=events.lazy(),
    privacy_unit=dp.unit_of(
        contributions=[dp.polars.Bound(by=["item"], per_group=1), dp.polars.Bound(by=["item"], num_groups=cap)]
    ),
    privacy_loss=dp.loss_of(rho=rho, delta=delta / 2),
    split_evenly_over=1,
)
measurement = context.query().group_by("item").agg(dp.len(signed=True).alias("count")).resolve()
margin = summarize_polars_measurement(measurement, alpha=0.05)["accuracy"][0]
context(measurement).collect().with_columns(margin=pl.lit(margin)).write_parquet(output)
