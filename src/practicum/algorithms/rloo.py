"""RLOO: REINFORCE against the mean of the others (arXiv 2402.14740).

    A_i = r_i - (sum_j r_j - r_i) / (n - 1)  =  n / (n - 1) (r_i - mean_g r)
    L   = - (1 / N) sum_i sum_t keep_t sg[min(pi/mu, 2)] A_i log pi(y_t | y_<t)

The baseline does not depend on the rollout itself, so the gradient is unbiased. A rollout without a reward is in no sum
and not in n.
Deviations: 1. Tokens, not whole answers, are weighed by the ratio to what sampled them, capped, and masked as in DPPO
(`dppo.py`); on policy that is the paper's gradient. 2. The sum is divided by the step's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from practicum.algorithms.group import GroupAlgorithm, GroupOptions, TrustOptions, less_mean


class Rloo(GroupAlgorithm[TrustOptions]):
    """Leave-one-out baseline."""

    name = "rloo"
    Options: ClassVar[type[GroupOptions]] = TrustOptions

    def credit(self, rewards: Sequence[float], everyone: Sequence[float]) -> Sequence[float]:
        """n / (n - 1) (r - mean)."""
        count = len(rewards)
        return [value * count / (count - 1) for value in less_mean(rewards)]
