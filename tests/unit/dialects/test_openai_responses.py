"""OpenAI's Responses: what is read, what is refused, and the bytes that go back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from practicum.dialects import openai_responses
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.request import ChatRequest
from practicum.errors import EngineError, RequestError
from practicum.types.messages import Message, ToolCall

FUNCTION = {"type": "function", "name": "bash", "parameters": {"type": "object"}, "strict": False}


def read(**fields: Any) -> ChatRequest:
    return openai_responses.parse(json.dumps({"model": "practicum", "input": "Hi", **fields}).encode())


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    return caught.value


def test_what_is_read() -> None:
    request = read(
        instructions="Be brief.", temperature=0, top_p=0.5, max_output_tokens=9, stream=True, tool_choice="none",
        parallel_tool_calls=False, reasoning={"effort": "high"}, store=False, text={"verbosity": "low"},
        include=["reasoning.encrypted_content"], prompt_cache_key="k", truncation="auto",
    )  # fmt: skip
    assert request.messages == (Message(role="system", content="Be brief."), Message(role="user", content="Hi"))
    assert (request.params.temperature, request.params.top_p, request.max_tokens) == (0.0, 0.5, 9)
    assert request.stream and not request.parse_tools and not request.parallel_tools


def test_tools_that_only_the_provider_runs_are_left_out_and_stay_on_record() -> None:
    others = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "mcp", "tools": 5, "name": None}]
    request = read(tools=[*others, FUNCTION])
    assert [tool.name for tool in request.tools] == ["bash"] and len(request.body["tools"]) == 4


def test_tools_and_settings_between_the_turns_are_no_turns() -> None:
    items = [
        {"type": "additional_tools", "role": "developer", "tools": [FUNCTION, {"type": "custom", "name": "exec"}]},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"role": "developer", "content": "x"},
        {"type": "custom_tool_call", "call_id": "c", "name": "exec", "input": "1"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "2"}]},
    ]
    request = read(input=items)
    call = ToolCall(id="c", name="exec", arguments='{"input": "1"}')
    assert [tool.name for tool in request.tools] == ["bash", "exec"]
    assert request.messages == (
        Message(role="system", content="x"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content="2", tool_call_id="c"),
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"role": "alien", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input.0.name"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "input": "x"}]}, "input.0.name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools.1.name"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
    ],
)
def test_w10_w11_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert (refused(**fields).param or "").startswith(param)


def answer(**fields: Any) -> openai_responses.AnswerBuilder:
    return openai_responses.answer(
        AnswerFacts(call_id="call_1", model="practicum@3", created=5.9, prompt_tokens=3, request=read(**fields))
    )


def events(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")]


def test_the_body_of_an_answer() -> None:
    call = ToolCall(id="call_1_0", name="bash", arguments="{}")
    message = Message(role="assistant", content="Hi", tool_calls=(call,))
    made = answer(tools=[FUNCTION], metadata={"a": "b"})
    shown = json.loads(made.body(message, Ending(reason="tool_calls", completion_tokens=2), ()))
    assert (shown["id"], shown["object"], shown["status"], shown["created_at"]) == (
        "resp_call_1", "response", "completed", 5,
    )  # fmt: skip
    assert [item["type"] for item in shown["output"]] == ["message", "function_call"]
    assert shown["output"][1]["call_id"] == "call_1_0" and shown["tools"] == [FUNCTION]
    assert shown["metadata"] == {"a": "b"} and shown["usage"]["total_tokens"] == 5


def test_an_answer_of_nothing_is_an_empty_message_and_one_cut_short_is_incomplete() -> None:
    end = Ending(reason="length", completion_tokens=1)
    whole = json.loads(answer().body(Message(role="assistant"), end, ()))
    streamed = events(answer().finish(Message(role="assistant"), end, ()))[-1]
    assert streamed["type"] == "response.incomplete" and streamed["response"] == whole
    assert whole["output"][0]["content"][0]["text"] == ""
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}


def test_w7_text_behind_a_call_is_an_item_of_its_own() -> None:
    made = answer()
    raw = made.start() + made.text("a", ()) + made.tool_call(ToolCall(id="c", name="bash", arguments="{}"), ())
    raw += made.text("b", ()) + made.finish(Message(role="assistant"), Ending(reason="stop", completion_tokens=4), ())
    shown = events(raw)
    done = [(e["output_index"], e["item"]["type"]) for e in shown if e["type"] == "response.output_item.done"]
    assert done == [(0, "message"), (1, "function_call"), (2, "message")]
    assert [event["sequence_number"] for event in shown] == list(range(len(shown)))
    ids = [item["id"] for item in shown[-1]["response"]["output"]]
    assert len(set(ids)) == 3


def test_w17_a_failure_is_the_responses_own() -> None:
    made = answer()
    made.start()
    (event,) = events(made.error(EngineError("it burns")))
    assert (event["type"], event["response"]["status"]) == ("response.failed", "failed")
    assert event["response"]["error"] == {"code": "engine_unavailable", "message": "it burns"}
