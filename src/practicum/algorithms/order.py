"""In which order rows or tasks are gone through: shuffled epochs or weighted draws, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence


def epoch_order(n: int, batch: int, step: int, seed: int) -> list[int]:
    """Indices of step `step` when n rows are gone through in shuffled epochs of equal steps, at most `batch` at a time.

    No step takes a row twice, and each epoch takes every row once.
    """
    per_epoch = -(-n // batch)
    epoch, place = divmod(step, per_epoch)
    order = list(range(n))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order[place * n // per_epoch : (place + 1) * n // per_epoch]


def weighted_picks(weights: Sequence[float], batch: int, step: int, seed: int) -> list[int]:
    """`batch` distinct indices (all, where there are fewer), drawn one after the other in proportion to `weights`.

    Source: Efraimidis and Spirakis 2006, weighted sampling without replacement: the largest u^(1/w) are taken.
    """
    rng = random.Random(f"{seed}:weighted:{step}")
    keys = [rng.random() ** (1.0 / weight) if weight > 0 else 0.0 for weight in weights]
    return sorted(range(len(weights)), key=lambda index: -keys[index])[:batch]
