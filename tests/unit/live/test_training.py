"""Tasks from a file, rollouts as the algorithm takes them, and what a step asks for.

Pins: whatever is wrong with a tasks file is named, with its place; a rollout without a reward is no zero; a submission
key says run, step, version and the whole task; a batch of which nothing could be graded is an error with its cause,
and is asked for anew by the next process only.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from practicum.algorithms.table import algorithm as algorithm_of
from practicum.config import Config
from practicum.errors import ConfigError, HarnessError
from practicum.harnesses.results import RolloutResult
from practicum.live.groups import GroupSource, _seed, graded
from practicum.live.syllabus import Syllabus, load_syllabus
from practicum.types.episodes import TrainingRow
from practicum.types.outcomes import Outcome
from practicum.types.policies import PolicyVersion
from practicum.types.rollouts import Rollout, Task
from practicum.types.training import Datum

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from practicum.types.rollouts import Task

@dataclass
class Kind:
    name: str

def task(name):
    return Task(task_id=name, instructions=("Do it.",), harness="command", graders={"exit_status": {}})

TRAIN = [task(Kind("a").name), task("b")]
HELDOUT = (task("c"),)
"""


def syllabus_of(tmp_path: Path, text: str, name: str = "tasks.py") -> Syllabus:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load_syllabus(path)


def test_a_syllabus_is_read_in_order(tmp_path: Path) -> None:
    found = syllabus_of(tmp_path, GOOD)
    assert [task.task_id for task in found.train] == ["a", "b"]
    assert [task.task_id for task in found.heldout] == ["c"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("del HELDOUT", "HELDOUT is missing"),
        ("TRAIN = []", "TRAIN is empty"),
        ("TRAIN = 'a'", "TRAIN is a str"),
        ("TRAIN = [TRAIN[0], 'b']", r"TRAIN\[1\] is a str"),
        ("TRAIN += [task('a')]", "more than once: 'a'"),
        ("TRAIN += [task('c')]", "more than once: 'c'"),
        ("HELDOUT = [task('c'), task('c')]", "more than once: 'c'"),
        ("TRAIN += [Task(task_id='d', instructions='x', harness='h')]", "'d' has no grader"),
        ("raise ValueError('no disk')", "ValueError: no disk, in line 16"),
        ("TRAIN += [task('')]", "RequestError: `task_id` must not be empty, in line 11"),
        ("raise SystemExit(4)", "SystemExit: 4"),
        ("def (", "SyntaxError"),
        ("import no_such_module", "No module named 'no_such_module'"),
    ],
)
def test_what_is_wrong_with_a_tasks_file_is_named(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as wrong:
        syllabus_of(tmp_path, f"{GOOD}\n{more}\n")
    assert "tasks.py" in wrong.value.message and wrong.value.hint


def test_a_tasks_file_must_be_a_python_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file"):
        load_syllabus(tmp_path / "none.py")
    with pytest.raises(ConfigError, match=r"must end in \.py"):
        syllabus_of(tmp_path, GOOD, "tasks.txt")


# -- rollouts and steps ------------------------------------------------------------------------------------------------


def row(name: str) -> TrainingRow:
    return TrainingRow(
        row_id=name,
        episode_id=name,
        call_ids=(name,),
        session_id=name,
        prompt_ids=(1, 2),
        completion_ids=(3, 4, 5),
        mask=(True, False, True),
        logprobs=(-1.0, -0.5, -2.0),
        versions=(0, 0, 0),
        temperature=1.0,
    )


def result(task_id: str, index: int, reward: float | None, *, cause: Any = "finished", at: float = 100.0) -> Any:
    outcomes = () if reward is None else (Outcome(name="reward", reward=reward, by="check"),)
    rollout = Rollout(
        rollout_id=f"{task_id}/{index}",
        group_id=task_id,
        task_id=task_id,
        role="agent",
        index=index,
        state="ended",
        instructions=("Do it.",),
        cause=cause,
        created_at=at,
        ended_at=at,
        outcomes=outcomes,
    )
    excluded = None if reward is not None else f"{cause}: it is not installed."
    return RolloutResult(rollout=rollout, rows=(row(rollout.rollout_id),), excluded=excluded)


def test_a_rollout_that_takes_no_part_has_neither_reward_nor_rows() -> None:
    good = graded(result("a", 0, 0.25))
    assert (good.reward, good.group, len(good.rows), good.cause) == (0.25, ("a", "agent"), 1, "")
    lost = graded(result("a", 1, None, cause="harness_failed"))
    assert (lost.reward, lost.group, lost.rows, lost.cause) == (None, ("a", "agent"), (), "harness_failed")
    untrained = graded(replace(result("a", 2, 0.5), excluded="no_trainable_token: a logprob is missing (1)"))
    assert (untrained.reward, untrained.rows, untrained.cause) == (None, (), "no_trainable_token")


class Desk:
    """Answers submissions from a table of rewards by task, and remembers what it was asked."""

    def __init__(self, rewards: Mapping[str, Sequence[float | None]], *, ended_at: Sequence[float] = (100.0,)) -> None:
        self.rewards = rewards
        self.ended_at = list(ended_at)
        self.asked: list[Mapping[str, Task]] = []
        self.queued: list[Mapping[str, Task]] = []

    def check(self, tasks: Sequence[Task]) -> None:
        """All of them can be run."""

    def submit(self, tasks: Mapping[str, Task]) -> None:
        self.queued.append(tasks)

    def run(self, tasks: Mapping[str, Task]) -> dict[str, list[RolloutResult]]:
        self.asked.append(tasks)
        at = self.ended_at.pop(0) if len(self.ended_at) > 1 else self.ended_at[0]
        return {
            key: [
                result(task.task_id, index, reward, cause="harness_failed" if reward is None else "finished", at=at)
                for index, reward in enumerate(self.rewards[task.task_id][: task.num_samples])
            ]
            for key, task in tasks.items()
        }


def task(task_id: str, **more: Any) -> Task:
    given = {"instructions": ("Do it.",), "harness": "command", "graders": {"exit_status": {"command": ["true"]}}}
    return Task(task_id=task_id, **{**given, **more})


def scored(rows: Sequence[Datum]) -> list[tuple[float, ...]]:
    return [(-0.25,) * len(row.completion_ids) for row in rows]


def source(desk: Desk, *, train: Sequence[Task] | None = None, since: float = 50.0, **changed: Any) -> GroupSource:
    config = Config.model_validate(
        {"gateway": {"model_name": "clerk"}, "train": {"groups": 2, "samples": 2, "eval_every": 2, **changed}}
    )

    def version(step: int) -> PolicyVersion:
        return PolicyVersion(
            version=7 + step, parent=0, status="candidate", adapter_path=None, digest="", created_at=0.0
        )

    syllabus = Syllabus(train=tuple(train or (task("a"), task("b"))), heldout=(task("c"), task("d")))
    algorithm = algorithm_of(config.train.algorithm, config.train.options)
    return GroupSource(syllabus, desk, algorithm, version, scored, config, "run_1", since)


REWARDS = {"a": (1.0, 0.0), "b": (0.5, 0.5), "c": (1.0, 1.0), "d": (None, 1.0)}


def test_a_step_asks_for_its_groups_under_its_own_version() -> None:
    desk = Desk(REWARDS)
    batch = source(desk, eval_every=0).batch(1)
    (asked,) = desk.asked
    assert sorted(key.rsplit(":", 2)[0] for key in asked) == ["run_1:step 1:v8:a", "run_1:step 1:v8:b"]
    assert {one.model for one in asked.values()} == {"clerk@8"} and {one.num_samples for one in asked.values()} == {2}
    assert batch.on_policy
    # Group a has a signal, group b has none: its rewards are equal.
    (stream,) = batch.streams
    assert {(row.row_id, row.advantages[0]) for row in stream.rows} == {("a/0", 0.5), ("a/1", -0.5)}
    assert batch.facts["reward"] == 0.5 and batch.facts["with_signal"] == 2
    assert batch.facts["left_out/its group has no signal"] == 2
    assert "heldout_reward" not in batch.facts


def test_every_so_many_steps_held_out_tasks_are_run_once_beside_them() -> None:
    desk = Desk({**REWARDS, "d": (0.5,)})
    assert source(desk).batch(2).facts["heldout_reward"] == 0.75
    heldout = desk.asked[1]
    assert sorted(key.rsplit(":", 2)[0] for key in heldout) == ["run_1:eval 2:v9:c", "run_1:eval 2:v9:d"]
    assert {one.num_samples for one in heldout.values()} == {1}
    # A task whose rollout has no reward is no zero.
    assert source(Desk(REWARDS)).batch(0).facts["heldout_reward"] == 1.0
    desk = Desk(REWARDS)
    assert "heldout_reward" not in source(desk).batch(1).facts and len(desk.asked) == 1


def test_the_same_step_has_the_same_keys_and_a_changed_task_another() -> None:
    desk = Desk(REWARDS)
    source(desk).batch(1)
    source(desk).batch(1)
    source(desk, train=[task("a", instructions=("Do it well.",)), task("b")]).batch(1)
    source(desk, samples=3).batch(1)
    first, again, changed, more = map(set, desk.asked)
    assert first == again
    assert len(first & changed) == 1 and {key.split(":")[3] for key in first & changed} == {"b"}
    assert not first & more


def test_a_batch_without_a_reward_is_an_error_that_names_the_cause() -> None:
    desk = Desk({**REWARDS, "a": (None, None), "b": (None, None)})
    with pytest.raises(HarnessError) as none:
        source(desk).batch(1)
    assert none.value.message == (
        "None of the 4 rollouts of step 1 could be graded; 4 of them: harness_failed: it is not installed."
    )
    assert "practicum train" in none.value.hint and len(desk.asked) == 1


def test_what_failed_in_an_earlier_process_is_asked_for_anew_once() -> None:
    desk = Desk({**REWARDS, "a": (None, None), "b": (None, None)}, ended_at=[10.0, 20.0, 60.0])
    with pytest.raises(HarnessError):
        source(desk, since=50.0).batch(1)
    assert [sorted(key.rsplit(":", 1)[1] for key in asked) for asked in desk.asked] == [["0"] * 2, ["1"] * 2, ["2"] * 2]


def named(asked: Mapping[str, Task]) -> list[str]:
    """Step, version and task of each submission key."""
    return sorted(key.removeprefix("run_1:").rsplit(":", 2)[0] for key in asked)


def test_groups_are_admitted_ahead_and_trained_in_the_order_of_admission() -> None:
    desk = Desk(REWARDS)
    asynchronous = source(desk, eval_every=0, max_staleness=2, steps=4)
    assert not asynchronous.batch(0).on_policy
    # Step 0 finds nothing under way: the groups of steps 1 and 2 begin under its weights, and those of 3 later.
    assert [named(each) for each in desk.queued] == [
        ["step 1:v7:a", "step 1:v7:b"],
        ["step 2:v7:a", "step 2:v7:b"],
    ]
    asynchronous.batch(1)
    assert named(desk.asked[1]) == ["step 1:v7:a", "step 1:v7:b"], "it trains what was admitted for it"
    assert named(desk.queued[-1]) == ["step 3:v8:a", "step 3:v8:b"]
    before = len(desk.queued)
    asynchronous.batch(3)
    assert len(desk.queued) == before, "nothing is admitted behind the last step"


def test_staleness_is_counted_token_by_token_from_the_weights_that_sampled_it() -> None:
    class Later(Desk):
        """Sampling went on under newer weights: the last token's version is 9, that of step 2."""

        def run(self, tasks: Mapping[str, Task]) -> dict[str, list[RolloutResult]]:
            return {
                key: [replace(one, rows=tuple(replace(r, versions=(7, None, 9)) for r in one.rows)) for one in results]
                for key, results in super().run(tasks).items()
            }

    facts = source(Later(REWARDS), eval_every=0, max_staleness=2).batch(2).facts
    assert (facts["staleness"], facts["staleness_max"]) == (1.0, 2.0)
    assert "staleness" not in source(Desk(REWARDS), eval_every=0).batch(2).facts


def test_tasks_are_drawn_by_what_was_known_of_them_when_they_were_admitted() -> None:
    names = [f"t{number}" for number in range(40)]
    rewards = {name: (1.0, 1.0) if number < 20 else (1.0, 0.0) for number, name in enumerate(names)}
    drawn = source(Desk(rewards), train=[task(n) for n in names], groups=8, eval_every=0, curriculum="pass_rate")
    easy = [sum(one.task_id in names[:20] for one in drawn._plan(step)) for step in (0,)]
    for step in range(30):
        drawn.batch(step)
    late = sum(one.task_id in names[:20] for step in range(30, 60) for one in drawn._plan(step)) / 30
    assert late < 2.5 and easy[0] >= 2, "what always succeeds is drawn a fifth as often as what sometimes does"
    resumed = source(Desk(rewards), train=[task(n) for n in names], groups=8, eval_every=0, curriculum="pass_rate")
    assert resumed._plan(30) != drawn._plan(30)
    resumed.restore(json.loads(json.dumps(drawn.state())))
    assert resumed._plan(30) == drawn._plan(30)
    # What came of the steps that were not known yet changes nothing about a step admitted ahead of them.
    ahead = source(Desk(rewards), train=[task(n) for n in names], groups=8, curriculum="pass_rate", max_staleness=3)
    ahead.restore({"rates": {"0": rates_of(drawn, 0)}})
    planned = ahead._plan(4)
    ahead.restore({"rates": {str(step): rates_of(drawn, step) for step in range(4)}})
    assert ahead._plan(4) == planned


def rates_of(drawn: GroupSource, step: int) -> Any:
    return drawn.state()["rates"][str(step)]


def test_own_environments_are_sampled_as_the_run_says_and_by_its_seed() -> None:
    own = [task("a", harness="environment", options={"sampling": {"max_tokens": 8, "temperature": 1.0}}), task("b")]
    desk = Desk(REWARDS)
    source(desk, train=own, eval_every=0, sampling={"temperature": 0.7}, spare_samples=3).batch(1)
    (asked,) = desk.asked
    options = {one.task_id: one.options for one in asked.values()}
    assert options["a"] == {"sampling": {"max_tokens": 8, "temperature": 0.7}, "seed": _seed(0, "step 1")}
    assert options["b"] == {}, "a black box chooses for itself"
    assert {(one.num_samples, one.stop_after) for one in asked.values()} == {(5, 2)}


def test_an_algorithm_that_fills_its_batch_gets_further_groups_and_stops_after_so_many_rounds() -> None:
    names = [f"t{number}" for number in range(8)]
    rewards = {name: (1.0, 0.0) if name == "t7" else (0.5, 0.5) for name in names} | {"c": (1.0,), "d": (1.0,)}
    tasks = [task(name) for name in names]
    desk = Desk(rewards)
    batch = source(desk, train=tasks, eval_every=0, algorithm="dapo", groups=1, resample_rounds=20).batch(0)
    asked = [one.task_id for each in desk.asked for one in each.values()]
    assert "t7" in asked and len(asked) == len(set(asked)) and batch.facts["groups"] == len(asked)
    assert {row.row_id for row in batch.streams[0].rows} == {"t7/0", "t7/1"}
    desk = Desk({**rewards, "t7": (1.0, 1.0)})
    batch = source(desk, train=tasks, eval_every=0, algorithm="dapo", groups=2, resample_rounds=2).batch(0)
    assert [len(each) for each in desk.asked] == [2, 2, 2] and not batch.streams[0].rows
    assert batch.facts["left_out/its group has no signal"] == 12


def test_an_algorithm_that_asks_for_the_trainer_s_own_logprobs_gets_them() -> None:
    made = source(Desk(REWARDS), eval_every=0, options={"against": "proximal", "tis_cap": 2.0}).batch(0)
    assert {row.old_logprobs for row in made.streams[0].rows} == {(-0.25,) * 3}
    assert {row.old_logprobs for row in source(Desk(REWARDS), eval_every=0).batch(0).streams[0].rows} == {None}
