"""What goes back over OpenAI's Responses: an answer is a list of items, each piece of text or call one of them.

Every event has a number and names the item it belongs to; the last one holds the whole response. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.wire import dump, sse
from practicum.errors import PracticumError
from practicum.types.messages import Message, ToolCall
from practicum.types.tokens import TokenText

ID_PREFIX = "resp_"
# Settings of the request that the response repeats, with what stands there where the request does not say.
_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": False,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}


class AnswerBuilder:
    """Builds the body or the stream of one answer. In a stream it knows the items so far and an open one's text."""

    ping = b": waiting for the next token\n\n"
    stream_type = "text/event-stream; charset=utf-8"

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._items: list[dict[str, Any]] = []
        self._open_text: str | None = None
        self._number = 0

    def body(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The whole answer."""
        if message.content or not message.tool_calls:
            self._items.append(self._message_item(message.content))
        for call in message.tool_calls:
            self._items.append(self._call_item(call))
        return dump(self._ended(end))

    def start(self) -> bytes:
        """The events with the response that is still empty."""
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def text(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of text."""
        out = b""
        if self._open_text is None:
            self._open_text = ""
            item = {**self._message_item(""), "status": "in_progress", "content": []}
            out = self._event("response.output_item.added", output_index=len(self._items), item=item)
            out += self._part_event("response.content_part.added", part=_part(""))
        self._open_text += text
        return out + self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def tool_call(self, call: ToolCall, tokens: Sequence[TokenText]) -> bytes:
        """A completed call."""
        out = self._close()
        item = self._call_item(call)
        where = {"output_index": len(self._items), "item_id": item["id"]}
        begun = {**item, "status": "in_progress", "arguments": ""}
        out += self._event("response.output_item.added", output_index=len(self._items), item=begun)
        out += self._event("response.function_call_arguments.delta", **where, delta=call.arguments)
        out += self._event("response.function_call_arguments.done", **where, name=call.name, arguments=call.arguments)
        return out + self._item_done(item)

    def finish(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The events that close what is open, and the one with the whole response."""
        out = self.text("", ()) if not self._items and self._open_text is None else b""
        out += self._close()
        response = self._ended(end)
        return out + self._event(f"response.{response['status']}", response=response)

    def error(self, error: PracticumError) -> bytes:
        """The event of a response that failed; nothing follows it."""
        response = {**self._response("failed"), "error": {"code": error.code, "message": str(error)}}
        return self._event("response.failed", response=response)

    def _close(self) -> bytes:
        """End the text that is open."""
        if self._open_text is None:
            return b""
        text, self._open_text = self._open_text, None
        out = self._part_event("response.output_text.done", text=text, logprobs=[])
        out += self._part_event("response.content_part.done", part=_part(text))
        return out + self._item_done(self._message_item(text))

    def _item_done(self, item: dict[str, Any]) -> bytes:
        out = self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        return out

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        where = {"output_index": len(self._items), "item_id": self._item_id("msg"), "content_index": 0}
        return self._event(kind, **where, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse({"type": kind, "sequence_number": number, **fields}, kind)

    def _item_id(self, kind: str) -> str:
        return f"{kind}_{self._facts.call_id.rpartition('_')[2]}_{len(self._items)}"

    def _message_item(self, text: str) -> dict[str, Any]:
        return {
            "id": self._item_id("msg"),
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [_part(text)],
        }

    def _call_item(self, call: ToolCall) -> dict[str, Any]:
        return {
            "id": self._item_id("fc"),
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }

    def _ended(self, end: Ending) -> dict[str, Any]:
        whole = end.reason != "length"
        response = self._response("completed" if whole else "incomplete")
        response["incomplete_details"] = None if whole else {"reason": "max_output_tokens"}
        response["usage"] = {
            "input_tokens": self._facts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": end.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._facts.prompt_tokens + end.completion_tokens,
        }
        return response

    def _response(self, status: str) -> dict[str, Any]:
        asked = self._facts.request.body
        repeated = {name: default if asked.get(name) is None else asked[name] for name, default in _REPEATED.items()}
        return {
            "id": ID_PREFIX + self._facts.call_id,
            "object": "response",
            "created_at": int(self._facts.created),
            "status": status,
            "model": self._facts.model,
            "output": list(self._items),
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **repeated,
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
