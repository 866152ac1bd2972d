"""The forms in which model families write calls, as they are recognised in sampled text.

A form names the marks that open a block and says, for text that begins with one, whether a block of calls stands
there. Text that the model writes next to a form's own layout (more or less white space, several calls) is accepted as
long as its meaning is certain.

Sources: the chat templates and model cards of Qwen, Hermes, Llama 3, Mistral and DeepSeek. It must not know streaming
beyond "not yet", nor tokens.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from practicum.renderers.raw_json import SPACE, ValueEnd, is_json, raw_members, skip_space

# Length of the text looked at, and its calls as (name, arguments); None for the calls where it is text after all.
Found = tuple[int, list[tuple[str, str]] | None]


class CallForm(ABC):
    """One way to write calls, made anew for each answer: it remembers how far it has looked into the block at hand.

    `opens` begin a block. `first` begins one only where nothing but calls went before, with a `separator` between them;
    empty for none. `behind` belong to the markup where they follow a call.
    """

    opens: tuple[str, ...] = ()
    first: str = ""
    separator: str = ""
    behind: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._value: ValueEnd | None = None
        self._seen = 0

    @abstractmethod
    def scan(self, text: str, schemas: Mapping[str, Any], ended: bool) -> Found | None:
        """What stands at the beginning of `text`, which begins with a mark; None while that is not certain.

        `schemas` are those of the functions on offer. `ended` says that no more text comes; then None means that the
        block was never closed.
        """

    def reset(self) -> None:
        """Forget the block at hand."""
        self._value, self._seen = None, 0

    def _value_end(self, text: str, start: int) -> int:
        if self._value is None:
            self._value = ValueEnd(start)
        return self._value.find(text)

    def _find(self, text: str, mark: str, start: int) -> int:
        """Like `str.find`, over what earlier calls have not looked at."""
        at = text.find(mark, max(start, self._seen))
        self._seen = max(self._seen, len(text) - len(mark) + 1) if at < 0 else at
        return at


class HermesForm(CallForm):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM3, our own convention."""

    opens = ("<tool_call>",)
    _CLOSE = "</tool_call>"
    _STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)

    def scan(self, text: str, schemas: Mapping[str, Any], ended: bool) -> Found | None:
        """A closing tag inside a JSON string closes nothing."""
        start = len(self.opens[0])
        at = self._find(text, self._CLOSE, start)
        while at >= 0:
            if '"' not in self._STRING.sub("", text[start:at]):
                call = _json_call(text[start:at])
                return at + len(self._CLOSE), None if call is None else [call]
            self._seen = at + 1
            at = self._find(text, self._CLOSE, start)
        return None


class XmlForm(CallForm):
    """`<tool_call><function=NAME><parameter=KEY>value</parameter>…</function></tool_call>`: Qwen 3.5, Qwen 3 Coder.

    Values are bare: the function's schema tells text from JSON, and without one a value that is JSON counts as such.
    """

    opens = ("<tool_call>",)
    _CLOSE = re.compile(r"</function>\s*</tool_call>")
    _HEAD = re.compile(r"<tool_call>\s*<function=([^>\n]+)>")
    _PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>(?=\s*(?:<parameter=|\Z))", re.DOTALL)

    def scan(self, text: str, schemas: Mapping[str, Any], ended: bool) -> Found | None:
        """The block ends with the closing tags of function and call, whatever a value holds in between."""
        end = self._CLOSE.search(text, self._seen)
        if end is None:
            at = text.rfind("</function>")
            closing = at >= 0 and "</tool_call>".startswith(text[at + len("</function>") :].lstrip())
            self._seen = at if closing else max(0, len(text) - len("</function>"))
            return None
        head = self._HEAD.match(text)
        if head is None:
            return end.end(), None
        arguments = self._arguments(text[head.end() : end.start()], schemas.get(head[1]) or {})
        return end.end(), None if arguments is None else [(head[1], arguments)]

    def _arguments(self, body: str, schema: Mapping[str, Any]) -> str | None:
        written: dict[str, str] = {}
        at = 0
        while found := self._PARAMETER.match(body, at):
            key, at = found[1], found.end()
            if key in written:
                return None
            value = found[2].removeprefix("\n").removesuffix("\n")
            written[key] = _as_json(value, (schema.get("properties") or {}).get(key) or {})
        if body[at:].strip(SPACE):
            return None
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {text}" for key, text in written.items()) + "}"


class LlamaForm(CallForm):
    """`{"name": …, "parameters": {…}}` as the whole answer, or behind `<|python_tag|>`; several are divided by `;`."""

    opens = ("<|python_tag|>",)
    first, separator = "{", ";"
    _KEYS = ("name", "type", "function", "parameters", "arguments")
    _BEGIN = re.compile(r'\{\s*"([a-z]*)("?)')

    def scan(self, text: str, schemas: Mapping[str, Any], ended: bool) -> Found | None:
        """An object whose first key no call has is text at once."""
        mark = len(self.opens[0]) if text.startswith(self.opens[0]) else 0
        start = skip_space(text, mark)
        if start == len(text):
            return None
        begin = self._BEGIN.match(text, start)
        if begin is None:
            return None if re.fullmatch(r"\{\s*", text[start:]) else (start + 1, None)
        key, closed = begin.groups()
        possible = key in self._KEYS if closed else any(name.startswith(key) for name in self._KEYS)
        if not possible or (not closed and begin.end() < len(text)):
            return begin.end(), None
        end = self._value_end(text, start)
        if end < 0:
            return None
        call = _json_call(text[start:end], bare=False)
        return end, None if call is None else [call]


class MistralForm(CallForm):
    """`[TOOL_CALLS]` and an array of calls, or a name, `[ARGS]` and an object; a `[CALL_ID]` is passed over."""

    opens = ("[TOOL_CALLS]",)
    _NAMED = re.compile(r"\s*([^\s\[\]{}]+?)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*(?=\{)")
    _NAME_SO_FAR = re.compile(r"\s*[^\s\[\]{}]*\s*(?:\[[A-Z_]*\]?[^\[{]*)*")

    def scan(self, text: str, schemas: Mapping[str, Any], ended: bool) -> Found | None:
        """An array is one block: its calls leave together."""
        mark = len(self.opens[0])
        start = skip_space(text, mark)
        if start == len(text):
            return None
        if text[start] == "[" or text[start] == "{":
            end = self._value_end(text, start)
            return None if end < 0 else (end, _array_calls(text[start:end]))
        named = self._NAMED.match(text, mark)
        if named is None:
            return None if self._NAME_SO_FAR.fullmatch(text, mark) else (mark, None)
        end = self._value_end(text, named.end())
        if end < 0:
            return None
        arguments = text[named.end() : end]
        return end, [(named[1], arguments)] if is_json(arguments, dict) else None


class DeepSeekForm(CallForm):
    """Calls between DeepSeek's own tokens; V3 and R1 write `function`, the name and a fenced block, V3.1 does not."""

    _SECTION, _BEGIN, _SEPARATOR = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
    opens = (_SECTION, _BEGIN)
    behind = ("<｜tool▁calls▁end｜>",)
    _CLOSE = "<｜tool▁call▁end｜>"
    _FENCED = re.compile(r"function<｜tool▁sep｜>([^\n]+)\n```json\n(.*)\n?```\s*", re.DOTALL)

    def scan(self, text: str, schemas: Mapping[str, Any], ended: bool) -> Found | None:
        """The section's opening goes with its first call."""
        start = skip_space(text, len(self._SECTION)) if text.startswith(self._SECTION) else 0
        if not text.startswith(self._BEGIN, start):
            waiting = self._BEGIN.startswith(text[start:]) and not ended
            return None if waiting else (start, None)
        start += len(self._BEGIN)
        end = self._find(text, self._CLOSE, start)
        if end < 0:
            return None
        body = text[start:end]
        fenced = self._FENCED.fullmatch(body)
        name, _, arguments = body.partition(self._SEPARATOR)
        if fenced:
            name, arguments = fenced[1], fenced[2].removesuffix("\n")
        call = (name.strip(SPACE), arguments)
        return end + len(self._CLOSE), [call] if is_json(arguments, dict) else None


FORMS: dict[str, Callable[[], CallForm]] = {
    "hermes": HermesForm,
    "xml": XmlForm,
    "llama": LlamaForm,
    "mistral": MistralForm,
    "mistral_args": MistralForm,
    "deepseek": DeepSeekForm,
    "deepseek_v31": DeepSeekForm,
}


def _json_call(body: str, *, bare: bool = True) -> tuple[str, str] | None:
    """Name and arguments of a call that is one JSON object; some models nest it under `function`.

    Without `bare`, an object that has no arguments is none.
    """
    try:
        members = raw_members(body.strip(SPACE))
        if members.get("function", "").startswith("{"):
            members = raw_members(members["function"])
        name = json.loads(members.get("name") or members["function"])
    except (ValueError, KeyError, RecursionError):
        return None
    arguments = members.get("arguments") or members.get("parameters") or ("{}" if bare else "")
    return (name, arguments) if isinstance(name, str) and arguments.startswith("{") else None


def _array_calls(body: str) -> list[tuple[str, str]] | None:
    """Calls of a JSON array of objects, or of one object."""
    if not is_json(body):
        return None
    calls: list[tuple[str, str]] = []
    at = 0 if body.startswith("{") else skip_space(body, 1)
    while body[at : at + 1] == "{":
        end = ValueEnd(at).find(body)
        call = _json_call(body[at:end])
        if call is None:
            return None
        calls.append(call)
        at = skip_space(body, end)
        if body[at : at + 1] == ",":
            at = skip_space(body, at + 1)
    return calls if calls and body[at:] in ("", "]") else None


def _as_json(value: str, schema: Mapping[str, Any]) -> str:
    """A bare value as JSON text: text where the schema says so, else JSON where it is JSON."""
    types = _types(schema)
    bare = {"True": "true", "False": "false", "None": "null"}.get(value.strip(), value.strip())
    if "string" in types and not (bare == "null" and "null" in types):
        return json.dumps(value, ensure_ascii=False)
    is_text = not is_json(bare) or (not types and is_json(bare, str))
    return json.dumps(value, ensure_ascii=False) if is_text else bare


def _types(schema: Mapping[str, Any]) -> set[str]:
    named = schema.get("type")
    types = set(named if isinstance(named, list) else [named] if isinstance(named, str) else [])
    for option in [*(schema.get("anyOf") or []), *(schema.get("oneOf") or [])]:
        types |= _types(option) if isinstance(option, Mapping) else set()
    if "enum" in schema and not types and any(isinstance(value, str) for value in schema["enum"]):
        types.add("string")
    return types
