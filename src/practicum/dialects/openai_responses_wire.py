"""The request body of OpenAI's Responses, as callers send it: strict in types, open to further fields.

Source: the API reference of POST /v1/responses, and the bodies that agent harnesses were seen to send.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from practicum.dialects.wire import Whole, Wire


class WirePart(Wire):
    """One part of a message, of a tool's output or of reasoning; other types than text are told apart after parsing."""

    type: str
    text: str | None = None
    refusal: str | None = None


Name = Annotated[str, Field(min_length=1, max_length=256)]


class WireFunction(Wire):
    """A function on offer."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class WireCustom(Wire):
    """A free-form tool on offer; its format is told apart after parsing."""

    name: Name
    description: str | None = None
    format: Any = None


class WireHosted(Wire):
    """A tool that only the provider can run, or that is not known."""

    type: str


def _form(*kinds: type[Wire]) -> Discriminator:
    """Tells tools apart by `type`."""
    forms = {kind.__name__.removeprefix("Wire").lower(): kind.__name__ for kind in kinds}

    def form(value: Any) -> str:
        kind = value.get("type") if isinstance(value, dict) else None
        return forms.get(kind, "WireHosted") if isinstance(kind, str) else "WireHosted"

    return Discriminator(form)


class WireNamespace(Wire):
    """Functions and free-form tools under one name."""

    name: Name
    description: str | None = None
    tools: list[
        Annotated[
            Annotated[WireFunction, Tag("WireFunction")]
            | Annotated[WireCustom, Tag("WireCustom")]
            | Annotated[WireHosted, Tag("WireHosted")],
            _form(WireFunction, WireCustom),
        ]
    ]


WireTool = Annotated[
    Annotated[WireFunction, Tag("WireFunction")]
    | Annotated[WireCustom, Tag("WireCustom")]
    | Annotated[WireNamespace, Tag("WireNamespace")]
    | Annotated[WireHosted, Tag("WireHosted")],
    _form(WireFunction, WireCustom, WireNamespace),
]


class WireItem(Wire):
    """One item of the input. One without a type is a message; types that cannot be read are told apart later."""

    type: str | None = None
    role: str | None = None
    content: str | list[WirePart] | None = None
    summary: list[WirePart] | None = None
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
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
