"""Small real parts for the rollout service: agents that call the gateway, and a grader that reads what they left.

Run as a program, it serves a store's rollouts until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx

from practicum.capture.stalls import Stalls
from practicum.config import Config, GatewayConfig, ServerConfig
from practicum.engines.scripted import ScriptedSampler, Step, Turn
from practicum.errors import HarnessError, NotFound, SandboxError
from practicum.feedback import Ledger
from practicum.feedback.routes import router as feedback_router
from practicum.gateway import authenticate, create_app
from practicum.gateway.server import server
from practicum.harnesses.grading import Evidence
from practicum.harnesses.harness import HarnessEnd, HarnessJob, HarnessState
from practicum.harnesses.own_code import Command
from practicum.harnesses.routes import router
from practicum.harnesses.runner import RolloutLimits
from practicum.harnesses.service import RolloutService
from practicum.policies import Registry
from practicum.renderers import ByteTokenizer, Renderer
from practicum.sandboxes.local import LocalProvider
from practicum.sandboxes.sandbox import Sandbox, SandboxSpec
from practicum.store import RolloutEvent, Store, open_store
from practicum.types.outcomes import Outcome
from practicum.types.rollouts import Task

AGENT = """
import json, os, sys, urllib.request
body = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": sys.argv[1]}]}
request = urllib.request.Request(
    os.environ["BASE_URL"] + "/v1/chat/completions", json.dumps(body).encode(),
    {"authorization": "Bearer " + os.environ["KEY"], "content-type": "application/json"})
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
open("answer0.txt", "w").write(answer)
print(answer)
"""


class Folders:
    """Local sandboxes below `base`, counted; `fail` of the first ones cannot be made, and each takes `open_s`."""

    def __init__(self, base: Path, *, fail: int = 0, open_s: float = 0.0) -> None:
        self.base = base
        self.fail = fail
        self.open_s = open_s
        self.open_now = 0
        self.most_open = 0
        self._provider = LocalProvider(base)

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        if self.fail:
            self.fail -= 1
            raise SandboxError("The disk is full.")
        async with self._provider.open(spec) as sandbox:
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
            try:
                await asyncio.sleep(self.open_s)
                yield sandbox
            finally:
                self.open_now -= 1

    def left(self) -> list[Path]:
        return [path for path in self.base.iterdir() if path.is_dir()] if self.base.exists() else []


Play = Callable[[HarnessJob, Sandbox], Awaitable[HarnessEnd]]


class Runs:
    """A harness made of one coroutine function."""

    def __init__(self, name: str, play: Play) -> None:
        self.name = name
        self.play = play
        self._running: dict[str, asyncio.Task[HarnessEnd]] = {}
        self.jobs: list[HarnessJob] = []

    async def submit(self, job: HarnessJob, sandbox: Sandbox) -> str:
        self.jobs.append(job)
        handle = f"{job.rollout_id}/{len(self.jobs)}"
        self._running[handle] = asyncio.create_task(self.play(job, sandbox))  # type: ignore[arg-type]
        return handle

    async def status(self, handle: str) -> HarnessState:
        if handle not in self._running:
            raise NotFound(f"There is no run {handle!r}.")
        return "ended" if self._running[handle].done() else "running"

    async def collect(self, handle: str) -> HarnessEnd:
        running = self._running.pop(handle)
        try:
            return await running
        finally:
            running.cancel()


async def ask(job: HarnessJob, text: str) -> str:
    """One call, as an agent makes it; raises for an answer that is none."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        answer = await http.post(
            f"{job.endpoint.base_url}/v1/chat/completions",
            headers={"authorization": f"Bearer {job.endpoint.api_key}"},
            json={"model": job.endpoint.model, "messages": [{"role": "user", "content": text}]},
        )
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


async def asks(job: HarnessJob, sandbox: Sandbox) -> HarnessEnd:
    """Asks the model once and writes down what it said."""
    await asyncio.sleep(job.options.get("before_s", 0.0))
    try:
        said = await ask(job, job.instruction)
    except httpx.HTTPStatusError as error:
        return HarnessEnd(exit_code=1, log=str(error))
    await sandbox.write(f"answer{job.turn}.txt", said)
    await asyncio.sleep(job.options.get("after_s", 0.0))
    return HarnessEnd(exit_code=job.options.get("exit_code", 0), output=said, log="done")


async def runs_agent(job: HarnessJob, sandbox: Sandbox) -> HarnessEnd:
    """A real agent in a process of its own."""
    env = {"BASE_URL": job.endpoint.base_url, "KEY": job.endpoint.api_key, "MODEL": job.endpoint.model}
    ended = await sandbox.run([sys.executable, "-I", "-c", AGENT, job.instruction], env=env)
    return HarnessEnd(exit_code=ended.exit_code, output=ended.stdout, log=ended.stderr)


async def sleeps(job: HarnessJob, sandbox: Sandbox) -> HarnessEnd:
    """A process that never ends by itself."""
    ended = await sandbox.run(["sh", "-c", "sleep 600 & sleep 600"])
    return HarnessEnd(exit_code=ended.exit_code)


async def silent(job: HarnessJob, sandbox: Sandbox) -> HarnessEnd:
    """Ends well and never calls the model."""
    return HarnessEnd(exit_code=0, output="done")


async def is_lost(job: HarnessJob, sandbox: Sandbox) -> HarnessEnd:
    raise HarnessError("The harness was lost.")


class Reads:
    """Reward 1 where the first answer holds `word`; `fail` makes it raise, `hang` never end."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._word = options.get("word", "")
        self._fail = options.get("fail", False)
        self._hang = options.get("hang", False)

    async def grade(self, evidence: Evidence) -> Sequence[Outcome]:
        if self._hang:
            await asyncio.sleep(60)
        if self._fail:
            raise ValueError("the checker broke")
        answer = await evidence.sandbox.read("answer0.txt")
        return [Outcome(name="word", reward=float(self._word in answer), by="reads")]


HARNESSES = {
    name: Runs(name, play)
    for name, play in {
        "asks": asks, "agent": runs_agent, "sleeps": sleeps, "silent": silent, "lost": is_lost,
    }.items()
}  # fmt: skip


def echo(turn: Turn) -> Step:
    """Repeats the last user message."""
    return Step(content=turn.messages[-1][1])


class World:
    """A gateway on a free port and a rollout service, in one loop over one store."""

    def __init__(self, home: Path, store: Store, *, sampler: ScriptedSampler | None = None, **options: Any) -> None:
        self.home = home
        self.store = store
        self.sampler = sampler or ScriptedSampler(echo)
        self.stalls = Stalls()
        self.folders = options.pop("folders", None) or Folders(home / "boxes")
        options.setdefault("limits", RolloutLimits(retry_pause_s=0.01))
        self.service = RolloutService(
            store,
            harnesses={**HARNESSES, "command": Command(), **options.pop("harnesses", {})},
            sandboxes=self.folders,
            graders={"reads": Reads, **options.pop("graders", {})},
            gateway="",
            stalls=self.stalls,
            **options,
        )

    async def __aenter__(self) -> World:
        config = Config(home=self.home, server=ServerConfig(port=0), gateway=GatewayConfig(policy_poll_s=0.05))
        registry = Registry(self.store, config.policies_dir)
        renderer = Renderer(ByteTokenizer())
        routers = [feedback_router(Ledger(self.store), authenticate), router(self.service, authenticate)]
        app = create_app(config, self.store, registry, self.sampler, renderer, routers=routers, stalls=self.stalls)
        self.web = server(app, config.server)
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.web.started_at = listening.set_result
        self.web.capture_signals = nullcontext  # type: ignore[method-assign]  # signals are the test's
        self.serving = asyncio.create_task(self.web.serve())
        self.service.gateway = f"http://127.0.0.1:{await listening}"
        await self.service.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self.service.__aexit__(*error)
        finally:
            self.web.should_exit = True
            await self.serving

    def folders_left(self) -> list[Path]:
        return self.folders.left()


async def until(holds: Callable[[], bool], wait_s: float = 20.0) -> None:
    """Wait until something holds; fails where it never does."""
    async with asyncio.timeout(wait_s):
        while not holds():  # noqa: ASYNC110  # it stands in the store, which tells nobody
            await asyncio.sleep(0.02)


def task(harness: str = "asks", **more: Any) -> Task:
    """A task whose answer is its instruction."""
    given = {"task_id": "t", "instructions": ("Say lamp.",), "harness": harness, "graders": {"reads": {"word": "lamp"}}}
    return Task(**{**given, **more})


async def serve_until_killed(home: Path, kind: str, times: int, point: str) -> None:
    """Serve the store's rollouts; this process kills itself around the commit of the `times`-th event of a kind."""
    left = times

    def at(name: str) -> None:
        if name == point and left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with open_store(home / "practicum.db", crashpoint=at) as store:
        change = store.change_rollout

        def counted(event: RolloutEvent, *args: Any, **options: Any) -> Any:
            nonlocal left
            left -= kind in (event.kind, event.detail.get("state"))
            return change(event, *args, **options)

        store.change_rollout = counted  # type: ignore[method-assign]
        async with World(home, store, limits=RolloutLimits(run=3, ready=3)) as world:
            for group in store.groups():
                await world.service.collect(group.group_id)


if __name__ == "__main__":
    asyncio.run(serve_until_killed(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]))
