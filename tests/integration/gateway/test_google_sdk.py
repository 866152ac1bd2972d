"""The `google-genai` SDK against a whole server: every kind of answer, streamed and not, errors, counts and models."""

from __future__ import annotations

from typing import Any

import pytest
from google import genai
from google.genai import errors, types
from tests.integration.gateway.answers import ANSWERS, CALLS, SCHEMA, cases, sampled, sampler
from tests.integration.gateway.thinking import ThinkingRenderer

from practicum.engines.scripted import ScriptedSampler, Step, play

START = Any
ENDS = {"length": types.FinishReason.MAX_TOKENS}


@pytest.fixture
def client_of() -> Any:
    kept = []  # a client closes its connections when it is dropped

    def make(up: Any, key: str | None = None) -> genai.Client:
        kept.append(
            genai.Client(api_key=key or up.key, http_options=types.HttpOptions(base_url=up.url, timeout=20_000))
        )
        return kept[-1]

    return make


def config(name: str, include_thoughts: bool = True) -> types.GenerateContentConfig:
    case = ANSWERS[name]
    tool = types.Tool(
        function_declarations=[
            types.FunctionDeclaration(name=name, description="d", parameters_json_schema=SCHEMA) for name, _ in CALLS
        ]
    )
    mode = types.FunctionCallingConfigMode.AUTO if case.may_call else types.FunctionCallingConfigMode.NONE
    return types.GenerateContentConfig(
        max_output_tokens=case.max_tokens,
        stop_sequences=[case.stop] if case.stop else None,
        thinking_config=types.ThinkingConfig(include_thoughts=include_thoughts),
        tools=[tool] if case.tools else None,
        tool_config=types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode=mode)),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )


def answered(client: genai.Client, stream: bool, **asked: Any) -> list[types.GenerateContentResponse]:
    ask = {"model": "practicum", "contents": "Hi", **asked}
    if stream:
        return list(client.models.generate_content_stream(**ask))
    return [client.models.generate_content(**ask)]


def parts_of(replies: list[types.GenerateContentResponse]) -> list[types.Part]:
    return [part for reply in replies for part in reply.candidates[0].content.parts]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", cases("gemini"))
def test_w1_w5_w21_every_answer(start: START, client_of: Any, name: str, stream: bool) -> None:
    up, case = start(sampler(name), renderer=ThinkingRenderer()), ANSWERS[name]
    replies = answered(client_of(up), stream, config=config(name))
    parts = parts_of(replies)
    assert "".join(part.text for part in parts if part.text and not part.thought) == case.text
    assert "".join(part.text for part in parts if part.thought) == case.thought
    assert tuple((p.function_call.name, p.function_call.args) for p in parts if p.function_call) == case.calls
    assert any(part.thought_signature for part in parts) == bool(case.thought)
    assert replies[-1].candidates[0].finish_reason == ENDS.get(case.end, types.FinishReason.STOP)
    prompt, completion, thoughts = sampled(up.calls()[0])
    usage = replies[-1].usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count) == (prompt, completion - thoughts)
    assert (usage.thoughts_token_count or 0) == thoughts and usage.total_token_count == prompt + completion


@pytest.mark.parametrize("stream", [True, False])
def test_thoughts_that_are_not_asked_for_come_back_sealed(start: START, client_of: Any, stream: bool) -> None:
    up = start(sampler("a thought and calls"), renderer=ThinkingRenderer())
    client = client_of(up)  # kept: the chat holds none
    chat = client.chats.create(model="practicum", config=config("a thought and calls", include_thoughts=False))
    send = (lambda message: list(chat.send_message_stream(message))) if stream else lambda m: [chat.send_message(m)]
    parts = parts_of(send("Hi"))
    assert not any(part.thought for part in parts)
    results = [
        types.Part(
            function_response=types.FunctionResponse(id=p.function_call.id, name=p.function_call.name, response={})
        )
        for p in parts
        if p.function_call
    ]
    send(results)
    first, second = up.calls()
    assert second.parent_call_id == first.call_id and second.fork_reason is None
    history = up.store.calls()[1].request["contents"]
    assert any("thoughtSignature" in part for part in history[1]["parts"])


@pytest.mark.parametrize("stream", [True, False])
def test_w10_w16_w17_errors(start: START, client_of: Any, stream: bool) -> None:
    up = start(ScriptedSampler(play([Step(fail="the engine burns")]), context_length=150))
    client = client_of(up)
    wrong: list[tuple[type[errors.APIError], int, str, str, dict[str, Any]]] = [
        (errors.ClientError, 400, "INVALID_ARGUMENT", "candidateCount", {"config": {"candidate_count": 2}}),
        (errors.ClientError, 404, "NOT_FOUND", "gemini-x", {"model": "gemini-x"}),
        (errors.ClientError, 400, "INVALID_ARGUMENT", "exceeds the maximum number", {"contents": "x" * 200}),
        (errors.ServerError, 503, "UNAVAILABLE", "the engine burns", {}),
    ]
    for kind, code, status, words, fields in wrong:
        with pytest.raises(kind, match=words) as caught:
            answered(client, stream, **fields)
        assert (caught.value.code, caught.value.status) == (code, status)
    with pytest.raises(errors.ClientError) as caught:
        answered(client_of(up, "nobody"), stream)
    assert (caught.value.code, caught.value.status) == (401, "UNAUTHENTICATED")


def test_w17_an_engine_that_fails_inside_a_stream(start: START, client_of: Any) -> None:
    up = start(ScriptedSampler(play([Step(content="half", fail="it burns")])))
    with pytest.raises(errors.APIError, match="it burns"):
        answered(client_of(up), True)
    assert up.calls()[0].status == "failed"


def test_w12_counts_and_models(up: Any, client_of: Any) -> None:
    client = client_of(up)
    counted = client.models.count_tokens(model="practicum", contents="Hi")
    answered(client, False)
    assert counted.total_tokens == len(up.calls()[0].prompt_ids)
    assert [model.name for model in client.models.list()] == ["models/practicum", "models/practicum@0"]
    assert client.models.get(model="practicum@0").name == "models/practicum@0"
    with pytest.raises(errors.ClientError) as caught:
        client.models.get(model="gemini-x")
    assert caught.value.code == 404
