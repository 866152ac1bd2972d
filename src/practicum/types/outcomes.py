"""What a grader said of a rollout: a reward, or why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One grader's word. `reward` is any finite number, on the grader's own scale; None where the grader could not
    tell: that is not a zero, and `reason` says why.

    `name` is the outcome's own, `by` the grader that gave it.
    """

    name: str
    reward: float | None
    reason: str = ""
    by: str = ""

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"outcome {self.name}: {self.reward} is no reward; use None and a reason")
