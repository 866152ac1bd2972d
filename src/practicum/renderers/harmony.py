"""Harmony, the format of gpt-oss: an answer is a row of messages, each with a channel and perhaps a recipient.

`<|channel|>analysis<|message|>…<|end|>` is reasoning, `final` and a `commentary` without recipient are text, and a
message `to=functions.NAME` is a call whose body is its arguments. `<|start|>assistant` begins each message but the
first. The stop tokens `<|return|>` and `<|call|>` end an answer and may or may not show in its text.

Source: the published description of the harmony response format. A call of a function that is not on offer, or whose
body is no JSON object, comes out as the text that it was. It must not know tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from practicum.renderers.parsing import joined
from practicum.renderers.raw_json import is_json
from practicum.types.messages import Piece, Thought, ToolCall

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
PLAIN_ANSWER = f"{_CHANNEL}final{_MESSAGE}"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_TAG = re.compile("|".join(map(re.escape, (*_ENDS, _START))))
_RECIPIENT = re.compile(r"\bto=((?:functions\.)?([^\s<]+))")
_NAME = re.compile(r"<\|channel\|>\s*([a-z]+)")
# A header is a few words; text that goes on beyond this has none.
_LONGEST_HEADER = 400


class HarmonyParser:
    """Splits one answer into reasoning, text and calls.

    Args:
        names: functions on offer; a call of another one is text.
        call_id: gives the id of the n-th call of the answer.
    """

    thinks = True  # its channels come in any order

    def __init__(self, names: Collection[str], call_id: Callable[[int], str]) -> None:
        self._names = frozenset(names)
        self._call_id = call_id
        self._pending = ""
        self._header = ""
        self._mode = "between"
        self._calls = 0
        self._looked = 0

    def feed(self, text: str) -> list[Piece]:
        """Pieces that have become certain with `text`."""
        self._pending += text
        out: list[Piece] = []
        while self._advance(out, ended=False):
            pass
        return joined(out)

    def finish(self) -> list[Piece]:
        """The rest: the end of an answer ends its last message."""
        out: list[Piece] = []
        while self._pending and self._advance(out, ended=True):
            pass
        if self._mode == "call":
            self._close_call(out, self._pending, "")
        elif self._pending:
            out.append(self._piece(self._pending))
        self._pending = ""
        return joined(out)

    def _advance(self, out: list[Piece], *, ended: bool) -> bool:
        if self._mode == "between":
            return self._read_header(out, ended)
        found = _TAG.search(self._pending, self._looked)
        if found is None:
            keep = 0 if ended else max(_overlap(self._pending, tag) for tag in (*_ENDS, _START))
            if self._mode == "call":
                self._looked = max(0, len(self._pending) - len(_ENDS[2]))
            elif len(self._pending) > keep:
                out.append(self._piece(self._pending[: len(self._pending) - keep]))
                self._pending = self._pending[len(self._pending) - keep :]
            return False
        body, tag, rest = self._pending[: found.start()], found.group(), self._pending[found.end() :]
        if self._mode == "call":
            self._close_call(out, body, "" if tag == _START else tag)
        elif body:
            out.append(self._piece(body))
        self._pending = _START + rest if tag == _START else rest
        self._mode, self._looked = "between", 0
        return True

    def _read_header(self, out: list[Piece], ended: bool) -> bool:
        """The next message's header; where none can stand, text."""
        begins = [self._pending.startswith(tag) for tag in (_START, _CHANNEL)]
        if not any(begins):
            could = not ended and any(tag.startswith(self._pending) for tag in (_START, _CHANNEL))
            if self._pending and not could:
                self._mode = "text"
                return True
            return False
        end = self._pending.find(_MESSAGE)
        if end < 0:
            if len(self._pending) <= _LONGEST_HEADER and not ended:
                return False
            self._mode = "text"
            out.append(self._pending[: len(_START)])
            self._pending = self._pending[len(_START) :]
            return True
        self._header = self._pending[: end + len(_MESSAGE)]
        self._pending = self._pending[end + len(_MESSAGE) :]
        channel = _NAME.search(self._header)
        if _RECIPIENT.search(self._header):
            self._mode = "call"
        else:
            self._mode = "reasoning" if channel is not None and channel[1] == "analysis" else "text"
        return True

    def _close_call(self, out: list[Piece], body: str, tag: str) -> None:
        recipient = _RECIPIENT.search(self._header)
        # The prefix is the form's, or else the beginning of a tool's own name that the model did not say twice.
        said = recipient.groups() if recipient else ()
        name = next((name for name in reversed(said) if name in self._names), "")
        if name in self._names and is_json(body or "{}", dict):
            out.append(ToolCall(id=self._call_id(self._calls), name=name, arguments=body.strip() or "{}"))
            self._calls += 1
        else:
            out.append(self._header + body + tag)
        self._mode = "between"

    def _piece(self, text: str) -> Piece:
        return Thought(text=text) if self._mode == "reasoning" else text


def _overlap(text: str, mark: str) -> int:
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
