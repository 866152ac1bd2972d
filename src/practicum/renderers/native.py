"""How one chat template wants calls and their results, found out by trying, and messages in that shape.

Published templates differ: arguments as an object or as JSON text, no content beside calls, ids of nine characters,
one call a message. A template that takes no shape at all gets calls as plain text (`plain.py`).

Invariant: in the chosen shape a probe's calls, arguments, results and text all come out of the template. It must not
know tokens.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from practicum.errors import RequestError
from practicum.types.messages import Message, ToolCall, ToolSpec

Guard = Callable[[str], str]
_ID_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a template needs of a message with calls.

    `arguments_as_text`: JSON text, not an object. `no_content`: null content beside calls. `short_ids`: ids of nine
    letters and digits. `split_text`, `split_calls`: a message's text, each of its calls, as a message of its own,
    because the template loses or refuses them together. `results_need_call`: a result only follows a call, so that a
    served answer with calls is stood in for by a call. `system_in_user`: the system message is lost where the last
    message is no user's, so it is written into the first user message, as these templates do themselves.
    """

    arguments_as_text: bool = False
    no_content: bool = False
    short_ids: bool = False
    split_text: bool = False
    split_calls: bool = False
    results_need_call: bool = False
    system_in_user: bool = False


def shape_of(render: Callable[[Sequence[Message], Shape], str]) -> Shape | None:
    """The first shape in which the template renders calls and results; None where there is none.

    `render` raises RequestError where the template refuses or fails.
    """
    for text, no_content, short in itertools.product((False, True), repeat=3):
        shape = Shape(arguments_as_text=text, no_content=no_content, short_ids=short)
        if _shows(render, shape, _exchange(_call(1)), "probe_call1", "probe_argument1", "probe_result1"):
            break
    else:
        return None
    spoken = _exchange(_call(1), content="probe_text", reasoning="probe_thought")
    shape = replace(shape, split_text=not _shows(render, shape, spoken, "probe_text", "probe_call1"))
    both = _exchange(_call(1), _call(2))
    words = ("probe_argument1", "probe_argument2", "probe_result1", "probe_result2")
    shape = replace(shape, split_calls=not _shows(render, shape, both, *words))
    bare = [*_exchange()[:2], *_exchange(_call(1))[2:]]
    shape = replace(shape, results_need_call=not _shows(render, shape, bare, "probe_result1"))
    ruled = [Message(role="system", content="probe_system"), *_exchange(_call(1))]
    return replace(shape, system_in_user=not _shows(render, shape, ruled, "probe_system"))


def native_messages(messages: Sequence[Message], shape: Shape, guard: Guard) -> list[dict[str, Any]]:
    """Messages as templates read them, texts guarded."""
    if shape.system_in_user:
        messages = _folded(messages)
    return [_native(message, shape, guard) for message in _split(named_results(messages), shape)]


def spec_dict(tool: ToolSpec) -> dict[str, Any]:
    """A tool as templates read it."""
    described = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": described}


def guarded(value: Any, guard: Guard) -> Any:
    """A JSON value with each text in it guarded."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, dict):
        return {guard(key): guarded(item, guard) for key, item in value.items()}
    return [guarded(item, guard) for item in value] if isinstance(value, list) else value


def parsed(arguments: str) -> Any:
    """Arguments as a value, or the text itself where it is not JSON."""
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def named_results(messages: Sequence[Message]) -> Iterator[Message]:
    """Messages with each result carrying its function's name, which most wire formats say in the call alone."""
    names: dict[str, str] = {}
    for message in messages:
        names.update((call.id, call.name) for call in message.tool_calls)
        if message.role == "tool" and not message.name and (name := names.get(message.tool_call_id or "")):
            message = replace(message, name=name)
        yield message


def _folded(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with a leading system message written into the first user message."""
    at = next((index for index, message in enumerate(messages) if message.role == "user"), None)
    if at is None or messages[0].role != "system":
        return messages
    first = replace(messages[at], content=f"{messages[0].content}\n\n{messages[at].content}")
    return [*messages[1:at], first, *messages[at + 1 :]]


def _split(messages: Iterator[Message], shape: Shape) -> Iterator[Message]:
    waiting: list[Message] = []
    for message in messages:
        if message.role == "tool" and waiting:
            index = next((i for i, m in enumerate(waiting) if m.tool_calls[0].id == message.tool_call_id), 0)
            yield waiting.pop(index)
        else:
            yield from waiting
            waiting = []
        if message.tool_calls and message.content and shape.split_text:
            yield replace(message, tool_calls=(), reasoning="")
            message = replace(message, content="")
        if len(message.tool_calls) > 1 and shape.split_calls:
            first, *later = [replace(message, tool_calls=(call,)) for call in message.tool_calls]
            waiting = [first, *(replace(one, content="", reasoning="") for one in later)]
        else:
            yield message
    yield from waiting


def _native(message: Message, shape: Shape, guard: Guard) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": message.role, "content": guard(message.content)}
    if message.reasoning:  # templates of different families look under different names
        rendered["reasoning_content"] = rendered["thinking"] = guard(message.reasoning)
    if message.tool_calls:
        rendered["tool_calls"] = [_native_call(call, shape, guard) for call in message.tool_calls]
        if shape.no_content:
            rendered["content"] = None
    if message.role == "tool":
        identity = _identity(message.tool_call_id or "", shape)
        rendered |= {"tool_call_id": identity, "name": guard(message.name or "")}
    return rendered


def _native_call(call: ToolCall, shape: Shape, guard: Guard) -> Mapping[str, Any]:
    arguments = guard(call.arguments or "{}") if shape.arguments_as_text else guarded(parsed(call.arguments), guard)
    function = {"name": guard(call.name), "arguments": arguments}
    return {"id": _identity(call.id, shape), "type": "function", "function": function}


def _identity(call_id: str, shape: Shape) -> str:
    if not shape.short_ids:
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode(errors="replace")).digest()[:8], "big")
    return "".join(_ID_ALPHABET[number // 36**power % 36] for power in range(9))


def _shows(
    render: Callable[[Sequence[Message], Shape], str], shape: Shape, messages: Sequence[Message], *words: str
) -> bool:
    try:
        text = render(messages, shape)
    except RequestError:
        return False
    return all(word in text for word in words)


def _exchange(*calls: ToolCall, content: str = "", reasoning: str = "") -> list[Message]:
    results = [Message(role="tool", content=f"probe_result{call.id[-1]}", tool_call_id=call.id) for call in calls]
    answer = Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)
    return [Message(role="user", content="question"), answer, *results]


def _call(number: int) -> ToolCall:
    arguments = json.dumps({"key": f"probe_argument{number}"})
    return ToolCall(id=f"call_of_the_probe_{number}", name=f"probe_call{number}", arguments=arguments)
