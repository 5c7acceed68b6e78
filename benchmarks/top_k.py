"""The K most common items: dphist and published algorithms, at the same epsilon and delta.

Run `python benchmarks/top_k.py [--data DIR] [--budget 1 1e-6] [--runs 9] [--json FILE]`.

`--data` is a folder of Parquet files with the columns user and item; the common job of benchmarks/peers.py is
always measured. A user may have any number of items: each user moves each count by at most 1.

- recall: the share of the true top K that is released; an item as common as the K-th counts as right;
- captured: the users of the released items, divided by those of the true top K;
- distance: sum |count - truth| / sum truth over the true top K, where items that are not released count as 0.

Every algorithm has the whole budget. "with counts" spends half of it on choosing and half on Gaussian noise for
the counts of the chosen items, as one would use an algorithm that publishes keys only. The other algorithms are
implemented from their papers, in floating point. No release made here is safe to publish:

- Peeling: the exponential mechanism K times, as one draw of Gumbel noise (Durfee and Rogers 2019). Each step costs
  rate^2/8 in zCDP (Cesar and Rogers 2021), with the tight conversion to (epsilon, delta) of Canonne, Kamath and
  Steinke. It needs a public list of all items; keys only.
- Limited domain: Durfee and Rogers 2019, "Practical Differentially Private Top-k Selection with Pay-what-you-get
  Composition", for unrestricted sensitivity: peeling among the k_bar largest counts, until a noisy threshold of
  h_(k_bar+1) + 1 + ln(k_bar/delta)/rate comes first. Half of delta is for the threshold. Nothing has to be public;
  keys only. k_bar is the best of K, 4 K, 16 K and a million, chosen in hindsight, which is impossible in practice.
- Joint: Gillenwater, Joseph, Munoz Medina and Ribero 2022, "A Joint Exponential Mechanism For Differentially
  Private Top-k": sequences s with probability in proportion to exp(-epsilon/2 max_i(c_i - c_(s_i))). Pure
  differential privacy. It needs a public list of all items; keys only.

The public list that Peeling, Joint and `--items` get is that of all items in the data, which favours them.

dphist's rows are `dphist.release` itself (rounds and `--items`), and `release_histogram` on the true counts, whose
noise is that of `--top`. More than a third of all items are no longer "the most common": such K are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))

from rivals import Floats, Ints, Pairs, common_pairs, dphist_release, gaussian_mu, largest_rho, read_pairs

import dphist
from dphist import release_histogram

SIZES: Final = (10, 30, 100, 300, 1_000, 3_000, 10_000)
BUDGETS: Final = ((1.0, 1e-6), (0.35, 1e-5))
# Data with more pairs have a third of the runs of rounds.
LARGE: Final = 1_000_000
# What an algorithm needs, and the sort of its guarantee.
NEEDS: Final = {
    "dphist --top": "nothing public; (epsilon, delta); counts and order",
    "dphist --top, the paper's offset": "nothing public; (epsilon, delta); counts and order",
    "dphist --top 3K, K largest": "nothing public; (epsilon, delta); counts and order",
    "dphist rounds, K largest": "nothing public; (epsilon, delta); counts; at most 256 items of a user",
    "Limited domain": "nothing public; (epsilon, delta); keys and order",
    "Limited domain, with counts": "nothing public; (epsilon, delta); counts",
    "dphist --items, K largest": "a public list of items; (epsilon, delta); counts; at most 256 items of a user",
    "Joint, known items": "a public list of items; pure epsilon; keys and order",
    "Joint, known items, with counts": "a public list of items; (epsilon, delta) for the counts",
    "Peeling, known items": "a public list of items; (epsilon, delta); keys and order",
    "Peeling, known items, with counts": "a public list of items; (epsilon, delta); counts",
}


@dataclass(frozen=True)
class Budget:
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Released:
    """Places of released items among the counts in falling order, and their counts if they are published."""

    places: Ints
    counts: Floats | None = None


@dataclass(frozen=True)
class Score:
    recall: float
    captured: float
    distance: float | None


def score(released: Released, truth: Ints, k: int) -> Score:
    """`truth` holds the counts of all items in falling order."""
    top = float(truth[:k].sum())
    own = truth[released.places]
    distance = None
    if released.counts is not None:
        estimate = np.zeros(truth.size)
        estimate[released.places] = released.counts
        distance = float(np.abs(estimate[:k] - truth[:k]).sum()) / top
    return Score(min(int(np.count_nonzero(own >= truth[k - 1])), k) / k, float(own.sum()) / top, distance)


# Peeling and limited domain


def peeling_rate(k: int, budget: Budget, *, share: float = 1.0) -> float:
    """The rate of k exponential mechanisms with monotone scores for a share of rho: k rate^2/8 = share rho.

    For few of them the sum of pure costs is lower: k rate = epsilon, for the whole budget only.
    """
    rate = math.sqrt(8 * share * largest_rho(budget.epsilon, budget.delta) / k)
    return max(rate, budget.epsilon / k) if share == 1.0 else rate


def peel(truth: Ints, k: int, rate: float, generator: np.random.Generator) -> Ints:
    noisy = truth + generator.gumbel(0.0, 1 / rate, truth.size)
    best = np.argpartition(-noisy, k - 1)[:k] if k < truth.size else np.arange(truth.size)
    return best[np.argsort(-noisy[best])]


def limited_threshold(truth: Ints, k_bar: int, rate: float, delta: float) -> float:
    following = float(truth[k_bar]) if k_bar < truth.size else 0.0
    return following + 1 + math.log(k_bar / delta) / rate


def limited_domain(
    truth: Ints, k: int, k_bar: int, rate: float, delta: float, generator: np.random.Generator
) -> Ints:
    """At most k of the k_bar most common items: those that come before the threshold, all with Gumbel noise."""
    threshold = limited_threshold(truth, k_bar, rate, delta) + generator.gumbel(0.0, 1 / rate)
    candidates = truth[:k_bar]
    noisy = candidates + generator.gumbel(0.0, 1 / rate, candidates.size)
    order = np.argsort(-noisy)[:k]
    return order[noisy[order] > threshold]


def measured(places: Ints, truth: Ints, k: int, sigma: float, generator: np.random.Generator) -> Released:
    """Gaussian noise for k counts, all of which one user may change."""
    return Released(places, truth[places] + generator.normal(0.0, sigma * math.sqrt(k), places.size))


# The joint exponential mechanism


def log_sequences(truth: Ints, k: int, losses: Ints) -> Floats:
    """For each loss t: ln of the number of sequences of k items with all c_i - c_(s_i) at most t.

    The i-th item has to be one of the n_i(t) with a count of at least c_i - t. These sets are nested, so the
    number is the product of n_i(t) - (i - 1).
    """
    largest = int(truth[0])
    # The number of items with at least v users, for v = 0 ... largest.
    at_least = np.cumsum(np.bincount(truth, minlength=largest + 1)[::-1])[::-1]
    tops, index = truth[:k, None], np.arange(k)[:, None]
    parts = np.array_split(losses, math.ceil(losses.size * k / 4_000_000))
    return np.concatenate([np.log(at_least[np.maximum(tops - part, 0)] - index).sum(axis=0) for part in parts])


def loss_law(truth: Ints, k: int, epsilon: float, *, block: int = 64, least: float = -50.0) -> tuple[Ints, Floats]:
    """Losses t and the probabilities to draw among all sequences of loss at most t.

    exp(-epsilon t/2) is the sum of exp(-epsilon u/2) (1 - exp(-epsilon/2)) over u >= t: drawing u with this weight
    times the number of sequences of loss at most u, and then one of these, draws each with its own weight. All
    sequences have a loss of at most c_1, so that larger u count for u = c_1. Blocks of losses whose weights are
    all below exp(least) of the largest are left out.
    """
    last = int(truth[0])
    starts = np.append(np.arange(0, last, block), last)
    rough = log_sequences(truth, k, starts)
    # The weight of a loss is at most that of its block's first loss, with the number of the next block's first.
    most = np.append(rough[1:], rough[-1]) - epsilon * starts / 2
    best = float((rough[:-1] - epsilon * starts[:-1] / 2).max(initial=-math.inf))
    kept = [np.arange(start, min(start + block, last)) for start in starts[:-1][most[:-1] > best + least]]
    losses = np.append(np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64), last)
    logs = log_sequences(truth, k, losses) - epsilon * losses / 2
    logs[:-1] += math.log(-math.expm1(-epsilon / 2))
    weights = np.exp(logs - logs.max())
    return losses, weights / weights.sum()


def joint(truth: Ints, k: int, law: tuple[Ints, Floats], generator: np.random.Generator) -> Ints:
    loss = int(generator.choice(law[0], p=law[1]))
    allowed = np.searchsorted(-truth, -(truth[:k] - loss), side="right")
    places = np.arange(truth.size)
    for i, number in enumerate(allowed.tolist()):
        other = int(generator.integers(i, number))
        places[i], places[other] = places[other], places[i]
    return places[:k]


# dphist


def dphist_top(truth: Ints, k: int, budget: Budget, offset: Any = "opposite") -> Released:
    """Counts up to the (k+1)-th largest, which is subtracted from all: smaller ones change nothing."""
    table = release_histogram(np.arange(k + 1), truth[: k + 1], top_plan(k, budget, offset)).to_arrow()
    return Released(table.column("item").to_numpy(), table.column("count").to_numpy())


@cache
def top_plan(k: int, budget: Budget, offset: Any) -> dphist.Plan:
    return dphist.plan(epsilon=budget.epsilon, delta=budget.delta, top=k, offset=offset)


def largest_of(released: Released, k: int) -> Released:
    assert released.counts is not None
    order = np.argsort(-released.counts)[:k]
    return Released(released.places[order], released.counts[order])


# The table


@dataclass(frozen=True)
class Row:
    """Means over the runs for one algorithm."""

    data: str
    epsilon: float
    delta: float
    k: int
    algorithm: str
    recall: float
    captured: float
    distance: float | None


def rivals_of(truth: Ints, k: int, budget: Budget) -> dict[str, list[Callable[[int], Released]]]:
    """Each algorithm as functions of the run; the best of several is chosen in hindsight."""
    half = Budget(budget.epsilon, budget.delta / 2)
    rho = largest_rho(half.epsilon, half.delta)
    laws = {
        counted: loss_law(truth, k, budget.epsilon / 2 if counted else budget.epsilon) for counted in (False, True)
    }

    def limited(k_bar: int, counted: bool) -> Callable[[int], Released]:
        rate = peeling_rate(k, half, share=0.5 if counted else 1.0)

        def run(seed: int) -> Released:
            generator = np.random.default_rng([seed, k_bar])
            places = limited_domain(truth, k, k_bar, rate, budget.delta / 2, generator)
            return measured(places, truth, k, math.sqrt(1 / rho), generator) if counted else Released(places)

        return run

    def peeled(seed: int, counted: bool) -> Released:
        generator = np.random.default_rng([seed, 1])
        places = peel(truth, k, peeling_rate(k, budget, share=0.5 if counted else 1.0), generator)
        sigma = math.sqrt(1 / largest_rho(budget.epsilon, budget.delta))
        return measured(places, truth, k, sigma, generator) if counted else Released(places)

    def jointly(seed: int, counted: bool) -> Released:
        generator = np.random.default_rng([seed, 2])
        places = joint(truth, k, laws[counted], generator)
        sigma = 1 / gaussian_mu(budget.epsilon / 2, budget.delta)
        return measured(places, truth, k, sigma, generator) if counted else Released(places)

    bars = sorted({k, 4 * k, 16 * k, 1_000_000})
    return {
        "dphist --top": [lambda _: dphist_top(truth, k, budget)],
        "dphist --top, the paper's offset": [lambda _: dphist_top(truth, k, budget, "independent")],
        "dphist --top 3K, K largest": [lambda _: largest_of(dphist_top(truth, 3 * k, budget), k)],
        "Limited domain": [limited(bar, counted=False) for bar in bars],
        "Limited domain, with counts": [limited(bar, counted=True) for bar in bars],
        "Joint, known items": [lambda seed: jointly(seed, counted=False)],
        "Joint, known items, with counts": [lambda seed: jointly(seed, counted=True)],
        "Peeling, known items": [lambda seed: peeled(seed, counted=False)],
        "Peeling, known items, with counts": [lambda seed: peeled(seed, counted=True)],
    }


def mean_score(scores: list[Score]) -> Score:
    distances = [one.distance for one in scores if one.distance is not None]
    recall, captured = (float(np.mean([getattr(one, name) for one in scores])) for name in ("recall", "captured"))
    return Score(recall, captured, float(np.mean(distances)) if distances else None)


def released(
    path: Path, pairs: Pairs, places: Ints, budget: Budget, options: dict[str, Any], runs: int
) -> list[Released]:
    """Releases by dphist; `places` is the place of each item among the counts in falling order."""
    found = []
    for _ in range(runs):
        release = dphist_release(path, pairs, budget.epsilon, options, budget.delta)
        assert release.estimate is not None
        found.append(Released(places[release.found], release.estimate[release.found]))
    return found


def write_items(path: Path, output: Path) -> None:
    """All items of the data, as if they were public."""
    items = pq.read_table(path, columns=["item"]).group_by("item").aggregate([])
    pq.write_table(items, output)


def measure(path: Path, budgets: list[Budget], runs: int, items: Path) -> list[Row]:
    """Print the table of one dataset and return its rows; `items` is the file for its list of items."""
    write_items(path, items)
    pairs = read_pairs(path)
    counts = pairs.sum_by_item().astype(np.int64)
    order = np.argsort(-counts, kind="stable")
    truth, places = counts[order], np.empty_like(order)
    places[order] = np.arange(order.size)
    sizes = [k for k in SIZES if 3 * k < truth.size]
    rows: list[Row] = []
    print(f"\n{path.stem}: {pairs.items:,} items\n\n| budget | K | algorithm | recall | captured | distance |")
    print("|---|---|---|---|---|---|")
    for budget in budgets:
        few = runs if pairs.user.size < LARGE else max(1, runs // 3)
        releases = {
            name: released(path, pairs, places, budget, options, few)
            for name, options in (
                ("dphist rounds, K largest", {}),
                ("dphist --items, K largest", {"items": str(items)}),
            )
        }
        for k in sizes:
            found = {
                name: max(
                    (mean_score([score(run(seed), truth, k) for seed in range(runs)]) for run in choices),
                    key=lambda one: one.recall,
                )
                for name, choices in rivals_of(truth, k, budget).items()
            }
            for name, ones in releases.items():
                found[name] = mean_score([score(largest_of(one, k), truth, k) for one in ones])
            for name in NEEDS:
                one = found[name]
                rows.append(Row(path.stem, budget.epsilon, budget.delta, k, name, **asdict(one)))
                distance = "keys only" if one.distance is None else f"{one.distance:.3f}"
                print(
                    f"| {budget.epsilon:g}, {budget.delta:g} | {k:,} | {name} | {one.recall:.1%} | "
                    f"{one.captured:.1%} | {distance} |",
                    flush=True,
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="The K most common items: dphist and published algorithms.")
    parser.add_argument("--data", type=Path, help="a folder of Parquet files with the columns user and item")
    parser.add_argument("--budget", type=float, nargs=2, action="append", metavar=("EPSILON", "DELTA"))
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dphist_benchmark")
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    given = parser.parse_args()
    common = common_pairs(given.folder)
    budgets = [Budget(*one) for one in given.budget or BUDGETS]
    rows: list[Row] = []
    for path in [*(sorted(given.data.glob("*.parquet")) if given.data else []), common]:
        rows += measure(path, budgets, given.runs, given.folder / "items.parquet")
        if given.json:
            found = {"runs": given.runs, "needs": NEEDS, "rows": [asdict(row) for row in rows]}
            given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
