"""How an answer leaves: as server-sent events, or as one body. When headers go out, and how long a caller may not read.

It must not know how the pieces came about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.types import Send

from practicum.dialects import openai_chat
from practicum.dialects.openai_chat import AnswerBuilder
from practicum.errors import PracticumError
from practicum.gateway.generation import TokenText
from practicum.types.messages import Message, ToolCall
from practicum.types.tokens import FinishReason


class CallerGone(Exception):
    """The caller does not read any more."""


class _Sink:
    """Common to both.

    Args:
        builder: makes the bytes.
        headers: of the response, beside its content type.
        prompt_tokens: for the usage.
        logprobs: whether the caller asked for them.
        include_usage: whether a stream's caller asked for it.
        write_timeout_s: a caller that does not read for so long is gone.
    """

    def __init__(
        self,
        builder: AnswerBuilder,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        prompt_tokens: int,
        logprobs: bool,
        include_usage: bool,
        write_timeout_s: float,
    ) -> None:
        self.send: Send
        self.started = False
        self._builder = builder
        self._headers = list(headers)
        self._prompt_tokens = prompt_tokens
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._write_timeout_s = write_timeout_s

    async def _start(self, media_type: bytes, *more: tuple[bytes, bytes]) -> None:
        self.started = True
        headers = [(b"content-type", media_type), *more, *self._headers]
        await self._write({"type": "http.response.start", "status": 200, "headers": headers})

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._write({"type": "http.response.body", "body": data, "more_body": more})

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await self.send(message)
        except (TimeoutError, OSError) as error:
            raise CallerGone from error

    def _entries(self, tokens: Sequence[TokenText]) -> list[dict[str, Any]] | None:
        if not self._logprobs:
            return None
        return [openai_chat.logprob_entry(token.text, token.logprob) for token in tokens]

    def _usage(self, sampled: int) -> dict[str, int]:
        return openai_chat.usage(self._prompt_tokens, sampled)


class StreamSink(_Sink):
    """Server-sent events. The first one leaves with the first piece or the first silence."""

    _calls = 0

    async def piece(self, piece: str | ToolCall, tokens: Sequence[TokenText]) -> None:
        """Send a piece, after the role if it is the first."""
        await self._begin()
        if isinstance(piece, str):
            await self._body(self._builder.content(piece, self._entries(tokens)), more=True)
        else:
            await self._body(self._builder.tool_call(self._calls, piece, self._entries(tokens)), more=True)
            self._calls += 1

    async def idle(self) -> None:
        """Send a comment, which clients skip."""
        await self._begin()
        await self._body(openai_chat.PING, more=True)

    async def finish(self, message: Message, reason: FinishReason, sampled: int, rest: Sequence[TokenText]) -> None:
        """Send the finish reason, the usage where it was asked for, and the terminator."""
        await self._begin()
        end = self._builder.finish(reason, self._entries(rest))
        if self._include_usage:
            end += self._builder.usage(self._usage(sampled))
        await self._body(end + openai_chat.DONE, more=False)

    async def fail(self, error: PracticumError) -> None:
        """Send an error and no terminator."""
        await self._body(openai_chat.error_event(error), more=False)

    async def _begin(self) -> None:
        if not self.started:
            no_buffering = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
            await self._start(b"text/event-stream; charset=utf-8", *no_buffering)
            await self._body(self._builder.role(), more=True)


class BodySink(_Sink):
    """One JSON body."""

    _tokens: tuple[TokenText, ...] = ()

    async def piece(self, piece: str | ToolCall, tokens: Sequence[TokenText]) -> None:
        """Keep the tokens; the message holds the rest."""
        self._tokens += tuple(tokens)

    async def idle(self) -> None:
        """Nothing can be sent before the body."""

    async def finish(self, message: Message, reason: FinishReason, sampled: int, rest: Sequence[TokenText]) -> None:
        """Send the body."""
        entries = self._entries((*self._tokens, *rest))
        body = self._builder.body(message, reason, self._usage(sampled), entries)
        await self._start(b"application/json", (b"content-length", str(len(body)).encode()))
        await self._body(body, more=False)

    async def fail(self, error: PracticumError) -> None:
        """The body is one write; nothing can be added to it."""
