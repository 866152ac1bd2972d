"""While a task waits for the engine: says so to whoever waits for the task, and ends the wait when there is no hope.

One timer for the whole answer, looked at only when it rings: a token that comes in time costs no timer of its own.
Whatever goes wrong interrupts the task, which then raises it. It must not know what is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Silence:
    """Belongs to the task that makes it.

    Args:
        after_s: silence to call one, and between one call and the next.
        check: raises when waiting has no sense any more.
        tell: called in every silence, never while the task itself is at work.
    """

    def __init__(self, after_s: float, check: Callable[[], None], tell: Callable[[], Awaitable[None]]) -> None:
        self._after_s = after_s
        self._check = check
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._since_s: float | None = None
        self._telling: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._timer = self._loop.call_later(after_s, self._ring)

    def begins(self) -> None:
        """The task is about to wait."""
        self._since_s = self._loop.time()

    async def ends(self) -> None:
        """The wait is over; returns once what is being told is told."""
        self._since_s = None
        if self._telling is not None:
            await asyncio.wait([self._telling])

    def end(self) -> None:
        """Nothing more is told."""
        self._timer.cancel()
        if self._telling is not None:
            self._telling.cancel()

    def raise_failure(self) -> None:
        """For the interrupted task: raise why, unless somebody else wants the task to end too."""
        if self._failure is not None and self._task is not None and not self._task.uncancel():
            raise self._failure

    def _ring(self) -> None:
        now_s = self._loop.time()
        due_s = (now_s if self._since_s is None else self._since_s) + self._after_s
        if due_s > now_s:
            self._timer = self._loop.call_at(due_s, self._ring)
        else:
            self._telling = self._loop.create_task(self._speak())

    async def _speak(self) -> None:
        try:
            self._check()
            await self._tell()
        except Exception as error:
            self._failure = error
            if self._task is not None:
                self._task.cancel()
            return
        self._telling = None
        self._timer = self._loop.call_later(self._after_s, self._ring)
