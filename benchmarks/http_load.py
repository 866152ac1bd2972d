"""A load generator for one HTTP/1.1 address, in a process of its own: raw sockets, whole requests made beforehand.

    echo '{"port": 8000, "head": "…", "body": "…", "mode": "closed", "connections": 64, "seconds": 3}' |
        python benchmarks/http_load.py

`closed`: every connection sends its next request as soon as it has the answer: the server's limit.
`open`: `rate` requests a second whether answers come or not, each counted from the moment it was due, so that a server
that stalls cannot hide it.
`streams`: every connection asks for one event stream at the same moment; the gaps between its events are counted.

It understands what the benchmark's servers send (a Content-Length, or chunks) and nothing more. It reports its own
processor time: a generator that is busy all the time measures itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from practicum.gateway.server import allow_many_sockets

END_OF_CHUNKS = b"0\r\n\r\n"
CONNECTS_AT_ONCE = 100


@dataclass(slots=True)
class Tally:
    """What came of the requests; times in seconds."""

    answers: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    first_event_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    def failed(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1


class Client(asyncio.Protocol):
    """One connection, one request at a time. `done` is called with the connection behind every whole answer."""

    def __init__(self, tally: Tally, done: Callable[[Client], None], ends_with: bytes) -> None:
        self._tally, self._done, self._ends_with = tally, done, ends_with
        self._buffer = bytearray()
        self._length: int | None = None
        self._due_s = self._event_s = 0.0
        self._busy = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, request: bytes, due_s: float) -> None:
        self._due_s, self._event_s, self._busy = due_s, 0.0, True
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._length is None and not self._buffer and not self._event_s:
            self._head(data)
        if self._length is None:
            self._events(data, now)
            return
        self._buffer += data
        if len(self._buffer) >= self._length:
            self._whole(now)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._busy:
            self._busy = False
            self._tally.failed("connection closed")
            self._done(self)

    def _head(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200"):
            self._tally.failed(data[:32].partition(b"\r\n")[0].decode("latin-1"))
            self._busy = False
            self.transport.abort()
            return
        head, _, _ = data.partition(b"\r\n\r\n")
        at = head.lower().find(b"content-length: ")
        if at >= 0:
            self._length = len(head) + 4 + int(head[at + 16 :].partition(b"\r\n")[0])

    def _events(self, data: bytes, now: float) -> None:
        """Chunks, kept only as long as their end may show."""
        events = data.count(b"data: ")
        if events:
            if not self._event_s:
                self._tally.first_event_s.append(now - self._due_s)
            else:
                self._tally.gaps_s.append(now - self._event_s)
            self._event_s = now
        self._buffer = (self._buffer + data)[-64:]
        if self._buffer.endswith(END_OF_CHUNKS):
            if self._ends_with not in self._buffer:
                self._tally.failed("a stream without its terminator")
            self._whole(now)

    def _whole(self, now: float) -> None:
        self._buffer.clear()
        self._length, self._busy, self._event_s = None, False, 0.0
        self._tally.answers += 1
        self._tally.latencies_s.append(now - self._due_s)
        self._done(self)


async def connected(port: int, count: int, tally: Tally, done: Callable[[Client], None]) -> list[Client]:
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    while len(clients) < count:
        more = min(CONNECTS_AT_ONCE, count - len(clients))
        made = [loop.create_connection(lambda: Client(tally, done, b"[DONE]"), "127.0.0.1", port) for _ in range(more)]
        clients += [client for _, client in await asyncio.gather(*made)]
    return clients


async def closed(port: int, request: bytes, tally: Tally, connections: int, seconds: float) -> float:
    stop_at = time.perf_counter() + 3600
    left, over = connections, asyncio.Event()

    def done(client: Client) -> None:
        nonlocal left
        now = time.perf_counter()
        if now < stop_at and not client.transport.is_closing():
            client.ask(request, now)
            return
        left -= 1
        if not left:
            over.set()

    clients = await connected(port, connections, tally, done)
    began = time.perf_counter()
    stop_at = began + seconds
    for client in clients:
        client.ask(request, time.perf_counter())
    await over.wait()
    return time.perf_counter() - began


async def open_loop(port: int, request: bytes, tally: Tally, rate: float, connections: int, seconds: float) -> float:
    """Idle connections are used first; where all are busy the request waits, and its wait counts."""
    idle: list[Client] = []
    waiting: list[float] = []

    def done(client: Client) -> None:
        if client.transport.is_closing():
            return
        if waiting:
            client.ask(request, waiting.pop(0))
        else:
            idle.append(client)

    idle.extend(await connected(port, connections, tally, done))
    began = time.perf_counter()
    wanted = int(rate * seconds)
    for number in range(wanted):
        due = began + number / rate
        pause = due - time.perf_counter()
        if pause > 0:
            await asyncio.sleep(pause)
        if idle:
            idle.pop().ask(request, due)
        else:
            waiting.append(due)
    for _ in range(200):
        if tally.answers + sum(tally.errors.values()) >= wanted:
            break
        await asyncio.sleep(0.05)
    return time.perf_counter() - began


async def streams(port: int, request: bytes, tally: Tally, connections: int) -> float:
    over = asyncio.Event()
    left = connections

    def done(client: Client) -> None:
        nonlocal left
        left -= 1
        if not left:
            over.set()

    clients = await connected(port, connections, tally, done)
    began = time.perf_counter()
    for client in clients:
        client.ask(request, time.perf_counter())
    await over.wait()
    return time.perf_counter() - began


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items() if ordered}


async def run(spec: dict[str, Any]) -> dict[str, Any]:
    tally = Tally()
    request = spec["head"].encode() + spec["body"].encode()
    port, connections = spec["port"], spec["connections"]
    async with asyncio.timeout(spec.get("timeout_s", 120)):
        if spec["mode"] == "closed":
            took = await closed(port, request, tally, connections, spec["seconds"])
        elif spec["mode"] == "open":
            took = await open_loop(port, request, tally, spec["rate"], connections, spec["seconds"])
        else:
            took = await streams(port, request, tally, connections)
    return {
        "answers": tally.answers,
        "errors": tally.errors,
        "took_s": took,
        "rate": tally.answers / took,
        "busy": time.process_time() / took,
        "latency_s": percentiles(tally.latencies_s),
        "first_event_s": percentiles(tally.first_event_s),
        "gap_s": percentiles(tally.gaps_s),
    }


if __name__ == "__main__":
    allow_many_sockets()
    print(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
