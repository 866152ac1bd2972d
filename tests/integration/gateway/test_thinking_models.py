"""Reasoning out, back in, and what becomes of the episode: over every dialect, with a model that thinks.

What is pinned: W9 reasoning comes in the provider's own form and stays on record; an answer that is replayed with its
reasoning in any form goes on with the episode; where it was rewritten, or dropped by a caller that can send it back,
the episode forks with that reason and the model sees what the caller sent. E1: a caller that never sends reasoning back
goes on from the served ids. Switches of the template: a change of one forks, one that is unknown changes nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.integration.gateway.thinking import ThinkingRenderer

from practicum.config import GatewayConfig
from practicum.engines.scripted import ScriptedCall, ScriptedSampler, Step, Turn
from practicum.episodes.rows import training_rows
from practicum.gateway import Timing

START = Any
THOUGHT = "It is a file, 中."
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}


def thinks(turn: Turn) -> Step:
    """Thinks and calls a tool first; thinks of another thing before each later answer."""
    number = turn.assistant_turns
    if number == 0 and turn.tools:
        call = ScriptedCall(name="bash", arguments={"command": "ls"})
        return Step(content=f"<think>{THOUGHT}</think>I look.", tool_calls=[call])
    return Step(content=f"<think>thought {number}</think>answer {number}")


@pytest.fixture
def up(start: START) -> Any:
    return start(ScriptedSampler(thinks), renderer=ThinkingRenderer())


def post(up: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with up.http() as http:
        reply = http.post(path, json={"model": "practicum", **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def prompt_of(up: Any, number: int) -> str:
    return up.renderer.tokenizer.decode(up.calls()[number].prompt_ids)


Talk = tuple[list[dict[str, Any]], dict[str, Any]]


def chat(up: Any, items: list[Any]) -> list[Any]:
    tool = {"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}
    message = post(up, "/v1/chat/completions", {"messages": items, "tools": [tool]})["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "a.txt"} for c in message.get("tool_calls", ())]
    return [*items, message, *(results or [{"role": "user", "content": "Go on"}])]


def responses(up: Any, items: list[Any], **fields: Any) -> list[Any]:
    tool = {"type": "function", "name": "bash", "parameters": SCHEMA}
    output = post(up, "/v1/responses", {"input": items, "tools": [tool], **fields})["output"]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "a.txt"}
        for item in output
        if item["type"] == "function_call"
    ]
    return [*items, *output, *(results or [{"role": "user", "content": "Go on"}])]


def anthropic(up: Any, items: list[Any], thinking: dict[str, Any] | None = None) -> list[Any]:
    body = {"messages": items, "max_tokens": 900, "tools": [{"name": "bash", "input_schema": SCHEMA}]}
    content = post(up, "/v1/messages", body | ({"thinking": thinking} if thinking else {}))["content"]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "a.txt"}
        for block in content
        if block["type"] == "tool_use"
    ]
    return [*items, {"role": "assistant", "content": content}, {"role": "user", "content": results or "Go on"}]


def gemini(up: Any, items: list[Any], include: bool = True) -> list[Any]:
    body = {
        "contents": items,
        "tools": [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": SCHEMA}]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": include}},
    }
    content = post(up, "/v1beta/models/practicum:generateContent", body)["candidates"][0]["content"]
    called = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    results = [{"functionResponse": {**call, "args": None, "response": {"output": "a.txt"}}} for call in called]
    return [*items, content, {"role": "user", "parts": results or [{"text": "Go on"}]}]


FIRST: dict[Any, list[Any]] = {
    chat: [{"role": "user", "content": "Hi"}],
    responses: [{"role": "user", "content": "Hi"}],
    anthropic: [{"role": "user", "content": "Hi"}],
    gemini: [{"role": "user", "parts": [{"text": "Hi"}]}],
}


def talk(up: Any, send: Any, change: Any = lambda items: items, turns: int = 3, **fields: Any) -> list[str | None]:
    """So many turns, each sent with what `change` makes of the history; the fork reasons of the calls."""
    history = FIRST[send]
    for _ in range(turns):
        sent = change(json.loads(json.dumps(history)))
        answered = send(up, sent, **fields)
        history = [*history, *answered[len(sent) :]]
    return [call.fork_reason for call in up.calls()]


def without(*keys: str) -> Any:
    """The history as a harness sends it that knows nothing of these fields."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key not in keys}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return strip  # fmt: skip


def no_items(kind: str) -> Any:
    return lambda items: [item for item in items if item.get("type") != kind]


def no_thinking_blocks(items: list[Any]) -> list[Any]:
    for item in items:
        if item["role"] == "assistant":
            item["content"] = [block for block in item["content"] if block["type"] != "thinking"]
    return items


def no_thoughts(items: list[Any]) -> list[Any]:
    for item in items:
        item["parts"] = [part for part in item["parts"] if not part.get("thought")]
    return items


def think_message(items: list[Any]) -> list[Any]:
    """Pydantic AI: a thought becomes a message of its own."""
    return [
        {"role": "assistant", "content": f"<think>\n{item['content'][0]['text']}\n</think>"}
        if item.get("type") == "reasoning"
        else item
        for item in items
    ]


def only_encrypted(items: list[Any]) -> list[Any]:
    return [{**item, "summary": [], "content": None} if item.get("type") == "reasoning" else item for item in items]


def inline(items: list[Any]) -> list[Any]:
    for item in items:
        if thought := item.pop("reasoning_content", None):
            item["content"] = f"<think>\n{thought}\n</think>\n\n{item['content'] or ''}"
    return items


def renamed(items: list[Any]) -> list[Any]:
    for item in items:
        if "reasoning_content" in item:
            item["reasoning"] = item.pop("reasoning_content")
    return items


SEALED = {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
ECHOED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "chat": (chat, lambda items: items, {}),
    "chat, as vLLM names it": (chat, renamed, {}),
    "chat, in the text": (chat, inline, {}),
    "chat, dropped": (chat, without("reasoning_content"), {}),
    "responses": (responses, lambda items: items, {}),
    "responses, a summary": (responses, lambda items: items, {"reasoning": {"summary": "auto"}}),
    "responses, encrypted content only": (responses, only_encrypted, SEALED),
    "responses, a message": (responses, think_message, {}),
    "responses, dropped": (responses, no_items("reasoning"), {}),
    "anthropic": (anthropic, lambda items: items, {"thinking": {"type": "adaptive"}}),
    "anthropic, sealed": (anthropic, lambda items: items, {"thinking": {"type": "adaptive", "display": "omitted"}}),
    "anthropic, not asked for": (anthropic, lambda items: items, {}),
    "anthropic, dropped": (anthropic, no_thinking_blocks, {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
    "gemini": (gemini, lambda items: items, {}),
    "gemini, the signature only": (gemini, no_thoughts, {}),
    "gemini, not asked for": (gemini, lambda items: items, {"include": False}),
    "gemini, dropped": (gemini, lambda items: without("thoughtSignature")(no_thoughts(items)), {}),
}


@pytest.mark.parametrize("form", ECHOED)
def test_w9_e1_an_answer_replayed_with_or_without_its_reasoning_is_one_episode(up: Any, form: str) -> None:
    send, change, fields = ECHOED[form]
    assert talk(up, send, change, **fields) == ["new_conversation", None, None]
    calls = up.calls()
    assert len(training_rows(calls).rows) == 1 and f"<think>{THOUGHT}</think>" in calls[0].text
    assert prompt_of(up, 2).count(THOUGHT) == 1 == prompt_of(up, 2).count("thought 1")


@pytest.mark.parametrize("form", [form for form in ECHOED if not form.endswith(("dropped", "not asked for"))])
def test_w9_strict_callers_lose_nothing_while_they_send_reasoning_back(start: START, form: str) -> None:
    up = start(
        ScriptedSampler(thinks), renderer=ThinkingRenderer(), gateway_config=GatewayConfig(dropped_reasoning="fork")
    )
    send, change, fields = ECHOED[form]
    assert talk(up, send, change, **fields) == ["new_conversation", None, None]


def last_answer(items: list[Any]) -> dict[str, Any]:
    return next(item for item in reversed(items) if item.get("role") == "assistant")


def test_w9_rewritten_reasoning_forks_and_the_model_sees_it(up: Any) -> None:
    def rewrite(items: list[Any]) -> list[Any]:
        if len(items) > 1:
            last_answer(items)["reasoning_content"] = "I was told so."
        return items

    assert talk(up, chat, rewrite, turns=2) == ["new_conversation", "reasoning_rewritten"]
    assert "<think>I was told so.</think>" in prompt_of(up, 1) and THOUGHT not in prompt_of(up, 1)
    assert len(training_rows(up.calls()).rows) == 2


def test_e1_reasoning_dropped_by_a_caller_that_can_send_it_back_forks_once(up: Any) -> None:
    def drop_first(items: list[Any]) -> list[Any]:
        if len(items) > 3:
            items[1].pop("reasoning_content")
        return items

    assert talk(up, chat, drop_first, turns=4) == ["new_conversation", None, "reasoning_dropped", None]
    assert THOUGHT in prompt_of(up, 1) and THOUGHT not in prompt_of(up, 2) and "thought 1" in prompt_of(up, 2)
    assert len(training_rows(up.calls()).rows) == 2


def test_e1_reasoning_sent_before_and_left_out_at_once_forks(up: Any) -> None:
    """What clients of providers do that want no reasoning of earlier questions."""

    def drop_all_later(items: list[Any]) -> list[Any]:
        return without("reasoning_content")(items) if len(items) > 3 else items  # fmt: skip

    assert talk(up, chat, drop_all_later) == ["new_conversation", None, "reasoning_dropped"]


@pytest.mark.parametrize(("rule", "reason"), [("extend", None), ("fork", "reasoning_dropped")])
def test_e1_what_dropped_reasoning_means_is_a_setting(start: START, rule: Any, reason: str | None) -> None:
    config = GatewayConfig(dropped_reasoning=rule)
    up = start(ScriptedSampler(thinks), renderer=ThinkingRenderer(), gateway_config=config)
    assert talk(up, chat, without("reasoning_content"), turns=2) == ["new_conversation", reason]
    assert (THOUGHT in prompt_of(up, 1)) == (rule == "extend")


def test_reasoning_that_the_caller_was_not_shown_cannot_be_dropped(start: START) -> None:
    config = GatewayConfig(dropped_reasoning="fork")
    up = start(ScriptedSampler(thinks), renderer=ThinkingRenderer(), gateway_config=config)
    assert talk(up, anthropic, turns=2) == ["new_conversation", None]


def test_siblings_with_the_same_text_are_told_apart_by_their_reasoning(start: START) -> None:
    moods = iter(["calm", "bold", "late", "end"])
    up = start(
        ScriptedSampler(lambda turn: Step(content=f"<think>{next(moods)}</think>same")), renderer=ThinkingRenderer()
    )
    first, second = chat(up, FIRST[chat]), chat(up, FIRST[chat])
    assert first[1] != second[1]
    chat(up, first)
    one, other, third = up.calls()
    assert third.parent_call_id == one.call_id and third.fork_reason is None and other.call_id != one.call_id


def test_a_switch_of_the_template_reaches_the_prompt_and_its_change_forks(up: Any) -> None:
    ask = {"messages": FIRST[chat]}
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    for fields in (
        {},
        off,
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"reasoning": {"effort": "none"}},
    ):
        post(up, "/s/x/v1/chat/completions", ask | fields)
    assert [prompt_of(up, n).endswith("<think></think>") for n in range(5)] == [False, True, True, True, True]
    message = {"role": "assistant", "content": "answer 0"}
    history = {"messages": [*FIRST[chat], message, {"role": "user", "content": "Go on"}]}
    post(up, "/s/x/v1/chat/completions", history | off | {"verbosity": "low"})
    post(up, "/s/x/v1/chat/completions", history)
    same, other = up.calls("x")[-2:]
    assert same.fork_reason is None and same.parent_call_id == up.calls("x")[-3].call_id
    assert prompt_of(up, 5).endswith("<think></think>")
    assert other.fork_reason is None and other.parent_call_id == up.calls("x")[0].call_id
    post(up, "/s/x/v1/chat/completions", {**history, "messages": [*history["messages"], message, *FIRST[chat]]} | off)
    assert up.calls("x")[-1].fork_reason == "options_changed"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": "Hi", "reasoning": {"effort": "none"}}),
        ("/v1/messages", {"messages": FIRST[anthropic], "max_tokens": 50, "thinking": {"type": "disabled"}}),
        (
            "/v1beta/models/practicum:generateContent",
            {"contents": FIRST[gemini], "generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}},
        ),
    ],
)
def test_every_dialect_can_turn_thinking_off(up: Any, path: str, fields: dict[str, Any]) -> None:
    post(up, path, fields)
    assert prompt_of(up, 0).endswith("<think></think>")


def test_w15_hidden_thinking_is_bridged_though_tokens_keep_coming(start: START) -> None:
    step = Step(content=f"<think>{'hm' * 50}</think>yes", delay_s=0.004)
    up = start(ScriptedSampler(lambda turn: step), renderer=ThinkingRenderer(), timing=Timing(ping_s=0.05))
    body = {"model": "practicum", "max_tokens": 200, "messages": FIRST[anthropic], "stream": True}
    with up.http() as http:
        seen = http.post("/v1/messages", json=body).text
    assert 2 <= seen.count("event: ping") <= 20 and "text_delta" in seen and "thinking_delta" not in seen


def test_w18_a_replayed_answer_has_the_same_reasoning_and_usage(up: Any) -> None:
    with up.http() as http:
        ask = {"model": "practicum", "messages": FIRST[chat]}
        one, other = (
            http.post("/v1/chat/completions", json=ask, headers={"idempotency-key": "k"}).json() for _ in range(2)
        )
    assert one == other and len(up.calls()) == 1
    # `<think>thought 0` are 16 bytes, each a token of this tokenizer
    assert one["usage"]["completion_tokens_details"] == {"reasoning_tokens": 16}
    assert one["usage"]["completion_tokens"] == len(up.calls()[0].completion_ids)


def test_raw_completions_are_not_split(up: Any) -> None:
    text = post(up, "/v1/completions", {"prompt": "<|im_start|>user\nHi<|im_end|>\n", "max_tokens": 99})["choices"][0]
    assert text["text"].startswith("<think>")
