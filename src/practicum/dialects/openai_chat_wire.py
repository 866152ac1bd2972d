"""The request body of OpenAI's chat completions, as callers send it: strict in types, open to further fields.

Source: the API reference of POST /v1/chat/completions, and the bodies that agent harnesses were seen to send.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

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
    """A function's call in an assistant message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: WireFunctionCall


class WireFreeCall(Wire):
    """Name and text of a free-form tool's call."""

    name: Annotated[str, Field(min_length=1)]
    input: str = ""


class WireCustomCall(Wire):
    """A free-form tool's call in an assistant message."""

    id: str = ""
    type: Literal["custom"]
    custom: WireFreeCall


def _form(plain: type[Wire], custom: type[Wire]) -> Discriminator:
    """Tells what is of type `custom` from all else."""
    names = plain.__name__, custom.__name__
    return Discriminator(lambda value: names[isinstance(value, dict) and value.get("type") == "custom"])


WireCall = Annotated[
    Annotated[WireToolCall, Tag("WireToolCall")] | Annotated[WireCustomCall, Tag("WireCustomCall")],
    _form(WireToolCall, WireCustomCall),
]


class WireMessage(Wire):
    """One message of any role."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[WirePart] | None = None
    refusal: str | None = None
    tool_calls: list[WireCall] | None = None
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


class WireFunctionTool(Wire):
    """A function on offer, wrapped."""

    type: Literal["function"]
    function: WireFunction


class WireCustom(Wire):
    """A free-form tool on offer; its format is told apart after parsing."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    format: Any = None


class WireCustomTool(Wire):
    """A free-form tool on offer, wrapped."""

    type: Literal["custom"]
    custom: WireCustom


WireTool = Annotated[
    Annotated[WireFunctionTool, Tag("WireFunctionTool")] | Annotated[WireCustomTool, Tag("WireCustomTool")],
    _form(WireFunctionTool, WireCustomTool),
]


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
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
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
