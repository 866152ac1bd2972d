"""`practicum train` as a user runs it: exit statuses, reports, what its errors say, and a run that is killed.

Pins: 0 where the gate promotes, 3 where it refuses or the run stops itself, 2 for tasks that cannot be run, 1 where
nothing could be graded; SIGKILL within a step loses no rollout that had ended; a version that was a step's can be
served to nobody.
"""

import json
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from practicum.store import open_store
from practicum.types.rollouts import Rollout
from tests.e2e.conftest import Cli
from tests.e2e.training_world import train_settings, write_tasks


def a_trainee(tmp_path: Path, tiny_folder: Path, *, steps: int, more: str = "{}") -> Cli:
    return Cli(tmp_path / "home", train_settings(tiny_folder, write_tasks(tmp_path / "tasks", more=more), steps=steps))


def failed(cli: Cli, *arguments: str) -> tuple[int, str]:
    process = cli.start("train", *arguments)
    _, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    return process.returncode, err


@pytest.mark.slow
def test_promoted_then_refused_and_each_has_its_report(tmp_path: Path, tiny_folder: Path) -> None:
    cli = a_trainee(tmp_path, tiny_folder, steps=2)
    told = json.loads(cli.run("train", "--json", "--set", "gate.min_gain=-1"))
    assert told["verdict"] == "promote" and told["decision"]["version"] == 2
    report = json.loads(cli.run("report", "--json"))
    assert (report["kind"], report["state"], report["live"]) == ("train", "promoted", 2)
    assert [figures["rollouts"] for figures in report["log"]] == [16, 16]
    refused = cli.run("train", "--set", "gate.min_gain=0.99", "--set", "train.steps=1", status=(3,))
    assert refused.startswith("refuse version 3: target: reward on held-out tasks")
    shown = cli.run("report")
    assert "mean reward on held-out tasks" in shown and "held-out tasks the mean reward went" in " ".join(shown.split())
    assert "feedback" not in shown and "words in an answer" not in shown
    (page,) = (cli.home / "runs" / report["run_id"]).glob("report.html")
    assert "Mean reward on held-out tasks" in page.read_text() and "What people asked for" not in page.read_text()
    listed = cli.run("release", "list")
    assert "     1  dropped    weights before step 1" in listed and "*    2  live" in listed
    with cli.serving() as served:
        body = {"model": "practicum@1", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        headers = {"authorization": f"Bearer {cli.key()}"}
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=headers, timeout=240)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found", answer.text
        assert "`practicum@2`" in answer.json()["error"]["message"]
    # What a step sampled cannot be recomputed any more; the calls of the live policy can.
    assert json.loads(cli.run("report", "--harness", "--recompute", "--json"))


def rollouts(cli: Cli) -> dict[str, Rollout]:
    with open_store(cli.home / "practicum.db") as store:
        groups = [store.get_group(group.group_id) for group in store.groups(limit=1000)]
    return {one.rollout_id: one for group in groups for one in group.rollouts}


@pytest.mark.slow
def test_kill_9_within_a_step_loses_no_rollout_that_had_ended(tmp_path: Path, tiny_folder: Path) -> None:
    cli = a_trainee(tmp_path, tiny_folder, steps=3)
    process = cli.start("train")
    deadline = time.monotonic() + 240
    while len([one for one in rollouts(cli).values() if one.state == "ended"]) < 20:  # in step 1, of 16 rollouts each
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = {name: one for name, one in rollouts(cli).items() if one.state == "ended"}
    assert len(before) < 48
    cli.run("train", status=(0, 3))
    after = rollouts(cli)
    assert {name: after[name] for name in before} == before
    assert len(after) == 3 * 16 + 16 and all(one.cause == "finished" for one in after.values())
    with open_store(cli.home / "practicum.db") as store:
        assert [run.state for run in store.runs()] == ["finished"] and len(store.decisions()) == 1
        (train,) = [step.output for step in store.run_steps(store.runs()[0].run_id) if step.step == "train"]
    assert [figures["graded"] for figures in train["log"]] == [16, 16, 16]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("{'harness': 'clippy'}", ("Task 'late0': There is no harness 'clippy'.", "There are: ")),
        ("{'graders': {}}", ("task 'late0' has no grader", "first outcome is the reward")),
        ("{'num_samples': 0}", ("tasks.py cannot be loaded", "`num_samples` must be at least 1")),
    ],
)
def test_tasks_that_cannot_be_run_are_refused_before_anything_is(
    tmp_path: Path, tiny_folder: Path, more: str, said: tuple[str, str]
) -> None:
    cli = a_trainee(tmp_path, tiny_folder, steps=1, more=more)
    status, err = failed(cli)
    assert status == 2 and all(part in err for part in said), err
    assert not rollouts(cli)
    with open_store(cli.home / "practicum.db") as store:
        assert not store.runs()


def test_without_a_file_of_tasks_it_says_how_to_give_one(cli: Cli) -> None:
    status, err = failed(cli)
    assert status == 2 and "--tasks" in err


def test_rollouts_that_all_fail_end_it_with_their_cause(tmp_path: Path, tiny_folder: Path) -> None:
    cli = a_trainee(tmp_path, tiny_folder, steps=4, more="{'options': {'command': ['true']}}")
    status, err = failed(cli)
    assert status == 1
    assert "None of the 16 rollouts of step 0 could be graded; 16 of them: no_model_call: no model call came." in err
    assert "run `practicum train` again" in err
    assert len(rollouts(cli)) == 16, "it does not try step after step"
    assert "has not finished" in " ".join(cli.run("report").split())


def test_a_run_that_stops_itself_has_a_status_and_a_reason(tmp_path: Path, tiny_folder: Path) -> None:
    cli = a_trainee(tmp_path, tiny_folder, steps=4, more="{'graders': {'exit_status': {'command': ['true']}}}")
    process = cli.start("train")
    out, _ = process.communicate()
    assert process.returncode == 3
    assert out.startswith(
        "stopped: 2 steps in a row had no signal; of the last one's rollouts were left out: 16 because"
    )
