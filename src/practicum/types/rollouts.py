"""A task for a black-box agent, a group of rollouts of it, and how each of them ended.

Every ended rollout has one cause, and the cause says whether the policy could have brought it about. What the policy
can reach is scored; what it cannot reach is retried, or left out of the gradient and of the baseline. One table says
which is which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from practicum.errors import RequestError
from practicum.types.outcomes import Outcome

RolloutState = Literal["queued", "preparing", "ready", "running", "open", "grading", "ended"]
Stage = Literal["prepare", "run", "grade"]
Cause = Literal[
    "finished",
    "agent_failed",
    "agent_timeout",
    "no_model_call",
    "sandbox_failed",
    "harness_failed",
    "endpoint_failed",
    "interrupted",
    "grader_failed",
    "expired",
    "cancelled",
    "stopped_early",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseMeaning:
    """`scored`: the sandbox's final state is graded. `retried`: a further attempt is made while some are left."""

    scored: bool
    policy_could_cause: bool
    retried: bool
    text: str


def _policy(text: str) -> CauseMeaning:
    return CauseMeaning(scored=True, policy_could_cause=True, retried=False, text=text)


def _fault(text: str, *, retried: bool) -> CauseMeaning:
    return CauseMeaning(scored=False, policy_could_cause=False, retried=retried, text=text)


CAUSES: Mapping[Cause, CauseMeaning] = {
    "finished": _policy("the harness came to its end by itself"),
    "agent_failed": _policy("the harness ended by itself, but not well, and the model endpoint was well"),
    "agent_timeout": _policy("the agent's own time was used up; waiting for us does not count"),
    "no_model_call": _fault("no sampled token is on record for it: wrong address, refused stream", retried=False),
    "sandbox_failed": _fault("the sandbox could not be made, or not in time", retried=True),
    "harness_failed": _fault("the harness could not be started or was lost", retried=True),
    "endpoint_failed": _fault("the harness failed and a model call of it had failed on our side", retried=True),
    "interrupted": _fault("the service stopped, or failed, while it ran", retried=True),
    "grader_failed": _fault("the rollout ended, and the first grader could not tell what it was worth", retried=False),
    "expired": _fault("its whole time was used up, though the agent's own was not", retried=False),
    "cancelled": _fault("somebody called it off", retried=False),
    "stopped_early": _fault("its group had enough samples", retried=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Nested limits in seconds, for each attempt.

    `agent_s` bounds each instruction on the agent's clock, which stands still while its model calls wait for us.
    `grade_s` bounds each grader. `whole_s` bounds preparation, instructions and grading together, by the wall; time in
    a queue or kept open is not in it.
    """

    prepare_s: float = 120.0
    agent_s: float = 1800.0
    grade_s: float = 300.0
    whole_s: float = 7200.0

    def __post_init__(self) -> None:
        for name in ("prepare_s", "agent_s", "grade_s"):
            if not 0 < getattr(self, name) <= self.whole_s:
                raise RequestError(
                    f"`timeouts.{name}` must be above 0 and at most `timeouts.whole_s` ({self.whole_s:g}).",
                    param=f"timeouts.{name}",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked of an agent, how often, and how it is judged.

    `instructions` are played one after the other in the same sandbox. `graders` maps a grader's name to its options;
    the first one's first outcome is the rollout's reward. `workdir` is where the working folder must appear inside the
    sandbox. `model` None is the live policy. `keep_open_s` keeps the sandbox for further instructions. `stop_after`
    ends the group early once so many rollouts of it are scored. Groups are formed by `task_id` and `role`.
    """

    task_id: str
    instructions: tuple[str, ...]
    harness: str
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    graders: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    num_samples: int = 1
    priority: int = 0
    timeouts: Timeouts = Timeouts()
    role: str = "agent"
    model: str | None = None
    keep_open_s: float = 0.0
    stop_after: int | None = None
    callback_url: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.instructions, str):
            object.__setattr__(self, "instructions", (self.instructions,))
        for wrong, name, rule in (
            (not self.task_id, "task_id", "must not be empty"),
            (not self.instructions or not all(self.instructions), "instructions", "needs at least one, none empty"),
            (self.num_samples < 1, "num_samples", "must be at least 1"),
            (self.keep_open_s < 0, "keep_open_s", "must not be negative"),
            (self.stop_after is not None and self.stop_after < 1, "stop_after", "must be at least 1"),
        ):
            if wrong:
                raise RequestError(f"`{name}` {rule}.", param=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One stage of one attempt. `wall_s` is time by the wall, `stalled_s` how much of it model calls waited for us."""

    attempt: int
    stage: Stage
    started_at: float
    wall_s: float
    stalled_s: float = 0.0

    @property
    def agent_s(self) -> float:
        """Time on the agent's clock."""
        return max(0.0, self.wall_s - self.stalled_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt that did not count, and the session that holds what it had sampled until then."""

    number: int
    session_id: str
    cause: Cause
    error: str | None
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One run of a task. `index` counts within the group from 0, `attempt` from 1 (0: none yet); times are UTC seconds.

    `instructions` are the task's and those that were added since; `turns_done` of them were played in this attempt.
    `session_id` holds the calls of the current attempt, `attempts` those before it. `output` is the harness's answer.
    """

    rollout_id: str
    group_id: str
    task_id: str
    role: str
    index: int
    state: RolloutState
    instructions: tuple[str, ...]
    attempt: int = 0
    session_id: str = ""
    turns_done: int = 0
    cause: Cause | None = None
    error: str | None = None
    output: str = ""
    created_at: float
    ended_at: float | None = None
    outcomes: tuple[Outcome, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    stages: tuple[StageTime, ...] = ()

    @property
    def policy_could_cause(self) -> bool | None:
        """Whether the policy could have brought about this end; None while it runs."""
        return None if self.cause is None else CAUSES[self.cause].policy_could_cause

    @property
    def scored(self) -> bool:
        """Whether it ended in a way that is scored."""
        return self.cause is not None and CAUSES[self.cause].scored

    @property
    def reward(self) -> float | None:
        """The first outcome's reward; None where there is none, which is not a zero."""
        return self.outcomes[0].reward if self.scored and self.outcomes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A submission: a task and the rollouts of it, by `principal`. `callback` says what became of telling its end:
    `none` asked for, `pending`, `delivered`, or `failed: REASON`."""

    group_id: str
    principal: str
    task: Task
    created_at: float
    callback: str = "none"
    rollouts: tuple[Rollout, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether all of its rollouts have."""
        return all(rollout.state == "ended" for rollout in self.rollouts)
