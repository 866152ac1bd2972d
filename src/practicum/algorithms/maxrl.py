"""MaxRL: towards the likelihood of a success, not only its probability (arXiv 2602.02710).

    A_i = (r_i - mean_g r) / mean_g r,     0 for all where mean_g r <= 0
    L   as in `rloo.py`

Divided by the mean, a success on a task that is rarely solved weighs in proportion to its rarity: with 0/1 rewards the
sum of the positive advantages of a group is n (1 - p), and one success at pass rate p has A = (1 - p) / p.
Deviations: those of RLOO.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from practicum.algorithms.group import GroupAlgorithm, GroupOptions, TrustOptions, less_mean


class MaxRl(GroupAlgorithm[TrustOptions]):
    """Rewards relative to the group's mean."""

    name = "maxrl"
    Options: ClassVar[type[GroupOptions]] = TrustOptions

    def credit(self, rewards: Sequence[float], everyone: Sequence[float]) -> Sequence[float]:
        """(r - mean) / mean; no signal where the mean is not above 0."""
        mean = math.fsum(rewards) / len(rewards)
        return [value / mean for value in less_mean(rewards)] if mean > 0 else [0.0] * len(rewards)
