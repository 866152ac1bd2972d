"""Practicum's side of a rollout's process: requests with time limits, and the sandbox for whoever asks from there.

One request at a time. What was asked by somebody who was cancelled is finished by the process, and its answer is
dropped. Invariant: a process that is lost stays lost, with the first reason; it is dead then. This must not know what
the requests mean.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Mapping
from typing import Any

from practicum.environments.nursery import Fork
from practicum.errors import HarnessError, NotFound, SandboxError, UsageError
from practicum.sandboxes.on_demand import OnDemandSandbox

# How much longer than its limit the process may take to be interrupted by itself.
_GRACE_S = 2.0
_CLOSE_S = 5.0
_MOST_BYTES = 64 << 20
_CHUNK = 1 << 18
_METHODS = {"start": "reset", "answered": "reply"}  # what a team calls it
_log = logging.getLogger("practicum.environments")


class Raised(HarnessError):
    """The team's code raised; the process lives."""


class Lost(HarnessError):
    """The process is dead."""


class World:
    """A rollout's environment in its process. `how_it_ended` is what the harness says of the episode; `closes` whether
    the team's code wants to be asked to `close`.

    Args:
        fork: the process.
        sandbox: the rollout's.
        source: what it has loaded, for errors.
    """

    def __init__(self, fork: Fork, sandbox: OnDemandSandbox, source: str) -> None:
        self.how_it_ended = ""
        self.closes = False
        self._fork = fork
        self._sandbox = sandbox
        self._source = source
        self._lost: str | None = None
        self._data = bytearray()
        self._number = 0
        self._interrupted = False

    async def ask(self, do: str, limit_s: float, **asked: Any) -> Any:
        """What the process answers to a request.

        Raises: Raised with what the team's code raised, and where; Lost where the process died, or had to be killed;
        SandboxError where the sandbox could not be made.
        """
        if self._lost is not None:
            raise Lost(self._lost)
        self._number += 1
        await self._send({"id": self._number, "do": do, "limit_s": limit_s, **asked})
        what = f"the tool {asked['name']}" if do == "tool" else f"`{_METHODS.get(do, do)}`"
        said = await self._answer(f"{what} of {self._source}", limit_s)
        if "failed" in said:
            raise Raised(f"{what[0].upper()}{what[1:]} of {self._source} failed: {said['failed']}.")
        if said.get("late"):
            again = ", the second time that one did" if self._interrupted else ""
            if said["value"] is None or again:
                raise await self._give_up(f"{what} of {self._source} took longer than {limit_s:g} s{again}")
            self._interrupted = True
        return said["value"]

    async def close(self) -> None:
        """Let the team's code close, and end the process."""
        try:
            if self.closes and self._lost is None:
                await self.ask("close", _CLOSE_S)
        except HarnessError as error:
            _log.warning("%s", error)
        finally:
            self._lost = self._lost or "It was closed."
            await self._fork.end()

    async def _answer(self, what: str, limit_s: float) -> dict[str, Any]:
        left_s = limit_s + _GRACE_S
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(left_s):
                    line = await self._line()
            except TimeoutError:
                raise await self._give_up(
                    f"{what} took longer than {limit_s:g} s and could not be interrupted"
                ) from None
            left_s -= time.monotonic() - began
            if not line:
                raise await self._give_up(None, f"while it ran {what}")
            said = json.loads(line)
            if "sandbox" in said:
                await self._serve(said, limit_s)
            elif said["id"] == self._number:
                return dict(said)

    async def _serve(self, asked: dict[str, Any], limit_s: float) -> None:
        """Do something in the sandbox for the process. However this ends, the process gets an answer."""
        answer: dict[str, Any] = {"error": "the rollout is being ended", "kind": "failed"}
        try:
            await self._sandbox.made()
            answer = {"value": await self._in_sandbox(asked, limit_s)}
        except NotFound as error:
            answer = {"error": str(error), "kind": "missing"}
        except UsageError as error:
            answer = {"error": str(error), "kind": "wrong"}
        except SandboxError as error:
            if not self._sandbox.is_made:
                raise
            answer = {"error": str(error), "kind": "failed"}
        finally:
            await self._send(answer)

    async def _in_sandbox(self, asked: dict[str, Any], limit_s: float) -> Any:
        method = asked.pop("sandbox")
        if method == "run":
            wanted = asked["timeout_s"]
            done = await self._sandbox.run(
                asked["command"],
                env=asked["env"],
                stdin=asked["stdin"],
                timeout_s=limit_s if wanted is None else min(wanted, limit_s),
            )
            return {
                "exit_code": done.exit_code,
                "stdout": done.stdout,
                "stderr": done.stderr,
                "timed_out": done.timed_out,
            }
        if method == "read":
            return await self._sandbox.read(asked["path"], most_bytes=asked["most_bytes"])
        if method == "write":
            await self._sandbox.write(asked["path"], asked["text"], executable=asked["executable"])
            return None
        return await self._sandbox.list_files()

    async def _send(self, said: Mapping[str, Any]) -> None:
        line = json.dumps(said).encode() + b"\n"
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._fork.socket, line)
        except OSError:
            return  # it is dead: whoever waits for its answer learns that
        except asyncio.CancelledError:
            self._lost = self._lost or "It was ended in the middle of a request."
            raise

    async def _line(self) -> bytes:
        """The next line; empty at the end. A cancelled wait loses nothing."""
        loop = asyncio.get_running_loop()
        seen = 0
        while (end := self._data.find(b"\n", seen)) < 0:
            seen = len(self._data)
            try:
                chunk = await loop.sock_recv(self._fork.socket, _CHUNK)
            except OSError:
                return b""
            if not chunk or seen > _MOST_BYTES:
                return b""
            self._data += chunk
        line = bytes(self._data[:end])
        del self._data[: end + 1]
        return line

    async def _give_up(self, reason: str | None, doing: str = "") -> Lost:
        """Kill the process, where it is not dead, and remember why."""
        await self._fork.end()
        if reason is None:
            reason = f"the environment's process {_died(self._fork.ended.result())} {doing}"
        self._lost = f"{reason[0].upper()}{reason[1:]}."
        return Lost(self._lost)


def _died(status: int | None) -> str:
    if status is None:
        return "was lost with the one that it was forked from"
    if status >= 0:
        return f"ended itself with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
