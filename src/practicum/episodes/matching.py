"""When two conversations are the same: a hash over what the template renders, blind to how a harness re-serialises it.

Harnesses replay what they were given with tool arguments in another spacing or key order, `null` or empty or absent
content, other call ids, other orders of tools, and reasoning kept, edited or dropped. None of that changes the tokens
that were served, so none of it changes the hash. Any change of text does.

The hash is a chain: `h0` over the tools, then `h(i+1) = SHA-256(h(i), message i)`, so that all prefixes of a
conversation cost one pass. It must not know wire formats, tokens or the store.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from practicum.types.messages import Message, ToolSpec

# Keys of a JSON schema whose value maps names to schemas; the names are the caller's and mean nothing to us.
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
# Values that say what their absence says too.
_SCHEMA_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "required": ([],),
    "additionalProperties": (True, {}),
    "description": ("", None),
    "title": ("", None),
    "default": (None,),
    "properties": ({},),
    "strict": (False, None),
}
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def prefix_hashes(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[str]:
    """Hash of every prefix: `n + 1` of them for n messages, the first over no message at all."""
    state = tools_hash(tools)
    hashes = [state]
    for message in messages:
        state = extended_hash(state, message)
        hashes.append(state)
    return hashes


def tools_hash(tools: Sequence[ToolSpec]) -> str:
    """Hash of the tools on offer, whatever their order."""
    return _digest("", [_canonical_tool(tool) for tool in sorted(tools, key=lambda tool: tool.name)])


def extended_hash(state: str, message: Message) -> str:
    """Hash of a conversation with hash `state` followed by `message`."""
    return _digest(state, canonical_message(message))


def raw_prompt_hash(prompt_ids: Sequence[int]) -> str:
    """Hash of a prompt that is no conversation; no conversation has the same."""
    return _digest("raw prompt", list(prompt_ids))


def canonical_message(message: Message) -> list[Any]:
    """What of a message reaches the tokens: role, text, and the names and parsed arguments of its calls."""
    calls = [[call.name, canonical_arguments(call.arguments)] for call in message.tool_calls]
    return [message.role, message.content, calls]


def canonical_arguments(arguments: str) -> Any:
    """Arguments for comparison: parsed, with whole floats as integers; the text itself where it is not JSON."""
    if not arguments.strip():
        return {}
    try:
        return _plain_numbers(json.loads(arguments))
    except (ValueError, RecursionError):
        return ["not JSON", arguments]


def _canonical_tool(tool: ToolSpec) -> list[Any]:
    return [tool.name, tool.description, _canonical_schema(tool.parameters)]


def _canonical_schema(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return dict(_canonical_members(schema))
    return [_canonical_schema(item) for item in schema] if isinstance(schema, list) else _plain_numbers(schema)


def _canonical_members(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if any(type(value) is type(default) and value == default for default in _SCHEMA_DEFAULTS.get(key, ())):
            continue
        if key in _NAMED_SCHEMAS and isinstance(value, Mapping):
            yield key, {name: _canonical_schema(item) for name, item in value.items()}
        elif key == "required" and isinstance(value, list) and all(isinstance(name, str) for name in value):
            yield key, sorted(value)
        elif key in ("enum", "const", "default", "examples"):
            yield key, _plain_numbers(value)
        else:
            yield key, _canonical_schema(value)


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain_numbers(item) for key, item in value.items()}
    return [_plain_numbers(item) for item in value] if isinstance(value, list) else value


def _digest(state: str, value: Any) -> str:
    return hashlib.sha256(_CANONICAL.encode([state, value]).encode()).hexdigest()
