"""What a learning run needs of an engine in its own process: a trainer, and a sampler that follows its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from practicum.types.local import LocalPolicy
from practicum.types.policies import PolicyVersion
from practicum.types.seams import Sampler, Trainer


class Workbench(Protocol):
    """A trainer and a local policy over one model."""

    @property
    def trainer(self) -> Trainer:
        """The trainer."""

    @property
    def policy(self) -> LocalPolicy:
        """Sampling and scoring of every version made servable here, and of `STUDENT`."""

    @property
    def sampler(self) -> Sampler:
        """The sampler behind `policy`, for a gateway in this process."""

    def start_from(self, version: PolicyVersion) -> None:
        """Put the trainer, its reference and its teacher on a version."""

    def serve(self, version: PolicyVersion) -> None:
        """Make a version servable by `policy`. Raises CorruptArtifact."""

    def configure_distill(self, changed: Mapping[str, Any]) -> None:
        """Set what the trainer's `distill` loss is; what is not named stays."""

    def refresh(self) -> None:
        """Bring `STUDENT` to the trainer's current weights."""

    def advance(self, old: int, new: PolicyVersion) -> None:
        """Let rollouts that began under version `old` go on under `new`, token by token. Raises CorruptArtifact."""

    def stay(self) -> None:
        """Sample under the version that is asked for again, whatever was advanced."""
