"""One answer under way: sampled tokens to the record, to text, to a sink.

Text leaves as soon as it is certain. Whatever the text becomes, the recorded ids are those that were sampled.

Invariants: every sampled token is on record before any of its text leaves; leaving `run` by any way cancels the
sampling. It must not know wire formats or the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Protocol

from practicum.capture.recorder import Recording
from practicum.errors import EngineError
from practicum.gateway.answer import AnswerText
from practicum.gateway.engine_watch import EngineWatch
from practicum.gateway.silence import Silence
from practicum.gateway.timing import noticing
from practicum.renderers import ChatTokenizer, IncrementalDecoder
from practicum.types.messages import Piece
from practicum.types.seams import Sampler
from practicum.types.tokens import FinishReason, SampleRequest, TokenChunk, TokenText


class Sink(Protocol):
    """Where the pieces of an answer go."""

    async def piece(self, piece: Piece, tokens: Sequence[TokenText]) -> bool:
        """A piece of the answer, with the tokens sampled since the last piece. Tells whether anything was sent."""

    async def idle(self) -> None:
        """Nothing to send for a while."""


class Generation:
    """Runs one answer, once.

    Args:
        sampler: the engine.
        tokenizer: turns ids into text.
        watch: told of progress.
        sample: what to sample.
        recording: where every token goes first.
        answer: what becomes of the text.
        ping_s: seconds of silence after which the sink is told.
        waits: called when the engine lets us wait for the first time, which one that has the whole answer never does.
        keep_tokens: whether the sink wants each token's text and logprob.
    """

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: ChatTokenizer,
        watch: EngineWatch,
        *,
        sample: SampleRequest,
        recording: Recording,
        answer: AnswerText,
        ping_s: float,
        waits: Callable[[], None],
        keep_tokens: bool,
    ) -> None:
        self.tokens: list[TokenText] = []
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._watch = watch
        self._sample = sample
        self._recording = recording
        self._answer = answer
        self._ping_s = ping_s
        self._first_wait = waits
        self._silence: Silence | None = None
        self._keep_tokens = keep_tokens
        self._decoder = IncrementalDecoder(tokenizer)
        self._ended: FinishReason | None = None
        self._sent_at = time.monotonic()

    async def run(self, sink: Sink) -> FinishReason:
        """Sample until the end and hand out the pieces. Raises EngineError, and whatever the sink raises.

        Tokens behind the last piece are left in `tokens`.
        """
        chunks = self._sampler.sample(self._sample)
        try:
            with self._watch.answer():
                await self._consume(chunks, sink)
        except asyncio.CancelledError:
            if self._silence is not None:
                self._silence.raise_failure()
            raise
        finally:
            if self._silence is not None:
                self._silence.end()
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()
        return self._answer.finish_reason(self._ended)

    async def _consume(self, chunks: AsyncIterator[TokenChunk], sink: Sink) -> None:
        waits = partial(self._waits, sink)
        while self._ended is None and not self._answer.enough:
            try:
                chunk = await noticing(anext(chunks), waits)
            except StopAsyncIteration:
                raise EngineError("The engine ended an answer without a reason.") from None
            if self._silence is not None:
                await self._silence.ends()
            self._watch.progress()
            self._recording.add(chunk)
            self._ended = chunk.finish_reason
            await self._hand_out(self._pieces(chunk), sink)
            if time.monotonic() - self._sent_at >= self._ping_s:  # sampled, but held back or not for the caller
                await self._idle(sink)
        if not self._answer.enough:
            await self._hand_out(self._answer.feed(self._decoder.finish()), sink)
        await self._hand_out(self._answer.finish(), sink)

    def _waits(self, sink: Sink) -> None:
        if self._silence is None:
            self._silence = Silence(self._ping_s, self._watch.check, partial(self._idle, sink))
            self._first_wait()
        self._silence.begins()

    def _pieces(self, chunk: TokenChunk) -> list[Piece]:
        """What has become certain with a chunk. While reasoning may come, each token counts for what it gave."""
        if self._keep_tokens:
            pairs = zip(chunk.ids, chunk.logprobs, strict=True)
            self.tokens.extend(TokenText(text=self._tokenizer.decode([token]), logprob=value) for token, value in pairs)
        pieces: list[Piece] = []
        done = 0
        while done < len(chunk.ids):
            some = chunk.ids[done : done + 1] if self._answer.thinks else chunk.ids[done:]
            done += len(some)
            text = self._decoder.feed([token for token in some if token not in self._sample.stop_ids])
            pieces += self._answer.feed(text, len(some))
        return pieces

    async def _hand_out(self, pieces: Sequence[Piece], sink: Sink) -> None:
        for piece in pieces:
            tokens, self.tokens = self.tokens, []
            if await sink.piece(piece, tokens):
                self._sent_at = time.monotonic()

    async def _idle(self, sink: Sink) -> None:
        await sink.idle()
        self._sent_at = time.monotonic()
