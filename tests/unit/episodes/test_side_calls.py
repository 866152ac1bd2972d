"""The table of side calls: what each rule takes, what it leaves alone, and that reasons are explained."""

from __future__ import annotations

import json
from typing import Any

import pytest

from practicum.dialects import anthropic_messages, gemini, openai_chat, openai_responses
from practicum.dialects.request import ChatRequest
from practicum.episodes.side_calls import HARNESSES, REASONS, RULES, harness_of, side_call

ASK = [{"role": "user", "content": "Go."}]
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
CLAUDE = {"user-agent": "claude-cli/2.1.332 (external, sdk-cli)"}
CODEX = {"user-agent": "codex_exec/0.171.0 (Debian 12.0.0; x86_64)"}
OPENCODE = {"user-agent": "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14"}


def chat(messages: list[dict[str, Any]] = ASK, **fields: Any) -> ChatRequest:
    return openai_chat.from_body({"model": "m", "messages": messages, **fields})


def name(headers: dict[str, str], request: ChatRequest) -> str | None:
    rule = side_call(headers, request)
    return rule.name if rule else None


def test_w12_one_token_asked_for_is_a_probe_unless_a_turn_was_cut_short() -> None:
    assert name({}, chat(max_tokens=1)) == "one_token_probe"
    assert name({}, chat(max_tokens=1, tools=[TOOL])) is None
    assert name({}, chat([*ASK, {"role": "assistant", "content": "a"}, *ASK], max_tokens=1)) is None
    assert name({}, chat(max_tokens=2)) is None


def test_w12_codex_names_its_compaction_itself() -> None:
    request = openai_responses.from_body({"model": "m", "input": "x"})
    for kind, expected in (("compaction", "codex_compaction"), ("turn", None)):
        told = CODEX | {"x-codex-turn-metadata": json.dumps({"request_kind": kind})}
        assert name(told, request) == expected
    assert name(CODEX | {"x-codex-turn-metadata": "{"}, request) is None
    assert name(CODEX | {"x-codex-turn-metadata": "[]"}, request) is None


def test_e4_a_summary_is_asked_for_in_claudes_words_by_claude_only() -> None:
    asked = {"role": "user", "content": "Text only: an <analysis> block and a <summary> block."}
    request = anthropic_messages.from_body({"model": "m", "max_tokens": 5, "messages": [asked]})
    assert name(CLAUDE, request) == "claude_code_compaction"
    assert name(OPENCODE, request) is None and name({}, request) is None


def test_e4_copilot_says_itself_that_it_compacts() -> None:
    copilot = {"user-agent": "copilot/1.0 (linux)", "x-initiator": "agent"}
    request = chat(tools=[TOOL], tool_choice="none")
    assert name(copilot | {"x-interaction-type": "conversation-compaction"}, request) == "copilot_compaction"
    for turn in ("conversation-user", "conversation-subagent"):
        assert name(copilot | {"x-interaction-type": turn}, request) is None
    assert name({"x-interaction-type": "conversation-compaction"}, request) is None, "nobody else's header"


def test_w12_a_schema_of_the_users_own_is_no_router() -> None:
    generation = {"responseMimeType": "text/plain"}
    body = {"contents": [{"role": "user", "parts": [{"text": "x"}]}], "generationConfig": generation}
    assert name({"user-agent": "GeminiCLI-tui/0.61.0/m"}, gemini.from_body(body)) is None


def test_w12_opencode_without_tools_is_a_title_or_a_summary() -> None:
    system, quoted = {"role": "system", "content": "s"}, {"role": "user", "content": "<conversation>\n…"}
    assert name(OPENCODE, chat([system, *ASK, *ASK])) == "opencode_title"
    assert name(OPENCODE, chat([system, quoted])) == "opencode_compaction"
    assert name(OPENCODE, chat([system, *ASK])) is None
    assert name(OPENCODE, chat([system, *ASK, *ASK], tools=[TOOL])) is None


@pytest.mark.parametrize(
    ("agent", "harness"),
    [
        ("claude-cli/2.1.332 (external, sdk-py, agent-sdk/0.2.189)", "Claude Agent SDK"),
        ("claude-cli/2.1.197 (external, sdk-cli)", "Claude Code"),
        ("google-genai-sdk/2.34.0 gl-python/3.11.7 pydantic-ai/2.68.0", "Pydantic AI"),
        ("OpenAI/Python 3.57.0", "OpenAI SDK"),
        ("AsyncOpenAI/Python 3.57.0", "OpenAI SDK"),
        ("curl/8.0", "unknown"),
    ],
)
def test_a_harness_is_known_by_its_user_agent(agent: str, harness: str) -> None:
    assert harness_of({"user-agent": agent}) == harness
    assert harness_of({}) == "unknown"


def test_rules_name_known_harnesses_and_reasons_are_explained() -> None:
    known = {harness.name for harness in HARNESSES}
    assert all(rule.harnesses <= known and rule.evidence and rule.meaning for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES) and all(REASONS.values())
