"""Canonical conversations, and how callers write them: one writer a wire format, in the forms that harnesses use."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from hypothesis import strategies as st

from practicum.dialects.reasoning import seal
from practicum.types.messages import Message, ToolCall

PATH = {"model": "practicum", "method": "generateContent"}
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
some = words.filter(bool)
names = st.sampled_from(["bash", "web.find-2", "a_b"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e6, 1e6).filter(lambda x: x % 1) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(words, json_values, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False))
calls = st.lists(st.tuples(names, arguments), max_size=3)


@st.composite
def answers(draw: Any, numbers: Any = None) -> Message:
    """An assistant message with text, reasoning, calls, or several of them."""
    numbers = numbers or count()
    content, thought, made = draw(st.tuples(words, words, calls).filter(any))
    return Message(
        role="assistant",
        content=content,
        reasoning=thought,
        tool_calls=tuple(ToolCall(id=f"c{next(numbers)}", name=name, arguments=text) for name, text in made),
    )


@st.composite
def conversations(draw: Any) -> tuple[Message, ...]:
    """A system message or none, then turns: the user's words, an answer, what its calls gave."""
    numbers = count()
    messages = [Message(role="system", content=text) for text in draw(st.lists(some, max_size=1))]
    messages.append(Message(role="user", content=draw(some)))
    for _ in range(draw(st.integers(0, 3))):
        answer = draw(answers(numbers))
        messages.append(answer)
        results = [Message(role="tool", content=draw(words), tool_call_id=call.id) for call in answer.tool_calls]
        messages += results
        if not results or draw(st.booleans()):
            messages.append(Message(role="user", content=draw(some)))
    return tuple(messages)


def kept(messages: Sequence[Message]) -> list[Any]:
    """What every wire format keeps of messages: all but how arguments were spelled, and the names of results."""
    return [
        [
            m.role,
            m.content,
            m.reasoning,
            m.tool_call_id,
            [(c.id, c.name, json.loads(c.arguments)) for c in m.tool_calls],
        ]
        for m in messages
    ]


def chat(messages: Sequence[Message], form: int) -> dict[str, Any]:
    """Chat completions. Forms differ in how text, no text and reasoning are written."""
    wire: list[dict[str, Any]] = []
    for message in messages:
        item: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.content and form % 2:
            item["content"] = [{"type": "text", "text": message.content}]
        elif not message.content and message.role == "assistant":
            item |= [{"content": None}, {"content": ""}, {"content": [], "refusal": None}][form % 3]
        if message.tool_calls:
            item["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
        if message.reasoning or form % 3 == 2:
            item["reasoning" if form == 1 else "reasoning_content"] = message.reasoning
        if message.tool_call_id is not None:
            item["tool_call_id"] = message.tool_call_id
        wire.append(item)
    return {"model": "practicum", "messages": wire}


def responses(messages: Sequence[Message], form: int) -> dict[str, Any]:
    """Responses. Forms differ in where reasoning stands: content, summary, sealed, a message of its own."""
    items: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if message.role == "tool":
            output: Any = [{"type": "input_text", "text": message.content}] if form % 2 else message.content
            items.append({"type": "function_call_output", "call_id": message.tool_call_id, "output": output})
            continue
        if message.reasoning:
            items.append(_reasoning_item(message.reasoning, form))
        if message.content or not (message.tool_calls or message.reasoning):
            kind = "output_text" if message.role == "assistant" else "input_text"
            role = "developer" if message.role == "system" and form % 2 else message.role
            content: Any = [{"type": kind, "text": message.content}] if form % 2 else message.content
            items.append({"type": "message", "id": f"msg_{number}", "role": role, "content": content})
        items += [
            {"type": "function_call", "id": f"fc_{c.id}", "call_id": c.id, "name": c.name, "arguments": c.arguments}
            for c in message.tool_calls
        ]
    return {"model": "practicum", "input": items}


def _reasoning_item(thought: str, form: int) -> dict[str, Any]:
    shown = [
        {"summary": [], "content": [{"type": "reasoning_text", "text": thought}]},
        {"summary": [{"type": "summary_text", "text": thought}], "content": None, "encrypted_content": "b3RoZXJz"},
        {"summary": [], "encrypted_content": seal("call_1", thought)},
    ]
    return {"type": "reasoning", "id": "rs_1", **shown[form % 3]}


def anthropic(messages: Sequence[Message], form: int) -> dict[str, Any]:
    """Messages. Results and the words behind them share a turn; thinking is open or sealed in its signature."""
    wire: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message, form)
        if role == "user" and wire and wire[-1]["role"] == "user" and isinstance(wire[-1]["content"], list):
            wire[-1]["content"] += blocks
        else:
            only_words = form % 2 and message.role == "user"
            wire.append({"role": role, "content": message.content if only_words else blocks})
    system = [m.content for m in messages if m.role == "system"]
    return {"model": "practicum", "max_tokens": 9, "messages": wire, **({"system": system[0]} if system else {})}


def _blocks(message: Message, form: int) -> list[dict[str, Any]]:
    if message.role == "tool":
        content: Any = [{"type": "text", "text": message.content}] if form % 2 else message.content
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}]
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        shown = ("", seal("call_1", message.reasoning)) if form % 3 == 2 else (message.reasoning, seal("call_1"))
        blocks.append({"type": "thinking", "thinking": shown[0], "signature": shown[1]})
    if message.content:
        blocks.append({"type": "text", "text": message.content, "cache_control": {"type": "ephemeral"}})
    for call in message.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)})
    return blocks


def gemini(messages: Sequence[Message], form: int) -> dict[str, Any]:
    """generateContent. Thoughts are parts, or only a signature; names are in camelCase or snake_case."""
    contents: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "model" if message.role == "assistant" else "user"
        parts = _parts(message, form)
        if role == "user" and contents and contents[-1]["role"] == "user":
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    system = [{"text": m.content} for m in messages if m.role == "system"]
    return {"contents": contents, **({"systemInstruction": {"parts": system}} if system else {})}


def _parts(message: Message, form: int) -> list[dict[str, Any]]:
    call_key, result_key, signature_key = [
        ("functionCall", "functionResponse", "thoughtSignature"),
        ("function_call", "function_response", "thought_signature"),
    ][form % 2]
    if message.role == "tool":
        given = {"id": message.tool_call_id, "name": "bash", "response": {"output": message.content}}
        return [{result_key: given}]
    parts: list[dict[str, Any]] = [{"text": message.content}] if message.content else []
    parts += [{call_key: {"id": c.id, "name": c.name, "args": json.loads(c.arguments)}} for c in message.tool_calls]
    if message.reasoning and form % 3 == 2:
        signature = seal("call_1", message.reasoning)
        parts = parts or [{"text": ""}]
        parts[0][signature_key] = signature.replace("+", "-").replace("/", "_") if form % 2 else signature
    elif message.reasoning:
        parts = [{"text": message.reasoning, "thought": True}, *parts]
    return parts


WRITERS: dict[str, Callable[[Sequence[Message], int], dict[str, Any]]] = {
    "openai_chat": chat,
    "openai_responses": responses,
    "anthropic_messages": anthropic,
    "gemini": gemini,
}
