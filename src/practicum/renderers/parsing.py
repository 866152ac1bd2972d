"""The seam between sampled text and what it means: an answer's text, piece by piece, to content, reasoning and calls.

A parser is made for one answer. What it has handed out is never taken back; what could still become a call or the end
of the reasoning is held until it is certain. Markup that is broken is content: nothing that was sampled is lost. It
must not know tokens or wire formats; the sampled ids are recorded elsewhere, and parsing takes nothing from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from practicum.types.messages import Piece, Thought

_SPACE = " \t\r\n"


class AnswerParser(Protocol):
    """Splits one answer into pieces."""

    @property
    def thinks(self) -> bool:
        """Whether reasoning may still come."""

    def feed(self, text: str) -> list[Piece]:
        """Pieces that have become certain with `text`."""

    def finish(self) -> list[Piece]:
        """The rest."""


class PlainParser:
    """All text is content: for answers that may hold neither calls nor reasoning."""

    thinks = False

    def feed(self, text: str) -> list[Piece]:
        """The text."""
        return [text] if text else []

    def finish(self) -> list[Piece]:
        """Nothing is ever held back."""
        return []


class ReasoningParser:
    """Splits reasoning between two tags from the answer behind it, which another parser reads.

    Reasoning stands at the beginning of an answer or nowhere; a tag further on is text. The line breaks around it are
    markup. Reasoning that is never closed is reasoning all the same: it has left already.

    Args:
        rest: reads what follows the reasoning.
        tags: opening and closing tag.
        opened: whether the prompt ends inside the reasoning, so that the answer does not open it.
    """

    def __init__(self, rest: AnswerParser, tags: tuple[str, str], *, opened: bool) -> None:
        self._rest = rest
        self._open, self._close = tags
        self._pending = ""
        self._state = "reasoning" if opened else "before"
        self._begun = False

    @property
    def thinks(self) -> bool:
        """Until it is closed, or the answer begins without it."""
        return self._state in ("before", "reasoning")

    def feed(self, text: str) -> list[Piece]:
        """Pieces that have become certain with `text`."""
        if self._state == "after":
            return self._rest.feed(text)
        self._pending += text
        out: list[Piece] = []
        if self._state == "before":
            self._before(out)
        if self._state == "reasoning":
            self._reasoning(out)
        if self._state == "behind":
            self._behind(out)
        return out

    def finish(self) -> list[Piece]:
        """The rest: what is held inside the reasoning belongs to it, without a last line break."""
        rest, self._pending = self._pending, ""
        if self._state == "reasoning":
            rest = rest.strip("\n") if not self._begun else rest.rstrip("\n")
            return [*([Thought(text=rest)] if rest else []), *self._rest.finish()]
        if self._state == "before":
            return joined([*self._rest.feed(rest), *self._rest.finish()])
        return self._rest.finish()

    def _before(self, out: list[Piece]) -> None:
        """The answer's beginning: reasoning opens here, or this answer has none."""
        begun = self._pending.lstrip(_SPACE)
        if begun.startswith(self._open):
            self._pending, self._state = begun[len(self._open) :], "reasoning"
        elif begun and not self._open.startswith(begun):
            self._state = "after"
            out.extend(self._rest.feed(self._pending))
            self._pending = ""

    def _reasoning(self, out: list[Piece]) -> None:
        at = self._pending.find(self._close)
        keep = len(self._pending) - at if at >= 0 else _held(self._pending, self._close)
        body = self._pending[: len(self._pending) - keep]
        text = body.rstrip("\n")
        if not self._begun:
            text = text.lstrip("\n")
        if text:
            out.append(Thought(text=text))
            self._begun = True
        if at >= 0:
            self._pending, self._state = self._pending[at + len(self._close) :], "behind"
        else:
            self._pending = self._pending[len(body.rstrip("\n")) :]

    def _behind(self, out: list[Piece]) -> None:
        """Line breaks behind the closing tag belong to the markup."""
        rest = self._pending.lstrip("\r\n")
        self._pending = ""
        if rest:
            self._state = "after"
            out.extend(self._rest.feed(rest))


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces with neighbouring texts, and neighbouring thoughts, made one."""
    out: list[Piece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if isinstance(piece, str) and isinstance(last, str):
            out[-1] = last + piece
        elif isinstance(piece, Thought) and isinstance(last, Thought):
            out[-1] = Thought(text=last.text + piece.text)
        else:
            out.append(piece)
    return out


def _held(text: str, mark: str) -> int:
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
