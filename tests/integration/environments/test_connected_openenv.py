"""A real OpenEnv server end to end: a scripted policy, the gateway, the server's rewards, a training row.

Where the installed interpreter has no openenv, `PRACTICUM_OPENENV_PYTHON` may name one that has.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.integration.environments.connected import rolled_out, says

pytest.importorskip("websockets", reason="websockets is not installed")
from practicum.engines.scripted import ScriptedCall, Step, Turn
from practicum.environments.openenv import tasks
from practicum.errors import UsageError

PYTHON = os.environ.get("PRACTICUM_OPENENV_PYTHON") or (sys.executable if importlib.util.find_spec("openenv") else None)
pytestmark = pytest.mark.skipif(PYTHON is None, reason="openenv is not installed: make test-connectors")
Serve = Callable[[str], tuple[str, subprocess.Popen[bytes]]]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Start a server of a kind, once for the module unless it is gone."""
    up: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}

    def start(kind: str) -> tuple[str, subprocess.Popen[bytes]]:
        if kind in up and up[kind][1].poll() is None:
            return up[kind]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        program = str(Path(__file__).with_name("openenv_server.py"))
        server = subprocess.Popen([str(PYTHON), program, kind, str(port)])
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 90
        while True:
            try:
                httpx.get(f"{url}/health", trust_env=False).raise_for_status()
                break
            except httpx.HTTPError:
                assert server.poll() is None and time.monotonic() < until, "the server does not come up"
                time.sleep(0.1)
        up[kind] = url, server
        return up[kind]

    yield start
    for _, server in up.values():
        server.kill()
        server.wait()


async def test_answers_are_actions_and_rewards_add_up(tmp_path: Path, serve: Serve) -> None:
    url, _ = serve("text")
    task, other = tasks(url, [{"seed": 0}, {"seed": 1}], first="Guess the word.", max_tokens=32)
    assert (task.task_id, other.task_id) == ("WordGame/seed=0", "WordGame/seed=1")
    words = ["loft", "lamp"]

    def policy(turn: Turn) -> Step:
        assert str(turn.messages[0][1]) == "Guess the word.\n\nIt has 4 letters and begins with l."
        return Step(content=words[turn.assistant_turns])

    (one,) = await rolled_out(tmp_path, policy, task)
    assert one.rollout.cause == "finished", one.rollout.error
    assert {o.name: o.reward for o in one.rollout.outcomes} == {"reward": 0.75, "steps_rewarded": 2.0}
    assert len(one.rows) == 1 and len(one.rows[0].call_ids) == 2


async def test_the_servers_tools_are_the_policys(tmp_path: Path, serve: Serve) -> None:
    url, _ = serve("tools")
    (task,) = tasks(url, [{}], name="shop", first="Buy the cheaper of fig and plum.", max_tokens=256)
    plan = [("price", {"item": "fig"}), ("price", {"items": "plum"}), ("buy", {"item": "fig"})]
    heard: list[str] = []

    def policy(turn: Turn) -> Step:
        assert {tool["name"] for tool in turn.tools} == {"price", "buy"}
        heard.append(str(turn.messages[-1][1]))
        name, arguments = plan[turn.assistant_turns]
        return Step(tool_calls=[ScriptedCall(name=name, arguments=arguments)])

    (one,) = await rolled_out(tmp_path, policy, task)
    assert one.rollout.cause == "finished", one.rollout.error
    assert one.reward == 1.0
    assert "\nfig costs 3\n" in heard[1] and "Error: " in heard[2], heard


async def test_any_other_action_is_json(tmp_path: Path, serve: Serve) -> None:
    url, _ = serve("numbers")
    (task,) = tasks(url, [{}], max_tokens=256)
    said = ["seven", '{"low": 3}', '```json\n{"low": 3, "high": 9}\n```']
    heard: list[str] = []

    def policy(turn: Turn) -> Step:
        heard.append(str(turn.messages[-1][1]))
        return Step(content=said[turn.assistant_turns])

    (one,) = await rolled_out(tmp_path, policy, task)
    assert one.reward == 1.0, one.rollout
    assert heard[1].startswith("Error: ") and "high" in heard[2], heard


async def test_a_fault_that_an_action_brings_about_is_told(tmp_path: Path, serve: Serve) -> None:
    url, _ = serve("text")
    (task,) = tasks(url, [{"seed": 0}], max_tokens=32)
    heard: list[str] = []

    def policy(turn: Turn) -> Step:
        heard.append(str(turn.messages[-1][1]))
        return Step(content=["break", "lamp"][turn.assistant_turns])

    (one,) = await rolled_out(tmp_path, policy, task)
    assert one.reward == 1.0 and "the guess broke me" in heard[1]


async def test_a_server_that_is_gone_is_no_zero(tmp_path: Path, serve: Serve) -> None:
    url, server = serve("text")
    (task,) = tasks(url, [{}], max_tokens=32)

    def policy(turn: Turn) -> Step:
        server.kill()
        server.wait()
        return Step(content="lamp")

    (one,) = await rolled_out(tmp_path, policy, task)
    assert one.rollout.cause == "harness_failed" and one.reward is None
    assert "the server" in str(one.rollout.error) and "is lost" in str(one.rollout.attempts), one.rollout


async def test_an_episode_without_a_reward_is_no_zero(tmp_path: Path, serve: Serve) -> None:
    url, _ = serve("tools")
    (task,) = tasks(url, [{}], first="Buy.", max_tokens=32)
    (one,) = await rolled_out(tmp_path, says("I buy nothing."), task)
    assert one.reward is None and "no reward" in str(one.rollout.outcomes), one.rollout


def test_wrong_arguments_are_named(serve: Serve) -> None:
    with pytest.raises(UsageError, match="no server's address"):
        tasks("localhost:1", [{}])
    with pytest.raises(UsageError, match="does not say"):
        tasks("http://127.0.0.1:9", [{}])
    url, _ = serve("text")
    with pytest.raises(UsageError, match="no `text`"):
        tasks(url, [{}], action="text")
