"""The request body of OpenAI's Responses, as callers send it: strict in types, open to further fields.

Source: the API reference of POST /v1/responses, and the bodies that agent harnesses were seen to send.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from practicum.dialects.wire import Whole, Wire


class WirePart(Wire):
    """One part of a message, of a tool's output or of reasoning; other types than text are told apart after parsing."""

    type: str
    text: str | None = None
    refusal: str | None = None


class WireTool(Wire):
    """A tool on offer; only functions have all of it."""

    type: str
    name: Annotated[str, Field(min_length=1, max_length=256)] = "unnamed"
    description: str | None = None
    parameters: dict[str, Any] | None = None


class WireItem(Wire):
    """One item of the input. One without a type is a message; types that cannot be read are told apart later."""

    type: str | None = None
    role: str | None = None
    content: str | list[WirePart] | None = None
    summary: list[WirePart] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    input: str = ""
    output: str | list[WirePart] | None = None
    encrypted_content: Any = None
    tools: list[WireTool] | None = None


class WireRequest(Wire):
    """The fields that we act on; all others are kept as they came."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    input: str | Annotated[list[WireItem], Field(min_length=1)]
    instructions: str | None = None
    tools: list[WireTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    text: dict[str, Any] | None = None
    reasoning: Any = None
    max_output_tokens: Annotated[Whole | None, Field(ge=1)] = None
    stream: bool | None = None
