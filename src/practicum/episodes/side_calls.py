"""Which harness sent a request, and whether it is a turn of its agent or one of the harness's own side calls.

One table, `RULES`, holds everything that is known about the side calls of harnesses. A rule looks at marks that carry
meaning for the harness itself (headers, schemas, tools on offer, tags, file names) and at words only where nothing else
is there. Each says where it was seen. What no rule knows counts as a turn: it is better to train on a title than to
lose a turn.

`REASONS` explains every reason that a call may have for its kind. Pure; it must not know sessions or the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from practicum.dialects.request import ChatRequest
from practicum.types.calls import CallKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A harness or framework, and the `User-Agent` by which it is known."""

    name: str
    user_agent: re.Pattern[str]


# The first that matches wins, so a framework comes before the SDK that it is built on.
HARNESSES: tuple[Harness, ...] = tuple(
    Harness(name=name, user_agent=re.compile(pattern))
    for name, pattern in (
        ("Claude Agent SDK", r"claude-cli/.*\bagent-sdk/"),
        ("Claude Code", r"claude-cli/"),
        ("Codex", r"codex[_-]"),
        ("Gemini CLI", r"GeminiCLI"),
        ("Qwen Code", r"QwenCode/"),
        ("opencode", r"opencode/"),
        ("Kilo", r"[Kk]ilo"),
        ("pi", r"pi/\d"),
        ("Copilot", r"copilot"),
        ("OpenAI Agents SDK", r"Agents/Python"),
        ("Pydantic AI", r".*pydantic-ai/"),
        ("LangChain", r"langchain"),
        ("LiteLLM", r"litellm/"),
        ("OpenAI SDK", r"(Async)?OpenAI/"),
        ("Anthropic SDK", r"(Async)?Anthropic/"),
        ("Google GenAI SDK", r"google-genai-sdk/"),
    )
)


def harness_of(headers: Mapping[str, str]) -> str:
    """The harness's name, or "unknown". `headers` have lower-case names."""
    return _harness_named(headers.get("user-agent", ""))


@lru_cache(maxsize=1024)
def _harness_named(agent: str) -> str:
    return next((known.name for known in HARNESSES if known.user_agent.match(agent)), "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request as the rules see it."""

    headers: Mapping[str, str]
    request: ChatRequest

    @property
    def last_user_text(self) -> str:
        """Text of the last message that a user wrote."""
        return next((m.content for m in reversed(self.request.messages) if m.role == "user"), "")

    @property
    def begins(self) -> bool:
        """Whether nothing was answered yet in this conversation."""
        return not any(message.role == "assistant" for message in self.request.messages)

    @property
    def tool_names(self) -> frozenset[str]:
        """Names of the functions on offer."""
        return frozenset(tool.name for tool in self.request.tools)

    @property
    def asked_properties(self) -> frozenset[str]:
        """Names of the properties of the JSON schema that the answer must follow, in whichever field it came."""
        for path in _SCHEMA_PLACES:
            schema: Any = self.request.body
            for key in path:
                schema = schema.get(key) if isinstance(schema, Mapping) else None
            if isinstance(schema, Mapping) and isinstance(schema.get("properties"), Mapping):
                return frozenset(schema["properties"])
        return frozenset()


_SCHEMA_PLACES: tuple[tuple[str, ...], ...] = (
    ("output_config", "format", "schema"),
    ("generationConfig", "responseJsonSchema"),
    ("generationConfig", "responseSchema"),
    ("response_format", "json_schema", "schema"),
    ("text", "format", "schema"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCallRule:
    """How one side call is recognised. `harnesses` empty means any; `evidence` says where it was seen."""

    name: str
    meaning: str
    harnesses: frozenset[str] = frozenset()
    kind: CallKind
    matches: Callable[[Seen], bool]
    evidence: str


_CLAUDE = frozenset({"Claude Code", "Claude Agent SDK"})
_OPENCODE = frozenset({"opencode", "Kilo"})
_QWEN_MEMORY_TOOLS = frozenset({"read_file", "grep_search", "glob", "run_shell_command", "write_file", "edit"})


def _codex_kind(seen: Seen) -> str:
    """What Codex itself calls the request, in its turn metadata."""
    try:
        told = json.loads(seen.headers.get("x-codex-turn-metadata", ""))
    except ValueError:
        return ""
    return str(told.get("request_kind", "")) if isinstance(told, dict) else ""


def _opencode_title(seen: Seen) -> bool:
    messages = seen.request.body.get("messages")
    roles = [m.get("role") for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    return not seen.request.tools and seen.begins and roles == ["system", "user", "user"]


RULES: tuple[SideCallRule, ...] = (
    SideCallRule(
        name="one_token_probe",
        meaning="one token asked for, of a conversation without tools or answers: a look whether the endpoint answers",
        kind="auxiliary",
        matches=lambda seen: seen.request.max_tokens == 1 and not seen.request.tools and seen.begins,
        evidence="how clients check a key or a quota; not in the recordings",
    ),
    SideCallRule(
        name="claude_code_title",
        meaning="Claude Code asks for the session's title: no tools, a schema whose only property is `title`",
        harnesses=_CLAUDE,
        kind="auxiliary",
        matches=lambda seen: not seen.request.tools and seen.asked_properties == {"title"},
        evidence="2.1.197 claude-code base, base2, think3; Agent SDK 0.2.189 claude-agent-sdk base",
    ),
    SideCallRule(
        name="claude_code_compaction",
        meaning="Claude Code asks for a summary: the last user message wants <analysis> and <summary> blocks",
        harnesses=_CLAUDE,
        kind="compaction",
        matches=lambda seen: "<analysis>" in seen.last_user_text and "<summary>" in seen.last_user_text,
        evidence="2.1.332 claude-latest compact 3",
    ),
    SideCallRule(
        name="codex_compaction",
        meaning="Codex asks for a summary: its turn metadata says `request_kind` compaction",
        harnesses=frozenset({"Codex"}),
        kind="compaction",
        matches=lambda seen: _codex_kind(seen) == "compaction",
        evidence="0.171.0 codex compact 2",
    ),
    SideCallRule(
        name="gemini_cli_router",
        meaning="Gemini CLI scores a question to choose a model: a schema with `complexity_score`",
        harnesses=frozenset({"Gemini CLI"}),
        kind="auxiliary",
        matches=lambda seen: not seen.request.tools and "complexity_score" in seen.asked_properties,
        evidence="0.61.0 gemini-cli base 1",
    ),
    SideCallRule(
        name="opencode_compaction",
        meaning="opencode asks for a summary: no tools, the conversation quoted in a <conversation> block",
        harnesses=_OPENCODE,
        kind="compaction",
        matches=lambda seen: not seen.request.tools and seen.begins and "<conversation>" in seen.last_user_text,
        evidence="1.18.33 opencode compact 3",
    ),
    SideCallRule(
        name="opencode_title",
        meaning="opencode asks for the session's title: no tools, an instruction and a question as two user messages",
        harnesses=_OPENCODE,
        kind="auxiliary",
        matches=_opencode_title,
        evidence="1.18.33 opencode, call 1 of each run",
    ),
    SideCallRule(
        name="qwen_code_memory",
        meaning="Qwen Code's memory agent reads the conversation: file tools only, a question about MEMORY.md",
        harnesses=frozenset({"Qwen Code"}),
        kind="auxiliary",
        matches=lambda seen: seen.tool_names == _QWEN_MEMORY_TOOLS and "MEMORY.md" in seen.last_user_text,
        evidence="0.24.4 qwen-latest resume 4",
    ),
    SideCallRule(
        name="copilot_compaction",
        meaning="Copilot asks for a summary: its interaction type says so",
        harnesses=frozenset({"Copilot"}),
        kind="compaction",
        matches=lambda seen: seen.headers.get("x-interaction-type") == "conversation-compaction",
        evidence="its headers, as listed for Copilot; not in the recordings",
    ),
)

# Reasons that come from the course of a session, not from one request.
_BY_COURSE = {
    "continues_side_call": "it goes on from the answer of a side call",
    "same_prompt_again": "its prompt was answered before in this session",
    "same_prompt_at_once": "its prompt was under way when it came: one of several samples",
    "answer_not_used": "the conversation went on from another answer to the same prompt",
    "summary_used": "a later call begins afresh with its answer in the place of the history",
    "summary_not_used": "a summary that the harness asked for and then did not use",
}
REASONS: dict[str, str] = {**{rule.name: rule.meaning for rule in RULES}, **_BY_COURSE}


def side_call(headers: Mapping[str, str], request: ChatRequest) -> SideCallRule | None:
    """The first rule that recognises the request, or None. `headers` have lower-case names."""
    seen, harness = Seen(headers=headers, request=request), harness_of(headers)
    for rule in RULES:
        if (not rule.harnesses or harness in rule.harnesses) and rule.matches(seen):
            return rule
    return None
