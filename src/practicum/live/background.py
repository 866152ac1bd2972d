"""Learning beside serving: a watcher that starts a run, in its own process, once enough new feedback is there.

The run is a separate low-priority process with one thread, so a request never waits for a training step; serving sees
nothing of it but a moved pointer.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

from practicum.store import Store

_log = logging.getLogger(__name__)


class Watcher:
    """Start `practicum learn --background` when `every` items have come in since the last start.

    `arguments` select the same configuration as the server's. A run that fails is logged and tried again with the
    next feedback; its state is in the store and it resumes.
    """

    def __init__(self, store: Store, arguments: Sequence[str], *, every: int, poll_s: float = 5.0) -> None:
        self._store = store
        self._command = [sys.executable, "-m", "practicum", "learn", "--background", *arguments]
        self._every = every
        self._poll_s = poll_s

    async def run(self) -> None:
        """Until cancelled; a run that is under way is then stopped, and resumes with the next server."""
        heard = self._heard_by_the_last_run()
        while True:
            await asyncio.sleep(self._poll_s)
            total = len(await asyncio.to_thread(self._store.feedback))
            if total - heard >= self._every or self._unfinished():
                heard = total
                await self._learn()

    async def _learn(self) -> None:
        process = await asyncio.create_subprocess_exec(*self._command)
        try:
            status = await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        if status not in (0, 3):
            _log.warning("the learning run ended with status %s; it is tried again with the next feedback", status)

    def _unfinished(self) -> bool:
        return any(run.state == "running" for run in self._store.runs())

    def _heard_by_the_last_run(self) -> int:
        until = 0.0
        for run in self._store.runs():
            for step in self._store.run_steps(run.run_id):
                if step.step == "collect":
                    until = max(until, float(step.output["until"]))
        return sum(item.updated_at <= until for item in self._store.feedback())
