"""CISPO: clipped importance sampling policy optimisation (MiniMax-M1, arXiv 2506.13585).

    L = - (1 / N) sum_i sum_t sg[min(rho_t, 5)] A_i log pi(y_t | y_<t),     A_i = (r_i - mean_g r) / (std_g r + 1e-4)

The weight is clipped and not the objective, so no token loses its gradient, least of all the rare ones that turn a
train of thought. The upper bound, `cap`, is ScaleRL's (arXiv 2510.13786); there is no lower one, as in the paper's
canonical form.
Deviations: 1. The ratio is to the sampler's own logprobs unless `against = "proximal"`. 2. Groups without a signal are
left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from practicum.algorithms.group import GroupAlgorithm, GroupOptions, ScaledOptions, standardised


class CispoOptions(ScaledOptions):
    """`cap` bounds the ratio."""

    scale: Literal["none", "group", "batch"] = "group"
    cap: float | None = Field(5.0, gt=0)


class Cispo(GroupAlgorithm[CispoOptions]):
    """Standardised rewards and a capped, detached ratio."""

    name = "cispo"
    Options: ClassVar[type[GroupOptions]] = CispoOptions
    fixed: ClassVar[Mapping[str, Any]] = {"trust_above": None, "trust_below": None}

    def credit(self, rewards: Sequence[float], everyone: Sequence[float]) -> Sequence[float]:
        """(r - mean) / (std + 1e-4), the std by `scale`."""
        return standardised(rewards, everyone, self.options.scale)
