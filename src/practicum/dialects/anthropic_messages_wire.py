"""The request body of Anthropic's Messages, as callers send it: strict in types, open to further fields.

Source: the API reference of POST /v1/messages, and the bodies that agent harnesses were seen to send.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from practicum.dialects.wire import Whole, Wire


class WireBlock(Wire):
    """One content block; types that cannot be read are told apart after parsing."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: Any = None
    id: str = ""
    name: str = ""
    input: dict[str, Any] | None = None
    tool_use_id: str = ""
    tool_name: str = ""
    content: str | list[WireBlock] | None = None


class WireMessage(Wire):
    """One turn. Claude Code sends system turns between the others."""

    role: Literal["user", "assistant", "system"]
    content: str | list[WireBlock]


class WireTool(Wire):
    """A tool on offer; those with another type than `custom` are the provider's own."""

    type: str | None = None
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class WireToolChoice(Wire):
    """Whether and what to call."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class WireRequest(Wire):
    """The fields that we act on; all others are kept as they came. `max_tokens` is required for an answer."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    messages: Annotated[list[WireMessage], Field(min_length=1)]
    system: str | list[WireBlock] | None = None
    tools: list[WireTool] | None = None
    tool_choice: WireToolChoice | None = None
    max_tokens: Annotated[Whole | None, Field(ge=1)] = None
    stop_sequences: list[str] | None = None
    thinking: Any = None
    output_config: Any = None
    temperature: Annotated[float | None, Field(ge=0, le=1)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[Whole | None, Field(ge=0, lt=2**31)] = None
    stream: bool | None = None
