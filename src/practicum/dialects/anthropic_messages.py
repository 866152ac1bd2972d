"""Anthropic's Messages: wire to canonical and back. Pure; what goes over the wire is `bytes` and `dict` here.

A field that is unknown is accepted and stays on record. One that changes what the answer means and that we cannot
honour is refused by name. `thinking`, `output_config.effort`, `context_management` and `cache_control` change how an
answer comes about, not what is asked: they are accepted.

Thinking blocks are for callers who ask for thinking: others take the first block for the text. With
`display: omitted` a block's text is empty and its signature carries the reasoning; otherwise the signature names the
call only. Nothing is ever redacted.

A tool that the provider itself would run is left out of the prompt; one that the caller runs, but whose schema only the
provider's models know, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from practicum.dialects import demands
from practicum.dialects import wire as shared
from practicum.dialects.anthropic_messages_wire import WireBlock, WireMessage, WireRequest, WireTool, WireToolChoice
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.reasoning import Shown, seal, switches, unseal
from practicum.dialects.request import ChatRequest
from practicum.dialects.strict_json import parse_object
from practicum.dialects.volatile import is_no_prompt
from practicum.dialects.wire import absent, empty, sse
from practicum.errors import ContextOverflow, PracticumError, RequestError
from practicum.types.messages import Message, Role, ToolCall, ToolSpec
from practicum.types.tokens import Constraint, FinishReason, SamplingParams, TokenText

NAME = "anthropic_messages"
ID_PREFIX = "msg_"

# Types of tools that the provider runs by itself, without their date.
_RUN_BY_PROVIDER = ("web_search", "web_fetch", "code_execution", "tool_search_tool", "mcp_toolset", "advisor")
_STOP_REASONS: dict[FinishReason, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
}

_REFUSED: shared.Refusals = {
    "mcp_servers": (empty, "the model reaches no servers by itself; offer their tools in `tools`."),
    "container": (absent, "there is no container to run in."),
}


def parse(raw: bytes, path: Mapping[str, str] = {}) -> ChatRequest:
    """The request in a body. Raises RequestError, whose `param` names the field at fault."""
    body = parse_object(raw)
    if path.get("task") != "count" and body.get("max_tokens") is None:
        raise RequestError("`max_tokens`: Field required.", param="max_tokens")
    return from_body(body)


def from_body(body: dict[str, Any]) -> ChatRequest:
    """The request in a body that was parsed before, from the wire or from a record. Raises RequestError."""
    wire = shared.validated(WireRequest, body)
    shared.refuse(body, _REFUSED)
    tools, choice = _tools(wire.tools or []), _choice(wire.tool_choice)
    several = wire.tool_choice is None or not wire.tool_choice.disable_parallel_tool_use
    if wire.messages[-1].role == "assistant":
        raise shared.unsupported(
            f"messages.{len(wire.messages) - 1}", "an answer cannot be begun for the model; end with the user's turn."
        )
    return ChatRequest(
        model=wire.model,
        messages=(*_system(wire.system), *shared.joined(_messages(wire.messages))),
        tools=tools,
        params=SamplingParams(
            temperature=1.0 if wire.temperature is None else float(wire.temperature),
            top_p=1.0 if wire.top_p is None else float(wire.top_p),
            top_k=wire.top_k or 0,
            stop=shared.stop_strings(wire.stop_sequences or [], "stop_sequences"),
            constraint=_format(body),
        ),
        max_tokens=wire.max_tokens,
        stream=bool(wire.stream),
        **demands.chosen(choice, tools, "tool_choice", several=several),
        **_thinking(wire),
        body=body,
    )


def _format(body: dict[str, Any]) -> Constraint | None:
    """What the answer must be, by the field of today or by that of the beta before it."""
    config = body.get("output_config")
    formats = {"output_format": body.get("output_format")}
    if isinstance(config, dict):
        formats["output_config.format"] = config.get("format")
    asked = []
    for where, value in formats.items():
        if value is not None:
            if not isinstance(value, dict) or value.get("type") != "json_schema":
                raise shared.unsupported(where, "the only type is `json_schema`.")
            asked.append(demands.schema_constraint(value.get("schema"), f"{where}.schema"))
    return demands.only(asked)


def _choice(wire: WireToolChoice | None) -> demands.Choice:
    if wire is None or wire.type in ("auto", "none", "any"):
        kind = wire.type if wire else "auto"
        return demands.Choice(names=() if kind == "none" else None, must=kind == "any")
    if wire.type != "tool":
        raise shared.unsupported("tool_choice", "the types are `auto`, `any`, `tool` and `none`.")
    if wire.name is None:
        raise RequestError("The name of this tool is missing.", param="tool_choice.name")
    return demands.Choice(names=(wire.name,), must=True)


def _thinking(wire: WireRequest) -> dict[str, Any]:
    """How to reason, for the template, and whether the caller wants to see it."""
    asked = wire.thinking if isinstance(wire.thinking, dict) else {}
    on = None if asked.get("type") is None else asked["type"] != "disabled"
    effort = wire.output_config.get("effort") if isinstance(wire.output_config, dict) and on else None
    shown: Shown = "hidden" if not on else "sealed" if asked.get("display") == "omitted" else "text"
    return {"options": switches(on=on, effort=effort, budget=asked.get("budget_tokens")), "reasoning_shown": shown}


def _system(system: str | list[WireBlock] | None) -> tuple[Message, ...]:
    if isinstance(system, list):
        system = [block for block in system if not is_no_prompt(block.text or "")]
    text = _text(system, "system")
    return (Message(role="system", content=text),) if text else ()


def _messages(wire: Sequence[WireMessage]) -> Iterator[Message]:
    for index, message in enumerate(wire):
        where = f"messages.{index}.content"
        if message.role == "assistant":
            yield _assistant(message.content, where)
        else:
            yield from _turn(message.role, message.content, where)


def _turn(role: Role, content: str | list[WireBlock], where: str) -> Iterator[Message]:
    """A user's turn: tool results are messages of their own, the text around them another."""
    if isinstance(content, str):
        yield Message(role=role, content=content)
        return
    pending: list[str] = []
    for index, block in enumerate(content):
        if block.type == "tool_result" and role == "user":
            if pending:
                yield Message(role=role, content="".join(pending))
                pending = []
            text = _text(block.content, f"{where}.{index}.content")
            yield Message(role="tool", content=text, tool_call_id=block.tool_use_id)
        else:
            pending.append(_block_text(block, f"{where}.{index}"))
    if pending or not content:
        yield Message(role=role, content="".join(pending))


def _assistant(content: str | list[WireBlock], where: str) -> Message:
    if isinstance(content, str):
        return Message(role="assistant", content=content)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(content):
        if block.type == "tool_use":
            if not block.name:
                raise RequestError("The name of this call is missing.", param=f"{where}.{index}.name")
            calls.append(ToolCall(id=block.id, name=block.name, arguments=shared.arguments_text(block.input)))
        elif block.type == "thinking":
            thoughts.append(block.thinking or unseal(block.signature))
        elif block.type != "redacted_thinking":
            texts.append(_block_text(block, f"{where}.{index}"))
    return Message(role="assistant", content="".join(texts), tool_calls=tuple(calls), reasoning="".join(thoughts))


def _text(content: str | list[WireBlock] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_block_text(block, f"{where}.{index}") for index, block in enumerate(content))


def _block_text(block: WireBlock, where: str) -> str:
    if block.type == "tool_reference":  # what a search for deferred tools found; all tools are in the prompt anyway
        return block.tool_name
    if block.type != "text":
        raise shared.unreadable(block.type, where, "content block")
    if block.text is None:
        raise RequestError("The text of this content block is missing.", param=f"{where}.text")
    return block.text


def _tools(wire: Sequence[WireTool]) -> tuple[ToolSpec, ...]:
    specs = []
    for index, tool in enumerate(wire):
        if tool.type in (None, "custom"):
            specs.append(shared.tool_spec(tool.name, tool.description, tool.input_schema))
        elif not (tool.type or "").startswith(_RUN_BY_PROVIDER):
            raise shared.unsupported(f"tools.{index}.type", "offer the tool with an `input_schema`.")
    return shared.unique(specs, "tools.{}.name")


class AnswerBuilder:
    """Builds the body or the stream of one answer. In a stream it knows which block is open, and an open thought."""

    ping = sse({"type": "ping"}, "ping")
    stream_type = "text/event-stream; charset=utf-8"

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._index = -1
        self._open_type: str | None = None
        self._thought = ""
        self._shown = facts.request.reasoning_shown

    def body(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The whole answer."""
        blocks: list[dict[str, Any]] = []
        if message.reasoning and self._shown != "hidden":
            visible = message.reasoning if self._shown == "text" else ""
            blocks.append({"type": "thinking", "thinking": visible, "signature": self._signature(message.reasoning)})
        if message.content:
            blocks.append({"type": "text", "text": message.content})
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": shared.arguments_object(call.arguments)}
            for call in message.tool_calls
        ]
        return shared.dump({**self._message(blocks, self._usage(end)), **_stop(end)})

    def start(self) -> bytes:
        """The event with the message that is still empty; its usage has the real number of prompt tokens."""
        return _event("message_start", message=self._message([], self._usage(None)))

    def text(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of text."""
        return self._inside({"type": "text", "text": ""}) + self._delta({"type": "text_delta", "text": text})

    def thought(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of reasoning, where the caller asked for it."""
        if self._shown == "hidden":
            return b""
        opened = self._inside({"type": "thinking", "thinking": "", "signature": ""})
        self._thought += text
        if self._shown == "sealed":
            return opened
        return opened + self._delta({"type": "thinking_delta", "thinking": text})

    def tool_call(self, call: ToolCall, tokens: Sequence[TokenText]) -> bytes:
        """A completed call."""
        out = self._close() + self._open({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        out += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        return out + _event("content_block_stop", index=self._index)

    def finish(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The events with the stop reason and the usage, and the terminator."""
        usage = self._usage(end)
        return self._close() + _event("message_delta", delta=_stop(end), usage=usage) + _event("message_stop")

    def error(self, error: PracticumError) -> bytes:
        """An error inside a stream that has begun; no terminator follows it."""
        return sse(error_body(error), "error")

    def _inside(self, block: dict[str, Any]) -> bytes:
        """What opens a block of this type, unless one is open."""
        if self._open_type == block["type"]:
            return b""
        out = self._close() + self._open(block)
        self._open_type = block["type"]
        return out

    def _open(self, block: dict[str, Any]) -> bytes:
        self._index += 1
        return _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        was_open, self._open_type = self._open_type, None
        if was_open is None:
            return b""
        out = b""
        if was_open == "thinking":
            out = self._delta({"type": "signature_delta", "signature": self._signature(self._thought)})
            self._thought = ""
        return out + _event("content_block_stop", index=self._index)

    def _signature(self, thought: str) -> str:
        return seal(self._facts.call_id, thought if self._shown == "sealed" else "")

    def _delta(self, delta: dict[str, str]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _message(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": ID_PREFIX + self._facts.call_id,
            "type": "message",
            "role": "assistant",
            "model": self._facts.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _usage(self, end: Ending | None) -> dict[str, Any]:
        details = {"thinking_tokens": end.reasoning_tokens} if end and end.reasoning_tokens else None
        return {
            "input_tokens": self._facts.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": end.completion_tokens if end else 0,
            **({"output_tokens_details": details} if details else {}),
        }


def answer(facts: AnswerFacts) -> AnswerBuilder:
    """Makes the bytes of one answer."""
    return AnswerBuilder(facts)


def error_body(error: PracticumError) -> dict[str, Any]:
    """An error in Anthropic's shape, which has no place for the field: the message names it."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = shared.naming_field(error)
    if isinstance(error, ContextOverflow):  # the words by which harnesses know that they must compact
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def token_count(tokens: int) -> dict[str, Any]:
    """The answer to a count."""
    return {"input_tokens": tokens}


def model_object(name: str, created: int) -> dict[str, Any]:
    """One entry of the list of models."""
    at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": name, "display_name": name, "created_at": at}


def model_list(objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The list of models, as one page."""
    ids = [shown["id"] for shown in objects]
    return {"data": list(objects), "has_more": False, "first_id": ids[0], "last_id": ids[-1]}


def _stop(end: Ending) -> dict[str, str | None]:
    by_string = end.reason == "stop" and end.stop is not None
    return {
        "stop_reason": "stop_sequence" if by_string else _STOP_REASONS[end.reason],
        "stop_sequence": end.stop if by_string else None,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)
