"""Real tasksets under verifiers' own environment, harness, tools and rewards, with the gateway as their model.

`PRACTICUM_VERIFIERS_PYTHON` names the interpreter that has verifiers, where the one that runs this has not.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.environments.connected import rolled_out, says

from practicum.engines.scripted import ScriptedCall, Step, Turn
from practicum.environments.verifiers import tasks
from practicum.errors import MissingExtra, UsageError

PYTHON = os.environ.get("PRACTICUM_VERIFIERS_PYTHON") or (
    sys.executable if importlib.util.find_spec("verifiers") else None
)
pytestmark = pytest.mark.skipif(PYTHON is None, reason="verifiers is not installed: make test-connectors")
FOLDER = str(Path(__file__).with_name("verifiers_tasksets"))
GIVEN: dict[str, Any] = {"python": PYTHON, "path": [FOLDER], "sampling": {"max_tokens": 256}}


async def test_an_episode_is_the_librarys_own_with_its_tools_and_its_reward(tmp_path: Path) -> None:
    (task,) = tasks("adding_up", 1, skip=5, **GIVEN)
    assert (task.task_id, task.instructions) == ("adding_up/1+2", ("What is 1+2?",))
    heard: list[str] = []

    def policy(turn: Turn) -> Step:
        heard.append(str(turn.messages[-1][1]))
        assert [tool["name"] for tool in turn.tools] == ["calc_add"]
        if turn.assistant_turns == 0:
            return Step(tool_calls=[ScriptedCall(name="calc_add", arguments={"a": 1, "b": 2})])
        return Step(content="It is 3.")

    (one,) = await rolled_out(tmp_path, policy, task)
    assert one.rollout.cause == "finished", one.rollout.error
    assert {o.name: o.reward for o in one.rollout.outcomes} == {"reward": 2.0, "reward/right": 2.0, "metric/turns": 2.0}
    assert heard[0] == "What is 1+2?" and "3" in heard[1]
    assert len(one.rows) == 1 and one.excluded is None and len(one.rows[0].call_ids) == 2


async def test_a_wrong_answer_is_worth_what_the_library_says(tmp_path: Path) -> None:
    (task,) = tasks("adding_up", 1, skip=5, config={"tools": False}, **GIVEN)
    (one,) = await rolled_out(tmp_path, says("No idea."), task)
    assert one.reward == 0.0 and len(one.rows) == 1, one.rollout


async def test_a_scorer_that_fails_is_no_zero(tmp_path: Path) -> None:
    (task,) = tasks("adding_up", 1, config={"tools": False}, **GIVEN)
    (one,) = await rolled_out(tmp_path, says("0"), task)
    assert one.reward is None and "the scorer broke" in str(one.rollout.outcomes), one.rollout


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UsageError, match="no_such_taskset"):
        tasks("no_such_taskset", 1, **GIVEN)
    with pytest.raises(UsageError, match="9 tasks from 0 on, not 10"):
        tasks("adding_up", 10, **GIVEN)
    with pytest.raises(UsageError, match="cannot be run"):
        tasks("adding_up", 1, python="/no/such/python")
    with pytest.raises(MissingExtra, match=r"-m pip install 'verifiers>=0\.4'"):
        tasks("adding_up", 1, python=Path(sys.base_prefix, "bin", "python3"))
