"""Filtered cloning: what succeeded, said again.

    L = - (1 / N) sum_{i: r_i >= threshold} sum_t m_t log pi(y_t | y_<t)

N is the sampled tokens of those rollouts. It learns nothing from failures and no rollout can harm it, which makes it
the floor that others are measured against, and a warm-up where a group rarely has a success. Source: filtered behaviour
cloning, advantage-weighted regression with weights 0 or 1 (arXiv 1910.00177); rejection sampling (STaR, arXiv
2203.14465).
Deviation: the policy's own sampled tokens are cloned, with their ids, never a text that was tokenised anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from practicum.algorithms.group import Graded, Options, absent
from practicum.algorithms.selected import Selected, Taught, trained_rows
from practicum.types.training import LossName


class SftOptions(Options):
    """`threshold`: the least reward of what is cloned; `mask_truncated`: not what was cut off."""

    threshold: float = 0.5
    mask_truncated: bool = True


class Sft(Selected[SftOptions]):
    """Cross-entropy on rollouts that succeeded."""

    name = "sft"
    Options: ClassVar[type[Options]] = SftOptions
    loss: ClassVar[LossName] = "cross_entropy"

    def taught(self, rollout: Graded, rollouts: Sequence[Graded]) -> list[Taught] | str:
        """All of a success."""
        if (reason := absent(rollout, mask_truncated=self.options.mask_truncated)) is not None:
            return reason
        if (rollout.reward or 0.0) < self.options.threshold:
            return f"its reward is below {self.options.threshold:g}"
        return [(row, None) for row in trained_rows(rollout)]
