"""The streaming tool-call parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.renderers import ToolCallParser
from practicum.types.messages import ToolCall

NAMES = ("bash", "web.search-2", "mcp__x.y")


def parser(names: tuple[str, ...] = NAMES) -> ToolCallParser:
    return ToolCallParser(names, lambda index: f"c{index}")


def run(text: str, size: int) -> tuple[str, list[ToolCall]]:
    one = parser()
    pieces = [piece for at in range(0, len(text), size) for piece in one.feed(text[at : at + size])] + one.finish()
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content, [piece for piece in pieces if isinstance(piece, ToolCall)]


def block(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_parallel_calls_come_out_in_order_and_their_white_space_belongs_to_the_markup(size: int) -> None:
    first, second = block('{"name": "bash", "arguments": {"command": "ls"}}'), block('{"name": "mcp__x.y"}')
    text = f"Now.\n{first}\n{second}\n"
    content, calls = run(text, size)
    assert content == "Now."
    assert calls == [
        ToolCall(id="c0", name="bash", arguments='{"command": "ls"}'),
        ToolCall(id="c1", name="mcp__x.y", arguments="{}"),
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "text",
    [
        block('{"name": "bash", "arguments": {"command": "ls"'),
        block('{"name": "bash", "arguments": {"n": NaN}}'),
        block('{"name": "nobody", "arguments": {}}'),
        block('{"name": "bash", "arguments": "ls"}'),
        block('{"name": "bash", "name": "bash"}'),
        block('{"name": ["bash"]}'),
        block('{"name": "bash"} and more'),
        block("bash ls"),
        block("[" * 5000),
        "<tool_call>\n" + '{"name": "bash", "arguments": {}}',
        "<tool_call></tool_call>",
        "a < b <tool <tool_cal",
        "</tool_call>",
        "text \n\n",
    ],
)
def test_w5_what_is_no_call_is_delivered_as_text_unchanged(text: str, size: int) -> None:
    assert run(text, size) == (text, [])


def test_w5_text_around_a_broken_call_survives_and_a_later_call_is_found() -> None:
    broken, good = block("{"), block('{"name": "bash"}')
    content, calls = run(f"one {broken} two {good} three", 1)
    assert content == f"one {broken} two three"
    assert [call.name for call in calls] == ["bash"]


@pytest.mark.parametrize("name", NAMES)
def test_w21_names_come_out_as_they_went_in(name: str) -> None:
    assert run(block(f'{{"name": "{name}"}}'), 5)[1][0].name == name


def test_arguments_are_kept_as_they_were_written() -> None:
    written = '{ "b":1.0,\n "a" : "\\u00e9", "n": [1,2 ] }'
    assert run(block(f'{{"arguments": {written}, "name": "bash"}}'), 4)[1][0].arguments == written


def test_a_closing_tag_inside_a_string_closes_nothing() -> None:
    written = '{"command": "echo \\"</tool_call>\\""}'
    assert run(block(f'{{"name": "bash", "arguments": {written}}}'), 1)[1][0].arguments == written


def test_only_what_could_be_a_call_is_held_back() -> None:
    one = parser()
    assert one.feed("a <b> <tool") == ["a <b>"]
    assert one.feed("s>") == [" <tools>"]
    assert one.feed(" ") == []
    assert one.feed("x") == [" x"]


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", '{"name": "bash"}', "{", '"', "x", " ", "\n"])))
def test_no_input_raises_and_the_pieces_do_not_depend_on_how_it_came(parts: list[str]) -> None:
    text = "".join(parts)
    assert run(text, 1) == run(text, 10_000)
