"""The learning half's sections: what is learned from, how, and what a new policy must prove."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from practicum.config.section import Section


class CurationConfig(Section):
    """Which feedback and calls become training rows."""

    heldout_share: float = Field(default=0.25, gt=0.0, lt=1.0)
    min_heldout_sessions: int = Field(default=8, ge=1)
    min_train_sessions: int = Field(default=12, ge=1)
    min_comment_words: int = Field(default=1, ge=1)
    max_comment_words: int = Field(default=400, ge=1)
    max_quoted_share: float = Field(default=0.4, ge=0.0, le=1.0)
    # A source may give the larger of `source_floor` items and `max_source_share` of a window's items.
    source_floor: int = Field(default=20, ge=1)
    max_source_share: float = Field(default=0.2, gt=0.0, le=1.0)


class LearnConfig(Section):
    """How a policy is trained. Token counts bound memory and time, never the gradient."""

    seed: int = 0
    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    microbatch_tokens: int = Field(default=2048, ge=64)
    checkpoint_every: int = Field(default=8, ge=1)
    # Thumbs, scores and outcomes on served answers; fewer than the minimum are too few to compare with each other.
    polarity_epochs: float = Field(default=1.0, ge=0.0)
    polarity_min: int = Field(default=8, ge=1)
    polarity_batch: int = Field(default=8, ge=1)
    polarity_learning_rate: float = Field(default=1e-4, gt=0.0)
    # Filtered behaviour cloning on corrected answers.
    clone_epochs: float = Field(default=1.0, ge=0.0)
    clone_batch: int = Field(default=5, ge=1)
    clone_kept_weight: float = Field(default=0.3, ge=0.0, le=1.0)
    clone_tries: int = Field(default=3, ge=1)
    clone_max_tokens: int = Field(default=96, ge=1)
    clone_learning_rate: float = Field(default=7e-4, gt=0.0)
    # Hindsight self-distillation on comments. A round takes every commented prompt, up to the bound; the first rounds
    # with the answers as served, the others with fresh ones.
    hindsight_served_rounds: int = Field(default=1, ge=0)
    hindsight_rounds: int = Field(default=0, ge=0)
    hindsight_prompts: int = Field(default=64, ge=1)
    hindsight_batch: int = Field(default=5, ge=1)
    hindsight_learning_rate: float = Field(default=1e-3, gt=0.0)
    # A comment is read beside so many others of the same window: what most people say comes through, oddities do not.
    hindsight_beside: int = Field(default=4, ge=0)
    hindsight_rate_decay: float = Field(default=0.3, gt=0.0, le=1.0)
    hindsight_max_tokens: int = Field(default=40, ge=1)
    contrast: float = Field(default=3.0, ge=0.0)
    plausibility: float = Field(default=0.1, ge=0.0, lt=1.0)
    # General prompts on which the policy stays what it was; `replay_prompts` none takes those that ship.
    replay_prompts: Path | None = None
    replay_rows: int = Field(default=2, ge=0)
    replay_weight: float = Field(default=1.0, ge=0.0)
    replay_max_tokens: int = Field(default=32, ge=1)
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl"
    top_k: int = Field(default=0, ge=0)
    divergence_clip: float | None = Field(default=None, gt=0.0)
    skip_tokens: int = Field(default=0, ge=0)
    kl_coef: float = Field(default=0.0, ge=0.0)
    max_kl: float = Field(default=3.0, gt=0.0)
    # `practicum serve --learn`: start a run once this many new feedback items have come in.
    every_feedback: int = Field(default=50, ge=1)


class TrainConfig(Section):
    """Group RL on tasks that can be repeated. `tasks` is a Python file with lists TRAIN and HELDOUT of tasks.

    Each of `steps` steps trains `samples` rollouts of each of `groups` tasks by `algorithm`, to which `options` belong.
    `spare_samples` further ones are started, and stopped once a group has enough. `max_staleness`: a step's groups are
    admitted so many steps ahead, and sampling goes on while the trainer works; 0 samples and trains in turn.
    `in_flight`: what was admitted ahead goes on under each step's new weights, instead of those it began under.
    `curriculum`: shuffled epochs, or tasks drawn by pass rate. `resample_rounds`: how often an algorithm that fills its
    batch may ask for further groups in a step. `sampling` and `heldout_sampling` change how tasks of in-house
    environments are sampled. Every `eval_every` steps the held-out tasks are run beside a step (0: only at the end).
    `gate`: whether the run ends in a decision about what it learned. `trackers` also get the figures of every step.
    `max_idle_steps` steps in a row without a signal end the run.
    """

    tasks: Path | None = None
    algorithm: str = "dppo"
    options: dict[str, Any] = Field(default_factory=dict)
    steps: int = Field(default=24, ge=1)
    groups: int = Field(default=4, ge=1)
    samples: int = Field(default=8, ge=2)
    spare_samples: int = Field(default=0, ge=0)
    learning_rate: float = Field(default=5e-4, gt=0.0)
    max_staleness: int = Field(default=0, ge=0)
    in_flight: bool = False
    curriculum: Literal["none", "pass_rate"] = "none"
    resample_rounds: int = Field(default=4, ge=0)
    sampling: dict[str, Any] = Field(default_factory=dict)
    heldout_sampling: dict[str, Any] = Field(default_factory=dict)
    eval_every: int = Field(default=0, ge=0)
    heldout_samples: int = Field(default=1, ge=1)
    gate: bool = True
    trackers: list[str] = Field(default_factory=list)
    max_idle_steps: int = Field(default=6, ge=1)

    @model_validator(mode="after")
    def _something_in_flight(self) -> Self:
        if self.in_flight and not self.max_staleness:
            raise ValueError(
                "in_flight needs max_staleness of 1 or more: with 0 nothing is on its way between two steps"
            )
        return self


class EvalsConfig(Section):
    """How policies are compared. `graders` is a Python file with a table GRADERS of checks on an answer."""

    graders: Path | None = None
    regression_suite: Path | None = None
    max_cases: int = Field(default=64, ge=1)
    divergence_prompts: int = Field(default=16, ge=2)
    seed: int = 11


class GateConfig(Section):
    """What a new policy must prove before it goes live; margins are shares, so 0.03 is three points."""

    min_gain: float = 0.0
    min_cases: int = Field(default=8, ge=1)
    regression_margin: float = Field(default=0.03, ge=0.0)
    on_topic_margin: float = Field(default=0.15, ge=0.0)
    well_formed_margin: float = Field(default=0.10, ge=0.0)
    max_kl: float = Field(default=0.25, gt=0.0)
