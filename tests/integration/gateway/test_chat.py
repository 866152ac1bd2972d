"""The chat endpoint through the official SDK: what callers see, and what the record says."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from tests.integration.gateway.answers import BROKEN

from practicum.engines.scripted import ScriptedCall, ScriptedSampler, Step, Turn, letters, play
from practicum.episodes.rows import training_rows
from practicum.gateway import Timing
from practicum.types.tokens import SampleRequest, TokenChunk

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
HI = [{"role": "user", "content": "Hi"}]
START = Any


class Gated(ScriptedSampler):
    """Gives a few tokens and the others once `gate` is open."""

    def __init__(self) -> None:
        super().__init__(letters(40))
        self.gate = threading.Event()

    async def sample(self, request: SampleRequest) -> AsyncIterator[TokenChunk]:
        number = 0
        async for chunk in super().sample(request):
            number += 1
            if number > 5:
                await asyncio.to_thread(self.gate.wait, 20)
            yield chunk


def eventually(condition: Callable[[], Any], within_s: float = 10.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("stream", [True, False])
def test_w1_the_record_holds_every_sampled_id_of_a_tool_call(up: Any, stream: bool) -> None:
    answer = up.openai().chat.completions.create(
        model="practicum",
        messages=HI,
        tools=[BASH],
        stream=stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    )
    usage = list(answer)[-1].usage if stream else answer.usage
    (call,) = up.calls()
    assert usage.completion_tokens == len(call.completion_ids) == len(call.logprobs) == len(call.versions)
    assert usage.prompt_tokens == len(call.prompt_ids)
    assert "<tool_call>" in up.renderer.tokenizer.decode(call.completion_ids)
    assert call.completion_ids[-1] in up.renderer.tokenizer.eos_ids
    assert call.untrainable_reason is None and call.request["messages"] == HI


def test_w7_a_stream_has_role_deltas_reason_usage_and_terminator(up: Any) -> None:
    body = {"model": "practicum", "messages": HI, "tools": [BASH], "stream": True}
    with up.http() as http:
        reply = http.post("/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}})
        plain = http.post("/v1/chat/completions", json=body)
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert reply.headers["content-type"].startswith("text/event-stream") and lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[:-1])
    calls = [c["choices"][0]["delta"]["tool_calls"] for c in chunks[:-1] if c["choices"][0]["delta"].get("tool_calls")]
    assert text == "I will use bash." and json.loads(calls[0][0]["function"]["arguments"]) == {
        "command": "echo scripted"
    }
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0
    assert "usage" not in plain.text
    assert {c["id"] for c in chunks} == {f"chatcmpl-{reply.headers['x-practicum-call-id']}"}
    assert {c["model"] for c in chunks} == {"practicum@0"}


def test_bytes_leave_as_tokens_are_sampled(start: START) -> None:
    sampler = Gated()
    up = start(sampler)
    pieces = iter(up.openai().chat.completions.create(model="practicum", messages=HI, stream=True))
    assert [next(pieces).choices[0].delta.content for _ in range(6)] == ["", *"aaaaa"]
    assert up.calls()[0].status == "open", "text arrives while the answer is being sampled, and its record is open"
    sampler.gate.set()
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "a" * 35
    assert up.calls()[0].status == "complete"


def test_the_record_is_durable_before_the_caller_sees_the_end(up: Any) -> None:
    stream = up.openai().chat.completions.create(model="practicum", messages=HI, stream=True)
    for chunk in stream:
        if chunk.choices[0].finish_reason:
            assert up.calls()[0].status == "complete"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_w5_a_malformed_call_is_text_and_the_tokens_are_kept(start: START, text: str, stream: bool) -> None:
    up = start(ScriptedSampler(play([Step(content=text)])))
    answer = up.openai().chat.completions.create(model="practicum", messages=HI, tools=[BASH], stream=stream)
    if stream:
        chunks = list(answer)
        content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        content, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert answer.choices[0].message.tool_calls is None
    (call,) = up.calls()
    assert content == text and reason == "stop"
    assert up.renderer.tokenizer.decode(call.completion_ids) == f"{text}<|im_end|>" and call.untrainable_reason is None


def two_calls(turn: Turn) -> Step:
    both = [ScriptedCall(name="bash", arguments={"command": word}) for word in ("ls", "pwd")]
    return Step(content="Both.", tool_calls=both)


def test_parallel_calls_are_all_delivered_unless_one_was_asked_for(start: START) -> None:
    up = start(ScriptedSampler(two_calls))
    ask = {"model": "practicum", "messages": HI, "tools": [BASH]}
    both = up.openai().chat.completions.create(**ask).choices[0].message.tool_calls
    one = up.openai().chat.completions.create(**ask, parallel_tool_calls=False).choices[0].message.tool_calls
    assert [json.loads(call.function.arguments)["command"] for call in both] == ["ls", "pwd"]
    assert [json.loads(call.function.arguments)["command"] for call in one] == ["ls"]
    assert len({call.id for call in both}) == 2


def test_tool_choice_none_gives_text(up: Any) -> None:
    answer = up.openai().chat.completions.create(model="practicum", messages=HI, tools=[BASH], tool_choice="none")
    assert answer.choices[0].message.tool_calls is None and "<tool_call>" in answer.choices[0].message.content


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_ends_the_text_but_not_the_record(start: START, stream: bool) -> None:
    up = start(ScriptedSampler(play([Step(content="one two STOP three")]), per_token_delay_s=0.001))
    answer = up.openai().chat.completions.create(model="practicum", messages=HI, stop=["ST", "zz"], stream=stream)
    text = (
        "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        if stream
        else answer.choices[0].message.content
    )
    (call,) = up.calls()
    assert text == "one two " and call.finish_reason == "stop"
    assert up.renderer.tokenizer.decode(call.completion_ids).startswith("one two ST")
    assert len(call.completion_ids) < len("one two STOP three"), "sampling ended with the stop string"


def test_logprobs_come_for_every_sampled_token(up: Any) -> None:
    whole = up.openai().chat.completions.create(model="practicum", messages=HI, logprobs=True)
    pieces = list(up.openai().chat.completions.create(model="practicum", messages=HI, logprobs=True, stream=True))
    streamed = [entry for p in pieces if p.choices[0].logprobs for entry in p.choices[0].logprobs.content]
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens == len(streamed)
    assert {entry.logprob for entry in streamed} == {0.0}


def test_w20_token_ids_do_not_leave(up: Any) -> None:
    with up.http() as http:
        reply = http.post("/v1/chat/completions", json={"model": "practicum", "messages": HI})
    assert set(reply.json()) == {"id", "created", "model", "object", "choices", "usage"}
    assert "ids" not in reply.text and "prompt_token" not in reply.text.replace("prompt_tokens", "")


def test_length_is_the_callers_the_servers_or_what_the_context_leaves(start: START) -> None:
    up = start(ScriptedSampler(letters(900), context_length=600))
    ask = {"model": "practicum", "messages": HI}
    client = up.openai()
    default, asked = client.chat.completions.create(**ask), client.chat.completions.create(**ask, max_tokens=7)
    beyond = client.chat.completions.create(**ask, max_tokens=5000)
    assert (default.usage.completion_tokens, asked.usage.completion_tokens) == (256, 7)
    assert beyond.usage.total_tokens == 600 and beyond.choices[0].finish_reason == "length"


def test_w16_a_prompt_beyond_the_context_has_the_apis_own_code(start: START) -> None:
    up = start(ScriptedSampler(context_length=100))
    with pytest.raises(openai.BadRequestError) as caught:
        up.openai().chat.completions.create(model="practicum", messages=[{"role": "user", "content": "x" * 200}])
    assert caught.value.code == "context_length_exceeded" and "maximum context length is 100" in str(caught.value)
    assert up.calls() == []


def test_w10_w11_refusals_reach_the_sdk_with_the_field(up: Any) -> None:
    client = up.openai()
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    for fields, param in (({"messages": HI, "n": 2}, "n"), ({"messages": image}, "messages.0.content.0")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="practicum", **fields)
        assert caught.value.param == param


def test_lone_surrogates_are_recorded_as_they_came(up: Any) -> None:
    raw = b'{"model": "practicum", "messages": [{"role": "user", "content": "a\\ud800\\u0000b"}]}'
    with up.http() as http:
        assert http.post("/v1/chat/completions", content=raw).status_code == 200
    assert up.calls()[0].request["messages"][0]["content"] == "a\ud800\x00b"


def test_w12_models_are_named(up: Any) -> None:
    client = up.openai()
    assert [model.id for model in client.models.list()] == ["practicum", "practicum@0"]
    assert client.models.retrieve("practicum@0").id == "practicum@0"
    assert client.chat.completions.create(model="practicum@0", messages=HI).model == "practicum@0"
    for name in ("gpt-5", "practicum@7", "practicum@x", "practicum@00"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model=name, messages=HI)
        assert caught.value.code == "model_not_found" and "`practicum`" in str(caught.value)


def test_w13_a_caller_who_disconnects_ends_the_generation(start: START) -> None:
    sampler = ScriptedSampler(letters(10_000), per_token_delay_s=0.005)
    up = start(sampler)
    stream = up.openai().chat.completions.create(model="practicum", messages=HI, stream=True, max_tokens=10_000)
    pieces = iter(stream)
    for _ in range(5):
        next(pieces)
    stream.close()
    call = eventually(lambda: next((call for call in up.calls() if call.status != "open"), None))
    assert (call.status, call.kind, call.finish_reason) == ("aborted", "aborted", "aborted")
    assert 4 <= len(call.completion_ids) < 5000 and len(call.completion_ids) == len(call.logprobs)
    assert call.text == "a" * len(call.text) and call.history_hash == ""
    eventually(lambda: sampler.running == 0)
    assert "aborted" in training_rows(up.calls()).refusals[call.call_id]


def test_w13_so_does_one_who_waits_for_a_whole_body(start: START) -> None:
    sampler = ScriptedSampler(letters(10_000), per_token_delay_s=0.01)
    up = start(sampler)
    with pytest.raises(openai.APITimeoutError):
        up.openai(timeout=0.5).chat.completions.create(model="practicum", messages=HI, max_tokens=10_000)
    eventually(lambda: [call for call in up.calls() if call.status == "aborted"])
    eventually(lambda: sampler.running == 0)


def test_w15_silence_is_filled_with_comments_that_clients_skip(start: START) -> None:
    up = start(ScriptedSampler(play([Step(content="x", delay_s=0.3)])), timing=Timing(ping_s=0.05))
    with up.http() as http:
        reply = http.post("/v1/chat/completions", json={"model": "practicum", "messages": HI, "stream": True})
    assert reply.text.count("\n: ") >= 2
    stream = up.openai().chat.completions.create(model="practicum", messages=HI, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "x"


def test_w17_an_engine_error_is_one_that_harnesses_retry(start: START) -> None:
    up = start(ScriptedSampler(play([Step(fail="the engine burns")])))
    for stream in (True, False):
        with pytest.raises(openai.InternalServerError) as caught:
            up.openai().chat.completions.create(model="practicum", messages=HI, stream=stream)
        assert caught.value.status_code == 503 and caught.value.response.headers["retry-after"]
    assert {(call.status, call.error) for call in up.calls()} == {("failed", "engine_unavailable: the engine burns")}


def test_w17_an_engine_error_inside_a_stream_is_an_error_event_without_terminator(start: START) -> None:
    up = start(ScriptedSampler(play([Step(content="half", fail="the engine burns")])))
    body = {"model": "practicum", "messages": HI, "stream": True}
    with pytest.raises(openai.APIError, match="burns"):
        list(up.openai().chat.completions.create(**body))
    with up.http() as http:
        assert "[DONE]" not in http.post("/v1/chat/completions", json=body).text
    assert {(call.status, call.text) for call in up.calls()} == {("failed", "half")}


def test_w17_a_hang_is_detected_and_named(start: START) -> None:
    up = start(ScriptedSampler(play([Step(content="x", delay_s=60)])), timing=Timing(ping_s=0.05, stall_s=0.2))
    with pytest.raises(openai.InternalServerError) as caught:
        up.openai().chat.completions.create(model="practicum", messages=HI)
    assert caught.value.code == "engine_stalled"
    assert up.calls()[0].status == "failed"


def test_w18_a_repeated_key_gets_the_same_answer_and_no_second_record(up: Any) -> None:
    client = up.openai()
    options: dict[str, Any] = {"model": "practicum", "messages": HI, "tools": [BASH]}
    keyed = {"extra_headers": {"Idempotency-Key": "k1"}}
    first = client.chat.completions.create(**options, **keyed)
    again = client.chat.completions.create(**options, **keyed)
    assert again == first and len(up.calls()) == 1
    with pytest.raises(openai.ConflictError) as caught:
        client.chat.completions.create(**{**options, "temperature": 0.5}, **keyed)
    assert caught.value.code == "key_reused"


def test_w18_a_key_whose_answer_was_not_delivered_samples_anew(start: START) -> None:
    sampler = Gated()
    up = start(sampler)
    keyed: dict[str, Any] = {"extra_headers": {"Idempotency-Key": "k1"}, "model": "practicum", "messages": HI}
    stream = up.openai().chat.completions.create(**keyed, stream=True)
    next(iter(stream))
    with pytest.raises(openai.ConflictError) as caught:
        up.openai().chat.completions.create(**keyed, stream=True)
    assert caught.value.code == "in_progress"
    stream.close()
    eventually(lambda: [call for call in up.calls() if call.status == "aborted"])
    sampler.gate.set()
    assert list(up.openai().chat.completions.create(**keyed, stream=True))
    assert [call.status for call in up.calls()] == ["aborted", "complete"]


def test_w18_without_a_key_a_repeat_in_a_session_is_a_retry_and_only_the_consumed_answer_trains(up: Any) -> None:
    client = up.openai(prefix="/s/rollout-1")
    answers = [client.chat.completions.create(model="practicum", messages=HI).choices[0].message for _ in range(2)]
    history = [*HI, {"role": "assistant", "content": answers[1].content}, {"role": "user", "content": "And?"}]
    client.chat.completions.create(model="practicum", messages=history)
    first, second, third = up.calls("rollout-1")
    assert [call.kind for call in (first, second, third)] == ["agent", "retry", "agent"]
    assert third.parent_call_id == second.call_id, "of two equal answers the newer one is continued"
    made = training_rows(up.calls("rollout-1"))
    assert set(made.refusals) == {first.call_id}
