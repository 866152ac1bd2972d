"""What can be set on the embedded engine. Knows no torch, so that configuration can be read without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Divergence = Literal["reverse_kl", "forward_kl", "jsd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSettings:
    """How the sampler runs.

    `max_slots`: sequences decoded together. `max_waiting`: requests queued beyond them before new ones are refused.
    `prefill_chunk_tokens`: most prompt tokens processed between two decode steps of the running sequences.
    `kv_budget_mb`: memory for keys and values; a sequence waits until prompt and completion fit into it (one alone
    always runs). `prefix_cache_mb`: memory for the keys and values of finished prompts, reused by prompts that extend
    them. `max_versions`: resident policy versions beside the base. `context_length`: caps the model's own.
    `batch_invariant`: a request's tokens and logprobs are the same to the bit whatever runs beside it, in which order
    it came, whether its prompt was known, and after a restart, on one machine with one thread count.
    `packed_weights`: linear weights laid out for products with few rows, where the processor has such a layout;
    decoding is up to twice as fast for it. Of the base, which training needs as it is, it is a second copy.
    """

    threads: int = 0
    max_slots: int = 32
    max_waiting: int = 256
    prefill_chunk_tokens: int = 256
    kv_budget_mb: int = 2048
    prefix_cache_mb: int = 256
    max_versions: int = 4
    context_length: int | None = None
    batch_invariant: bool = True
    packed_weights: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """The adapter: rank, alpha (the update is scaled by alpha/rank) and the seed of its first matrix. No dropout."""

    rank: int = 16
    alpha: float = 32.0
    seed: int = 0

    @property
    def scaling(self) -> float:
        """Factor on B A: alpha / rank."""
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillSettings:
    """The `distill` loss. `alpha` belongs to `jsd` alone; `top_k` 0 means the full vocabulary, else the student's
    top k and a tail bucket; `clip` bounds a token's divergence in nats (None: unbounded); `kl_coef` weighs the exact
    KL to the reference, with every loss. `contrast` c weighs what the teacher's prompt changes: the target's
    logits are untold + c (told - other), all by the frozen teacher; `plausibility` bounds what it may raise (both:
    `losses.contrasted`). The divergence is taken at `temperature`, whatever a row was sampled at.
    """

    divergence: Divergence = "reverse_kl"
    alpha: float = 0.5
    top_k: int = 0
    clip: float | None = None
    contrast: float = 1.0
    plausibility: float = 0.0
    temperature: float = 1.0
    kl_coef: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """How the trainer runs. `weights`: an adapter trains, or every weight of the model. `device` and `dtype` are where
    the base model lies while it trains and how; adapters and every loss stay in float32, and full weights need it.
    `micro_batch_tokens`: tokens in one forward, shared beginnings counted once; it changes memory, not the result.
    `checkpoint_over_tokens`: micro-batches longer than this recompute activations instead of keeping them.
    `grad_clip`: largest global gradient norm (None: no clip). The summed loss is the caller's to normalise, so the clip
    acts on what the caller's weights make of it.
    """

    threads: int = 0
    weights: Literal["lora", "full"] = "lora"
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    micro_batch_tokens: int = 1024
    checkpoint_over_tokens: int = 2048
    grad_clip: float | None = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    distill: DistillSettings = DistillSettings()
