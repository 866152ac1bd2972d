"""How a run begins and ends, with real processes: nothing outlives it, and every way of failing says so."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from practicum.errors import HarnessError, NotFound
from practicum.harnesses.harness import Endpoint, HarnessEnd, HarnessJob
from practicum.harnesses.own_code import Command, LangGraph, PythonAgent
from practicum.harnesses.process import ProcessHarness
from practicum.sandboxes.local import LocalProvider, LocalSandbox
from practicum.sandboxes.sandbox import SandboxSpec

ENDPOINT = Endpoint(base_url="http://127.0.0.1:1/s/r1", api_key="sk-1", model="practicum")
WAIT_S = 10
SANDBOXES = LocalProvider()


class Shell(ProcessHarness):
    """Runs the instruction as a shell command."""

    name = "shell"
    install = "apt install shell"

    def command(self, job: HarnessJob) -> Sequence[str]:
        return ["sh", "-c", job.instruction]

    def files(self, job: HarnessJob) -> Mapping[str, str]:
        return {".config/it's/a.json": f'{{"key": "{job.endpoint.api_key}", "$HOME": "`x`"}}\n', "top": job.rollout_id}


def job(instruction: str = "", **fields: Any) -> HarnessJob:
    return HarnessJob(**{"rollout_id": "r1", "instruction": instruction, "endpoint": ENDPOINT, **fields})


async def ended(harness: ProcessHarness, asked: HarnessJob, sandbox: LocalSandbox) -> HarnessEnd:
    return await harness.collect(await harness.submit(asked, sandbox))


async def test_files_are_below_home_private_and_unchanged() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        end = await ended(Shell(), job("""cat "$HOME/.config/it's/a.json"; echo to people >&2"""), sandbox)
        assert end == HarnessEnd(
            exit_code=0, output='{"key": "sk-1", "$HOME": "`x`"}', log='{"key": "sk-1", "$HOME": "`x`"}\n\nto people'
        )
        assert (sandbox.folder.path / "home" / "top").stat().st_mode & 0o777 == 0o600
        assert await sandbox.list_files() == [], "the working folder is the task's own"


async def test_a_jobs_environment_is_laid_over_the_adapters() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        asked = job(env={"OPENAI_API_KEY": "mine"}, options={"command": ["sh", "-c", "echo $OPENAI_API_KEY $TERM"]})
        assert (await ended(Command(), asked, sandbox)).output == "mine dumb"


async def test_a_status_that_is_not_zero_comes_with_the_logs_end() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        end = await ended(Shell(), job("seq 10000; echo broken >&2; exit 3"), sandbox)
    assert (end.exit_code, end.error) == (3, "shell ended with status 3")
    assert end.log.endswith("10000\n\nbroken") and len(end.log) == 8_000


async def test_a_run_that_takes_too_long_is_ended() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        end = await ended(Shell(), job("echo $$ > pid; sleep 60 & echo $! > child; wait", timeout_s=0.5), sandbox)
        assert end.timed_out and end.exit_code is None and end.error == "shell did not end within 0.5 s"
        assert not await alive(sandbox, "pid") and not await alive(sandbox, "child")


async def test_l17_cancelling_collect_leaves_no_process() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        harness = Shell()
        handle = await harness.submit(job("sleep 60 & echo $! > child; echo $$ > pid; wait"), sandbox)
        collecting = asyncio.create_task(harness.collect(handle))
        async with asyncio.timeout(WAIT_S):
            while await sandbox.list_files() != ["child", "pid"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await harness.status(handle) == "running" and await alive(sandbox, "child")
        collecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await collecting
        assert not await alive(sandbox, "pid") and not await alive(sandbox, "child")
        with pytest.raises(NotFound, match="forgotten once it is collected"):
            await harness.status(handle)


async def alive(sandbox: LocalSandbox, name: str) -> bool:
    """Whether the process of a pid file is there."""
    try:
        os.kill(int(await sandbox.read(name)), 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_harness_that_is_not_installed_says_what_installs_it() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        asked = job(options={"command": ["no-such-agent"]})
        with pytest.raises(HarnessError, match="command cannot be started: `no-such-agent` is not installed"):
            await Command().submit(asked, sandbox)
        missing = job(options={"function": "a:b", "python": "no-such-python"})
        with pytest.raises(HarnessError, match="pip install langgraph langchain-openai"):
            await LangGraph().submit(missing, sandbox)
        assert not (sandbox.folder.path / "home" / "top").exists()


async def test_a_framework_that_its_python_lacks_says_what_installs_it() -> None:
    class Missing(PythonAgent):
        name, install, needs = "missing", "pip install missing", "no_such_module_at_all"

    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        with pytest.raises(HarnessError, match="pip install missing"):
            await Missing().submit(job(options={"function": "a:b"}), sandbox)


async def test_two_runs_at_once_share_nothing() -> None:
    harness = Shell()
    line = 'cat "$HOME/top"; : > "$HOME/own"; ls "$HOME"; pwd'
    async with SANDBOXES.open(SandboxSpec()) as one, SANDBOXES.open(SandboxSpec()) as other:
        handles = [
            await harness.submit(job(line, rollout_id=name), place) for name, place in (("r1", one), ("r2", other))
        ]
        first, second = await asyncio.gather(*(harness.collect(handle) for handle in handles))
    assert first.output.splitlines() == ["r1own", "top", one.workdir]
    assert second.output.splitlines() == ["r2own", "top", other.workdir]


async def test_a_sandbox_that_is_gone_is_a_lost_run() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        harness = Shell()
        handle = await harness.submit(job("x" * 200_000), sandbox)  # longer than an argument may be
        with pytest.raises(HarnessError, match="shell was lost: sh could not be started"):
            await harness.collect(handle)


AGENT = """
import asyncio, os, sys
def plain(job):
    print("to people")
    return f"{job.instruction} {job.turn} {job.rollout_id} {job.endpoint.base_url} {job.endpoint.model}"
async def later(job):
    await asyncio.sleep(0)
    return None
def broken(job):
    raise ValueError("out of luck")
def forever(job):
    open("pid", "w").write(str(os.getpid()))
    asyncio.run(asyncio.sleep(60))
"""


def python(function: str, **fields: Any) -> HarnessJob:
    return job("Ask.", options={"function": f"agent:{function}", "python": sys.executable}, **fields)


async def test_a_python_function_is_called_with_the_job() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        await sandbox.write("agent.py", AGENT)
        end = await ended(PythonAgent(), python("plain", turn=1), sandbox)
        assert end.output == "Ask. 1 r1 http://127.0.0.1:1/s/r1 practicum" and end.log == "to people"
        assert (await ended(PythonAgent(), python("later"), sandbox)).output == "", "not the answer of the turn before"


async def test_a_python_function_that_raises_is_a_failed_run() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        await sandbox.write("agent.py", AGENT)
        end = await ended(PythonAgent(), python("broken"), sandbox)
        assert end.exit_code == 1 and end.log.endswith("ValueError: out of luck") and end.output == ""
        gone = await ended(PythonAgent(), python("nothing"), sandbox)
        assert gone.exit_code == 1 and "has no attribute 'nothing'" in gone.log


async def test_a_python_function_can_be_killed() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        await sandbox.write("agent.py", AGENT)
        end = await ended(PythonAgent(), python("forever", timeout_s=2), sandbox)
        assert end.timed_out and not await alive(sandbox, "pid")


async def test_the_answer_may_stand_in_a_file() -> None:
    async with SANDBOXES.open(SandboxSpec()) as sandbox:
        options = {"command": ["sh", "-c", "echo noise; echo yes > out.txt"], "answer_file": "out.txt"}
        assert (await ended(Command(), job(options=options), sandbox)).output == "yes"
        options = {"command": ["true"], "answer_file": "none.txt"}
        assert (await ended(Command(), job(options=options), sandbox)).output == ""
