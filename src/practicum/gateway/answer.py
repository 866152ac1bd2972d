"""From decoded text to what the caller gets: stop strings, then tool calls. Pure, and the same live and replayed."""

from __future__ import annotations

from collections.abc import Sequence

from practicum.dialects.request import ChatRequest
from practicum.gateway.stops import StopMatcher
from practicum.renderers import Renderer
from practicum.types.calls import ModelCall
from practicum.types.messages import Message, Piece, ToolCall
from practicum.types.tokens import FinishReason


class AnswerText:
    """One answer as it grows. `text` is all that was sampled, markup included; `message` is what the caller has.

    Args:
        request: what was asked: stop strings, tools on offer, and whether several calls are wanted.
        call_id: names the tool calls.
        renderer: knows how the model writes calls.
    """

    def __init__(self, request: ChatRequest, call_id: str, renderer: Renderer) -> None:
        self.text = ""
        self._content = ""
        self._calls: list[ToolCall] = []
        self._one_call = not request.parallel_tools
        self._stops = StopMatcher(request.params.stop)
        names = [tool.name for tool in request.tools] if request.parse_tools else []
        suffix = call_id.rpartition("_")[2]
        self._parser = renderer.parser(names, lambda index: f"call_{suffix}_{index}")

    @property
    def message(self) -> Message:
        """The assistant message, as the caller will replay it."""
        return Message(role="assistant", content=self._content, tool_calls=tuple(self._calls))

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._stops.matched

    @property
    def enough(self) -> bool:
        """Whether nothing that is sampled from here on could reach the caller."""
        return self._stops.hit or (self._one_call and bool(self._calls))

    def feed(self, text: str) -> list[Piece]:
        """Pieces that have become certain with `text`."""
        self.text += text
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
            if isinstance(piece, str):
                self._content += piece
            else:
                self._calls.append(piece)
        return kept


def recorded_answer(call: ModelCall, request: ChatRequest, renderer: Renderer) -> tuple[AnswerText, list[Piece]]:
    """The answer of a call on record, and its pieces."""
    answer = AnswerText(request, call.call_id, renderer)
    pieces = answer.feed(call.text)
    return answer, pieces + answer.finish()
