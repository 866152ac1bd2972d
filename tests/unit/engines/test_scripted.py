"""The sampler without a model."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from practicum.engines.scripted import ScriptedCall, ScriptedSampler, Step, letters, play, read_script
from practicum.errors import ConfigError, EngineError, NotFound, RequestError
from practicum.renderers import ByteTokenizer, Renderer
from practicum.types.messages import Message, ToolSpec
from practicum.types.tokens import Constraint, SampleRequest, SamplingParams, TokenChunk

RENDERER = Renderer(ByteTokenizer())
ASK = [Message(role="user", content="Go.")]


def request(messages: list[Message] = ASK, tools: tuple[ToolSpec, ...] = (), **fields: object) -> SampleRequest:
    params = SamplingParams(max_tokens=int(str(fields.pop("max_tokens", 4096))))
    prompt = tuple(RENDERER.render(messages, tools))
    return SampleRequest(request_id="r", prompt_ids=prompt, version=int(str(fields.pop("version", 0))), params=params)


async def chunks(sampler: ScriptedSampler, asked: SampleRequest) -> list[TokenChunk]:
    return [chunk async for chunk in sampler.sample(asked)]


async def text(sampler: ScriptedSampler, asked: SampleRequest) -> str:
    ids = [token for chunk in await chunks(sampler, asked) for token in chunk.ids]
    return RENDERER.tokenizer.decode(ids)


async def test_it_calls_one_of_the_requests_own_tools_and_then_speaks() -> None:
    tool = ToolSpec(
        name="mcp.look-up", parameters={
            "type": "object",
            "properties": {"q": {"type": "string"}, "n": {"type": "integer", "minimum": 3}, "x": {"enum": ["a"]},
                           "optional": {"type": "string"}},
            "required": ["q", "n", "x"],
        },
    )  # fmt: skip
    sampler = ScriptedSampler()
    called = await text(sampler, request(tools=(tool,)))
    block = json.loads(called.partition("<tool_call>")[2].partition("</tool_call>")[0])
    assert block == {"name": "mcp.look-up", "arguments": {"q": "q", "n": 3, "x": "a"}}
    after = [*ASK, Message(role="assistant", content="…"), Message(role="tool", content="forty-two")]
    assert "forty-two" in await text(sampler, request(after, (tool,)))


async def test_a_shell_is_preferred_and_only_echoes() -> None:
    tools = (
        ToolSpec(name="other", parameters={"type": "object", "properties": {}}),
        ToolSpec(name="bash", parameters={"type": "object", "properties": {"command": {"type": "string"}}}),
    )
    assert '{"name": "bash", "arguments": {"command": "echo scripted"}}' in await text(
        ScriptedSampler(), request(tools=tools)
    )


async def test_the_last_token_is_the_stop_id_and_carries_the_reason() -> None:
    out = await chunks(ScriptedSampler(), request())
    assert out[-1].ids == (ByteTokenizer.END,) and out[-1].finish_reason == "stop"
    assert all(chunk.finish_reason is None for chunk in out[:-1])
    cut = await chunks(ScriptedSampler(), request(max_tokens=5))
    assert len(cut) == 5 and cut[-1].finish_reason == "length"


async def test_a_script_is_played_by_the_number_of_answers(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text('[{"content": "one"}, {"tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}]}]')
    sampler = ScriptedSampler.from_spec(f"scripted:{file}")
    history = [*ASK]
    seen = []
    for _ in range(3):
        seen.append(await text(sampler, request(history)))
        history += [Message(role="assistant", content=seen[-1].removesuffix("<|im_end|>")), *ASK]
    assert seen[0] == "one<|im_end|>" and '"command": "ls"' in seen[1] and "2 steps" in seen[2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "JSON"),
        ("{}", "list"),
        ('[{"text": "x"}]', "step 0.text"),
        ('[{}, {"tool_calls": [{}]}]', "1.tool_calls.0.name"),
        ('[{"delay_s": -1}]', "0.delay_s"),
    ],
)
def test_errors_in_a_script_say_where(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_script(file)
    assert words in str(caught.value) and "script.json" in str(caught.value)


def test_a_missing_script_and_another_spec_are_configuration_errors(tmp_path: Path) -> None:
    for spec in (f"scripted:{tmp_path}/none.json", "other"):
        with pytest.raises(ConfigError):
            ScriptedSampler.from_spec(spec)


async def test_versions_are_loaded_before_they_are_sampled_and_tag_each_token() -> None:
    sampler = ScriptedSampler(letters(4))
    with pytest.raises(NotFound):
        await chunks(sampler, request(version=2))
    await sampler.load(2, None, "d")
    out = await chunks(sampler, request(version=2))
    assert {chunk.version for chunk in out} == {2}
    assert await text(sampler, request(version=2)) == "cccc<|im_end|>"


async def test_its_logprobs_are_true() -> None:
    sampler = ScriptedSampler(letters(2))
    prompt = request().prompt_ids
    assert await sampler.logprobs(prompt, (97, 97, 257), version=0) == [0.0, 0.0, 0.0]
    assert await sampler.logprobs(prompt, (97, 98, 97), version=0) == [0.0, -math.inf, -math.inf]


async def test_cancellation_leaves_nothing_running() -> None:
    sampler = ScriptedSampler(per_token_delay_s=60)
    task = asyncio.create_task(chunks(sampler, request()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sampler.running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sampler.running == 0


async def test_a_step_may_fail(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text('[{"content": "half", "fail": "the engine burns"}]')
    with pytest.raises(EngineError, match="burns"):
        await chunks(ScriptedSampler.from_spec(f"scripted:{file}"), request())


def bound(constraint: Constraint, tools: tuple[ToolSpec, ...] = ()) -> SampleRequest:
    asked = request(tools=tools)
    return replace(asked, stop_ids=RENDERER.stop_ids, params=replace(asked.params, constraint=constraint))


BASH = ToolSpec(name="bash", parameters={"type": "object", "properties": {"command": {"type": "string"}}})
TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
CODED = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}$"}, "part": {"$ref": "#/$defs/part"}},
    "required": ["code", "part"],
    "$defs": {"part": {"type": "array", "items": {"type": "string", "minLength": 2}, "minItems": 2}},
}


@pytest.mark.parametrize(
    ("script", "constraint", "expected"),
    [
        ('{"own": [1]}', Constraint(kind="json_object"), '{"own": [1]}'),
        ("no JSON", Constraint(kind="json_object"), "{}"),
        ("no JSON", Constraint(kind="json_schema", text=json.dumps(TITLE)), '{"title": "title"}'),
        ('{"title": 5}', Constraint(kind="json_schema", text=json.dumps(TITLE)), '{"title": "title"}'),
        ("x", Constraint(kind="json_schema", text=json.dumps(CODED)), '{"code":"AAA","part":["aa","aa"]}'),
        ("x", Constraint(kind="regex", text="[A-Z]{2}-[0-9]+"), "AA-0"),
        ("no", Constraint(kind="grammar", text='start: "yes" | "no"'), "no"),
    ],
)
async def test_under_a_constraint_it_says_what_matches(script: str, constraint: Constraint, expected: str) -> None:
    out = await chunks(ScriptedSampler(play([Step(content=script)])), bound(constraint))
    said = RENDERER.tokenizer.decode([token for chunk in out for token in chunk.ids])
    assert said == expected + "<|im_end|>" and out[-1].finish_reason == "stop"
    own = script == expected
    assert {chunk.logprobs for chunk in out} == {(0.0,) if own else (None,)}  # unknown is never 0.0
    assert {chunk.sampled_logprobs for chunk in out} == {(0.0,)}


async def test_a_forced_call_is_the_scripts_own_or_else_the_least_that_is_one() -> None:
    number = ToolSpec(
        name="num", parameters={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    )
    script = Step(content="I look.", tool_calls=[ScriptedCall(name="bash", arguments={"command": "ls"})])
    for tools, name, arguments in (((BASH, number), "bash", {"command": "ls"}), ((number,), "num", {"n": 0})):
        forced = RENDERER.call_constraint(tools, several=True, answer=None, source="tool_choice")
        said = await text(ScriptedSampler(play([script])), bound(forced, (BASH, number)))
        assert said.startswith("<tool_call>\n") and said.endswith("\n</tool_call><|im_end|>")
        assert json.loads(said.split("\n")[1]) == {"name": name, "arguments": arguments}


async def test_a_constraint_that_cannot_be_met_is_refused_before_the_first_token() -> None:
    wrong = Constraint(kind="json_schema", text='{"type": "wat"}', source="response_format")
    with pytest.raises(RequestError) as caught:
        await anext(ScriptedSampler().sample(bound(wrong)))
    assert caught.value.param == "response_format"


def one_tool(name: str, *required: str, **kinds: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    return ToolSpec(
        name=name, parameters={"type": "object", "properties": properties, "required": list(required or kinds)}
    )


@pytest.mark.parametrize(
    ("tools", "name", "arguments"),
    [
        ((one_tool("read", path="string"), one_tool("run", command="string", description="string")), "run",
         {"command": "echo 'hi you' > a/b.txt", "description": "description"}),
        ((one_tool("exec", cmd="array"),), "exec", {"cmd": ["sh", "-c", "echo 'hi you' > a/b.txt"]}),
        ((one_tool("write", file_path="string", content="string"),), "write",
         {"file_path": "a/b.txt", "content": "hi you\n"}),
    ],
)  # fmt: skip
async def test_it_writes_a_file_with_the_tool_that_there_is(
    tools: tuple[ToolSpec, ...], name: str, arguments: dict[str, object]
) -> None:
    sampler = ScriptedSampler.from_spec("scripted:write:a/b.txt=hi you")
    called = await text(sampler, request(tools=tools))
    block = json.loads(called.partition("<tool_call>")[2].partition("</tool_call>")[0])
    assert block == {"name": name, "arguments": arguments}
    done = [*ASK, Message(role="assistant", content="…"), Message(role="tool", content="")]
    noted = [*done, Message(role="user", content="<system-reminder>Be brief.</system-reminder>")]
    for after in (done, noted):
        assert await text(sampler, request(after, tools)) == "I wrote a/b.txt.<|im_end|>"
    again = [*done, Message(role="assistant", content="I wrote it."), Message(role="user", content="Again.")]
    assert "<tool_call>" in await text(sampler, request(again, tools))


async def test_a_side_call_without_tools_gets_a_line_and_a_task_that_ends_by_a_command_is_ended() -> None:
    sampler, shell = ScriptedSampler.from_spec("scripted:write:a=b"), one_tool("bash", command="string")
    assert await text(sampler, request()) == "Write a<|im_end|>"
    ending = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    asked = [Message(role="user", content=f"Write it, then run `{ending}`.")]
    assert "echo b > a" in await text(sampler, request(asked, (shell,)))
    done = [*asked, Message(role="assistant", content="…"), Message(role="tool", content="")]
    assert f'{{"command": "{ending}"}}' in await text(sampler, request(done, (shell,)))


def test_a_misspelt_kind_of_script_is_not_taken_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no kind of script 'wirte'.*scripted:write:PATH=TEXT"):
        ScriptedSampler.from_spec("scripted:wirte:a=b")
    file = tmp_path / "a:b.json"
    file.write_text('[{"content": "x"}]')
    ScriptedSampler.from_spec(f"scripted:{file}")


@pytest.mark.parametrize("spec", ["scripted:write:", "scripted:write:a", "scripted:write:=text"])
def test_a_write_without_a_file_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="scripted:write:PATH=TEXT"):
        ScriptedSampler.from_spec(spec)


@pytest.mark.parametrize(
    "schema",
    [{"properties": 5}, {"properties": {"command": 5}}, {"properties": {"a": {"enum": "x"}}, "required": ["a"]},
     {"properties": {"a": {"anyOf": [5]}}, "required": ["a"]}, {"properties": {"a": {}}, "required": 5},
     {"properties": {"a": {"type": "array", "items": 5}}, "required": ["a"]},
     {"properties": {"a": {"type": "array", "minItems": 10**40}}, "required": ["a"]}],
)  # fmt: skip
async def test_a_schema_that_is_none_is_called_without_arguments(schema: dict[str, Any]) -> None:
    sampler = ScriptedSampler()
    asked = request(tools=(ToolSpec(name="tool", parameters=schema),))
    text = sampler.tokenizer.decode([token async for chunk in sampler.sample(asked) for token in chunk.ids])
    assert '{"name": "tool", "arguments": {}}' in text
