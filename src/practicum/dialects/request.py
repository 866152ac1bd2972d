"""What every dialect's request is translated to: messages and tools or a raw prompt, how to sample, how to answer.

It must not know any provider's field names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from practicum.dialects.reasoning import Shown
from practicum.types.messages import Message, ToolSpec
from practicum.types.tokens import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """How a caller declared a tool; `free_form` takes text where functions take arguments."""

    name: str
    namespace: str | None = None
    free_form: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request for one answer.

    `messages` is the conversation. A raw completion has none: its `prompt` is the text, to be encoded as plain text
    without the chat template, or the token ids themselves, whose range the dialect does not know.
    `max_tokens` is None where the caller left the length to the server; `params.max_tokens` is then meaningless.
    `parse_tools` is False where the caller forbade calls: the tools stay in the prompt, the answer is text;
    `allowed_tools` names those that may be called (None: all). `must_call` is the field that demands a call, if one
    does. `parallel_tools` False means at most one call. A stream is events, or with `stream_array` one JSON array that
    grows. `options` are variables for the chat template; those that it does not know mean nothing. `reasoning_shown`
    says how the caller gets the answer's reasoning. `declared` says, by a tool's name in `tools`, how the caller
    declared it; one that is missing is a function of that name. `body` is the request as it came, losslessly.
    """

    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[ToolSpec, ...] = ()
    declared: Mapping[str, Declared] = field(default_factory=dict)
    params: SamplingParams
    max_tokens: int | None = None
    stream: bool = False
    stream_array: bool = False
    include_usage: bool = False
    logprobs: bool = False
    parse_tools: bool = True
    allowed_tools: tuple[str, ...] | None = None
    must_call: str | None = None
    parallel_tools: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    reasoning_shown: Shown = "text"
    body: dict[str, Any]

    @property
    def callable_tools(self) -> tuple[ToolSpec, ...]:
        """The tools that may be called."""
        if not self.parse_tools or not self.tools:
            return ()
        return tuple(tool for tool in self.tools if self.allowed_tools is None or tool.name in self.allowed_tools)
