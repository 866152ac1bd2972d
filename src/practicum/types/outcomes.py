"""What a grader said of a rollout: a reward, or why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


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


def finite(what: str, value: Any) -> float:
    """`value` as a reward. Raises ValueError, whose text begins with `what`, for what is no finite number: NaN, True,
    None, "good job"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} is {str(value)[:100]!r}, which is no number")
    try:
        reward = float(value)
    except OverflowError:
        reward = math.inf
    if not math.isfinite(reward):
        raise ValueError(f"{what} is {str(value)[:100]}, which is no finite number")
    return reward
