"""Gemini's generateContent: wire to canonical and back. Pure; what goes over the wire is `bytes` and `dict` here.

The URL says which model, and whether to stream; with `alt=sse` a stream is events, otherwise one JSON array that grows.
A field that is unknown is accepted and stays on record. One that changes what the answer means and that we cannot
honour is refused by name. Tools that Google itself would run are left out of the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic.alias_generators import to_camel

from practicum.dialects import wire as shared
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.gemini_wire import WireContent, WireFunction, WireFunctionResponse, WirePart, WireRequest
from practicum.dialects.request import ChatRequest
from practicum.dialects.strict_json import parse_object
from practicum.dialects.wire import absent, off, one, zero
from practicum.errors import ContextOverflow, NotFound, PracticumError, RequestError
from practicum.types.messages import Message, ToolCall, ToolSpec
from practicum.types.tokens import FinishReason, SamplingParams, TokenText

NAME = "gemini"
ID_PREFIX = ""

_METHODS = {"generateContent": False, "streamGenerateContent": True}
_FINISH: dict[FinishReason, str] = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}
_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}

_REFUSED: shared.Refusals = {"cachedContent": (absent, "nothing is kept between requests; send the whole contents.")}
_REFUSED_GENERATION: shared.Refusals = {
    "candidateCount": (one, shared.ONE_ANSWER),
    "responseMimeType": (lambda value: value in (None, "", "text/plain"), shared.NO_FORMAT),
    "responseSchema": (absent, shared.NO_FORMAT),
    "responseJsonSchema": (absent, shared.NO_FORMAT),
    "responseModalities": (lambda value: value in (None, [], ["TEXT"], ["text"], ["Text"]), shared.TEXT_ONLY),
    "speechConfig": (absent, shared.TEXT_ONLY),
    "imageConfig": (absent, shared.TEXT_ONLY),
    "presencePenalty": (zero, shared.OWN_DISTRIBUTION),
    "frequencyPenalty": (zero, shared.OWN_DISTRIBUTION),
    "responseLogprobs": (off, "logprobs are offered on chat completions only."),
    "logprobs": (zero, "logprobs are offered on chat completions only."),
}


def parse(raw: bytes, path: Mapping[str, str]) -> ChatRequest:
    """The request in a body and in the URL. Raises RequestError, and NotFound for a method that is not offered."""
    body = parse_object(raw)
    if path.get("task") == "count":
        wrapped = body.get("generateContentRequest", body.get("generate_content_request"))
        return _request(wrapped if isinstance(wrapped, dict) else body, path["model"])
    method = path["method"]
    if method not in _METHODS:
        raise NotFound(f"There is no method {method[:40]!r} here.", code="unknown_url")
    stream = _METHODS[method]
    return _request(body, path["model"], stream=stream, stream_array=stream and path.get("alt") != "sse")


def from_body(body: dict[str, Any]) -> ChatRequest:
    """The request in a body on record; its model stood in the URL. Raises RequestError."""
    return _request(body, "")


def _request(body: dict[str, Any], model: str, *, stream: bool = False, stream_array: bool = False) -> ChatRequest:
    wire = shared.validated(WireRequest, body)
    shared.refuse(_camel(body), _REFUSED)
    generation = wire.generation_config
    if generation is not None:
        shared.refuse(
            _camel(body.get("generationConfig") or body.get("generation_config") or {}),
            _REFUSED_GENERATION,
            "generationConfig.",
        )
    contents = shared.joined(_messages(wire.contents))
    return ChatRequest(
        model=model,
        messages=(*_system(wire.system_instruction), *contents),
        tools=_tools(wire),
        params=_params(wire),
        max_tokens=generation.max_output_tokens if generation else None,
        stream=stream,
        stream_array=stream_array,
        parse_tools=_may_call(wire),
        body=body,
    )


def _params(wire: WireRequest) -> SamplingParams:
    asked = wire.generation_config
    if asked is None:
        return SamplingParams()
    return SamplingParams(
        temperature=1.0 if asked.temperature is None else float(asked.temperature),
        top_p=1.0 if asked.top_p is None else float(asked.top_p),
        top_k=asked.top_k or 0,
        stop=shared.stop_strings(asked.stop_sequences or [], "generationConfig.stopSequences"),
        seed=asked.seed,
    )


def _may_call(wire: WireRequest) -> bool:
    """Whether calls are allowed. Raises RequestError where one is forced."""
    calling = wire.tool_config.function_calling_config if wire.tool_config else None
    if calling is None:
        return True
    where = "toolConfig.functionCallingConfig"
    if calling.mode not in (None, "", "MODE_UNSPECIFIED", "AUTO", "VALIDATED", "NONE"):
        raise shared.unsupported(f"{where}.mode", "the engine cannot force a call; only AUTO and NONE are offered.")
    if calling.allowed_function_names and calling.mode != "NONE":
        raise shared.unsupported(f"{where}.allowedFunctionNames", "offer only the functions that may be called.")
    return calling.mode != "NONE"


def _system(content: WireContent | None) -> tuple[Message, ...]:
    parts = content.parts or [] if content else []
    text = "".join(_part_text(part, f"systemInstruction.parts.{index}") for index, part in enumerate(parts))
    return (Message(role="system", content=text),) if text else ()


def _messages(contents: Sequence[WireContent]) -> Iterator[Message]:
    for index, content in enumerate(contents):
        where = f"contents.{index}"
        if content.role == "model":
            yield _answer(content.parts or [], f"{where}.parts")
        elif content.role in (None, "", "user", "function", "tool"):
            yield from _turn(content.parts or [], f"{where}.parts")
        else:
            raise RequestError("A content has the role `user` or `model`.", param=f"{where}.role")


def _turn(parts: Sequence[WirePart], where: str) -> Iterator[Message]:
    """A user's turn: what calls gave are messages of their own, the text around them another."""
    pending: list[str] = []
    for index, part in enumerate(parts):
        if part.function_response is None:
            pending.append(_part_text(part, f"{where}.{index}"))
            continue
        if pending:
            yield Message(role="user", content="".join(pending))
            pending = []
        given = part.function_response
        if given.parts:
            raise shared.unreadable("parts", f"{where}.{index}.functionResponse.parts")
        yield Message(role="tool", content=_given_text(given), tool_call_id=given.id, name=given.name or None)
    if pending or not parts:
        yield Message(role="user", content="".join(pending))


def _given_text(given: WireFunctionResponse) -> str:
    """A result as text. Google wants an object and says `output`; its SDK says `result`: such a wrapping is undone."""
    response = given.response or {}
    only = next(iter(response.values())) if len(response) == 1 and response.keys() <= {"output", "result"} else None
    return only if isinstance(only, str) else json.dumps(response, ensure_ascii=False)


def _answer(parts: Sequence[WirePart], where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, part in enumerate(parts):
        if part.function_call is not None:
            call = part.function_call
            calls.append(ToolCall(id=call.id or "", name=call.name, arguments=shared.arguments_text(call.args)))
        else:
            (thoughts if part.thought else texts).append(_part_text(part, f"{where}.{index}"))
    return Message(role="assistant", content="".join(texts), tool_calls=tuple(calls), reasoning="".join(thoughts))


def _part_text(part: WirePart, where: str) -> str:
    if part.text is not None:
        return part.text
    kind = next((name for name in part.model_extra or {} if "thought" not in name), None)
    if kind is None and part.function_call is None and part.function_response is None:
        return ""  # a signature alone, or nothing
    raise shared.unreadable(kind or "functionCall", where)


def _tools(wire: WireRequest) -> tuple[ToolSpec, ...]:
    offered = [function for tool in wire.tools or [] for function in tool.function_declarations or []]
    return shared.unique(
        [shared.tool_spec(function.name, function.description, _schema(function)) for function in offered],
        "tools.functionDeclarations.{}.name",
    )


def _schema(function: WireFunction) -> Any:
    if function.parameters_json_schema is not None:
        return function.parameters_json_schema
    return _lower_types(function.parameters)


def _lower_types(schema: Any) -> Any:
    """Google's schema names types in capitals; those of JSON schema are small."""
    if isinstance(schema, list):
        return [_lower_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _lower_types(value)
        for key, value in schema.items()
    }


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {to_camel(name) if "_" in name else name: value for name, value in fields.items()}


class AnswerBuilder:
    """Builds the body or the stream of one answer: every piece of a stream is a response with a part of the answer."""

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._array = facts.request.stream_array
        self._begun = False
        # In events an empty line, in an array white space: Google's clients know no comments.
        self.ping = b"\n"
        self.stream_type = "application/json" if self._array else "text/event-stream; charset=utf-8"

    def body(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The whole answer."""
        parts = [{"text": message.content}] if message.content or not message.tool_calls else []
        return shared.dump(self._response([*parts, *map(_call_part, message.tool_calls)], end))

    def start(self) -> bytes:
        """Where the array begins."""
        return b"[" if self._array else b""

    def text(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of text."""
        return self._chunk(self._response([{"text": text}]))

    def tool_call(self, call: ToolCall, tokens: Sequence[TokenText]) -> bytes:
        """A completed call."""
        return self._chunk(self._response([_call_part(call)]))

    def finish(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The response with the finish reason and the usage; the SDKs want a part in it."""
        return self._chunk(self._response([{"text": ""}], end)) + (b"]" if self._array else b"")

    def error(self, error: PracticumError) -> bytes:
        """An error inside a stream that has begun; nothing follows it."""
        return self._chunk(error_body(error)) + (b"]" if self._array else b"")

    def _chunk(self, response: dict[str, Any]) -> bytes:
        if not self._array:
            return shared.sse(response)
        comma, self._begun = b",\n" if self._begun else b"", True
        return comma + shared.dump(response)

    def _response(self, parts: list[dict[str, Any]], end: Ending | None = None) -> dict[str, Any]:
        sampled = end.completion_tokens if end else 0
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if end is not None:
            candidate["finishReason"] = _FINISH[end.reason]
        usage = {"promptTokenCount": self._facts.prompt_tokens}
        if end is not None:
            usage |= {"candidatesTokenCount": sampled, "totalTokenCount": self._facts.prompt_tokens + sampled}
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": self._facts.model,
            "responseId": self._facts.call_id,
        }


def answer(facts: AnswerFacts) -> AnswerBuilder:
    """Makes the bytes of one answer."""
    return AnswerBuilder(facts)


def error_body(error: PracticumError) -> dict[str, Any]:
    """An error in Google's shape, which has no place for the field: the message names it."""
    message = shared.naming_field(error)
    if isinstance(error, ContextOverflow):  # the words by which harnesses know that they must compact
        message = f"The input token count exceeds the maximum number of tokens allowed. {message}"
    status = _STATUSES.get(error.status, "INVALID_ARGUMENT" if error.status < 500 else "INTERNAL")
    return {"error": {"code": error.status, "message": message, "status": status}}


def token_count(tokens: int) -> dict[str, Any]:
    """The answer to a count."""
    return {"totalTokens": tokens}


def model_object(name: str, created: int) -> dict[str, Any]:
    """One entry of the list of models."""
    return {
        "name": f"models/{name}",
        "displayName": name,
        "version": name,
        "supportedGenerationMethods": [*_METHODS, "countTokens"],
    }


def model_list(objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The list of models."""
    return {"models": list(objects)}


def _call_part(call: ToolCall) -> dict[str, Any]:
    arguments = shared.arguments_object(call.arguments)
    return {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}
