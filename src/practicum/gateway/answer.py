"""From decoded text to what the caller gets: stop strings, then tool calls. Pure, and the same live and replayed."""

from __future__ import annotations

from collections.abc import Sequence

from practicum.dialects.request import ChatRequest
from practicum.gateway.stops import StopMatcher
from practicum.renderers import IncrementalDecoder, Renderer
from practicum.renderers.parsing import AnswerParser, PlainParser
from practicum.types.calls import ModelCall
from practicum.types.messages import Message, Piece, Thought, ToolCall
from practicum.types.tokens import FinishReason


class AnswerText:
    """One answer as it grows. `text` is all that was sampled, markup included; `message` is what the caller has.

    `reasoning_tokens` counts those fed up to the last character of the reasoning, its opening markup included; the text
    or call behind it takes the closing markup.

    Args:
        request: what was asked: stop strings, tools on offer, and whether several calls are wanted.
        call_id: names the tool calls.
        renderer: knows how the model writes calls and reasoning.
        prompt_ids: [P] what was sampled from; its end says whether the reasoning is open already.
    """

    def __init__(self, request: ChatRequest, call_id: str, renderer: Renderer, prompt_ids: Sequence[int]) -> None:
        self.text = ""
        self.reasoning_tokens = 0
        self._tokens = 0
        self._content = ""
        self._reasoning = ""
        self._calls: list[ToolCall] = []
        self._one_call = not request.parallel_tools
        self._stops = StopMatcher(request.params.stop)
        names = {tool.name: tool.parameters for tool in request.callable_tools}
        suffix = call_id.rpartition("_")[2]
        self._parser: AnswerParser = PlainParser()  # a raw prompt is continued, not answered
        if request.prompt is None:
            self._parser = renderer.parser(names, lambda index: f"call_{suffix}_{index}", prompt_ids=prompt_ids)

    @property
    def message(self) -> Message:
        """The assistant message, as the caller will replay it."""
        return Message(
            role="assistant", content=self._content, tool_calls=tuple(self._calls), reasoning=self._reasoning
        )

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._stops.matched

    @property
    def enough(self) -> bool:
        """Whether nothing that is sampled from here on could reach the caller."""
        return self._stops.hit or (self._one_call and bool(self._calls))

    @property
    def thinks(self) -> bool:
        """Whether reasoning may still come, so that it matters which token gave which text."""
        return self._parser.thinks

    def feed(self, text: str, tokens: int = 0) -> list[Piece]:
        """Pieces that have become certain with `text`, which so many tokens gave."""
        self.text += text
        self._tokens += tokens
        return self._parse(self._stops.feed(text))

    def finish(self) -> list[Piece]:
        """The last pieces."""
        pieces = self._parse(self._stops.finish())
        return pieces + self._kept(self._parser.finish())

    def finish_reason(self, sampled: FinishReason | None) -> FinishReason:
        """The reason as the caller sees it, given the sampler's (None where the gateway ended the sampling)."""
        reason = "stop" if sampled is None or self.enough else sampled
        return "tool_calls" if reason == "stop" and self._calls else reason

    def _parse(self, text: str) -> list[Piece]:
        if not text:
            return []
        return self._kept(self._parser.feed(text))

    def _kept(self, pieces: Sequence[Piece]) -> list[Piece]:
        kept: list[Piece] = []
        for piece in pieces:
            if self._one_call and self._calls:
                break
            kept.append(piece)
            if isinstance(piece, Thought):
                self.reasoning_tokens += self._tokens
            self._tokens = 0
            if isinstance(piece, str):
                self._content += piece
            elif isinstance(piece, Thought):
                self._reasoning += piece.text
            else:
                self._calls.append(piece)
        return kept


def recorded_message(call: ModelCall, request: ChatRequest, renderer: Renderer) -> Message:
    """The answer of a call on record, as the caller was given it."""
    answer = AnswerText(request, call.call_id, renderer, call.prompt_ids)
    answer.feed(call.text)
    answer.finish()
    return answer.message


def recorded_answer(call: ModelCall, request: ChatRequest, renderer: Renderer) -> tuple[AnswerText, list[Piece]]:
    """The answer of a call on record, and its pieces. Its tokens are fed one by one, and counted as they were live."""
    answer = AnswerText(request, call.call_id, renderer, call.prompt_ids)
    stop_ids = frozenset(renderer.stop_ids)
    decoder = IncrementalDecoder(renderer.tokenizer)
    pieces: list[Piece] = []
    for token in call.completion_ids:
        pieces += answer.feed(decoder.feed([] if token in stop_ids else [token]), 1)
    if not answer.enough:
        pieces += answer.feed(decoder.finish())
    return answer, pieces + answer.finish()
