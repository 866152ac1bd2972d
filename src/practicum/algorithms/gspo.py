"""GSPO: group sequence policy optimisation (arXiv 2507.18071).

    s_i = exp( mean_t (log pi(y_t) - log mu(y_t)) )
    L   = - mean_i min(s_i A_i, clip(s_i, 1 - 3e-4, 1 + 4e-4) A_i),     A_i = (r_i - mean_g r) / (std_g r + 1e-4)

One ratio for a whole sequence, its length taken out: steadier than token ratios, above all where a mixture of experts
routes a token otherwise in training than in sampling. It is a surrogate and not the sequence's importance weight.
Deviations: those of GRPO; 4. a rollout of several rows has one ratio a row, each over the row's sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from practicum.algorithms.group import Aggregation, ClipOptions, GroupOptions
from practicum.algorithms.grpo import CLIPPED, Grpo


class GspoOptions(ClipOptions):
    """Clips a thousand times narrower than a token's, for a mean of logarithms moves that much less."""

    clip_low: float = Field(3e-4, ge=0)
    clip_high: float = Field(4e-4, ge=0)
    scale: Literal["none", "group", "batch"] = "group"
    aggregation: Aggregation = "grpo"


class Gspo(Grpo):
    """GRPO with one ratio a sequence."""

    name = "gspo"
    Options: ClassVar[type[GroupOptions]] = GspoOptions
    fixed: ClassVar[Mapping[str, Any]] = {**CLIPPED, "ratio": "sequence"}
