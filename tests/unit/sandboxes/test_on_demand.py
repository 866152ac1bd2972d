from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from practicum.errors import SandboxError
from practicum.sandboxes.local import LocalProvider
from practicum.sandboxes.on_demand import OnDemand
from practicum.sandboxes.sandbox import Sandbox, SandboxSpec


class Counted:
    """Local sandboxes; `opened` and `closed` count them. `fail` makes opening or closing fail."""

    def __init__(self, base: Path, fail: str = "") -> None:
        self.opened = self.closed = 0
        self._provider = LocalProvider(base)
        self._fail = fail

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        self.opened += 1
        if self._fail == "open":
            raise SandboxError("The disk is full.")
        async with self._provider.open(spec) as sandbox:
            await asyncio.sleep(0.01)
            yield sandbox
        self.closed += 1
        if self._fail == "close":
            raise SandboxError("It will not go.")


async def test_what_nobody_uses_is_never_made(tmp_path: Path) -> None:
    provider = Counted(tmp_path)
    async with OnDemand(provider).open(SandboxSpec()) as sandbox:
        assert not sandbox.is_made
        with pytest.raises(SandboxError, match="not made yet"):
            _ = sandbox.workdir
    assert provider.opened == 0


async def test_the_first_use_makes_it_once_whoever_comes_at_the_same_time(tmp_path: Path) -> None:
    provider = Counted(tmp_path)
    async with OnDemand(provider).open(SandboxSpec(files={"a": "x"})) as sandbox:
        await asyncio.gather(sandbox.write("b", "y"), sandbox.read("a"), sandbox.run(["true"]))
        assert sandbox.is_made and sandbox.workdir.endswith("/work")
        assert await sandbox.list_files() == ["a", "b"]
        assert (await sandbox.run(["cat", "a", "b"])).stdout == "xy"
    assert (provider.opened, provider.closed) == (1, 1)


async def test_a_use_that_is_cancelled_leaves_it_usable_and_closed_in_the_end(tmp_path: Path) -> None:
    provider = Counted(tmp_path)
    async with OnDemand(provider).open(SandboxSpec()) as sandbox:
        first = asyncio.create_task(sandbox.write("a", "x"))
        await asyncio.sleep(0.005)
        first.cancel()
        await asyncio.wait([first])
        await sandbox.write("b", "y")
        assert await sandbox.list_files() == ["b"]
    assert (provider.opened, provider.closed) == (1, 1)


async def test_one_that_cannot_be_made_says_so_to_everybody(tmp_path: Path) -> None:
    async with OnDemand(Counted(tmp_path, "open")).open(SandboxSpec()) as sandbox:
        for _ in range(2):
            with pytest.raises(SandboxError, match="disk is full"):
                await sandbox.run(["true"])
        assert not sandbox.is_made


async def test_what_belongs_to_it_is_closed_first_the_last_one_first_and_a_failure_stops_nothing(
    tmp_path: Path,
) -> None:
    closed: list[str] = []
    provider = Counted(tmp_path, "close")

    async def close(name: str) -> None:
        closed.append(f"{name} {provider.closed}")
        if name == "b":
            raise RuntimeError("no")

    with pytest.raises(KeyError):
        async with OnDemand(provider).open(SandboxSpec()) as sandbox:
            sandbox.also_close(lambda: close("a"))
            sandbox.also_close(lambda: close("b"))
            await sandbox.write("x", "x")
            raise KeyError
    assert closed == ["b 0", "a 0"] and provider.closed == 1
