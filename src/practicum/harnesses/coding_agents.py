"""Adapters for coding agents that are installed as programs, each as its makers' documentation says it is configured.

Each runs headless, with its own confirmations switched off: the sandbox is what confines it. Where a harness can be
told to send nothing but model calls, it is told. The file and the environment name the model endpoint and nothing else
of a harness's settings, so that it behaves as its users know it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from practicum.harnesses.harness import HarnessJob
from practicum.harnesses.process import Args, ProcessHarness, home_file, openai_env, options
from practicum.sandboxes.sandbox import Exited, Sandbox

# The name under which configuration files know the model endpoint, and the variable that holds its key.
_PROVIDER = "practicum"
_KEY_ENV = "PRACTICUM_API_KEY"


class CodingAgent(ProcessHarness):
    """One that reads its instruction from stdin."""

    def stdin(self, job: HarnessJob) -> str:
        """The instruction."""
        return job.instruction


class ClaudeCode(CodingAgent):
    """Anthropic Messages. All of its model tiers are the served model, so that sub-agents and side calls are too."""

    name = "claude-code"
    install = "npm install --global @anthropic-ai/claude-code"

    def command(self, job: HarnessJob) -> Sequence[str]:
        """`claude -p`."""
        more = ["--continue"] if job.turn else []
        return ["claude", "-p", "--dangerously-skip-permissions", *more, *options(job, Args).args]

    def env(self, job: HarnessJob) -> Mapping[str, str]:
        """Its documented variables. IS_SANDBOX lets it run as root, which it refuses elsewhere."""
        model = job.endpoint.model
        tiers = ("OPUS", "SONNET", "HAIKU")
        return {
            "ANTHROPIC_BASE_URL": job.endpoint.base_url,
            "ANTHROPIC_API_KEY": job.endpoint.api_key,
            "ANTHROPIC_MODEL": model,
            **{f"ANTHROPIC_DEFAULT_{tier}_MODEL": model for tier in tiers},
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
        }


class Codex(CodingAgent):
    """OpenAI Responses. A model name that its catalogue does not have gets plain function tools."""

    name = "codex"
    install = "npm install --global @openai/codex"

    def command(self, job: HarnessJob) -> Sequence[str]:
        """`codex exec`, which prints the last message to stdout and all else to stderr."""
        resume = ["resume", "--last"] if job.turn else []
        unconfined = "--dangerously-bypass-approvals-and-sandbox"
        return ["codex", "exec", *resume, "--skip-git-repo-check", unconfined, *options(job, Args).args, "-"]

    def env(self, job: HarnessJob) -> Mapping[str, str]:
        """The key that its configuration names."""
        return {_KEY_ENV: job.endpoint.api_key}

    def files(self, job: HarnessJob) -> Mapping[str, str]:
        """A provider in `config.toml`. A JSON string is a TOML string."""
        settings = {"model": job.endpoint.model, "model_provider": _PROVIDER}
        provider = {
            "name": "Practicum",
            "base_url": f"{job.endpoint.base_url}/v1",
            "env_key": _KEY_ENV,
            "wire_api": "responses",
        }
        return {".codex/config.toml": f"{_toml(settings)}[model_providers.{_PROVIDER}]\n{_toml(provider)}"}


class GeminiCli(CodingAgent):
    """Gemini. With the model named, it makes no router call."""

    name = "gemini-cli"
    install = "npm install --global @google/gemini-cli"

    def command(self, job: HarnessJob) -> Sequence[str]:
        """`gemini`, headless because stdin is no terminal."""
        more = ["--resume", "latest"] if job.turn else []
        return ["gemini", "--yolo", "--model", job.endpoint.model, *more, *options(job, Args).args]

    def env(self, job: HarnessJob) -> Mapping[str, str]:
        """Its documented variables."""
        return {
            "GEMINI_API_KEY": job.endpoint.api_key,
            "GOOGLE_GEMINI_BASE_URL": job.endpoint.base_url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }

    def files(self, job: HarnessJob) -> Mapping[str, str]:
        """Without a way of signing in that is chosen here, it ends with status 41."""
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False},
        }
        return {".gemini/settings.json": json.dumps(settings)}


class QwenCode(CodingAgent):
    """OpenAI Chat Completions."""

    name = "qwen-code"
    install = "npm install --global @qwen-code/qwen-code"

    def command(self, job: HarnessJob) -> Sequence[str]:
        """`qwen`, headless because stdin is no terminal."""
        more = ["--continue"] if job.turn else []
        return ["qwen", "--auth-type", "openai", "--yolo", *more, *options(job, Args).args]

    def env(self, job: HarnessJob) -> Mapping[str, str]:
        """Its documented variables."""
        return {**openai_env(job.endpoint), "OPENAI_MODEL": job.endpoint.model}

    def files(self, job: HarnessJob) -> Mapping[str, str]:
        """Usage statistics go to its maker otherwise."""
        settings = {"privacy": {"usageStatisticsEnabled": False}, "general": {"enableAutoUpdate": False}}
        return {".qwen/settings.json": json.dumps(settings)}


class OpenCode(CodingAgent):
    """OpenAI Chat Completions, through the provider package that it bundles."""

    name = "opencode"
    install = "npm install --global opencode-ai"

    def command(self, job: HarnessJob) -> Sequence[str]:
        """`opencode run`."""
        return ["opencode", "run", *(["--continue"] if job.turn else []), *options(job, Args).args]

    def env(self, job: HarnessJob) -> Mapping[str, str]:
        """The key that its configuration names, and no look-ups elsewhere."""
        return {
            _KEY_ENV: job.endpoint.api_key,
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
        }

    def files(self, job: HarnessJob) -> Mapping[str, str]:
        """A provider in the user's own configuration, beside which a project's `opencode.json` still counts."""
        model = job.endpoint.model
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{job.endpoint.base_url}/v1", "apiKey": f"{{env:{_KEY_ENV}}}"},
            "models": {model: {}},
        }
        settings = {
            "provider": {_PROVIDER: provider},
            "model": f"{_PROVIDER}/{model}",
            "small_model": f"{_PROVIDER}/{model}",
            "permission": {"*": "allow"},
        }
        return {".config/opencode/opencode.json": json.dumps(settings)}


class PiOptions(Args):
    """Which of the three wire protocols pi speaks."""

    api: Literal["openai-completions", "openai-responses", "anthropic-messages"] = "openai-completions"


class Pi(CodingAgent):
    """OpenAI Chat Completions, or by the option `api` `openai-responses` or `anthropic-messages`."""

    name = "pi"
    install = "npm install --global @earendil-works/pi-coding-agent"

    def command(self, job: HarnessJob) -> Sequence[str]:
        """`pi -p`."""
        more = ["--continue"] if job.turn else []
        return [
            "pi",
            "-p",
            "--provider",
            _PROVIDER,
            "--model",
            job.endpoint.model,
            *more,
            *options(job, PiOptions).args,
        ]

    def env(self, job: HarnessJob) -> Mapping[str, str]:
        """No look-ups elsewhere."""
        return {"PI_OFFLINE": "1"}

    def files(self, job: HarnessJob) -> Mapping[str, str]:
        """A provider in `models.json`. Anthropic's SDK adds the version itself, OpenAI's does not."""
        api = options(job, PiOptions).api
        version = "" if api == "anthropic-messages" else "/v1"
        provider = {
            "baseUrl": f"{job.endpoint.base_url}{version}",
            "api": api,
            "apiKey": job.endpoint.api_key,
            "models": [{"id": job.endpoint.model}],
        }
        return {".pi/agent/models.json": json.dumps({"providers": {_PROVIDER: provider}})}


class MiniSweAgent(ProcessHarness):
    """OpenAI Chat Completions, through LiteLLM. It cannot resume: a later turn begins a new conversation."""

    name = "mini-swe-agent"
    install = "pip install mini-swe-agent"

    def command(self, job: HarnessJob) -> Sequence[str]:
        """`mini`; the instruction stands behind `=`, so that it may begin with a dash."""
        model = f"openai/{job.endpoint.model}"
        settings = ["--yolo", "--exit-immediately", f"--model={model}"]
        return ["mini", *settings, *options(job, Args).args, f"--task={job.instruction}"]

    def env(self, job: HarnessJob) -> Mapping[str, str]:
        """Its documented variables; prices are not looked up."""
        return {
            **openai_env(job.endpoint),
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_SILENT_STARTUP": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    async def answer(self, job: HarnessJob, exited: Exited, sandbox: Sandbox) -> str:
        """What it submitted, from the trajectory that it leaves behind."""
        if exited.exit_code != 0:  # the file may be an earlier turn's
            return ""
        try:
            trajectory = json.loads(await home_file(sandbox, ".config/mini-swe-agent/last_mini_run.traj.json"))
            return str(trajectory["info"]["submission"]).strip()
        except (ValueError, KeyError, TypeError):
            return exited.stdout.strip()


def _toml(table: Mapping[str, str]) -> str:
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in table.items())
