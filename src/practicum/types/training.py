"""What crosses the trainer seam: a `Datum` a row, losses by name, sums and not means.

The loss is a sum over tokens; every normalisation is the caller's and sits in `weights`, so that how a batch is split
changes nothing. Teacher ids let the trainer score the same completion under another prompt (hindsight).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# cross_entropy:      - sum_t w_t log pi(y_t)
# policy_gradient:    - sum_t w_t A_t min(pi/mu, cap) log pi(y_t), the ratio detached; needs `advantages`, `logprobs`
# distill:            sum_t w_t D(pi(.|x, y<t) || q(.|teacher prompt, y<t)); needs `teacher_prompt_ids`; at `written`
#                     tokens - w_t log pi(y_t) instead
LossName = Literal["cross_entropy", "policy_gradient", "distill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One training row: `prompt_ids: [P]` (never trained on), `completion_ids: [T]`, and per completion token
    `weights: [T]` (0 masks it), `advantages: [T]`, `logprobs: [T]` (the sampler's, None where unknown).

    `teacher_prompt_ids: [P']` is the prompt with hindsight; teacher and student share the completion's ids exactly.
    `contrast_prompt_ids: [P'']` is what the teacher's prompt would be had nothing of consequence been said (None: the
    row's own prompt). `against` is the frozen policy that teaches.

    `written: [T]` is true for tokens that a person wrote: they are cloned. At the others the teacher says `redirect`'s
    second id where it would have ended, by one of the first ones (None: it ends there).
    """

    row_id: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    weights: tuple[float, ...]
    advantages: tuple[float, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None
    teacher_prompt_ids: tuple[int, ...] | None = None
    contrast_prompt_ids: tuple[int, ...] | None = None
    against: Literal["teacher", "reference"] = "teacher"
    written: tuple[bool, ...] | None = None
    redirect: tuple[tuple[int, ...], int] | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("weights", "advantages", "logprobs", "written"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.completion_ids):
                raise ValueError(
                    f"row {self.row_id}: {name} has {len(value)} entries, the completion "
                    f"{len(self.completion_ids)}; never pad, never shift"
                )
        if not self.prompt_ids:
            raise ValueError(f"row {self.row_id}: the prompt is empty, so the first token has no context")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Rows that go through one loss. Several streams of a batch add up in one step; `name` is for their figures.

    `anchor`: the rows only hold the policy where it is, so they are no signal by themselves.
    """

    loss: LossName
    rows: Sequence[Datum]
    name: str = ""
    anchor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one step. `sampled_tokens` were drawn freshly for it; `facts` are figures to log beside the step.

    `on_policy`: the trainer's current weights sampled the rows, so their logprobs must be what it recomputes.
    """

    streams: Sequence[Stream]
    sampled_tokens: int = 0
    on_policy: bool = False
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackward:
    """Result of one `forward_backward`: the summed loss, trained tokens, and named sums (`kl_sum`, ...).

    `logprobs` maps a row id to the recomputed logprobs [T] of its completion, before any update.
    """

    loss_sum: float
    tokens: int
    sums: Mapping[str, float]
    logprobs: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a trainer backend can do. What it cannot do is refused, never ignored."""

    losses: frozenset[LossName]
    gradient_clip: bool
    teacher_prompts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A resumable trainer state on disk: `path` holds weights, optimizer state, RNG and `digest` over them."""

    path: str
    digest: str
    step: int


# Told (stage, done, total, figures) as work goes on.
Progress = Callable[[str, int, int, Mapping[str, Any]], None]
