"""The `anthropic` SDK against a whole server: every kind of answer, streamed and not, errors, counts and models."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from tests.integration.gateway.answers import ANSWERS, CALLS, SCHEMA, cases, sampled, sampler
from tests.integration.gateway.thinking import ThinkingRenderer

from practicum.engines.scripted import ScriptedSampler, Step, play

START = Any
HI = [{"role": "user", "content": "Hi"}]
ENDS = {"stop": "end_turn", "length": "max_tokens", "calls": "tool_use", "stop string": "stop_sequence"}


def client(up: Any, key: str | None = None) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=up.url, api_key=key or up.key, max_retries=0, timeout=20)


def ask(name: str, **thinking: Any) -> dict[str, Any]:
    case = ANSWERS[name]
    choice: dict[str, Any] = {"type": "auto" if case.may_call else "none"}
    if case.one_call:
        choice["disable_parallel_tool_use"] = True
    tools = [{"name": tool, "input_schema": SCHEMA} for tool, _ in CALLS]
    return {
        "model": "practicum",
        "max_tokens": case.max_tokens,
        "messages": HI,
        "thinking": {"type": "adaptive", **thinking},
        **({"tools": tools, "tool_choice": choice} if case.tools else {}),
        **({"stop_sequences": [case.stop]} if case.stop else {}),
    }


def answered(up: Any, stream: bool, **asked: Any) -> anthropic.types.Message:
    if not stream:
        return client(up).messages.create(**asked)
    with client(up).messages.stream(**asked) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", cases("anthropic_messages"))
def test_w1_w5_w21_every_answer(start: START, name: str, stream: bool) -> None:
    up, case = start(sampler(name), renderer=ThinkingRenderer()), ANSWERS[name]
    message = answered(up, stream, **ask(name))
    blocks = message.content
    assert "".join(block.text for block in blocks if block.type == "text") == case.text
    assert tuple((block.name, block.input) for block in blocks if block.type == "tool_use") == case.calls
    assert "".join(block.thinking for block in blocks if block.type == "thinking") == case.thought
    assert all(block.signature for block in blocks if block.type == "thinking")
    assert (message.stop_reason, message.stop_sequence) == (ENDS[case.end], case.stop)
    prompt, completion, thoughts = sampled(up.calls()[0])
    assert (message.usage.input_tokens, message.usage.output_tokens) == (prompt, completion)
    details = message.usage.output_tokens_details
    assert (details.thinking_tokens if details else 0) == thoughts


@pytest.mark.parametrize("stream", [True, False])
def test_thinking_that_is_omitted_or_not_asked_for(start: START, stream: bool) -> None:
    up = start(sampler("a thought and text"), renderer=ThinkingRenderer())
    sealed = answered(up, stream, **ask("a thought and text", display="omitted"))
    thinking, text = sealed.content
    assert (thinking.type, thinking.thinking, text.text) == ("thinking", "", "So.") and len(thinking.signature) > 40
    for off in ({"type": "disabled"}, None):
        asked = {**ask("a thought and text"), "thinking": off} if off else ask("a thought and text")
        if off is None:
            del asked["thinking"]
        assert [block.type for block in answered(up, stream, **asked).content] == ["text"]


def test_the_events_of_a_thought(start: START) -> None:
    up = start(sampler("a thought and text"), renderer=ThinkingRenderer())
    with client(up).messages.stream(**ask("a thought and text")) as events:
        seen = [event.type for event in events]
    runs = [kind for at, kind in enumerate(seen) if at == 0 or seen[at - 1] != kind]
    for kind in ("thinking", "signature", "text"):
        assert kind in runs
    assert seen.index("signature") < seen.index("content_block_stop") < seen.index("text")


@pytest.mark.parametrize("stream", [True, False])
def test_w10_w16_w17_errors(start: START, stream: bool) -> None:
    up = start(ScriptedSampler(play([Step(fail="the engine burns")]), context_length=150))
    good: dict[str, Any] = {"model": "practicum", "max_tokens": 9, "messages": HI}
    wrong: list[tuple[type[anthropic.APIStatusError], int, str, dict[str, Any]]] = [
        (anthropic.BadRequestError, 400, "tool_choice", {"tool_choice": {"type": "telepathy"}}),
        (anthropic.BadRequestError, 400, "temperature", {"extra_body": {"temperature": 1.5}}),
        (anthropic.NotFoundError, 404, "claude-x", {"model": "claude-x"}),
        (anthropic.BadRequestError, 400, "prompt is too long", {"system": "x" * 200}),
        (anthropic.InternalServerError, 503, "the engine burns", {}),
    ]
    for kind, status, words, fields in wrong:
        with pytest.raises(kind, match=words) as caught:
            answered(up, stream, **{**good, **fields})
        assert caught.value.status_code == status and caught.value.body["type"] == "error"
    with pytest.raises(anthropic.AuthenticationError):
        client(up, "sk-nobody").messages.create(**good)


def test_w17_an_engine_that_fails_inside_a_stream(start: START) -> None:
    up = start(
        ScriptedSampler(play([Step(content="<think>hm</think>half", fail="it burns")])), renderer=ThinkingRenderer()
    )
    with pytest.raises(anthropic.APIStatusError, match="it burns"):
        answered(up, True, **ask("text"))
    assert up.calls()[0].status == "failed"


def test_w12_counts_and_models(up: Any) -> None:
    counted = client(up).messages.count_tokens(model="practicum", messages=HI, thinking={"type": "adaptive"})
    answered(up, False, model="practicum", max_tokens=5, messages=HI)
    assert counted.input_tokens == len(up.calls()[0].prompt_ids)
    assert [model.id for model in client(up).models.list()] == ["practicum", "practicum@0"]
    model = client(up).models.retrieve("practicum@0")
    assert (model.id, model.type, model.display_name) == ("practicum@0", "model", "practicum@0")
    with pytest.raises(anthropic.NotFoundError):
        client(up).models.retrieve("claude-x")
