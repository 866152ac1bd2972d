"""From recorded calls to prompts: as served, and with hindsight.

The student's prompt is always the recorded ids. The teacher's is rendered from the same messages with a block in the
last user message, so both score one and the same completion; sampled text is never tokenised again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from practicum.algorithms.hindsight import with_hindsight
from practicum.dialects.registry import recorded_request
from practicum.dialects.request import ChatRequest
from practicum.renderers import Renderer
from practicum.types.calls import ModelCall
from practicum.types.messages import Message
from practicum.types.tokens import SamplingParams


class PromptBook:
    """Renders with the template of the model that served the calls."""

    def __init__(self, renderer: Renderer, default_max_tokens: int) -> None:
        self.renderer = renderer
        self._default_max_tokens = default_max_tokens

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a completion."""
        return self.renderer.stop_ids

    def question(self, call: ModelCall) -> str:
        """The last user message of a call; of a raw completion, its whole prompt as text."""
        request = self._request(call)
        if request.prompt is not None:
            return self.renderer.tokenizer.decode(call.prompt_ids)
        return next((m.content for m in reversed(request.messages) if m.role == "user"), "")

    def params(self, call: ModelCall) -> SamplingParams:
        """The sampling settings of a call, with the number of tokens it could take and without its constraint: what
        learns and is judged here is the policy's own text.
        """
        return self._request(call).params

    def hindsight_ids(self, call: ModelCall, comments: Sequence[str]) -> tuple[int, ...]:
        """The call's prompt, re-rendered with the comments in its last user message.

        Raises ValueError for a call without one, which curation leaves out.
        """
        request = self._request(call)
        messages = with_hindsight(request.messages, comments)
        return tuple(self.renderer.render(messages, request.tools, request.options))

    def told_ids(self, call: ModelCall, *, solution: str, feedback: str) -> tuple[int, ...]:
        """The call's prompt, re-rendered with a solution of the task and what was said of an attempt, where there are
        such, in its last user message; what a rollout's own teacher reads. Without a user message it is as it was.
        """
        request = self._request(call)
        blocks = (("A right solution of this task:", solution), ("What was said of an attempt:", feedback))
        added = "".join(f"\n\n{head}\n{text}" for head, text in blocks if text)
        messages = list(request.messages)
        last = max((at for at, message in enumerate(messages) if message.role == "user"), default=None)
        if last is None or not added:
            return call.prompt_ids
        messages[last] = replace(messages[last], content=messages[last].content + added)
        return tuple(self.renderer.render(messages, request.tools, request.options))

    def answer_ids(self, text: str, *, behind: Sequence[int] = ()) -> tuple[int, ...]:
        """Ids of an answer that a person wrote, with the id that ends the turn.

        `behind` is the prompt that it answers; without one the text goes on with an answer that has begun.
        """
        tokenizer = self.renderer.tokenizer
        opening = tokenizer.encode(self.renderer.answer_opening(behind)) if behind else []
        return (*opening, *tokenizer.encode_plain(text), *tokenizer.encode(tokenizer.eos))

    def text(self, ids: Sequence[int]) -> str:
        """What the caller reads of an answer: without its reasoning and the ids that end it."""
        stop = self.renderer.stop_ids
        parser = self.renderer.parser((), str)
        sampled = self.renderer.tokenizer.decode([token for token in ids if token not in stop])
        pieces = [*parser.feed(sampled), *parser.finish()]
        return "".join(piece for piece in pieces if isinstance(piece, str)).strip()

    def render(self, messages: Sequence[Message]) -> Sequence[int]:
        """Ids of a conversation without tools, ready for the assistant's answer."""
        return self.renderer.render(messages, ())

    def _request(self, call: ModelCall) -> ChatRequest:
        request = recorded_request(call.dialect, call.request)
        room = request.max_tokens or self._default_max_tokens
        return replace(request, params=replace(request.params, max_tokens=room, constraint=None))
