"""Adapters for a team's own agent: any executable, or any Python function, and the frameworks that such agents use.

The environment holds the model endpoint under the names that the providers' SDKs read by themselves, so an agent that
builds its client without arguments needs no change.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files as package_files
from typing import ClassVar, Self

from pydantic import Field, model_validator

from practicum.harnesses.child import ANSWER
from practicum.harnesses.harness import Endpoint, HarnessJob
from practicum.harnesses.process import Options, ProcessHarness, home_file, openai_env, options, work_file
from practicum.sandboxes.sandbox import Exited, Sandbox

_PLACEHOLDER = re.compile(r"\{(instruction|base_url|api_key|model|rollout_id|turn)\}")
_CHILD = package_files("practicum.harnesses").joinpath("child.py").read_text(encoding="utf-8")


class CommandOptions(Options):
    """`command` and all other texts may hold {instruction}, {base_url}, {api_key}, {model}, {rollout_id} and {turn}.

    `resume` is the command of later turns, `files` are by path below HOME, and `answer_file` is a file of the working
    folder that holds the answer; without it the answer is what was printed to stdout.
    """

    command: list[str] = Field(min_length=1)
    resume: list[str] | None = Field(default=None, min_length=1)
    env: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    stdin: str = ""
    answer_file: str | None = None


class Command(ProcessHarness):
    """Any executable."""

    name = "command"
    install = "the package manager that it comes from"

    def command(self, job: HarnessJob) -> Sequence[str]:
        """The job's own, filled in."""
        chosen = options(job, CommandOptions)
        wanted = chosen.resume if job.turn and chosen.resume else chosen.command
        return [filled(part, job) for part in wanted]

    def env(self, job: HarnessJob) -> Mapping[str, str]:
        """The providers' variables, and the job's own over them."""
        own = options(job, CommandOptions).env
        return {**sdk_env(job.endpoint), **{name: filled(value, job) for name, value in own.items()}}

    def files(self, job: HarnessJob) -> Mapping[str, str]:
        """The job's own, filled in."""
        return {path: filled(text, job) for path, text in options(job, CommandOptions).files.items()}

    def stdin(self, job: HarnessJob) -> str:
        """The job's own, filled in."""
        return filled(options(job, CommandOptions).stdin, job)

    async def answer(self, job: HarnessJob, exited: Exited, sandbox: Sandbox) -> str:
        """The answer file where one is named, empty where the run left none."""
        path = options(job, CommandOptions).answer_file
        return exited.stdout.strip() if path is None else await work_file(sandbox, path)


class PythonOptions(Options):
    """Either `function` (`module:function`, sync or async) or `script`: arguments of the interpreter, with placeholders
    as in `command`, for instance `["my_agent.py", "{instruction}"]`.

    `python` is the interpreter that has the agent's packages, `path` are folders to import from beside the working one.
    """

    function: str | None = Field(default=None, pattern=r"^[\w.]+:[\w]+$")
    script: list[str] | None = Field(default=None, min_length=1)
    python: str = sys.executable
    path: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.function is None) == (self.script is None):
            raise ValueError("give either `function` or `script`")
        return self


class PythonAgent(ProcessHarness):
    """Any Python function or script, in a process of its own.

    The function is called with one argument: `instruction`, `turn`, `rollout_id`, and `endpoint` with `base_url`,
    `api_key`, `model`. What it returns is the answer; what it prints is the log.
    """

    name = "python"
    install = "a Python of 3.9 or newer"
    needs: ClassVar[str] = "json"
    more_env: ClassVar[Mapping[str, str]] = {}

    def command(self, job: HarnessJob) -> Sequence[str]:
        """The interpreter with the script, or with the text of `child.py`."""
        chosen = options(job, PythonOptions)
        if chosen.script is not None:
            return [chosen.python, *(filled(part, job) for part in chosen.script)]
        return [chosen.python, "-c", _CHILD, str(chosen.function)]

    def needs_of(self, job: HarnessJob) -> str:
        """The interpreter, and the framework where there is one."""
        python = f"`{options(job, PythonOptions).python}`"
        return python if self.needs == PythonAgent.needs else f"{self.needs}, for {python},"

    def installed(self, job: HarnessJob) -> Sequence[str]:
        """Whether the interpreter finds the framework."""
        found = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({self.needs!r}) is None)"
        return [options(job, PythonOptions).python, "-c", found]

    def env(self, job: HarnessJob) -> Mapping[str, str]:
        """The providers' variables, the framework's, and the job's own over them."""
        chosen = options(job, PythonOptions)
        path = {"PYTHONPATH": ":".join(chosen.path)} if chosen.path else {}
        own = {name: filled(value, job) for name, value in chosen.env.items()}
        return {**sdk_env(job.endpoint), "PYTHONUNBUFFERED": "1", **self.more_env, **path, **own}

    def stdin(self, job: HarnessJob) -> str:
        """The job for `child.py`; nothing for a script."""
        if options(job, PythonOptions).script is not None:
            return ""
        endpoint = {"base_url": job.endpoint.base_url, "api_key": job.endpoint.api_key, "model": job.endpoint.model}
        return json.dumps(
            {"instruction": job.instruction, "turn": job.turn, "rollout_id": job.rollout_id, "endpoint": endpoint}
        )

    async def answer(self, job: HarnessJob, exited: Exited, sandbox: Sandbox) -> str:
        """What the function returned, or what the script printed."""
        if options(job, PythonOptions).script is not None:
            return exited.stdout.strip()
        return await home_file(sandbox, ANSWER) if exited.exit_code == 0 else ""


class OpenAIAgents(PythonAgent):
    """OpenAI's Agents SDK. Its traces would go to its maker; they are off."""

    name = "openai-agents"
    install = "pip install openai-agents"
    needs = "agents"
    more_env: ClassVar[Mapping[str, str]] = {"OPENAI_AGENTS_DISABLE_TRACING": "1"}


class PydanticAI(PythonAgent):
    """Pydantic AI."""

    name = "pydantic-ai"
    install = "pip install 'pydantic-ai-slim[openai]'"
    needs = "pydantic_ai"


class LangGraph(PythonAgent):
    """LangGraph."""

    name = "langgraph"
    install = "pip install langgraph langchain-openai"
    needs = "langgraph"
    more_env: ClassVar[Mapping[str, str]] = {"LANGSMITH_TRACING": "false"}


def filled(text: str, job: HarnessJob) -> str:
    """`text` with its placeholders replaced, once: what is put in is not looked at again."""
    values = {
        "instruction": job.instruction,
        "base_url": job.endpoint.base_url,
        "api_key": job.endpoint.api_key,
        "model": job.endpoint.model,
        "rollout_id": job.rollout_id,
        "turn": str(job.turn),
    }
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


def sdk_env(endpoint: Endpoint) -> dict[str, str]:
    """The endpoint under the names that the providers' SDKs read, and under our own."""
    return {
        **openai_env(endpoint),
        "OPENAI_DEFAULT_MODEL": endpoint.model,
        "ANTHROPIC_BASE_URL": endpoint.base_url,
        "ANTHROPIC_API_KEY": endpoint.api_key,
        "GOOGLE_GEMINI_BASE_URL": endpoint.base_url,
        "GEMINI_API_KEY": endpoint.api_key,
        "PRACTICUM_BASE_URL": endpoint.base_url,
        "PRACTICUM_API_KEY": endpoint.api_key,
        "PRACTICUM_MODEL": endpoint.model,
    }
