"""Whole bodies of every dialect, and broken ones made of them: the same ones in every run."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "bash"}}
BODIES: dict[str, dict[str, Any]] = {
    "openai_chat": {
        "model": "practicum",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
            },
            {"role": "tool", "content": "x", "tool_call_id": "c"},
        ],
        "tools": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        "stop": ["END"],
        "max_tokens": 3,
    },
    "openai_responses": {
        "model": "practicum",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "tools": [{"type": "function", "name": "bash", "parameters": SCHEMA}, {"type": "web_search"}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "bash"}]},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        "max_output_tokens": 3,
    },
    "openai_completions": {
        "model": "practicum",
        "prompt": [1, 2, 3],
        "structured_outputs": {"choice": ["a", "b"], "regex": None},
        "stop": ["END"],
        "stream_options": {"include_usage": True},
        "max_tokens": 3,
    },
    "anthropic_messages": {
        "model": "practicum",
        "max_tokens": 3,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "bash", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]},
        ],
        "tools": [{"name": "bash", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto", "name": None},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "stop_sequences": ["END"],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "bash", "args": {"a": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "bash", "response": {"output": "x"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "bash", "parameters": {"type": "OBJECT"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED", "allowedFunctionNames": ["bash"]}},
        "generationConfig": {
            "maxOutputTokens": 3,
            "stopSequences": ["END"],
            "responseMimeType": "application/json",
            "responseSchema": {"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": True}}},
        },
    },
}
_ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**40, "", "x", "\ud800\x00", [], [None], [[]], {}, {"type": "image"}, {"type": 5}, [{}],
    {"text": None}, [{"type": "text"}], [{"type": "tool_result", "content": [{"type": "image"}]}], "assistant",
)  # fmt: skip


def broken(dialect: str, count: int) -> Iterator[dict[str, Any]]:
    """Bodies with one to three values replaced or left out."""
    chance = random.Random(dialect)
    for _ in range(count):
        body = copy.deepcopy(BODIES[dialect])
        for _ in range(chance.randint(1, 3)):
            where, key = chance.choice(list(_places(body)))
            if chance.random() < 0.2:
                del where[key]
            else:
                where[key] = copy.deepcopy(chance.choice(_ODD))
            if not body:
                break
        yield body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)
