"""The adapters for a team's own code, over a sandbox, against a served gateway: two turns become one row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.gateway.conftest import Running, start
from tests.local_sandbox import local_sandbox
from tests.matrix.report import session_report

from practicum.engines.scripted import ScriptedSampler
from practicum.harnesses.harness import Endpoint, HarnessJob
from practicum.harnesses.registry import harness

__all__ = ["start"]
ROOT = str(Path(__file__).parents[3])
OPTIONS: dict[str, dict[str, Any]] = {
    "python": {"function": "tests.matrix.own_agent:run", "path": [ROOT]},
    "command": {
        "command": [sys.executable, "-m", "tests.matrix.own_agent", "{instruction}"],
        "env": {"PYTHONPATH": ROOT},
    },
    "pydantic-ai": {
        "function": "pydantic_ai_agent:run",
        "path": [f"{ROOT}/recipes/3_internship/agents"],
    },
}


@pytest.mark.parametrize("name", OPTIONS)
async def test_two_turns_are_one_row_and_the_file_is_written(start: Any, name: str) -> None:
    up: Running = start(ScriptedSampler.from_spec("scripted:write:hello.txt=hi there"))
    adapter = harness(name)
    async with local_sandbox() as sandbox:
        for turn, instruction in enumerate(("Write hello.txt.", "Write it again.")):
            endpoint = Endpoint(base_url=f"{up.url}/s/r1", api_key=up.key, model="practicum")
            job = HarnessJob(
                rollout_id="r1", instruction=instruction, endpoint=endpoint, turn=turn, timeout_s=60,
                options=OPTIONS[name],
            )  # fmt: skip
            end = await adapter.collect(await adapter.submit(job, sandbox))
            assert end.error is None, end.log
            assert end.output == "I wrote hello.txt."
            assert await sandbox.read("hello.txt") == "hi there\n"
    figures = session_report(up.calls("r1"))
    assert (figures["calls"], figures["episodes"], figures["rows"], figures["retokenised"]) == (4, 1, 1, 0)
    assert figures["fork_reasons"] == {"new_conversation": 1} and figures["by_kind"] == {"agent": 4}
    assert len(up.calls()) == 4, "every call is in the rollout's own session"


async def test_an_agent_with_a_wrong_key_fails_and_leaves_no_record(start: Any) -> None:
    up: Running = start()
    adapter = harness("command")
    endpoint = Endpoint(base_url=f"{up.url}/s/r1", api_key="sk-wrong", model="practicum")
    job = HarnessJob(rollout_id="r1", instruction="Go.", endpoint=endpoint, timeout_s=60, options=OPTIONS["command"])
    async with local_sandbox() as sandbox:
        end = await adapter.collect(await adapter.submit(job, sandbox))
    assert end.exit_code == 1 and "401" in end.log and up.calls() == []
