"""Waiting on an event loop for another thread's futures."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from practicum.capture.arrivals import Arrivals
from practicum.errors import StoreError


def resolve(futures: list[Future[None]], error: Exception | None = None) -> threading.Thread:
    def work() -> None:
        for future in futures:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


async def test_thousands_resolved_by_several_threads_all_arrive() -> None:
    arrivals = Arrivals()
    futures: list[Future[None]] = [Future() for _ in range(4000)]
    waiting = [asyncio.create_task(arrivals.wait(future, 30)) for future in futures]
    await asyncio.sleep(0)
    threads = [resolve(futures[number::4]) for number in range(4)]
    await asyncio.gather(*waiting)
    for thread in threads:
        thread.join()


async def test_what_the_other_thread_raises_is_raised() -> None:
    future: Future[None] = Future()
    waiting = asyncio.create_task(Arrivals().wait(future, 30))
    await asyncio.sleep(0)
    resolve([future], StoreError("the disk is full")).join()
    with pytest.raises(StoreError, match="full"):
        await waiting


async def test_who_gives_up_cancels_nothing() -> None:
    arrivals = Arrivals()
    future: Future[None] = Future()
    with pytest.raises(TimeoutError):
        await arrivals.wait(future, 0.01)
    assert not future.done()
    gone = asyncio.create_task(arrivals.wait(future, 30))
    await asyncio.sleep(0)
    gone.cancel()
    resolve([future]).join()
    await arrivals.wait(future, 0)
    assert future.done() and not future.cancelled()
