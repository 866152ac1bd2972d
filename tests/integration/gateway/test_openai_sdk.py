"""The `openai` SDK against a whole server, both of its APIs: every kind of answer, streamed and not, every error."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from tests.integration.gateway.answers import ANSWERS, CALLS, SCHEMA, THOUGHT, cases, sampled, sampler
from tests.integration.gateway.thinking import ThinkingRenderer

from practicum.engines.scripted import ScriptedSampler, Step, play

START = Any
HI = [{"role": "user", "content": "Hi"}]
ENDS = {"stop string": "stop", "calls": "tool_calls"}


def ask(name: str, api: str) -> dict[str, Any]:
    case = ANSWERS[name]
    functions = [{"name": tool, "parameters": SCHEMA} for tool, _ in CALLS]
    chat = api == "chat"
    tools = [{"type": "function", "function": f} if chat else {"type": "function", **f} for f in functions]
    return {
        "model": "practicum",
        **({"messages": HI} if chat else {"input": HI}),
        ("max_completion_tokens" if chat else "max_output_tokens"): case.max_tokens,
        **({"tools": tools, "tool_choice": "auto" if case.may_call else "none"} if case.tools else {}),
        **({"parallel_tool_calls": False} if case.one_call else {}),
        **({"stop": case.stop} if case.stop else {}),
    }


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", cases("openai_chat"))
def test_w1_w5_w21_every_answer_on_chat_completions(start: START, name: str, stream: bool) -> None:
    up, case = start(sampler(name), renderer=ThinkingRenderer()), ANSWERS[name]
    client, asked = up.openai(), {**ask(name, "chat"), "logprobs": True}
    if stream:
        with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
            list(events)
            answer = events.current_completion_snapshot
    else:
        answer = client.chat.completions.create(**asked)
    choice = answer.choices[0]
    message = choice.message
    assert (message.content or "", message.role, message.refusal) == (case.text, "assistant", None)
    calls = tuple((c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or [])
    assert calls == case.calls
    assert getattr(message, "reasoning_content", "") == case.thought
    assert choice.finish_reason == ENDS.get(case.end, case.end)
    prompt, completion, thoughts = sampled(up.calls()[0])
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, completion)
    assert answer.usage.completion_tokens_details.reasoning_tokens == thoughts
    assert [entry.logprob for entry in choice.logprobs.content] == [0.0] * completion


@pytest.mark.parametrize("summary", [None, "auto"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", cases("openai_responses"))
def test_w1_w5_w21_every_answer_on_responses(start: START, name: str, stream: bool, summary: str | None) -> None:
    up, case = start(sampler(name), renderer=ThinkingRenderer()), ANSWERS[name]
    if summary and not case.thought:
        return
    client, asked = up.openai(), {**ask(name, "responses"), "reasoning": {"summary": summary}}
    if stream:
        with client.responses.stream(**asked) as events:
            *_, last = events
        response = last.response
    else:
        response = client.responses.create(**asked)
    assert response.output_text == case.text
    calls = tuple((i.name, json.loads(i.arguments)) for i in response.output if i.type == "function_call")
    assert calls == case.calls
    thoughts = [item for item in response.output if item.type == "reasoning"]
    assert "".join(p.text for i in thoughts for p in (i.summary if summary else i.content)) == case.thought
    whole = case.end != "length"
    assert response.status == ("completed" if whole else "incomplete")
    assert (response.incomplete_details is None) == whole
    prompt, completion, reasoning = sampled(up.calls()[0])
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (prompt, completion, prompt + completion)
    assert usage.output_tokens_details.reasoning_tokens == reasoning


@pytest.mark.parametrize(("summary", "part", "text"), [
    (None, "content_part", "reasoning_text"), ("detailed", "reasoning_summary_part", "reasoning_summary_text"),
])  # fmt: skip
def test_the_events_of_a_thought_on_responses(start: START, summary: str | None, part: str, text: str) -> None:
    up = start(sampler("a thought and text"), renderer=ThinkingRenderer())
    asked = {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": summary, "effort": "high"}}
    events = list(up.openai().responses.create(model="practicum", input="Hi", stream=True, **asked))
    names = [event.type.removeprefix("response.") for event in events]
    runs = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    assert runs == [
        "created", "in_progress",
        "output_item.added", f"{part}.added", f"{text}.delta", f"{text}.done", f"{part}.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    item = next(event.item for event in events if event.type == "response.output_item.done")
    assert item == events[-1].response.output[0] and item.encrypted_content and THOUGHT not in item.encrypted_content
    assert "".join(event.delta for event in events if event.type == f"response.{text}.delta") == THOUGHT


Post = Any


def chat(client: openai.OpenAI, stream: bool, **fields: Any) -> Any:
    answer = client.chat.completions.create(**{"model": "practicum", "messages": HI, "stream": stream, **fields})
    return list(answer) if stream else answer


def responses(client: openai.OpenAI, stream: bool, **fields: Any) -> Any:
    answer = client.responses.create(**{"model": "practicum", "input": HI, "stream": stream, **fields})
    return list(answer) if stream else answer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("post", "text"), [(chat, "messages"), (responses, "input")])
def test_w10_w16_w17_errors(start: START, post: Post, text: str, stream: bool) -> None:
    up = start(ScriptedSampler(play([Step(fail="the engine burns")]), context_length=150))
    long = [{"role": "user", "content": "x" * 200}]
    bad = {"messages": {"n": 2}, "input": {"background": True}}[text]
    wrong: list[tuple[type[openai.APIStatusError], int, str, str | None, dict[str, Any]]] = [
        (openai.BadRequestError, 400, "unsupported_value", next(iter(bad)), bad),
        (openai.BadRequestError, 400, "invalid_request", "temperature", {"temperature": 9}),
        (openai.NotFoundError, 404, "model_not_found", "model", {"model": "gpt-x"}),
        (openai.BadRequestError, 400, "context_length_exceeded", text, {text: long}),
        (openai.InternalServerError, 503, "engine_unavailable", None, {}),
    ]
    for kind, status, code, param, fields in wrong:
        with pytest.raises(kind) as caught:
            post(up.openai(), stream, **({"extra_body": fields} if "n" in fields or "background" in fields else fields))
        assert (caught.value.status_code, caught.value.code, caught.value.param) == (status, code, param)
    with pytest.raises(openai.AuthenticationError) as refused:
        post(up.openai("sk-nobody"), stream)
    assert refused.value.code == "invalid_api_key"


def test_w17_an_engine_that_fails_inside_a_stream(start: START) -> None:
    up = start(ScriptedSampler(play([Step(content="half", fail="it burns")])))
    with pytest.raises(openai.APIError, match="it burns"):
        chat(up.openai(), True)
    failed = responses(up.openai(), True)[-1]
    assert failed.type == "response.failed" and failed.response.error.code == "engine_unavailable"
    assert [call.status for call in up.calls()] == ["failed", "failed"]


def test_w12_models(up: Any) -> None:
    assert [model.id for model in up.openai().models.list()] == ["practicum", "practicum@0"]
    assert up.openai().models.retrieve("practicum@0").owned_by == "practicum"
    with pytest.raises(openai.NotFoundError):
        up.openai().models.retrieve("gpt-x")
