"""Waits on an event loop for futures that another thread resolves: many resolved together wake the loop once.

`asyncio.wrap_future` wakes the loop, by a write to a socket, for each. It must not know what the futures stand for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress


class Arrivals:
    """Made in the event loop whose tasks wait."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._arrived: deque[asyncio.Future[None]] = deque()
        self._waking = False

    async def wait(self, future: Future[None], timeout_s: float) -> None:
        """Until `future` is done. Raises what it raises, or TimeoutError. Who stops waiting does not cancel it."""
        if not future.done():
            waiter: asyncio.Future[None] = self.loop.create_future()
            timer = self.loop.call_later(timeout_s, _give_up, waiter)
            future.add_done_callback(lambda done: self._wake(waiter))
            try:
                await waiter
            finally:
                timer.cancel()
        future.result()

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        """On the other thread."""
        self._arrived.append(waiter)
        if not self._waking:
            self._waking = True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False  # before the last look: what arrives behind it wakes again
        while self._arrived:
            waiter = self._arrived.popleft()
            if not waiter.done():
                waiter.set_result(None)


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
