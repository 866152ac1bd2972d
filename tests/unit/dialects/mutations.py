"""Whole bodies of every dialect, and broken ones made of them: the same ones in every run."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType
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
# Tools of OpenAI's that are no functions, and calls of them.
_LARK = {"syntax": "lark", "definition": "start: /x/"}
FREE_FORM: dict[str, dict[str, Any]] = {
    "openai_chat": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "tool_calls": [{"id": "d", "type": "custom", "custom": {"name": "a", "input": "x"}}]},
        ],
        "tools": [{"type": "custom", "custom": {"name": "a", "format": {"type": "grammar", "grammar": _LARK}}}],
        "tool_choice": {"type": "custom", "custom": {"name": "a"}},
    },
    "openai_responses": {
        "input": [
            {"role": "user", "content": "Hi"},
            {"type": "custom_tool_call", "call_id": "d", "name": "exec", "namespace": "n", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "d", "output": "x"},
            {"type": "additional_tools", "tools": [{"type": "custom", "name": "b", "format": {"type": "text"}}]},
        ],
        "tools": [
            {"type": "web_search"},
            {
                "type": "namespace",
                "name": "n",
                "tools": [{"type": "custom", "name": "exec", "format": {"type": "grammar", **_LARK}}],
            },
        ],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "custom", "name": "exec", "namespace": "n"}, {"type": "namespace", "name": "n"}],
        },
    },
}
_ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**40, "", "x", "\ud800\x00", [], [None], [[]], {}, {"type": "image"}, {"type": 5}, [{}],
    {"text": None}, [{"type": "text"}], [{"type": "tool_result", "content": [{"type": "image"}]}], "assistant",
)  # fmt: skip
_FOREIGN = (
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"NaN",
    b"//",
    b",,",
    b"]",
    b"}",
    b"{",
    b"\xef\xbb\xbf",
    b"1e400",
)


def broken(
    dialect: str, count: int, seed: str = "", fields: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """Bodies, with these fields, of which one to three values are replaced or left out."""
    chance = random.Random(dialect + seed)
    for _ in range(count):
        body = copy.deepcopy({**BODIES[dialect], **fields})
        for _ in range(chance.randint(1, 3)):
            where, key = chance.choice(list(_places(body)))
            if chance.random() < 0.2:
                del where[key]
            else:
                where[key] = copy.deepcopy(chance.choice(_ODD))
            if not body:
                break
        yield body


def malformed(dialect: str, count: int, seed: str = "") -> Iterator[bytes]:
    """Bytes of all kinds: values that do not fit, JSON that is none, and whole JSON that is too much."""
    chance = random.Random(f"{dialect}:{seed}")
    for body in broken(dialect, count, seed):
        kind = chance.random()
        if kind < 0.5:
            yield json.dumps(body).encode()
        elif kind < 0.8:
            yield _scrambled(json.dumps(BODIES[dialect], ensure_ascii=chance.random() < 0.5).encode(), chance)
        else:
            yield _too_much(body, chance)


def _scrambled(raw: bytes, chance: random.Random) -> bytes:
    """One to three cuts, repeats, foreign bytes and JSON that only Python reads."""
    for _ in range(chance.randint(1, 3)):
        at, to = sorted(chance.randrange(len(raw) + 1) for _ in range(2))
        raw = chance.choice([
            raw[:at], raw[at:], raw[:at] + raw[to:], raw[:to] + raw[at:],
            raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :],
            raw[:at] + chance.choice(_FOREIGN) + raw[at:],
            raw.replace(b'"', b"'", chance.randint(1, 4)), raw.decode("latin-1").encode("utf-16"),
        ])  # fmt: skip
        raw = raw[:20_000]
    return raw


def _too_much(body: dict[str, Any], chance: random.Random) -> bytes:
    """JSON with something added: depth, length, a key twice, numbers and names that nobody needs."""
    raw = json.dumps(body).encode()
    depth = chance.choice([99, 101, 2000])
    extra = chance.choice([
        b'"metadata": ' + b"[" * depth + b"]" * depth, b'"metadata": ' + b'{"a":' * depth + b"1" + b"}" * depth,
        b'"model": "practicum", "model": "practicum"', b'"seed": ' + b"9" * chance.choice([5, 400, 5000]),
        b'"temperature": ' + chance.choice([b"1e999", b"NaN", b"-Infinity", b"0.0000001", b"2.0000001"]),
        b'"stop": [' + b",".join([b'"x"'] * chance.choice([17, 2000])) + b"]", b'"n": 2', b'"logprobs": true',
        b'"\\ud800": "\\u0000"', b'"' + b"k" * 10_000 + b'": 1', b'"stream": true', b'"__proto__": {"a": 1}',
    ])  # fmt: skip
    return b"{" + extra + (b", " if body else b"") + raw[1:]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)
