"""What the scheduler works on: a generation or a scoring, its progress, and where its results go.

`emit` and the future are the only ways out; they are called from the engine's thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from practicum.engines.constraints import Matcher
from practicum.engines.embedded.draw import Drawn
from practicum.engines.embedded.kv import PromptCache
from practicum.engines.embedded.weights import ServedVersion
from practicum.types.tokens import FinishReason, SampleRequest, TokenChunk

Emit = Callable[[TokenChunk | Exception], None]


def fresh_seed() -> int:
    """A seed for a request that brought none."""
    return int.from_bytes(os.urandom(8), "big")


@dataclass(slots=True, eq=False)
class Generation:
    """One sequence being sampled. `length` counts its positions with keys and values, `limit` its tokens at most;
    `tokens` are those sampled so far; `matcher` follows it where its request has a constraint.
    """

    request: SampleRequest
    served: ServedVersion
    emit: Emit
    limit: int
    seed: int
    matcher: Matcher | None = None
    cancelled: bool = False
    tokens: list[int] = field(default_factory=list)
    length: int = 0

    @property
    def ids(self) -> tuple[int, ...]:
        """What stands before the next token: the prompt, and what was sampled."""
        return (*self.request.prompt_ids, *self.tokens) if self.tokens else self.request.prompt_ids

    @property
    def sampled(self) -> int:
        """How many tokens were sampled: the next one's index."""
        return len(self.tokens)

    @property
    def last_id(self) -> int:
        """The token sampled last."""
        return self.tokens[-1]

    @property
    def need_tokens(self) -> int:
        """Most positions it can come to hold."""
        return len(self.request.prompt_ids) + self.limit

    def allowed(self) -> torch.Tensor | None:
        """[V]: which tokens may come next; None where all may. Raises EngineError where none may."""
        return None if self.matcher is None else torch.from_numpy(self.matcher.allowed())

    def accept(self, drawn: Drawn) -> TokenChunk:
        """Record a sampled token; returns it as it is to be sent, with the finish reason if it is the last one."""
        self.tokens.append(drawn.token)
        reason: FinishReason | None = None
        if self.matcher is not None and drawn.token not in self.request.stop_ids:
            self.matcher.advance(drawn.token)
        if drawn.token in self.request.stop_ids or self._complete:
            reason = "stop"
        elif self.sampled >= self.limit:
            reason = "length"
        return TokenChunk(
            ids=(drawn.token,),
            logprobs=(drawn.logprob,),
            sampled_logprobs=(drawn.sampled_logprob,),
            version=self.served.version,
            finish_reason=reason,
        )

    @property
    def _complete(self) -> bool:
        """Whether the grammar is at its end and no stop id could say so."""
        return self.matcher is not None and not self.request.stop_ids and self.matcher.finished

    def fail(self, error: Exception) -> None:
        """Hand out the error that ends this sequence."""
        self.send(error)

    def send(self, event: TokenChunk | Exception) -> None:
        """Hand out tokens or an error. The last event is sent after slot and version are given back."""
        try:
            self.emit(event)
        except Exception:  # whoever asked is gone: nobody is left to tell
            self.cancelled = True


@dataclass(slots=True, eq=False)
class Scoring:
    """Recomputed logprobs of `ids[prompt_length:]` at a temperature; the future gets them as a list."""

    ids: tuple[int, ...]
    prompt_length: int
    temperature: float
    served: ServedVersion
    result: Future[list[float]]
    logprobs: list[float] = field(default_factory=list)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.result.cancelled()

    @property
    def need_tokens(self) -> int:
        """Positions it holds."""
        return len(self.ids)

    def wanted(self, start: int, end: int) -> range:
        """Positions in [start, end) whose logits score a completion token."""
        return range(max(start, self.prompt_length - 1), min(end, len(self.ids) - 1))

    def collect(self, positions: range, logits: torch.Tensor) -> None:
        """Score the token after each position from `logits: [n, V]`."""
        targets = torch.tensor([self.ids[position + 1] for position in positions], dtype=torch.long)
        scaled = torch.log_softmax(logits.float() / self.temperature, dim=-1)
        self.logprobs += scaled.gather(1, targets[:, None]).squeeze(1).tolist()

    def fail(self, error: Exception) -> None:
        """End with an error."""
        if not self.result.done():
            self.result.set_exception(error)


Job = Generation | Scoring


@dataclass(slots=True, eq=False)
class Prompt:
    """A job's `ids` being processed, chunk by chunk. `logits: [1, V]` are known if nothing is left to process."""

    job: Job
    ids: tuple[int, ...]
    cache: PromptCache
    logits: torch.Tensor | None = None
