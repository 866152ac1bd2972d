"""Faults told apart: what the policy can cause is told to it and scored, what it cannot leaves the rollout unscored.

No process outlives its rollout.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.integration.environments import ledger
from tests.integration.environments.environment_world import call, forkers, played, rollout_processes, world
from tests.integration.environments.ledger import Ledger, one_word, says
from tests.integration.harnesses.rollout_world import Folders, until

from practicum.engines.scripted import Step, Turn
from practicum.environments import multi_turn, single_turn
from practicum.harnesses.runner import RolloutLimits
from practicum.store import open_store
from practicum.types.rollouts import Timeouts

ROWS = {"rows": [5, 7]}
TWICE = RolloutLimits(attempts=2, retry_pause_s=0.01)


def after(first: Step, *, heard: list[str]) -> Any:
    """Say `first`, note what came of it, then answer."""

    def policy(turn: Turn) -> Step:
        if turn.assistant_turns == 0:
            return first
        heard.append(turn.messages[-1][1].removeprefix("<tool_response>\n").removesuffix("\n</tool_response>"))
        return Step(content="12")

    return policy


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (call("row", index=9), "Error: IndexError: list index out of range"),
        (call("row", index="first"), "Error: `index`: Input should be a valid integer"),
        (call("row", number=1), "Error: `index`: Field required"),
        (call("row"), "Error: `index`: Field required"),
        (Step(content="stumble"), "Error: RuntimeError: I fell"),
    ],
)
async def test_w5_what_the_policy_does_wrong_comes_back_to_it_and_is_scored(
    tmp_path: Path, first: Step, said: str
) -> None:
    heard: list[str] = []
    (one,) = await played(tmp_path, after(first, heard=heard), multi_turn("l", Ledger, ROWS, max_tokens=256))
    assert heard and heard[0].startswith(said)
    assert (one.rollout.cause, one.reward, one.excluded) == ("finished", 1.0, None)


async def test_an_empty_answer_is_an_answer(tmp_path: Path) -> None:
    (one,) = await played(tmp_path, [Step(content="")], single_turn("t", "Say it.", one_word, data={"want": ""}))
    assert (one.reward, one.rollout.output) == (1.0, "")
    assert one.rows[0].completion_ids


async def test_a_tool_that_hangs_is_interrupted_once_and_the_policy_is_told(tmp_path: Path) -> None:
    heard: list[str] = []
    task = multi_turn("l", Ledger, ROWS, max_tokens=256, tool_timeout_s=0.2)
    (one,) = await played(tmp_path, after(call("hang"), heard=heard), task)
    assert heard == ["Error: hang took longer than 0.2 s."]
    assert one.reward == 1.0


async def test_a_tool_that_hangs_again_is_a_fault_of_the_environment(tmp_path: Path) -> None:
    task = multi_turn("l", Ledger, ROWS, max_tokens=256, tool_timeout_s=0.2)
    (one,) = await played(tmp_path, lambda turn: call("hang"), task, limits=TWICE)
    assert (one.rollout.cause, one.reward) == ("harness_failed", None)
    assert "the tool hang of" in str(one.excluded).lower() and "the second time" in str(one.excluded)
    assert [lost.cause for lost in one.rollout.attempts] == ["harness_failed"]


async def test_a_tool_that_cannot_be_interrupted_is_killed(tmp_path: Path) -> None:
    task = multi_turn("l", Ledger, ROWS, max_tokens=256, tool_timeout_s=0.2)
    one_try = RolloutLimits(attempts=1)
    (one,) = await played(tmp_path, [call("hang", on=True)], task, limits=one_try)
    assert (one.rollout.cause, one.reward) == ("harness_failed", None)
    assert "could not be interrupted" in str(one.excluded)


async def test_a_reply_that_hangs_is_a_fault_of_the_environment(tmp_path: Path) -> None:
    task = multi_turn("l", Ledger, ROWS, max_tokens=256, tool_timeout_s=0.2)
    (one,) = await played(tmp_path, [Step(content="wait")], task, limits=RolloutLimits(attempts=1))
    assert one.rollout.cause == "harness_failed" and "`reply` of" in str(one.excluded)


async def test_a_process_that_dies_in_a_tool_is_named_and_the_rollout_tried_again(tmp_path: Path) -> None:
    task = multi_turn("l", Ledger, ROWS, max_tokens=256)
    (one,) = await played(tmp_path, [call("die")], task, limits=TWICE)
    assert one.rollout.cause == "harness_failed" and len(one.rollout.attempts) == 1
    assert "was killed by SIGKILL while it ran the tool die" in str(one.excluded)


async def test_what_a_tool_leaves_running_is_dead_with_its_rollout(tmp_path: Path) -> None:
    heard: list[str] = []
    (one,) = await played(tmp_path, after(call("leave"), heard=heard), multi_turn("l", Ledger, ROWS, max_tokens=256))
    assert heard == ["left"] and one.reward == 1.0  # `played` has counted the processes


async def test_r7_a_reset_that_raises_names_the_file_and_the_line(tmp_path: Path) -> None:
    (one,) = await played(tmp_path, [], multi_turn("l", Ledger, {"fail": True}), limits=TWICE)
    assert (one.rollout.cause, one.reward) == ("harness_failed", None)
    assert "`reset` of" in str(one.excluded) and "KeyError: 'rows'" in str(one.excluded)
    lines = inspect.getsource(ledger).splitlines()
    line = next(number for number, text in enumerate(lines, start=1) if "KeyError" in text)
    assert f"ledger.py, line {line}" in str(one.excluded)


@pytest.mark.parametrize("first", [3, [], [{"role": "narrator", "content": "x"}]])
async def test_a_reset_that_gives_no_messages_is_named(tmp_path: Path, first: Any) -> None:
    task = multi_turn("l", Ledger, {**ROWS, "first": first})
    (one,) = await played(tmp_path, [], task, limits=RolloutLimits(attempts=1))
    assert one.rollout.cause == "harness_failed" and "`reset` gave" in str(one.excluded)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import time, nothing_of_the_kind\n", "ModuleNotFoundError"),
        ("def right(answer, task:\n", "SyntaxError"),
        ("import sys; sys.exit('no')\n", "SystemExit: no"),
        ("import os, sys; print('out of luck', file=sys.stderr); os._exit(3)\n", "out of luck"),
        ("x = 1\n", "AttributeError"),
        ("right = 3\n", "neither an Environment nor a verifier"),
    ],
)
async def test_a_file_that_cannot_be_loaded_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    task = single_turn("t", "Say it.", "mine.py:right")
    (one,) = await played(tmp_path, [], task, limits=RolloutLimits(attempts=1))
    assert one.rollout.cause == "harness_failed"
    assert said in str(one.excluded) and "mine.py" in str(one.excluded)


@pytest.mark.parametrize(
    ("say", "why"),
    [
        ("float('nan')", "nan, which is no finite number"),
        ("float('inf')", "inf, which is no finite number"),
        ("10 ** 400", "which is no finite number"),
        ("None", "'None', which is no number"),
        ("True", "'True', which is no number"),
        ("'good job'", "'good job', which is no number"),
        ("{}", "gave no 'reward' among []"),
        ("{'other': 1.0}", "gave no 'reward' among ['other']"),
        ("{'reward': 1.0, 'other': True}", "a other that is 'True'"),
        ("[1.0]", "'[1.0]', which is no number"),
        ("object()", "no JSON"),
        ("raise", "ZeroDivisionError: division by zero"),
        ("hang", "took longer than 0.3 s"),
        ("hang on", "could not be interrupted"),
        ("kill", "was killed by SIGKILL while it ran `verify`"),
    ],
)
async def test_r2_r7_a_verifier_that_fails_is_no_zero(tmp_path: Path, say: str, why: str) -> None:
    task = single_turn("t", "Say it.", says, data={"say": say}, grader={"timeout_s": 0.3})
    (one,) = await played(tmp_path, [Step(content="x")], task)
    assert (one.rollout.cause, one.reward) == ("grader_failed", None)
    assert why in str(one.excluded)


async def test_a_verifier_whose_failure_the_policy_can_cause_may_be_worth_something(tmp_path: Path) -> None:
    task = single_turn("t", "Say it.", says, data={"say": "raise"}, grader={"when_failed": -1.0})
    (one,) = await played(tmp_path, [Step(content="x")], task)
    assert (one.rollout.cause, one.reward) == ("finished", -1.0)
    assert "ZeroDivisionError" in one.rollout.outcomes[0].reason


async def test_l16_an_alarm_in_a_verifier_works_and_the_time_limit_holds_after_it(tmp_path: Path) -> None:
    for say, reward in (("alarm", 0.75), ("hang", None)):
        task = single_turn(say, "Say it.", says, data={"say": say}, grader={"timeout_s": 0.5})
        (one,) = await played(tmp_path, [Step(content="x")], task)
        assert one.reward == reward


async def test_r7_the_agents_own_timeout_is_scored_and_not_a_normal_end(tmp_path: Path) -> None:
    task = multi_turn("l", Ledger, ROWS, max_tokens=256, timeouts=Timeouts(agent_s=1.0), tool_timeout_s=3)
    (one,) = await played(tmp_path, [Step(content="count"), call("hang")], task)
    assert (one.rollout.cause, one.reward) == ("agent_timeout", 0.0)


async def test_a_model_endpoint_that_fails_is_told_apart(tmp_path: Path) -> None:
    task = single_turn("t", "Say it.", one_word)
    (one,) = await played(tmp_path, lambda turn: Step(content="lamp", fail="no memory"), task, limits=TWICE)
    assert (one.rollout.cause, one.reward) == ("endpoint_failed", None)
    assert "no memory" in str(one.excluded)


async def test_a_field_that_the_endpoint_refuses_is_named(tmp_path: Path) -> None:
    task = single_turn("t", "Say it.", one_word, more={"logit_bias": {"1": 5}})
    (one,) = await played(tmp_path, [], task, limits=RolloutLimits(attempts=1))
    assert one.rollout.cause == "harness_failed" and "logit_bias" in str(one.excluded)


async def test_a_sandbox_that_cannot_be_made_is_told_apart_from_the_tool_that_wanted_it(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "boxes", fail=1)
    task = multi_turn("l", Ledger, ROWS, max_tokens=256)
    script = [call("shell", command="echo hi"), Step(content="12")]
    (one,) = await played(tmp_path, script, task, folders=folders, limits=TWICE)
    assert [lost.cause for lost in one.rollout.attempts] == ["sandbox_failed"]
    assert (one.rollout.cause, one.reward) == ("finished", 1.0)
    assert folders.left() == []


async def test_l17_cancellation_early_stop_and_the_services_end_leave_no_process(tmp_path: Path) -> None:
    def slow(turn: Turn) -> Step:
        return [call("leave"), call("hang", on=True)][min(turn.assistant_turns, 1)]

    with open_store(tmp_path / "practicum.db") as store:
        async with world(tmp_path, store, slow) as made:
            task = multi_turn("l", Ledger, ROWS, num_samples=4, tool_timeout_s=60, max_tokens=256)
            group = await made.service.submit(task)
            await until(lambda: len(rollout_processes()) == 4 * 3)  # each found twice: below the forker, and by name
            ended = await made.service.cancel(group)
            assert {one.cause for one in ended.rollouts} == {"cancelled"}
            assert rollout_processes() == [] and made.folders_left() == []
            await made.service.submit(task)
            await until(lambda: len(rollout_processes()) == 4 * 3)
            assert len(forkers()) == 1
        assert rollout_processes() == [] and forkers() == [] and made.folders_left() == []


async def test_l17_an_early_stop_leaves_no_process(tmp_path: Path) -> None:
    def policy(turn: Turn) -> Step:
        return Step(content="12", delay_s=0.0 if not store.calls(limit=2)[1:] else 1.0)

    with open_store(tmp_path / "practicum.db") as store:
        async with world(tmp_path, store, policy, limits=RolloutLimits(run=2)) as made:
            task = multi_turn("l", Ledger, ROWS, num_samples=6, stop_after=1)
            ended = await made.service.collect(await made.service.submit(task))
            assert "stopped_early" in {one.rollout.cause for one in ended}
            assert rollout_processes() == []


async def test_l17_when_practicum_is_killed_its_environments_die_with_it(tmp_path: Path) -> None:
    script = Path(__file__).with_name("environment_process.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = await asyncio.create_subprocess_exec(sys.executable, str(script), str(tmp_path), env=environment)
    try:
        await until(lambda: (tmp_path / "pids").is_file(), 120)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(pids) >= 4  # keeper, forker, rollout, what that had left behind
    finally:
        killed.kill()
        await killed.wait()
    await until(lambda: not any(map(psutil.pid_exists, pids)))


async def test_a_forker_that_is_killed_costs_attempts_and_no_more(tmp_path: Path) -> None:
    with open_store(tmp_path / "practicum.db") as store:
        async with world(tmp_path, store, [Step(content="count"), Step(content="12", delay_s=0.2)]) as made:
            group = await made.service.submit(multi_turn("l", Ledger, ROWS, num_samples=2))
            await until(lambda: len(rollout_processes()) == 2)
            for forker in forkers():
                forker.kill()
            ended = await made.service.collect(group)
            assert [one.reward for one in ended] == [1.0, 1.0]
            assert [lost.cause for one in ended for lost in one.rollout.attempts] == ["harness_failed"] * 2
            assert rollout_processes() == []
