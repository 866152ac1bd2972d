"""One command under a keeper: its output within bounds, and its whole tree dead before `run_kept` returns or raises.

The keeper kills what it keeps as soon as the socket to it closes. So every way out of here, a cancellation at any
await included, is the same: close the socket, wait for the keeper. It must not know what a sandbox is made of.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from practicum.errors import SandboxError
from practicum.sandboxes.folder import MARK, kill_marked
from practicum.sandboxes.sandbox import Exited, Limit, Limits

T = TypeVar("T")

KEEPER = Path(__file__).with_name("keeper.py")
_KEEPER_ENV = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # what an interpreter may need to start at all
_CHUNK = 65_536
_KEEPER_PATIENCE_S = 30.0
_LAST_OUTPUT_S = 5.0
_log = logging.getLogger("practicum.sandboxes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command, its whole environment, where it runs, and which descriptors it inherits beside the standard ones."""

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    limits: Limits
    stdin: str = ""
    fds: tuple[int, ...] = ()

    def line(self) -> bytes:
        """The job as the keeper reads it."""
        limits = asdict(self.limits)
        wire = {
            "command": list(self.command),
            "env": dict(self.env),
            "cwd": self.cwd,
            "fds": self.fds,
            "limits": limits,
        }
        return json.dumps(wire).encode() + b"\n"


async def run_kept(job: Job, *, timeout_s: float | None = None) -> Exited:
    """Run `job` to its end, or to `timeout_s`. Raises SandboxError where the command could not be started."""
    if not job.command:
        raise SandboxError("There is no command to run.", hint="Give at least its name.")
    run = _Run(job)
    talk = asyncio.create_task(run.talk(), name="sandboxed command")
    timed_out = False
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            await asyncio.shield(talk)
    except TimeoutError:
        if not deadline.expired():
            raise
        timed_out = True
    finally:
        await uninterrupted(run.end(talk))
    return _exited(job, json.loads(talk.result() or b"{}"), run.kept, timed_out=timed_out)


def _exited(job: Job, said: Mapping[str, Any], kept: Sequence[_Kept], *, timed_out: bool) -> Exited:
    if "failed" in said:
        raise SandboxError(
            f"{job.command[0][:200]} could not be started: {said['failed']}.",
            hint="See that it is installed and on the sandbox's PATH.",
        )
    over = cast("Limit | None", said.get("over"))
    # A keeper that says nothing was killed from within; its command goes with it, so that counts as killed.
    code = said.get("exit", 137)
    return Exited(
        exit_code=None if timed_out else 137 if code is None else code,
        stdout=kept[0].text(),
        stderr=kept[1].text(),
        timed_out=timed_out,
        cut=any(one.cut for one in kept),
        over=over,
    )


class _Run:
    """A keeper and what passes between it and us."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._control, self._theirs = socket.socketpair()
        self._control.setblocking(False)
        self._keeper: asyncio.subprocess.Process | None = None
        self.kept = (_Kept(job.limits.output_bytes), _Kept(job.limits.output_bytes))

    async def talk(self) -> bytes:
        """Start the keeper, hand the job over, move input and output; what the keeper said in the end."""
        with self._theirs:
            keeper = self._keeper = await self._start()
        assert keeper.stdout is not None and keeper.stderr is not None
        moving = [asyncio.create_task(_drain(keeper.stdout, self.kept[0]))]
        moving.append(asyncio.create_task(_drain(keeper.stderr, self.kept[1])))
        said = b""
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(OSError):  # the keeper is gone: the answer stays empty
                await loop.sock_sendall(self._control, self._job.line())
                moving.append(asyncio.create_task(_feed(keeper, self._job.stdin)))
                while chunk := await loop.sock_recv(self._control, _CHUNK):
                    said += chunk
            if not said and MARK in self._job.env:
                await asyncio.to_thread(kill_marked, self._job.env[MARK])
            # All is dead, so the pipes end now; one that does not is held by what escaped where that is possible.
            await asyncio.wait(moving, timeout=_LAST_OUTPUT_S)
        finally:
            for task in moving:
                task.cancel()
            await asyncio.wait(moving)
        await keeper.wait()
        return said

    async def _start(self) -> asyncio.subprocess.Process:
        fd = self._theirs.fileno()
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", str(KEEPER), str(fd)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(fd, *self._job.fds),
                env={name: os.environ[name] for name in _KEEPER_ENV if name in os.environ},
                start_new_session=True,  # an interrupt at the terminal is for Practicum alone
            )
        except OSError as error:
            raise SandboxError(
                f"No process could be started: {error.strerror}.",
                hint="Run fewer sandboxes at once, or raise the system's limit.",
            ) from error

    async def end(self, talk: asyncio.Task[bytes]) -> None:
        """End whatever still runs, and wait until it has ended."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        await asyncio.wait({talk}, timeout=_KEEPER_PATIENCE_S)
        if self._keeper is not None and self._keeper.returncode is None:
            try:
                await asyncio.wait_for(self._keeper.wait(), _KEEPER_PATIENCE_S)
            except TimeoutError:
                _log.error("keeper %d did not end within %g s and was killed", self._keeper.pid, _KEEPER_PATIENCE_S)
                self._keeper.kill()
        if not talk.done():
            talk.cancel()
            await asyncio.wait({talk})
        if not talk.cancelled():
            talk.exception()  # whoever waited for it has it; a cancelled wait has no use for it
        self._control.close()
        self._theirs.close()


async def _feed(keeper: asyncio.subprocess.Process, text: str) -> None:
    assert keeper.stdin is not None
    with contextlib.suppress(ConnectionError):  # a command need not read its input
        keeper.stdin.write(text.encode("utf-8", "surrogateescape"))
        await keeper.stdin.drain()
    keeper.stdin.close()


async def _drain(stream: asyncio.StreamReader, kept: _Kept) -> None:
    while chunk := await stream.read(_CHUNK):
        kept.add(chunk)


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end, however often this task is cancelled meanwhile; then raise the cancellation."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


class _Kept:
    """The beginning and the end of a stream, in bounded memory."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    @property
    def cut(self) -> bool:
        return self._dropped > 0

    def add(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:] if room < len(chunk) else b""
        if len(self._tail) > 2 * self._half:
            self._trim()

    def _trim(self) -> None:
        extra = len(self._tail) - self._half
        if extra > 0:
            del self._tail[:extra]
            self._dropped += extra

    def text(self) -> str:
        self._trim()
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = (part.decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"{head}\n[{self._dropped} bytes left out]\n{tail}"
