"""A sandbox that is made when it is first used, and what else shall end with it.

Many rollouts of in-house tasks never touch a sandbox, and making one costs more than the rest of them. The real one is
entered and left in a task of its own, so whoever uses it first does not matter. What is registered with `also_close`
ends before it, by whatever way this is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from practicum.errors import SandboxError
from practicum.sandboxes.process import uninterrupted
from practicum.sandboxes.sandbox import Exited, Sandbox, SandboxProvider, SandboxSpec

_log = logging.getLogger("practicum.sandboxes")


class OnDemandSandbox:
    """Every method makes the sandbox where there is none yet, and raises SandboxError where it cannot be made."""

    def __init__(self, provider: SandboxProvider, spec: SandboxSpec) -> None:
        self._provider = provider
        self._spec = spec
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._leave = asyncio.Event()
        self._made: asyncio.Future[Sandbox] | None = None
        self._owner: asyncio.Task[None] | None = None

    def also_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call `close` before the sandbox is left; the last registered is the first called."""
        self._closers.append(close)

    @property
    def is_made(self) -> bool:
        """Whether there is a sandbox."""
        return self._made is not None and self._made.done() and self._made.exception() is None

    async def made(self) -> Sandbox:
        """The real sandbox. Raises SandboxError."""
        if self._made is None:
            self._made = asyncio.get_running_loop().create_future()
            self._owner = asyncio.create_task(self._own(self._made), name="sandbox on demand")
        return await asyncio.shield(self._made)

    @property
    def workdir(self) -> str:
        """The working folder, as what runs inside sees it. Raises SandboxError while there is none."""
        if self._made is None or not self.is_made:
            raise SandboxError("The sandbox is not made yet.", hint="Await `made()` first.")
        return self._made.result().workdir

    async def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float | None = None,
    ) -> Exited:
        """Run a command to its end. Raises SandboxError."""
        return await (await self.made()).run(command, env=env, stdin=stdin, timeout_s=timeout_s)

    async def write(self, path: str, content: str | bytes, *, executable: bool = False) -> None:
        """Write a file, folders included."""
        await (await self.made()).write(path, content, executable=executable)

    async def read(self, path: str, *, most_bytes: int = 1_000_000) -> str:
        """A file's text. Raises NotFound."""
        return await (await self.made()).read(path, most_bytes=most_bytes)

    async def list_files(self, *, most: int = 100_000) -> list[str]:
        """Paths of all regular files in the working folder."""
        return await (await self.made()).list_files(most=most)

    async def place(self, folder: str, files: Mapping[str, str | bytes]) -> None:
        """Put a fresh folder at an absolute path."""
        await (await self.made()).place(folder, files)

    async def close(self) -> None:
        """Close what was registered, then leave the sandbox where there is one."""
        while self._closers:
            try:
                await self._closers.pop()()
            except Exception:
                _log.exception("what belonged to a sandbox could not be closed")
        self._leave.set()
        if self._owner is not None:
            await asyncio.wait({self._owner})
            if (failure := self._owner.exception()) is not None:
                _log.error("a sandbox could not be cleaned up", exc_info=failure)

    async def _own(self, made: asyncio.Future[Sandbox]) -> None:
        try:
            async with self._provider.open(self._spec) as sandbox:
                made.set_result(sandbox)
                await self._leave.wait()
        except BaseException as error:
            if made.done():
                raise
            made.set_exception(error)
            made.exception()  # whoever waits has it; where nobody does any more, nobody need be told


class OnDemand:
    """Makes sandboxes of a provider's kind when they are first used."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[OnDemandSandbox]:
        """A sandbox for as long as the context is open."""
        sandbox = OnDemandSandbox(self._provider, spec)
        try:
            yield sandbox
        finally:
            await uninterrupted(sandbox.close())
