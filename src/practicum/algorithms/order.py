"""In which order rows are gone through: shuffled epochs, the same for the same seed."""

from __future__ import annotations

import random


def epoch_order(n: int, batch: int, step: int, seed: int) -> list[int]:
    """Indices of step `step` when n rows are gone through in shuffled epochs of equal steps, at most `batch` at a time.

    No step takes a row twice, and each epoch takes every row once.
    """
    per_epoch = -(-n // batch)
    epoch, place = divmod(step, per_epoch)
    order = list(range(n))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order[place * n // per_epoch : (place + 1) * n // per_epoch]
