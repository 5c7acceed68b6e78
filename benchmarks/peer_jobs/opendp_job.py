"""Users per item with OpenDP's polars context: Gaussian noise and a threshold for unknown keys.

Arguments: input, output, cap, epsilon, delta. polars first chooses the random items of each user. For Gaussian
noise OpenDP takes rho and delta, so a search finds the largest rho whose conversion, at half of delta, stays
within epsilon; the other half is for the threshold.
"""

# mypy: ignore-errors
# The library is not installed where types are checked.

import sys

import opendp.prelude as dp
import polars as pl


def largest_rho(epsilon: float, delta: float) -> float:
    """The zCDP loss that OpenDP's own conversion finds within (epsilon, delta)."""
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)

    def within(rho: float) -> bool:
        gaussian = dp.m.make_gaussian(*space, scale=(1 / (2 * rho)) ** 0.5)
        spent = dp.c.make_zCDP_to_approxDP(gaussian).map(1.0).epsilon(delta)
        return bool(spent <= epsilon)

    return float(dp.binary_search(within, bounds=(1e-6, 1.0)))


def main() -> None:
    source, output, cap, epsilon, delta = sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:])
    dp.enable_features("contrib")
    place = pl.int_range(pl.len()).shuffle().over("user")
    events = pl.scan_parquet(source).select("user", "item").filter(place < cap).collect()
    context = dp.Context.compositor(
        data=events.lazy(),
        privacy_unit=dp.unit_of(
            contributions=[
                dp.polars.Bound(by=["item"], per_group=1),
                dp.polars.Bound(by=["item"], num_groups=cap),
            ]
        ),
        privacy_loss=dp.loss_of(rho=largest_rho(epsilon, delta / 2), delta=delta / 2),
        split_evenly_over=1,
    )
    query = context.query().group_by("item").agg(dp.len().alias("count"))
    print(query.summarize())
    query.release().collect().write_parquet(output)


if __name__ == "__main__":
    main()
