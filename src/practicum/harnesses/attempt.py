"""One attempt of one rollout: prepare a sandbox, run the harness in it, grade what it left.

The sandbox is open from the first stage to the end of the last, in one task, so that however the attempt ends
(cancelled, out of time, failed) the sandbox is left by its own way out. Whatever goes wrong becomes a cause; only
cancellation and programming errors of ours leave as exceptions.

It must not know queues, nor what is done about a cause.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from practicum.errors import HarnessError, PracticumError, SandboxError
from practicum.harnesses.grading import Evidence, GraderFactory, grade, wanted_to_end
from practicum.harnesses.harness import Endpoint, Harness, HarnessEnd, HarnessJob
from practicum.harnesses.line import Gate
from practicum.sandboxes.on_demand import OnDemand
from practicum.sandboxes.sandbox import Limits, Sandbox, SandboxProvider, SandboxSpec
from practicum.types.calls import ModelCall
from practicum.types.outcomes import Outcome
from practicum.types.rollouts import Cause, Rollout, RolloutState, Stage, Task

_LOG_TAIL = 500
_SHORTEST_LOOK_S = 0.01
_log = logging.getLogger("practicum.harnesses")


class StallClock(Protocol):
    """What the gateway tells of a session beside its record; see `capture.stalls`."""

    def stalled_s(self, session_id: str) -> float:
        """Seconds for which we have held the agent up so far, a stall that goes on included."""

    def refusals(self, session_id: str) -> Mapping[str, int]:
        """Requests that were refused before they were calls, and how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """One gate for each stage, shared by all rollouts. `open` counts sandboxes that wait for further instructions."""

    prepare: Gate
    run: Gate
    grade: Gate
    open: Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What attempts are made with."""

    harnesses: Mapping[str, Harness]
    sandboxes: SandboxProvider
    graders: Mapping[str, GraderFactory]
    stalls: StallClock
    limits: Limits
    calls: Callable[[str], Awaitable[Sequence[ModelCall]]]


class Journal(Protocol):
    """Where an attempt writes down how it goes, durably, and where it hears of further instructions."""

    async def state(self, state: RolloutState, **changes: Any) -> None:
        """Note where the rollout stands."""

    async def stage(self, stage: Stage, started_at: float, wall_s: float, stalled_s: float) -> None:
        """Note how long a stage took."""

    def instructions(self) -> Sequence[str]:
        """All instructions so far."""

    async def more(self, done: int, timeout_s: float) -> bool:
        """Wait for an instruction behind the first `done`; False where none came, or no more are wanted."""

    def started_running(self) -> None:
        """The sandbox has left the ready buffer."""

    async def agent_is_done(self) -> None:
        """No further model call is expected: the key is of no more use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an attempt ended."""

    cause: Cause
    error: str | None = None
    output: str = ""
    outcomes: tuple[Outcome, ...] = ()


class _Ended(Exception):
    """Leaves the stages early with an end."""

    def __init__(self, end: End) -> None:
        self.end = end


class AttemptRun:
    """Runs one attempt, once.

    Args:
        means: what it is made with.
        pools: the gates between the stages.
        task: what is asked.
        rollout: the rollout, at this attempt.
        endpoint: the model's address and key for this attempt alone.
        gateway: the one address that stays reachable from the sandbox.
        journal: where it writes.
    """

    def __init__(
        self,
        means: Means,
        pools: Pools,
        *,
        task: Task,
        rollout: Rollout,
        endpoint: Endpoint,
        gateway: str,
        journal: Journal,
    ) -> None:
        self._means = means
        self._pools = pools
        self._task = task
        self._rollout = rollout
        self._endpoint = endpoint
        self._gateway = gateway
        self._journal = journal
        self._left_s = task.timeouts.whole_s

    async def run(self) -> End:
        """Prepare, run, grade. The sandbox is closed when this returns or raises."""
        try:
            async with AsyncExitStack() as stack:
                sandbox = await self._prepare(stack)
                end, exit_code = await self._play(sandbox)
                await self._journal.agent_is_done()
                calls = await self._means.calls(self._rollout.session_id)
                end = _judged(end, calls, self._means.stalls.refusals(self._rollout.session_id))
                if end.cause not in ("finished", "agent_failed", "agent_timeout"):
                    return end
                return await self._grade(sandbox, end, exit_code, calls)
        except _Ended as early:
            return early.end

    # -- prepare -------------------------------------------------------------------------------------------------

    async def _prepare(self, stack: AsyncExitStack) -> Sandbox:
        spec = SandboxSpec(
            files=self._task.files,
            env=self._task.env,
            limits=self._means.limits,
            gateway=self._gateway,
            workdir=self._task.workdir,
        )
        limit_s = self._task.timeouts.prepare_s
        provider = self._means.sandboxes
        if getattr(self._means.harnesses.get(self._task.harness), "sandbox_on_demand", False):
            provider = OnDemand(provider)
        async with self._pools.prepare.entered(self._task.priority):
            await self._journal.state("preparing")
            async with self._stage("prepare"):
                try:
                    async with asyncio.timeout(min(limit_s, self._left_s)):
                        sandbox = await _enter(stack, provider.open(spec))
                except TimeoutError as error:
                    raise _Ended(End(cause="sandbox_failed", error=f"it was not ready within {limit_s:g} s")) from error
                except Exception as error:  # a provider may be the customer's own
                    raise _Ended(End(cause="sandbox_failed", error=_said(error))) from error
        await self._journal.state("ready")
        return sandbox

    # -- run -----------------------------------------------------------------------------------------------------

    async def _play(self, sandbox: Sandbox) -> tuple[End, int | None]:
        """Play the instructions, and those that come while the rollout is kept open."""
        done, first = 0, True
        while True:
            async with self._pools.run.entered(self._task.priority):
                if first:
                    self._journal.started_running()
                    first = False
                await self._journal.state("running")
                while done < len(instructions := self._journal.instructions()):
                    end, exit_code = await self._turn(sandbox, done, instructions[done])
                    done += 1
                    await self._journal.state("running", turns_done=done, output=end.output)
                    if end.cause != "finished":
                        return end, exit_code
            if not await self._kept_open(done):
                return end, exit_code

    async def _kept_open(self, done: int) -> bool:
        """Whether a further instruction came while the sandbox was kept."""
        if done < len(self._journal.instructions()):
            return True
        if not self._task.keep_open_s or not self._pools.open.try_enter():
            return False
        try:
            await self._journal.state("open")
            return await self._journal.more(done, self._task.keep_open_s)
        finally:
            self._pools.open.leave()

    async def _turn(self, sandbox: Sandbox, turn: int, instruction: str) -> tuple[End, int | None]:
        harness = self._means.harnesses.get(self._task.harness)
        if harness is None:  # it was when the task was submitted
            return End(cause="harness_failed", error=f"no harness {self._task.harness!r} is configured"), None
        job = HarnessJob(
            rollout_id=self._rollout.rollout_id,
            task_id=self._task.task_id,
            index=self._rollout.index,
            instruction=instruction,
            endpoint=self._endpoint,
            turn=turn,
            timeout_s=self._left_s,
            env=self._task.env,
            options=self._task.options,
        )
        async with self._stage("run"):
            try:
                async with asyncio.timeout(self._left_s) as whole:
                    ended = await self._collect(harness, await harness.submit(job, sandbox))
            except TimeoutError as error:
                cause: Cause = "expired" if whole.expired() else "harness_failed"
                return End(cause=cause, error=_expired(self._task) if whole.expired() else _said(error)), None
            except asyncio.CancelledError:
                if wanted_to_end():
                    raise
                return End(cause="harness_failed", error="the run was cancelled, and not by the service"), None
            except Exception as error:  # an adapter may be the customer's own
                if not isinstance(error, HarnessError | SandboxError):
                    _log.warning("harness %s failed", self._task.harness, exc_info=error)
                lost: Cause = "sandbox_failed" if isinstance(error, SandboxError) else "harness_failed"
                return End(cause=lost, error=_said(error)), None
        if ended is None:
            limit = f"{self._task.timeouts.agent_s:g} s on the agent's clock"
            return End(cause="agent_timeout", error=f"instruction {turn + 1} took longer than {limit}"), None
        if ended.timed_out:
            return End(cause="expired", error=_expired(self._task), output=ended.output), None
        return _end_of(ended), ended.exit_code

    async def _collect(self, harness: Harness, handle: str) -> HarnessEnd | None:
        """The run's end; None where the agent's own time was used up, and with it the run."""
        session_id, limit_s = self._rollout.session_id, self._task.timeouts.agent_s
        started, stalled = time.monotonic(), self._means.stalls.stalled_s(session_id)
        collecting = asyncio.ensure_future(harness.collect(handle))
        try:
            while True:
                held_up = self._means.stalls.stalled_s(session_id) - stalled
                left_s = limit_s - (time.monotonic() - started - held_up)
                if left_s <= 0:
                    return None
                await asyncio.wait([collecting], timeout=max(left_s, _SHORTEST_LOOK_S))
                if collecting.done():
                    return _checked(collecting.result())
        finally:
            if not collecting.done():
                collecting.cancel()
                await asyncio.wait([collecting])
                if not collecting.cancelled() and (failure := collecting.exception()) is not None:
                    _log.warning("harness %s failed while it was ended", self._task.harness, exc_info=failure)

    # -- grade ---------------------------------------------------------------------------------------------------

    async def _grade(self, sandbox: Sandbox, end: End, exit_code: int | None, calls: Sequence[ModelCall]) -> End:
        if not self._task.graders:
            return end
        evidence = Evidence(
            task=self._task,
            rollout=self._rollout,
            sandbox=sandbox,
            exit_code=exit_code,
            output=end.output,
            calls=calls,
        )
        async with self._pools.grade.entered(self._task.priority):
            await self._journal.state("grading")
            async with self._stage("grade"):
                try:
                    async with asyncio.timeout(self._left_s):
                        outcomes = tuple(await grade(evidence, self._means.graders))
                except TimeoutError:
                    return End(cause="grader_failed", error=f"after {end.cause}: {_expired(self._task)}")
        first = outcomes[0]
        if first.reward is None:
            reason = f"after {end.cause}: {first.by or first.name}: {first.reason}"
            return End(cause="grader_failed", error=reason, output=end.output, outcomes=outcomes)
        return End(cause=end.cause, error=end.error, output=end.output, outcomes=outcomes)

    @asynccontextmanager
    async def _stage(self, stage: Stage) -> AsyncIterator[None]:
        """Time a stage, on both clocks, however it ends."""
        session_id = self._rollout.session_id
        at, started, stalled = time.time(), time.monotonic(), self._means.stalls.stalled_s(session_id)
        try:
            yield
        finally:
            wall_s = time.monotonic() - started
            self._left_s = max(0.0, self._left_s - wall_s)
            await self._journal.stage(stage, at, wall_s, self._means.stalls.stalled_s(session_id) - stalled)


async def _enter(stack: AsyncExitStack, manager: AbstractAsyncContextManager[Sandbox]) -> Sandbox:
    """Enter a sandbox whose way out, where it fails, is logged and spoils nothing."""
    sandbox = await manager.__aenter__()

    async def leave(kind: Any, error: Any, trace: Any) -> bool:
        try:
            await manager.__aexit__(kind, error, trace)
        except Exception as failure:
            if failure is not error:
                _log.error("a sandbox could not be cleaned up", exc_info=failure)
        return False

    stack.push_async_exit(leave)
    return sandbox


def _checked(ended: Any) -> HarnessEnd:
    """The end as it can be recorded. Raises HarnessError for anything else."""
    if not isinstance(ended, HarnessEnd):
        raise HarnessError(f"The harness gave {type(ended).__name__} in place of a HarnessEnd.")
    if not isinstance(ended.output, str) or not isinstance(ended.log, str):
        raise HarnessError("The harness gave an output or a log that is no text.")
    return ended


def _end_of(ended: HarnessEnd) -> End:
    """A run with an exit status came to its end by itself; one without, and with an error, was lost."""
    if ended.exit_code is None and ended.error is not None:
        return End(cause="harness_failed", error=ended.error, output=ended.output)
    if ended.exit_code or ended.error is not None:
        said = ended.error or f"exit status {ended.exit_code}"
        return End(cause="agent_failed", error=f"{said}: {ended.log[-_LOG_TAIL:]}", output=ended.output)
    return End(cause="finished", output=ended.output)


def _judged(end: End, calls: Sequence[ModelCall], refusals: Mapping[str, int]) -> End:
    """The end in the light of what the model endpoint recorded."""
    last = calls[-1] if calls else None
    if end.cause in ("finished", "agent_failed", "harness_failed") and last is not None and _failed_on_our_side(last):
        return End(cause="endpoint_failed", error="; ".join(filter(None, (last.error, end.error))), output=end.output)
    if end.cause in ("finished", "agent_failed", "agent_timeout") and not any(call.completion_ids for call in calls):
        seen = "no model call came" if not calls else f"{len(calls)} model calls came and none got a token"
        refused = [f"refused {count} times: {request}" for request, count in refusals.items()]
        return End(cause="no_model_call", error="; ".join(filter(None, [seen, *refused, end.error])), output=end.output)
    return end


def _failed_on_our_side(call: ModelCall) -> bool:
    return call.status in ("failed", "interrupted")


def _expired(task: Task) -> str:
    return f"the whole time of {task.timeouts.whole_s:g} s was used up"


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, PracticumError) else f"{type(error).__name__}: {error}"
