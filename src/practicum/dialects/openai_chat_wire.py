"""The request body of OpenAI's chat completions, as callers send it: strict in types, open to further fields.

Source: the API reference of POST /v1/chat/completions, and the bodies that agent harnesses were seen to send.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from practicum.dialects.wire import Wire


class WirePart(Wire):
    """One part of a content array; other types than text are told apart after parsing."""

    type: str
    text: str | None = None
    refusal: str | None = None


class WireFunctionCall(Wire):
    """Name and arguments of a call; arguments are JSON text."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str = "{}"


class WireToolCall(Wire):
    """A call in an assistant message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: WireFunctionCall


class WireMessage(Wire):
    """One message of any role."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[WirePart] | None = None
    refusal: str | None = None
    tool_calls: list[WireToolCall] | None = None
    function_call: Any = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    audio: Any = None


class WireFunction(Wire):
    """A function on offer."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class WireTool(Wire):
    """A tool on offer."""

    type: Literal["function"]
    function: WireFunction


class WireStreamOptions(Wire):
    """What a stream should carry besides the answer."""

    include_usage: bool | None = None


class WireRequest(Wire):
    """The fields that we act on; all others are kept as they came."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    messages: Annotated[list[WireMessage], Field(min_length=1)]
    tools: list[WireTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1)] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    stop: str | list[str] | None = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    stream: bool | None = None
    stream_options: WireStreamOptions | None = None
    reasoning_effort: Any = None
    enable_thinking: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
