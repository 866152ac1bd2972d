"""The request body of OpenAI's legacy completions, as callers send it: strict in types, open to further fields.

Source: the API reference of POST /v1/completions. A prompt's four forms are told apart after parsing.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from practicum.dialects.openai_chat_wire import WireStreamOptions
from practicum.dialects.wire import Wire


class WireRequest(Wire):
    """The fields that we act on; all others are kept as they came."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    prompt: Any
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    stop: str | list[str] | None = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    stream: bool | None = None
    stream_options: WireStreamOptions | None = None
    logprobs: Annotated[int | None, Field(ge=0)] = None
