"""OpenAI chat completions: wire to canonical and back. Pure; what goes over the wire is `bytes` and `dict` here.

A field that is unknown is accepted and stays on record. A field that changes what the answer means and that we cannot
honour is refused by name. The table of those is `_REFUSED`.

Invariant: `usage.completion_tokens` is the number of recorded ids. It must not know tokens' texts, sessions or keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from practicum.dialects.openai_chat_wire import WireMessage, WirePart, WireRequest, WireTool
from practicum.dialects.request import ChatRequest
from practicum.dialects.strict_json import parse_object
from practicum.errors import PracticumError, RequestError
from practicum.types.messages import Message, Role, ToolCall, ToolSpec
from practicum.types.tokens import FinishReason, SamplingParams

MOST_STOPS = 16
MOST_STOP_CHARS = 1000
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

_absent: Callable[[Any], bool] = lambda value: value is None
_zero: Callable[[Any], bool] = lambda value: value is None or (type(value) in (int, float) and value == 0)
_one: Callable[[Any], bool] = lambda value: value is None or (type(value) in (int, float) and value == 1)
_empty: Callable[[Any], bool] = lambda value: value is None or value in ({}, [])

# field: (the values that change nothing, why others are refused)
_REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "n": (_one, "one answer a request is given; send the request again for another."),
    "logit_bias": (_empty, "the engine samples from the policy's own distribution."),
    "frequency_penalty": (_zero, "the engine samples from the policy's own distribution."),
    "presence_penalty": (_zero, "the engine samples from the policy's own distribution."),
    "repetition_penalty": (_one, "the engine samples from the policy's own distribution."),
    "min_p": (_zero, "only temperature, top_p and top_k are offered."),
    "top_logprobs": (_zero, "only the sampled token's own logprob is given."),
    "modalities": (lambda value: value is None or value == ["text"], "the model reads and writes text only."),
    "audio": (_absent, "the model reads and writes text only."),
    "response_format": (
        lambda value: value is None or (isinstance(value, dict) and value.get("type") == "text"),
        "the engine cannot force a format; ask for it in the messages.",
    ),
    "guided_json": (_absent, "the engine cannot force a format; ask for it in the messages."),
    "guided_regex": (_absent, "the engine cannot force a format; ask for it in the messages."),
    "guided_choice": (_absent, "the engine cannot force a format; ask for it in the messages."),
    "guided_grammar": (_absent, "the engine cannot force a format; ask for it in the messages."),
    "web_search_options": (_absent, "the model has no web search."),
    "functions": (_empty, "the older form is not offered; use `tools`."),
    "function_call": (_absent, "the older form is not offered; use `tool_choice`."),
    "tool_choice": (
        lambda value: value in (None, "auto", "none"),
        "the engine cannot force a call; only `auto` and `none` are offered.",
    ),
}


def parse(raw: bytes) -> ChatRequest:
    """The request in a body. Raises RequestError, whose `param` names the field at fault."""
    return from_body(parse_object(raw))


def from_body(body: dict[str, Any]) -> ChatRequest:
    """The request in a body that was parsed before, from the wire or from a record. Raises RequestError."""
    try:
        wire = WireRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = ".".join(str(part)[:60] for part in first["loc"])
        raise RequestError(f"`{param}`: {first['msg']}.", param=param) from error
    for name, (harmless, why) in _REFUSED.items():
        if name in body and not harmless(body[name]):
            raise RequestError(
                f"`{name}` with this value is not supported: {why}", param=name, code="unsupported_value"
            )
    limit = wire.max_completion_tokens if wire.max_completion_tokens is not None else wire.max_tokens
    return ChatRequest(
        model=wire.model,
        messages=tuple(_message(message, f"messages.{index}") for index, message in enumerate(wire.messages)),
        tools=_tools(wire.tools or []),
        params=SamplingParams(
            temperature=1.0 if wire.temperature is None else float(wire.temperature),
            top_p=1.0 if wire.top_p is None else float(wire.top_p),
            top_k=max(wire.top_k or 0, 0),
            stop=_stops(wire.stop),
            seed=wire.seed,
        ),
        max_tokens=limit,
        stream=bool(wire.stream),
        include_usage=bool(wire.stream_options and wire.stream_options.include_usage),
        logprobs=bool(wire.logprobs),
        parse_tools=wire.tool_choice != "none",
        parallel_tools=wire.parallel_tool_calls is not False,
        body=body,
    )


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
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in wire.tool_calls or []
        ),
        tool_call_id=wire.tool_call_id,
        name=wire.name,
        reasoning=wire.reasoning_content or "",
    )


def _content(content: str | list[WirePart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = {"text": part.text, "refusal": part.refusal}.get(part.type)
        if part.type not in ("text", "refusal"):
            raise RequestError(
                f"A content part of type {part.type[:40]!r} cannot be read: the model reads text only.",
                param=f"{where}.{index}",
                code="unsupported_content",
            )
        if text is None:
            raise RequestError("The text of this content part is missing.", param=f"{where}.{index}.{part.type}")
        texts.append(text)
    return "".join(texts)


def _tools(wire: Sequence[WireTool]) -> tuple[ToolSpec, ...]:
    names = [tool.function.name for tool in wire]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RequestError("Two tools have the same name.", param=f"tools.{index}.function.name")
    return tuple(
        ToolSpec(
            name=tool.function.name,
            description=tool.function.description or "",
            parameters=tool.function.parameters or {"type": "object", "properties": {}},
        )
        for tool in wire
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MOST_STOPS:
        raise RequestError(f"At most {MOST_STOPS} stop strings are possible.", param="stop")
    if any(not text or len(text) > MOST_STOP_CHARS for text in stops):
        raise RequestError(f"A stop string has 1 to {MOST_STOP_CHARS} characters.", param="stop")
    return tuple(stops)


def wire_finish(reason: FinishReason) -> WireFinish:
    """The finish reason in OpenAI's words. Raises KeyError for one that no whole answer has."""
    return _WIRE_FINISH[reason]


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def logprob_entry(token: str, logprob: float | None) -> dict[str, Any]:
    """One token's entry; an unknown logprob is null, and an impossible token has the API's own very small number."""
    shown = None if logprob is None else logprob if math.isfinite(logprob) else _NO_LOGPROB
    return {"token": token, "logprob": shown, "bytes": list(token.encode()), "top_logprobs": []}


def tool_call_object(call: ToolCall) -> dict[str, Any]:
    """A call as messages carry it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class AnswerBuilder:
    """Builds the body or the stream of one answer; `created` is in seconds since the epoch."""

    def __init__(self, *, call_id: str, model: str, created: int) -> None:
        self._base = {"id": f"chatcmpl-{call_id}", "created": created, "model": model}

    def body(
        self,
        message: Message,
        finish: FinishReason,
        counts: Mapping[str, int],
        logprobs: list[dict[str, Any]] | None = None,
    ) -> bytes:
        """The whole answer."""
        shown: dict[str, Any] = {"role": "assistant", "content": message.content or None, "refusal": None}
        if message.tool_calls:
            shown["tool_calls"] = [tool_call_object(call) for call in message.tool_calls]
        else:
            shown["content"] = message.content
        choice = {"index": 0, "message": shown, "logprobs": _logprobs(logprobs), "finish_reason": wire_finish(finish)}
        return _dump({**self._base, "object": "chat.completion", "choices": [choice], "usage": dict(counts)})

    def role(self) -> bytes:
        """The first event."""
        return self._event({"role": "assistant", "content": ""})

    def content(self, text: str, logprobs: list[dict[str, Any]] | None = None) -> bytes:
        """A piece of text, with the logprobs of the tokens sampled since the last piece."""
        return self._event({"content": text}, logprobs=logprobs)

    def tool_call(self, index: int, call: ToolCall, logprobs: list[dict[str, Any]] | None = None) -> bytes:
        """A completed call."""
        return self._event({"tool_calls": [{"index": index, **tool_call_object(call)}]}, logprobs=logprobs)

    def finish(self, reason: FinishReason, logprobs: list[dict[str, Any]] | None = None) -> bytes:
        """The event with the finish reason."""
        return self._event({}, finish=wire_finish(reason), logprobs=logprobs)

    def usage(self, counts: Mapping[str, int]) -> bytes:
        """The event with the usage, for callers who asked for it."""
        return _sse({**self._base, "object": "chat.completion.chunk", "choices": [], "usage": dict(counts)})

    def _event(
        self, delta: dict[str, Any], finish: WireFinish | None = None, logprobs: list[dict[str, Any]] | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": _logprobs(logprobs), "finish_reason": finish}
        return _sse({**self._base, "object": "chat.completion.chunk", "choices": [choice]})


def error_body(error: PracticumError) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def error_event(error: PracticumError) -> bytes:
    """An error inside a stream that has begun; no terminator follows it."""
    return _sse(error_body(error))


def model_object(name: str, created: int) -> dict[str, Any]:
    """One entry of the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "practicum"}


def _logprobs(entries: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return None if entries is None else {"content": entries, "refusal": None}


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + _dump(value) + b"\n\n"
