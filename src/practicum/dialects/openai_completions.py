"""OpenAI's legacy completions: one raw prompt in, its continuation out. Pure.

A prompt is text or token ids and meets no chat template. A list that holds just one prompt is that prompt; several are
refused. A field that is unknown is accepted and stays on record; one that changes what the answer means and that we
cannot honour is refused by name.

Invariants: token ids pass through unchanged; `usage.completion_tokens` is the number of recorded ids. It must not know
the vocabulary, sessions or keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from practicum.dialects import demands, openai_chat
from practicum.dialects import wire as shared
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.openai_completions_wire import WireRequest
from practicum.dialects.request import ChatRequest
from practicum.dialects.strict_json import parse_object
from practicum.dialects.wire import OWN_DISTRIBUTION, absent, empty, off, one, sse, zero
from practicum.errors import PracticumError, RequestError
from practicum.types.messages import Message, ToolCall
from practicum.types.tokens import FinishReason, SamplingParams, TokenText

NAME = "openai_completions"
ID_PREFIX = "cmpl-"
DEFAULT_MAX_TOKENS = 16  # the API's own

WireFinish = Literal["stop", "length"]
_WIRE_FINISH: dict[FinishReason, WireFinish] = {"stop": "stop", "length": "length"}

_REFUSED: shared.Refusals = {
    "n": (one, shared.ONE_ANSWER),
    "best_of": (one, shared.ONE_ANSWER),
    "suffix": (lambda value: value in (None, ""), "the model continues a prompt and cannot fill a gap."),
    "echo": (off, "the answer holds what was sampled; put the prompt before it yourself."),
    "logprobs": (zero, "only the sampled token's own logprob is given; send 0 for it."),
    "logit_bias": (empty, OWN_DISTRIBUTION),
    "frequency_penalty": (zero, OWN_DISTRIBUTION),
    "presence_penalty": (zero, OWN_DISTRIBUTION),
    "repetition_penalty": (one, OWN_DISTRIBUTION),
    "prompt_logprobs": (absent, "logprobs are given for sampled tokens only."),
}

model_object = openai_chat.model_object
model_list = openai_chat.model_list


def parse(raw: bytes, path: Mapping[str, str] = {}) -> ChatRequest:
    """The request in a body. Raises RequestError, whose `param` names the field at fault."""
    return from_body(parse_object(raw))


def from_body(body: dict[str, Any]) -> ChatRequest:
    """The request in a body that was parsed before, from the wire or from a record. Raises RequestError."""
    wire = shared.validated(WireRequest, body)
    shared.refuse(body, _REFUSED)
    return ChatRequest(
        model=wire.model,
        prompt=_prompt(wire.prompt),
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
        max_tokens=DEFAULT_MAX_TOKENS if wire.max_tokens is None else wire.max_tokens,
        stream=bool(wire.stream),
        include_usage=bool(wire.stream_options and wire.stream_options.include_usage),
        logprobs=wire.logprobs is not None,
        parse_tools=False,
        body=body,
    )


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RequestError("`prompt` is a string or a list of token ids.", param="prompt")
    if any(isinstance(item, str | list) for item in value):
        raise shared.unsupported("prompt", "one prompt a request is answered; send a request for each of several.")
    for index, item in enumerate(value):
        if type(item) is not int:
            raise RequestError(
                f"`prompt.{index}`: a token id is a whole number.", param=f"prompt.{index}", code="invalid_token_id"
            )
    return tuple(value)


class AnswerBuilder:
    """Builds the body or the stream of one answer. Text offsets count from the start of the answer."""

    ping = openai_chat.PING
    stream_type = "text/event-stream; charset=utf-8"

    def __init__(self, facts: AnswerFacts) -> None:
        self._base = {
            "id": ID_PREFIX + facts.call_id,
            "object": "text_completion",
            "created": int(facts.created),
            "model": facts.model,
        }
        self._prompt_tokens = facts.prompt_tokens
        self._logprobs_wanted = facts.request.logprobs
        self._include_usage = facts.request.include_usage
        self._offset = 0

    def body(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The whole answer."""
        choice = self._choice(message.content, tokens, _WIRE_FINISH[end.reason])
        return shared.dump({**self._base, "choices": [choice], "usage": self._usage(end)})

    def start(self) -> bytes:
        """Nothing: the first piece opens the stream."""
        return b""

    def text(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """A piece of text."""
        return sse({**self._base, "choices": [self._choice(text, tokens)]})

    def thought(self, text: str, tokens: Sequence[TokenText]) -> bytes:
        """There is none: what a raw prompt gives is text, whatever it holds."""
        raise ValueError("a raw completion's text is not split")

    def tool_call(self, call: ToolCall, tokens: Sequence[TokenText]) -> bytes:
        """There is none: a raw prompt offers no tool."""
        raise ValueError("a raw completion offers no tool that could be called")

    def finish(self, message: Message, end: Ending, tokens: Sequence[TokenText]) -> bytes:
        """The event with the finish reason, the usage for callers who asked for it, and the terminator."""
        last = sse({**self._base, "choices": [self._choice("", tokens, _WIRE_FINISH[end.reason])]})
        if self._include_usage:
            last += sse({**self._base, "choices": [], "usage": self._usage(end)})
        return last + openai_chat.DONE

    def error(self, error: PracticumError) -> bytes:
        """An error inside a stream that has begun; no terminator follows it."""
        return sse(error_body(error))

    def _choice(self, text: str, tokens: Sequence[TokenText], finish: WireFinish | None = None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": self._logprobs(tokens), "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[TokenText]) -> dict[str, Any] | None:
        """Parallel lists, one entry a token; a character that several tokens share counts in each of them."""
        if not self._logprobs_wanted:
            return None
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [openai_chat.shown_logprob(token.logprob) for token in tokens],
            "top_logprobs": None,
            "text_offset": offsets,
        }

    def _usage(self, end: Ending) -> dict[str, int]:
        return openai_chat.usage(self._prompt_tokens, end.completion_tokens)


def answer(facts: AnswerFacts) -> AnswerBuilder:
    """Makes the bytes of one answer."""
    return AnswerBuilder(facts)


def error_body(error: PracticumError) -> dict[str, Any]:
    """An error in OpenAI's shape; what other dialects call messages is the prompt here."""
    shown = openai_chat.error_body(error)
    if shown["error"]["param"] == "messages":
        shown["error"]["param"] = "prompt"
    return shown
