"""On-policy distillation: the policy answers, and a frozen teacher says what it would have said at every token.

    L = (1 / N) sum_i sum_t m_t D( pi(. | x, y_<t) || q(. | x, y_<t) ),     y ~ pi

D is the reverse KL by default: its gradient, averaged over y_t ~ pi, is that of the advantage log q(y_t) - log pi(y_t)
(on-policy distillation; GKD, arXiv 2306.13649), without the noise of the one token that was sampled. q is the trainer's
frozen teacher, under the same prompt: an earlier release whose ways are to be kept or restored. Rewards are not needed.
Deviations: 1. Whole distributions, or the student's top k and a tail bucket, not the sampled token. 2. No importance
weight: distributions are compared at each position, whatever sampled the way there. 3. Discount 0: what a token does to
later positions is not counted, as in every method of the kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from practicum.algorithms.group import Graded, Options, absent, datum, facts
from practicum.types.training import Batch, Stream


class DistillOptions(Options):
    """The divergence: `alpha` belongs to jsd, `top_k` 0 is the whole vocabulary, `clip` bounds a token's, in nats."""

    mask_truncated: bool = False
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"
    alpha: float = Field(0.5, gt=0, lt=1)
    top_k: NonNegativeInt = 0
    clip: float | None = Field(None, gt=0)

    def divergence_settings(self) -> dict[str, Any]:
        """What the trainer's `distill` loss must be set to."""
        return {"divergence": self.divergence, "alpha": self.alpha, "top_k": self.top_k, "clip": self.clip}


class Distillation:
    """The teacher's distribution at every token that the policy sampled."""

    name: ClassVar[str] = "distillation"
    Options: ClassVar[type[DistillOptions]] = DistillOptions
    resamples: ClassVar[bool] = False
    needs_proximal: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False

    def __init__(self, options: DistillOptions) -> None:
        self.options = options

    @property
    def distill(self) -> Mapping[str, Any]:
        """What the trainer's `distill` loss must be set to; its teacher must be frozen before."""
        return self.options.divergence_settings()

    def signal(self, rollouts: Sequence[Graded]) -> frozenset[Hashable]:
        """Every group that sampled something."""
        return frozenset(each.group for each in rollouts if self._reason(each) is None)

    def batch(self, rollouts: Sequence[Graded], *, on_policy: bool = False) -> Batch:
        """The rows of one step."""
        kept = [each for each in rollouts if self._reason(each) is None]
        total = sum(each.length for each in kept)
        rows = [
            replace(datum(row, 1.0 / total), teacher_prompt_ids=row.prompt_ids)
            for each in kept
            for row in each.rows
            if row.trained_tokens
        ]
        left_out = Counter(reason for each in rollouts if (reason := self._reason(each)) is not None)
        return Batch(
            streams=(Stream(loss="distill", rows=rows),),
            sampled_tokens=sum(each.length for each in rollouts),
            on_policy=on_policy,
            facts=facts(rollouts, left_out) | {"with_signal": float(len(kept))},
        )

    def _reason(self, rollout: Graded) -> str | None:
        return absent(rollout, mask_truncated=self.options.mask_truncated, needs_reward=False)
