"""A command or a script in the sandbox's final state: it ends with 0, or it prints what the rollout was worth.

A check says "wrong" with an exit status from 1 to 125. 126 and 127 are the shell's own (there is no such program), and
above 128 it was killed: then the check itself failed, and there is no reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from practicum.errors import SandboxError
from practicum.feedback.graders.grader import (
    MAIN,
    Evidence,
    Failed,
    Options,
    could_not_tell,
    ended_well,
    options,
    outcomes,
    parse_rewards,
)
from practicum.types.outcomes import Outcome

NAME = "exit_status"
# What an agent left in its HOME must not be imported into the check.
CHECK_ENV = {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class ExitStatusOptions(Options):
    """`command`, or `script` for `interpreter`'s standard input. `files` are put in place first, over what is there.

    With `reward` "printed", the last line of stdout is the reward, a number or a JSON object of numbers, and an exit
    status other than 0 is a failure.
    """

    command: list[str] = Field(default_factory=list)
    script: str = ""
    interpreter: list[str] = Field(default_factory=lambda: ["sh", "-s"])
    files: dict[str, str] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    timeout_s: float = Field(default=240.0, gt=0)
    reward: Literal["exit_status", "printed"] = "exit_status"
    main: str = MAIN

    @model_validator(mode="after")
    def _one_of_both(self) -> ExitStatusOptions:
        if bool(self.command) == bool(self.script) or not self.interpreter:
            raise ValueError("give either `command` or `script`")
        return self


class ExitStatusGrader:
    """Runs the check. Raises UsageError for wrong options."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._options = options(ExitStatusOptions, given, NAME)

    async def grade(self, evidence: Evidence) -> Sequence[Outcome]:
        """One outcome, or one for each named reward that was printed."""
        asked = self._options
        try:
            return outcomes(await self._rewards(evidence), NAME, asked.main)
        except (Failed, SandboxError) as error:
            return could_not_tell(NAME, asked, str(error))

    async def _rewards(self, evidence: Evidence) -> dict[str, float]:
        asked = self._options
        for path, content in asked.files.items():
            await evidence.sandbox.write(path, content)
        done = await evidence.sandbox.run(
            asked.command or asked.interpreter,
            env={**CHECK_ENV, **asked.env},
            stdin=asked.script,
            timeout_s=asked.timeout_s,
        )
        status = ended_well(done, asked.timeout_s)
        printed = asked.reward == "printed"
        if status in (126, 127) or status > 128 or (printed and status != 0):
            raise Failed(f"it ended with status {status}: {(done.stderr.strip() or done.stdout.strip())[-300:]}")
        if not printed:
            return {asked.main: float(status == 0)}
        lines = done.stdout.strip().splitlines()
        if not lines:
            raise Failed("it printed no reward")
        return parse_rewards(lines[-1])
