"""A small model family that thinks: a template with a switch, and a parser that splits `<think>…</think>`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from practicum.renderers import ByteTokenizer, Renderer, ToolCallParser
from practicum.renderers.parsing import AnswerParser, PlainParser
from practicum.types.messages import Piece, Thought

OPEN, CLOSE = "<think>", "</think>"
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tools>\n"
    "{% for tool in tools %}{{ tool.function | tojson }}\n{% endfor %}</tools><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{% if message.role == 'tool' %}<tool_response>{{ message.content }}</tool_response>"
    "{% else %}{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


class ThinkParser:
    """Thoughts out of the text; what is not a thought goes to the parser for calls."""

    thinks = True

    def __init__(self, inner: AnswerParser) -> None:
        self._inner = inner
        self._pending = ""
        self._inside = False

    def feed(self, text: str) -> list[Piece]:
        self._pending += text
        out: list[Piece] = []
        while True:
            tag = CLOSE if self._inside else OPEN
            at = self._pending.find(tag)
            if at >= 0:
                out += self._piece(self._pending[:at])
                self._pending = self._pending[at + len(tag) :]
                self._inside = not self._inside
                continue
            held = next((n for n in range(len(tag) - 1, 0, -1) if self._pending.endswith(tag[:n])), 0)
            out += self._piece(self._pending[: len(self._pending) - held])
            self._pending = self._pending[len(self._pending) - held :]
            return out

    def finish(self) -> list[Piece]:
        rest, self._pending = self._pending, ""
        return self._piece(rest) + self._inner.finish()

    def _piece(self, text: str) -> list[Piece]:
        if not text:
            return []
        return [Thought(text=text)] if self._inside else self._inner.feed(text)


class ThinkingRenderer(Renderer):
    """Renders reasoning, and reads it back."""

    def __init__(self) -> None:
        super().__init__(ByteTokenizer(), TEMPLATE)

    def parser(
        self, names: Collection[str], call_id: Callable[[int], str], *, prompt_ids: Sequence[int] | None = None
    ) -> AnswerParser:
        return ThinkParser(ToolCallParser(names, call_id) if names else PlainParser())
