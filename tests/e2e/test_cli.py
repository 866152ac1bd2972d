"""The command line in processes of its own: light to start, exit statuses with a meaning, errors with a way out.

Pins: `--help` and the gateway's import load no torch; 2 for wrong use, with what would be right; 0 otherwise.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import startup

from practicum.engines.scripted import ScriptedSampler
from practicum.renderers import ByteTokenizer, Renderer
from practicum.store import open_store
from practicum.types.calls import ModelCall
from practicum.types.messages import Message
from practicum.types.tokens import SampleRequest

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


def test_a_report_per_harness_counts_and_recomputes(tmp_path: Path, tiny_folder: Path) -> None:
    home = ["--home", str(tmp_path / "home")]
    empty = run(tmp_path, "report", "--harness", *home)
    assert empty.returncode == 0 and "No model call is on record" in empty.stdout
    sampler = ScriptedSampler()
    prompt = Renderer(ByteTokenizer()).render([Message(role="user", content="Go.")])
    asyncio.run(record_one_call(tmp_path / "home" / "practicum.db", sampler, tuple(prompt)))
    scripted = tmp_path / "practicum.toml"
    scripted.write_text('[model]\nid = "scripted"\n', encoding="utf-8")
    done = run(tmp_path, "report", "--harness", "--recompute", "--json", "--config", str(scripted), *home)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["harnesses"]
    assert (found["harness"], found["calls"], found["rows"]) == ("Codex", 1, 1)
    assert found["logprob_gap"]["largest"] == 0.0 and found["logprob_gap"]["tokens"] == found["trained_tokens"] > 0
    shown = run(tmp_path, "report", "--harness", *home)
    assert "Codex" in shown.stdout and "not computed" in shown.stdout
    asked = ["report", "--harness", "--recompute", "--json", *home, "--model"]
    assert json.loads(run(tmp_path, *asked, "scripted").stdout)["harnesses"] == [found]
    other = run(tmp_path, *asked, str(tiny_folder))
    assert other.returncode == 2 and other.stdout == "" and "Traceback" not in other.stderr
    assert f"were not served by {tiny_folder}" in other.stderr and "--model" in other.stderr


async def record_one_call(path: Path, sampler: ScriptedSampler, prompt: tuple[int, ...]) -> None:
    chunks = [c async for c in sampler.sample(SampleRequest(request_id="r", prompt_ids=prompt, version=0))]
    ids = tuple(token for chunk in chunks for token in chunk.ids)
    known = tuple(value for chunk in chunks for value in chunk.logprobs)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_store(path) as store:
        store.put_call(
            ModelCall(
                text=sampler.tokenizer.decode(ids[:-1]),
                call_id="call_1", session_id="s", principal="team", kind="agent", status="complete", created_at=1.0,
                policy_version=0, model="practicum", request={}, prompt_ids=prompt, completion_ids=ids, logprobs=known,
                sampled_logprobs=known, versions=(0,) * len(ids), harness="Codex", episode_id="e",
            )
        ).result()  # fmt: skip


def test_a_rollback_with_nothing_behind_it_is_wrong_use(tmp_path: Path) -> None:
    home = ["--home", str(tmp_path / "home")]
    done = run(tmp_path, "release", "rollback", *home)
    assert done.returncode == 2 and "there is nothing before it" in done.stderr
    unknown = run(tmp_path, "release", "rollback", "7", *home)
    assert unknown.returncode == 2 and "There is no policy version 7" in unknown.stderr
    assert "practicum release list" in unknown.stderr
    listed = run(tmp_path, "release", "list", *home)
    assert listed.returncode == 0 and "*    0  live" in listed.stdout
