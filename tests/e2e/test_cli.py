"""The command line in processes of its own: light to start, exit statuses with a meaning, errors with a way out.

Pins: `--help` and the gateway's import load no torch; 2 for wrong use, with what would be right; 0 otherwise.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import startup

# What each may never load, beside torch and what comes with it.
MODEL_PACKAGES = {"torch", "transformers", "peft"}


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PRACTICUM_")}
    command = [sys.executable, "-m", "practicum", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home)


def test_help_imports_nothing_heavy_and_is_quick(tmp_path: Path) -> None:
    assert {*startup.HEAVY, "apsw", "pydantic"}.isdisjoint(startup.imported(startup.HELP))
    assert MODEL_PACKAGES.isdisjoint(startup.imported(startup.GATEWAY))
    done = run(tmp_path, "--help")
    assert done.returncode == 0 and done.stderr == ""
    for verb in ("serve", "learn", "report", "release", "keys", "feedback", "config", "model", "demo"):
        assert verb in done.stdout
    # The goal is 0.3 s on a quiet machine; the quickest of a few says what the code takes, the bound allows for load.
    assert min(startup.help_s() for _ in range(3)) < 4 * startup.GOAL_S


@pytest.mark.parametrize("verb", ["serve", "learn", "report", "demo"])
def test_every_verb_has_help_without_a_model(tmp_path: Path, verb: str) -> None:
    done = run(tmp_path, verb, "--help")
    assert done.returncode == 0 and "Usage" in done.stdout


@pytest.mark.parametrize("verb", [["serve"], ["learn"], ["config", "show"]])
def test_an_unknown_key_is_wrong_use_and_its_nearest_match_is_named(tmp_path: Path, verb: list[str]) -> None:
    done = run(tmp_path, *verb, "--set", "sever.port=1")
    assert done.returncode == 2 and done.stdout == ""
    assert "'sever.port' is not known" in done.stderr and "Did you mean server.port?" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".practicum").exists()


def test_a_setting_without_a_value_and_one_that_does_not_fit_are_wrong_use(tmp_path: Path) -> None:
    bare = run(tmp_path, "config", "show", "--set", "server.port")
    assert bare.returncode == 2 and "section.key=value" in bare.stderr
    text = run(tmp_path, "config", "show", "--set", "server.port=many")
    assert text.returncode == 2 and "server.port" in text.stderr and "'many'" in text.stderr
    shown = run(tmp_path, "config", "show", "--set", "server.port=81", "--origin")
    assert shown.returncode == 0 and "server.port = 81    (override)" in shown.stdout


def test_a_report_without_a_run_says_how_to_get_one(tmp_path: Path) -> None:
    done = run(tmp_path, "report", "--home", str(tmp_path / "home"))
    assert done.returncode == 2 and done.stdout == ""
    assert "practicum learn" in done.stderr and "Traceback" not in done.stderr


def test_the_model_verb_says_how_the_template_is_read(tmp_path: Path) -> None:
    done = run(tmp_path, "model", "--set", "model.id=scripted", "--json")
    assert done.returncode == 0 and done.stderr == ""
    facts = json.loads(done.stdout)
    assert facts["family"] == "plain" and facts["calls"] == "hermes" and facts["tool definitions"] == "text"
    assert "a call: writes a call's arguments anew" in facts["findings"]


def test_a_rollback_with_nothing_behind_it_is_wrong_use(tmp_path: Path) -> None:
    home = ["--home", str(tmp_path / "home")]
    done = run(tmp_path, "release", "rollback", *home)
    assert done.returncode == 2 and "there is nothing before it" in done.stderr
    unknown = run(tmp_path, "release", "rollback", "7", *home)
    assert unknown.returncode == 2 and "There is no policy version 7" in unknown.stderr
    assert "practicum release list" in unknown.stderr
    listed = run(tmp_path, "release", "list", *home)
    assert listed.returncode == 0 and "*    0  live" in listed.stdout
