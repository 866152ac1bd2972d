"""Silence is told again and again while a task waits, and what goes wrong meanwhile ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from practicum.errors import EngineError
from practicum.gateway.silence import Silence


async def wait_for(gate: asyncio.Event, check: Callable[[], None], tell: Callable[[], Awaitable[None]]) -> None:
    silence = Silence(0.01, check, tell)
    try:
        silence.begins()
        await gate.wait()
        await silence.ends()
    except asyncio.CancelledError:
        silence.raise_failure()
        raise
    finally:
        silence.end()


def fine() -> None:
    """Waiting has sense."""


def hopeless() -> None:
    raise EngineError("The engine is silent.")


async def quiet() -> None:
    """Nobody hears it."""


async def test_silence_is_told_until_the_wait_ends() -> None:
    gate, told = asyncio.Event(), 0

    async def tell() -> None:
        nonlocal told
        told += 1
        if told == 3:
            gate.set()

    await asyncio.wait_for(wait_for(gate, fine, tell), 20)
    await asyncio.sleep(0.05)
    assert told == 3


async def test_what_is_being_told_is_told_to_its_end_before_the_task_goes_on() -> None:
    gate, whole = asyncio.Event(), False

    async def tell() -> None:
        nonlocal whole
        gate.set()
        await asyncio.sleep(0.05)
        whole = True

    await asyncio.wait_for(wait_for(gate, fine, tell), 20)
    assert whole


async def test_a_hopeless_wait_and_a_caller_who_is_gone_interrupt_it() -> None:
    async def gone() -> None:
        raise OSError("gone")

    with pytest.raises(EngineError):
        await asyncio.wait_for(wait_for(asyncio.Event(), hopeless, quiet), 20)
    with pytest.raises(OSError, match="gone"):
        await asyncio.wait_for(wait_for(asyncio.Event(), fine, gone), 20)


async def test_who_cancels_the_task_cancels_it() -> None:
    task = asyncio.create_task(wait_for(asyncio.Event(), fine, quiet))
    await asyncio.sleep(0.03)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
