"""The house style of Maple & Finch as checks. Only the graders know it: no prompt of the agent states any of it."""

from __future__ import annotations

import re
from typing import Protocol

SIGN_OFF = "— Your Maple & Finch team"
MAX_SENTENCES = 2
MAX_WORDS = 40


class AnswerLike(Protocol):
    """What a check reads: the answer's text and how it ended."""

    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> str: ...


def body(text: str) -> str:
    """The answer without the sign-off."""
    return text.strip().removesuffix(SIGN_OFF).strip()


def sentences(text: str) -> list[str]:
    """Sentences of `text`, split after a full stop, question or exclamation mark, or at a line break."""
    return [part for part in re.split(r"(?<=[.!?])\s+|\n+", text.strip()) if re.search(r"\w", part)]


def brief(answer: AnswerLike) -> bool:
    """At most two sentences and forty words before the sign-off, and ended by itself."""
    said = body(answer.text)
    return (
        answer.finish_reason == "stop" and 0 < len(said.split()) <= MAX_WORDS and len(sentences(said)) <= MAX_SENTENCES
    )


def sign_off(answer: AnswerLike) -> bool:
    """Ends with the house's sign-off."""
    return answer.text.strip().endswith(SIGN_OFF)


GRADERS = {"brief": brief, "sign_off": sign_off}
