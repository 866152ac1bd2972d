"""Dr. GRPO: GRPO done right (arXiv 2503.20783).

    A_i = r_i - mean_g r
    L   = - 1 / (B L_max) sum_i sum_t min(rho_t A_i, clip(rho_t, 1 - .2, 1 + .2) A_i)

Dividing by a rollout's own length punishes a long wrong answer less per token than a short one, and dividing by the
deviation favours tasks that are nearly always or nearly never solved; here neither happens. B is the number of rollouts
and L_max, `max_length`, the most tokens that one may sample.
Deviations: those of GRPO (`grpo.py`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from practicum.algorithms.group import Aggregation, ClipOptions, GroupOptions
from practicum.algorithms.grpo import Grpo


class DrGrpoOptions(ClipOptions):
    """`max_length` must be given."""

    scale: Literal["none", "group", "batch"] = "none"
    aggregation: Aggregation = "dr_grpo"


class DrGrpo(Grpo):
    """r - mean, and one normaliser for all lengths."""

    name = "dr_grpo"
    Options: ClassVar[type[GroupOptions]] = DrGrpoOptions
