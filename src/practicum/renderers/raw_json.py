"""JSON as it was written: where a value ends while it streams, and the members of an object with their own text.

The arguments of a call are handed out exactly as the model wrote them, so nothing here builds a value and writes it
again. It must not know tool calls.
"""

from __future__ import annotations

import json
import re

SPACE = " \t\r\n"
_MARK = re.compile(r'["\\{}\[\]]')
_DECODER = json.JSONDecoder(parse_constant=lambda word: _not_json(word))


class ValueEnd:
    """Finds the end of one JSON object or array in growing text; each character is looked at once."""

    def __init__(self, start: int) -> None:
        self._at = start
        self._depth = 0
        self._in_string = False

    def find(self, text: str) -> int:
        """Index behind the value that begins at `start`, or -1 where `text` does not hold its end."""
        while found := _MARK.search(text, self._at):
            mark, self._at = found.group(), found.end()
            if mark == "\\" and self._in_string:
                if self._at == len(text):  # what it escapes is not there yet
                    self._at -= 1
                    return -1
                self._at += 1
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string and mark in "{[":
                self._depth += 1
            elif not self._in_string and mark in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return self._at
        self._at = len(text)
        return -1


def raw_members(text: str) -> dict[str, str]:
    """Members of a JSON object with each value as it was written. Raises ValueError for anything else."""
    members: dict[str, str] = {}
    at = _expect(text, 0, "{")
    while True:
        key, at = _DECODER.raw_decode(text, at)
        if not isinstance(key, str) or key in members:
            raise ValueError("a key is no string or stands twice")
        start = _expect(text, skip_space(text, at), ":")
        _, at = _DECODER.raw_decode(text, start)
        members[key] = text[start:at]
        at = skip_space(text, at)
        if text[at : at + 1] == "}":
            if text[at + 1 :].strip(SPACE):
                raise ValueError("text behind the object")
            return members
        at = _expect(text, at, ",")


def is_json(text: str, kind: type = object) -> bool:
    """Whether `text` is one JSON value of this Python type and nothing else."""
    try:
        return isinstance(_DECODER.decode(text.strip(SPACE)), kind)
    except (ValueError, RecursionError):
        return False


def skip_space(text: str, at: int) -> int:
    """The first index from `at` on that holds no white space."""
    while text[at : at + 1] and text[at] in SPACE:
        at += 1
    return at


def _expect(text: str, at: int, mark: str) -> int:
    if text[at : at + 1] != mark:
        raise ValueError(f"expected {mark}")
    return skip_space(text, at + 1)


def _not_json(word: str) -> float:
    raise ValueError(f"{word} is not JSON")
