"""Tool calls out of sampled text, while it streams.

Text goes in piece by piece; out come pieces of content and completed calls, in order. Only what could still turn into
a call is held back: a beginning of an opening mark, the white space before it, and an open block. A block that is not
a call (broken JSON, a function that was not offered, never closed) comes out as the text it was, unchanged.

How a block looks is the matter of a `CallForm` (`call_forms.py`). It must not know tokens or wire formats; the sampled
ids are recorded elsewhere, and parsing takes nothing from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from practicum.renderers.call_forms import CallForm, HermesForm
from practicum.renderers.parsing import joined
from practicum.renderers.raw_json import SPACE
from practicum.types.messages import Piece, ToolCall


class ToolCallParser:
    """Splits one answer into content and calls.

    Args:
        names: functions on offer; a call of another one is text. A mapping gives each one's JSON schema, by which a
            form that writes bare values tells text from numbers.
        call_id: gives the id of the n-th call of the answer.
        form: how the model writes calls; made anew for each answer.
    """

    thinks = False

    def __init__(self, names: Collection[str], call_id: Callable[[int], str], form: CallForm | None = None) -> None:
        self._schemas: Mapping[str, Any] = names if isinstance(names, Mapping) else {name: {} for name in names}
        self._call_id = call_id
        self._form = form or HermesForm()
        self._pending = ""
        self._calls = 0
        self._fresh = True  # nothing has left, or only calls
        self._after_call = False
        self._ended = False

    def feed(self, text: str) -> list[Piece]:
        """Pieces that have become certain with `text`."""
        self._pending += text
        out: list[Piece] = []
        while self._advance(out):
            pass
        return joined(out)

    def finish(self) -> list[Piece]:
        """The rest: an open block is text unless its form says otherwise; what follows a call's markup goes with it."""
        self._ended = True
        out: list[Piece] = []
        while self._pending and self._advance(out):
            pass
        if self._pending and not (self._after_call and not self._pending.strip(SPACE + self._form.separator)):
            out.append(self._pending)
        self._pending = ""
        return joined(out)

    def _advance(self, out: list[Piece]) -> bool:
        """Take one step over the pending text; False when it needs more."""
        if self._after_call:
            self._drop_closing()
        start = self._start()
        if start < 0:
            if not self._ended:
                self._emit(out, len(self._pending) - self._held())
            return False
        spaces = start if self._is_gap(start) else start - len(self._pending[:start].rstrip(SPACE))
        self._emit(out, start - spaces)
        block = self._pending[spaces:]
        found = self._form.scan(block, self._schemas, self._ended)
        if found is None:
            return False
        length, calls = found
        self._form.reset()
        if calls is None or any(name not in self._schemas for name, _ in calls):
            self._emit(out, spaces + length)
            return True
        for name, arguments in calls:
            out.append(ToolCall(id=self._call_id(self._calls), name=name, arguments=arguments))
            self._calls += 1
        self._pending = self._pending[spaces + length :]
        self._after_call = True
        return True

    def _start(self) -> int:
        """Where the next block could begin, or -1."""
        if self._fresh and self._form.first:
            lead = self._pending.find(self._form.first)
            if lead >= 0 and self._is_gap(lead):
                return lead
        return min((at for mark in self._form.opens if (at := self._pending.find(mark)) >= 0), default=-1)

    def _is_gap(self, length: int) -> bool:
        """Whether so much of the beginning is nothing but what may stand before a call, or between two."""
        gap = self._pending[:length].strip(SPACE)
        return not gap or (self._after_call and gap == self._form.separator)

    def _drop_closing(self) -> None:
        """What stands between and behind calls belongs to the markup."""
        rest = self._pending.lstrip(SPACE)
        for mark in self._form.behind:
            if rest.startswith(mark):
                self._pending = rest[len(mark) :]

    def _held(self) -> int:
        """How much of the end could still belong to a call: white space, then a beginning of a mark."""
        if self._is_gap(len(self._pending)):
            return len(self._pending)
        marks = [*self._form.opens, *(self._form.behind if self._after_call else ())]
        length = max((_overlap(self._pending, mark) for mark in marks), default=0)
        body = self._pending[: len(self._pending) - length]
        return length + len(body) - len(body.rstrip(SPACE))

    def _emit(self, out: list[Piece], length: int) -> None:
        if length > 0:
            out.append(self._pending[:length])
            self._pending = self._pending[length:]
            self._after_call = self._fresh = False


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning of `mark`, but not all of it."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
