"""Tasks in Harbor's format: `tests/test.sh` judges the sandbox and writes the reward.

The tests and the folder for the reward are put in place after the harness has ended, fresh, over whatever it left
there; so a reward that the policy wrote is never read, and the tests were never there to be read. As in Harbor,
/logs/verifier/reward.json (named rewards) goes before reward.txt (one number), and the script's exit status says
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from practicum.environments.harbor import HarborTask, load_task
from practicum.errors import NotFound, SandboxError, UsageError
from practicum.feedback.graders.exit_status import CHECK_ENV
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

NAME = "harbor"
_TESTS, _LOGS = "/tests", "/logs/verifier"


class HarborOptions(Options):
    """`path` is the task's folder, below the folder of graders. Its own timeout holds where `timeout_s` is not given.
    `main` names the reward that counts where there are several."""

    path: str
    timeout_s: float | None = Field(default=None, gt=0)
    main: str = MAIN


class HarborGrader:
    """Runs a task's tests. Raises UsageError for wrong options and for a task that cannot be judged here."""

    def __init__(self, given: Mapping[str, Any], within: Path) -> None:
        self._options = options(HarborOptions, given, NAME)
        self._task = load_task(within / self._options.path)

    async def grade(self, evidence: Evidence) -> Sequence[Outcome]:
        """One outcome for each reward that the tests wrote, the main one first."""
        asked = self._options
        try:
            rewards = await _tested(self._task, asked.timeout_s or self._task.verifier_timeout_s, evidence)
            return outcomes(rewards, NAME, asked.main)
        except (Failed, SandboxError) as error:
            return could_not_tell(NAME, asked, str(error))


async def _tested(task: HarborTask, timeout_s: float, evidence: Evidence) -> dict[str, float]:
    sandbox = evidence.sandbox
    await sandbox.place(_LOGS, {})
    await sandbox.place(_TESTS, task.tests)
    done = await sandbox.run(["bash", f"{_TESTS}/test.sh"], env={**CHECK_ENV, **task.verifier_env}, timeout_s=timeout_s)
    status = ended_well(done, timeout_s)
    for name in ("reward.json", "reward.txt"):
        try:
            text = await sandbox.read(f"{_LOGS}/{name}")
        except NotFound:
            continue
        except UsageError as error:  # a link, a folder, a pipe
            raise Failed(str(error)) from error
        return parse_rewards(text)
    tail = (done.stderr.strip() or done.stdout.strip())[-300:]
    raise Failed(f"tests/test.sh ended with status {status} and wrote no reward: {tail}")
