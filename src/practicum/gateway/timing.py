"""How long the gateway waits for whom, in seconds."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """`ping_s`: silence in a stream after which a comment keeps the connection alive. `stall_s`: without any token from
    the engine while answers wait, it counts as hung. `write_timeout_s`: a caller that does not read for so long is
    gone. `shutdown_s`: running answers get to finish. `record_again_s`: pause before a record that was lost is written
    again.
    """

    ping_s: float = 10.0
    stall_s: float = 120.0
    write_timeout_s: float = 60.0
    shutdown_s: float = 30.0
    record_again_s: float = 5.0


async def within(timeout_s: float, work: Awaitable[T]) -> T:
    """What `asyncio.timeout` does, for work that seldom has to wait: a timer is made only once it does."""
    steps = work.__await__()
    try:
        waits_for = steps.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    async with asyncio.timeout(timeout_s):
        return await _going_on(steps, waits_for)


async def noticing(work: Awaitable[T], waits: Callable[[], None]) -> T:
    """What `work` gives; `waits` is called once it has to be waited for, and not where it is there at once."""
    steps = work.__await__()
    try:
        waits_for = steps.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    waits()
    return await _going_on(steps, waits_for)


@types.coroutine
def _going_on(steps: Generator[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """The rest of the work, which waits for `waits_for`."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:
                waits_for = steps.throw(error)
            else:
                waits_for = steps.send(sent)
    except StopIteration as done:
        return cast("T", done.value)
