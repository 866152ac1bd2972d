"""Group-relative policy gradient (GRPO): each rollout against its siblings on the same task.

    A_i = r_i - mean_g r                                       over the siblings that have a reward
    L   = - (1 / N) sum_i sum_t m_t keep_t sg[min(pi/mu, 2)] A_i log pi(y_t | y_<t)

A group is the rollouts of one task in one role; m masks what the policy did not sample; N is the number of sampled
tokens of all groups that have a signal, so the rows of one rollout share its advantage and weigh by their tokens, and
however a harness cuts a rollout into rows changes nothing. Sources: groups as baseline, GRPO (arXiv 2402.03300); no
division by the standard deviation, Dr. GRPO (arXiv 2503.20783); a token-level sum over the batch and groups without a
signal left out, DAPO (arXiv 2503.14476); the ratio and the trust mask, `losses.policy_gradient`.
Deviations: 1. mu is the sampler's own logprob, there is no third policy. 2. The spread of a group is its largest minus
its smallest reward, not a standard deviation, so rounding never makes a signal.

A rollout without a reward is not a zero: it is in no baseline and in no row, and its cause is counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from practicum.types.episodes import TrainingRow
from practicum.types.training import Batch, Datum, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One rollout: its reward (None where there is none, with the `cause`), and the rows made of its calls.

    `group` names task and role; two tasks with the same text are two groups.
    """

    rollout_id: str
    group: Hashable
    reward: float | None
    rows: Sequence[TrainingRow]
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """What became of a batch of rollouts. `advantages` by rollout id; `left_out` counts rollouts by reason."""

    advantages: Mapping[str, float]
    left_out: Mapping[str, int] = field(default_factory=dict)


def advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """A [n] of one group's rewards [n]; None for one without a finite reward, and for all where there is no signal.

    There is no signal where fewer than two rewards are known, or all of them are equal.
    """
    known = [value for value in rewards if _scored(value)]
    if len(known) < 2 or max(known) == min(known):
        return [None] * len(rewards)
    mean = math.fsum(known) / len(known)
    return [value - mean if _scored(value) else None for value in rewards]


def grouped(rollouts: Sequence[Graded]) -> Groups:
    """Advantages of rollouts by their groups, and why the others have none."""
    members: dict[Hashable, list[Graded]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for rollout in rollouts:
        if not any(row.trained_tokens for row in rollout.rows):
            left_out[rollout.cause or "no sampled token"] += 1
        else:
            members[rollout.group].append(rollout)
    found: dict[str, float] = {}
    for group in members.values():
        for rollout, advantage in zip(group, advantages([each.reward for each in group]), strict=True):
            if advantage is not None:
                found[rollout.rollout_id] = advantage
            elif not _scored(rollout.reward):
                left_out[rollout.cause or "no reward"] += 1
            else:
                left_out["its group has no signal"] += 1
    return Groups(advantages=found, left_out=dict(left_out))


def batch(rollouts: Sequence[Graded], *, anchor_dead_groups: bool = False) -> Batch:
    """The rows of one step.

    Args:
        rollouts: of whole groups.
        anchor_dead_groups: whether rollouts whose group has no signal stay in the batch with advantage 0. They then
            count in N and feel whatever holds the policy to its reference; by default they are left out.
    """
    groups = grouped(rollouts)
    kept = [each for each in rollouts if each.rollout_id in groups.advantages or (anchor_dead_groups and _usable(each))]
    total = sum(row.trained_tokens for rollout in kept for row in rollout.rows)
    rows = [
        _datum(row, groups.advantages.get(rollout.rollout_id, 0.0), total)
        for rollout in kept
        for row in rollout.rows
        if row.trained_tokens
    ]
    return Batch(
        streams=(Stream(loss="policy_gradient", rows=rows, anchor=not groups.advantages),),
        sampled_tokens=sum(row.trained_tokens for rollout in rollouts for row in rollout.rows),
        on_policy=True,
        facts=_facts(rollouts, groups),
    )


def _datum(row: TrainingRow, advantage: float, total: int) -> Datum:
    return Datum(
        row_id=row.row_id,
        prompt_ids=row.prompt_ids,
        completion_ids=row.completion_ids,
        weights=tuple(1.0 / total if own else 0.0 for own in row.mask),
        advantages=(advantage,) * len(row.completion_ids),
        logprobs=row.logprobs,
        temperature=row.temperature,
    )


def _facts(rollouts: Sequence[Graded], groups: Groups) -> dict[str, float]:
    rewards = [each.reward for each in rollouts if _scored(each.reward)]
    figures = {
        "rollouts": float(len(rollouts)),
        "graded": float(len(rewards)),
        "with_signal": float(len(groups.advantages)),
        "rows": float(sum(len(each.rows) for each in rollouts)),
    }
    if rewards:
        figures["reward"] = math.fsum(rewards) / len(rewards)
    return figures | {f"left_out/{reason}": float(count) for reason, count in groups.left_out.items()}


def _usable(rollout: Graded) -> bool:
    return _scored(rollout.reward) and any(row.trained_tokens for row in rollout.rows)


def _scored(reward: float | None) -> TypeGuard[float]:
    return reward is not None and math.isfinite(reward)
