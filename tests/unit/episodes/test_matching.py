"""When two conversations are the same, and when they are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.episodes.matching import (
    extended_hash,
    has_reasoning,
    prefix_hashes,
    reasoning_change,
    tools_hash,
)
from practicum.types.messages import Message, ToolCall, ToolSpec

json_objects = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


def answer(arguments: str, content: str = "") -> Message:
    return Message(role="assistant", content=content, tool_calls=(ToolCall(id="c1", name="bash", arguments=arguments),))


def same(left: Message, right: Message) -> bool:
    return extended_hash("", left) == extended_hash("", right)


@given(json_objects)
def test_e3_arguments_are_the_same_however_they_are_written(value: dict[str, Any]) -> None:
    forms = [
        json.dumps(value),
        json.dumps(value, indent=4, ensure_ascii=False),
        json.dumps(dict(reversed(value.items())), separators=(",", ":")),
    ]
    assert len({extended_hash("", answer(form)) for form in forms}) == 1


@pytest.mark.parametrize(
    ("left", "right"), [("", "{}"), ('{"n": 1.0}', '{"n": 1}'), ('{"a":1,"b":2}', '{"b": 2, "a": 1}')]
)
def test_e3_what_other_languages_make_of_arguments(left: str, right: str) -> None:
    assert same(answer(left), answer(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [('{"n": 1}', '{"n": 2}'), ('{"n": 1}', '{"n": true}'), ('{"n": 1}', '{"n": "1"}'), ('{"n": 1', '{"n": 1}'),
     ('{"l": [1, 2]}', '{"l": [2, 1]}')],
)  # fmt: skip
def test_other_arguments_are_another_message(left: str, right: str) -> None:
    assert not same(answer(left), answer(right))


def test_reasoning_call_ids_and_names_of_results_do_not_count() -> None:
    one = Message(role="tool", content="42", tool_call_id="a", name="bash")
    assert same(one, Message(role="tool", content="42", tool_call_id="fc_a"))
    thought = Message(role="assistant", content="x", reasoning="hm")
    assert same(thought, Message(role="assistant", content="x"))


def thinking(reasoning: str, content: str = "x") -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning)


def test_w9_reasoning_in_the_text_is_the_same_message() -> None:
    assert same(thinking("hm"), thinking("", "<think>\nhm\n</think>\n\nx"))
    assert not same(thinking("hm"), thinking("", "say <think>hm</think>x"))
    assert not same(Message(role="user", content="<think>a</think>b"), Message(role="user", content="b"))


HI = Message(role="user", content="Hi")
SERVED = (HI, thinking("one"), HI, thinking("two"))


@pytest.mark.parametrize(
    ("replayed", "rule", "expected"),
    [
        (SERVED, "fork", None),
        ((HI, thinking(" o n\ne"), HI, thinking("", "<think>two</think>x")), "fork", None),
        ((HI, thinking("ONE"), HI, thinking("two")), "extend", "reasoning_rewritten"),
        ((HI, thinking("one"), HI, thinking("")), "infer", "reasoning_dropped"),
        ((HI, thinking(""), HI, thinking("")), "infer", "reasoning_dropped"),  # the first one was sent back before
        ((HI, thinking("one"), HI, thinking("")), "extend", None),
        ((HI, thinking("one")), "fork", None),  # of another length: read otherwise when it was recorded
    ],
)
def test_w9_what_a_caller_did_to_reasoning(replayed: Any, rule: Any, expected: str | None) -> None:
    assert reasoning_change(replayed, SERVED, rule, returned=has_reasoning(replayed)) == expected


@pytest.mark.parametrize(
    ("rule", "returned", "expected"),
    [("infer", False, None), ("infer", True, "reasoning_dropped"), ("fork", False, "reasoning_dropped"),
     ("extend", True, None)],
)  # fmt: skip
def test_e1_an_answer_without_its_reasoning(rule: Any, returned: bool, expected: str | None) -> None:
    assert reasoning_change((HI, thinking("")), (HI, thinking("hm")), rule, returned=returned) == expected


def test_added_reasoning_changes_nothing_that_was_served() -> None:
    assert reasoning_change((HI, thinking("hm")), (HI, thinking("")), "fork", returned=True) is None


def test_options_of_the_template_make_another_conversation() -> None:
    assert prefix_hashes([HI], ()) == prefix_hashes([HI], (), {})
    assert len({prefix_hashes([HI], (), {"enable_thinking": on})[-1] for on in (True, False, None)}) == 3


def test_text_counts_to_the_last_space() -> None:
    assert not same(Message(role="user", content="a"), Message(role="user", content="a "))
    assert not same(Message(role="user", content="a"), Message(role="system", content="a"))


def test_a_prefix_hash_is_the_hash_of_the_prefix() -> None:
    messages = [Message(role="user", content=str(number)) for number in range(4)]
    hashes = prefix_hashes(messages, ())
    assert hashes[2] == prefix_hashes(messages[:2], ())[-1]
    assert len(set(hashes)) == 5


def test_lone_surrogates_and_zero_bytes_have_a_hash() -> None:
    assert len(extended_hash("", Message(role="user", content="\ud800\x00"))) == 64


SCHEMA = {"type": "object", "properties": {"required": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]}


def tool(schema: dict[str, Any], **fields: Any) -> ToolSpec:
    return ToolSpec(**{"name": "bash", "description": "Run.", "parameters": schema, **fields})


@pytest.mark.parametrize(
    "schema",
    [
        dict(reversed(SCHEMA.items())),
        {**SCHEMA, "additionalProperties": True, "description": "", "title": None},
        {**SCHEMA, "properties": {"b": {"type": "integer", "default": None}, "required": {"type": "string"}}},
    ],
)
def test_e2_other_order_and_added_defaults_are_the_same_tools(schema: dict[str, Any]) -> None:
    other = ToolSpec(name="a", parameters={})
    assert tools_hash([tool(SCHEMA), other]) == tools_hash([other, tool(schema)])


@pytest.mark.parametrize(
    "changed",
    [
        tool({**SCHEMA, "additionalProperties": False}),
        tool({**SCHEMA, "required": []}),
        tool({**SCHEMA, "properties": {"b": {"type": "integer"}}}),
        tool({**SCHEMA, "properties": {"required": {"type": "string"}, "b": {"type": "integer", "minimum": 1}}}),
        tool(SCHEMA, description="Run!"),
        tool(SCHEMA, name="sh"),
    ],
)
def test_e2_a_real_change_of_tools_shows(changed: ToolSpec) -> None:
    assert tools_hash([tool(SCHEMA)]) != tools_hash([changed])
    assert tools_hash([tool(SCHEMA)]) != tools_hash([tool(SCHEMA), tool(SCHEMA, name="z")])
