"""The `openai` SDK against a whole server, both of its APIs: every kind of answer, streamed and not, every error."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageCustomToolCall
from openai.types.responses import ResponseCustomToolCall
from tests.integration.gateway.answers import ANSWERS, CALLS, SCHEMA, THOUGHT, cases, sampled, sampler, step
from tests.integration.gateway.thinking import ThinkingRenderer

from practicum.engines.scripted import ScriptedSampler, Step, play
from practicum.episodes.rows import training_rows

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


TEXT = 'print("ä")\n'
REGEX = {"syntax": "regex", "definition": "(.|\\n)*"}
AGENTS = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [
    {"type": "function", "name": "spawn", "parameters": SCHEMA},
    {"type": "custom", "name": "exec", "description": "Run it.", "format": {"type": "grammar", **REGEX}},
]}  # fmt: skip
CODE = {"type": "custom", "custom": {"name": "exec", "format": {"type": "grammar", "grammar": REGEX}}}


def is_one_episode(up: Any) -> None:
    first, second = up.calls()
    assert second.parent_call_id == first.call_id and second.fork_reason is None
    served = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(served)] == served
    assert len(training_rows([first, second]).rows) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_w2_w7_namespaced_and_free_form_calls_on_responses_are_answered_in_one_episode(
    start: START, stream: bool
) -> None:
    called = step("I look.", ("agents.exec", {"input": TEXT}), ("agents.spawn", {"command": "ls"}))
    client = (up := start(ScriptedSampler(play([called, step("Done.")])))).openai()
    asked: dict[str, Any] = {"model": "practicum", "tools": [{"type": "web_search"}, AGENTS]}
    if stream:
        with client.responses.stream(input=HI, **asked) as events:
            seen = list(events)
        output = seen[-1].response.output
        kinds = [event.type.removeprefix("response.") for event in seen if "call" in event.type]
        assert kinds == [f"custom_tool_call_input.{part}" for part in ("delta", "done")] + [
            f"function_call_arguments.{part}" for part in ("delta", "done")
        ]
        given = [event for event in seen if "custom_tool_call_input" in event.type]
        assert (given[0].delta, given[1].input) == (TEXT, TEXT)
        assert [event.item_id for event in given] == [output[1].id] * 2
    else:
        output = client.responses.create(input=HI, **asked).output
    said, free, plain = output
    assert (said.type, free.type, plain.type) == ("message", "custom_tool_call", "function_call")
    assert isinstance(free, ResponseCustomToolCall) and (free.name, free.namespace) == ("exec", "agents")
    assert free.input == TEXT and free.id.startswith("ctc_")
    assert (plain.name, plain.namespace, plain.arguments) == ("spawn", "agents", '{"command": "ls"}')
    results = [
        {"type": "custom_tool_call_output", "call_id": free.call_id, "output": [{"type": "input_text", "text": "ä"}]},
        {"type": "function_call_output", "call_id": plain.call_id, "output": "ok"},
    ]
    items = [*HI, *(item.model_dump(exclude_none=True) for item in output), *results]
    assert client.responses.create(input=items, **asked).output_text == "Done."
    is_one_episode(up)


@pytest.mark.parametrize("stream", [True, False])
def test_w2_free_form_calls_on_chat_completions_are_answered_in_one_episode(start: START, stream: bool) -> None:
    """The SDK's own accumulator of streams knows functions only, so the chunks are read as they come."""
    client = (up := start(ScriptedSampler(play([step("", ("exec", {"input": TEXT})), step("Done.")])))).openai()
    asked: dict[str, Any] = {"model": "practicum", "tools": [CODE]}
    if stream:
        chunks = list(client.chat.completions.create(messages=HI, stream=True, **asked))
        (call,) = (call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ())
        assert chunks[-1].choices[0].finish_reason == "tool_calls" and call.index == 0
        made = call.model_dump(exclude_none=True, exclude={"index"})
    else:
        (call,) = client.chat.completions.create(messages=HI, **asked).choices[0].message.tool_calls
        assert isinstance(call, ChatCompletionMessageCustomToolCall)
        made = call.model_dump()
    assert made == {"id": call.id, "type": "custom", "custom": {"name": "exec", "input": TEXT}}
    turn = [{"role": "assistant", "tool_calls": [made]}, {"role": "tool", "tool_call_id": call.id, "content": "ä"}]
    assert client.chat.completions.create(messages=[*HI, *turn], **asked).choices[0].message.content == "Done."
    is_one_episode(up)


def test_w2_a_free_form_call_without_its_text_leaves_as_it_was_written_and_forks(start: START) -> None:
    client = (up := start(ScriptedSampler(play([step("", ("exec", {"code": "ls"})), step("Done.")])))).openai()
    asked: dict[str, Any] = {"model": "practicum", "tools": [{"type": "custom", "name": "exec"}]}
    (call,) = client.responses.create(input=HI, **asked).output
    assert call.input == '{"code": "ls"}'
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "no"}
    client.responses.create(input=[*HI, call.model_dump(exclude_none=True), result], **asked)
    assert up.calls()[1].fork_reason == "assistant_rewritten"


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
