"""The sampler without a model."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from practicum.engines.scripted import ScriptedSampler, letters, read_script
from practicum.errors import ConfigError, EngineError, NotFound
from practicum.renderers import ByteTokenizer, Renderer
from practicum.types.messages import Message, ToolSpec
from practicum.types.tokens import SampleRequest, SamplingParams, TokenChunk

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
