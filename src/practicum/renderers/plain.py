"""Tools as plain text, for templates that do not render them: the system message explains, calls and results are text.

Calls are written in the model family's own markup where it has one, so that what the model reads in its history is
what it writes. A special token in a caller's text is guarded; one in the markup is meant. It must not
know tokens or templates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from practicum.renderers.markup import CallMarkup
from practicum.renderers.native import Guard, parsed, spec_dict
from practicum.types.messages import Message, ToolCall, ToolSpec

_EXPLAINED = (
    "The functions below are at your disposal, one JSON object a line:\n<tools>\n{specs}\n</tools>\n"
    "{how}, and each call stands in a block of its own:\n{example}"
)
_HOW = "A call is a JSON object with the keys name and arguments"
_HOW_ELSE = "A call names its function and gives its arguments"


def plain_turns(messages: Sequence[Message], markup: CallMarkup, guard: Guard) -> list[dict[str, str]]:
    """Each turn's role and text, guarded but for the markup of calls.

    Results of parallel calls share one turn, as templates with strict turns need it.
    """
    turns: list[dict[str, str]] = []
    previous = ""
    for message in messages:
        text = _content(message, markup, guard)
        if message.role == previous == "tool":
            turns[-1]["content"] += f"\n{text}"
        else:
            turns.append({"role": "user" if message.role == "tool" else message.role, "content": text})
        previous = message.role
    return turns


def merged_turns(turns: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The turns as strict templates need them: one system turn at the beginning, then user and assistant in turns."""
    merged: list[dict[str, str]] = []
    for turn in turns:
        role = "user" if turn["role"] == "system" and any(m["role"] != "system" for m in merged) else turn["role"]
        if merged and merged[-1]["role"] == role:
            merged[-1]["content"] = f"{merged[-1]['content']}\n\n{turn['content']}".strip("\n")
        else:
            merged.append({"role": role, "content": turn["content"]})
    return merged


def explained(messages: Sequence[Message], tools: Sequence[ToolSpec], markup: CallMarkup) -> list[Message]:
    """The messages with the tools explained in the system message."""
    specs = "\n".join(json.dumps(spec_dict(tool)["function"], ensure_ascii=False) for tool in tools)
    text = _EXPLAINED.format(specs=specs, how=_HOW if markup.kind == "hermes" else _HOW_ELSE, example=example(markup))
    if messages and messages[0].role == "system":
        first = replace(messages[0], content=f"{messages[0].content}\n\n{text}".strip())
        return [first, *messages[1:]]
    return [Message(role="system", content=text), *messages]


def example(markup: CallMarkup) -> str:
    """A call as the explanation shows it."""
    return markup.written([ToolCall(id="", name="function-name", arguments='{"key": "value"}')])


def _content(message: Message, markup: CallMarkup, guard: Guard) -> str:
    if message.role == "tool":
        return guard(f"<tool_response>\n{message.content}\n</tool_response>")
    calls = markup.written([_normalised(call, guard) for call in message.tool_calls])
    return "\n".join(text for text in (guard(message.content), calls) if text) if calls else guard(message.content)


def _normalised(call: ToolCall, guard: Guard) -> ToolCall:
    value = parsed(call.arguments)
    return replace(call, name=guard(call.name), arguments=guard(json.dumps(value, ensure_ascii=False)))
