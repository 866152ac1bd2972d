"""Brings rollouts from the line to their ends: admission, attempts, retries, calling off.

A rollout that is under way has one task here; it holds a place in the ready buffer until it runs and a place among all
sandboxes until its own is closed. A fault of ours queues it again, some times; what the policy could have caused ends
it. It must not know groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from practicum.errors import StoreError
from practicum.harnesses.attempt import AttemptRun, End, Means, Pools
from practicum.harnesses.harness import Endpoint
from practicum.harnesses.journal import RolloutJournal
from practicum.harnesses.line import Gate, Line
from practicum.store import Store
from practicum.types.rollouts import CAUSES, Rollout, Task

_STOP_S = 10.0
_READ_AGAIN_S = 0.2
_LONGEST_PAUSE_S = 60.0
_log = logging.getLogger("practicum.harnesses.runner")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """How many rollouts may be in each stage at once.

    `ready` bounds sandboxes that are being prepared or wait for their run, `open` those kept for further instructions.
    `attempts` is the most tries of a rollout that faults of ours ended, with a pause of `retry_pause_s`, doubled each
    time, between them.
    """

    prepare: int = 4
    ready: int = 8
    run: int = 8
    grade: int = 4
    open: int = 8
    attempts: int = 3
    retry_pause_s: float = 1.0

    @property
    def sandboxes(self) -> int:
        """Most sandboxes at once: those in the stages, and as many again as are graded, waiting for that."""
        return self.ready + self.run + 2 * self.grade + self.open


@dataclass(slots=True)
class Flight:
    """A rollout under way. `called_off` is the end that it is being given from outside."""

    journal: RolloutJournal
    task_of: Task
    runs: asyncio.Task[None] | None = None
    started: bool = False
    settling: bool = False
    in_ready: bool = True
    called_off: End | None = None


class Runner:
    """Runs what is pushed.

    Args:
        store: where rollouts are.
        means: what attempts are made with.
        limits: of the stages.
        model: name of the model where a task does not say.
        gateway: gives the gateway's root address.
        ended: told a rollout's id once its end is on record.
    """

    def __init__(
        self,
        store: Store,
        means: Means,
        limits: RolloutLimits,
        *,
        model: str,
        gateway: Callable[[], str],
        ended: Callable[[str], Awaitable[None]],
    ) -> None:
        self.flights: dict[str, Flight] = {}
        self._store = store
        self._means = means
        self._limits = limits
        self._model = model
        self._gateway = gateway
        self._ended = ended
        self._pools = Pools(
            prepare=Gate(limits.prepare), run=Gate(limits.run), grade=Gate(limits.grade), open=Gate(limits.open)
        )
        self._ready = Gate(limits.ready)
        self._alive = Gate(limits.sandboxes)
        self._line: Line[str] = Line()
        self._tasks_of: dict[str, Task] = {}
        self._paused: dict[str, asyncio.TimerHandle] = {}
        self._arrived = asyncio.Event()

    def push(self, rollout_id: str, task: Task) -> None:
        """Queue a rollout."""
        self._tasks_of[rollout_id] = task
        self._line.push(rollout_id, task.priority)
        self._arrived.set()

    async def dispatch(self, tasks: asyncio.TaskGroup) -> None:
        """Start rollouts as places become free; runs until it is cancelled."""
        while True:
            await self._alive.enter()
            await self._ready.enter()
            rollout = await self._next()
            rollout_id = rollout.rollout_id
            flight = Flight(
                journal=RolloutJournal(self._store, rollout, self._leaver(rollout_id)),
                task_of=self._tasks_of.pop(rollout_id),
            )
            self.flights[rollout_id] = flight
            flight.runs = tasks.create_task(self._fly(flight), name=rollout_id)

    async def _next(self) -> Rollout:
        """Wait for the next in line. While it cannot be read it stays there, and can be called off."""
        while True:
            while not len(self._line):
                self._arrived.clear()
                await self._arrived.wait()
            rollout_id = self._line.pop()
            try:
                return self._store.get_rollout(rollout_id)
            except StoreError as error:
                _log.error("rollout %s waits for the store: %s", rollout_id, error)
                self._line.push(rollout_id, self._tasks_of[rollout_id].priority)
                await asyncio.sleep(_READ_AGAIN_S)

    async def call_off(self, rollout_id: str, end: End) -> asyncio.Task[None] | None:
        """End a rollout from outside; returns the task that tears it down, where there is one."""
        timer = self._paused.pop(rollout_id, None)
        if timer is not None:
            timer.cancel()
        if self._line.discard(rollout_id) or timer is not None:
            self._tasks_of.pop(rollout_id, None)
            journal = RolloutJournal(self._store, self._store.get_rollout(rollout_id), _nothing)
            await journal.end(end)
            await self._ended(rollout_id)
            return None
        flight = self.flights.get(rollout_id)
        if flight is None:
            return None
        if flight.called_off is None:
            flight.called_off = end
            if flight.started and not flight.settling and flight.runs is not None:
                flight.runs.cancel()
        return flight.runs

    def stop(self) -> None:
        """Tear down what is under way; nothing of it ends by this."""
        for timer in self._paused.values():
            timer.cancel()
        for flight in self.flights.values():
            if flight.runs is not None:
                flight.runs.cancel()

    async def _fly(self, flight: Flight) -> None:
        flight.started = True
        rollout_id = flight.journal.rollout_id
        broken: End | None = None
        try:
            end = await self._attempt(flight)
        except asyncio.CancelledError:
            if flight.called_off is None:
                await self._give_back(flight)
                raise
            _uncancel()
            end = flight.called_off
        except Exception as error:  # a fault of the program's own costs this rollout, and no other
            broken = end = _broken(rollout_id, error)
        finally:
            self._leaver(rollout_id)()
            self._alive.leave()
        flight.settling = True
        try:
            if end is not None:
                await self._settle(flight, end, again=broken is None)
        except Exception as error:
            await self._end_anyway(flight, _broken(rollout_id, error))
        finally:
            if self.flights.get(rollout_id) is flight:
                del self.flights[rollout_id]

    async def _attempt(self, flight: Flight) -> End | None:
        """Run one attempt to its end; None where the rollout had ended already."""
        if flight.called_off is not None:
            return flight.called_off
        task, journal = flight.task_of, flight.journal
        rollout = await journal.begin()
        if rollout is None:
            return None
        gateway = self._gateway()
        endpoint = Endpoint(
            base_url=f"{gateway}/s/{rollout.session_id}", api_key=await journal.key(), model=task.model or self._model
        )
        run = AttemptRun(
            self._means,
            self._pools,
            task=task,
            rollout=rollout,
            endpoint=endpoint,
            gateway=gateway,
            journal=journal,
        )
        return await run.run()

    async def _settle(self, flight: Flight, end: End, *, again: bool) -> None:
        """Queue the rollout again where its end's cause wants that, or end it."""
        journal = flight.journal
        await journal.agent_is_done()
        if again and CAUSES[end.cause].retried and flight.called_off is None:
            faults = sum(lost.cause != "interrupted" for lost in (await journal.read()).attempts)
            if faults + 1 < self._limits.attempts:
                await journal.lost(end.cause, end.error)
                if flight.called_off is None:
                    self._pause(flight, self._limits.retry_pause_s * 2**faults)
                    return
        if flight.called_off is not None and CAUSES[end.cause].retried:
            end = flight.called_off
        await journal.end(end)
        await self._ended(journal.rollout_id)

    async def _end_anyway(self, flight: Flight, end: End) -> None:
        """End a rollout that could not be settled; one that cannot be ended either stays for the next service."""
        try:
            if await flight.journal.end(end):
                await self._ended(flight.journal.rollout_id)
        except Exception:
            _log.exception("rollout %s could not be ended", flight.journal.rollout_id)

    def _pause(self, flight: Flight, pause_s: float) -> None:
        rollout_id = flight.journal.rollout_id

        def again() -> None:
            del self._paused[rollout_id]
            self.push(rollout_id, flight.task_of)

        later = asyncio.get_running_loop().call_later(min(pause_s, _LONGEST_PAUSE_S), again)
        self._paused[rollout_id] = later

    async def _give_back(self, flight: Flight) -> None:
        """The service stops: queue the rollout for the next one. What cannot be written now, that one works out."""
        _uncancel()
        try:
            async with asyncio.timeout(_STOP_S):
                await flight.journal.agent_is_done()
                await flight.journal.lost("interrupted", "the service stopped")
        except (TimeoutError, StoreError) as error:
            _log.warning("rollout %s was not queued again: %s", flight.journal.rollout_id, error)

    def _leaver(self, rollout_id: str) -> Callable[[], None]:
        """Leaves the ready buffer for a rollout, once."""

        def leave() -> None:
            flight = self.flights.get(rollout_id)
            if flight is not None and flight.in_ready:
                flight.in_ready = False
                self._ready.leave()

        return leave


def _broken(rollout_id: str, error: Exception) -> End:
    _log.error("the service failed at rollout %s", rollout_id, exc_info=error)
    return End(cause="interrupted", error=f"the service failed: {type(error).__name__}: {error}")


def _uncancel() -> None:
    current = asyncio.current_task()
    if current is not None:
        current.uncancel()


def _nothing() -> None:
    return
