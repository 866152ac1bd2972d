"""The runs that an adapter has under way in this process: a handle each, forgotten when it is collected."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from practicum.errors import NotFound
from practicum.harnesses.harness import HarnessEnd, HarnessState
from practicum.types.ids import new_id


class Runs:
    """Runs of the adapter `name`, each a task of the event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[str, asyncio.Task[HarnessEnd]] = {}

    def start(self, run: Coroutine[Any, Any, HarnessEnd]) -> str:
        """Begin a run; its handle."""
        handle = new_id("run")
        self._tasks[handle] = asyncio.create_task(run, name=f"{self._name} {handle}")
        return handle

    def state(self, handle: str) -> HarnessState:
        """Whether a run goes on. Raises NotFound."""
        return "ended" if self._known(handle).done() else "running"

    async def end(self, handle: str) -> HarnessEnd:
        """Wait for a run's end and forget it. Raises NotFound, and what the run raised."""
        run = self._known(handle)
        try:
            return await run  # a cancelled wait cancels the run and comes back when that has ended
        finally:
            self._tasks.pop(handle, None)

    def _known(self, handle: str) -> asyncio.Task[HarnessEnd]:
        run = self._tasks.get(handle)
        if run is None:
            raise NotFound(f"{self._name} has no run {handle[:80]!r}.", hint="A run is forgotten once it is collected.")
        return run
