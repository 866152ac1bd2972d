"""GRPO: group relative policy optimisation (arXiv 2402.03300).

    A_i = (r_i - mean_g r) / (std_g r + 1e-4)
    L   = mean_i mean_t [ - min(rho_t A_i, clip(rho_t, 1 - .2, 1 + .2) A_i) + beta k3_t ],   rho_t = pi / mu

k3 = e^d - d - 1 with d = log pi_ref - log pi; beta is `kl_coef`, 0 by default. Differentiated as a loss k3 has the
gradient of the FORWARD KL(ref||pi); `kl_kind = "k2"`, or `kl_unbiased` with either, has that of KL(pi||ref).

Deviations: 1. The ratio is to the sampler's own logprobs unless `against = "proximal"`. 2. Groups without a signal are
left out of the mean over rollouts; `anchor_dead_groups` keeps them in it, and in the KL. 3. A mean over a rollout is
over the sampled tokens of all its rows.
`aggregation` is one of TRL's names; `dr_grpo` there with `scale = "none"` is Dr. GRPO.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from practicum.algorithms.group import Aggregation, ClipOptions, GroupAlgorithm, GroupOptions, standardised

CLIPPED: Mapping[str, Any] = {"surrogate": "clip", "trust_above": None, "trust_below": None}


class GrpoOptions(ClipOptions):
    """The paper's: scaled by the group's deviation, a mean over tokens and then over rollouts, k3."""

    scale: Literal["none", "group", "batch"] = "group"
    aggregation: Aggregation = "grpo"
    kl_kind: Literal["full", "k2", "k3"] = "k3"


class Grpo(GroupAlgorithm[ClipOptions]):
    """Standardised rewards and PPO's clip on each token's ratio."""

    name = "grpo"
    Options: ClassVar[type[GroupOptions]] = GrpoOptions
    fixed: ClassVar[Mapping[str, Any]] = CLIPPED

    def credit(self, rewards: Sequence[float], everyone: Sequence[float]) -> Sequence[float]:
        """(r - mean) / (std + 1e-4), the std by `scale`."""
        return standardised(rewards, everyone, self.options.scale)
