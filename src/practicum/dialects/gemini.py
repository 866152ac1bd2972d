"""Gemini's generateContent: wire to canonical and back. Pure; what goes over the wire is `bytes` and `dict` here.

The URL says which model, and whether to stream; with `alt=sse` a stream is events, otherwise one JSON array that grows.
A field that is unknown is accepted and stays on record. One that changes what the answer means and that we cannot
honour is refused by name. Tools that Google itself would run are left out of the prompt.

Thoughts are parts of their own where `includeThoughts` asks for them. With or without, the first part behind them that
a harness keeps (the first call, or the last text) has a `thoughtSignature` that carries the reasoning: it comes back
from harnesses that drop the thoughts themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic.alias_generators import to_camel

from practicum.dialects import demands
from practicum.dialects import wire as shared
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.gemini_schema import json_schema
from practicum.dialects.gemini_wire import (
    WireContent,
    WireFunction,
    WireFunctionResponse,
    WirePart,
    WireRequest,
    WireThinking,
)
from practicum.dialects.reasoning import seal, switches, unseal
from practicum.dialects.request import ChatRequest
from practicum.dialects.strict_json import parse_object
from practicum.dialects.wire import absent, off, one, zero
from practicum.errors import ContextOverflow, NotFound, PracticumError, RequestError
from practicum.types.messages import Message, ToolCall, ToolSpec
from practicum.types.tokens import Constraint, FinishReason, SamplingParams, TokenText

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

_CALLING = "toolConfig.functionCallingConfig"
_ANY_JSON = {"anyOf": [{"type": "object"}, {"type": "array"}]}
_WRAPPINGS = frozenset({"output", "result", "return_value"})
_REFUSED: shared.Refusals = {"cachedContent": (absent, "nothing is kept between requests; send the whole contents.")}
_REFUSED_GENERATION: shared.Refusals = {
    "candidateCount": (one, shared.ONE_ANSWER),
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
    asked = _camel(body.get("generationConfig") or body.get("generation_config") or {})
    shared.refuse(asked, _REFUSED_GENERATION, "generationConfig.")
    tools = _tools(wire)
    contents = shared.joined(_messages(wire.contents))
    thinking = (generation and generation.thinking_config) or WireThinking()
    level = thinking.thinking_level
    return ChatRequest(
        model=model,
        messages=(*_system(wire.system_instruction), *contents),
        tools=tools,
        params=replace(_params(wire), constraint=_format(asked)),
        max_tokens=generation.max_output_tokens if generation else None,
        stream=stream,
        stream_array=stream_array,
        **demands.chosen(_choice(wire), tools, _CALLING),
        options=switches(effort=level.lower() if isinstance(level, str) else None, budget=thinking.thinking_budget),
        reasoning_shown="text" if thinking.include_thoughts is True else "sealed",
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


def _format(asked: Mapping[str, Any]) -> Constraint | None:
    """What the answer must be. Keywords of a schema that cannot be enforced are left out, as Google does."""
    kind = asked.get("responseMimeType")
    schemas = [(name, asked[name]) for name in ("responseSchema", "responseJsonSchema") if asked.get(name) is not None]
    where = f"generationConfig.{schemas[0][0] if schemas else 'responseMimeType'}"
    if len(schemas) > 1:
        raise RequestError("Two schemas are given for one answer.", param=where)
    schema = json_schema(schemas[0][1]) if schemas else _ANY_JSON
    if kind == "application/json":
        return demands.schema_constraint(schema, where, strict=False)
    if kind == "text/x.enum" and schemas and isinstance(schema, dict):
        values = schema.get("enum")
        return demands.choice_constraint(values if isinstance(values, list) else (), f"{where}.enum")
    if kind not in (None, "", "text/plain") or schemas:
        raise shared.unsupported(
            "generationConfig.responseMimeType", "a schema goes with `application/json` or, for an enum, `text/x.enum`."
        )
    return None


def _choice(wire: WireRequest) -> demands.Choice:
    calling = wire.tool_config.function_calling_config if wire.tool_config else None
    if calling is None:
        return demands.Choice()
    if calling.mode not in (None, "", "MODE_UNSPECIFIED", "AUTO", "VALIDATED", "ANY", "NONE"):
        raise shared.unsupported(f"{_CALLING}.mode", "the modes are AUTO, VALIDATED, ANY and NONE.")
    names = tuple(calling.allowed_function_names or ()) or None
    return demands.Choice(names=() if calling.mode == "NONE" else names, must=calling.mode == "ANY")


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
    """A result as text. Google wants an object and says `output`, its SDK `result`, Pydantic AI `return_value`: such a
    wrapping is undone.
    """
    response = given.response or {}
    only = next(iter(response.values())) if len(response) == 1 and response.keys() <= _WRAPPINGS else None
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
    reasoning = "".join(thoughts) or "".join(unseal(part.thought_signature) for part in parts)
    return Message(role="assistant", content="".join(texts), tool_calls=tuple(calls), reasoning=reasoning)


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
    given = function.parameters_json_schema
    return json_schema(function.parameters if given is None else given)


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {to_camel(name) if "_" in name else name: value for name, value in fields.items()}


class AnswerBuilder:
    """Builds the body or the stream of one answer: every piece of a stream is a response with a part of the answer."""

    def __init__(self, facts: AnswerFacts) -> None:
        self._facts = facts
        self._array = facts.request.stream_array
        self._shown = facts.request.reasoning_shown == "text"
        self._begun = False
        self._unsealed = ""
        # In events an empty line, in an array white space: Google's clients know no comments.
        self.ping = b"\n"
        self.stream_type = "application/json" if self._array else "text/event-stream; charset=utf-8"

    def body(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The whole answer."""
        parts = [_thought_part(message.reasoning)] if message.reasoning and self._shown else []
        self._unsealed = message.reasoning
        calls = [self._signed(_call_part(call)) for call in message.tool_calls]
        if message.content or not calls:
            parts.append(self._signed({"text": message.content}))
        return shared.dump(self._response([*parts, *calls], end))

    def start(self) -> bytes:
        """Where the array begins."""
        return b"[" if self._array else b""

    def text(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of text."""
        return self._chunk(self._response([{"text": text}]))

    def thought(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of reasoning, where the caller asked for it; sealed it comes with a later part."""
        self._unsealed += text
        return self._chunk(self._response([_thought_part(text)])) if self._shown else b""

    def tool_call(self, call: ToolCall, tokens: Sequence[TokenText]) -> bytes:
        """A completed call."""
        return self._chunk(self._response([self._signed(_call_part(call))]))

    def finish(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The response with the finish reason and the usage; the SDKs want a part in it."""
        return self._chunk(self._response([self._signed({"text": ""})], end)) + (b"]" if self._array else b"")

    def error(self, error: PracticumError) -> bytes:
        """An error inside a stream that has begun; nothing follows it."""
        return self._chunk(error_body(error)) + (b"]" if self._array else b"")

    def _signed(self, part: dict[str, Any]) -> dict[str, Any]:
        """The part with the signature of the reasoning before it, where there was any."""
        thought, self._unsealed = self._unsealed, ""
        return {**part, "thoughtSignature": seal(self._facts.call_id, thought)} if thought else part

    def _chunk(self, response: dict[str, Any]) -> bytes:
        if not self._array:
            return shared.sse(response)
        comma, self._begun = b",\n" if self._begun else b"", True
        return comma + shared.dump(response)

    def _response(self, parts: list[dict[str, Any]], end: Ending | None = None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if end is not None:
            candidate["finishReason"] = _FINISH[end.reason]
        usage = {"promptTokenCount": self._facts.prompt_tokens}
        if end is not None:
            thought, sampled = end.reasoning_tokens, end.completion_tokens
            usage |= {"candidatesTokenCount": sampled - thought, "totalTokenCount": self._facts.prompt_tokens + sampled}
            usage |= {"thoughtsTokenCount": thought} if thought else {}
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


def _thought_part(text: str) -> dict[str, Any]:
    return {"text": text, "thought": True}


def _call_part(call: ToolCall) -> dict[str, Any]:
    arguments = shared.arguments_object(call.arguments)
    return {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}
