"""The seam between sampled text and what it means: an answer's text, piece by piece, to content and calls.

A parser is made for one answer. What it has handed out is never taken back; what could still become a call is held
until it is certain. Markup that is broken is content: nothing that was sampled is lost. It must not know tokens or wire
formats; the sampled ids are recorded elsewhere, and parsing takes nothing from them.
"""

from __future__ import annotations

from typing import Protocol

from practicum.types.messages import Piece


class AnswerParser(Protocol):
    """Splits one answer into pieces."""

    def feed(self, text: str) -> list[Piece]:
        """Pieces that have become certain with `text`."""

    def finish(self) -> list[Piece]:
        """The rest."""


class PlainParser:
    """All text is content: for answers that may hold no calls."""

    def feed(self, text: str) -> list[Piece]:
        """The text."""
        return [text] if text else []

    def finish(self) -> list[Piece]:
        """Nothing is ever held back."""
        return []
