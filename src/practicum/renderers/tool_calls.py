"""Tool calls out of sampled text, while it streams.

Text goes in piece by piece; out come pieces of content and completed calls, in order. Only what could still turn into
a call is held back: a beginning of the opening tag, the white space before it, and an open block. A block that is not
a call (broken JSON, a function that was not offered, never closed) comes out as the text it was, unchanged.

Source of the convention: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and Qwen models write it.
It must not know tokens or wire formats; the sampled ids are recorded elsewhere, and parsing takes nothing from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from practicum.types.messages import Piece, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_SPACE = " \t\r\n"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_DECODER = json.JSONDecoder(parse_constant=lambda word: _not_json(word))


class ToolCallParser:
    """Splits one answer into content and calls.

    Args:
        names: functions on offer; a call of another one is text.
        call_id: gives the id of the n-th call of the answer.
    """

    def __init__(self, names: Collection[str], call_id: Callable[[int], str]) -> None:
        self._names = frozenset(names)
        self._call_id = call_id
        self._pending = ""
        self._calls = 0
        self._after_call = False

    def feed(self, text: str) -> list[Piece]:
        """Pieces that have become certain with `text`."""
        self._pending += text
        out: list[Piece] = []
        while self._advance(out):
            pass
        return _joined(out)

    def finish(self) -> list[Piece]:
        """The rest: an open block is text; white space behind the last call belongs to the markup."""
        rest, self._pending = self._pending, ""
        return [] if not rest or (self._after_call and not rest.strip(_SPACE)) else [rest]

    def _advance(self, out: list[Piece]) -> bool:
        """Take one step over the pending text; False when it needs more."""
        start = self._pending.find(OPEN)
        if start < 0:
            keep = _held_length(self._pending)
            self._emit(out, len(self._pending) - keep)
            return False
        self._emit(out, len(self._pending[:start].rstrip(_SPACE)))
        start = self._pending.find(OPEN)
        body_start = start + len(OPEN)
        end = self._block_end(body_start)
        if end < 0:
            return False
        call = self._call(self._pending[body_start : end - len(CLOSE)])
        if call is None:
            self._emit(out, end)
        else:
            out.append(call)
            self._pending = self._pending[end:]
            self._after_call = True
        return True

    def _block_end(self, body_start: int) -> int:
        """Index behind the closing tag, or -1. A tag inside a JSON string closes nothing."""
        at = self._pending.find(CLOSE, body_start)
        while at >= 0:
            if '"' not in _STRING.sub("", self._pending[body_start:at]):
                return at + len(CLOSE)
            at = self._pending.find(CLOSE, at + len(CLOSE))
        return -1

    def _emit(self, out: list[Piece], length: int) -> None:
        if length > 0:
            out.append(self._pending[:length])
            self._pending = self._pending[length:]
            self._after_call = False

    def _call(self, body: str) -> ToolCall | None:
        try:
            members = _raw_members(body.strip(_SPACE))
            name = json.loads(members["name"])
        except (ValueError, KeyError, RecursionError):
            return None
        arguments = members.get("arguments", "{}")
        if not isinstance(name, str) or name not in self._names or not arguments.startswith("{"):
            return None
        call = ToolCall(id=self._call_id(self._calls), name=name, arguments=arguments)
        self._calls += 1
        return call


def _raw_members(text: str) -> dict[str, str]:
    """Members of a JSON object with each value as it was written. Raises ValueError for anything else."""
    members: dict[str, str] = {}
    at = _expect(text, 0, "{")
    while True:
        key, at = _DECODER.raw_decode(text, at)
        if not isinstance(key, str) or key in members:
            raise ValueError("a key is no string or stands twice")
        start = _expect(text, _skip(text, at), ":")
        _, at = _DECODER.raw_decode(text, start)
        members[key] = text[start:at]
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            if text[at + 1 :].strip(_SPACE):
                raise ValueError("text behind the object")
            return members
        at = _expect(text, at, ",")


def _expect(text: str, at: int, mark: str) -> int:
    if text[at : at + 1] != mark:
        raise ValueError(f"expected {mark}")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at


def _not_json(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _held_length(text: str) -> int:
    """How much of the end of `text` could still belong to a call: white space, then a beginning of the opening tag."""
    for length in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if OPEN.startswith(text[-length:]):
            break
    else:
        length = 0
    body = text[: len(text) - length]
    return length + len(body) - len(body.rstrip(_SPACE))


def _joined(pieces: list[Piece]) -> list[Piece]:
    out: list[Piece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if isinstance(piece, str) and isinstance(last, str):
            out[-1] = last + piece
        else:
            out.append(piece)
    return out
