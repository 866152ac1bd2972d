"""The adapters that Practicum ships, by the name that tasks use."""

from __future__ import annotations

from collections.abc import Mapping

from practicum.errors import NotFound
from practicum.harnesses.coding_agents import ClaudeCode, Codex, GeminiCli, MiniSweAgent, OpenCode, Pi, QwenCode
from practicum.harnesses.harness import Harness
from practicum.harnesses.own_code import Command, LangGraph, OpenAIAgents, PydanticAI, PythonAgent
from practicum.harnesses.process import ProcessHarness

ADAPTERS: Mapping[str, type[ProcessHarness]] = {
    adapter.name: adapter
    for adapter in (
        ClaudeCode,
        Codex,
        GeminiCli,
        QwenCode,
        OpenCode,
        Pi,
        MiniSweAgent,
        OpenAIAgents,
        PydanticAI,
        LangGraph,
        Command,
        PythonAgent,
    )
}


def harness(name: str) -> Harness:
    """A new instance of an adapter. Raises NotFound naming those there are."""
    adapter = ADAPTERS.get(name)
    if adapter is None:
        raise NotFound(
            f"There is no harness {name[:80]!r}.", hint=f"There are: {', '.join(ADAPTERS)}.", param="harness"
        )
    return adapter()
