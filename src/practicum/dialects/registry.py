"""All dialects by name, and requests on record read back by the one they came through."""

from __future__ import annotations

from typing import Any

from practicum.dialects import anthropic_messages, gemini, openai_chat, openai_completions, openai_responses
from practicum.dialects.dialect import Dialect
from practicum.dialects.request import ChatRequest
from practicum.errors import RequestError

_ALL: tuple[Dialect, ...] = (openai_chat, openai_responses, openai_completions, anthropic_messages, gemini)
DIALECTS: dict[str, Dialect] = {dialect.NAME: dialect for dialect in _ALL}


def recorded_request(dialect: str, body: dict[str, Any]) -> ChatRequest:
    """The request of a call on record. Raises RequestError where this release cannot read it."""
    if dialect not in DIALECTS:
        raise RequestError(f"The record came through a dialect this release does not know: {dialect[:40]!r}.")
    return DIALECTS[dialect].from_body(body)


def call_id_in(answer_id: str) -> str:
    """The call id in an answer's `id`, whichever dialect gave it; a bare call id is itself."""
    for dialect in _ALL:
        if dialect.ID_PREFIX and answer_id.startswith(dialect.ID_PREFIX):
            return answer_id.removeprefix(dialect.ID_PREFIX)
    return answer_id
