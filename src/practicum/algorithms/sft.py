"""Filtered cloning: what succeeded, said again.

    L = - (1 / N) sum_{i: r_i >= threshold} sum_t m_t log pi(y_t | y_<t)

N is the sampled tokens of those rollouts. It learns nothing from failures and no rollout can harm it, which makes it
the floor that others are measured against, and a warm-up where a group rarely has a success. Source: filtered behaviour
cloning, advantage-weighted regression with weights 0 or 1 (arXiv 1910.00177); rejection sampling (STaR, arXiv
2203.14465).
Deviation: the policy's own sampled tokens are cloned, with their ids, never a text that was tokenised anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from practicum.algorithms.group import Graded, Options, absent, datum, facts
from practicum.types.training import Batch, Stream


class SftOptions(Options):
    """`threshold`: the least reward of what is cloned; `mask_truncated`: not what was cut off."""

    threshold: float = 0.5
    mask_truncated: bool = True


class Sft:
    """Cross-entropy on rollouts that succeeded."""

    name: ClassVar[str] = "sft"
    Options: ClassVar[type[SftOptions]] = SftOptions
    resamples: ClassVar[bool] = False
    needs_proximal: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    distill: ClassVar[Mapping[str, Any] | None] = None

    def __init__(self, options: SftOptions) -> None:
        self.options = options

    def signal(self, rollouts: Sequence[Graded]) -> frozenset[Hashable]:
        """The groups with a success."""
        return frozenset(each.group for each in rollouts if self._reason(each) is None)

    def batch(self, rollouts: Sequence[Graded], *, on_policy: bool = False) -> Batch:
        """The rows of one step."""
        kept = [each for each in rollouts if self._reason(each) is None]
        total = sum(each.length for each in kept)
        rows = [datum(row, 1.0 / total) for each in kept for row in each.rows if row.trained_tokens]
        left_out = Counter(reason for each in rollouts if (reason := self._reason(each)) is not None)
        return Batch(
            streams=(Stream(loss="cross_entropy", rows=rows),),
            sampled_tokens=sum(each.length for each in rollouts),
            on_policy=on_policy,
            facts=facts(rollouts, left_out) | {"with_signal": float(len(kept))},
        )

    def _reason(self, rollout: Graded) -> str | None:
        reason = absent(rollout, mask_truncated=self.options.mask_truncated)
        if reason is None and (rollout.reward or 0.0) < self.options.threshold:
            return f"its reward is below {self.options.threshold:g}"
        return reason
