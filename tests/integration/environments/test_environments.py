"""In-house environments under the real service and gateway, with a scripted model and the real processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.environments import ledger
from tests.integration.environments.ledger import Ledger, one_word
from tests.integration.harnesses.rollout_world import World

from practicum.engines.scripted import ScriptedCall, ScriptedSampler, Step, Turn, play
from practicum.environments import multi_turn, single_turn
from practicum.environments.grader import EnvironmentGrader
from practicum.environments.harness import EnvironmentHarness
from practicum.environments.places import Allowed
from practicum.store import open_store
from practicum.types.rollouts import Task

HERE = Path(ledger.__file__).parent


def made(home: Path, store: Any, steps: Any, **options: Any) -> World:
    harness = EnvironmentHarness(Allowed(folders=(HERE, home), modules=True))
    policy = play(steps) if isinstance(steps, list) else steps
    return World(
        home,
        store,
        sampler=ScriptedSampler(policy),
        harnesses={"environment": harness},
        graders={"environment": partial(EnvironmentGrader, harness)},
        **options,
    )


async def results(home: Path, steps: Any, task: Task) -> Any:
    with open_store(home / "practicum.db") as store:
        async with made(home, store, steps) as world:
            return await world.service.collect(await world.service.submit(task))


def call(name: str, **arguments: Any) -> Step:
    return Step(tool_calls=[ScriptedCall(name=name, arguments=arguments)])


async def test_a_single_turn_task_is_asked_and_verified(tmp_path: Path) -> None:
    task = single_turn("t", "Say a word.", one_word, data={"want": "lamp"}, max_tokens=16, num_samples=2)
    ended = await results(tmp_path, [Step(content="lamp")], task)
    assert [one.reward for one in ended] == [1.0, 1.0]
    assert [len(one.rows) for one in ended] == [1, 1]
    assert all(one.excluded is None for one in ended)


async def test_tools_are_called_and_the_final_state_is_verified(tmp_path: Path) -> None:
    def policy(turn: Turn) -> Step:
        if turn.assistant_turns < 2:
            return call("row", index=turn.assistant_turns)
        assert {tool["name"] for tool in turn.tools} == {"row", "hang", "die", "leave", "shell"}
        return Step(content="It is 12.")

    (one,) = await results(tmp_path, policy, multi_turn("l", Ledger, {"rows": [5, 7]}, max_tokens=256))
    assert one.rollout.cause == "finished", one.rollout.error
    assert one.reward == 1.0
    assert {o.name: o.reward for o in one.rollout.outcomes} == {"reward": 1.0, "seen": 1.0, "messages": 6.0}
    assert len(one.rows) == 1 and one.rows[0].call_ids[0] != one.rows[0].call_ids[-1]
