"""What crosses the trainer seam: a `Datum` a row, losses by name, sums and not means.

The loss is a sum over tokens; every normalisation is the caller's and sits in `weights`, so that how a batch is split
changes nothing. Teacher ids let the trainer score the same completion under another prompt (hindsight).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# cross_entropy:      - sum_t w_t log pi(y_t)
# policy_gradient:    - sum_t w_t A_t rho_t log pi(y_t), in the form that a `PolicyGradient` names; needs `advantages`,
#                     `logprobs`
# distill:            sum_t w_t D(pi(.|x, y<t) || q(.|teacher prompt, y<t)); needs `teacher_prompt_ids`; at `written`
#                     tokens - w_t log pi(y_t) instead
LossName = Literal["cross_entropy", "policy_gradient", "distill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient:
    """How the loss `policy_gradient` weighs a token; formulas and sources stand in `algorithms/surrogates.py`.

    pi is the policy that is trained, mu the one that sampled (`Datum.logprobs`), pi_old the trainer's own account of
    it before the update (`Datum.old_logprobs`).

    `ratio`: of each token, or one of a row's trained tokens together (their geometric mean). `against`: what the ratio
    is to, mu or pi_old. `surrogate`: `detached` is sg[min(rho, cap)] A log pi, so no token loses its gradient; `clip`
    is PPO's min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A), where `dual_clip` bounds rho for A < 0 as well.
    `trust_above`, `trust_below`: a token that has moved further than that in probability, the way A points, is masked
    (None: none is). `negative_scale` multiplies A < 0.

    Corrections for pi_old (pi, where the ratio is to mu) having left mu: `tis_cap` multiplies by min(pi_old/mu, cap);
    `icepop` drops tokens whose ratio lies outside; a row is rejected where its geometric mean ratio lies outside
    `geometric`, its mean k3 exceeds `max_k3`, a token's ratio falls below `veto`, its mean |log pi/mu| exceeds
    `max_drift`, or A < 0 and its mean log(mu/pi) exceeds `sequence_delta`. What is dropped stays in the weights'
    denominator.

    `kl_coef` times the KL to the reference, by `kl_kind`: over the whole vocabulary, or of the sampled token;
    `kl_unbiased` weighs the latter by pi/mu, so that its gradient is that of KL(pi||ref) whoever sampled.
    """

    ratio: Literal["token", "sequence"] = "token"
    against: Literal["sampler", "proximal"] = "sampler"
    surrogate: Literal["detached", "clip"] = "detached"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    cap: float | None = 2.0
    trust_above: float | None = 0.2
    trust_below: float | None = 0.2
    negative_scale: float = 1.0
    tis_cap: float | None = None
    icepop: tuple[float, float] | None = None
    geometric: tuple[float, float] | None = None
    max_k3: float | None = None
    veto: float | None = None
    max_drift: float | None = None
    sequence_delta: float | None = None
    kl_coef: float = 0.0
    kl_kind: Literal["full", "k2", "k3"] = "full"
    kl_unbiased: bool = False

    def __post_init__(self) -> None:
        if self.kl_kind not in ("full", "k2", "k3"):
            raise ValueError(
                f"kl_kind is {self.kl_kind!r}; as a loss k1 has no gradient in expectation: use k2, k3 or full"
            )
        if self.kl_unbiased and self.kl_kind == "full":
            raise ValueError("kl_unbiased corrects a sampled estimate; the full KL is exact at every token")
        if self.tis_cap is not None and self.against == "sampler":
            raise ValueError(
                "tis_cap corrects pi_old/mu; with the ratio against the sampler, `cap` bounds pi/mu already"
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"dual_clip is {self.dual_clip}; it must lie above 1 + clip_high, {1 + self.clip_high}")
        for name in ("icepop", "geometric"):
            bounds = getattr(self, name)
            if bounds is not None and not 0 <= bounds[0] <= 1 <= bounds[1]:
                raise ValueError(f"{name} is {bounds}; a ratio's bounds lie on both sides of 1")

    @property
    def needs_rows(self) -> bool:
        """Whether a token's weight depends on its whole row, not on the token alone."""
        rejections = (self.geometric, self.max_k3, self.veto, self.max_drift, self.sequence_delta)
        return self.ratio == "sequence" or any(bound is not None for bound in rejections)


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One training row: `prompt_ids: [P]` (never trained on), `completion_ids: [T]`, and per completion token
    `weights: [T]` (0 masks it), `advantages: [T]`, `logprobs: [T]` (the sampler's, None where unknown), and
    `old_logprobs: [T]` (the trainer's own before the update; None: nothing was recomputed).

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
    old_logprobs: tuple[float, ...] | None = None
    teacher_prompt_ids: tuple[int, ...] | None = None
    contrast_prompt_ids: tuple[int, ...] | None = None
    against: Literal["teacher", "reference"] = "teacher"
    written: tuple[bool, ...] | None = None
    redirect: tuple[tuple[int, ...], int] | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("weights", "advantages", "logprobs", "old_logprobs", "written"):
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

    `policy_gradient` is read by that loss alone.

    `anchor`: the rows only hold the policy where it is, so they are no signal by themselves.
    """

    loss: LossName
    rows: Sequence[Datum]
    name: str = ""
    anchor: bool = False
    policy_gradient: PolicyGradient = PolicyGradient()


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
