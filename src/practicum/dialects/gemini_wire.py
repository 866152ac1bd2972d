"""The request body of Gemini's generateContent, as callers send it, in camelCase or snake_case (Google takes both).

Source: the API reference of models.generateContent, and the bodies that agent harnesses were seen to send.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from practicum.dialects.wire import Whole, Wire


class _Google(Wire):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class WireFunctionCall(_Google):
    """A call by the model."""

    id: str | None = None
    name: Annotated[str, Field(min_length=1)]
    args: dict[str, Any] | None = None


class WireFunctionResponse(_Google):
    """What a call gave; `parts` would be media."""

    id: str | None = None
    name: str = ""
    response: dict[str, Any] | None = None
    parts: list[Any] | None = None


class WirePart(_Google):
    """One part of a content: one of these, or something that cannot be read."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: Any = None
    function_call: WireFunctionCall | None = None
    function_response: WireFunctionResponse | None = None


class WireContent(_Google):
    """One turn, or the system instruction."""

    role: str | None = None
    parts: list[WirePart] | None = None


class WireFunction(_Google):
    """A function on offer, its parameters in Google's own schema or in JSON schema."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class WireTool(_Google):
    """A group of functions, or one of Google's own tools."""

    function_declarations: list[WireFunction] | None = None


class WireCallingConfig(_Google):
    """Whether and what to call."""

    mode: str | None = None
    allowed_function_names: list[str] | None = None


class WireToolConfig(_Google):
    """Settings of the tools."""

    function_calling_config: WireCallingConfig | None = None


class WireThinking(_Google):
    """Whether and how much to reason."""

    include_thoughts: Any = None
    thinking_budget: Any = None
    thinking_level: Any = None


class WireGeneration(_Google):
    """How to sample."""

    max_output_tokens: Annotated[Whole | None, Field(ge=1)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[Whole | None, Field(ge=0, lt=2**31)] = None
    stop_sequences: list[str] | None = None
    seed: Annotated[Whole | None, Field(ge=-(2**63), lt=2**63)] = None
    thinking_config: WireThinking | None = None


class WireRequest(_Google):
    """The fields that we act on; all others are kept as they came."""

    contents: Annotated[list[WireContent], Field(min_length=1)]
    system_instruction: WireContent | None = None
    tools: list[WireTool] | None = None
    tool_config: WireToolConfig | None = None
    generation_config: WireGeneration | None = None
