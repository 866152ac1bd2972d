"""Which provider's wire format a path speaks, for its answers and for its errors. It must not know what routes do."""

from __future__ import annotations

import re
from collections.abc import Iterable

from practicum.dialects import anthropic_messages, gemini, openai_chat, openai_completions, openai_responses
from practicum.dialects.dialect import Dialect

# Paths below these roots are answered; a harness's base URL may or may not hold the version.
VERSIONS = ("/v1", "")
GEMINI_VERSIONS = ("/v1beta", "/v1alpha", "/v1", "")
CHAT_PATHS: tuple[tuple[str, Dialect], ...] = (
    ("/chat/completions", openai_chat),
    ("/responses", openai_responses),
    ("/completions", openai_completions),
    ("/messages", anthropic_messages),
)

_PATHS: tuple[tuple[re.Pattern[str], Dialect], ...] = (
    (re.compile(r"(/v1)?/messages(/|$)"), anthropic_messages),
    (re.compile(r"(/v1)?/responses(/|$)"), openai_responses),
    (re.compile(r"(/v1)?/completions(/|$)"), openai_completions),
    (re.compile(r"(/v1)?/(chat|embeddings)(/|$)"), openai_chat),
    (re.compile(r"/v1(beta|alpha)/|(/v1)?/models/.+:[A-Za-z]*(Content|Tokens|Contents)$"), gemini),
)
_MODELS = re.compile(r"(/v1)?/models(/|$)")
# Of the lists of models, which three providers keep at one path, the caller's own headers choose.
_BY_HEADER: tuple[tuple[bytes, Dialect], ...] = (
    (b"anthropic-version", anthropic_messages),
    (b"x-goog-api-key", gemini),
)


def dialect_of(path: str, headers: Iterable[tuple[bytes, bytes]]) -> Dialect | None:
    """The dialect that callers of this path read, or None where the route is our own."""
    for pattern, dialect in _PATHS:
        if pattern.match(path):
            return dialect
    if not _MODELS.match(path):
        return None
    names = {name for name, _ in headers}
    return next((dialect for name, dialect in _BY_HEADER if name in names), openai_chat)
