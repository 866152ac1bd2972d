"""DPPO: group-relative policy gradient under a trust region in probabilities. The default.

    A_i = r_i - mean_g r                                       over the siblings that have a reward
    L   = - (1 / N) sum_i sum_t m_t keep_t sg[min(pi/mu, 2)] A_i log pi(y_t | y_<t)

m masks what the policy did not sample; N is the number of sampled tokens of all groups that have a signal; keep drops a
token whose probability has moved by more than .2 the way A points. Sources: the trust mask, DPPO with binary total
variation (arXiv 2602.04879); groups as baseline, GRPO (arXiv 2402.03300); no division by the standard deviation, Dr.
GRPO (arXiv 2503.20783); a token-level sum and groups without a signal left out, DAPO (arXiv 2503.14476); the detached,
capped ratio, CISPO (arXiv 2506.13585).
Deviations: 1. The ratio is to the sampler's own logprobs, there is no third policy, unless `against` says otherwise.
2. The ratio is capped; the paper leaves it free. 3. No squared log-ratio is added to hold pi to mu; `kl_coef` holds pi
to the reference where that is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from practicum.algorithms.group import GroupAlgorithm, GroupOptions, ScaledOptions, TrustOptions, standardised


class DppoOptions(TrustOptions, ScaledOptions):
    """`scale` is `none` unless another is asked for."""


class Dppo(GroupAlgorithm[DppoOptions]):
    """r - mean, a trust mask on probabilities, a token-level sum."""

    name = "dppo"
    Options: ClassVar[type[GroupOptions]] = DppoOptions

    def credit(self, rewards: Sequence[float], everyone: Sequence[float]) -> Sequence[float]:
        """r - mean, divided by nothing unless `scale` asks for it."""
        return standardised(rewards, everyone, self.options.scale)
