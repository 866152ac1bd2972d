"""A model call as it is kept: what was asked, the exact tokens, and why it does or does not train."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from practicum.types.tokens import FinishReason

CallKind = Literal["agent", "auxiliary", "compaction", "retry", "best_of_n", "aborted"]
CallStatus = Literal["open", "complete", "aborted", "failed", "interrupted"]

# The one place that decides which calls may train.
TRAINABLE_KINDS: frozenset[CallKind] = frozenset({"agent", "compaction"})
# A token that was drawn with certainty, and to which the policy itself gave less than an even chance, was imposed.
_EVEN_CHANCE = math.log(0.5)
_CERTAIN = -1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who asked something, and what became of it."""

    session_id: str
    agent_id: str | None
    status: CallStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One request to the model endpoint and its answer.

    `prompt_ids: [P]`, `completion_ids: [T]`, `logprobs: [T]`, `sampled_logprobs: [T]`, `versions: [T]` (the policy
    version that sampled each token). `request` is the body as it came, losslessly, and `dialect` the wire format it
    came in; `text` is the completion decoded, with markup. `history_hash` names the conversation after this answer,
    `prompt_hash` the one before it: a later request whose messages extend the former continues this call's episode.
    Times are UTC seconds since the epoch.

    `kind_reason` names the rule that gave the kind, None where nothing but a plain turn was seen. `harness` is who sent
    the request, as far as its headers tell; `agent_id` tells sub-agents of one session apart, None for the main agent;
    `session_source` says how the session was found.
    """

    call_id: str
    session_id: str
    principal: str
    kind: CallKind
    status: CallStatus
    created_at: float
    finished_at: float | None = None
    policy_version: int
    model: str
    temperature: float = 1.0
    request: dict[str, Any]
    dialect: str = "openai_chat"
    text: str = ""
    finish_reason: FinishReason | None = None
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    sampled_logprobs: tuple[float | None, ...] = ()
    versions: tuple[int, ...] = ()
    parent_call_id: str | None = None
    episode_id: str = ""
    fork_reason: str | None = None
    prompt_hash: str = ""
    history_hash: str = ""
    error: str | None = None
    kind_reason: str | None = None
    harness: str = ""
    agent_id: str | None = None
    session_source: str = ""

    @property
    def imposed(self) -> tuple[bool, ...]:
        """[T]: tokens that a constraint left no choice about and that the policy would likely not have chosen.

        They say nothing of the policy: a gradient of their raw logprob would push what was never decided.
        """
        if len(self.sampled_logprobs) != len(self.logprobs):
            return (False,) * len(self.completion_ids)
        return tuple(
            left is not None and raw is not None and left >= _CERTAIN and raw < _EVEN_CHANCE
            for left, raw in zip(self.sampled_logprobs, self.logprobs, strict=True)
        )

    @property
    def untrainable_reason(self) -> str | None:
        """Why this call gives no training row, or None if it may."""
        if self.status != "complete":
            return f"status is {self.status}: {self.error or 'the answer was not delivered whole'}"
        if self.kind not in TRAINABLE_KINDS:
            return f"kind is {self.kind}: {self.kind_reason}" if self.kind_reason else f"kind is {self.kind}"
        if not self.completion_ids:
            return "no sampled token"
        if not len(self.completion_ids) == len(self.logprobs) == len(self.versions):
            return (
                f"{len(self.completion_ids)} ids, {len(self.logprobs)} logprobs, {len(self.versions)} versions: "
                "they must align one to one"
            )
        if any(value is None for value in self.logprobs):
            return "a sampled token has no logprob"
        if all(self.imposed):
            return "its constraint left the policy no choice"
        return None
