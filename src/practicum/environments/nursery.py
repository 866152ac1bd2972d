"""Where rollouts' processes come from: one forker for each file of a team's, started when it is first asked for.

A forker is a process that has loaded the file; `forker.py` says what it does. It lives until the service ends, or until
its file has changed on the disk and the last rollout of the old one is over. Invariant: no process of a forker survives
`close`, nor Practicum itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import HarnessError, SandboxError
from practicum.sandboxes.process import Job, run_kept, uninterrupted
from practicum.sandboxes.sandbox import Exited, Limits

_SCRIPT = Path(__file__).with_name("forker.py")
_CHUNK = 1 << 16
_END_S = 15.0
_log = logging.getLogger("practicum.environments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a forker loads: a file, or an importable module. `changed` tells apart what a file held at other times."""

    file: str = ""
    module: str = ""
    changed: int = 0

    @property
    def asked(self) -> Mapping[str, str]:
        """As `loading.module` takes it."""
        return {"module": self.module} if self.module else {"file": self.file}

    def __str__(self) -> str:
        return self.module or self.file


class Fork:
    """One rollout's process. `ended` gets the exit status: negative is a signal, None where the forker itself died."""

    def __init__(self, nursery: Nursery, number: int, ours: socket.socket) -> None:
        self.socket = ours
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.number = number
        self._nursery = nursery

    async def end(self) -> None:
        """Kill it and all that it started; it is dead when this returns."""
        self.socket.close()
        await self._nursery.end(self.number)
        await asyncio.wait({self.ended}, timeout=_END_S)
        if not self.ended.done():
            _log.error("a process of %s did not end within %g s", self._nursery.source, _END_S)
            self.ended.set_result(None)


class Nursery:
    """One forker."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.forks: dict[int, Fork] = {}
        self._control, self._theirs = socket.socketpair()
        self._control.setblocking(False)
        self._numbers = 0
        self._runs: asyncio.Task[Exited] | None = None
        self._hears: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it can fork."""
        return self._hears is not None and not self._hears.done()

    async def start(self, limit_s: float) -> None:
        """Start the forker and have it load its file. Raises HarnessError naming the file and the line at fault."""
        loop = asyncio.get_running_loop()
        fd = self._theirs.fileno()
        job = Job(
            command=[sys.executable, "-P", str(_SCRIPT), str(fd)],
            env=dict(os.environ),
            cwd=str(Path(self.source.file).parent) if self.source.file else str(Path.cwd()),
            limits=Limits(output_bytes=20_000),
            fds=(fd,),
        )
        self._runs = asyncio.create_task(run_kept(job), name=f"forker of {self.source}")
        try:
            async with asyncio.timeout(limit_s):
                first = {"path": sys.path, "load": self.source.asked}
                await loop.sock_sendall(self._control, json.dumps(first).encode() + b"\n")
                line = await self._first_line()
        except TimeoutError:
            await self.close()
            raise HarnessError(
                f"The environment {self.source} did not load within {limit_s:g} s.",
                hint="What a file does when it is loaded must come to an end.",
            ) from None
        except BaseException:
            await self.close()
            raise
        said = json.loads(line or b"{}")
        if "loaded" not in said:
            printed = await self._last_words()
            raise HarnessError(
                f"The environment {self.source} cannot be loaded: {said.get('failed', printed)}.",
                hint="Mend the file; what it prints is not shown." if "failed" in said else "",
            )
        self._hears = asyncio.create_task(self._hear(), name=f"ends of {self.source}")

    async def fork(self) -> Fork:
        """A fresh process. Raises HarnessError where the forker is gone."""
        if not self.alive:
            raise HarnessError(f"The process that had loaded {self.source} is gone.")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._numbers += 1
        fork = self.forks[self._numbers] = Fork(self, self._numbers, ours)
        try:
            with theirs:
                await self._send({"fork": self._numbers}, theirs.fileno())
        except BaseException:  # cancelled before it was sent: there is no process
            del self.forks[fork.number]
            ours.close()
            raise
        return fork

    async def end(self, number: int) -> None:
        """Kill a fork."""
        if number in self.forks:
            await self._send({"end": number})

    async def close(self) -> None:
        """End the forker and all of its forks."""
        self._theirs.close()
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        if self._runs is not None:
            self._runs.cancel()
            await asyncio.wait({self._runs})
        if self._hears is not None:
            await asyncio.wait({self._hears})
        self._control.close()

    async def _send(self, said: Mapping[str, Any], *fds: int) -> None:
        line = json.dumps(said).encode() + b"\n"
        while True:
            try:
                socket.send_fds(self._control, [line], list(fds))
            except BlockingIOError:
                await asyncio.sleep(0.005)
            except OSError:
                return  # it is gone, and `_hear` tells everybody
            else:
                return

    async def _first_line(self) -> bytes:
        """Our end alone would never close: this process has the other one too, until the forker has spoken."""
        assert self._runs is not None
        loop, data = asyncio.get_running_loop(), b""
        while not data.endswith(b"\n"):
            receives = asyncio.ensure_future(loop.sock_recv(self._control, _CHUNK))
            await asyncio.wait({receives, self._runs}, return_when=asyncio.FIRST_COMPLETED)
            if not receives.done():
                receives.cancel()
                return data
            if not (chunk := receives.result()):
                return data
            data += chunk
        return data

    async def _last_words(self) -> str:
        """What a forker that ended by itself had printed."""
        assert self._runs is not None
        try:
            done = await asyncio.wait_for(asyncio.shield(self._runs), 5.0)
        except (SandboxError, TimeoutError) as error:
            return str(error)
        finally:
            await uninterrupted(self.close())
        return done.stderr.strip()[-300:] or f"its process ended with status {done.exit_code}"

    async def _hear(self) -> None:
        """Ends of forks, until the forker is gone."""
        self._theirs.close()
        loop, data = asyncio.get_running_loop(), b""
        try:
            while chunk := await loop.sock_recv(self._control, _CHUNK):
                *lines, data = (data + chunk).split(b"\n")
                for line in lines:
                    said = json.loads(line)
                    self._has_ended(said["ended"], said["status"])
        except OSError:
            pass
        finally:
            for number in list(self.forks):
                self._has_ended(number, None)

    def _has_ended(self, number: int, status: int | None) -> None:
        fork = self.forks.pop(number, None)
        if fork is not None and not fork.ended.done():
            fork.ended.set_result(status)


class Nurseries:
    """All of a service's forkers."""

    def __init__(self) -> None:
        self._by_source: dict[Source, asyncio.Task[Nursery]] = {}

    async def fork(self, source: Source, limit_s: float) -> Fork:
        """A fresh process that has loaded `source`. Raises HarnessError."""
        nursery = await self._ready(source, limit_s)
        return await nursery.fork()

    async def close(self) -> None:
        """End all forkers."""
        starting, self._by_source = list(self._by_source.values()), {}
        for task in starting:
            task.cancel()
        if starting:
            await asyncio.wait(starting)
        await asyncio.gather(*(task.result().close() for task in starting if _worked(task)))

    async def _ready(self, source: Source, limit_s: float) -> Nursery:
        known = self._by_source.get(source)
        if known is None or (known.done() and not (_worked(known) and known.result().alive)):
            known = self._by_source[source] = asyncio.create_task(_started(source, limit_s, before=known))
            await self._retire(source)
        return await asyncio.shield(known)

    async def _retire(self, newer: Source) -> None:
        """Close what is idle of the same file as it was before."""
        for source, task in list(self._by_source.items()):
            same = (source.file, source.module) == (newer.file, newer.module) and source != newer
            if same and task.done() and (not _worked(task) or not task.result().forks):
                del self._by_source[source]
                if _worked(task):
                    await task.result().close()


def _worked(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _started(source: Source, limit_s: float, before: asyncio.Task[Nursery] | None) -> Nursery:
    """A nursery that can fork; `before` is the one that this replaces, which is dead."""
    if before is not None and _worked(before):
        await before.result().close()
    nursery = Nursery(source)
    await nursery.start(limit_s)
    return nursery
