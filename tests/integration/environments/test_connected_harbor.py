"""A folder of Harbor tasks end to end: an agent in a sandbox, the task's own tests, a training row."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.environments.connected import rolled_out, says

from practicum.environments.harbor import tasks
from practicum.errors import UsageError
from practicum.sandboxes.bubblewrap import BubblewrapProvider


def _bubblewrap_works() -> bool:
    if shutil.which("bwrap") is None:
        return False
    command = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


BWRAP = pytest.mark.skipif(not _bubblewrap_works(), reason="bubblewrap is not installed or not allowed here")

# It asks the policy and writes what that said to out.txt.
AGENT = """
import json, os, sys, urllib.request
body = {"model": os.environ["PRACTICUM_MODEL"], "messages": [{"role": "user", "content": sys.argv[1]}]}
request = urllib.request.Request(
    os.environ["PRACTICUM_BASE_URL"] + "/v1/chat/completions", json.dumps(body).encode(),
    {"authorization": "Bearer " + os.environ["PRACTICUM_API_KEY"], "content-type": "application/json"})
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
open("out.txt", "w").write(open("given/prefix.txt").read() + answer)
"""
OPTIONS = {"command": [sys.executable, "-c", AGENT.strip(), "{instruction}"]}


def harbor_task(folder: Path, word: str, docker: str = "") -> Path:
    for name, text in {
        "task.toml": f'[task]\nname = "org/{folder.name}"\n[agent]\ntimeout_sec = 90.0\n'
        "[verifier]\ntimeout_sec = 20.0\n",
        "instruction.md": f"Say {word}.",
        "environment/Dockerfile": f"{docker}COPY given/ ./given\n",
        "environment/given/prefix.txt": "> ",
        "tests/test.sh": f'grep -qx "> {word}" out.txt && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_folder_is_tasks_with_their_own_times_and_tests(tmp_path: Path) -> None:
    for word in ("lamp", "tree"):
        harbor_task(tmp_path / "set" / word, word)
    lamp, tree = tasks(tmp_path / "set", harness="command", options=OPTIONS, num_samples=4)
    assert (lamp.task_id, tree.task_id) == ("org/lamp", "org/tree")
    assert lamp.graders == {"harbor": {"path": "lamp"}} and lamp.files == {"given/prefix.txt": "> "}
    assert (lamp.timeouts.agent_s, lamp.timeouts.grade_s, lamp.num_samples) == (90.0, 20.0, 4)
    (alone,) = tasks(tmp_path / "set" / "lamp", harness="command")
    assert alone.graders == {"harbor": {"path": "lamp"}}
    (below,) = tasks(tmp_path / "set" / "lamp", harness="command", within=tmp_path)
    assert below.graders == {"harbor": {"path": "set/lamp"}}


def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no task"):
        tasks(tmp_path, harness="command")
    one = harbor_task(tmp_path / "set" / "lamp", "lamp", docker="FROM python:3.12\n")
    with pytest.raises(UsageError, match="FROM python"):
        tasks(tmp_path / "set", harness="command")
    assert len(tasks(tmp_path / "set", harness="command", without=True)) == 1
    shutil.copytree(one, tmp_path / "set" / "again")
    with pytest.raises(UsageError, match="Two tasks"):
        tasks(tmp_path / "set", harness="command", without=True)
    (one / "environment/given/prefix.txt").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"given/prefix.txt .* no text"):
        tasks(one, harness="command", without=True)


@BWRAP
@pytest.mark.parametrize(("said", "reward"), [("lamp", 1.0), ("tree", 0.0)])
async def test_an_agent_works_on_a_task_and_its_own_tests_judge(tmp_path: Path, said: str, reward: float) -> None:
    harbor_task(tmp_path / "set" / "lamp", "lamp")
    (task,) = tasks(tmp_path / "set", harness="command", options=OPTIONS)
    boxes = BubblewrapProvider(tmp_path / "boxes")
    (one,) = await rolled_out(tmp_path, says(said), task, folder=tmp_path / "set", folders=boxes)
    assert one.rollout.cause == "finished", one.rollout.error
    assert one.reward == reward and len(one.rows) == 1, one.rollout
