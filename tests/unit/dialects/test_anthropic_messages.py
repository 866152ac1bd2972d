"""Anthropic's Messages: what is read, what is refused, and the bytes that go back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from practicum.dialects import anthropic_messages
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.request import ChatRequest
from practicum.errors import RequestError
from practicum.types.messages import Message, ToolCall

HI = [{"role": "user", "content": "Hi"}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def read(**fields: Any) -> ChatRequest:
    body = {"model": "practicum", "max_tokens": 9, "messages": HI, **fields}
    return anthropic_messages.parse(json.dumps({k: v for k, v in body.items() if v is not ...}).encode())


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    return caught.value


def test_what_is_read() -> None:
    request = read(
        temperature=0.5, top_p=0.9, top_k=40.0, stop_sequences=["END"], stream=True, system="Be brief.",
        tool_choice={"type": "auto", "disable_parallel_tool_use": True}, metadata={"user_id": "{}"},
        thinking={"type": "adaptive"}, context_management={"edits": []}, output_config={"effort": "high"},
    )  # fmt: skip
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.stop) == (0.5, 0.9, 40, ("END",))
    assert request.stream and not request.parallel_tools and request.parse_tools and request.max_tokens == 9
    assert request.messages[0] == Message(role="system", content="Be brief.")
    assert request.body["metadata"] == {"user_id": "{}"} and not read(tool_choice={"type": "none"}).parse_tools


def test_results_and_words_of_one_turn_are_messages_in_their_order() -> None:
    content = [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1"}], "is_error": True},
        {"type": "tool_result", "tool_use_id": "b"},
        {"type": "text", "text": "Go "},
        {"type": "text", "text": "on"},
    ]
    assert read(messages=[{"role": "user", "content": content}, {"role": "system", "content": "x"}]).messages == (
        Message(role="tool", content="1", tool_call_id="a"),
        Message(role="tool", content="", tool_call_id="b"),
        Message(role="user", content="Go on"),
        Message(role="system", content="x"),
    )


def test_w22_a_billing_header_is_no_prompt() -> None:
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1.4e6"}, {"type": "text", "text": "Hi"}]
    assert read(system=system).messages[0] == Message(role="system", content="Hi")


def test_tools_of_the_provider_are_left_out_and_those_without_a_schema_refused() -> None:
    own = {"type": "custom", "name": "mcp__a.b-2", "input_schema": {"type": "object"}, "defer_loading": True}
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert [tool.name for tool in read(tools=[own, search]).tools] == ["mcp__a.b-2"]
    assert refused(tools=[own, {"type": "bash_20250124", "name": "bash"}]).param == "tools.1.type"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": ...}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [*HI, {"role": "assistant", "content": "I"}]}, "messages.1"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages.0.content.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [IMAGE]}]}]},
            "messages.0.content.0.content.0",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"tool_choice": {"type": "some"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tools": [{"name": "a"}, {"name": "a"}]}, "tools.1.name"),
    ],
)
def test_w10_w11_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert param in anthropic_messages.error_body(error)["error"]["message"]


def test_a_count_needs_no_length() -> None:
    body = json.dumps({"model": "practicum", "messages": HI}).encode()
    assert anthropic_messages.parse(body, {"task": "count"}).max_tokens is None


def answer() -> anthropic_messages.AnswerBuilder:
    return anthropic_messages.answer(
        AnswerFacts(call_id="call_1", model="practicum@3", created=5.0, prompt_tokens=3, request=read())
    )


def test_the_body_of_an_answer() -> None:
    call = ToolCall(id="c1", name="bash", arguments='{"n": 1e999, "s": "\\ud800"}')
    message = Message(role="assistant", content="Hi", tool_calls=(call,))
    raw = answer().body(message, Ending(reason="tool_calls", completion_tokens=2), ())
    shown = json.loads(raw, parse_constant=pytest.fail)
    assert shown["content"][0] == {"type": "text", "text": "Hi"} and shown["stop_reason"] == "tool_use"
    assert shown["content"][1]["input"] == {"n": "1e999", "s": "\ud800"}, "JSON has no infinity"
    assert (shown["id"], shown["type"], shown["role"], shown["model"]) == (
        "msg_call_1", "message", "assistant", "practicum@3",
    )  # fmt: skip
    assert shown["usage"]["input_tokens"] == 3 and shown["usage"]["output_tokens"] == 2


def test_an_answer_of_nothing_has_no_block() -> None:
    end = Ending(reason="stop", completion_tokens=1, stop="END")
    shown = json.loads(answer().body(Message(role="assistant"), end, ()))
    assert (shown["content"], shown["stop_reason"], shown["stop_sequence"]) == ([], "stop_sequence", "END")
    raw = answer().finish(Message(role="assistant"), end, ()).decode()
    assert raw.startswith("event: message_delta\n") and raw.endswith('{"type":"message_stop"}\n\n')


def test_w7_blocks_of_a_stream_are_numbered_opened_and_closed() -> None:
    made = answer()
    call = ToolCall(id="c1", name="bash", arguments='{"a":1}')
    raw = made.text("a", ()) + made.text("b", ()) + made.tool_call(call, ()) + made.text("c", ()) + made.ping
    raw += made.finish(Message(role="assistant"), Ending(reason="tool_calls", completion_tokens=4), ())
    events = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")]
    assert [(event["type"].removeprefix("content_block_"), event.get("index")) for event in events] == [
        ("start", 0), ("delta", 0), ("delta", 0), ("stop", 0), ("start", 1), ("delta", 1), ("stop", 1),
        ("start", 2), ("delta", 2), ("ping", None), ("stop", 2), ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    assert events[5]["delta"] == {"type": "input_json_delta", "partial_json": '{"a":1}'}
    assert events[-2]["usage"]["output_tokens"] == 4
