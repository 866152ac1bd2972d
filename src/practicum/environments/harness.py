"""The harness of in-house environments: it talks to the policy over HTTP like any other, and to the team's code in a
process of the rollout's own.

So what it asks is recorded, linked and trained on like what a black-box harness asks. The team's code cannot hang or
bring down the service, and finds no trace of another rollout.

Invariants: what the policy said goes back to it unchanged, so an episode only grows; a fault that the policy can cause
is told to it and scored, a fault of the environment ends the rollout unscored; the process ends with the rollout's
sandbox, so it is there for the grader and nowhere else. It must not know tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field

from practicum.environments.endpoint import Answered, ChatEndpoint, Overflow
from practicum.environments.nursery import Nurseries
from practicum.environments.places import Allowed
from practicum.environments.tasks import NAME
from practicum.environments.world import World
from practicum.errors import HarnessError, UsageError
from practicum.harnesses.harness import HarnessEnd, HarnessJob, HarnessState
from practicum.harnesses.options import read_options
from practicum.harnesses.runs import Runs
from practicum.sandboxes.on_demand import OnDemandSandbox
from practicum.sandboxes.sandbox import Sandbox

_LOAD_S = 120.0
_RESET_S = 60.0


class EnvironmentOptions(BaseModel):
    """What a task says. `sampling` holds fields of the chat request; `tool_timeout_s` bounds each call of the team's
    code before grading, but `reset`, which has a minute at least. `seed` None draws one for each rollout."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    environment: str
    task: dict[str, Any] = Field(default_factory=dict)
    sampling: dict[str, Any] = Field(default_factory=dict)
    system: str | None = None
    seed: int | None = None
    max_turns: int | None = Field(default=None, ge=1)
    tool_timeout_s: float = Field(default=30.0, gt=0)


_OURS = frozenset({"model", "messages", "tools", "stream", "n", "seed"})


class EnvironmentHarness:
    """Plays in-house environments. One instance serves many rollouts at once, in one event loop.

    Args:
        allowed: which environments tasks may name.
    """

    name = NAME
    sandbox_on_demand = True

    def __init__(self, allowed: Allowed) -> None:
        self.worlds: WeakKeyDictionary[Sandbox, World] = WeakKeyDictionary()
        self._allowed = allowed
        self._nurseries = Nurseries()
        self._runs = Runs(NAME)

    def check(self, job: HarnessJob, finds: Callable[[str], bool]) -> None:
        """Raises UsageError for a task that could not be played."""
        self._allowed.find(_options(job.options).environment)

    async def submit(self, job: HarnessJob, sandbox: Sandbox) -> str:
        """Start an episode. Raises UsageError for wrong options, HarnessError where it cannot be started."""
        options = _options(job.options)
        if not isinstance(sandbox, OnDemandSandbox):
            raise HarnessError(f"The harness {NAME} needs a sandbox that is made on demand.")
        if job.turn:
            raise UsageError(
                "An environment has one instruction.", hint="What comes next is for its `reply` to say.", param="turn"
            )
        return self._runs.start(self._play(job, options, sandbox))

    async def status(self, handle: str) -> HarnessState:
        """Whether the episode goes on. Raises NotFound."""
        return self._runs.state(handle)

    async def collect(self, handle: str) -> HarnessEnd:
        """Wait for the end. Raises NotFound; HarnessError and SandboxError where the environment was lost."""
        return await self._runs.end(handle)

    async def aclose(self) -> None:
        """End all processes."""
        await self._nurseries.close()

    async def _play(self, job: HarnessJob, options: EnvironmentOptions, sandbox: OnDemandSandbox) -> HarnessEnd:
        source, name = self._allowed.find(options.environment)
        fork = await self._nurseries.fork(source, _LOAD_S)
        world = World(fork, sandbox, str(source))
        sandbox.also_close(world.close)
        self.worlds[sandbox] = world
        started = await world.ask(
            "start",
            max(options.tool_timeout_s, _RESET_S),
            name=name,
            task=options.task,
            system=options.system,
            seed=_seed(job, options, "world"),
            max_turns=options.max_turns,
        )
        world.closes = started["closes"]
        async with ChatEndpoint(job.endpoint) as endpoint:
            episode = _Episode(endpoint, job, options, world, started)
            world.how_it_ended = await episode.play()
        return HarnessEnd(exit_code=0, output=episode.answer, log=world.how_it_ended)


class _Episode:
    """The turns of one rollout."""

    def __init__(
        self,
        endpoint: ChatEndpoint,
        job: HarnessJob,
        options: EnvironmentOptions,
        world: World,
        started: Mapping[str, Any],
    ) -> None:
        self.answer = ""
        self._endpoint = endpoint
        self._job = job
        self._options = options
        self._world = world
        self._messages: list[dict[str, Any]] = list(started["messages"])
        self._tools: list[dict[str, Any]] = list(started["tools"])
        self._max_turns = int(started["max_turns"])
        self._done = bool(started["done"])

    async def play(self) -> str:
        """Play to the end, and say how it came."""
        for turn in range(self._max_turns):
            if self._done:
                break
            body = {
                **self._options.sampling,
                "model": self._job.endpoint.model,
                "messages": self._messages,
                "seed": _seed(self._job, self._options, str(turn)),
            }
            if self._tools:
                body["tools"] = self._tools
            try:
                said = await self._endpoint.ask(body)
            except Overflow as error:
                return f"the context was full in turn {turn + 1}: {error}"
            await self._take(said)
        if self._done:
            return "the episode came to its end"
        return f"all {self._max_turns} turns were used"

    async def _take(self, said: Answered) -> None:
        self._messages.append(said.message)
        self.answer = said.message.get("content") or ""
        limit_s = self._options.tool_timeout_s
        self._add(await self._world.ask("answered", limit_s, message=said.message, truncated=said.truncated))
        for call in said.message.get("tool_calls") or ():
            function = call.get("function", {})
            self._add(
                await self._world.ask(
                    "tool",
                    limit_s,
                    call_id=call.get("id", ""),
                    name=function.get("name", ""),
                    arguments=function.get("arguments", ""),
                )
            )

    def _add(self, given: Mapping[str, Any]) -> None:
        self._messages += given["messages"]
        self._done = self._done or bool(given["done"])


def _options(given: Mapping[str, Any]) -> EnvironmentOptions:
    """A task's options. Raises UsageError naming the option at fault."""
    options = read_options(EnvironmentOptions, given, "The harness option {option}")
    if taken := _OURS & set(options.sampling):
        raise UsageError(
            f"`sampling` may not hold {', '.join(sorted(taken))}: the harness says that itself.",
            param="sampling",
        )
    return options


def _seed(job: HarnessJob, options: EnvironmentOptions, what: str) -> int:
    """48 bits, from the task's seed, its id, the rollout's number in its group, and what the seed is for."""
    base = job.rollout_id if options.seed is None else f"{options.seed}:{job.task_id}:{job.index}"
    return int.from_bytes(hashlib.sha256(f"{base}:{what}".encode()).digest()[:6], "big")
