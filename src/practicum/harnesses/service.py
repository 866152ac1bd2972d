"""The rollout service: a task is submitted, a group of rollouts of it is run, graded, and collected with its tokens.

    async with RolloutService(store, harnesses=..., sandboxes=..., graders=..., gateway=url) as service:
        group_id = await service.submit(Task(task_id="t1", instructions=("Fix it.",), harness="mini", num_samples=8))
        for result in await service.collect(group_id): ...

The queue is the store: what is submitted is durable, and a service that starts goes on where the last one, however it
ended, stopped. Rollouts pass four stages, each with a limit of its own: prepared sandboxes wait in a bounded buffer, so
that preparing never waits for running, and grading holds up neither.

Invariants: each rollout ends once, with one cause; an attempt has a session and a key of its own, and the key is
useless when the attempt is over; one service runs the rollouts of a store at a time. It must not know tokens, wire
formats, or what a reward is used for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httpx

from practicum.capture.stalls import Stalls
from practicum.errors import Conflict, NotFound
from practicum.harnesses.admission import check_task, close_all
from practicum.harnesses.attempt import End, Means, StallClock
from practicum.harnesses.callbacks import Callbacks, callback_secret
from practicum.harnesses.grading import GraderFactory
from practicum.harnesses.harness import Harness
from practicum.harnesses.journal import RolloutJournal, until_it_works
from practicum.harnesses.queue_lock import QueueLock
from practicum.harnesses.results import RolloutResult, result
from practicum.harnesses.runner import RolloutLimits, Runner
from practicum.sandboxes.sandbox import Limits, SandboxProvider
from practicum.store import Store
from practicum.types.calls import ModelCall
from practicum.types.ids import new_id
from practicum.types.rollouts import CAUSES, Cause, Group, Rollout, Task

_log = logging.getLogger("practicum.harnesses.service")
MOST_INTERRUPTIONS = 20
OWNER = "owner"

# Whether a group has enough, from all of its rollouts as they stand.
Until = Callable[[Sequence[Rollout]], bool]


@dataclass(slots=True)
class _Live:
    """A group that has not ended."""

    group: Group
    until: Until | None = None
    stopped: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class RolloutService:
    """Runs rollouts. Enter and leave it in one task; call its methods from any task of that loop.

    Args:
        store: the queue, and the gateway's store.
        harnesses: adapters by the names that tasks use.
        sandboxes: makes sandboxes.
        graders: makes graders, by the names that tasks use.
        gateway: root address of the gateway (`http://127.0.0.1:PORT`), as the sandbox reaches it.
        model: name of the model where a task does not say.
        limits: of the stages.
        sandbox_limits: of each sandbox's processes.
        stalls: the gateway's, where it runs in this process; without, the agent's clock is the wall's.
        check_model: raises NotFound for a model's name that the gateway would refuse a rollout.
        callback_hosts: hosts beside this machine that callbacks may go to.
        callback_transport: an httpx transport; tests give their own.
    """

    def __init__(
        self,
        store: Store,
        *,
        harnesses: Mapping[str, Harness],
        sandboxes: SandboxProvider,
        graders: Mapping[str, GraderFactory] | None = None,
        gateway: str,
        model: str = "practicum",
        limits: RolloutLimits = RolloutLimits(),
        sandbox_limits: Limits = Limits(),
        stalls: StallClock | None = None,
        check_model: Callable[[str], None] | None = None,
        callback_hosts: Collection[str] = (),
        callback_transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.gateway = gateway
        self._store = store
        self._check_model = check_model
        self._callback_hosts = callback_hosts
        self._callbacks = Callbacks(
            callback_secret(store.key_secret), sleep=asyncio.sleep, transport=callback_transport
        )
        self._means = Means(
            harnesses=harnesses,
            sandboxes=sandboxes,
            graders=graders or {},
            stalls=stalls or Stalls(),
            limits=sandbox_limits,
            calls=lambda session_id: until_it_works(session_id, lambda: self._calls(session_id)),
        )
        self._runner = Runner(
            store, self._means, limits, model=model, gateway=lambda: self.gateway, ended=self._one_ended
        )
        self._live: dict[str, _Live] = {}
        self._group_of: dict[str, str] = {}
        self._lock = QueueLock(store.path)
        self._instructing = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None
        self._jobs: list[asyncio.Task[None]] = []

    # -- lifetime ------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Take the right to run this store's rollouts before entering. Raises Conflict where another has it."""
        self._lock.acquire()

    async def __aenter__(self) -> Self:
        """Take up what is under way. Raises Conflict where another service runs this store's rollouts."""
        self._lock.acquire()
        try:
            await self._recover()
            self._tasks = await asyncio.TaskGroup().__aenter__()
            self._jobs = [self._tasks.create_task(self._runner.dispatch(self._tasks))]
            for live in list(self._live.values()):
                await self._look_at(live)
            for group_id in self._store.untold_groups():
                if group_id not in self._live:
                    self._tell(group_id)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tear down what runs; it is queued again, and the next service goes on with it."""
        tasks, self._tasks = self._tasks, None
        for job in self._jobs:
            job.cancel()
        self._runner.stop()
        try:
            if tasks is not None and (error is None or isinstance(error, asyncio.CancelledError)):
                await tasks.__aexit__(kind, error, trace)
            elif tasks is not None:  # the caller's own error leaves as it is, not in a group
                await tasks.__aexit__(None, None, None)
        finally:
            self._lock.release()
            waited_for, self._live = self._live, {}
            for live in waited_for.values():
                live.changed.set()
            await close_all(self._means.harnesses.values())

    # -- submit, status, collect ---------------------------------------------------------------------------------

    async def submit(
        self, task: Task, *, key: str | None = None, principal: str = OWNER, until: Until | None = None
    ) -> str:
        """Queue a group of rollouts; returns its id, once it is durable.

        Args:
            task: what is asked.
            key: submitting again under the same key gives the same group.
            principal: whose the group is.
            until: stop the group early once this holds; forgotten by a restart, unlike `task.stop_after`.

        Raises: RequestError naming the field; Conflict where `key` was used for another task.
        """
        self.check(task)
        told = "pending" if task.callback_url else "none"
        wanted = Group(group_id=new_id("group"), principal=principal, task=task, created_at=time.time(), callback=told)
        ids = [new_id("rollout") for _ in range(task.num_samples)]
        made = self._store.submit_rollouts(wanted, key or wanted.group_id, ids)
        group = await asyncio.wrap_future(made)
        if group.group_id not in self._live and self._tasks is not None:
            # A group of an earlier request too, whose caller went away, or was told of an error, once it was written.
            open_ids = [one for one, state, _ in self._store.rollout_states(group.group_id) if state != "ended"]
            live = self._remember(group, until) if open_ids else None
            for rollout in group.rollouts if live else ():
                self._runner.push(rollout.rollout_id, group.task)
        return group.group_id

    def check(self, task: Task) -> None:
        """Raises RequestError naming the field of a task that would be refused."""
        check_task(task, self._means, check_model=self._check_model, callback_hosts=self._callback_hosts)

    def status(self, group_id: str) -> Group:
        """A group with its rollouts as they stand. Raises NotFound."""
        return self._store.get_group(group_id)

    def groups(self, principal: str | None = None, limit: int = 100) -> list[Group]:
        """The newest groups, newest first, without their rollouts; one principal's where given."""
        return self._store.groups(principal, limit)

    async def collect(self, group_id: str, *, wait_s: float | None = None) -> list[RolloutResult]:
        """The group's results in order of `index`, once all have ended; after `wait_s`, those that have by then.

        Raises: NotFound; Conflict where the service does not run and the group has not ended.
        """
        found: list[RolloutResult] = []
        try:
            async with asyncio.timeout(wait_s):
                async for one in self.results(group_id):
                    found.append(one)
        except TimeoutError:
            pass
        return sorted(found, key=lambda one: one.rollout.index)

    async def results(self, group_id: str) -> AsyncIterator[RolloutResult]:
        """Each result as its rollout ends. Raises as `collect` does."""
        given = 0
        while True:
            ended, all_ended = await self.wait(group_id, more_than=given)
            for rollout_id in ended[given:]:
                yield await self.result(rollout_id)
            given = len(ended)
            if all_ended:
                return

    async def wait(self, group_id: str, *, more_than: int = 0, wait_s: float | None = None) -> tuple[list[str], bool]:
        """Wait until more than so many rollouts have ended, or all, or for `wait_s`.

        Returns the ids of those that have ended, in the order in which they did, and whether all have.
        """
        deadline = None if wait_s is None else asyncio.get_running_loop().time() + wait_s
        while True:
            live = self._live.get(group_id)
            changed = live.changed if live else None
            states = self._store.rollout_states(group_id)
            if not states:
                self._store.get_group(group_id)  # raises: there is no such group
            ended = [rollout_id for rollout_id, state, _ in states if state == "ended"]
            if len(ended) == len(states) or len(ended) > more_than:
                return ended, len(ended) == len(states)
            if changed is None:
                raise Conflict("The rollout service does not run.", hint="Start it; the group goes on by itself.")
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                return ended, False

    async def result(self, rollout_id: str) -> RolloutResult:
        """A rollout with its outcome and training rows, as they stand. Raises NotFound."""
        rollout = self._store.get_rollout(rollout_id)
        calls = await self._calls(rollout.session_id) if rollout.session_id else []
        return await asyncio.to_thread(result, rollout, calls)

    # -- stop and go on ------------------------------------------------------------------------------------------

    async def cancel(self, group_id: str, rollout_id: str | None = None) -> Group:
        """Call a group off, or one rollout of it; what ran is torn down when this returns. Raises NotFound."""
        group = self._store.get_group(group_id)
        wanted = [one.rollout_id for one in group.rollouts if rollout_id in (None, one.rollout_id)]
        if not wanted:
            raise NotFound(f"There is no rollout {rollout_id!r} in this group.", param="rollout_id")
        self._require_running()
        if rollout_id is None and group_id in self._live:
            self._live[group_id].stopped = True
        await self._call_off(wanted, End(cause="cancelled"), wait=True)
        return self._store.get_group(group_id)

    async def go_on(self, rollout_id: str, instruction: str, *, turn: int | None = None) -> Rollout:
        """Give a rollout a further instruction, in the same sandbox while that is kept.

        `turn`, the new instruction's number from 0, makes a repeated call harmless. Raises: NotFound; Conflict where
        the rollout takes no more, or `turn` is another's.
        """
        self._require_running()
        async with self._instructing:  # each must find those before it on record
            return await self._go_on(rollout_id, instruction, turn)

    async def _go_on(self, rollout_id: str, instruction: str, turn: int | None) -> Rollout:
        while True:
            rollout = self._store.get_rollout(rollout_id)
            if turn is not None and turn != len(rollout.instructions):
                if turn < len(rollout.instructions) and rollout.instructions[turn] == instruction:
                    return rollout
                raise Conflict(
                    f"The next instruction of this rollout is number {len(rollout.instructions)}.", param="turn"
                )
            flight = self._runner.flights.get(rollout_id)
            journal = flight.journal if flight else RolloutJournal(self._store, rollout, lambda: None)
            if rollout.state == "ended" or not journal.takes_more:
                raise Conflict(
                    f"The rollout takes no further instruction: it is {rollout.state}.",
                    hint="Submit tasks with `keep_open_s` to keep sandboxes for further instructions.",
                )
            if await journal.add(rollout.instructions, instruction):
                return self._store.get_rollout(rollout_id)

    def let_end(self, rollout_id: str) -> Rollout:
        """Let a rollout that is kept open go on to its grading. Raises NotFound."""
        flight = self._runner.flights.get(rollout_id)
        if flight is not None:
            flight.journal.no_more()
        return self._store.get_rollout(rollout_id)

    # -- within --------------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Queue what an earlier service left. What it had under way is a lost attempt."""
        for group_id, rollout_id in self._store.rollouts_under_way():
            if group_id not in self._live:
                self._remember(self._store.get_group(group_id), None)
            rollout = self._store.get_rollout(rollout_id)
            journal = RolloutJournal(self._store, rollout, lambda: None)
            if rollout.state != "queued":
                await journal.agent_is_done()
                if sum(lost.cause == "interrupted" for lost in rollout.attempts) >= MOST_INTERRUPTIONS:
                    error = f"the service stopped {MOST_INTERRUPTIONS + 1} times while it ran"
                    await journal.end(End(cause="interrupted", error=error))
                    continue
                await journal.lost("interrupted", "the service stopped")
            self._runner.push(rollout_id, self._live[group_id].group.task)

    def _remember(self, group: Group, until: Until | None) -> _Live:
        live = self._live[group.group_id] = _Live(group=group, until=until)
        self._group_of |= {rollout.rollout_id: group.group_id for rollout in group.rollouts}
        return live

    async def _one_ended(self, rollout_id: str) -> None:
        live = self._live.get(self._group_of.pop(rollout_id))
        if live is not None:
            await self._look_at(live)

    async def _look_at(self, live: _Live) -> None:
        """Wake who waits for a group; stop it where it has enough, tell its end where it has ended."""
        group_id = live.group.group_id
        states = await until_it_works(group_id, lambda: asyncio.to_thread(self._store.rollout_states, group_id))
        open_ids = [rollout_id for rollout_id, state, _ in states if state != "ended"]
        # Of several rollouts that end at one moment only one finds the group still there, so that its end is told once.
        was_last = not open_ids and self._live.pop(group_id, None) is not None
        live.changed.set()
        live.changed = asyncio.Event()
        if not open_ids:
            if was_last and live.group.callback == "pending":
                self._tell(group_id)
        elif not live.stopped and (end := await self._early_end(live, states)) is not None:
            live.stopped = True
            await self._call_off(open_ids, end, wait=False)

    async def _early_end(self, live: _Live, states: Sequence[tuple[str, str, Cause | None]]) -> End | None:
        """What the rest of a group is ended with, where it has enough, or where nobody can say whether it has."""
        wanted, group_id = live.group.task.stop_after, live.group.group_id
        scored = sum(cause is not None and CAUSES[cause].scored for _, _, cause in states)
        if wanted is not None and scored >= wanted:
            return End(cause="stopped_early")
        if live.until is None:
            return None
        group = await until_it_works(group_id, lambda: asyncio.to_thread(self._store.get_group, group_id))
        try:
            return End(cause="stopped_early") if live.until(group.rollouts) else None
        except Exception as error:  # the caller's own code
            _log.warning("the condition that ends group %s failed", group_id, exc_info=error)
            return End(cause="cancelled", error=f"`until` failed: {type(error).__name__}: {error}")

    async def _call_off(self, rollout_ids: Sequence[str], end: End, *, wait: bool) -> None:
        teardowns = [await self._runner.call_off(rollout_id, end) for rollout_id in rollout_ids]
        running = [task for task in teardowns if task is not None]
        if wait and running:
            await asyncio.wait(running)

    def _tell(self, group_id: str) -> None:
        if self._tasks is not None:
            self._jobs = [job for job in self._jobs if not job.done()]
            self._jobs.append(self._tasks.create_task(self._deliver(group_id)))

    async def _deliver(self, group_id: str) -> None:
        group = await until_it_works(group_id, lambda: asyncio.to_thread(self._store.get_group, group_id))
        url = group.task.callback_url
        assert url is not None, "only groups with an address are pending"
        ended = [
            {"rollout_id": one.rollout_id, "index": one.index, "cause": one.cause, "reward": one.reward}
            for one in group.rollouts
        ]
        document = {"type": "rollouts.ended", "group_id": group_id, "task_id": group.task.task_id, "rollouts": ended}
        word = await self._callbacks.deliver(url, f"msg_{group_id}", document)
        await until_it_works(group_id, lambda: asyncio.wrap_future(self._store.set_callback(group_id, word)))

    async def _calls(self, session_id: str) -> list[ModelCall]:
        return await asyncio.to_thread(self._store.calls, session_id)

    def _require_running(self) -> None:
        if self._tasks is None:
            raise Conflict("The rollout service does not run.", hint="Start it first.")
