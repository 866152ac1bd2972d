"""What is sealed comes back, whatever else comes does not; and how requests ask for reasoning."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.dialects.reasoning import seal, switches, tagged, unseal
from practicum.dialects.registry import DIALECTS

HI = [{"role": "user", "content": "Hi"}]
CONTENTS = [{"parts": [{"text": "Hi"}]}]
PATH = {"model": "practicum", "method": "generateContent"}


@given(st.text())
@settings(derandomize=True)
def test_what_is_sealed_comes_back_in_both_alphabets(text: str) -> None:
    sealed = seal("call_1", text)
    assert unseal(sealed) == unseal(sealed.replace("+", "-").replace("/", "_")) == text


def test_a_seal_is_no_secret() -> None:
    assert json.loads(base64.b64decode(seal("call_1", "hm"))) == {"practicum_reasoning": "hm", "call_id": "call_1"}


@pytest.mark.parametrize(
    "other",
    [None, 5, "", "x", "é", "bW9jay1lbmNyeXB0ZWQ=", "skip_thought_signature_validator", [], {"a": 1},
     base64.b64encode(b"[" * 100_000).decode(), base64.b64encode(b'{"practicum_reasoning": 5}').decode(),
     base64.b64encode(b"[1]").decode(), seal("c", "hm")[:-3]],
)  # fmt: skip
def test_what_is_not_ours_is_nothing(other: Any) -> None:
    assert unseal(other) == ""


@pytest.mark.parametrize(
    ("text", "thought"),
    [("<think>\nhm\n</think>", "hm"), (" <think></think>\n", ""), ("<think>a</think>b", None), ("<think>a", None),
     ("<think>a</think><think>b</think>", None), ("<think>a</think> b </think>", None), ("", None)],
)  # fmt: skip
def test_a_text_that_is_one_thought(text: str, thought: str | None) -> None:
    assert tagged(text) == thought


ON = {"enable_thinking": True, "thinking": True}
OFF = {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize(
    ("asked", "wishes"),
    [({}, {}), ({"effort": None, "budget": -1}, {}), ({"on": True}, ON), ({"effort": "none"}, OFF),
     ({"budget": 0}, OFF),
     ({"effort": "low"}, {**ON, "reasoning_effort": "low"}), ({"budget": 9}, {**ON, "thinking_budget": 9}),
     ({"on": False, "effort": "high"}, {**OFF, "reasoning_effort": "high"}), ({"effort": 5, "budget": "x"}, {})],
)  # fmt: skip
def test_wishes_have_the_names_that_templates_know(asked: dict[str, Any], wishes: dict[str, Any]) -> None:
    assert switches(**asked) == wishes


@pytest.mark.parametrize(
    ("dialect", "fields", "wishes"),
    [
        ("openai_chat", {}, {}),
        ("openai_chat", {"reasoning_effort": "high"}, {**ON, "reasoning_effort": "high"}),
        ("openai_chat", {"reasoning": {"enabled": False}}, OFF),
        ("openai_chat", {"thinking": {"type": "disabled"}}, OFF),
        ("openai_chat", {"thinking": {"type": []}, "reasoning": 5, "reasoning_effort": 7}, {}),
        ("openai_chat", {"enable_thinking": True, "chat_template_kwargs": {"a": 1}}, {**ON, "a": 1}),
        ("openai_responses", {"reasoning": {"effort": "low", "summary": "auto"}}, {**ON, "reasoning_effort": "low"}),
        ("openai_responses", {"reasoning": None}, {}),
        ("anthropic_messages", {"output_config": {"effort": "low"}}, {}),
        ("anthropic_messages", {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, OFF),
        ("anthropic_messages", {"thinking": {"type": "enabled", "budget_tokens": 9}}, {**ON, "thinking_budget": 9}),
        (
            "anthropic_messages",
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            {**ON, "reasoning_effort": "max"},
        ),
        ("gemini", {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}, OFF),
        ("gemini", {"generationConfig": {"thinkingConfig": {"thinkingBudget": -1, "includeThoughts": True}}}, {}),
        (
            "gemini",
            {"generation_config": {"thinking_config": {"thinking_level": "HIGH"}}},
            {**ON, "reasoning_effort": "high"},
        ),
    ],
)
def test_every_dialects_controls_are_read(dialect: str, fields: dict[str, Any], wishes: dict[str, Any]) -> None:
    start = {"openai_responses": {"input": "Hi"}, "gemini": {"contents": CONTENTS}}.get(dialect, {"messages": HI})
    body = {"model": "practicum", "max_tokens": 9, **start, **fields}
    request = DIALECTS[dialect].parse(json.dumps(body).encode(), PATH)
    assert request.options == wishes and request.body == body
