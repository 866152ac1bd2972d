"""The one way out of a sandbox without network: connections made inside are carried to the gateway.

The listening socket belongs to the sandbox's network but is accepted on here. Closing the relay closes it and every
connection. It must not read what passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

from practicum.errors import SandboxError
from practicum.sandboxes.process import uninterrupted

_CHUNK = 65_536


def gateway_address(url: str | None) -> tuple[str, int] | None:
    """Host and port of a gateway on this machine. Raises SandboxError for any other."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "http" or parts.hostname not in ("127.0.0.1", "localhost") or not port:
        raise SandboxError(
            f"The gateway {url[:100]!r} cannot be reached from a sandbox without network.",
            hint="Give its address on this machine: http://127.0.0.1:PORT.",
        )
    return "127.0.0.1", port


class Relay:
    """Waits for the sandbox's listening socket on `ours`, then carries connections until it is closed."""

    def __init__(self, ours: socket.socket, gateway: tuple[str, int] | None) -> None:
        self._ours = ours
        self._gateway = gateway
        self._said = b""
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()
        self._serving = asyncio.create_task(self._serve())

    async def close(self) -> str:
        """Stop, and return what the starter said: `ready`, and `failed: REASON` where the command did not start."""
        return await uninterrupted(self._close())

    async def _close(self) -> str:
        self._serving.cancel()
        if self._server is not None:
            self._server.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.wait({self._serving, *self._carrying})
        with contextlib.suppress(OSError):
            while chunk := self._ours.recv(_CHUNK, socket.MSG_DONTWAIT):
                self._said += chunk
        self._ours.close()
        return self._said.decode("utf-8", "replace").strip()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._ours, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._ours)
        try:
            self._said, fds, _, _ = socket.recv_fds(self._ours, _CHUNK, 1)
        except OSError:  # nothing came, and the other end is gone
            return
        if fds:
            server = socket.socket(fileno=fds[0])
            server.setblocking(False)
            self._server = await asyncio.start_server(self._carry, sock=server)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None and self._gateway is not None
        self._carrying.add(task)
        out: asyncio.StreamWriter | None = None
        try:
            back, out = await asyncio.open_connection(*self._gateway)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, out))
                both.create_task(_pump(back, writer))
        except OSError:
            pass  # the gateway is not there: the one inside sees its connection closed
        except asyncio.CancelledError:
            pass  # the sandbox has ended, and nobody waits for this task but `close`
        finally:
            self._carrying.discard(task)
            for one in (writer, out):
                if one is not None:
                    one.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(_CHUNK):
            sink.write(chunk)
            await sink.drain()
        sink.write_eof()
        return
    sink.close()  # one side broke: the other must learn of it
