"""When two conversations are the same: a hash over what the template renders, blind to how a harness re-serialises it.

Harnesses replay what they were given with tool arguments in another spacing or key order, `null` or empty or absent
content, other call ids, other orders of tools, and reasoning in another place or not at all. None of that changes the
hash; any change of text does, and so do options that the template reads. Whether the reasoning is what was served is a
second question, answered by `reasoning_change`.

The hash is a chain: `h0` over the tools, then `h(i+1) = SHA-256(h(i), message i)`, so that all prefixes of a
conversation cost one pass. It must not know wire formats, tokens or the store.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from practicum.dialects.volatile import without_volatile
from practicum.types.messages import Message, ToolSpec

ReasoningRule = Literal["infer", "extend", "fork"]
ReasoningChange = Literal["reasoning_dropped", "reasoning_rewritten", "assistant_rewritten"]
_THINK = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
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


def prefix_hashes(messages: Sequence[Message], tools: Sequence[ToolSpec], options: Mapping[str, Any] = {}) -> list[str]:
    """Hash of every prefix: `n + 1` of them for n messages, the first over no message at all.

    `options` are the template's variables as far as it reads them.
    """
    state = tools_hash(tools)
    if options:
        state = _digest(state, options)
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
    """What makes it this message: role, text without reasoning, and the names and parsed arguments of its calls.

    Of a system message, what a harness changes without meaning anything (`dialects/volatile.py`) is left out.
    """
    content = without_volatile(message.content) if message.role == "system" else _split(message)[1]
    calls = [[call.name, canonical_arguments(call.arguments)] for call in message.tool_calls]
    return [message.role, content, calls]


def has_reasoning(messages: Iterable[Message]) -> bool:
    """Whether any answer among the messages has reasoning."""
    return any(map(_words, messages))


def reasoning_change(
    replayed: Sequence[Message], served: Sequence[Message], rule: ReasoningRule, *, returned: bool
) -> ReasoningChange | None:
    """What a caller did to the reasoning of a conversation with the same hash.

    White space does not count, nor does a field of reasoning that is added to an answer without: nothing served has
    changed. Reasoning that is put into the text of such an answer has changed what was served.

    Args:
        replayed: the conversation as it is now sent, up to and with the last answer that was served.
        served: the same as it was sent then, with that answer as the caller was shown it.
        rule: what an answer without its reasoning means. `fork`: the caller dropped it. `extend`: nothing. `infer`: it
            was dropped if the caller sent reasoning back anywhere in the conversation, now or then; a caller that never
            does cannot, and means nothing by it.
        returned: whether the caller is known to send reasoning back.
    """
    if len(replayed) != len(served):  # recorded by a release that read it otherwise
        return None
    dropped = False
    for now, then in zip(replayed, served, strict=True):
        kept, had = _words(now), _words(then)
        if kept and had and kept != had:
            return "reasoning_rewritten"
        if kept and not had and not now.reasoning:
            return "assistant_rewritten"
        dropped = dropped or bool(had and not kept)
    if not dropped or rule == "extend":
        return None
    return "reasoning_dropped" if returned or rule == "fork" or has_reasoning(served[:-1]) else None


def _words(message: Message) -> str:
    """The reasoning of an answer without white space."""
    return "".join(_split(message)[0].split()) if message.role == "assistant" else ""


def _split(message: Message) -> tuple[str, str]:
    """Reasoning and text; some harnesses, and models whose reasoning is not parsed, have it at the text's beginning."""
    found = _THINK.match(message.content) if message.role == "assistant" else None
    if found is None:
        return message.reasoning, message.content
    return message.reasoning + found.group(1), message.content[found.end() :]


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
