"""The whole loop through public doors on a real, tiny model: serve, feedback, learn, gate, swap, report, rollback.

Pins: a promoted version is served without a restart and named in the answers; a rollback is a pointer move; feedback
that comes days later joins the version that answered (V4); every update has a report (V2); a learner that is killed
at any point resumes to the same weights; nothing half-written goes live.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from openai import OpenAI

from practicum.client import Client
from practicum.store import open_store
from tests.e2e.conftest import Cli, Served, settings

DECIDED = (0, 3)  # promoted, or refused by the gate
WANTED = "send another one ."


def converse(served: Served, key: str, n: int) -> list[str]:
    client = OpenAI(base_url=f"{served.url}/v1", api_key=key)
    ids = []
    for index in range(n):
        completion = client.chat.completions.create(
            model="practicum",
            messages=[{"role": "user", "content": f"the lamp number {index} is broken"}],
            max_tokens=12,
            seed=index,
        )
        ids.append(completion.id)
    return ids


def a_day(cli: Cli, n: int = 24) -> None:
    """Answers, and on every one a corrected answer or a comment."""
    with cli.serving() as served:
        key = cli.key()
        calls = converse(served, key, n)
        with Client(base_url=served.url, api_key=key) as people:
            for index, call in enumerate(calls):
                if index % 3 == 2:
                    people.comment(call, f"please send another one, remark {index}", user=f"u{index}")
                else:
                    people.correct(call, WANTED, user=f"u{index}")


def test_the_loop_end_to_end(cli: Cli) -> None:
    with cli.serving() as served:
        key = cli.key()
        calls = converse(served, key, 24)
        with Client(base_url=served.url, api_key=key) as people:
            for index, call in enumerate(calls):
                people.correct(call, WANTED, user=f"u{index}")
            people.comment(calls[0], "shorter please", user="u0")
        learned = json.loads(cli.run("learn", "--json"))
        assert learned["verdict"] == "promote", learned
        served.wait_for_version(1)
        completion = OpenAI(base_url=f"{served.url}/v1", api_key=key).chat.completions.create(
            model="practicum",
            messages=[{"role": "user", "content": "the lamp is broken"}],
            max_tokens=12,
            temperature=0,
        )
        assert completion.model == "practicum@1"
        assert (completion.choices[0].message.content or "").startswith("send")  # as the corrected answers do
        with open_store(cli.home / "practicum.db") as store:
            call = store.get_call(completion.id.removeprefix("chatcmpl-"))
            assert call is not None and set(call.versions) == {1}
            first = store.get_call(calls[0].removeprefix("chatcmpl-"))
            assert first is not None and set(first.versions) == {0}
            assert not first.text.startswith("send")
        # V4: feedback on an answer of version 0 while version 1 is live still joins the exact call.
        with Client(base_url=served.url, api_key=key) as people:
            late = people.outcome(calls[3], True)
        assert late.target_id == calls[3].removeprefix("chatcmpl-")
        report = json.loads(cli.run("report", "--json"))
        assert WANTED in json.dumps(report)
        assert "*    1  live" in cli.run("release", "list")
        cli.run("release", "rollback", "--reason", "trying it out")
        served.wait_for_version(0)
        assert served.process.poll() is None


@pytest.fixture(scope="module")
def day_home(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A home with a day of calls and feedback, to be copied."""
    home = tmp_path_factory.mktemp("day") / "home"
    a_day(Cli(home, settings(tiny_folder)))
    return home


def copy_of(home: Path, place: Path) -> Cli:
    shutil.copytree(home, place)
    return Cli(place, (home / "practicum.toml").read_text())


def figures(cli: Cli) -> tuple[str, str]:
    """Manifest digest and adapter digest of the newest run."""
    with open_store(cli.home / "practicum.db") as store:
        (run,) = store.runs()
        steps = {step.step: step.output for step in store.run_steps(run.run_id)}
    return steps["curate"]["manifest"]["digest"], steps["train"]["digest"]


def test_kill_9_anywhere_resumes_to_the_same_weights(day_home: Path, tmp_path: Path) -> None:
    undisturbed = copy_of(day_home, tmp_path / "undisturbed")
    began = time.monotonic()
    undisturbed.run("learn", status=DECIDED)
    whole_s = time.monotonic() - began
    wanted = figures(undisturbed)
    disturbed = copy_of(day_home, tmp_path / "disturbed")
    kills = 0
    for share in (0.35, 0.5, 0.6, 0.7, 0.8, 0.9):
        process = disturbed.start("learn")
        try:
            process.wait(timeout=whole_s * share)
            break
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
        with open_store(disturbed.home / "practicum.db") as store:
            live = store.live_policy()
            decided = {decision.version for decision in store.decisions()}
            assert live.version == 0 or live.version in decided
    with open_store(disturbed.home / "practicum.db") as store:
        unfinished = [run for run in store.runs() if run.state == "running"]
    if unfinished:
        disturbed.run("learn", status=DECIDED)
    assert kills > 0
    assert figures(disturbed) == wanted
    with open_store(disturbed.home / "practicum.db") as store:
        assert len(store.policies()) == 2
        assert len(store.decisions()) == 1


def test_a_second_learner_is_told_to_wait(day_home: Path, tmp_path: Path) -> None:
    cli = copy_of(day_home, tmp_path / "home")
    with open_store(cli.home / "practicum.db") as store:
        assert store.acquire_lease("learner", "elsewhere:1", 600).result() is not None
        process = cli.start("learn")
        _, err = process.communicate()
    assert process.returncode == 2
    assert "Another learner" in err


def test_without_feedback_learning_says_what_is_missing(cli: Cli) -> None:
    process = cli.start("learn")
    _, err = process.communicate()
    assert process.returncode == 2
    assert "0 sessions have usable feedback" in err
