"""The few statistics that the gate rests on. scipy does the distributions; it is imported when first used.

Comparisons are paired (both policies answer the same prompt) and clustered by session: turns of one conversation are
not independent, so whole sessions are resampled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A point estimate with a 95% interval over `n` items."""

    estimate: float
    low: float
    high: float
    n: int


def proportion(hits: int, n: int) -> Interval:
    """Share of `hits` in `n` with the Wilson score interval (Wilson 1927); n = 0 gives [0, 1]."""
    if n == 0:
        return Interval(estimate=float("nan"), low=0.0, high=1.0, n=0)
    from scipy.stats import binomtest

    found = binomtest(hits, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Interval(estimate=hits / n, low=float(found.low), high=float(found.high), n=n)


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean of values [n], one a task: with the Wilson interval where all are 0 or 1, else a bootstrap over tasks."""
    if all(value in (0.0, 1.0) for value in values):
        return proportion(int(sum(values)), len(values))
    return paired_difference(values, [0.0] * len(values), range(len(values)))


def paired_difference(
    new: Sequence[float], old: Sequence[float], clusters: Sequence[Hashable], *, draws: int = 4000, seed: int = 0
) -> Interval:
    """Mean of `new - old` over items, with a percentile bootstrap interval over clusters.

    Args:
        new: [n] scores of the candidate, item by item.
        old: [n] scores of the live policy on the same items.
        clusters: [n] the session (or item) each score belongs to.
        draws: bootstrap resamples.
        seed: of the resampling, so that a decision can be recomputed.

    Returns the 95% interval; its ends are also the one-sided 97.5% bounds. Constant differences give a zero-width
    interval: with few items that claims too much, so callers also ask for a minimum n.
    """
    grouped: dict[Hashable, list[float]] = defaultdict(list)
    for after, before, cluster in zip(new, old, clusters, strict=True):
        grouped[cluster].append(after - before)
    if not grouped:
        return Interval(estimate=float("nan"), low=float("-inf"), high=float("inf"), n=0)
    sums = np.array([sum(values) for values in grouped.values()])
    sizes = np.array([len(values) for values in grouped.values()], dtype=float)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(sums), size=(draws, len(sums)))
    means = sums[picks].sum(axis=1) / sizes[picks].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(estimate=float(sums.sum() / sizes.sum()), low=float(low), high=float(high), n=len(new))


def sign_test(wins: int, losses: int) -> float:
    """One-sided exact p-value that wins are no likelier than losses; ties are left out (McNemar's exact test)."""
    if wins + losses == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses, 0.5, alternative="greater").pvalue)
