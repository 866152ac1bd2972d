"""OpenAI chat completions: wire to canonical and back. Pure; what goes over the wire is `bytes` and `dict` here.

A field that is unknown is accepted and stays on record. A field that changes what the answer means and that we cannot
honour is refused by name. The table of those is `_REFUSED`.

Reasoning leaves and comes back as `reasoning_content`, the name that harnesses echo; one that they spell `reasoning` is
read too, but only one is sent, so that no client adds both.

Invariant: `usage.completion_tokens` is the number of recorded ids. It must not know tokens' texts, sessions or keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from practicum.dialects import demands, openai_tools
from practicum.dialects import wire as shared
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.openai_chat_wire import (
    WireCall,
    WireCustomCall,
    WireCustomTool,
    WireMessage,
    WirePart,
    WireRequest,
    WireTool,
)
from practicum.dialects.reasoning import switches
from practicum.dialects.request import ChatRequest, Declared
from practicum.dialects.strict_json import parse_object
from practicum.dialects.wire import OWN_DISTRIBUTION, TEXT_ONLY, absent, empty, one, sse, zero
from practicum.errors import PracticumError, RequestError
from practicum.types.messages import Message, Role, ToolCall, ToolSpec
from practicum.types.tokens import FinishReason, SamplingParams, TokenText

NAME = "openai_chat"
ID_PREFIX = "chatcmpl-"
DONE = b"data: [DONE]\n\n"
PING = b": waiting for the next token\n\n"

WireFinish = Literal["stop", "length", "tool_calls"]
_WIRE_FINISH: dict[FinishReason, WireFinish] = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_NO_LOGPROB = -9999.0

_REFUSED: shared.Refusals = {
    "n": (one, shared.ONE_ANSWER),
    "logit_bias": (empty, OWN_DISTRIBUTION),
    "frequency_penalty": (zero, OWN_DISTRIBUTION),
    "presence_penalty": (zero, OWN_DISTRIBUTION),
    "repetition_penalty": (one, OWN_DISTRIBUTION),
    "top_logprobs": (zero, "only the sampled token's own logprob is given."),
    "modalities": (lambda value: value is None or value == ["text"], TEXT_ONLY),
    "audio": (absent, TEXT_ONLY),
    "web_search_options": (absent, "the model has no web search."),
    "functions": (empty, "the older form is not offered; use `tools`."),
    "function_call": (absent, "the older form is not offered; use `tool_choice`."),
}


def parse(raw: bytes, path: Mapping[str, str] = {}) -> ChatRequest:
    """The request in a body. Raises RequestError, whose `param` names the field at fault."""
    return from_body(parse_object(raw))


def from_body(body: dict[str, Any]) -> ChatRequest:
    """The request in a body that was parsed before, from the wire or from a record. Raises RequestError."""
    wire = shared.validated(WireRequest, body)
    shared.refuse(body, _REFUSED)
    tools = _tools(wire.tools or [])
    free = [isinstance(tool, WireCustomTool) for tool in wire.tools or []]
    declared = {t.name: Declared(name=t.name, free_form=is_free) for t, is_free in zip(tools, free, strict=True)}
    choice = openai_tools.choice(wire.tool_choice, declared)
    limit = wire.max_completion_tokens if wire.max_completion_tokens is not None else wire.max_tokens
    return ChatRequest(
        model=wire.model,
        messages=tuple(_message(message, f"messages.{index}") for index, message in enumerate(wire.messages)),
        tools=tools,
        declared=declared,
        params=SamplingParams(
            temperature=1.0 if wire.temperature is None else float(wire.temperature),
            top_p=1.0 if wire.top_p is None else float(wire.top_p),
            top_k=max(wire.top_k or 0, 0),
            min_p=float(wire.min_p or 0),
            stop=shared.stop_strings([wire.stop] if isinstance(wire.stop, str) else wire.stop or [], "stop"),
            seed=wire.seed,
            constraint=demands.only(
                [demands.openai_format(body.get("response_format"), "response_format"), demands.guided(body)]
            ),
        ),
        max_tokens=limit,
        stream=bool(wire.stream),
        include_usage=bool(wire.stream_options and wire.stream_options.include_usage),
        logprobs=bool(wire.logprobs),
        **demands.chosen(choice, tools, "tool_choice", several=wire.parallel_tool_calls),
        options=_options(wire),
        body=body,
    )


def _options(wire: WireRequest) -> dict[str, Any]:
    """Variables for the template: what the request says about reasoning in the usual ways, the most direct last."""
    extra = wire.model_extra or {}
    kind = extra["thinking"].get("type") if isinstance(extra.get("thinking"), dict) else None
    nested = extra["reasoning"] if isinstance(extra.get("reasoning"), dict) else {}
    on = {"enabled": True, "disabled": False}.get(kind) if isinstance(kind, str) else None
    for said in (nested.get("enabled"), wire.enable_thinking):
        on = said if isinstance(said, bool) else on
    effort = wire.reasoning_effort or nested.get("effort")
    return {**switches(on=on, effort=effort, budget=nested.get("max_tokens")), **(wire.chat_template_kwargs or {})}


def _message(wire: WireMessage, where: str) -> Message:
    if wire.role == "function" or wire.function_call is not None:
        raise RequestError("The older function form is not offered; use `tool_calls`.", param=where)
    if wire.audio is not None:
        raise RequestError("The model reads and writes text only.", param=f"{where}.audio", code="unsupported_value")
    if wire.tool_calls and wire.role != "assistant":
        raise RequestError("Only an assistant message can call tools.", param=f"{where}.tool_calls")
    role: Role = "system" if wire.role == "developer" else wire.role
    return Message(
        role=role,
        content=_content(wire.content, f"{where}.content") or (wire.refusal or ""),
        tool_calls=tuple(map(_call, wire.tool_calls or [])),
        tool_call_id=wire.tool_call_id,
        name=wire.name,
        reasoning=wire.reasoning_content or (wire.reasoning if isinstance(wire.reasoning, str) else ""),
    )


def _call(wire: WireCall) -> ToolCall:
    if isinstance(wire, WireCustomCall):
        return ToolCall(id=wire.id, name=wire.custom.name, arguments=openai_tools.arguments_of(wire.custom.input))
    return ToolCall(id=wire.id, name=wire.function.name, arguments=wire.function.arguments)


def _tools(wire: Sequence[WireTool]) -> tuple[ToolSpec, ...]:
    specs: dict[str, ToolSpec] = {}
    for index, tool in enumerate(wire):
        if isinstance(tool, WireCustomTool):
            where, own = f"tools.{index}.custom", tool.custom
            spec = openai_tools.free_form(own.name, own.description, own.format, where)
        else:
            where, function = f"tools.{index}.function", tool.function
            spec = shared.tool_spec(function.name, function.description, function.parameters)
        if spec.name in specs:
            raise RequestError("Two tools have the same name.", param=f"{where}.name")
        specs[spec.name] = spec
    return tuple(specs.values())


def _content(content: str | list[WirePart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = {"text": part.text, "refusal": part.refusal}.get(part.type)
        if part.type not in ("text", "refusal"):
            raise shared.unreadable(part.type, f"{where}.{index}")
        if text is None:
            raise RequestError("The text of this content part is missing.", param=f"{where}.{index}.{part.type}")
        texts.append(text)
    return "".join(texts)


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def shown_logprob(value: float | None) -> float | None:
    """An unknown logprob is null, and an impossible token has the API's own very small number."""
    return None if value is None else value if math.isfinite(value) else _NO_LOGPROB


def logprob_entry(token: TokenText) -> dict[str, Any]:
    """One token's entry."""
    return {
        "token": token.text,
        "logprob": shown_logprob(token.logprob),
        "bytes": list(token.text.encode()),
        "top_logprobs": [],
    }


def tool_call_object(call: ToolCall, how: Declared | None = None) -> dict[str, Any]:
    """A call as messages carry it; a function's where nothing is known of the tool."""
    if how is not None and how.free_form:
        custom = {"name": call.name, "input": openai_tools.text_of(call.arguments)}
        return {"id": call.id, "type": "custom", "custom": custom}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class AnswerBuilder:
    """Builds the body or the stream of one answer."""

    ping = PING
    stream_type = "text/event-stream; charset=utf-8"

    def __init__(self, facts: AnswerFacts) -> None:
        self._base = {"id": ID_PREFIX + facts.call_id, "created": int(facts.created), "model": facts.model}
        self._prompt_tokens = facts.prompt_tokens
        self._logprobs_wanted = facts.request.logprobs
        self._include_usage = facts.request.include_usage
        self._declared = facts.request.declared
        self._calls = 0

    def body(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The whole answer."""
        shown: dict[str, Any] = {"role": "assistant", "content": message.content or None, "refusal": None}
        if message.tool_calls:
            shown["tool_calls"] = [self._call(call) for call in message.tool_calls]
        else:
            shown["content"] = message.content
        if message.reasoning:
            shown["reasoning_content"] = message.reasoning
        choice = {
            "index": 0,
            "message": shown,
            "logprobs": self._logprobs(tokens),
            "finish_reason": _WIRE_FINISH[end.reason],
        }
        return shared.dump({**self._base, "object": "chat.completion", "choices": [choice], "usage": self._usage(end)})

    def start(self) -> bytes:
        """The event with the role."""
        return self._event({"role": "assistant", "content": ""}, logprobs=None)

    def text(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of text."""
        return self._event({"content": text}, logprobs=self._logprobs(tokens))

    def thought(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of reasoning."""
        return self._event({"reasoning_content": text}, logprobs=self._logprobs(tokens))

    def tool_call(self, call: ToolCall, tokens: Sequence[TokenText]) -> bytes:
        """A completed call."""
        delta = {"tool_calls": [{"index": self._calls, **self._call(call)}]}
        self._calls += 1
        return self._event(delta, logprobs=self._logprobs(tokens))

    def finish(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The event with the finish reason, the usage for callers who asked for it, and the terminator."""
        last = self._event({}, finish=_WIRE_FINISH[end.reason], logprobs=self._logprobs(tokens))
        if self._include_usage:
            last += sse({**self._base, "object": "chat.completion.chunk", "choices": [], "usage": self._usage(end)})
        return last + DONE

    def error(self, error: PracticumError) -> bytes:
        """An error inside a stream that has begun; no terminator follows it."""
        return sse(error_body(error))

    def _event(
        self, delta: dict[str, Any], finish: WireFinish | None = None, *, logprobs: dict[str, Any] | None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return sse({**self._base, "object": "chat.completion.chunk", "choices": [choice]})

    def _call(self, call: ToolCall) -> dict[str, Any]:
        return tool_call_object(call, self._declared.get(call.name))

    def _logprobs(self, tokens: Sequence[TokenText]) -> dict[str, Any] | None:
        if not self._logprobs_wanted:
            return None
        return {"content": [logprob_entry(token) for token in tokens], "refusal": None}

    def _usage(self, end: Ending) -> dict[str, Any]:
        details = {"reasoning_tokens": end.reasoning_tokens}
        return {**usage(self._prompt_tokens, end.completion_tokens), "completion_tokens_details": details}


def answer(facts: AnswerFacts) -> AnswerBuilder:
    """Makes the bytes of one answer."""
    return AnswerBuilder(facts)


def error_body(error: PracticumError) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def model_object(name: str, created: int) -> dict[str, Any]:
    """One entry of the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "practicum"}


def model_list(objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The list of models."""
    return {"object": "list", "data": list(objects)}
