"""Every family's calls and reasoning out of streamed text.

Pins: what a family writes comes back as it was meant, however the text is cut; what is no call, or a call of a tool
that is not on offer, is text unchanged (W5); names keep their dots, digits and dashes (W21); text leaves as soon as it
is certain.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.renderers import CallMarkup, ToolCallParser, markup
from practicum.renderers.call_forms import FORMS
from practicum.renderers.harmony import HarmonyParser
from practicum.renderers.parsing import AnswerParser, PlainParser, ReasoningParser, joined
from practicum.types.messages import Piece, Thought, ToolCall

SCHEMAS: dict[str, Any] = {
    "bash": {"properties": {"command": {"type": "string"}, "n": {"type": "integer"}}},
    "web.search-2": {},
    "mcp__x.y": {},
}
MARKUPS = {
    one.kind: one
    for one in (
        *(markup.HERMES, markup.XML, markup.LLAMA, markup.MISTRAL, markup.MISTRAL_ARGS),
        *(markup.DEEPSEEK, markup.DEEPSEEK_V31, markup.HARMONY),
    )
}
JSON_KINDS = [kind for kind, one in MARKUPS.items() if one.arguments == "json"]
SIZES = [1, 3, 10_000]


def parser(kind: str, names: Any = SCHEMAS) -> AnswerParser:
    def call_id(index: int) -> str:
        return f"c{index}"

    return HarmonyParser(names, call_id) if kind == "harmony" else ToolCallParser(names, call_id, FORMS[kind]())


def pieces(one: AnswerParser, text: str, size: int) -> list[Piece]:
    fed = [piece for at in range(0, len(text), size) for piece in one.feed(text[at : at + size])]
    return joined([*fed, *one.finish()])


def call(name: str, arguments: str, index: int = 0) -> ToolCall:
    return ToolCall(id=f"c{index}", name=name, arguments=arguments)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("kind", MARKUPS)
def test_w21_what_a_family_writes_comes_back(kind: str, name: str, size: int) -> None:
    one = MARKUPS[kind]
    calls = [call(name, '{"command": "echo \\"é\\" {]"}', 0), call("bash", '{"command": "ls\\n-l"}', 1)]
    calls = calls if one.parallel else calls[:1]
    assert pieces(parser(kind), one.written(calls), size) == calls


@pytest.mark.parametrize("kind", JSON_KINDS)
def test_json_arguments_are_kept_as_they_were_written(kind: str) -> None:
    calls = [call("bash", '{ "b":1.0,\n "a" : "\\u00e9\\\\", "n": [1,{"k":"]}"} ] }')]
    assert pieces(parser(kind), MARKUPS[kind].written(calls), 1) == calls


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [kind for kind in MARKUPS if kind not in ("llama", "harmony")])
def test_text_before_a_call_leaves_and_white_space_goes_with_the_markup(kind: str, size: int) -> None:
    calls = [call("bash", '{"command": "ls"}')]
    assert pieces(parser(kind), f"Now. \n{MARKUPS[kind].written(calls)}\n", size) == ["Now.", *calls]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", MARKUPS)
def test_w5_a_call_of_a_tool_that_is_not_on_offer_is_text(kind: str, size: int) -> None:
    written = MARKUPS[kind].written([call("nobody", '{"command": "ls"}')])
    assert pieces(parser(kind), written, size) == [written]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", MARKUPS)
def test_w5_a_call_that_was_cut_off_is_text(kind: str, size: int) -> None:
    whole = MARKUPS[kind].written([call("bash", '{"command": "ls", "n": 1}')])
    cut = whole[: whole.index('"n"') if '"n"' in whole else whole.index("=n")]
    assert pieces(parser(kind), cut, size) == [cut]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("llama", '{"answer": 4, "name": "bash"}'),
        ("llama", '{"name": "bash"}'),
        ("llama", 'Say {"name": "bash", "parameters": {}}'),
        ("llama", '<|python_tag|>search.call(query="x")'),
        ("llama", "{ x } y"),
        ("llama", '{"name": "bash", "parameters": "ls"}'),
        ("llama", '{"name": ["bash"], "parameters": {}}'),
        ("mistral", "[TOOL_CALLS] and so on"),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral", '[TOOL_CALLS][{"name": "bash", "arguments": {}},]'),
        ("mistral", '[TOOL_CALLS][{"name": "bash", "arguments": {}} {"name": "bash"}]'),
        ("mistral", '[TOOL_CALLS][{"name": "bash", "arguments": {}}, {"name": "nobody", "arguments": {}}]'),
        ("mistral_args", '[TOOL_CALLS]bash[ARGS]{"a": x}'),
        ("deepseek", "<｜tool▁calls▁begin｜>nothing"),
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n{x}\n```<｜tool▁call▁end｜>"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>bash<｜tool▁sep｜>ls<｜tool▁call▁end｜>"),
        ("xml", "<tool_call>\n<function=bash>\nls\n</function>\n</tool_call>"),
        ("xml", '<tool_call>\n{"name": "bash"}\n</function>\n</tool_call>'),
        ("xml", "<tool_call>\n<function=bash>\n<parameter=a>\n1\n</function>\n</tool_call>"),
        (
            "xml",
            "<tool_call><function=bash><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        ),
    ],
)
def test_w5_what_is_no_call_is_delivered_as_text_unchanged(kind: str, text: str, size: int) -> None:
    assert pieces(parser(kind), text, size) == [text]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("kind", "text", "arguments"),
    [
        ("llama", '<|python_tag|>{"name": "bash", "parameters": {"a": 1}}', '{"a": 1}'),
        ("llama", '\n{"type": "function", "name": "bash", "parameters": {"a": 1}}\n', '{"a": 1}'),
        ("llama", '{"type": "function", "function": {"name": "bash", "arguments": {"a": 1}}}', '{"a": 1}'),
        ("mistral", '[TOOL_CALLS] [{"arguments": {"a": 1}, "name": "bash", "id": "abcdefghi"}]', '{"a": 1}'),
        ("mistral_args", '[TOOL_CALLS]bash[CALL_ID]abcdefghi[ARGS]{"a": 1}', '{"a": 1}'),
        ("mistral_args", '[TOOL_CALLS]bash{"a": 1}', '{"a": 1}'),
        ("deepseek_v31", '<｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>', '{"a": 1}'),
        ("xml", "<tool_call><function=bash></function></tool_call>", "{}"),
        ("hermes", '<tool_call>{"name": "bash", "parameters": {"a": 1}}</tool_call>', '{"a": 1}'),
    ],
)
def test_looser_layouts_are_understood(kind: str, text: str, arguments: str, size: int) -> None:
    assert pieces(parser(kind), text, size) == [call("bash", arguments)]


@pytest.mark.parametrize(
    ("schema", "value", "written"),
    [
        ({"type": "string"}, "12", '"12"'),
        ({"type": "string"}, '{"a": 1}', '"{\\"a\\": 1}"'),
        ({"type": ["string", "null"]}, "None", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "12", '"12"'),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"type": "integer"}, "12", "12"),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "integer"}, "twelve", '"twelve"'),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "object"}, '{ "a":1 }', '{ "a":1 }'),
        ({}, "12", "12"),
        ({}, "a b", '"a b"'),
        ({}, '"quoted"', '"\\"quoted\\""'),
        ({"type": "string"}, "one\n</parameter>\ntwo\n", '"one\\n</parameter>\\ntwo\\n"'),
        ({"type": "string"}, "", '""'),
    ],
)
def test_bare_values_become_json_by_the_schema(schema: dict[str, Any], value: str, written: str) -> None:
    one = parser("xml", {"f": {"properties": {"x": schema}}})
    text = f"<tool_call>\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert pieces(one, text, 1) == [call("f", f'{{"x": {written}}}')]


def test_a_plain_answer_of_llama_leaves_at_once_and_an_object_when_it_can_be_no_call() -> None:
    assert parser("llama").feed("Hello") == ["Hello"]
    one = parser("llama")
    assert one.feed('{"na') == []
    assert one.feed('tion": ') == ['{"nation":']
    assert one.feed("1}") == [" 1}"]


@pytest.mark.parametrize("kind", [kind for kind in MARKUPS if kind not in ("llama", "harmony")])
def test_only_what_could_be_a_call_is_held_back(kind: str) -> None:
    one = parser(kind)
    mark = FORMS[kind]().opens[-1]
    assert one.feed(f"a <b> {mark[:-1]}") == ["a <b>"]
    assert one.feed("!") == [f" {mark[:-1]}!"]


@settings(max_examples=60)
@given(st.data(), st.sampled_from(sorted(MARKUPS)))
def test_pieces_do_not_depend_on_how_the_text_came_and_none_is_lost(data: st.DataObject, kind: str) -> None:
    one = MARKUPS[kind]
    parts = [one.open, one.begin, one.middle, one.end, one.close, one.between, "bash", "{", "}", '"', "x", " ", "\n"]
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=14)))
    whole = pieces(parser(kind), text, 10_000)
    assert pieces(parser(kind), text, 1) == whole
    if kind != "harmony" and not any(isinstance(piece, ToolCall) for piece in whole):
        assert "".join(piece for piece in whole if isinstance(piece, str)) == text


# Harmony

ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|>"
NEXT = "<|start|>assistant"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("names", [SCHEMAS, {}])
def test_harmony_channels(names: dict[str, Any], size: int) -> None:
    text = f"{ANALYSIS}{NEXT}<|channel|>final<|message|>Four <|x|>."
    assert pieces(parser("harmony", names), text, size) == [Thought(text="Hm."), "Four <|x|>."]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.web.search-2 <|constrain|>json<|message|>",
        " to=functions.web.search-2<|channel|>commentary json<|message|>",
        "<|channel|>analysis to=functions.web.search-2 code<|message|>",
    ],
)
@pytest.mark.parametrize("end", ["<|call|>", ""])
def test_harmony_calls(header: str, end: str, size: int) -> None:
    preamble = f"{NEXT}<|channel|>commentary<|message|>I look.<|end|>"
    text = f"{ANALYSIS}{preamble}{NEXT}{header}" + '{ "q":"<|" }' + end
    expected = [Thought(text="Hm."), "I look.", call("web.search-2", '{ "q":"<|" }')]
    assert pieces(parser("harmony"), text, size) == expected


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "text",
    [
        "no channel at all",
        "<|channel|>final without a message",
        "<|channel|>commentary to=functions.bash <|message|>{x}<|call|>",
        "<|channel|>commentary to=python code<|message|>print()<|call|>",
        "<|channel|>" + "x" * 1000,
    ],
)
def test_w5_broken_harmony_is_text_unchanged(text: str, size: int) -> None:
    assert pieces(parser("harmony"), text, size) == [text]


@pytest.mark.parametrize("names", [["functions.exec"], ["functions.exec", "exec"], ["exec"]])
def test_harmony_calls_of_a_tool_whose_name_begins_as_the_form_does(names: list[str]) -> None:
    for written in ("functions.functions.exec", "functions.exec"):
        text = f"<|channel|>commentary to={written}<|message|>" + "{}<|call|>"
        meant = written.removeprefix("functions.")
        expected = meant if meant in names else "functions.exec"
        found = pieces(parser("harmony", {name: {} for name in names}), text, 3)
        assert found == ([call(expected, "{}")] if expected in names else [text])


def test_harmony_text_and_reasoning_leave_as_they_come() -> None:
    one = parser("harmony")
    assert one.feed("<|channel|>analysis<|message|>Let") == [Thought(text="Let")]
    assert one.feed(" me <|e") == [Thought(text=" me ")]
    assert one.feed("nd|><|start|>assistant<|channel|>final<|message|>Four") == ["Four"]


# Reasoning


def thinking(*, opened: bool, names: Any = SCHEMAS) -> ReasoningParser:
    rest = parser("hermes") if names else PlainParser()
    return ReasoningParser(rest, ("<think>", "</think>"), opened=opened)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("names", [SCHEMAS, {}])
@pytest.mark.parametrize(
    ("opened", "text", "expected"),
    [
        (False, "<think>\nHm.\n\nYes.\n</think>\n\nFour.", [Thought(text="Hm.\n\nYes."), "Four."]),
        (True, "Hm.\n</think>\n\nFour.", [Thought(text="Hm."), "Four."]),
        (True, "\nHm. </thin", [Thought(text="Hm. </thin")]),
        (False, "<think>\n\n</think>\n\nFour.", ["Four."]),
        (False, "\n<think>Hm.", [Thought(text="Hm.")]),
        (False, "Four <think>x</think>", ["Four <think>x</think>"]),
        (False, "<thin", ["<thin"]),
        (False, "</think>Four.", ["</think>Four."]),
        (False, "", []),
        (True, "", []),
    ],
)
def test_reasoning(opened: bool, text: str, expected: list[Piece], names: Any, size: int) -> None:
    assert pieces(thinking(opened=opened, names=names), text, size) == expected


@pytest.mark.parametrize("size", SIZES)
def test_a_call_inside_the_reasoning_is_reasoning_and_one_behind_it_is_a_call(size: int) -> None:
    written = markup.HERMES.written([call("bash", '{"command": "ls"}')])
    text = f"<think>\n{written}\n</think>\n\n{written}"
    assert pieces(thinking(opened=False), text, size) == [Thought(text=written), call("bash", '{"command": "ls"}')]


def test_reasoning_leaves_as_it_comes() -> None:
    one = thinking(opened=True)
    assert one.feed("Let me") == [Thought(text="Let me")]
    assert one.feed(" see\n</th") == [Thought(text=" see")]
    assert one.feed("x") == [Thought(text="\n</thx")]
    assert one.feed("</think>\n\nFour") == ["Four"]


@given(st.text(alphabet="<>/think\n x", max_size=40), st.booleans())
def test_reasoning_does_not_depend_on_how_the_text_came(text: str, opened: bool) -> None:
    assert pieces(thinking(opened=opened), text, 1) == pieces(thinking(opened=opened), text, 10_000)


def test_a_markup_writes_no_calls_as_nothing_and_bare_values_as_text() -> None:
    one: CallMarkup = markup.XML
    assert one.written([]) == ""
    text = one.written([call("f", json.dumps({"a": "x", "b": [1]}))])
    assert "<parameter=a>\nx\n</parameter>" in text and "<parameter=b>\n[1]\n</parameter>" in text
    assert "<parameter=arguments>\n[1]\n</parameter>" in one.written([call("f", "[1]")])
