"""The canonical conversation: what every wire dialect is translated to and every renderer reads.

It must not know any provider's wire format, nor tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One function call of an assistant message. `arguments` is JSON text exactly as it was written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One function that the policy may call. `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. An absent, null or empty content is the empty string: the four forms mean the same."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str = ""


# What an answer is made of, in the order in which it is sampled: text for the caller and whole tool calls.
Piece = str | ToolCall
