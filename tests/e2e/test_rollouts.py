"""Rollouts as a user runs them: `practicum serve --rollouts`, `practicum rollout ...`, a real process as the agent."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli

AGENT = """
import json, os, sys, urllib.request
body = {"model": os.environ["PRACTICUM_MODEL"], "messages": [{"role": "user", "content": sys.argv[1]}]}
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
answer = json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
open("answer.txt", "w").write(answer["choices"][0]["message"]["content"])
"""
GRADERS = """
from practicum.types.outcomes import Outcome


class Says:
    def __init__(self, options):
        self.word = options["word"]

    async def grade(self, evidence):
        answer = await evidence.sandbox.read("answer.txt")
        return [Outcome(name="says", reward=float(self.word in answer), by="says")]
"""


CHECKS = """
def wrote(end):
    return {"file": bool(end.files["answer.txt"]), "calls": len(end.calls), "asked": end.question == "Say lamp."}


GRADERS = {"wrote": wrote}
"""


@pytest.mark.parametrize("sandbox", ["local", "auto"])
def test_submit_collect_and_cancel_from_the_command_line(tmp_path: Path, sandbox: str) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "final.py").write_text(CHECKS)
    toml = f'[model]\nid = "scripted"\n[rollouts]\nsandbox = "{sandbox}"\ngraders_folder = "{tmp_path}/checks"\n'
    toml += '[rollouts.graders]\nsays = "our_graders:Says"\n'
    cli = Cli(tmp_path / "home", toml)
    (cli.config.parent / "our_graders.py").write_text(GRADERS)  # found there, and nowhere else
    task = {
        "task_id": "t",
        "instructions": ["Say lamp."],
        "harness": "command",
        "options": {"command": [sys.executable, "agent.py", "{instruction}"]},
        "files": {"agent.py": AGENT},
        "graders": {
            "says": {"word": "lamp"},
            "exit_status": {"command": ["grep", "-q", "no such word", "answer.txt"]},
            "python": {"path": "final.py"},
        },
        "num_samples": 2,
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    key = cli.key("team", "rollout")
    with cli.serving("--rollouts") as served:
        cli.environment |= {"PRACTICUM_BASE_URL": served.url, "PRACTICUM_API_KEY": key}
        group_id = cli.run_plain("rollout", "submit", str(tmp_path / "task.json"), "--key", "k").strip()
        assert cli.run_plain("rollout", "submit", str(tmp_path / "task.json"), "--key", "k").strip() == group_id
        results = [json.loads(line) for line in cli.run_plain("rollout", "collect", group_id).splitlines()]
        status = json.loads(cli.run_plain("rollout", "status", group_id))
        assert json.loads(cli.run_plain("rollout", "cancel", group_id)) == {"ended": 2}
        (tmp_path / "task.json").write_text(json.dumps(task | {"submission_key": "own"}))
        cli.run_plain("rollout", "submit", str(tmp_path / "task.json"), "--key", "k", status=(2,))
        (tmp_path / "task.json").write_text(json.dumps(task | {"harness": "none"}))
        cli.run_plain("rollout", "submit", str(tmp_path / "task.json"), status=(2,))
    reported = json.loads(cli.run("report", "--harness", "--json"))["harnesses"]
    assert [(one["harness"], one["calls"]) for one in reported] == [("command", 2)]
    assert [(one["rollout"]["cause"], one["rollout"]["error"]) for one in results] == [("finished", None)] * 2
    assert [(one["rollout"]["reward"], one["excluded"]) for one in results] == [(1.0, None)] * 2
    outcomes = [(one["name"], one["reward"]) for one in results[0]["rollout"]["outcomes"]]
    assert outcomes == [
        *(("says", 1.0), ("reward", 0.0)),
        *(("wrote/file", 1.0), ("wrote/calls", 1.0), ("wrote/asked", 1.0)),
    ]
    assert all(sum(one["rows"][0]["mask"]) > 10 for one in results)
    assert status["ended"] and status["counts"] == {"ended": 2}


def test_a_rollout_that_is_kept_open_goes_on_from_the_command_line(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home", '[model]\nid = "scripted"\n[rollouts]\nsandbox = "local"\n')
    task = {
        "task_id": "t",
        "instructions": ["Say lamp."],
        "harness": "command",
        "options": {"command": [sys.executable, "agent.py", "{instruction}"]},
        "files": {"agent.py": AGENT},
        "graders": {"exit_status": {"command": ["grep", "-q", "desk", "answer.txt"]}},
        "keep_open_s": 60,
        "submission_key": "k",
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    key = cli.key("team", "rollout")
    with cli.serving("--rollouts") as served:
        cli.environment |= {"PRACTICUM_BASE_URL": served.url, "PRACTICUM_API_KEY": key}
        group_id = cli.run_plain("rollout", "submit", str(tmp_path / "task.json")).strip()
        assert cli.run_plain("rollout", "submit", str(tmp_path / "task.json"), "--key", "k").strip() == group_id
        (one,) = json.loads(cli.run_plain("rollout", "status", group_id))["rollouts"]
        which = (group_id, one["rollout_id"])
        gone_on = json.loads(cli.run_plain("rollout", "continue", *which, "Say desk."))
        assert gone_on["instructions"] == ["Say lamp.", "Say desk."]
        again = json.loads(cli.run_plain("rollout", "continue", *which, "Say desk.", "--turn", "1"))
        assert again["instructions"] == gone_on["instructions"]
        for wrong in ((*which,), (*which, "x", "--end"), (group_id, "rollout_none", "x")):
            cli.run_plain("rollout", "continue", *wrong, status=(2,))
        cli.run_plain("rollout", "continue", *which, "--end")
        (ended,) = [json.loads(line) for line in cli.run_plain("rollout", "collect", group_id).splitlines()]
    assert (ended["rollout"]["cause"], ended["rollout"]["turns_done"]) == ("finished", 2)
