"""The base of adapters whose harness is a process: an adapter says what to run, and how its answer is read.

A subclass gives a name, the command that installs the harness, the command line of a job, and where needed the
environment, configuration files below HOME, and where the answer stands. The base writes the files, starts the command
in the sandbox, waits, and tells how it ended.

Invariants: keys go through the environment and through files, never through a command line; HOME is the sandbox's, so
runs in two sandboxes share nothing; cancelling `collect` ends the whole process tree before it returns. It must not
know which sandbox it runs in, nor what the harness said to the model.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from practicum.errors import HarnessError, NotFound, PracticumError, SandboxError, UsageError
from practicum.harnesses.harness import Endpoint, HarnessEnd, HarnessJob, HarnessState
from practicum.harnesses.options import read_options
from practicum.harnesses.runs import Runs
from practicum.sandboxes.sandbox import Exited, Sandbox

_LOG_CHARS = 8_000
_MISSING, _NOT_WRITTEN = 127, 126


class Options(BaseModel):
    """What a job may say to an adapter. A key that it does not have is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Args(Options):
    """Further arguments of the harness's own."""

    args: list[str] = Field(default_factory=list)


O = TypeVar("O", bound=Options)  # noqa: E741


class ProcessHarness(ABC):
    """A harness that is one process a turn. One instance serves many runs at once."""

    name: ClassVar[str]
    install: ClassVar[str]

    def __init__(self) -> None:
        self._runs = Runs(self.name)

    @abstractmethod
    def command(self, job: HarnessJob) -> Sequence[str]:
        """The command line. From the job's turn 1 on it resumes the last conversation, where the harness can."""

    def env(self, job: HarnessJob) -> Mapping[str, str]:
        """Environment variables; the job's own are laid over them."""
        return {}

    def files(self, job: HarnessJob) -> Mapping[str, str]:
        """Texts to write before the start, by path below HOME."""
        return {}

    def installed(self, job: HarnessJob) -> Sequence[str]:
        """A command that succeeds in a sandbox where the harness is installed."""
        return ["command", "-v", self.command(job)[0]]

    def stdin(self, job: HarnessJob) -> str:
        """What the process reads. Instructions belong here where the harness reads them: an argument has a limit of
        128 KiB, and one that begins with a dash or an @ is taken for something else."""
        return ""

    async def answer(self, job: HarnessJob, exited: Exited, sandbox: Sandbox) -> str:
        """What the harness gave as its answer; by default what it printed to stdout."""
        return exited.stdout.strip()

    def needs_of(self, job: HarnessJob) -> str:
        """What must be installed for a job, in words; the program that is started unless a subclass knows better."""
        return f"`{self.command(job)[0]}`"

    def check(self, job: HarnessJob, finds: Callable[[str], bool]) -> None:
        """Raises UsageError for options that do not fit, and for a program that no sandbox would find."""
        program = next(iter(self.command(job)))
        env = {**self.env(job), **job.env}
        self.files(job)
        self.stdin(job)
        is_found_by_path = "/" not in program or program.startswith("/")  # else it lies in the working folder
        if is_found_by_path and "PATH" not in env and not finds(program):
            raise self._missing(job, UsageError)

    async def submit(self, job: HarnessJob, sandbox: Sandbox) -> str:
        """Write the files and start. Raises UsageError for wrong options, HarnessError where it cannot be started."""
        command = list(self.command(job))
        env = {"NO_COLOR": "1", "TERM": "dumb", **self.env(job), **job.env}
        await self._set_up(job, env, sandbox)
        return self._runs.start(self._run(job, sandbox, command, env))

    async def status(self, handle: str) -> HarnessState:
        """Whether the run goes on. Raises NotFound."""
        return self._runs.state(handle)

    async def collect(self, handle: str) -> HarnessEnd:
        """Wait for the end. Raises NotFound; HarnessError where the run was lost."""
        try:
            return await self._runs.end(handle)
        except SandboxError as error:
            raise HarnessError(f"{self.name} was lost: {error.message}", hint=error.hint) from error

    async def _set_up(self, job: HarnessJob, env: Mapping[str, str], sandbox: Sandbox) -> None:
        """One shell in the sandbox, whatever its kind: only there is known where HOME and the executable are."""
        try:
            script = _script(self.installed(job), self.files(job))
            done = await sandbox.run(["sh", "-s"], stdin=script, env=env)
        except SandboxError as error:
            raise HarnessError(f"{self.name} cannot be started: {error.message}", hint=error.hint) from error
        if done.exit_code == _MISSING:
            raise self._missing(job, HarnessError)
        if done.exit_code != 0:
            said = done.stderr.strip()[-300:] or f"status {done.exit_code}"
            raise HarnessError(f"{self.name} cannot be started: its configuration could not be written: {said}")

    async def _run(
        self, job: HarnessJob, sandbox: Sandbox, command: Sequence[str], env: Mapping[str, str]
    ) -> HarnessEnd:
        exited = await sandbox.run(command, env=env, stdin=self.stdin(job), timeout_s=job.timeout_s)
        error, output = self._error(job, exited), ""
        if not exited.timed_out:
            try:
                output = await self.answer(job, exited, sandbox)
            except UsageError as wrong:
                error = error or f"the answer cannot be read: {wrong.message}"
        return HarnessEnd(
            exit_code=exited.exit_code,
            timed_out=exited.timed_out,
            output=output,
            log=f"{exited.stdout}\n{exited.stderr}".strip()[-_LOG_CHARS:],
            error=error,
        )

    def _missing(self, job: HarnessJob, kind: type[PracticumError]) -> PracticumError:
        return kind(
            f"{self.name} cannot be started: {self.needs_of(job)} is not installed where the sandbox looks for it.",
            hint=f"Install it with {self.install}, and see that it is on the sandbox's PATH.",
        )

    def _error(self, job: HarnessJob, exited: Exited) -> str | None:
        if exited.timed_out:
            return f"{self.name} did not end within {job.timeout_s or 0:g} s"
        if exited.over is not None:
            return f"{self.name} was ended: it went over the sandbox's limit on {exited.over}"
        return None if exited.exit_code == 0 else f"{self.name} ended with status {exited.exit_code}"


def options(job: HarnessJob, kind: type[O]) -> O:
    """The job's options as an adapter's own record. Raises UsageError naming the option at fault."""
    return read_options(kind, job.options, "The harness option {option}")


def openai_env(endpoint: Endpoint) -> dict[str, str]:
    """What OpenAI's SDKs, and what is built on them, read of the environment."""
    base = f"{endpoint.base_url}/v1"
    return {"OPENAI_API_KEY": endpoint.api_key, "OPENAI_BASE_URL": base, "OPENAI_API_BASE": base}


async def home_file(sandbox: Sandbox, path: str) -> str:
    """A text file below HOME, empty where there is none."""
    return (await sandbox.run(["sh", "-c", 'cat "$HOME/$1" 2>/dev/null || true', "sh", path])).stdout


async def work_file(sandbox: Sandbox, path: str) -> str:
    """A text file of the working folder, empty where there is none."""
    try:
        return (await sandbox.read(path)).strip()
    except NotFound:
        return ""


def _script(installed: Sequence[str], files: Mapping[str, str]) -> str:
    lines = ["umask 077", f"{shlex.join(installed)} >/dev/null || exit {_MISSING}"]
    for path, content in files.items():
        target = f'"$HOME"/{shlex.quote(path)}'
        written = f"printf %s {shlex.quote(content)} > {target}"
        lines.append(f'mkdir -p "$(dirname {target})" && {written} || exit {_NOT_WRITTEN}')
    return "\n".join(lines) + "\n"
