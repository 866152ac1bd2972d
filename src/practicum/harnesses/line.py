"""Who is next, and how many at once: the two rules by which rollouts pass from stage to stage.

A higher priority goes first; within one, who came first. So that a steady stream of urgent work starves nobody, every
eighth place goes to whoever has waited longest, whatever the priority.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

PLACE_OF_THE_OLDEST = 8


class Line(Generic[T]):
    """Who waits; an item stands in it once."""

    def __init__(self) -> None:
        self._waiting: dict[T, int] = {}  # in order of arrival
        self._heap: list[tuple[int, int, T]] = []
        self._arrivals = 0
        self._served = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, item: T) -> bool:
        return item in self._waiting

    def push(self, item: T, priority: int) -> None:
        """Let `item` wait."""
        self._arrivals += 1
        self._waiting[item] = self._arrivals
        heapq.heappush(self._heap, (-priority, self._arrivals, item))

    def pop(self) -> T:
        """Take the next one. Raises IndexError where nobody waits."""
        if not self._waiting:
            raise IndexError("nobody waits")
        self._served += 1
        if self._served % PLACE_OF_THE_OLDEST == 0:
            item = next(iter(self._waiting))
            del self._waiting[item]
            return item
        while True:
            _, arrival, item = heapq.heappop(self._heap)
            if self._waiting.get(item) == arrival:
                del self._waiting[item]
                return item

    def discard(self, item: T) -> bool:
        """Let `item` leave; False where it was not in the line."""
        return self._waiting.pop(item, None) is not None


class Gate:
    """At most `limit` inside at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self._line: Line[asyncio.Future[None]] = Line()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    @asynccontextmanager
    async def entered(self, priority: int = 0) -> AsyncIterator[None]:
        """Inside for as long as the context is open."""
        await self.enter(priority)
        try:
            yield
        finally:
            self.leave()

    async def enter(self, priority: int = 0) -> None:
        """Wait for a place and take it."""
        if self.try_enter():
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.push(place, priority)
        try:
            await place
        except asyncio.CancelledError:
            self._line.discard(place)
            if not place.cancelled():  # the place was given in the same moment: pass it on
                self.leave()
            raise

    def try_enter(self) -> bool:
        """Take a place if one is free and nobody waits for it."""
        if self.inside >= self.limit or len(self._line):
            return False
        self.inside += 1
        return True

    def leave(self) -> None:
        """Give the place to the next one."""
        while len(self._line):
            place = self._line.pop()
            if not place.done():  # else its waiter was cancelled, and has not come to know it yet
                place.set_result(None)
                return
        self.inside -= 1
