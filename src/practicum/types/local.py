"""What learning and evaluation ask of a policy in their own process: whole completions and scores, in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from practicum.types.tokens import FinishReason, SampleRequest

# The version under which weights in training are sampled; it is never served and never recorded as a call's.
STUDENT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished sample: `ids`, `logprobs`: [T], all sampled by `version`."""

    request_id: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Score `completion_ids: [T]` after `prompt_ids: [P]` under `version`."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    version: int
    temperature: float = 1.0


class LocalPolicy(Protocol):
    """Batched, synchronous sampling and scoring of any loaded version."""

    def generate(
        self, requests: Sequence[SampleRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[Completion]:
        """Completions in the order of the requests; `progress` is told how many have finished."""

    def score(
        self, requests: Sequence[ScoreRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[tuple[float, ...]]:
        """Raw tempered logprobs [T] for each request, in order."""
