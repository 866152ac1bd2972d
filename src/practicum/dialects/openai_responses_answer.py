"""What goes back over OpenAI's Responses: an answer is a list of items, each text, thought or call one of them.

Reasoning stands in an item's `content`, or in its `summary` where the caller asked for one: the clients that ask show
and replay nothing else, and nothing shorter than the reasoning itself is made up. Asked for encrypted content, an item
carries the reasoning sealed as well.

Every event has a number and names the item it belongs to; the last one holds the whole response. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.openai_tools import text_of
from practicum.dialects.reasoning import seal
from practicum.dialects.request import Declared
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How one kind of text streams: the names of its part, its deltas and its index, and what ids begin with."""

    part: str
    text: str
    index: str
    prefix: str


_TEXT = _Form(part="content_part", text="output_text", index="content_index", prefix="msg")
_REASONING = _Form(part="content_part", text="reasoning_text", index="content_index", prefix="rs")
_SUMMARY = _Form(part="reasoning_summary_part", text="reasoning_summary_text", index="summary_index", prefix="rs")


class AnswerBuilder:
    """Builds the body or the stream of one answer. In a stream it knows the items so far and an open one's text."""

    ping = b": waiting for the next token\n\n"
    stream_type = "text/event-stream; charset=utf-8"

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._items: list[dict[str, Any]] = []
        self._open: _Form | None = None
        self._open_text = ""
        self._number = 0
        asked = facts.request.body
        reasoning, include = asked.get("reasoning"), asked.get("include")
        summary = reasoning.get("summary") or reasoning.get("generate_summary") if isinstance(reasoning, dict) else None
        self._thoughts = _SUMMARY if summary else _REASONING
        self._sealed = isinstance(include, list) and "reasoning.encrypted_content" in include

    def body(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The whole answer."""
        if message.reasoning:
            self._items.append(self._item(self._thoughts, message.reasoning))
        if message.content or not (message.tool_calls or self._items):
            self._items.append(self._item(_TEXT, message.content))
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
        return self._piece(_TEXT, text)

    def thought(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of reasoning."""
        return self._piece(self._thoughts, text)

    def tool_call(self, call: ToolCall, tokens: Sequence[TokenText]) -> bytes:
        """A completed call."""
        out = self._close()
        item = self._call_item(call)
        field, kind, named = "arguments", "function_call_arguments", {"name": item["name"]}
        if item["type"] == "custom_tool_call":
            field, kind, named = "input", "custom_tool_call_input", {}
        where = {"output_index": len(self._items), "item_id": item["id"]}
        begun = {**item, "status": "in_progress", field: ""}
        out += self._event("response.output_item.added", output_index=len(self._items), item=begun)
        out += self._event(f"response.{kind}.delta", **where, delta=item[field])
        out += self._event(f"response.{kind}.done", **where, **named, **{field: item[field]})
        return out + self._item_done(item)

    def finish(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The events that close what is open, and the one with the whole response."""
        out = self.text("", ()) if not self._items and self._open is None else b""
        out += self._close()
        response = self._ended(end)
        return out + self._event(f"response.{response['status']}", response=response)

    def error(self, error: PracticumError) -> bytes:
        """The event of a response that failed; nothing follows it."""
        response = {**self._response("failed"), "error": {"code": error.code, "message": str(error)}}
        return self._event("response.failed", response=response)

    def _piece(self, form: _Form, text: str) -> bytes:
        """A piece of a text, which is opened where another one was open."""
        out = b""
        if self._open is not form:
            out = self._close()
            self._open, self._open_text = form, ""
            item = self._begun_item(form)
            out += self._event("response.output_item.added", output_index=len(self._items), item=item)
            out += self._part_event(form, f"{form.part}.added", part=_part(form, ""))
        self._open_text += text
        return out + self._part_event(form, f"{form.text}.delta", delta=text, **_no_logprobs(form))

    def _close(self) -> bytes:
        """End the text that is open."""
        form, text = self._open, self._open_text
        if form is None:
            return b""
        self._open = None
        out = self._part_event(form, f"{form.text}.done", text=text, **_no_logprobs(form))
        out += self._part_event(form, f"{form.part}.done", part=_part(form, text))
        return out + self._item_done(self._item(form, text))

    def _item_done(self, item: dict[str, Any]) -> bytes:
        out = self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        return out

    def _part_event(self, form: _Form, kind: str, **fields: Any) -> bytes:
        where = {"output_index": len(self._items), "item_id": self._item_id(form.prefix), form.index: 0}
        return self._event(f"response.{kind}", **where, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse({"type": kind, "sequence_number": number, **fields}, kind)

    def _item_id(self, kind: str) -> str:
        return f"{kind}_{self._facts.call_id.rpartition('_')[2]}_{len(self._items)}"

    def _begun_item(self, form: _Form) -> dict[str, Any]:
        item = {"id": self._item_id(form.prefix), "type": "message" if form is _TEXT else "reasoning"}
        if form is _TEXT:
            return {**item, "status": "in_progress", "role": "assistant", "content": []}
        return {**item, "summary": []}

    def _item(self, form: _Form, text: str) -> dict[str, Any]:
        item = {**self._begun_item(form), "summary" if form is _SUMMARY else "content": [_part(form, text)]}
        if form is _TEXT:
            item["status"] = "completed"
        elif self._sealed:
            item["encrypted_content"] = seal(self._facts.call_id, text)
        return item

    def _call_item(self, call: ToolCall) -> dict[str, Any]:
        how = self._facts.request.declared.get(call.name) or Declared(name=call.name)
        return {
            "id": self._item_id("ctc" if how.free_form else "fc"),
            "type": "custom_tool_call" if how.free_form else "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": how.name,
            **({"namespace": how.namespace} if how.namespace else {}),
            **({"input": text_of(call.arguments)} if how.free_form else {"arguments": call.arguments}),
        }

    def _ended(self, end: Ending) -> dict[str, Any]:
        whole = end.reason != "length"
        response = self._response("completed" if whole else "incomplete")
        response["incomplete_details"] = None if whole else {"reason": "max_output_tokens"}
        response["usage"] = {
            "input_tokens": self._facts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": end.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
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


def _part(form: _Form, text: str) -> dict[str, Any]:
    if form is _TEXT:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "summary_text" if form is _SUMMARY else "reasoning_text", "text": text}


def _no_logprobs(form: _Form) -> dict[str, Any]:
    return {"logprobs": []} if form is _TEXT else {}
