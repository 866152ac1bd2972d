"""The grader of in-house environments: it asks the rollout's own process for `verify`, on the final state.

A verifier that raises, hangs or gives what is no finite number (NaN, None, True, "good") gives no reward, with the
reason, and never a zero: zero is a judgement of the policy. Where the policy can make a verifier fail, the task says
what that is worth (`when_failed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from practicum.environments.harness import EnvironmentHarness
from practicum.environments.tasks import NAME
from practicum.errors import HarnessError
from practicum.harnesses.grading import Evidence
from practicum.harnesses.options import read_options
from practicum.types.outcomes import Outcome, finite

MAIN = "reward"


class GraderOptions(BaseModel):
    """`timeout_s` bounds `verify`; `main` names the reward among several; `when_failed` is the reward where it fails,
    None is no reward."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    timeout_s: float = Field(default=60.0, gt=0)
    main: str = MAIN
    when_failed: float | None = Field(default=None, allow_inf_nan=False)


class EnvironmentGrader:
    """Asks for a rollout's `verify`. Raises UsageError for wrong options."""

    def __init__(self, harness: EnvironmentHarness, given: Mapping[str, Any]) -> None:
        self._harness = harness
        self._options = read_options(GraderOptions, given, f"The option {{option}} of the grader {NAME}")

    async def grade(self, evidence: Evidence) -> Sequence[Outcome]:
        """The main reward first, then the other numbers that `verify` gave. The reason says how the episode ended."""
        asked = self._options
        world = self._harness.worlds.get(evidence.sandbox)
        try:
            if world is None:
                raise HarnessError(f"It was no rollout of the harness {NAME}.")
            rewards = _rewards(await world.ask("verify", asked.timeout_s), asked.main)
        except HarnessError as error:
            return [Outcome(name=MAIN, reward=asked.when_failed, reason=f"no reward: {error}", by=NAME)]
        return [
            Outcome(name=name, reward=reward, reason=world.how_it_ended if name == asked.main else "", by=NAME)
            for name, reward in rewards.items()
        ]


def _rewards(given: Any, main: str) -> dict[str, float]:
    """Named rewards, the main one first. Raises HarnessError for what is none."""
    named = given if isinstance(given, dict) else {main: given}
    if main not in named:
        raise HarnessError(f"`verify` gave no {main!r} among {sorted(map(str, named))}.")
    try:
        rewards = {str(name): finite(f"`verify` gave a {name} that", value) for name, value in named.items()}
    except ValueError as error:
        raise HarnessError(f"{error}.") from None
    return {main: rewards.pop(main), **rewards}
