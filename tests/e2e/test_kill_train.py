"""A training run that is killed ends at the same weights, to the bit, as one that nothing disturbed.

Pins: SIGKILL at random points (while rollouts run, while the trainer works) in synchronous mode; what had ended is not
run again; one set of figures a step.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from practicum.store import open_store
from tests.e2e.conftest import Cli, settings

TASKS = '''
from practicum.environments import Environment, multi_turn, single_turn

def early(answer, task):
    return len(set(answer[:8])) / 8

class Twice(Environment):
    """Two answers, the later one counts."""
    max_turns = 2
    def reset(self, task):
        return task["ask"]
    def reply(self, text):
        return "And more?"
    def verify(self):
        return len(set(self.answer)) / 32

TRAIN = [single_turn(f"one {n}", f"Say {n}.", early, max_tokens=12) for n in range(4)]
TRAIN += [multi_turn(f"two {n}", Twice, {"ask": f"Tell {n}."}, max_tokens=12) for n in range(4)]
HELDOUT = [single_turn(f"held {n}", f"Speak {n}.", early, max_tokens=12) for n in range(8)]
'''
STEPS, GROUPS, SAMPLES = 5, 3, 4
TRAIN = f"""
[train]
tasks = "tasks.py"
steps = {STEPS}
groups = {GROUPS}
samples = {SAMPLES}
learning_rate = 0.02
curriculum = "pass_rate"
gate = false
[rollouts]
sandbox = "local"
run = 6
"""

IN_FLIGHT = ("train.max_staleness=2", "train.in_flight=true", "rollouts.run=1")


def home(folder: Path, tiny: Path) -> Cli:
    cli = Cli(folder, settings(tiny) + TRAIN)
    (folder / "tasks.py").write_text(TASKS, encoding="utf-8")
    return cli


def ended(cli: Cli) -> int:
    if not (cli.home / "practicum.db").exists():
        return 0
    with open_store(cli.home / "practicum.db") as store:
        groups = [store.get_group(group.group_id) for group in store.groups(limit=1000)]
    return sum(one.state == "ended" for group in groups for one in group.rollouts)


def finished(cli: Cli) -> tuple[str, list[dict[str, float]]]:
    """The digest of the weights it came to, and the figures of its steps that do not tell of time."""
    with open_store(cli.home / "practicum.db") as store:
        (run,) = store.runs()
        outputs = {step.step: step.output for step in store.run_steps(run.run_id)}
    log = outputs["train"]["log"]
    assert [figures["step"] for figures in log] == list(range(STEPS))
    return outputs["train"]["digest"], [{k: v for k, v in f.items() if not k.endswith("_s")} for f in log]


def killed(cli: Cli, points: list[int]) -> None:
    """Kill it whenever so many rollouts have ended, then let it come to its end."""
    for point in points:
        process = cli.start("train")
        deadline = time.monotonic() + 240
        while ended(cli) < point:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    cli.run("train")


@pytest.mark.slow
def test_kill_9_at_five_random_points_changes_no_bit(tmp_path: Path, tiny_folder: Path) -> None:
    rng = random.Random(4)
    points = sorted(rng.sample(range(1, STEPS * GROUPS * SAMPLES), 5))
    whole = home(tmp_path / "whole", tiny_folder)
    killed(whole, [])
    disturbed = home(tmp_path / "disturbed", tiny_folder)
    killed(disturbed, points)
    assert finished(disturbed) == finished(whole), json.dumps(points)


@pytest.mark.slow
def test_what_was_admitted_ahead_goes_on_under_newer_weights(tmp_path: Path, tiny_folder: Path) -> None:
    cli = home(tmp_path, tiny_folder)
    # One rollout at a time: those of the later steps still wait when the first weights are new.
    cli.run("train", *(part for each in IN_FLIGHT for part in ("--set", each)))
    with open_store(cli.home / "practicum.db") as store:
        calls = store.calls()
    newer = [call for call in calls if set(call.versions) - {call.policy_version}]
    assert newer and all(min(call.versions) >= call.policy_version for call in newer)
    _, log = finished(cli)
    assert all(0 <= figures["staleness"] <= figures["staleness_max"] <= 2 for figures in log[1:])
