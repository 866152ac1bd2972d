"""Where a training run's rollouts run: the gateway and the rollout service, on a thread with an event loop of its own.

The learner's own sampler serves them, so sampling and training take turns over one copy of the weights. Callers are
synchronous and wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from practicum.config import ServerConfig
from practicum.errors import ConfigError, Conflict, EngineError, RequestError
from practicum.gateway.server import Server, serve, server
from practicum.harnesses.results import RolloutResult
from practicum.harnesses.service import RolloutService
from practicum.types.rollouts import Task

_START_S = 60.0
T = TypeVar("T")


class ServiceFactory(Protocol):
    """Makes the service once the gateway's address is known."""

    def __call__(self, gateway: str) -> RolloutService:
        """A service whose harnesses reach the model at `gateway`."""


class Workshop:
    """Serves `app` on a free loopback port and runs tasks against it, for as long as the context is open.

    Args:
        app: the gateway's application.
        config: its limits; the address is chosen here.
        service: makes the rollout service.
    """

    def __init__(self, app: object, config: ServerConfig, service: ServiceFactory) -> None:
        self._server: Server = server(app, config.model_copy(update={"host": "127.0.0.1", "port": 0}))
        self._make_service = service
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: RolloutService | None = None
        self._failure: BaseException | None = None
        self._over = False
        self._thread = threading.Thread(target=self._run, name="workshop", daemon=True)

    def __enter__(self) -> Self:
        """Start. Raises what the server or the service raised."""
        self._thread.start()
        self._ready.wait(_START_S)
        if self._service is None:
            raise self._failure or EngineError("The gateway of the run did not start in time.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the service, which tears its sandboxes down, then the server."""
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def check(self, tasks: Sequence[Task]) -> None:
        """Raises ConfigError naming the first task that the service would refuse, and why."""
        assert self._service is not None
        for task in tasks:
            try:
                self._service.check(task)
            except RequestError as error:
                raise ConfigError(
                    f"Task {task.task_id!r}: {error.message}", hint=error.hint or "Mend the task and run again."
                ) from error

    def submit(self, tasks: Mapping[str, Task]) -> None:
        """Queue groups under their submission keys, and return. Raises what the service raises."""
        self._wait_for(self._submitted(tasks))

    def cancel(self, key: str, task: Task) -> None:
        """Call off the group of a submission. Raises what the service raises."""
        self._wait_for(self._cancelled(key, task))

    def run(self, tasks: Mapping[str, Task]) -> dict[str, list[RolloutResult]]:
        """Each task's results under its submission key. Raises what the service raises."""
        return self._wait_for(self._collected(tasks))

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or not self._thread.is_alive():
            work.close()
            raise self._failure or EngineError("The gateway of the run does not run.")
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (CancelledError, Conflict) as error:
            if not self._over:
                raise
            self._thread.join()
            raise (self._failure or EngineError("The rollout service ended while rollouts ran.")) from error

    async def _submitted(self, tasks: Mapping[str, Task]) -> dict[str, str]:
        assert self._service is not None
        return {key: await self._service.submit(task, key=key) for key, task in tasks.items()}

    async def _cancelled(self, key: str, task: Task) -> None:
        assert self._service is not None
        await self._service.cancel(await self._service.submit(task, key=key))

    async def _collected(self, tasks: Mapping[str, Task]) -> dict[str, list[RolloutResult]]:
        assert self._service is not None
        groups = await self._submitted(tasks)
        return {key: await self._service.collect(group) for key, group in groups.items()}

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listening: asyncio.Future[int] = self._loop.create_future()
        self._server.started_at = listening.set_result
        serving = asyncio.create_task(serve(self._server))
        first: tuple[asyncio.Future[Any], ...] = (serving, listening)
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            await serving
            raise EngineError("The gateway of the run did not start.")
        try:
            async with self._make_service(f"http://127.0.0.1:{listening.result()}") as self._service:
                self._ready.set()
                await self._stop.wait()
        finally:
            self._over = True  # before anyone who waits for a group hears of it
            self._server.should_exit = True
            await serving
