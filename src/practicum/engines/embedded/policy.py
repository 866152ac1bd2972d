"""What the trainer asks of a policy in training.

A policy is named tensors that train, with up to two frozen siblings, `teacher` and `reference`; one that is absent
stands for the base model. The base's tensors are shared with the sampler and never written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from practicum.engines.embedded.layout import Layout

Sibling = Literal["policy", "teacher", "reference"]


class Policy(Protocol):
    """See the module's docstring. `trees`: whether layouts may share beginnings.

    Shapes: N kept places of a layout, E hidden size, V vocabulary.
    """

    trees: bool

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trainable tensors by name, in a fixed order."""

    def changed(self) -> None:
        """Parameters were written to; whatever was made of them is made again."""

    def state(self, sibling: Sibling = "policy") -> dict[str, torch.Tensor] | None:
        """Copies of a sibling's tensors, or None if it is absent."""

    def same(self, one: Sibling, other: Sibling) -> bool:
        """Whether two siblings are the same policy: both absent, or equal tensor by tensor."""

    def check(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raise CorruptArtifact unless `state` fits this policy."""

    def put(self, sibling: Sibling, state: Mapping[str, torch.Tensor] | None) -> None:
        """Set a sibling's tensors; None removes a frozen one, and starts the policy afresh from the base."""

    def read(self, folder: Path, *, digest: str | None = None) -> dict[str, torch.Tensor]:
        """The tensors of a published policy. Raises CorruptArtifact, Unsupported for another kind."""

    def publish(self, folder: Path, *, base_model: str) -> str:
        """Write the policy with a model card, atomically; returns the folder's digest."""

    def hidden(self, layout: Layout, sibling: Sibling = "policy", *, recompute: bool = False) -> torch.Tensor:
        """Normed hidden states `[N, E]`, with a graph for the policy alone. `recompute` trades time for memory."""

    def head(self, hidden_NE: torch.Tensor, sibling: Sibling = "policy") -> torch.Tensor:
        """Logits `[N, V]` of hidden states."""


def same_tensors(one: Mapping[str, torch.Tensor] | None, other: Mapping[str, torch.Tensor] | None) -> bool:
    """Both None, or equal tensor by tensor."""
    if one is None or other is None:
        return one is other
    return all(torch.equal(one[name], other[name]) for name in one)


def copied(tensors: Mapping[str, Any] | None) -> dict[str, torch.Tensor] | None:
    """Copies that no later step writes to."""
    return None if tensors is None else {name: tensor.detach().clone() for name, tensor in tensors.items()}
