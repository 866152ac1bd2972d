"""OpenAI's legacy completions: which prompts are read, what is refused by name, and the bytes that go back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from practicum.dialects import openai_completions
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.openai_completions import AnswerBuilder, parse
from practicum.dialects.request import ChatRequest
from practicum.errors import ContextOverflow, EngineError, RequestError
from practicum.types.messages import Message, ToolCall
from practicum.types.tokens import TokenText

TOKENS = (TokenText(text="é", logprob=-0.5), TokenText(text="ab", logprob=-math.inf), TokenText(text="c", logprob=None))


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "practicum", "prompt": "Once", **fields}


def read(**fields: Any) -> ChatRequest:
    return parse(json.dumps(body(**fields)).encode())


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.status == 400
    return caught.value


def test_the_defaults_are_the_apis() -> None:
    request = read()
    assert (request.prompt, request.messages, request.tools) == ("Once", (), ())
    assert (request.params.temperature, request.params.top_p, request.params.top_k) == (1.0, 1.0, 0)
    assert request.max_tokens == 16 == read(max_tokens=None).max_tokens
    assert not request.stream and not request.logprobs and not request.include_usage


def test_what_is_read() -> None:
    request = read(
        temperature=0, top_p=0.5, top_k=-1, min_p=0.1, seed=7, stop="END", max_tokens=5, stream=True, logprobs=0,
        stream_options={"include_usage": True},
    )  # fmt: skip
    assert (request.params.temperature, request.params.top_p, request.params.top_k, request.params.min_p) == (
        0.0,
        0.5,
        0,
        0.1,
    )
    assert request.params.seed == 7 and request.params.stop == ("END",) and request.max_tokens == 5
    assert request.stream and request.include_usage and request.logprobs


@pytest.mark.parametrize(
    ("prompt", "seen"),
    [("a", "a"), (["a"], "a"), ([5, 0, 5], (5, 0, 5)), ([[5, 0]], (5, 0)), ([7], (7,)), ([-1, 10**40], (-1, 10**40))],
)
def test_one_prompt_in_each_of_its_forms(prompt: Any, seen: Any) -> None:
    assert read(prompt=prompt).prompt == seen


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], ["a", [1]], [1, "a"], [[[1], [2]]]])
def test_several_prompts_are_refused_with_the_way_out(prompt: Any) -> None:
    error = refused(prompt=prompt)
    assert (error.param, error.code) == ("prompt", "unsupported_value") and "a request for each" in str(error)


@pytest.mark.parametrize("wrong", [True, False, None, 1.0, 1.5, {}])
def test_what_is_no_token_id_is_named_by_its_index(wrong: Any) -> None:
    error = refused(prompt=[1, 2, wrong, 3])
    assert (error.param, error.code) == ("prompt.2", "invalid_token_id") and "`prompt.2`" in str(error)


@pytest.mark.parametrize("prompt", [None, 5, True, {"text": "a"}])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    assert refused(prompt=prompt).param == "prompt"


def test_a_missing_prompt_is_named() -> None:
    with pytest.raises(RequestError) as caught:
        parse(b'{"model": "practicum"}')
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2), ("best_of", 2), ("suffix", "end"), ("echo", True), ("logprobs", 1), ("logit_bias", {"5": 1}),
        ("frequency_penalty", 0.5), ("presence_penalty", 0.5), ("repetition_penalty", 1.1),
        ("prompt_logprobs", 1), ("response_format", {"type": "xml"}),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert (error.param, error.code) == (field, "unsupported_value")


@pytest.mark.parametrize(
    "harmless",
    [
        {"n": 1}, {"best_of": 1}, {"suffix": None}, {"suffix": ""}, {"echo": False}, {"logprobs": None},
        {"logit_bias": {}}, {"frequency_penalty": 0, "presence_penalty": 0.0}, {"user": "ana"},
    ],
)  # fmt: skip
def test_values_that_change_nothing_are_taken_and_kept(harmless: dict[str, Any]) -> None:
    assert read(**harmless).body == body(**harmless)


@pytest.mark.parametrize(
    ("field", "value"), [("max_tokens", 0), ("temperature", 3), ("top_p", 0), ("logprobs", True), ("stop", [""])]
)
def test_values_out_of_range_are_named(field: str, value: Any) -> None:
    assert refused(**{field: value}).param == field


def builder(**fields: Any) -> AnswerBuilder:
    return openai_completions.answer(
        AnswerFacts(call_id="call_1", model="practicum@3", created=5.5, prompt_tokens=3, request=read(**fields))
    )


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def events(raw: bytes) -> list[dict[str, Any]]:
    assert raw.endswith(openai_completions.openai_chat.DONE)
    return [json.loads(line.removeprefix("data: ")) for line in raw.decode().strip().split("\n\n")[:-1]]


def test_the_body_of_an_answer() -> None:
    answer = json.loads(builder().body(said("éabc"), Ending(reason="length", completion_tokens=3), ()))
    assert answer == {
        "id": "cmpl-call_1",
        "object": "text_completion",
        "created": 5,
        "model": "practicum@3",
        "choices": [{"index": 0, "text": "éabc", "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
    }


def test_logprobs_are_parallel_lists() -> None:
    answer = json.loads(builder(logprobs=0).body(said("éabc"), Ending(reason="stop", completion_tokens=3), TOKENS))
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["é", "ab", "c"],
        "token_logprobs": [-0.5, -9999.0, None],
        "top_logprobs": None,
        "text_offset": [0, 1, 3],
    }


def test_the_events_of_a_stream() -> None:
    made = builder(stream=True, logprobs=0, stream_options={"include_usage": True})
    raw = made.start() + made.text("é", TOKENS[:1]) + made.text("ab", TOKENS[1:2])
    raw += made.finish(said("éab"), Ending(reason="stop", completion_tokens=3), TOKENS[2:])
    *pieces, usage = events(raw)
    choices = [piece["choices"][0] for piece in pieces]
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [
        ("é", None), ("ab", None), ("", "stop"),
    ]  # fmt: skip
    assert [choice["logprobs"]["text_offset"] for choice in choices] == [[0], [1], [3]]
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 6
    assert {event["object"] for event in (*pieces, usage)} == {"text_completion"}


def test_usage_is_streamed_to_those_who_asked() -> None:
    raw = builder(stream=True).finish(said(""), Ending(reason="stop", completion_tokens=1), ())
    assert [len(event["choices"]) for event in events(raw)] == [1]


def test_an_error_names_the_prompt_where_others_have_messages() -> None:
    shown = openai_completions.error_body(ContextOverflow("too long", param="messages"))["error"]
    assert (shown["param"], shown["code"]) == ("prompt", "context_length_exceeded")
    assert b"burns" in builder().error(EngineError("it burns"))


def test_no_tool_can_be_called() -> None:
    with pytest.raises(ValueError, match="no tool"):
        builder().tool_call(ToolCall(id="c", name="bash", arguments="{}"), ())
