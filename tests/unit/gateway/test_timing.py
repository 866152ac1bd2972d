"""Work that has so long and no longer."""

from __future__ import annotations

import asyncio

import pytest

from practicum.gateway.timing import within


async def test_work_gives_its_result_whether_it_waits_or_not() -> None:
    async def waits(times: int) -> int:
        for _ in range(times):
            await asyncio.sleep(0.001)
        return times

    assert [await within(20, waits(times)) for times in (0, 1, 5)] == [0, 1, 5]


async def test_work_that_takes_too_long_is_cancelled_and_may_clean_up() -> None:
    cleaned = False

    async def slow() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    with pytest.raises(TimeoutError):
        await within(0.01, slow())
    assert cleaned


async def test_what_it_raises_is_raised_and_what_it_catches_is_caught() -> None:
    async def catches() -> str:
        failing = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(failing.set_exception, ValueError("no"))
        try:
            await failing
        except ValueError:
            await asyncio.sleep(0)
            return "caught"
        return "missed"

    async def fails() -> None:
        await asyncio.sleep(0)
        raise OSError("broken")

    assert await within(20, catches()) == "caught"
    with pytest.raises(OSError, match="broken"):
        await within(20, fails())
