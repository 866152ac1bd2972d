"""Runs the application on a socket: uvicorn, with deadlines for requests that never arrive.

uvicorn by itself waits for ever for a request's head, so a few hundred idle sockets would starve a server. The protocol
here closes a connection whose head is not whole in time, counted from the connection's start or from the first byte
behind the last answer. Between answers a connection may idle for `KEEP_ALIVE_S`: a client that reuses one just as it is
closed sees a read error, so it is longer than the pools of the usual clients keep theirs.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from practicum.config import ServerConfig
from practicum.errors import ConfigError
from practicum.gateway.timing import Timing

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

KEEP_ALIVE_S = 120
_log = logging.getLogger("practicum.gateway.server")


class DeadlineProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for each request's head. `header_timeout_s` is set on a subclass by `protocol`."""

    header_timeout_s = 10.0
    _head_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the first deadline."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Stop the deadline once the head is whole; start one at the first byte of a further request."""
        if self._head_deadline is None and self.conn.their_state is h11.IDLE:
            self._expect_head()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_is_here()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._head_is_here()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_deadline = self.loop.call_later(self.header_timeout_s, self._too_slow)

    def _head_is_here(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _too_slow(self) -> None:
        self._head_deadline = None
        if not self.transport.is_closing():
            self.transport.abort()


def protocol(header_timeout_s: float) -> type[DeadlineProtocol]:
    """The protocol class with this deadline."""
    return type("DeadlineProtocol", (DeadlineProtocol,), {"header_timeout_s": header_timeout_s})


def check_host(host: str, *, allow_remote: bool) -> None:
    """Raises ConfigError for an address that other machines can reach, unless that is allowed."""
    if allow_remote or host == "localhost":
        return
    try:
        if ipaddress.ip_address(host).is_loopback:
            return
    except ValueError:
        pass
    raise ConfigError(
        f"{host!r} can be reached from other machines.",
        hint="Use 127.0.0.1, or add --allow-remote if that is what you want.",
    )


def bind(config: ServerConfig) -> list[socket.socket]:
    """Sockets that hold the configured address and do not listen yet, so that a taken one is known before a model is
    loaded for nothing.

    Raises: ConfigError naming the address and the way out.
    """
    bound: list[socket.socket] = []
    failure: OSError | None = None
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol_number, _, address in dict.fromkeys(found):
            try:
                bound.append(_bound(socket.socket(family, kind, protocol_number), address))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                failure = error  # a name may stand for an address of a family that this machine does not have
        if failure is not None and not bound:
            raise failure
    except OSError as error:
        for sock in bound:
            sock.close()
        raise _cannot_listen(config.host, config.port, error) from error
    return bound


def _bound(sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"Port {port} of {host} is taken: another program listens there.",
            hint="Stop that one, or choose another port: `--port 0` takes a free one.",
            param="server.port",
        )
    return ConfigError(
        f"Nobody can listen at port {port} of {host!r} here: {error.strerror}.",
        hint="Give an address of this machine and a port of 1024 or above: `--host`, `--port`.",
        param="server.host",
    )


class Server(uvicorn.Server):
    """A server that tells its port once it listens."""

    started_at: Callable[[int], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Raises ConfigError where somebody else has come to listen at a bound address since."""
        try:
            await super().startup(sockets)
        except OSError as error:
            raise _cannot_listen(self.config.host, self.config.port, error) from error
        if self.started and self.started_at is not None:
            self.started_at(self.servers[0].sockets[0].getsockname()[1])


def server(app: Any, config: ServerConfig, *, allow_remote: bool = False, timing: Timing = Timing()) -> Server:
    """A configured server that does not run yet. Raises ConfigError for a host that is not allowed."""
    check_host(config.host, allow_remote=allow_remote)
    return Server(
        uvicorn.Config(
            app,
            host=config.host,
            port=config.port,
            http=protocol(config.header_timeout_s),
            ws="none",
            lifespan="on",
            access_log=False,  # it would write query strings, and with them keys
            log_level="warning",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(timing.shutdown_s),
            h11_max_incomplete_event_size=16 * 1024,
        )
    )


def run(
    app: Any,
    config: ServerConfig,
    *,
    allow_remote: bool = False,
    background: Sequence[Callable[[], Awaitable[None]]] = (),
    started: Callable[[int], None] | None = None,
    timing: Timing = Timing(),
    sockets: list[socket.socket] | None = None,
) -> None:
    """Serve until interrupted; running answers get `timing.shutdown_s` to finish.

    Args:
        app: the ASGI application.
        config: host, port and limits.
        allow_remote: permit an address that other machines can reach.
        background: work beside the server, cancelled with it; one that fails is logged and does not stop the server.
        started: told the port once the server listens.
        timing: how long running answers get.
        sockets: from `bind`; without, the address is taken here.

    Raises: ConfigError for a host that is not allowed, or an address that cannot be had.
    """
    running = server(app, config, allow_remote=allow_remote, timing=timing)
    running.started_at = started
    allow_many_sockets()
    _spare_garbage_collector()
    asyncio.run(serve(running, background, bind(config) if sockets is None else sockets))


def allow_many_sockets() -> None:
    """Raise this process's limit of open files to what the system permits; a thousand streams need more than 1024."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with suppress(ValueError, OSError):  # some systems name a limit that they do not permit
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _spare_garbage_collector() -> None:
    """What is there before the first request stays; to look through all of it again and again slows every answer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)


async def serve(
    running: uvicorn.Server,
    background: Sequence[Callable[[], Awaitable[None]]] = (),
    sockets: list[socket.socket] | None = None,
) -> None:
    """`run` inside an event loop."""
    jobs = [asyncio.create_task(_guarded(job)) for job in background]
    try:
        await running.serve(sockets)
    finally:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


async def _guarded(job: Callable[[], Awaitable[None]]) -> None:
    try:
        await job()
    except Exception:
        _log.exception("background work failed; serving goes on")
