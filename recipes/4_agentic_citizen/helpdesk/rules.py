"""The house style of Maple & Finch as checks. Only the graders know it: no prompt of the agent states any of it."""

from __future__ import annotations

from typing import Protocol

SIGN_OFF = "— Your Maple & Finch team"
MAX_WORDS = 40


class AnswerLike(Protocol):
    """What a check reads: the answer's text and how it ended."""

    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> str: ...


def body(text: str) -> str:
    """The answer without the sign-off."""
    return text.replace(SIGN_OFF, "").strip()


def brief(answer: AnswerLike) -> bool:
    """At most forty words before the sign-off, and ended by itself."""
    return answer.finish_reason == "stop" and 0 < len(body(answer.text).split()) <= MAX_WORDS


def sign_off(answer: AnswerLike) -> bool:
    """Ends with the house's sign-off, which stands there once."""
    return answer.text.strip().endswith(SIGN_OFF) and answer.text.count(SIGN_OFF) == 1


GRADERS = {"brief": brief, "sign_off": sign_off}
