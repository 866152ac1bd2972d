"""The seams: protocols with one to three verbs that keep the parts apart.

They stand here, below their users, because both an implementation (engines) and its users (gateway, trainer, evals)
must see the same shape and neither may import the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from practicum.types.tokens import SampleRequest, TokenChunk
from practicum.types.training import Capabilities, Checkpoint, Datum, ForwardBackward, LossName, PolicyGradient


class Tokenizer(Protocol):
    """Text to ids and back. `encode` recognises the model's special tokens and adds none of its own."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a completion."""

    def encode(self, text: str) -> list[int]:
        """Ids of `text`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included, U+FFFD for incomplete UTF-8."""


class Sampler(Protocol):
    """Token ids in; ids, logprobs, policy version and finish reason out."""

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its completion may have together."""

    def sample(self, request: SampleRequest) -> AsyncIterator[TokenChunk]:
        """Stream one completion. Closing the iterator cancels the generation.

        Raises: NotFound for a version that is not loaded; EngineError when the engine failed. Before anything is
        sampled: RequestError for a constraint that cannot be met, Unsupported by an engine that enforces none.
        """

    async def load(self, version: int, adapter_path: Path | None, digest: str) -> None:
        """Make a version servable beside the others; returns once it is. Raises CorruptArtifact, keeping the others."""

    async def logprobs(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, version: int, temperature: float = 1.0
    ) -> list[float]:
        """Raw tempered logprobs [T] of the completion under a version, recomputed."""


class Trainer(Protocol):
    """The Tinker verbs, with sum semantics. Every call carries a key: a repeated key changes nothing."""

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""

    def forward_backward(
        self,
        batch: Sequence[Datum],
        loss: LossName,
        *,
        key: str,
        policy_gradient: PolicyGradient = PolicyGradient(),
    ) -> ForwardBackward:
        """Accumulate gradients of the summed loss; `policy_gradient` says how the loss of that name weighs tokens.

        Raises Unsupported for a loss it does not have.
        """

    def optim_step(self, *, learning_rate: float, key: str) -> dict[str, float]:
        """Apply and clear the accumulated gradients; returns `grad_norm` and `step`."""

    def set_policy(self, adapter: Path | None) -> None:
        """Start training from an adapter folder (None: from the base model) with a fresh optimizer."""

    def set_teacher(self, adapter: Path | None) -> None:
        """Freeze the policy of an adapter folder (None: the base model) as the teacher of `distill` rows."""

    def freeze_teacher(self) -> None:
        """Freeze the policy as it is now as the teacher of `distill` rows."""

    def set_reference(self, adapter: Path | None) -> None:
        """Freeze a policy as the one that KL is measured and anchored to."""

    def save(self, folder: Path) -> Checkpoint:
        """Write a resumable checkpoint, atomically."""

    def load(self, folder: Path) -> None:
        """Restore a checkpoint whole. Raises CorruptArtifact."""

    def publish(self, folder: Path) -> str:
        """Write the policy as a servable adapter, atomically; returns its digest."""
