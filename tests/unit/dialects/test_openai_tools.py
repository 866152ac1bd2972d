"""OpenAI's tools that are no functions: what the model is offered, which one a choice means, calls back and forth."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.dialects.mutations import FREE_FORM, broken
from tests.unit.dialects.writers import words

from practicum.dialects import openai_chat, openai_responses
from practicum.dialects.dialect import AnswerFacts, Ending
from practicum.dialects.openai_tools import arguments_of, choice, text_of
from practicum.dialects.registry import DIALECTS
from practicum.dialects.request import ChatRequest, Declared
from practicum.errors import RequestError
from practicum.types.messages import Message, ToolCall

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
REGEX = {"type": "grammar", "syntax": "regex", "definition": "a|b"}
SPAWN = {"type": "function", "name": "spawn", "description": "Begin.", "parameters": {"type": "object"}}
EXEC = {"type": "custom", "name": "exec", "description": "Run it.", "format": GRAMMAR}
AGENTS = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [SPAWN, EXEC, {"type": "mcp"}]}
OTHERS = {"type": "namespace", "name": "others", "description": "", "tools": [SPAWN]}
BASH = {"type": "function", "name": "bash"}
FREE = {"type": "custom", "name": "free"}


def responses(**fields: Any) -> ChatRequest:
    return openai_responses.from_body({"model": "practicum", "input": "Hi", **fields})


def chat(**fields: Any) -> ChatRequest:
    return openai_chat.from_body({"model": "practicum", "messages": [{"role": "user", "content": "Hi"}], **fields})


def chosen(tool_choice: Any) -> ChatRequest:
    return responses(tools=[AGENTS, OTHERS, BASH, FREE], tool_choice=tool_choice)


def test_a_namespace_is_its_tools_under_flat_names() -> None:
    request = responses(tools=[AGENTS, OTHERS, BASH, {"type": "web_search"}])
    assert [tool.name for tool in request.tools] == ["agents.spawn", "agents.exec", "others.spawn", "bash"]
    assert request.tools[0].description == "Begin.\n\nagents: Helpers." and request.tools[2].description == "Begin."
    assert request.declared["agents.exec"] == Declared(name="exec", namespace="agents", free_form=True)


def test_a_free_form_tool_is_a_function_of_one_text() -> None:
    (tool,) = responses(tools=[EXEC]).tools
    assert tool.parameters["properties"] == {"input": {"type": "string"}} and tool.parameters["required"] == ["input"]
    assert tool.description.startswith("Run it.\n\n") and tool.description.endswith("this Lark grammar:\nstart: /.+/")


@pytest.mark.parametrize("form", [None, {"type": "text"}])
def test_a_text_has_no_form_but_that(form: Any) -> None:
    (tool,) = responses(tools=[{**FREE, "format": form}]).tools
    assert (
        tool.description
        == "Its argument `input` is free text, not JSON."
        == responses(tools=[FREE]).tools[0].description
    )


def test_both_apis_offer_the_same_and_a_regular_expression_stands_in_the_schema() -> None:
    (tool,) = responses(tools=[{**FREE, "format": REGEX}]).tools
    wrapped = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a|b"}}
    assert chat(tools=[{"type": "custom", "custom": {"name": "free", "format": wrapped}}]).tools == (tool,)
    assert tool.parameters["properties"]["input"]["pattern"] == "^(?:a|b)$" and "a|b" in tool.description


def test_a_later_declaration_between_the_turns_stands_for_an_earlier_one() -> None:
    newer = {**EXEC, "description": "New."}
    between = {"type": "additional_tools", "role": "developer", "tools": [newer, BASH]}
    request = responses(tools=[EXEC], input=[{"role": "user", "content": "Hi"}, between])
    assert [tool.name for tool in request.tools] == ["exec", "bash"] and request.tools[0].description.startswith("New.")


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "custom"}], "tools.0.name"),
        ([{**FREE, "format": {"type": "json"}}], "tools.0.format"),
        ([{**FREE, "format": "lark"}], "tools.0.format"),
        ([{**FREE, "format": {**GRAMMAR, "syntax": "ebnf"}}], "tools.0.format"),
        ([{**FREE, "format": {**GRAMMAR, "definition": ""}}], "tools.0.format"),
        ([{"type": "namespace", "name": "n"}], "tools.0.tools"),
        ([{**AGENTS, "tools": [{"type": "function"}]}], "tools.0.tools.0.name"),
        ([{**AGENTS, "tools": [{**EXEC, "format": {}}]}], "tools.0.tools.0.format"),
        ([BASH, {**AGENTS, "tools": [SPAWN, SPAWN]}], "tools.1.tools.1.name"),
        ([BASH, {"type": "custom", "name": "bash"}], "tools.1.name"),
    ],
)
def test_w10_tools_that_cannot_be_read_are_refused_where_they_stand(tools: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        responses(tools=tools)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("tool_choice", "callable_"),
    [
        ({"type": "custom", "name": "free"}, "free"),
        ({"type": "custom", "name": "exec"}, "agents.exec"),
        ({"type": "function", "name": "spawn", "namespace": "others"}, "others.spawn"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "agents"}]},
         "agents.spawn agents.exec"),
        ({"type": "allowed_tools", "mode": "required", "tools": [FREE, BASH, {"type": "mcp"}]}, "bash free"),
    ],
)  # fmt: skip
def test_a_choice_finds_the_tool_that_is_meant(tool_choice: Any, callable_: str) -> None:
    request = chosen(tool_choice)
    assert " ".join(tool.name for tool in request.callable_tools) == callable_
    assert (request.must_call is None) == (tool_choice.get("mode") == "auto")


@pytest.mark.parametrize(
    ("tool_choice", "says"),
    [
        ({"type": "function", "name": "free"}, "not among"),
        ({"type": "custom", "name": "bash"}, "not among"),
        ({"type": "function", "name": "bash", "namespace": "agents"}, "not among"),
        ({"type": "function", "name": "spawn"}, "several namespaces"),
        ({"type": "custom"}, "name of this custom is missing"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "no"}]}, "not among"),
    ],
)
def test_w10_a_choice_that_means_no_tool_or_two_is_refused(tool_choice: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        chosen(tool_choice)
    assert caught.value.param == "tool_choice"


def test_a_tool_outside_of_all_namespaces_goes_first() -> None:
    declared = {"n.a": Declared(name="a", namespace="n"), "a": Declared(name="a")}
    assert choice({"type": "function", "name": "a"}, declared).names == ("a",)


@given(text=st.text())
def test_a_text_comes_back_from_its_arguments(text: str) -> None:
    assert text_of(arguments_of(text)) == text


@pytest.mark.parametrize("arguments", ['{"code": "ls"}', '{"input": 5}', "[]", '{"input": '])
def test_arguments_without_the_text_are_the_text(arguments: str) -> None:
    assert text_of(arguments) == arguments


def answer(**fields: Any) -> openai_responses.AnswerBuilder:
    request = responses(**fields)
    return openai_responses.answer(
        AnswerFacts(call_id="call_1", model="practicum@3", created=5.9, prompt_tokens=3, request=request)
    )


def test_w7_the_events_of_a_free_form_call() -> None:
    made = answer(tools=[AGENTS])
    call = ToolCall(id="call_1_0", name="agents.exec", arguments='{"input": "print(\\"a\\")\\n"}')
    raw = made.tool_call(call, ())
    end = Ending(reason="tool_calls", completion_tokens=2)
    events = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: ")]
    item = {
        "id": "ctc_1_0", "type": "custom_tool_call", "status": "completed", "call_id": "call_1_0", "name": "exec",
        "namespace": "agents", "input": 'print("a")\n',
    }  # fmt: skip
    where = {"output_index": 0, "item_id": "ctc_1_0"}
    assert events == [
        {"type": "response.output_item.added", "sequence_number": 0, "output_index": 0,
         "item": {**item, "status": "in_progress", "input": ""}},
        {"type": "response.custom_tool_call_input.delta", "sequence_number": 1, **where, "delta": 'print("a")\n'},
        {"type": "response.custom_tool_call_input.done", "sequence_number": 2, **where, "input": 'print("a")\n'},
        {"type": "response.output_item.done", "sequence_number": 3, "output_index": 0, "item": item},
    ]  # fmt: skip
    whole = answer(tools=[AGENTS]).body(Message(role="assistant", tool_calls=(call,)), end, ())
    assert json.loads(whole)["output"] == [item]


@given(text=words)
def test_a_call_of_the_history_is_the_same_whatever_is_on_offer(text: str) -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "custom_tool_call", "call_id": "c", "name": "exec", "namespace": "agents", "input": text},
        {"type": "function_call", "call_id": "d", "name": "spawn", "namespace": "agents", "arguments": "{}"},
    ]
    calls = (
        ToolCall(id="c", name="agents.exec", arguments=arguments_of(text)),
        ToolCall(id="d", name="agents.spawn", arguments="{}"),
    )
    for tools in ([], [AGENTS]):
        assert responses(input=items, tools=tools).messages[1] == Message(role="assistant", tool_calls=calls)


@pytest.mark.parametrize("dialect", FREE_FORM)
def test_w10_broken_bodies_with_such_tools_are_read_or_refused(dialect: str) -> None:
    refused = 0
    for body in broken(dialect, 600, fields=FREE_FORM[dialect]):
        try:
            assert DIALECTS[dialect].parse(json.dumps(body).encode(), {}).messages
        except RequestError as error:
            refused += 1
            assert error.status == 400 and error.param
    assert 100 < refused < 600
