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

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from practicum.algorithms.group import Graded, Options, absent
from practicum.algorithms.selected import Selected, Taught, trained_rows
from practicum.types.training import LossName


class DistillOptions(Options):
    """The divergence: `alpha` belongs to jsd, `top_k` 0 is the whole vocabulary, `clip` bounds a token's, in nats."""

    mask_truncated: bool = False
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"
    alpha: float = Field(0.5, gt=0, lt=1)
    top_k: NonNegativeInt = 0
    clip: float | None = Field(None, gt=0)

    def divergence_settings(self) -> dict[str, Any]:
        """What the trainer's `distill` loss must be set to: the target is what the teacher says, with no contrast."""
        asked = {"divergence": self.divergence, "alpha": self.alpha, "top_k": self.top_k, "clip": self.clip}
        return asked | {"contrast": 1.0, "plausibility": 0.0}


class Distillation(Selected[DistillOptions]):
    """The teacher's distribution at every token that the policy sampled."""

    name = "distillation"
    Options: ClassVar[type[Options]] = DistillOptions
    loss: ClassVar[LossName] = "distill"

    @property
    def distill(self) -> Mapping[str, Any]:
        """The divergence."""
        return self.options.divergence_settings()

    def taught(self, rollout: Graded, rollouts: Sequence[Graded]) -> list[Taught] | str:
        """Whatever was sampled, under its own prompt."""
        reason = absent(rollout, mask_truncated=self.options.mask_truncated, needs_reward=False)
        return [(row, row.prompt_ids) for row in trained_rows(rollout)] if reason is None else reason
