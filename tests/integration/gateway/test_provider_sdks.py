"""The providers' own SDKs against a whole server: streams, tools, and what the record says.

What is pinned: W2 a tool conversation of two turns is one append-only episode in every dialect and the record names the
dialect; W7 whole event sequences; W10 and W11 refusals in the provider's shape; W12 counts; W17 errors inside streams.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types

from practicum.engines.scripted import ScriptedCall, ScriptedSampler, Step, Turn, play
from practicum.episodes.rows import training_rows

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"name": "bash", "description": "Run a command.", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "name": "bash", "description": "Run a command.", "parameters": SCHEMA}
GEMINI_TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(name="bash", description="Run a command.", parameters_json_schema=SCHEMA)
    ]
)
HI = [{"role": "user", "content": "Hi"}]
START = Any


def tool_then_words(turn: Turn) -> Step:
    if turn.after_tool_result:
        return Step(content="It is done.")
    return Step(content="I look.", tool_calls=[ScriptedCall(name="bash", arguments={"command": "ls", "n": 1.5})])


@pytest.fixture
def agent(start: START) -> Any:
    return start(ScriptedSampler(tool_then_words))


def claude(up: Any, prefix: str = "") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=up.url + prefix, api_key=up.key, max_retries=0, timeout=20)


def google(up: Any, prefix: str = "") -> genai.Client:
    return genai.Client(api_key=up.key, http_options=types.HttpOptions(base_url=up.url + prefix, timeout=20_000))


def is_one_episode(up: Any, dialect: str, session: str | None = None) -> None:
    first, second = up.calls(session)
    assert (first.dialect, second.dialect) == (dialect, dialect)
    assert second.parent_call_id == first.call_id and second.fork_reason is None
    assert (first.finish_reason, second.finish_reason) == ("tool_calls", "stop")
    assert second.episode_id == first.episode_id and (first.kind, second.kind) == ("agent", "agent")
    served = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(served)] == served
    assert len(training_rows([first, second]).rows) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_w2_anthropic_two_turns_are_one_episode(agent: Any, stream: bool) -> None:
    client = claude(agent, "/s/rollout-1")
    ask: dict[str, Any] = {"model": "practicum", "max_tokens": 100, "system": "Be brief.", "tools": [BASH]}

    def turn(messages: list[Any]) -> Any:
        if not stream:
            return client.messages.create(messages=messages, **ask)
        with client.messages.stream(messages=messages, **ask) as events:
            return events.get_final_message()

    first = turn(HI)
    text, call = first.content
    assert (text.text, call.name, call.input) == ("I look.", "bash", {"command": "ls", "n": 1.5})
    assert first.stop_reason == "tool_use" and first.usage.output_tokens == len(agent.calls()[0].completion_ids)
    assert first.usage.input_tokens == len(agent.calls()[0].prompt_ids)
    assert first.id == f"msg_{agent.calls()[0].call_id}"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "hello.txt"}]}
    history = [*HI, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = turn(history)
    assert second.content[0].text == "It is done." and second.stop_reason == "end_turn"
    is_one_episode(agent, "anthropic_messages", "rollout-1")
    assert agent.calls()[0].request["max_tokens"] == 100


@pytest.mark.parametrize("stream", [True, False])
def test_w2_responses_two_turns_are_one_episode(agent: Any, stream: bool) -> None:
    client = agent.openai(prefix="/s/rollout-1")
    ask: dict[str, Any] = {
        "model": "practicum",
        "instructions": "Be brief.",
        "tools": [FUNCTION, {"type": "web_search"}],
    }

    def turn(items: list[Any]) -> Any:
        if not stream:
            return client.responses.create(input=items, **ask)
        with client.responses.stream(input=items, **ask) as events:
            return events.get_final_response()

    first = turn(HI)
    message, call = first.output
    assert message.content[0].text == "I look." and call.name == "bash"
    assert json.loads(call.arguments) == {"command": "ls", "n": 1.5}
    assert first.usage.output_tokens == len(agent.calls()[0].completion_ids) and first.status == "completed"
    assert first.id == f"resp_{agent.calls()[0].call_id}"
    echoed = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "hello.txt"}
    second = turn([*HI, *echoed, output])
    assert second.output_text == "It is done."
    is_one_episode(agent, "openai_responses", "rollout-1")
    assert agent.calls()[0].request["tools"][1] == {"type": "web_search"}


@pytest.mark.parametrize("stream", [True, False])
def test_w2_gemini_two_turns_are_one_episode(agent: Any, stream: bool) -> None:
    config = types.GenerateContentConfig(
        system_instruction="Be brief.",
        tools=[GEMINI_TOOL],
        max_output_tokens=100,
        top_k=40,
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    client = google(agent, "/s/rollout-1")  # kept: it closes its connections when it is dropped
    chat = client.chats.create(model="practicum", config=config)

    def turn(message: Any) -> list[Any]:
        return list(chat.send_message_stream(message)) if stream else [chat.send_message(message)]

    replies = turn("Hi")
    (call,) = [call for reply in replies for call in reply.function_calls or []]
    assert "".join(reply.text or "" for reply in replies) == "I look."
    assert (call.name, call.args) == ("bash", {"command": "ls", "n": 1.5})
    usage = replies[-1].usage_metadata
    assert usage.candidates_token_count == len(agent.calls()[0].completion_ids)
    assert replies[-1].response_id == agent.calls()[0].call_id
    answer = types.FunctionResponse(id=call.id, name="bash", response={"output": "hello.txt"})
    last = turn([types.Part(function_response=answer)])
    assert "".join(reply.text or "" for reply in last) == "It is done."
    assert last[-1].candidates[0].finish_reason == types.FinishReason.STOP
    is_one_episode(agent, "gemini", "rollout-1")


def test_a_conversation_goes_on_in_another_dialect(agent: Any) -> None:
    tools = [{"type": "function", "function": {"name": "bash", "description": "Run a command.", "parameters": SCHEMA}}]
    first = agent.openai().chat.completions.create(model="practicum", messages=HI, tools=tools).choices[0].message
    call = first.tool_calls[0]
    content: list[Any] = [
        {"type": "text", "text": first.content},
        {"type": "tool_use", "id": call.id, "name": "bash", "input": json.loads(call.function.arguments)},
    ]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "hello.txt"}
    claude(agent).messages.create(
        model="practicum",
        max_tokens=9,
        tools=[BASH],
        messages=[*HI, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}],
    )
    one, other = agent.calls()
    assert (one.dialect, other.dialect) == ("openai_chat", "anthropic_messages")
    assert other.parent_call_id == one.call_id and other.fork_reason is None


def events_of(reply: Any) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]


def test_w7_the_events_of_an_anthropic_stream(agent: Any) -> None:
    body = {"model": "practicum", "max_tokens": 200, "messages": HI, "tools": [BASH], "stream": True}
    with agent.http() as http:
        reply = http.post("/v1/messages?beta=true", json=body)
    events = events_of(reply)
    names = [line[7:] for line in reply.text.splitlines() if line.startswith("event: ")]
    assert names == [event["type"] for event in events]
    runs = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert runs == ["message_start", *block, *block, "message_delta", "message_stop"]
    assert events[0]["message"]["usage"]["input_tokens"] == len(agent.calls()[0].prompt_ids)
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_w7_the_events_of_a_responses_stream(agent: Any) -> None:
    body = {"model": "practicum", "input": "Hi", "tools": [FUNCTION], "stream": True}
    with agent.http() as http:
        events = events_of(http.post("/responses", json=body))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"].removeprefix("response.") for event in events]
    runs = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    assert runs == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done


def test_w7_a_gemini_stream_without_alt_is_an_array(agent: Any) -> None:
    with agent.http() as http:
        reply = http.post("/models/practicum:streamGenerateContent", json={"contents": [{"parts": [{"text": "Hi"}]}]})
    chunks = reply.json()
    assert reply.headers["content-type"] == "application/json" and len(chunks) > 2
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP" and chunks[-1]["usageMetadata"]["totalTokenCount"]


def test_w12_counts_are_those_of_the_prompt_and_leave_no_record(agent: Any) -> None:
    counted = claude(agent).messages.count_tokens(model="practicum", messages=HI, tools=[BASH]).input_tokens
    assert agent.calls() == []
    claude(agent).messages.create(model="practicum", max_tokens=5, messages=HI, tools=[BASH])
    assert counted == len(agent.calls()[0].prompt_ids) and agent.calls()[0].kind == "agent"
    client = google(agent)
    assert client.models.count_tokens(model="practicum", contents="Hi").total_tokens > 0


def test_w10_w11_refusals_reach_the_sdks(up: Any) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0"):
        claude(up).messages.create(model="practicum", max_tokens=9, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(openai.BadRequestError) as caught:
        up.openai().responses.create(model="practicum", input="Hi", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    client = google(up)
    config = types.GenerateContentConfig(response_mime_type="text/html")
    with pytest.raises(genai_errors.ClientError, match=r"generationConfig\.responseMimeType") as refused:
        client.models.generate_content(model="practicum", contents="Hi", config=config)
    assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")


def test_unknown_keys_and_models_have_the_providers_errors(up: Any) -> None:
    stranger = anthropic.Anthropic(base_url=up.url, api_key="sk-nobody", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model="practicum", max_tokens=9, messages=HI)
    with pytest.raises(anthropic.NotFoundError):
        claude(up).messages.create(model="claude-x", max_tokens=9, messages=HI)
    client = google(up)
    with pytest.raises(genai_errors.ClientError) as caught:
        client.models.generate_content(model="gemini-x", contents="Hi")
    assert caught.value.status == "NOT_FOUND"
    with up.http() as http:
        assert http.get("/v1/responses", headers={"upgrade": "websocket"}).status_code == 426
        assert http.get("/v1/responses").status_code == 405
        assert http.head("/api/hello").status_code == 200
        assert http.post("/v1beta/models/practicum:fly", json={}).status_code == 404


def test_gemini_takes_its_key_from_the_url(up: Any) -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
    url = f"{up.url}/v1beta/models/practicum:generateContent"
    with httpx.Client(trust_env=False, timeout=20) as http:
        assert http.post(url, params={"key": up.key}, json=body).status_code == 200
        refused = http.post(url, params={"key": "nobody"}, json=body)
    assert refused.json()["error"]["status"] == "UNAUTHENTICATED" and up.key not in json.dumps(up.calls()[0].request)


def test_w16_an_overflow_has_the_words_that_harnesses_compact_at(start: START) -> None:
    up = start(ScriptedSampler(context_length=100))
    long = "x" * 200
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        claude(up).messages.create(model="practicum", max_tokens=9, messages=[{"role": "user", "content": long}])
    with pytest.raises(openai.BadRequestError) as caught:
        up.openai().responses.create(model="practicum", input=long)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    client = google(up)
    with pytest.raises(genai_errors.ClientError, match="exceeds the maximum number of tokens"):
        client.models.generate_content(model="practicum", contents=long)
    assert client.models.count_tokens(model="practicum", contents=long).total_tokens > 200


def test_w17_an_engine_error_inside_a_stream(start: START) -> None:
    up = start(ScriptedSampler(play([Step(content="half", fail="the engine burns")])))
    with pytest.raises(anthropic.APIStatusError, match="burns"):
        list(claude(up).messages.create(model="practicum", max_tokens=9, messages=HI, stream=True))
    events = list(up.openai().responses.create(model="practicum", input="Hi", stream=True))
    assert events[-1].type == "response.failed" and "burns" in events[-1].response.error.message
    client = google(up)
    with pytest.raises(genai_errors.APIError, match="burns"):
        list(client.models.generate_content_stream(model="practicum", contents="Hi"))
    assert {call.status for call in up.calls()} == {"failed"}


def test_w18_a_repeated_key_replays_in_the_callers_dialect(agent: Any) -> None:
    options: dict[str, Any] = {"model": "practicum", "max_tokens": 200, "messages": HI, "tools": [BASH]}
    keyed = {"extra_headers": {"Idempotency-Key": "k1"}}
    first = claude(agent).messages.create(**options, **keyed)
    again = claude(agent).messages.create(**options, **keyed)
    assert again == first and len(agent.calls()) == 1


def test_a_repeat_in_another_dialect_is_a_retry(agent: Any) -> None:
    agent.openai(prefix="/s/a").chat.completions.create(model="practicum", messages=HI)
    claude(agent, "/s/a").messages.create(model="practicum", max_tokens=9, messages=HI)
    first, second = agent.calls("a")
    assert second.kind == "retry", "the session's last call is read through the dialect it came in"
    assert first.dialect == "openai_chat"
