"""OpenAI's Responses: wire to canonical and back; `openai_responses_answer.py` builds what goes back. Pure.

A field that is unknown is accepted and stays on record. One that changes what the answer means and that we cannot
honour is refused by name. Nothing is kept for a caller to refer to, so every request must bring its whole input.

Tools that only the provider can run are left out of the prompt and stay on record: harnesses list them beside their own
whatever the model, and only a forced `tool_choice` would need one. Tools also come between the turns, in an item of
their own; there a later declaration of a name stands for the earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from practicum.dialects import demands, openai_chat, openai_tools
from practicum.dialects import wire as shared
from practicum.dialects.dialect import AnswerFacts
from practicum.dialects.openai_responses_answer import ID_PREFIX, AnswerBuilder
from practicum.dialects.openai_responses_wire import (
    WireCustom,
    WireFunction,
    WireItem,
    WireNamespace,
    WirePart,
    WireRequest,
    WireTool,
)
from practicum.dialects.reasoning import switches, tagged, unseal
from practicum.dialects.request import ChatRequest, Declared
from practicum.dialects.strict_json import parse_object
from practicum.dialects.wire import absent, off, zero
from practicum.errors import PracticumError, RequestError
from practicum.types.messages import Message, Role, ToolCall, ToolSpec
from practicum.types.tokens import SamplingParams

__all__ = ["ID_PREFIX", "NAME", "answer", "error_body", "from_body", "model_list", "model_object", "parse"]

NAME = "openai_responses"
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
# Codex puts tools and settings between the turns.
_NO_TURNS = ("additional_tools", "configuration_update")
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
Offered = tuple[ToolSpec, Declared]
_STATELESS = "nothing is kept between requests; send the whole input."

_REFUSED: shared.Refusals = {
    "previous_response_id": (absent, _STATELESS),
    "conversation": (absent, _STATELESS),
    "prompt": (absent, _STATELESS),
    "background": (off, "answers are given in the foreground."),
    "top_logprobs": (zero, "logprobs are offered on chat completions only."),
    "include": (
        lambda value: not (isinstance(value, list) and "message.output_text.logprobs" in value),
        "logprobs are offered on chat completions only.",
    ),
    "modalities": (lambda value: value is None or value == ["text"], shared.TEXT_ONLY),
}

model_object = openai_chat.model_object
model_list = openai_chat.model_list


def parse(raw: bytes, path: Mapping[str, str] = {}) -> ChatRequest:
    """The request in a body. Raises RequestError, whose `param` names the field at fault."""
    return from_body(parse_object(raw))


def from_body(body: dict[str, Any]) -> ChatRequest:
    """The request in a body that was parsed before, from the wire or from a record. Raises RequestError."""
    wire = shared.validated(WireRequest, body)
    shared.refuse(body, _REFUSED)
    items = wire.input if isinstance(wire.input, list) else [WireItem(role="user", content=wire.input)]
    system = (Message(role="system", content=wire.instructions),) if wire.instructions else ()
    messages = shared.joined(_messages(items))
    if not messages:
        raise RequestError("The input holds no message.", param="input")
    offered = _tools(wire.tools or [], items)
    tools = tuple(tool for tool, _ in offered.values())
    declared = {name: how for name, (_, how) in offered.items()}
    choice = openai_tools.choice(wire.tool_choice, declared)
    return ChatRequest(
        model=wire.model,
        messages=(*system, *messages),
        tools=tools,
        declared=declared,
        params=SamplingParams(
            temperature=1.0 if wire.temperature is None else float(wire.temperature),
            top_p=1.0 if wire.top_p is None else float(wire.top_p),
            constraint=demands.openai_format((wire.text or {}).get("format"), "text.format", wrapped=False),
        ),
        max_tokens=wire.max_output_tokens,
        stream=bool(wire.stream),
        **demands.chosen(choice, tools, "tool_choice", several=wire.parallel_tool_calls),
        options=switches(effort=wire.reasoning.get("effort")) if isinstance(wire.reasoning, dict) else {},
        body=body,
    )


def _messages(items: Sequence[WireItem]) -> Iterator[Message]:
    """The turns. Reasoning belongs to the answer behind it; without one it is an answer by itself.

    At the end of the input it is left out: that answer was cut short, and the caller asks for it anew.
    """
    reasoning = ""
    for index, item in enumerate(items):
        if item.type == "reasoning":
            reasoning += _reasoning(item, f"input.{index}")
        elif item.type not in _NO_TURNS:
            message = _message(item, f"input.{index}")
            thought = tagged(message.content) if message.role == "assistant" and not message.tool_calls else None
            if thought is not None:
                reasoning += thought
                continue
            if message.role == "assistant":
                message = replace(message, reasoning=reasoning)
            elif reasoning:
                yield Message(role="assistant", reasoning=reasoning)
            yield message
            reasoning = ""


def _reasoning(item: WireItem, where: str) -> str:
    """What is visible of it, or else what we sealed."""
    visible = _text(item.content, f"{where}.content") or _text(item.summary, f"{where}.summary")
    return visible or unseal(item.encrypted_content)


def _message(item: WireItem, where: str) -> Message:
    if item.type in (None, "message"):
        if item.role not in _ROLES:
            raise RequestError(f"A message has one of the roles {', '.join(_ROLES)}.", param=f"{where}.role")
        return Message(role=_ROLES[item.role], content=_text(item.content, f"{where}.content"))
    if item.type in ("function_call", "custom_tool_call"):
        if not item.name:
            raise RequestError("The name of this call is missing.", param=f"{where}.name")
        name = openai_tools.offered_name(item.name, item.namespace)
        arguments = item.arguments if item.type == "function_call" else openai_tools.arguments_of(item.input)
        return Message(role="assistant", tool_calls=(ToolCall(id=item.call_id, name=name, arguments=arguments),))
    if item.type in ("function_call_output", "custom_tool_call_output"):
        return Message(role="tool", content=_text(item.output, f"{where}.output"), tool_call_id=item.call_id)
    raise shared.unreadable(str(item.type), where, "input item")


def _text(content: str | list[WirePart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_parts(content, where))


def _parts(content: Sequence[WirePart], where: str) -> Iterator[str]:
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in _TEXT_PARTS and part.type != "refusal":
            raise shared.unreadable(part.type, f"{where}.{index}")
        if text is None:
            raise RequestError("The text of this content part is missing.", param=f"{where}.{index}.text")
        yield text


def _tools(wire: Sequence[WireTool], items: Sequence[WireItem]) -> dict[str, Offered]:
    """By the name under which the model knows it, each tool and how the caller declared it."""
    between = [
        (f"input.{n}.tools", item.tools or []) for n, item in enumerate(items) if item.type == "additional_tools"
    ]
    found: dict[str, Offered] = {}
    for where, tools in [("tools", wire), *between]:
        new: dict[str, Offered] = {}
        for at, (tool, how) in _offered(tools, where):
            if tool.name in new:
                raise RequestError("Two tools have the same name.", param=f"{at}.name")
            new[tool.name] = tool, how
        found |= new
    return found


def _offered(tools: Sequence[WireTool], where: str) -> Iterator[tuple[str, Offered]]:
    for index, tool in enumerate(tools):
        at = f"{where}.{index}"
        if isinstance(tool, WireFunction):
            yield at, (shared.tool_spec(tool.name, tool.description, tool.parameters), Declared(name=tool.name))
        elif isinstance(tool, WireCustom):
            spec = openai_tools.free_form(tool.name, tool.description, tool.format, at)
            yield at, (spec, Declared(name=tool.name, free_form=True))
        elif isinstance(tool, WireNamespace):
            for inner, (spec, how) in _offered(tool.tools, f"{at}.tools"):
                spec = openai_tools.in_namespace(spec, tool.name, tool.description)
                yield inner, (spec, replace(how, namespace=tool.name))


def answer(facts: AnswerFacts) -> AnswerBuilder:
    """Makes the bytes of one answer."""
    return AnswerBuilder(facts)


def error_body(error: PracticumError) -> dict[str, Any]:
    """An error in OpenAI's shape; what other dialects call messages is the input here."""
    shown = openai_chat.error_body(error)
    if shown["error"]["param"] == "messages":
        shown["error"]["param"] = "input"
    return shown
