"""A rollout as a trainer takes it: its outcome, and the training rows of its session.

A rollout that cannot train names the reason, so that it is left out of the batch and of its group's baseline alike.
Groups are formed by task id and role, never by text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from practicum.episodes.rows import NO_CALL, training_rows
from practicum.types.calls import ModelCall
from practicum.types.episodes import TrainingRow
from practicum.types.rollouts import CAUSES, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """`reward` is the rollout's one reward, None where there is none. `rows` hold its trained tokens; `refusals` name
    the calls that train nothing, with the reason. `excluded` says why the rollout takes no part, None where it does.
    `truncated`: the last call that its rows train ended at the token limit.
    """

    rollout: Rollout
    rows: tuple[TrainingRow, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)
    excluded: str | None = None
    truncated: bool = False

    @property
    def group(self) -> tuple[str, str]:
        """Task id and role."""
        return self.rollout.task_id, self.rollout.role

    @property
    def reward(self) -> float | None:
        """The first outcome's reward."""
        return self.rollout.reward

    @property
    def sampled_tokens(self) -> int:
        """How many tokens it trains."""
        return sum(row.trained_tokens for row in self.rows)


def result(rollout: Rollout, calls: Sequence[ModelCall], *, max_length: int | None = None) -> RolloutResult:
    """The result of an ended rollout, from all calls of its session in order of arrival."""
    made = training_rows(calls, max_length=max_length)
    return RolloutResult(
        rollout=rollout,
        rows=made.rows,
        refusals=made.refusals,
        excluded=_excluded(rollout, bool(made.rows), made.counts),
        truncated=_truncated(calls, made.rows),
    )


def by_group(results: Iterable[RolloutResult]) -> dict[tuple[str, str], list[RolloutResult]]:
    """Results by task id and role, in the order in which they come."""
    groups: dict[tuple[str, str], list[RolloutResult]] = {}
    for one in results:
        groups.setdefault(one.group, []).append(one)
    return groups


def _truncated(calls: Sequence[ModelCall], rows: Sequence[TrainingRow]) -> bool:
    """By the finish reason of the last trained call, whatever ids end a completion."""
    trained = {call_id for row in rows for call_id in row.call_ids}
    reasons = [call.finish_reason for call in calls if call.call_id in trained]
    return bool(reasons) and reasons[-1] == "length"


def _excluded(rollout: Rollout, has_rows: bool, counts: Mapping[str, int]) -> str | None:
    if rollout.cause is None:
        return f"it has not ended: {rollout.state}"
    if rollout.cause == "no_model_call":
        return f"no_model_call: {rollout.error or NO_CALL}"
    if not rollout.scored:
        return f"{rollout.cause}: {rollout.error or CAUSES[rollout.cause].text}"
    if rollout.reward is None:
        return "no_reward: no grader was asked for"
    if not has_rows:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in counts.items())
        return f"no_trainable_token: {reasons or NO_CALL}"
    return None
