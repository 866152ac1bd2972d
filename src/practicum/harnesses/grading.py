"""What a finished rollout was worth: its graders, each with a time limit of its own and a second try.

A grader that fails, hangs or says nothing is no zero: its outcome has no reward and a reason. It must not know how a
grader comes to its word.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from practicum.errors import PracticumError
from practicum.sandboxes.sandbox import Sandbox
from practicum.types.calls import ModelCall
from practicum.types.outcomes import Outcome
from practicum.types.rollouts import Rollout, Task

_TRIES = 2
_log = logging.getLogger("practicum.harnesses.grading")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a grader may look at: the sandbox's final state, the harness's end, and the model calls of the session."""

    task: Task
    rollout: Rollout
    sandbox: Sandbox
    exit_code: int | None
    output: str
    calls: Sequence[ModelCall]


class RolloutGrader(Protocol):
    """Judges one rollout. An outcome without a reward says why; an exception means that the grader itself failed."""

    async def grade(self, evidence: Evidence) -> Sequence[Outcome]:
        """One outcome or more."""


# Makes a grader from a task's options for it. Raises UsageError for options that do not fit.
GraderFactory = Callable[[Mapping[str, Any]], RolloutGrader]


async def grade(evidence: Evidence, graders: Mapping[str, GraderFactory]) -> list[Outcome]:
    """The word of every grader that the task asks for, in its order."""
    outcomes: list[Outcome] = []
    for name, options in evidence.task.graders.items():
        outcomes += await _one(name, graders, options, evidence)
    return outcomes


async def _one(
    name: str, graders: Mapping[str, GraderFactory], options: Mapping[str, Any], evidence: Evidence
) -> Sequence[Outcome]:
    limit_s = evidence.task.timeouts.grade_s
    reason = ""
    for _ in range(_TRIES):
        try:
            async with asyncio.timeout(limit_s) as deadline:
                said = await graders[name](options).grade(evidence)
            if outcomes := [_checked(one) for one in said]:
                return outcomes
            reason = "it gave no outcome"
        except asyncio.CancelledError:
            if wanted_to_end():
                raise
            reason = "something that it waited for was cancelled"
        except TimeoutError as error:
            reason = f"it took longer than {limit_s:g} s" if deadline.expired() else f"TimeoutError: {error}"
        except PracticumError as error:
            reason = str(error)
        except Exception as error:  # a grader is the customer's own code
            _log.warning("grader %s failed on %s", name, evidence.rollout.rollout_id, exc_info=error)
            reason = f"{type(error).__name__}: {error}"
    return [Outcome(name=name, reward=None, reason=f"the grader failed {_TRIES} times: {reason}", by=name)]


def wanted_to_end() -> bool:
    """Whether this task is being cancelled; else a CancelledError comes from what a customer's code waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _checked(said: Any) -> Outcome:
    """An outcome as it can be recorded. Raises TypeError for anything else."""
    if not isinstance(said, Outcome):
        raise TypeError(f"it gave {type(said).__name__} in place of an Outcome")
    for name in ("name", "reason", "by"):
        if not isinstance(getattr(said, name), str):
            raise TypeError(f"the `{name}` of its outcome is no text")
    return replace(said, reward=None if said.reward is None else float(said.reward))
