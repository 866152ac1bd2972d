"""What each shipped adapter runs: command, stdin, environment and files, written by hand."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from typing import Any

import pytest

from practicum.errors import NotFound, UsageError
from practicum.harnesses.harness import Endpoint, HarnessJob
from practicum.harnesses.own_code import filled
from practicum.harnesses.registry import ADAPTERS, harness

ENDPOINT = Endpoint(base_url="http://127.0.0.1:1/s/r1", api_key="sk-1", model="practicum")
OPENAI = {
    "OPENAI_API_KEY": "sk-1",
    "OPENAI_BASE_URL": "http://127.0.0.1:1/s/r1/v1",
    "OPENAI_API_BASE": "http://127.0.0.1:1/s/r1/v1",
}
SDKS = {
    **OPENAI,
    "OPENAI_DEFAULT_MODEL": "practicum",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:1/s/r1",
    "ANTHROPIC_API_KEY": "sk-1",
    "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:1/s/r1",
    "GEMINI_API_KEY": "sk-1",
    "PRACTICUM_BASE_URL": "http://127.0.0.1:1/s/r1",
    "PRACTICUM_API_KEY": "sk-1",
    "PRACTICUM_MODEL": "practicum",
}
# name: command of the first turn, of a later one, environment, files below HOME
EXPECTED: dict[str, tuple[str, str, dict[str, str], dict[str, Any]]] = {
    "claude-code": (
        "claude -p --dangerously-skip-permissions --extra",
        "claude -p --dangerously-skip-permissions --continue --extra",
        {
            "ANTHROPIC_BASE_URL": "http://127.0.0.1:1/s/r1",
            "ANTHROPIC_API_KEY": "sk-1",
            "ANTHROPIC_MODEL": "practicum",
            "ANTHROPIC_DEFAULT_OPUS_MODEL": "practicum",
            "ANTHROPIC_DEFAULT_SONNET_MODEL": "practicum",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "practicum",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
        },
        {},
    ),
    "codex": (
        "codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox --extra -",
        "codex exec resume --last --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox --extra -",
        {"PRACTICUM_API_KEY": "sk-1"},
        {
            ".codex/config.toml": {
                "model": "practicum",
                "model_provider": "practicum",
                "model_providers": {
                    "practicum": {
                        "name": "Practicum",
                        "base_url": "http://127.0.0.1:1/s/r1/v1",
                        "env_key": "PRACTICUM_API_KEY",
                        "wire_api": "responses",
                    }
                },
            }
        },
    ),
    "gemini-cli": (
        "gemini --yolo --model practicum --extra",
        "gemini --yolo --model practicum --resume latest --extra",
        {
            "GEMINI_API_KEY": "sk-1",
            "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:1/s/r1",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        {
            ".gemini/settings.json": {
                "security": {"auth": {"selectedType": "gemini-api-key"}},
                "privacy": {"usageStatisticsEnabled": False},
                "general": {"enableAutoUpdate": False},
            }
        },
    ),
    "qwen-code": (
        "qwen --auth-type openai --yolo --extra",
        "qwen --auth-type openai --yolo --continue --extra",
        {**OPENAI, "OPENAI_MODEL": "practicum"},
        {
            ".qwen/settings.json": {
                "privacy": {"usageStatisticsEnabled": False},
                "general": {"enableAutoUpdate": False},
            }
        },
    ),
    "opencode": (
        "opencode run --extra",
        "opencode run --continue --extra",
        {
            "PRACTICUM_API_KEY": "sk-1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
        },
        {
            ".config/opencode/opencode.json": {
                "provider": {
                    "practicum": {
                        "npm": "@ai-sdk/openai-compatible",
                        "options": {"baseURL": "http://127.0.0.1:1/s/r1/v1", "apiKey": "{env:PRACTICUM_API_KEY}"},
                        "models": {"practicum": {}},
                    }
                },
                "model": "practicum/practicum",
                "small_model": "practicum/practicum",
                "permission": {"*": "allow"},
            }
        },
    ),
    "pi": (
        "pi -p --provider practicum --model practicum --extra",
        "pi -p --provider practicum --model practicum --continue --extra",
        {"PI_OFFLINE": "1"},
        {
            ".pi/agent/models.json": {
                "providers": {
                    "practicum": {
                        "baseUrl": "http://127.0.0.1:1/s/r1/v1",
                        "api": "openai-completions",
                        "apiKey": "sk-1",
                        "models": [{"id": "practicum"}],
                    }
                }
            }
        },
    ),
    "mini-swe-agent": (
        "mini --yolo --exit-immediately --model=openai/practicum --extra '--task=- Do it.'",
        "mini --yolo --exit-immediately --model=openai/practicum --extra '--task=- Do it.'",
        {
            **OPENAI,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_SILENT_STARTUP": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        {},
    ),
}


def job(turn: int = 0, **options: Any) -> HarnessJob:
    return HarnessJob(rollout_id="r1", instruction="- Do it.", endpoint=ENDPOINT, turn=turn, options=options)


def parsed(path: str, text: str) -> Any:
    return tomllib.loads(text) if path.endswith(".toml") else json.loads(text)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_coding_agent_is_started_as_its_makers_say(name: str) -> None:
    first, later, env, files = EXPECTED[name]
    adapter = ADAPTERS[name]()
    assert adapter.command(job(args=["--extra"])) == shlex.split(first)
    assert adapter.command(job(1, args=["--extra"])) == shlex.split(later)
    assert adapter.env(job()) == env
    assert {path: parsed(path, text) for path, text in adapter.files(job()).items()} == files
    assert adapter.stdin(job()) == ("" if name == "mini-swe-agent" else "- Do it.")


@pytest.mark.parametrize("name", EXPECTED)
def test_no_command_line_holds_the_key(name: str) -> None:
    assert not any("sk-1" in word for word in ADAPTERS[name]().command(job()))


def test_pi_speaks_three_protocols() -> None:
    for api, base in (("openai-responses", "/v1"), ("anthropic-messages", "")):
        (text,) = ADAPTERS["pi"]().files(job(api=api)).values()
        provider = json.loads(text)["providers"]["practicum"]
        assert (provider["api"], provider["baseUrl"]) == (api, f"http://127.0.0.1:1/s/r1{base}")
    with pytest.raises(UsageError, match="`api` is wrong"):
        ADAPTERS["pi"]().files(job(api="grpc"))


@pytest.mark.parametrize(
    ("name", "more", "needs"),
    [
        ("python", {}, "json"),
        ("openai-agents", {"OPENAI_AGENTS_DISABLE_TRACING": "1"}, "agents"),
        ("pydantic-ai", {}, "pydantic_ai"),
        ("langgraph", {"LANGSMITH_TRACING": "false"}, "langgraph"),
    ],
)
def test_a_framework_reads_the_endpoint_from_its_own_variables(name: str, more: dict[str, str], needs: str) -> None:
    adapter, script = ADAPTERS[name](), job(script=["agent.py", "{instruction}"], env={"MINE": "{model}"})
    assert adapter.command(script) == [sys.executable, "agent.py", "- Do it."]
    assert adapter.env(script) == {**SDKS, "PYTHONUNBUFFERED": "1", **more, "MINE": "practicum"}
    assert adapter.stdin(script) == ""
    called = job(1, function="agent.main:run", python="/venv/bin/python", path=["/team"])
    command = adapter.command(called)
    assert (command[0], command[1], command[3]) == ("/venv/bin/python", "-c", "agent.main:run")
    assert adapter.env(called)["PYTHONPATH"] == "/team"
    assert json.loads(adapter.stdin(called)) == {
        "instruction": "- Do it.", "turn": 1, "rollout_id": "r1",
        "endpoint": {"base_url": "http://127.0.0.1:1/s/r1", "api_key": "sk-1", "model": "practicum"},
    }  # fmt: skip
    assert f"'{needs}'" in adapter.installed(called)[2] and adapter.installed(called)[0] == "/venv/bin/python"


def test_a_command_is_filled_in_everywhere() -> None:
    adapter, chosen = ADAPTERS["command"](), job(
        command=["agent", "--base={base_url}/v1", "{instruction}"], resume=["agent", "--again", "{turn}"],
        env={"KEY": "{api_key}"}, files={"c.json": '{"model": "{model}"}'}, stdin="{rollout_id}",
    )  # fmt: skip
    assert adapter.command(chosen) == ["agent", "--base=http://127.0.0.1:1/s/r1/v1", "- Do it."]
    later = HarnessJob(rollout_id="r1", instruction="", endpoint=ENDPOINT, turn=2, options=chosen.options)
    assert adapter.command(later) == ["agent", "--again", "2"]
    assert adapter.env(chosen) == {**SDKS, "KEY": "sk-1"}
    assert adapter.files(chosen) == {"c.json": '{"model": "practicum"}'}
    assert adapter.stdin(chosen) == "r1"


def test_what_is_filled_in_is_not_filled_in_again() -> None:
    asked = HarnessJob(rollout_id="r1", instruction="Print {api_key} and {x}.", endpoint=ENDPOINT)
    assert filled("{instruction} {unknown} {}", asked) == "Print {api_key} and {x}. {unknown} {}"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("codex", {"arg": ["x"]}, "`arg` is wrong.*There are: args"),
        ("codex", {"args": "x"}, "`args` is wrong"),
        ("command", {}, "`command` is wrong"),
        ("command", {"command": []}, "`command` is wrong"),
        ("python", {}, "give either `function` or `script`"),
        ("python", {"function": "a:b", "script": ["c"]}, "give either `function` or `script`"),
        ("python", {"function": "a.py"}, "`function` is wrong"),
    ],
)
def test_a_wrong_option_is_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ADAPTERS[name]().command(job(**options))


def test_an_unknown_name_lists_those_there_are() -> None:
    assert harness("pi").name == "pi"
    with pytest.raises(NotFound, match="There are: claude-code, codex"):
        harness("clippy")
