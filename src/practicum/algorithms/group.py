"""The base of the group algorithms: each rollout against its siblings on the same task.

A group is the rollouts of one task in one role, by id. Credit is given once, from the rewards, before anything is left
out of the rows; what takes no part (no reward, no sampled token, cut off where that is masked) is out of the baseline
and out of the rows alike, and counted with its reason. Rows of one rollout share its advantage and weigh by their
sampled tokens, so however a harness cuts a rollout into rows changes nothing.

A rollout without a reward is not a zero. A group's spread is its largest minus its smallest reward, never a standard
deviation, so rounding makes no signal. The module knows neither the trainer nor how rollouts are run.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeGuard, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from practicum.types.episodes import TrainingRow
from practicum.types.training import Batch, Datum, PolicyGradient, Stream

NO_SIGNAL = "its group has no signal"
TRUNCATED = "cut off at the token limit"
STD_FLOOR = 1e-4

Aggregation = Literal["grpo", "dr_grpo", "dapo", "bnpo"]
Bounds = Annotated[tuple[float, float], Field(strict=False)]
Credit = Callable[[Sequence[float]], Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One rollout: its reward (None where there is none, with the `cause`), and the rows made of its calls.

    `group` names task and role; two tasks with the same text are two groups. `truncated`: its last completion was cut
    off at the token limit. `feedback` is what was said about it, as text.
    """

    rollout_id: str
    group: Hashable
    reward: float | None
    rows: Sequence[TrainingRow]
    cause: str = ""
    truncated: bool = False
    feedback: str = ""

    @property
    def length(self) -> int:
        """Tokens it sampled and trains."""
        return sum(row.trained_tokens for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """What became of a batch of rollouts. `advantages` by rollout id; `left_out` counts rollouts by reason."""

    advantages: Mapping[str, float]
    left_out: Mapping[str, int] = field(default_factory=dict)


class Options(BaseModel):
    """Options of an algorithm: frozen, strict, and a name that there is not is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


class GroupOptions(Options):
    """What every group algorithm can be told.

    `anchor_dead_groups`: rollouts whose group has no signal stay in the batch with advantage 0; they count in the
    normaliser and feel whatever holds the policy to its reference. By default they are left out.
    `mask_truncated`: a rollout that was cut off takes no part.
    `aggregation`: what a token's loss is divided by. grpo: the rollout's tokens, then the number of rollouts; dr_grpo:
    `max_length` (the most tokens that a rollout may sample), then the number of rollouts; dapo, bnpo: all tokens of the
    step, which are one and the same here, since how a batch is split changes nothing.
    The others are those of `types.training.PolicyGradient`.
    """

    anchor_dead_groups: bool = False
    mask_truncated: bool = False
    aggregation: Aggregation = "dapo"
    max_length: PositiveInt | None = None
    against: Literal["sampler", "proximal"] = "sampler"
    negative_scale: float = Field(1.0, ge=0)
    tis_cap: float | None = Field(None, gt=0)
    icepop: Bounds | None = None
    geometric: Bounds | None = None
    max_k3: float | None = Field(None, ge=0)
    veto: float | None = Field(None, ge=0)
    max_drift: float | None = Field(None, ge=0)
    sequence_delta: float | None = None
    kl_coef: float = Field(0.0, ge=0)
    kl_kind: Literal["full", "k2", "k3"] = "full"
    kl_unbiased: bool = False

    @model_validator(mode="after")
    def _has_length(self) -> GroupOptions:
        if self.aggregation == "dr_grpo" and self.max_length is None:
            raise ValueError("aggregation dr_grpo needs max_length, the most tokens that a rollout may sample")
        return self


class ScaledOptions(GroupOptions):
    """`scale` divides r - mean by the standard deviation (of n - 1) of the group or of the batch, plus 1e-4."""

    scale: Literal["none", "group", "batch"] = "none"


class TrustOptions(GroupOptions):
    """`cap` bounds the ratio; `trust_above`, `trust_below` are the trust mask's thresholds on pi - mu (None: none)."""

    cap: float | None = Field(2.0, gt=0)
    trust_above: float | None = Field(0.2, ge=0)
    trust_below: float | None = Field(0.2, ge=0)


class ClipOptions(ScaledOptions):
    """PPO's clip to [1 - clip_low, 1 + clip_high], and `dual_clip` for A < 0."""

    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.2, ge=0)
    dual_clip: float | None = None


Chosen = TypeVar("Chosen", bound=GroupOptions)


class GroupAlgorithm(Generic[Chosen]):
    """Credit by `credit`, weights by the aggregation, one `policy_gradient` stream.

    `resamples`: further groups are to be drawn until enough have a signal. A subclass sets `name`, `Options` and what
    it fixes of the `PolicyGradient`, and may override `credit` and `shaped`.
    """

    name: ClassVar[str]
    Options: ClassVar[type[GroupOptions]]
    fixed: ClassVar[Mapping[str, Any]] = {}
    resamples: ClassVar[bool] = False
    distill: ClassVar[Mapping[str, Any] | None] = None

    def __init__(self, options: Chosen) -> None:
        self.options = options
        known = {each.name for each in fields(PolicyGradient)} & set(type(options).model_fields)
        self.policy_gradient = PolicyGradient(**{name: getattr(options, name) for name in known}, **self.fixed)

    @property
    def needs_proximal(self) -> bool:
        """Whether rows must carry `old_logprobs`."""
        return self.policy_gradient.against == "proximal"

    @property
    def needs_reference(self) -> bool:
        """Whether the trainer must hold a reference policy."""
        return self.policy_gradient.kl_coef > 0

    def credit(self, rewards: Sequence[float], everyone: Sequence[float]) -> Sequence[float]:
        """A [n] of one group's rewards [n], two or more that differ; `everyone`: the rewards of the whole batch."""
        raise NotImplementedError

    def shaped(self, rollout: Graded) -> float:
        """The reward that credit is given for; that it is a finite number is known."""
        assert rollout.reward is not None
        return rollout.reward

    def groups(self, rollouts: Sequence[Graded]) -> Groups:
        """Advantages of rollouts by their groups, and why the others have none."""
        members: dict[Hashable, list[Graded]] = defaultdict(list)
        left_out: Counter[str] = Counter()
        for rollout in rollouts:
            if (reason := absent(rollout, mask_truncated=self.options.mask_truncated)) is not None:
                left_out[reason] += 1
            else:
                members[rollout.group].append(rollout)
        everyone = [self.shaped(each) for group in members.values() for each in group]
        found: dict[str, float] = {}
        for group in members.values():
            values = self._credited(group, everyone)
            if any(values):
                found.update(zip((each.rollout_id for each in group), values, strict=True))
            else:
                left_out[NO_SIGNAL] += len(group)
        return Groups(advantages=found, left_out=dict(left_out))

    def signal(self, rollouts: Sequence[Graded]) -> frozenset[Hashable]:
        """The groups that teach something."""
        advantages = self.groups(rollouts).advantages
        return frozenset(each.group for each in rollouts if each.rollout_id in advantages)

    def batch(self, rollouts: Sequence[Graded], *, on_policy: bool = False) -> Batch:
        """The rows of one step.

        Args:
            rollouts: of whole groups.
            on_policy: whether the trainer's weights as they stand sampled all of them.
        """
        options, groups = self.options, self.groups(rollouts)
        kept = [
            each
            for each in rollouts
            if each.rollout_id in groups.advantages
            or (options.anchor_dead_groups and absent(each, mask_truncated=options.mask_truncated) is None)
        ]
        weights = token_weights(kept, options.aggregation, options.max_length)
        rows = [
            datum(row, weights[rollout.rollout_id], advantage=groups.advantages.get(rollout.rollout_id, 0.0))
            for rollout in kept
            for row in rollout.rows
            if row.trained_tokens
        ]
        left_out = dict(groups.left_out)
        if options.anchor_dead_groups:
            left_out.pop(NO_SIGNAL, None)
        live = {each.group for each in kept if each.rollout_id in groups.advantages}
        figures = {"with_signal": float(len(groups.advantages)), "groups_with_signal": float(len(live))}
        return Batch(
            streams=(
                Stream(
                    loss="policy_gradient",
                    rows=rows,
                    anchor=not groups.advantages,
                    policy_gradient=self.policy_gradient,
                ),
            ),
            sampled_tokens=sum(rollout.length for rollout in rollouts),
            on_policy=on_policy,
            facts=facts(rollouts, left_out) | figures,
        )

    def _credited(self, group: Sequence[Graded], everyone: Sequence[float]) -> Sequence[float]:
        plain, shaped = [each.reward or 0.0 for each in group], [self.shaped(each) for each in group]
        if len(group) < 2 or max(plain) == min(plain) or max(shaped) == min(shaped):
            return [0.0] * len(group)
        return self.credit(shaped, everyone)


def absent(rollout: Graded, *, mask_truncated: bool, needs_reward: bool = True) -> str | None:
    """Why a rollout takes no part, or None."""
    if not rollout.length:
        return rollout.cause or "no sampled token"
    if needs_reward and not scored(rollout.reward):
        return rollout.cause or "no reward"
    return TRUNCATED if mask_truncated and rollout.truncated else None


def less_mean(rewards: Sequence[float]) -> list[float]:
    """r - mean: `[n]`."""
    mean = math.fsum(rewards) / len(rewards)
    return [value - mean for value in rewards]


def standardised(
    rewards: Sequence[float], everyone: Sequence[float], scale: Literal["none", "group", "batch"]
) -> list[float]:
    """(r - mean of the group) / (std + 1e-4), the std (of n - 1) the group's or the batch's: `[n]`."""
    if scale == "none":
        return less_mean(rewards)
    std = _std(rewards if scale == "group" else everyone) + STD_FLOOR
    return [value / std for value in less_mean(rewards)]


def token_weights(kept: Sequence[Graded], aggregation: Aggregation, max_length: int | None) -> dict[str, float]:
    """The weight of each rollout's tokens, by rollout id; what they sum to is the aggregation's matter."""
    total = sum(rollout.length for rollout in kept)
    count = len(kept)
    if aggregation == "grpo":
        return {each.rollout_id: 1.0 / (count * each.length) for each in kept}
    if aggregation == "dr_grpo":
        assert max_length is not None
        return {each.rollout_id: 1.0 / (count * max_length) for each in kept}
    return {each.rollout_id: 1.0 / total for each in kept}


def datum(row: TrainingRow, weight: float, *, advantage: float | None = None) -> Datum:
    """A row of which every sampled token weighs `weight`, and what the policy did not sample nothing."""
    return Datum(
        row_id=row.row_id,
        prompt_ids=row.prompt_ids,
        completion_ids=row.completion_ids,
        weights=tuple(weight if own else 0.0 for own in row.mask),
        advantages=None if advantage is None else (advantage,) * len(row.completion_ids),
        logprobs=row.logprobs,
        temperature=row.temperature,
    )


def facts(rollouts: Sequence[Graded], left_out: Mapping[str, int]) -> dict[str, float]:
    """Figures of a step's rollouts: how many, their mean reward and length, and how many were left out and why."""
    rewards = [each.reward for each in rollouts if scored(each.reward)]
    sampled = [each.length for each in rollouts if each.length]
    figures = {
        "rollouts": float(len(rollouts)),
        "groups": float(len({each.group for each in rollouts})),
        "graded": float(len(rewards)),
        "truncated": float(sum(each.truncated for each in rollouts)),
        "rows": float(sum(len(each.rows) for each in rollouts)),
    }
    if rewards:
        figures["reward"] = math.fsum(rewards) / len(rewards)
    if sampled:
        figures["tokens_per_rollout"] = sum(sampled) / len(sampled)
    return figures | {f"left_out/{reason}": float(count) for reason, count in left_out.items()}


def scored(reward: float | None) -> TypeGuard[float]:
    """Whether there is a reward: a finite number."""
    return reward is not None and math.isfinite(reward)


def _std(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(each * each for each in less_mean(values)) / (len(values) - 1))
