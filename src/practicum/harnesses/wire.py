"""The rollout service's bodies on the wire, strict: an unknown field is an error, and the field at fault is named.

It must not know the service.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from practicum.harnesses.results import RolloutResult
from practicum.types.rollouts import CAUSES, Cause, Group, Rollout, RolloutState, Stage, Task, Timeouts

Text = Annotated[str, Field(min_length=1)]
_MOST_SAMPLES = 1024
_LIMITS = Timeouts()


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class TimeoutsBody(_Body):
    """Seconds. `agent_s` is counted on the agent's clock, the others by the wall."""

    prepare_s: float = Field(default=_LIMITS.prepare_s, gt=0)
    agent_s: float = Field(default=_LIMITS.agent_s, gt=0)
    grade_s: float = Field(default=_LIMITS.grade_s, gt=0)
    whole_s: float = Field(default=_LIMITS.whole_s, gt=0)


class TaskBody(_Body):
    """A task, and how many rollouts of it. Sending it again under the same `submission_key` gives the same group."""

    task_id: Text
    instructions: list[Text] = Field(min_length=1, description="Played one after the other in the same sandbox.")
    harness: Text
    options: dict[str, Any] = Field(default={}, description="The harness's own.")
    files: dict[str, str] = Field(default={}, description="Text by path, in the sandbox before the harness starts.")
    env: dict[str, str] = {}
    workdir: Text | None = Field(default=None, description="Where the working folder appears in the sandbox: `/app`.")
    graders: dict[str, dict[str, Any]] = Field(
        default={}, description="Options by grader; the first grader's first outcome is the reward."
    )
    num_samples: int = Field(default=1, ge=1, le=_MOST_SAMPLES)
    priority: int = Field(default=0, ge=-1000, le=1000, description="Higher goes first.")
    timeouts: TimeoutsBody = TimeoutsBody()
    role: Text = "agent"
    model: Text | None = None
    keep_open_s: float = Field(default=0.0, ge=0, description="Keep the sandbox for further instructions.")
    stop_after: int | None = Field(default=None, ge=1, description="Stop the group once so many are scored.")
    callback_url: Text | None = None
    submission_key: Text | None = None

    def task(self) -> Task:
        """The record."""
        given = self.model_dump(exclude={"submission_key", "timeouts"})
        return Task(
            **{**given, "instructions": tuple(self.instructions), "timeouts": Timeouts(**self.timeouts.model_dump())}
        )


class CancelBody(_Body):
    """One rollout of the group; all of it where there is none."""

    rollout_id: Text | None = None


class ContinueBody(_Body):
    """A further instruction, or `end` to let a rollout that is kept open go on to its grading.

    `turn`, the new instruction's number from 0, makes a repeated request harmless.
    """

    rollout_id: Text
    instruction: Text | None = None
    turn: int | None = Field(default=None, ge=0)
    end: bool = False


class OutcomeBody(_Body):
    """What one grader said. A `reward` of null is no zero: `reason` says why there is none."""

    name: str
    reward: float | None
    reason: str
    by: str


class AttemptBody(_Body):
    """An attempt that did not count."""

    number: int
    session_id: str
    cause: Cause
    error: str | None
    ended_at: float


class StageBody(_Body):
    """Time in one stage, on both clocks."""

    attempt: int
    stage: Stage
    started_at: float
    wall_s: float
    stalled_s: float


class RolloutBody(_Body):
    """One rollout as it stands."""

    object: Literal["rollout"] = "rollout"
    rollout_id: str
    group_id: str
    task_id: str
    role: str
    index: int
    state: RolloutState
    instructions: list[str]
    attempt: int
    session_id: str
    turns_done: int
    cause: Cause | None
    policy_could_cause: bool | None
    error: str | None
    output: str
    created_at: float
    ended_at: float | None
    reward: float | None
    outcomes: list[OutcomeBody]
    attempts: list[AttemptBody]
    stages: list[StageBody]


class GroupBody(_Body):
    """A group as it stands. `counts` says how many rollouts are in each state."""

    object: Literal["rollout.group"] = "rollout.group"
    group_id: str
    task_id: str
    ended: bool
    created_at: float
    callback: str
    counts: dict[str, int]
    rollouts: list[RolloutBody]


class RowBody(_Body):
    """A training row: `prompt_ids`, then one entry for each further token; trained where `mask` holds."""

    row_id: str
    episode_id: str
    session_id: str
    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[bool]
    logprobs: list[float | None]
    versions: list[int | None]
    temperature: float
    call_ids: list[str]


class ResultBody(_Body):
    """A rollout with its tokens. `excluded` says why it must be left out of batch and baseline, null where not."""

    rollout: RolloutBody
    excluded: str | None
    rows: list[RowBody]
    refusals: dict[str, str]


class ResultsBody(_Body):
    """Results in the order in which rollouts ended; `ended` once there will be no more."""

    object: Literal["list"] = "list"
    data: list[ResultBody]
    ended: bool


def rollout_body(rollout: Rollout) -> RolloutBody:
    """A rollout on the wire."""
    given = asdict(rollout) | {
        "instructions": list(rollout.instructions),
        "policy_could_cause": rollout.policy_could_cause,
        "reward": rollout.reward,
    }
    for name in ("outcomes", "attempts", "stages"):
        given[name] = list(given[name])
    return RolloutBody.model_validate(_utf8(given))


def group_body(group: Group) -> GroupBody:
    """A group on the wire."""
    counts: dict[str, int] = {}
    for rollout in group.rollouts:
        counts[rollout.state] = counts.get(rollout.state, 0) + 1
    return GroupBody(
        group_id=group.group_id,
        task_id=group.task.task_id,
        ended=group.ended,
        created_at=group.created_at,
        callback=group.callback,
        counts=counts,
        rollouts=[rollout_body(rollout) for rollout in group.rollouts],
    )


def result_body(result: RolloutResult) -> ResultBody:
    """A result on the wire."""
    rows = [{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(row).items()} for row in result.rows]
    return ResultBody(
        rollout=rollout_body(result.rollout),
        excluded=result.excluded,
        rows=[RowBody.model_validate(row) for row in rows],
        refusals=dict(result.refusals),
    )


def _utf8(value: Any) -> Any:
    """Harnesses and graders may say what has no UTF-8, and an answer must have it."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {name: _utf8(member) for name, member in value.items()}
    return [_utf8(member) for member in value] if isinstance(value, list) else value


def causes_table() -> str:
    """What each cause means, for the document."""
    lines = [f"- `{cause}`: {meaning.text}." for cause, meaning in CAUSES.items()]
    return "Causes of an end:\n\n" + "\n".join(lines)
