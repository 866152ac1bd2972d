"""Random conversations with tools, and answers as each family writes them: repeatable for one seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from practicum.renderers import ChatTokenizer, Renderer
from practicum.types.messages import Message, ToolCall, ToolSpec

WORDS = (
    "the",
    "file",
    "Zürich",
    "你好",
    "🎉",
    "naïve",
    "x = {1: 'a'}",
    "line\nbreak",
    '"quoted"',
    "a\\b",
    "</p>",
    "[INST",
)
TOOLS = (
    ToolSpec(
        name="web.search-2",
        description="Looks things up.",
        parameters={"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}},
    ),
    ToolSpec(
        name="bash",
        parameters={"type": "object", "properties": {"command": {"type": "string"}, "env": {"type": "object"}}},
    ),
    ToolSpec(name="mcp__x.y", parameters={"type": "object", "properties": {"on": {"type": "boolean"}}}),
)


def words(rng: random.Random, most: int = 5) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def arguments(rng: random.Random, tool: ToolSpec) -> dict[str, Any]:
    makers = {
        "string": lambda: words(rng),
        "integer": lambda: rng.randint(-5, 10**12),
        "object": lambda: {"A": words(rng, 2), "b": [1, None]},
        "boolean": lambda: rng.random() < 0.5,
    }
    chosen = [key for key in tool.parameters["properties"] if rng.random() < 0.8]
    return {key: makers[tool.parameters["properties"][key]["type"]]() for key in chosen}


def calls(rng: random.Random, renderer: Renderer) -> list[ToolCall]:
    most = 3 if renderer.markup.parallel else 1
    chosen = [rng.choice(TOOLS) for _ in range(rng.randint(1, most))]
    return [
        ToolCall(
            id=f"x{i}", name=tool.name, arguments=json.dumps(arguments(rng, tool), ensure_ascii=rng.random() < 0.3)
        )
        for i, tool in enumerate(chosen)
    ]


def written_answer(
    rng: random.Random, renderer: Renderer, prompt: str, reasoning: str, content: str, wanted: Sequence[ToolCall]
) -> str:
    """An answer's text as the family's model writes it behind `prompt`."""
    markup = renderer.markup
    if markup.kind == "harmony":
        thought = f"<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant" if reasoning else ""
        call = markup.written(wanted).removesuffix(markup.end)
        return thought + (call if wanted else f"<|channel|>final<|message|>{content}")
    text = markup.written(wanted)
    if markup.kind != "llama" or not wanted:
        text = content + ("\n" if content and wanted else "") + text
    if renderer.reasoning != "think":
        return text
    if prompt.rstrip().endswith("<think>"):
        return f"{reasoning}\n</think>\n\n{text}"
    return f"<think>\n{reasoning}\n</think>\n\n{text}" if reasoning else text


def encoded(rng: random.Random, tokenizer: ChatTokenizer, text: str) -> list[int]:
    """Ids of `text` as a model may sample them: special tokens as such, and often not the tokenizer's own choice."""
    ids: list[int] = []
    at = 0
    while at < len(text):
        size = rng.randint(1, 40)
        if rng.random() < 0.5 and not any(mark in text[at : at + size + 40] for mark in tokenizer.specials):
            ids += tokenizer.encode(text[at : at + size])
            at += size
        else:
            ids += tokenizer.encode(text[at : at + 200])
            at += 200
    return ids if tokenizer.decode(ids) == text else tokenizer.encode(text)


def conversation(rng: random.Random, renderer: Renderer, turns: int) -> list[Message]:
    """A history with answers, calls, results and reasoning; it ends with something to answer."""
    messages = [Message(role="system", content=words(rng))] if rng.random() < 0.5 else []
    messages.append(Message(role="user", content=words(rng)))
    for _ in range(turns):
        wanted = calls(rng, renderer) if rng.random() < 0.6 else []
        reasoning = words(rng) if rng.random() < 0.5 else ""
        content = words(rng) if not wanted or rng.random() < 0.3 else ""
        messages.append(Message(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(wanted)))
        messages += [Message(role="tool", content=words(rng), tool_call_id=call.id) for call in wanted]
        if not wanted or rng.random() < 0.2:
            messages.append(Message(role="user", content=words(rng)))
    return messages
