"""Formats and forced calls through the providers' own SDKs, on a random model that never writes either by itself.

Pins: every SDK's structured answer parses into what was asked for, streamed or not; a demanded call is one, of a tool
that may be called and with arguments of its schema; what cannot be enforced is a 400 in the provider's shape before
anything streams (W10); the record holds the tokens, the policy's own logprobs and those of what was left (L5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pytest
import torch
from google import genai
from google.genai import errors as genai_errors
from google.genai import types
from pydantic import BaseModel, ConfigDict, Field
from tests.e2e.conftest import tiny_folder
from tests.unit.renderers.family_fixtures import fixture_renderer
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.engines.embedded import models
from practicum.engines.embedded.sampler import EmbeddedSampler
from practicum.engines.scripted import ScriptedSampler
from practicum.renderers import ByteTokenizer, HubTokenizer, Renderer

__all__ = ["tiny_folder"]
HI: list[Any] = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"path": {"enum": ["a.txt", "ü.txt"]}, "lines": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["path", "lines"],
    "additionalProperties": False,
}
NAMES = ("read", "list_all")
CHAT_TOOLS: list[Any] = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
FLAT_TOOLS: list[Any] = [{"type": "function", "name": name, "parameters": SCHEMA} for name in NAMES]
CLAUDE_TOOLS: list[Any] = [{"name": name, "input_schema": SCHEMA} for name in NAMES]
LONG = 3000  # beyond the longest that these schemas allow: not every API takes a seed
WRONG = {"type": "object", "properties": {"a": {"type": "wat"}}}


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["à", "b"]
    count: int = Field(ge=0, le=99)


class Plan(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ready: bool
    parts: list[Part] = Field(max_length=2)
    note: Literal["x"] | None


class Verdict(BaseModel):
    """Without bounds: Anthropic's SDK leaves them out of the schema that it sends."""

    model_config = ConfigDict(extra="forbid")
    ready: bool
    kind: Literal["à", "b"]
    note: Literal["x"] | None


def random_llama(vocabulary: int) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def random_model() -> Iterator[EmbeddedSampler]:
    """A random Llama over bytes."""
    sampler = EmbeddedSampler(random_llama(259), tokenizer=ByteTokenizer())
    yield sampler
    sampler.close()


@pytest.fixture
def served(start: Any, random_model: EmbeddedSampler) -> Any:
    return start(random_model)


def claude(up: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=up.url, api_key=up.key, max_retries=0, timeout=30)


def google(up: Any) -> genai.Client:
    return genai.Client(api_key=up.key, http_options=types.HttpOptions(base_url=up.url, timeout=30_000))


def is_recorded(up: Any) -> None:
    """The last call: recomputed raw logprobs, and others where the constraint left less."""
    call = up.calls()[-1]
    assert call.status == "complete" and call.untrainable_reason is None
    scored = up.sampler.score(call.prompt_ids, call.completion_ids, version=0, temperature=call.temperature)
    assert call.logprobs == pytest.approx(scored, abs=1e-4)
    pairs = list(zip(call.sampled_logprobs, call.logprobs, strict=True))
    assert all(left >= raw - 1e-6 for left, raw in pairs) and any(left == 0.0 and raw < -0.1 for left, raw in pairs)


def test_openai_chat_parses_into_a_model(served: Any) -> None:
    client = served.openai()
    ask: dict[str, Any] = {"model": "practicum", "messages": HI, "max_tokens": LONG, "response_format": Plan}
    done = client.chat.completions.parse(seed=1, **ask)
    assert isinstance(done.choices[0].message.parsed, Plan) and done.choices[0].finish_reason == "stop"
    is_recorded(served)
    with client.chat.completions.stream(seed=2, **ask) as events:
        assert isinstance(events.get_final_completion().choices[0].message.parsed, Plan)
    plain = client.chat.completions.create(
        model="practicum", messages=HI, max_tokens=9, extra_body={"guided_choice": ["ja", "nein"]}
    )
    assert plain.choices[0].message.content in ("ja", "nein")
    raw = client.completions.create(
        model="practicum", prompt="Hi", max_tokens=9, extra_body={"structured_outputs": {"regex": "[0-9]{4}"}}
    )
    assert len(raw.choices[0].text) == 4 and raw.choices[0].text.isdecimal()


def test_openai_responses_parse_into_a_model(served: Any) -> None:
    client = served.openai()
    ask: dict[str, Any] = {"model": "practicum", "input": HI, "max_output_tokens": LONG, "text_format": Plan}
    assert isinstance(client.responses.parse(**ask).output_parsed, Plan)
    is_recorded(served)
    with client.responses.stream(**ask) as events:
        assert isinstance(events.get_final_response().output_parsed, Plan)


def test_anthropic_parses_into_a_model(served: Any) -> None:
    client = claude(served)
    ask: dict[str, Any] = {"model": "practicum", "messages": HI, "max_tokens": LONG, "output_format": Verdict}
    done = client.messages.parse(**ask)
    assert isinstance(done.parsed_output, Verdict) and done.stop_reason == "end_turn"
    is_recorded(served)
    with client.messages.stream(**ask) as events:
        assert isinstance(events.get_final_message().parsed_output, Verdict)


def test_google_parses_into_a_model(served: Any) -> None:
    client = google(served)
    for schema in ({"response_schema": Plan}, {"response_json_schema": Plan.model_json_schema()}):
        config = types.GenerateContentConfig(
            response_mime_type="application/json", max_output_tokens=LONG, seed=1, **schema
        )
        done = client.models.generate_content(model="practicum", contents="Hi", config=config)
        assert isinstance(Plan.model_validate(json.loads(done.text)), Plan)
    assert isinstance(done.parsed, dict)
    is_recorded(served)
    stream = client.models.generate_content_stream(model="practicum", contents="Hi", config=config)
    Plan.model_validate_json("".join(chunk.text or "" for chunk in stream))
    enum = types.GenerateContentConfig(
        response_mime_type="text/x.enum", response_schema={"type": "STRING", "enum": ["Ja", "Nein"]}
    )
    assert client.models.generate_content(model="practicum", contents="Hi", config=enum).text in ("Ja", "Nein")


def is_of_the_schema(arguments: dict[str, Any]) -> bool:
    return arguments["path"] in ("a.txt", "ü.txt") and arguments["lines"] in range(1, 10) and len(arguments) == 2


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", NAMES), ({"type": "function", "function": {"name": "list_all"}}, ("list_all",))],
    ids=["required", "named"],
)
def test_openai_chat_is_made_to_call(served: Any, choice: Any, names: tuple[str, ...]) -> None:
    ask: dict[str, Any] = {"model": "practicum", "messages": HI, "tools": CHAT_TOOLS, "max_tokens": LONG}
    client = served.openai()
    done = client.chat.completions.create(tool_choice=choice, parallel_tool_calls=False, **ask).choices[0]
    (call,) = done.message.tool_calls
    assert done.finish_reason == "tool_calls" and not done.message.content and call.function.name in names
    assert is_of_the_schema(json.loads(call.function.arguments))
    is_recorded(served)
    with client.chat.completions.stream(tool_choice=choice, seed=3, **ask) as events:
        several = events.get_final_completion().choices[0].message
    assert several.tool_calls and not several.content
    assert all(is_of_the_schema(json.loads(call.function.arguments)) for call in several.tool_calls)
    assert {call.function.name for call in several.tool_calls} <= set(names)


def test_openai_responses_are_made_to_call(served: Any) -> None:
    ask: dict[str, Any] = {"model": "practicum", "input": HI, "tools": FLAT_TOOLS, "max_output_tokens": LONG}
    only = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "read"}]}
    for choice in ({"type": "function", "name": "read"}, only):
        done = served.openai().responses.create(tool_choice=choice, parallel_tool_calls=False, **ask)
        (call,) = done.output
        assert call.name == "read" and is_of_the_schema(json.loads(call.arguments))


def test_a_free_form_call_is_made_and_follows_a_regular_expression(served: Any) -> None:
    """A Lark grammar is told to the model only: the call is made, and its text is whatever it is."""
    regex = {"type": "grammar", "syntax": "regex", "definition": '[ab"\n]{3}|é'}
    lark = {"type": "grammar", "syntax": "lark", "definition": "start: /[0-9]{3}/"}
    short: dict[str, Any] = {"model": "practicum", "input": HI, "max_output_tokens": 400}
    tools = [{"type": "namespace", "name": "n", "tools": [
        {"type": "custom", "name": "free", "format": regex}, {"type": "custom", "name": "told", "format": lark},
    ]}]  # fmt: skip
    client = served.openai()
    for _ in range(3):
        (call,) = client.responses.create(tools=tools, tool_choice={"type": "custom", "name": "free"}, **short).output
        assert (call.type, call.namespace, call.name) == ("custom_tool_call", "n", "free")
        assert re.fullmatch(regex["definition"], call.input)
        is_recorded(served)
    wrapped = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{2}"}}
    done = client.chat.completions.create(
        model="practicum", messages=HI, max_tokens=LONG,
        tools=[{"type": "custom", "custom": {"name": "free", "format": wrapped}}, *CHAT_TOOLS],
        tool_choice={"type": "custom", "custom": {"name": "free"}},
    )  # fmt: skip
    (call,) = done.choices[0].message.tool_calls
    assert re.fullmatch("[0-9]{2}", call.custom.input)
    ahead = {"type": "custom", "name": "free", "format": {**regex, "definition": "(?=a)a"}}
    with pytest.raises(openai.BadRequestError, match=r"cannot be enforced.*look-around"):
        client.responses.create(tools=[ahead], tool_choice="required", **short)
    assert client.responses.create(tools=[ahead], **short).output


def test_anthropic_is_made_to_call(served: Any) -> None:
    ask: dict[str, Any] = {"model": "practicum", "messages": HI, "tools": CLAUDE_TOOLS, "max_tokens": LONG}
    done = claude(served).messages.create(tool_choice={"type": "any", "disable_parallel_tool_use": True}, **ask)
    (call,) = done.content
    assert done.stop_reason == "tool_use" and call.name in NAMES and is_of_the_schema(call.input)
    with claude(served).messages.stream(tool_choice={"type": "tool", "name": "read"}, **ask) as events:
        calls = events.get_final_message().content
    assert calls and all(call.name == "read" and is_of_the_schema(call.input) for call in calls)


def test_google_is_made_to_call(served: Any) -> None:
    declared = [types.FunctionDeclaration(name=name, parameters_json_schema=SCHEMA) for name in NAMES]
    calling = types.FunctionCallingConfig(mode="ANY", allowed_function_names=["read"])
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=declared)], max_output_tokens=LONG,
        tool_config=types.ToolConfig(function_calling_config=calling),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )  # fmt: skip
    client = google(served)
    calls = client.models.generate_content(model="practicum", contents="Hi", config=config).function_calls
    assert calls and all(call.name == "read" and is_of_the_schema(call.args) for call in calls)


def test_json_is_demanded_of_an_agent_that_may_still_call_its_tools(served: Any) -> None:
    client = served.openai()
    kinds = set()
    for seed in range(12):
        done = client.chat.completions.parse(
            model="practicum", messages=HI, tools=[_strict(CHAT_TOOLS[0])], response_format=Plan, seed=seed,
            max_tokens=LONG,
        )  # fmt: skip
        message = done.choices[0].message
        kinds.add("call" if message.tool_calls else "json")
        assert message.tool_calls or isinstance(message.parsed, Plan)
    assert kinds == {"call", "json"}


def _strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


def test_a_tokenizer_with_merges_keeps_to_the_constraint(start: Any, tiny_folder: Path) -> None:
    torch.set_num_threads(1)
    model, _ = models.load(tiny_folder)
    tokenizer = HubTokenizer.from_folder(tiny_folder)
    sampler = EmbeddedSampler(model, tokenizer=tokenizer)
    up = start(sampler, renderer=Renderer.from_folder(tiny_folder, tokenizer))
    client = up.openai()
    small = {"type": "object", "properties": {"the": {"enum": ["answer", "ü"]}}, "required": ["the"],
             "additionalProperties": False}  # fmt: skip
    tool: Any = {"type": "function", "function": {"name": "ls", "parameters": small}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": small, "strict": True}}
    for seed in range(5):
        ask: dict[str, Any] = {"model": "practicum", "messages": HI, "seed": seed}
        done = client.chat.completions.create(response_format=form, **ask)
        assert json.loads(done.choices[0].message.content)["the"] in ("answer", "ü")
    done = client.chat.completions.create(tools=[tool], tool_choice="required", parallel_tool_calls=False, seed=1,
                                          model="practicum", messages=[{"role": "user", "content": ""}])  # fmt: skip
    (call,) = done.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["the"] in ("answer", "ü")
    is_recorded(up)
    sampler.close()


@pytest.mark.parametrize("family", ["gptoss", "llama3", "mistral", "mistral_args", "deepseek_v31"])
def test_a_call_is_forced_in_the_familys_own_form(start: Any, family: str) -> None:
    renderer = fixture_renderer(family)
    sampler = EmbeddedSampler(random_llama(renderer.tokenizer.vocab_size), tokenizer=renderer.tokenizer)
    client = start(sampler, renderer=renderer).openai()
    ask: dict[str, Any] = {"model": "practicum", "messages": HI, "tools": CHAT_TOOLS, "max_tokens": LONG}
    choice: Any = {"type": "function", "function": {"name": "read"}}
    done = client.chat.completions.create(tool_choice=choice, seed=1, **ask).choices[0]
    (call,) = done.message.tool_calls
    assert (call.function.name, done.finish_reason) == ("read", "tool_calls") and not done.message.content
    assert is_of_the_schema(json.loads(call.function.arguments))
    sampler.close()


@pytest.mark.parametrize(("family", "calls"), [("deepseek_r1", False), ("gptoss", True)])
def test_a_format_that_would_stand_inside_the_reasoning_is_refused(start: Any, family: str, calls: bool) -> None:
    client = start(ScriptedSampler(), renderer=fixture_renderer(family)).openai()
    ask: dict[str, Any] = {"model": "practicum", "messages": HI, "max_tokens": 9}
    with pytest.raises(openai.BadRequestError) as form:
        client.chat.completions.create(response_format={"type": "json_object"}, **ask)
    assert form.value.param == "response_format" and "reasoning" in str(form.value)
    if not calls:  # a family whose calls begin a message of their own can be made to call
        with pytest.raises(openai.BadRequestError) as call:
            client.chat.completions.create(tools=CHAT_TOOLS, tool_choice="required", **ask)
        assert call.value.param == "tool_choice"


@pytest.mark.parametrize("stream", [True, False])
def test_w10_a_schema_that_cannot_be_enforced_is_a_400_in_each_shape(served: Any, stream: bool) -> None:
    client = served.openai()
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": WRONG}}
    with pytest.raises(openai.BadRequestError) as chat:
        client.chat.completions.create(model="practicum", messages=HI, response_format=form, stream=stream)
    assert chat.value.param == "response_format.json_schema.schema" and "Invalid type: wat" in str(chat.value)
    with pytest.raises(openai.BadRequestError) as response:
        client.responses.create(
            model="practicum", input="Hi", stream=stream,
            text={"format": {"type": "json_schema", "name": "x", "schema": WRONG}},
        )  # fmt: skip
    assert response.value.param == "text.format.schema"
    with pytest.raises(openai.BadRequestError) as raw:
        client.completions.create(model="practicum", prompt="Hi", stream=stream, extra_body={"guided_regex": "("})
    assert raw.value.param == "guided_regex"
    with pytest.raises(anthropic.BadRequestError) as messages:
        claude(served).messages.create(
            model="practicum", max_tokens=9, messages=HI, stream=stream,
            output_config={"format": {"type": "json_schema", "schema": WRONG}},
        )  # fmt: skip
    assert "output_config.format.schema" in str(messages.value)
    config = types.GenerateContentConfig(response_mime_type="application/json", response_json_schema=WRONG)
    method = "generate_content_stream" if stream else "generate_content"
    theirs = google(served)  # kept: it closes its connections when it is dropped
    with pytest.raises(genai_errors.ClientError) as gemini:
        list(getattr(theirs.models, method)(model="practicum", contents="Hi", config=config))
    assert gemini.value.code == 400 and "generationConfig.responseJsonSchema" in str(gemini.value)
    calls = served.calls()
    assert len(calls) == 5 and all(call.status == "failed" and not call.completion_ids for call in calls)
    assert served.http().get("/readyz").status_code == 200


def test_a_scripted_server_answers_in_the_format_and_with_the_call(start: Any) -> None:
    up = start(ScriptedSampler())
    client = up.openai()
    parsed = client.chat.completions.parse(model="practicum", messages=HI, response_format=Plan)
    assert isinstance(parsed.choices[0].message.parsed, Plan)
    done = client.chat.completions.create(
        model="practicum", messages=HI, tools=CHAT_TOOLS,
        tool_choice={"type": "function", "function": {"name": "list_all"}},
    )  # fmt: skip
    (call,) = done.choices[0].message.tool_calls
    assert call.function.name == "list_all" and is_of_the_schema(json.loads(call.function.arguments))
    assert up.calls()[-1].untrainable_reason == "a sampled token has no logprob"
