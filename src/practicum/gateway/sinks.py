"""How an answer leaves: as a stream, or as one body. When headers go out, and how long a caller may not read.

It must not know how the pieces came about.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.types import Send

from practicum.dialects.dialect import Answer, Ending
from practicum.errors import PracticumError
from practicum.gateway.timing import within
from practicum.types.messages import Message, Piece, Thought
from practicum.types.tokens import TokenText


class CallerGone(Exception):
    """The caller does not read any more."""


class _Sink:
    """Common to both.

    Args:
        answer: makes the bytes.
        headers: of the response, beside its content type.
        write_timeout_s: a caller that does not read for so long is gone.
    """

    def __init__(self, answer: Answer, headers: Sequence[tuple[bytes, bytes]], *, write_timeout_s: float) -> None:
        self.send: Send
        # Awaited before the first byte leaves.
        self.ready: Callable[[], Awaitable[None]] | None = None
        self.started = False
        self._answer = answer
        self._headers = list(headers)
        self._write_timeout_s = write_timeout_s

    async def _start(self, media_type: bytes, *more: tuple[bytes, bytes]) -> None:
        if self.ready is not None:
            await self.ready()
        self.started = True
        headers = [(b"content-type", media_type), *more, *self._headers]
        await self._write({"type": "http.response.start", "status": 200, "headers": headers})

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._write({"type": "http.response.body", "body": data, "more_body": more})

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            await within(self._write_timeout_s, self.send(message))
        except (TimeoutError, OSError) as error:
            raise CallerGone from error


class StreamSink(_Sink):
    """A stream. Its first bytes leave with the first piece or the first silence."""

    async def piece(self, piece: Piece, tokens: Sequence[TokenText]) -> bool:
        """Send a piece."""
        await self._begin()
        if isinstance(piece, str):
            made = self._answer.text(piece, tokens)
        elif isinstance(piece, Thought):
            made = self._answer.thought(piece.text, tokens)
        else:
            made = self._answer.tool_call(piece, tokens)
        if made:
            await self._body(made, more=True)
        return bool(made)

    async def idle(self) -> None:
        """Send what clients skip."""
        await self._begin()
        await self._body(self._answer.ping, more=True)

    async def finish(self, message: Message, end: Ending, rest: Sequence[TokenText]) -> None:
        """Send the end."""
        await self._begin()
        await self._body(self._answer.finish(message, end, rest), more=False)

    async def fail(self, error: PracticumError) -> None:
        """Send an error and no terminator."""
        await self._body(self._answer.error(error), more=False)

    async def _begin(self) -> None:
        if not self.started:
            no_buffering = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
            await self._start(self._answer.stream_type.encode(), *no_buffering)
            await self._body(self._answer.start(), more=True)


class BodySink(_Sink):
    """One JSON body."""

    _tokens: tuple[TokenText, ...] = ()

    async def piece(self, piece: Piece, tokens: Sequence[TokenText]) -> bool:
        """Keep the tokens; the message holds the rest."""
        self._tokens += tuple(tokens)
        return False

    async def idle(self) -> None:
        """Nothing can be sent before the body."""

    async def finish(self, message: Message, end: Ending, rest: Sequence[TokenText]) -> None:
        """Send the body."""
        body = self._answer.body(message, end, (*self._tokens, *rest))
        await self._start(b"application/json", (b"content-length", str(len(body)).encode()))
        await self._body(body, more=False)

    async def fail(self, error: PracticumError) -> None:
        """The body is one write; nothing can be added to it."""
