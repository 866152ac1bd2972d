"""The seam between the gateway and the providers' wire formats: what a dialect reads, and what it makes of an answer.

A dialect is a module with the names in `Dialect`; `registry.py` lists them. It must not know tokenizers, sessions or
keys: token ids that a caller sends pass through it unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from practicum.dialects.request import ChatRequest
from practicum.errors import PracticumError
from practicum.types.messages import Message, ToolCall
from practicum.types.tokens import FinishReason, TokenText


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFacts:
    """What is known of an answer before its first token; `created` is UTC seconds since the epoch."""

    call_id: str
    model: str
    created: float
    prompt_tokens: int
    request: ChatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an answer ended; `stop` is the stop string that ended it, if one did.

    `reasoning_tokens` are those of `completion_tokens` that were sampled up to the last character of the reasoning.
    """

    reason: FinishReason
    completion_tokens: int
    reasoning_tokens: int = 0
    stop: str | None = None


class Answer(Protocol):
    """The bytes of one answer: either `body`, or `start`, pieces and pings, and `finish` or `error`.

    `tokens` are those sampled since the last piece, empty unless the request asked for logprobs. `ping` is what clients
    skip while nothing can be sent; `stream_type` is the media type of the stream.
    """

    ping: bytes
    stream_type: str

    def body(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The whole answer."""

    def start(self) -> bytes:
        """What comes before the first piece."""

    def text(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of text."""

    def thought(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of reasoning; empty where the caller is not shown any."""

    def tool_call(self, call: ToolCall, tokens: Sequence[TokenText]) -> bytes:
        """A whole call."""

    def finish(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The finish reason, the usage and the terminator."""

    def error(self, error: PracticumError) -> bytes:
        """An error inside the stream; nothing follows it."""


class Dialect(Protocol):
    """One provider's wire format. `ID_PREFIX` stands before the call id in an answer's `id`."""

    NAME: str
    ID_PREFIX: str

    def parse(self, raw: bytes, path: Mapping[str, str]) -> ChatRequest:
        """The request in a body and in the URL's parameters. Raises RequestError, whose `param` names the field.

        `path["task"]` is "count" where only the prompt's tokens are wanted.
        """

    def from_body(self, body: dict[str, Any]) -> ChatRequest:
        """The request in a body on record; what stood in the URL is not known. Raises RequestError."""

    def answer(self, facts: AnswerFacts) -> Answer:
        """Makes the bytes of one answer."""

    def error_body(self, error: PracticumError) -> dict[str, Any]:
        """An error in the provider's shape."""

    def model_object(self, name: str, created: int) -> dict[str, Any]:
        """One entry of the list of models."""

    def model_list(self, objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The list of models."""


class CountingDialect(Dialect, Protocol):
    """A dialect whose provider counts tokens on request."""

    def token_count(self, tokens: int) -> dict[str, Any]:
        """The body that tells the number of prompt tokens."""
