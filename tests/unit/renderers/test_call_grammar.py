"""Forced calls: which texts the grammar takes and which it does not, told by the library that enforces it.

Pins: what the parser reads as a call of the tool with arguments of its schema is taken; everything else is not (W5,
W21); a mark that is a special token is that token.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from practicum.engines.constraints import Constraints
from practicum.errors import RequestError, Unsupported
from practicum.renderers import ByteTokenizer, HubTokenizer, Renderer
from practicum.renderers.call_grammar import CallForm
from practicum.types.messages import Message, ToolCall, ToolSpec
from practicum.types.tokens import Constraint

POINT = {
    "type": "object",
    "$defs": {"n": {"type": "integer"}},
    "properties": {"x": {"$ref": "#/$defs/n"}, "who": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
    "propertyNames": {"pattern": "^[a-z]+$"},  # beyond the engine: left out
}
MOVE = ToolSpec(name="mcp__a.b-2", parameters=POINT)
STOP = ToolSpec(name='st"op 日', parameters={})
JSON = Constraint(
    kind="json_schema", text='{"type": "object", "required": ["t"], "properties": {"t": {"type": "null"}}}'
)
RENDERER = Renderer(ByteTokenizer())


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n</tool_call>'


def takes(constraint: Constraint, text: str) -> bool:
    tokenizer = RENDERER.tokenizer
    return Constraints(tokenizer, tokenizer.vocab_size).matcher(constraint, ()).matches(tokenizer.encode_plain(text))


def forced(*tools: ToolSpec, several: bool = True, answer: Constraint | None = None) -> Constraint:
    return RENDERER.call_constraint(tools, several=several, answer=answer, source="tool_choice")


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (call("mcp__a.b-2", '{"x": 1}'), True),
        (call("mcp__a.b-2", '{\n  "x": -3,\n  "who": "日 </tool_call> \\" <|im_end|>"\n}'), True),
        (call('st"op 日', "{}"), True),
        (call('st"op 日', '{"any": [1]}'), True),
        (call("mcp__a.b-2", '{"x": 1}') + "\n" + call('st"op 日', "{}"), True),
        (call("mcp__a.b-2", '{"x": "1"}'), False),
        (call("mcp__a.b-2", '{"who": "x"}'), False),
        (call("mcp__a.b-2", '{"x": 1, "y": 2}'), False),
        (call("mcp__a.b-2", "[1]"), False),
        (call("rm", "{}"), False),
        ("I will. " + call('st"op 日', "{}"), False),
        (call('st"op 日', "{}") + " Done.", False),
        (call('st"op 日', "{}")[:-1], False),
        ('{"t": null}', False),
        ("", False),
    ],
)
def test_a_forced_answer_is_calls_and_nothing_else(text: str, taken: bool) -> None:
    assert takes(forced(MOVE, STOP), text) is taken
    if taken:
        parser = RENDERER.parser([MOVE.name, STOP.name], str)
        pieces = [*parser.feed(text), *parser.finish()]
        assert pieces and all(isinstance(piece, ToolCall) for piece in pieces)


def test_one_call_where_only_one_is_wanted() -> None:
    one = call('st"op 日', "{}")
    assert takes(forced(STOP, several=False), one) and not takes(forced(STOP, several=False), f"{one}\n{one}")


def test_an_answer_in_json_or_calls_before_it() -> None:
    either = forced(MOVE, answer=JSON)
    assert takes(either, '{"t": null}') and takes(either, call(MOVE.name, '{"x": 1}'))
    assert not takes(either, '{"t": 1}') and not takes(either, call(MOVE.name, '{"x": ""}'))
    assert takes(forced(MOVE, answer=Constraint(kind="json_object")), '{"a": [true]}')


@pytest.mark.parametrize("special", [True, False])
def test_a_mark_that_is_a_token_is_taken_as_that_token_and_a_name_that_spells_one_is_not(special: bool) -> None:
    raw = tokenizers.Tokenizer(
        models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    raw.add_tokens([AddedToken(text, special=special) for text in ("<tool_call>", "</tool_call>")])
    tokenizer = HubTokenizer(raw, eos_ids=frozenset({257}), bos="", eos="<|im_end|>")
    renderer = Renderer(tokenizer)
    name = "<tool_call>" if special else "ls"
    constraint = renderer.call_constraint(
        [ToolSpec(name=name, parameters={})], several=False, answer=None, source="tool_choice"
    )
    matcher = Constraints(tokenizer, tokenizer.vocab_size).matcher(constraint, [257])
    spelled = tokenizer.encode_plain(f'\n{{"name": "{name}", "arguments": {{}}}}\n')
    assert matcher.matches([258, *spelled, 259])
    matcher = Constraints(tokenizer, tokenizer.vocab_size).matcher(constraint, [257])
    assert matcher.matches(raw_ids(raw, call(name, "{}"))) is not special


def raw_ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """A letter a token, marks spelled out."""
    letters = "".join(piece for piece, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text))
    return [tokenizer.token_to_id(letter) for letter in letters]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (CallForm(open="[CALLS][", begin='{"name": "', middle='", "arguments": ', end="}", between=", ", close="]"),
         '[CALLS][{"name": "a\\"b", "arguments": {}}, {"name": "a\\"b", "arguments": {"x": 1}}]'),
        (CallForm(begin="to=functions.", middle=" json: ", end="<|im_end|>", parallel=False),
         'to=functions.a"b json: {}'),
    ],
)  # fmt: skip
def test_another_form_is_one_more_record(form: CallForm, text: str) -> None:
    class Other(Renderer):
        call_form = form

    tool = ToolSpec(name='a"b', parameters={})
    made = Other(ByteTokenizer()).call_constraint([tool], several=True, answer=None, source="tool_choice")
    assert takes(made, text) and not takes(made, text + text)


@pytest.mark.parametrize("parameters", [{"type": "string"}, {"type": ["array", "null"]}])
def test_a_tool_that_takes_no_object_cannot_be_forced(parameters: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        forced(STOP, ToolSpec(name="odd", parameters=parameters))
    assert caught.value.param == "tools" and "'odd'" in caught.value.message


def test_a_family_whose_calls_cannot_be_forced_refuses_by_name() -> None:
    class Unknown(Renderer):
        call_form = None

    with pytest.raises(Unsupported) as caught:
        Unknown(ByteTokenizer()).call_constraint([STOP], several=True, answer=None, source="tool_choice")
    assert (caught.value.param, caught.value.status) == ("tool_choice", 400)


def test_a_call_in_the_history_is_written_as_a_forced_one() -> None:
    history = Message(role="assistant", tool_calls=(ToolCall(id="c", name=MOVE.name, arguments='{"x": 1}'),))
    text = RENDERER.tokenizer.decode(RENDERER.render([Message(role="user"), history]))
    written = text.partition("assistant\n")[2].partition("<|im_end|>")[0]
    assert written == call(MOVE.name, '{"x": 1}') and takes(forced(MOVE), written)
