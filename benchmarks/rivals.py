"""Keys and accuracy of dphist and of published algorithms for unknown keys, at the same epsilon and delta.

Run `python benchmarks/rivals.py [--data DIR] [--epsilon 0.2 --epsilon 1] [--quick] [--json FILE]`.

`--data` is a folder of Parquet files with the columns user and item. The common job of benchmarks/peers.py is
always measured; `--quick` runs only a smaller copy of it, once. The output is one Markdown table per dataset: keys
released, and the error sum |estimate - truth| / sum truth over all items, where items that are not released count
as 0. Both are means over the runs. `--json` also writes the numbers to a file, for docs/figures.py.

The other algorithms are implemented from their papers, in floating point. No release made here is safe to publish:

- Weighted Gaussian and Policy Gaussian: Gopi et al. 2020, "Differentially Private Set Union", Theorem 5.1
  (sigma, rho) and the l2 descent. Published: at most 100 items of a user, alpha = 3.
- DP-SIPS: Swanberg, Desfontaines and Haney 2023. Published: 3 rounds, each with 3 times the budget before.
- MAD and MAD2R: Chen, Cohen-Addad, Epasto and Zadimoghaddam 2025, "Scalable Private Partition Selection via
  Adaptive Weighting". Reconstructed from its description, without the authors' pseudocode or code,
  so details may differ: weight above threshold + beta sigma goes back to users of up to `degree` items, at the
  largest discount for which one user still moves the weights by at most 1 (`reroute_share`); in two rounds the
  weights change by a factor of 0.5 to 2. Treat its rows as an estimate of what the algorithm can do.
- Private Count Release: Rogers 2024, arXiv 2403.05073. Reconstructed from its description: items are found by
  their count with Gumbel noise, until a noisy bound for all further items comes first, and then measured with
  Gaussian noise. No limit on the items of a user is needed, as each released item has its part of the budget.
- OpenDP 0.16.0 (make_gaussian_threshold; rho from its conversion at half of delta) and PipelineDP 0.3.1
  (post-aggregation thresholding): noise and threshold as these libraries compute them.

The rows of dphist are those of `dphist.release` itself, with all of its spending.

Rounds are composed as Gaussian mechanisms: the squares of sensitivity/sigma add up. "best" is the best of a small
grid, in parentheses, chosen in hindsight from the true counts and for each column separately, which is impossible
in practice. For the corrected error all estimates are multiplied by F = pairs / weights, computed exactly here; a
release would have to estimate it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri

import dphist
from dphist.paper.bounds import delta_zcdp, largest_sensitivity_per_sigma

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

DELTA = 1e-6
CAPS = (2, 8, 16, 32, 64, 128)


# Data


@dataclass(frozen=True)
class Pairs:
    """Distinct (user, item) pairs, sorted by user, in random order within each user."""

    user: Ints
    item: Ints
    users: int
    items: int

    def limited(self, limit: int) -> Pairs:
        """At most `limit` pairs per user, in their random order."""
        return self.filtered(self.rank() < limit)

    def filtered(self, keep: Bools) -> Pairs:
        return Pairs(self.user[keep], self.item[keep], self.users, self.items)

    def without(self, drop: Bools) -> Pairs:
        """The pairs whose item is not marked in `drop`."""
        return self.filtered(~drop[self.item])

    def rank(self) -> Ints:
        sizes = np.bincount(self.user, minlength=self.users)
        return np.arange(self.user.size) - (np.cumsum(sizes) - sizes)[self.user]

    def size(self) -> Floats:
        """For each pair, the number of pairs of its user."""
        return np.bincount(self.user, minlength=self.users)[self.user].astype(np.float64)

    def sum_by_item(self, weights: Floats | None = None) -> Floats:
        return np.bincount(self.item, weights, minlength=self.items).astype(np.float64)

    def sum_by_user(self, weights: Floats) -> Floats:
        return np.bincount(self.user, weights, minlength=self.users).astype(np.float64)

    def shuffled(self, generator: np.random.Generator) -> Pairs:
        order = np.argsort(self.user + generator.random(self.user.size))
        return Pairs(self.user[order], self.item[order], self.users, self.items)


def read_pairs(path: Path, users: int | None = None) -> Pairs:
    """The pairs of a Parquet file, optionally only of the first `users` users."""
    table = pq.read_table(path, columns=["user", "item"])
    user, item = (column.combine_chunks().dictionary_encode().indices.to_numpy() for column in table.columns)
    if users is not None:
        user, item = user[user < users], np.unique(item[user < users], return_inverse=True)[1]
    return Pairs(user.astype(np.int64), item.astype(np.int64), int(user.max()) + 1, int(item.max()) + 1)


def common_pairs(folder: Path) -> Path:
    """The file with the pairs of the common job, made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pairs.parquet"
    if not path.exists():
        subprocess.run([sys.executable, Path(__file__).with_name("peers.py"), "--make", str(path)], check=True)
    return path


# Noise and thresholds


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Sensitivity/sigma of the analytic Gaussian mechanism."""
    return largest_sensitivity_per_sigma(epsilon=epsilon, delta=delta)


def least_threshold(sigma: float, delta: float, items: Iterable[int], weight: Callable[[Floats], Floats]) -> float:
    """The lowest threshold that some of n new items of weight(n) pass with probability at most delta."""
    n = np.array(list(items), dtype=np.float64)
    # Phi^-1((1 - delta)^(1/n)), with the digits of a probability close to one
    quantile = -ndtri(-np.expm1(np.log1p(-delta) / n))
    return float(np.max(weight(n) + sigma * quantile))


def set_union_threshold(sigma: float, delta: float, limit: int) -> float:
    """rho of Gopi et al. 2020, Theorem 5.1, with delta for the threshold alone."""
    return least_threshold(sigma, delta, range(1, limit + 1), lambda n: 1 / np.sqrt(n))


# Releases


@dataclass(frozen=True)
class Release:
    """The items released, and estimates of their counts if the algorithm publishes counts."""

    found: Bools
    estimate: Floats | None = None
    correction: float = 1.0


def release_counts(
    pairs: Pairs, weights: Floats, sigma: float, threshold: float, total: int, generator: np.random.Generator
) -> Release:
    """Noise and threshold on the weighted counts; total is the number of pairs before any limit."""
    counts = pairs.sum_by_item(weights)
    noisy = counts + generator.normal(0.0, sigma, pairs.items)
    found = (noisy >= threshold) & (counts > 0)
    return Release(found, np.where(found, noisy, 0.0), total / float(weights.sum()))


def release_keys(weights: Floats, sigma: float, threshold: float, generator: np.random.Generator) -> Release:
    return Release((weights + generator.normal(0.0, sigma, weights.size) >= threshold) & (weights > 0))


# Libraries


def opendp(pairs: Pairs, epsilon: float, generator: np.random.Generator, *, cap: int) -> Release:
    """zCDP noise and an integer threshold, each with half of delta."""
    sigma, threshold = opendp_plan(epsilon, cap)
    kept = pairs.limited(cap)
    return release_counts(kept, np.ones(kept.user.size), sigma, threshold, pairs.user.size, generator)


def largest_rho(epsilon: float, delta: float) -> float:
    return float(brentq(lambda rho: delta_zcdp(rho=rho, epsilon=epsilon) / delta - 1, 1e-6, epsilon))


def opendp_plan(epsilon: float, cap: int) -> tuple[float, int]:
    sigma = math.sqrt(cap / (2 * largest_rho(epsilon, DELTA / 2)))
    return sigma, math.ceil(least_threshold(sigma, DELTA / 2, [cap], np.ones_like))


def pipelinedp(pairs: Pairs, epsilon: float, generator: np.random.Generator, *, cap: int) -> Release:
    sigma, threshold = pipelinedp_plan(epsilon, cap)
    kept = pairs.limited(cap)
    return release_counts(kept, np.ones(kept.user.size), sigma, threshold, pairs.user.size, generator)


def pipelinedp_plan(epsilon: float, cap: int) -> tuple[float, float]:
    sigma = math.sqrt(cap) / gaussian_mu(epsilon, DELTA / 2)
    return sigma, least_threshold(sigma, DELTA / 2, [cap], np.ones_like)


# Private Count Release


def private_count_release(
    pairs: Pairs, epsilon: float, generator: np.random.Generator, *, most: int, share: float
) -> Release:
    """At most `most` items in the order of their count with Gumbel noise, each found and measured at rho/most.

    Gumbel noise of scale 1/e is an exponential mechanism of range e, which costs e^2/8 for each item; `share` of
    rho pays for finding. The bound is that of the largest count after the 8 `most` largest, for half of delta.
    """
    rho, counts = largest_rho(epsilon, DELTA / 2), pairs.sum_by_item()
    considered = min(8 * most, pairs.items - 1)
    order = np.argsort(-counts)
    rate = math.sqrt(8 * share * rho / (most + 1))
    bound = counts[order[considered]] + 1 + math.log(considered / (DELTA / 2)) / rate
    noisy = counts[order[:considered]] + generator.gumbel(0.0, 1 / rate, considered)
    places = np.argsort(-noisy)[:most]
    places = places[noisy[places] > bound + generator.gumbel(0.0, 1 / rate)]
    found = np.zeros(pairs.items, dtype=np.bool_)
    found[order[places]] = True
    sigma = math.sqrt(most / (2 * (1 - share) * rho))
    return Release(found, np.where(found, counts + generator.normal(0.0, sigma, pairs.items), 0.0))


# Weighted Gaussian and Policy Gaussian


def weighted_gaussian(pairs: Pairs, epsilon: float, generator: np.random.Generator, *, limit: int) -> Release:
    sigma = 1 / gaussian_mu(epsilon, DELTA / 2)
    kept = pairs.limited(limit)
    weights = kept.sum_by_item(1 / np.sqrt(kept.size()))
    return release_keys(weights, sigma, set_union_threshold(sigma, DELTA / 2, limit), generator)


def policy_gaussian(
    pairs: Pairs, epsilon: float, generator: np.random.Generator, *, limit: int, alpha: float
) -> Release:
    """Users in sequence move the weights towards threshold + alpha sigma, by at most 1 in Euclidean distance."""
    sigma = 1 / gaussian_mu(epsilon, DELTA / 2)
    threshold = set_union_threshold(sigma, DELTA / 2, limit)
    kept = pairs.limited(limit)
    sizes = np.bincount(kept.user, minlength=kept.users)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    order = generator.permutation(kept.users)
    weights = compiled_policy()(kept.item, starts, order, threshold + alpha * sigma, kept.items)
    return release_keys(weights, sigma, threshold, generator)


def policy_weights(item: Ints, starts: Ints, order: Ints, target: float, items: int) -> Floats:
    """One user after the other, compiled by numba."""
    weights = np.zeros(items)
    for user in order:
        square = 0.0
        for place in range(starts[user], starts[user + 1]):
            square += max(0.0, target - weights[item[place]]) ** 2
        if square == 0.0:
            continue
        step = min(1.0, 1.0 / math.sqrt(square))
        for place in range(starts[user], starts[user + 1]):
            weights[item[place]] += step * max(0.0, target - weights[item[place]])
    return weights


def compiled_policy() -> Callable[..., Floats]:
    numba: Any = importlib.import_module("numba")
    if not COMPILED:
        COMPILED.append(numba.njit(policy_weights))
    return COMPILED[0]


COMPILED: list[Callable[..., Floats]] = []


# DP-SIPS


def dp_sips(
    pairs: Pairs, epsilon: float, generator: np.random.Generator, *, limit: int, rounds: int, ratio: float
) -> Release:
    """Weighted Gaussian several times; the items of earlier rounds leave the users' lists."""
    mu = gaussian_mu(epsilon, DELTA / 2)
    found = np.zeros(pairs.items, dtype=np.bool_)
    shares = ratio ** np.arange(rounds)[::-1]
    for share in shares / shares.sum():
        sigma = 1 / (mu * math.sqrt(share))
        kept = pairs.limited(limit)
        weights = kept.sum_by_item(1 / np.sqrt(kept.size()))
        threshold = set_union_threshold(sigma, share * DELTA / 2, limit)
        found |= release_keys(weights, sigma, threshold, generator).found
        pairs = pairs.without(found)
    return Release(found)


# MAD and MAD2R


@cache
def reroute_share(degree: int, least_bias: float = 1.0) -> float:
    """The share of the excess that may be rerouted while one user moves all weights by at most 1.

    A user of t <= degree items gives each the weight w_i >= least_bias/sqrt t, sum w_i^2 <= 1, and a = 1/t of it
    (or least_bias/sqrt t if that is less) is adaptive. If s of these items are above the target already, their s a
    is returned to users, who add it to their items: at most Y = share s a/degree to one item, share s a in all.
    The squared change is largest when all own items and degree - t others get Y:

        sum (w_i + Y)^2 - over the s items: 2 a (w_i + Y) - a^2, and (degree - t) Y^2
        <= 1 + 2 Y sqrt t + degree Y^2 - 2 s a (least_bias/sqrt t + Y) + s a^2
    """
    t = np.arange(1, degree + 1, dtype=np.float64)[:, None]
    s = np.minimum(np.arange(1, degree + 1, dtype=np.float64)[None, :], t)
    a = adaptive_part(t, least_bias)

    def excess(share: float) -> float:
        y = share * s * a / degree
        change = 2 * y * np.sqrt(t) + degree * y**2 - 2 * s * a * (least_bias / np.sqrt(t) + y) + s * a**2
        return float(change.max())

    low, high = 0.0, 1.0
    if excess(high) <= 0:
        return high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return low


def adaptive_part(size: Floats, least_bias: float) -> Floats:
    return np.minimum(1 / size, least_bias / np.sqrt(size))


def adaptive_weights(
    pairs: Pairs, *, target: float, degree: int, bias: Floats | None = None, least: float = 1.0, most: float = 1.0
) -> Floats:
    """Weights of items; what is above the target goes back to users of few items, who give it to all their items.

    `bias` makes a user's weights unequal: an item of bias below 1 gets that share of 1/sqrt n, and the others get
    more, up to the factor `most`, so that the squares still sum to 1.
    """
    size = pairs.size()
    factor = np.ones(size.size)
    if bias is not None:
        factor = bias[pairs.item]
        low = factor < 1
        rest = size - pairs.sum_by_user(np.where(low, factor**2, 0.0))[pairs.user]
        others = pairs.sum_by_user((~low).astype(np.float64))[pairs.user]
        factor = np.where(low, factor, np.minimum(most, np.sqrt(rest / np.maximum(others, 1.0))))
    part = np.where(size <= degree, adaptive_part(size, least), 0.0)
    start = pairs.sum_by_item(part)
    over = np.maximum(0.0, 1 - target / np.maximum(start, target))
    returned = pairs.sum_by_user(part * over[pairs.item])[pairs.user] * (size <= degree)
    rerouted = reroute_share(degree, least) / degree * returned
    return pairs.sum_by_item(factor / np.sqrt(size)) - start * over + pairs.sum_by_item(rerouted)


def mad(
    pairs: Pairs, epsilon: float, generator: np.random.Generator, *, limit: int, degree: int, beta: float
) -> Release:
    sigma = 1 / gaussian_mu(epsilon, DELTA / 2)
    threshold = set_union_threshold(sigma, DELTA / 2, limit)
    weights = adaptive_weights(pairs.limited(limit), target=threshold + beta * sigma, degree=degree)
    return release_keys(weights, sigma, threshold, generator)


def mad_two_rounds(
    pairs: Pairs,
    epsilon: float,
    generator: np.random.Generator,
    *,
    limit: int,
    share: float,
    above: float,
    least: float = 0.5,
    most: float = 2.0,
    degree: int = 50,
    beta: float = 2.0,
) -> Release:
    """MAD, then again without the items found, with less weight for items that will pass anyway.

    Items whose noisy weight is `above` standard deviations below the second threshold are dropped.
    """
    mu = gaussian_mu(epsilon, DELTA / 2)
    sigmas = [1 / (mu * math.sqrt(part)) for part in (share, 1 - share)]
    thresholds = [set_union_threshold(sigmas[0], share * DELTA / 2, limit)]
    thresholds.append(
        least_threshold(
            sigmas[1],
            (1 - share) * DELTA / 2,
            range(1, limit + 1),
            lambda n: np.minimum(1.0, most / np.sqrt(n)) + 1 / degree,
        )
    )
    targets = [threshold + beta * sigma for threshold, sigma in zip(thresholds, sigmas, strict=True)]
    weights = adaptive_weights(pairs.limited(limit), target=targets[0], degree=degree)
    noisy = weights + generator.normal(0.0, sigmas[0], pairs.items)
    found = (noisy >= thresholds[0]) & (weights > 0)
    hopeless = noisy + above * sigmas[0] < thresholds[1]
    bias = np.clip(targets[1] / np.maximum(noisy - sigmas[0], 1e-9), least, 1.0)
    second = adaptive_weights(
        pairs.without(found | hopeless).limited(limit),
        target=targets[1],
        degree=degree,
        bias=bias,
        least=least,
        most=most,
    )
    return Release(found | release_keys(second, sigmas[1], thresholds[1], generator).found)


# dphist


def dphist_release(
    path: Path, pairs: Pairs, epsilon: float, options: dict[str, Any], delta: float = DELTA
) -> Release:
    table = dphist.release(path, user="user", item="item", epsilon=epsilon, delta=delta, **options).to_arrow()
    names = pq.read_table(path, columns=["item"]).column("item").combine_chunks().dictionary_encode().dictionary
    index = {name: place for place, name in enumerate(names.to_pylist())}
    found = np.array([index[name] for name in table.column("item").to_pylist()], dtype=np.int64)
    estimate, listed = np.zeros(pairs.items), np.zeros(pairs.items, dtype=np.bool_)
    estimate[found], listed[found] = table.column("count").to_numpy(), True
    counted = pairs.limited(options.get("max_items_per_user", pairs.items)).user.size
    return Release(listed, estimate, pairs.user.size / counted)


RELEASES: dict[str, tuple[dict[str, Any], ...]] = {
    "dphist, best limit": tuple({"max_items_per_user": cap} for cap in CAPS),
    "dphist": ({},),
    "dphist, goal keys": ({"goal": "keys"},),
}

# The table


@dataclass(frozen=True)
class Method:
    """A row of the table: an algorithm with one or several settings to choose the best from."""

    name: str
    run: Callable[..., Release]
    settings: tuple[dict[str, Any], ...]


def settings(**choices: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    found: list[dict[str, Any]] = [{}]
    for name, values in choices.items():
        found = [{**one, name: value} for one in found for value in values]
    return tuple(found)


METHODS = (
    Method("OpenDP, best cap", opendp, settings(cap=CAPS)),
    Method("PipelineDP, best cap", pipelinedp, settings(cap=CAPS)),
    Method("Weighted Gaussian, as published", weighted_gaussian, settings(limit=[100])),
    Method("Weighted Gaussian, best", weighted_gaussian, settings(limit=[50, 100, 400])),
    Method("Policy Gaussian, as published", policy_gaussian, settings(limit=[100], alpha=[3])),
    Method("Policy Gaussian, best", policy_gaussian, settings(limit=[100], alpha=[2, 3, 5, 10])),
    Method("DP-SIPS, as published", dp_sips, settings(limit=[100], rounds=[3], ratio=[1 / 3])),
    Method("DP-SIPS, best", dp_sips, settings(limit=[100], rounds=[2, 3], ratio=[0.1, 0.2, 1 / 3])),
    Method("MAD, degree 50, beta 2", mad, settings(limit=[100], degree=[50], beta=[2])),
    Method("MAD, best", mad, settings(limit=[100], degree=[10, 50, 100], beta=[1, 2])),
    Method("MAD2R, 10 % in the first round", mad_two_rounds, settings(limit=[100], share=[0.1], above=[3])),
    Method("MAD2R, best", mad_two_rounds, settings(limit=[100], share=[0.1, 0.2, 0.3], above=[1, 2, 3])),
    Method(
        "Private Count Release, best",
        private_count_release,
        settings(most=[10, 20, 50, 100, 200, 300, 400, 600], share=[0.2, 0.5]),
    ),
)


@dataclass(frozen=True)
class Score:
    """The values of a row in the order of the columns; None if an algorithm publishes keys only."""

    keys: float
    error: float | None
    corrected: float | None


COLUMNS: tuple[tuple[Callable[[Score], float | None], str, int], ...] = (
    (lambda one: one.keys, ",.0f", -1),
    (lambda one: one.error, ".3f", 1),
    (lambda one: one.corrected, ".3f", 1),
)


@dataclass(frozen=True)
class Cell:
    """The mean of the setting that is best for a column; None if an algorithm publishes keys only."""

    mean: float | None
    setting: str = ""

    def shown(self, style: str) -> str:
        if self.mean is None:
            return "keys only"
        return f"{self.mean:{style}}" + (f" ({self.setting})" if self.setting else "")


@dataclass(frozen=True)
class Row:
    """One algorithm on one dataset at one epsilon."""

    data: str
    epsilon: float
    algorithm: str
    keys: Cell
    error: Cell
    corrected: Cell

    def shown(self) -> str:
        cells = (self.keys, self.error, self.corrected)
        return " | ".join(cell.shown(style) for cell, (_, style, _) in zip(cells, COLUMNS, strict=True))


def score(release: Release, truth: Floats) -> Score:
    keys = float(np.count_nonzero(release.found))
    if release.estimate is None:
        return Score(keys, None, None)
    factors = (1.0, release.correction)
    plain, corrected = (float(np.abs(release.estimate * f - truth).sum() / truth.sum()) for f in factors)
    return Score(keys, plain, corrected)


def best_cells(
    choices: int, measure_one: Callable[[int, int], Score], names: list[str], runs: int
) -> tuple[Cell, Cell, Cell]:
    """A cell for each column: the best setting by the first run, and its mean over all runs."""
    known = {(choice, 0): measure_one(choice, 0) for choice in range(choices)}

    def cell(value: Callable[[Score], float | None], sign: int) -> Cell:
        firsts = {choice: number for choice in range(choices) if (number := value(known[choice, 0])) is not None}
        if not firsts:
            return Cell(None)
        best = min(firsts, key=lambda choice: sign * firsts[choice])
        for run in range(runs):
            if (best, run) not in known:
                known[best, run] = measure_one(best, run)
        mean = float(np.mean([value(known[best, run]) or 0.0 for run in range(runs)]))
        return Cell(mean, names[best] if choices > 1 else "")

    keys, error, corrected = (cell(value, sign) for value, _, sign in COLUMNS)
    return keys, error, corrected


def measure(path: Path, epsilons: list[float], runs: int, users: int | None) -> list[Row]:
    """Print the table of one dataset and return its rows."""
    rows: list[Row] = []
    pairs = read_pairs(path, users)
    truth = pairs.sum_by_item()
    orders = [pairs.shuffled(np.random.default_rng(run)) for run in range(runs)]
    print(f"\n{path.stem}: {pairs.user.size:,} pairs, {pairs.users:,} users, {pairs.items:,} items\n")
    print("| algorithm | " + " | ".join(f"ε = {e:g}: keys | error | corrected" for e in epsilons) + " |")
    print("|---|" + "---|---|---|" * len(epsilons))
    for method in METHODS:
        names = [", ".join(f"{value:.3g}" for value in setting.values()) for setting in method.settings]
        for epsilon in epsilons:

            def run_setting(choice: int, run: int, method: Method = method, epsilon: float = epsilon) -> Score:
                generator = np.random.default_rng([run, choice])
                return score(method.run(orders[run], epsilon, generator, **method.settings[choice]), truth)

            cells = best_cells(len(method.settings), run_setting, names, runs)
            rows.append(Row(path.stem, epsilon, method.name, *cells))
        print_row(method.name, rows[-len(epsilons) :])
    for name, choices in RELEASES.items() if users is None else ():
        for epsilon in epsilons:

            def run_release(
                choice: int, _run: int, choices: tuple[dict[str, Any], ...] = choices, epsilon: float = epsilon
            ) -> Score:
                return score(dphist_release(path, orders[0], epsilon, choices[choice]), truth)

            names = [str(value) for choice in choices for value in choice.values()]
            rows.append(Row(path.stem, epsilon, name, *best_cells(len(choices), run_release, names, runs)))
        print_row(name, rows[-len(epsilons) :])
    return rows


def print_row(name: str, rows: list[Row]) -> None:
    print(f"| {name} | " + " | ".join(row.shown() for row in rows) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Keys and accuracy of dphist and of published algorithms.")
    parser.add_argument("--data", type=Path, help="a folder of Parquet files with the columns user and item")
    parser.add_argument("--epsilon", type=float, action="append", help="may be repeated; default 0.2, 1 and 4")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dphist_benchmark")
    parser.add_argument("--quick", action="store_true", help="one run of the common job with a tenth of its users")
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    given = parser.parse_args()
    common = common_pairs(given.folder)
    others = sorted(given.data.glob("*.parquet")) if given.data and not given.quick else []
    runs, users = (1, 20_000) if given.quick else (3, None)
    rows: list[Row] = []
    for path in [*others, common]:
        rows += measure(path, given.epsilon or [0.2, 1.0, 4.0], runs, users)
    if given.json:
        found = {"delta": DELTA, "runs": runs, "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
