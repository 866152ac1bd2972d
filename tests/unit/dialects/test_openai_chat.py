"""OpenAI chat completions: what is read, what is refused, and the bytes that go back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.dialects import openai_chat
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.openai_chat import AnswerBuilder, parse
from practicum.dialects.request import ChatRequest
from practicum.errors import EngineError, NotFound, RequestError, Unauthenticated
from practicum.types.messages import Message, ToolCall
from practicum.types.tokens import TokenText


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "practicum", "messages": [{"role": "user", "content": "Hi"}], **fields}


def read(**fields: Any) -> ChatRequest:
    return parse(json.dumps(body(**fields)).encode())


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.status == 400
    return caught.value


def test_the_defaults_are_the_apis() -> None:
    request = read()
    assert request.messages == (Message(role="user", content="Hi"),)
    assert (request.params.temperature, request.params.top_p, request.params.top_k) == (1.0, 1.0, 0)
    assert request.max_tokens is None and not request.stream and request.parse_tools and request.parallel_tools


def test_what_is_read() -> None:
    request = read(
        temperature=0, top_p=0.5, top_k=-1, min_p=0.1, seed=7, stop="END", max_tokens=5,
        max_completion_tokens=9, stream=True, stream_options={"include_usage": True}, logprobs=True,
        tool_choice="none", parallel_tool_calls=False,
    )  # fmt: skip
    assert (request.params.temperature, request.params.top_p, request.params.top_k, request.params.min_p) == (
        0.0,
        0.5,
        0,
        0.1,
    )
    assert request.params.seed == 7 and request.params.stop == ("END",) and request.max_tokens == 9
    assert request.stream and request.include_usage and request.logprobs
    assert not request.parse_tools and not request.parallel_tools


def test_developer_is_system_and_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    request = read(messages=[{"role": "developer", "content": parts}, {"role": "tool", "content": parts}])
    assert request.messages == (Message(role="system", content="ab"), Message(role="tool", content="ab"))


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_e3_absent_null_and_empty_content_are_the_same(content: dict[str, Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    request = read(messages=[{"role": "assistant", "tool_calls": [call], "refusal": None, **content}])
    assert request.messages[0] == Message(
        role="assistant", content="", tool_calls=(ToolCall(id="c1", name="bash", arguments="{}"),)
    )


@pytest.mark.parametrize("name", ["mcp__a.b-2", "9lives", "web.search", "ä_b"])
def test_w21_tool_names_are_unchanged(name: str) -> None:
    request = read(tools=[{"type": "function", "function": {"name": name}}])
    assert request.tools[0].name == name
    assert openai_chat.tool_call_object(ToolCall(id="c", name=name, arguments="{}"))["function"]["name"] == name


def test_w10_unknown_fields_are_accepted_and_kept() -> None:
    extra = {"service_tier": "flex", "store": True, "metadata": {"a": "b"}, "prompt_cache_key": "k", "verbosity": "low",
             "reasoning_effort": "high", "from_the_future": [1, {"x": None}]}  # fmt: skip
    assert read(**extra).body == body(**extra)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2), ("n", True), ("logit_bias", {"1": 5}), ("frequency_penalty", 0.5), ("presence_penalty", -1),
        ("modalities", ["text", "audio"]), ("audio", {"voice": "x"}), ("response_format", {"type": "grammar"}),
        ("tool_choice", {"type": "custom", "custom": {"name": "bash"}}), ("top_logprobs", 3),
        ("functions", [{"name": "f"}]), ("function_call", "auto"), ("repetition_penalty", 1.2),
        ("web_search_options", {}),
    ],
)  # fmt: skip
def test_w10_what_would_change_the_meaning_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert error.param == field and f"`{field}`" in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 1), ("logit_bias", {}), ("frequency_penalty", 0), ("presence_penalty", 0.0), ("modalities", ["text"]),
     ("response_format", {"type": "text"}), ("tool_choice", "auto"), ("top_logprobs", 0), ("functions", []),
     ("n", None), ("response_format", None)],
)  # fmt: skip
def test_w10_the_same_fields_are_fine_where_they_change_nothing(field: str, value: Any) -> None:
    assert read(**{field: value}).body[field] == value


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "input_audio"}, {"type": "file"}]
)
def test_w11_parts_that_are_no_text_are_refused_where_they_stand(part: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}, part]}]
    error = refused(messages=messages)
    assert error.param == "messages.1.content.1" and part["type"] in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "alien", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages.0"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]}, "messages.0.tool_calls"),
        ({"model": ""}, "model"), ({"model": None}, "model"), ({"temperature": 3}, "temperature"),
        ({"temperature": "1"}, "temperature"), ({"temperature": True}, "temperature"), ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"), ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"), ({"seed": 2**63}, "seed"), ({"stream": "yes"}, "stream"),
        ({"tools": [{"type": "alien"}]}, "tools.0.type"), ({"tools": [{"type": "custom"}]}, "tools.0.custom"),
        ({"tools": [{"type": "custom", "custom": {"name": "a", "format": {}}}]}, "tools.0.custom.format"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}]},
         "messages.0.tool_calls.0.custom.name"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}] * 2}, "tools.1.function.name"),
    ],
)  # fmt: skip
def test_errors_name_the_field(fields: dict[str, Any], param: str) -> None:
    assert (refused(**fields).param or "").startswith(param)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"a": NaN}', b'{"a": -Infinity}',
     b'{"a": 1e999}', b'{"a": 1, "a": 2}', b'{"x": {"b": 1, "b": 1}}', b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}",
     b"[" * 100_000, b'{"a": ' * 5000, b'{"a": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_what_is_no_strict_json_is_refused_without_quoting_it(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse(raw)
    assert caught.value.code == "invalid_json" and len(caught.value.message) < 200


def test_a_hundred_levels_are_fine() -> None:
    nested: Any = "x"
    for _ in range(97):
        nested = [nested]
    assert read(metadata=nested).body["metadata"] == nested


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
known = ["model", "messages", "tools", "tool_choice", "stop", "stream", "stream_options", "n", "logit_bias", "seed",
         "temperature", "response_format", "modalities", "functions"]  # fmt: skip


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(known), json_values, max_size=5))
def test_malformed_bodies_give_request_errors_and_nothing_else(fields: dict[str, Any]) -> None:
    try:
        request = parse(json.dumps({**body(), **fields}).encode())
    except RequestError as error:
        assert error.status == 400 and error.code
    else:
        assert request.messages


def builder(**fields: Any) -> AnswerBuilder:
    return openai_chat.answer(
        AnswerFacts(call_id="call_1", model="practicum@3", created=5.5, prompt_tokens=3, request=read(**fields))
    )


def ended(reason: Any, tokens: int = 2) -> Ending:
    return Ending(reason=reason, completion_tokens=tokens)


def events(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in raw.decode().strip().split("\n\n")]


def test_the_body_of_an_answer() -> None:
    answer = json.loads(builder().body(Message(role="assistant", content="Hi"), ended("stop"), ()))
    assert (answer["id"], answer["object"], answer["model"], answer["created"]) == (
        "chatcmpl-call_1", "chat.completion", "practicum@3", 5,
    )  # fmt: skip
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Hi", "refusal": None}
    assert answer["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip


def test_an_answer_that_only_calls_has_null_content() -> None:
    call = ToolCall(id="c1", name="bash", arguments='{"a":1}')
    message = Message(role="assistant", tool_calls=(call,))
    choice = json.loads(builder().body(message, ended("tool_calls"), ()))["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a":1}'}}
    ]


def test_w7_the_events_of_a_stream() -> None:
    call = ToolCall(id="c1", name="bash", arguments="{}")
    made = builder(stream_options={"include_usage": True})
    message = Message(role="assistant", content="é", tool_calls=(call,))
    raw = made.start() + made.text("é", ()) + made.tool_call(call, ()) + made.finish(message, ended("tool_calls"), ())
    assert raw.endswith(b"data: [DONE]\n\n")
    raw = raw.removesuffix(b"data: [DONE]\n\n")
    *rest, usage = events(raw)
    deltas = [event["choices"][0]["delta"] for event in rest]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1] == {"content": "é"}
    assert deltas[2]["tool_calls"][0]["index"] == 0
    assert rest[3]["choices"][0]["finish_reason"] == "tool_calls"
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 5


def test_an_unknown_logprob_is_null_and_an_impossible_one_is_finite() -> None:
    assert openai_chat.logprob_entry(TokenText(text="a", logprob=None))["logprob"] is None
    assert openai_chat.logprob_entry(TokenText(text="a", logprob=-math.inf))["logprob"] == -9999.0
    assert openai_chat.logprob_entry(TokenText(text="é", logprob=-0.5)) == {
        "token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RequestError("m", param="p"), "invalid_request_error"), (Unauthenticated("m"), "authentication_error"),
     (NotFound("m"), "not_found_error"), (EngineError("m"), "server_error")],
)  # fmt: skip
def test_errors_have_the_apis_shape(error: Any, kind: str) -> None:
    shown = openai_chat.error_body(error)["error"]
    assert set(shown) == {"message", "type", "param", "code"} and shown["type"] == kind
