"""What only a raw socket can send: broken framing, half a request, requests in a row, other protocols.

What is pinned: the server answers or closes, in bounded time; it makes no record of what was not a whole request; no
record stays open; and the next caller is served.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from tests.integration.gateway.test_access import BODY, read_all
from tests.integration.gateway.test_chat import Gated, eventually

from practicum.config import ServerConfig

WITHIN_S = 20
RAW = json.dumps(BODY).encode()
Make = Callable[[bytes], bytes]


def head(key: bytes, *fields: bytes, version: bytes = b"1.1", target: bytes = b"/v1/chat/completions") -> bytes:
    lines = [b"POST %s HTTP/%s" % (target, version), b"host: x", b"authorization: Bearer " + key, *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def whole(key: bytes, *fields: bytes, version: bytes = b"1.1", raw: bytes = RAW) -> bytes:
    return head(key, b"content-length: %d" % len(raw), *fields, version=version) + raw


@contextmanager
def connected(up: Any) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", up.port), timeout=WITHIN_S) as connection:
        yield connection


def exchange(up: Any, sent: bytes) -> bytes:
    """Send, read until the server closes."""
    with connected(up) as connection:
        with suppress(OSError):  # it may close before it has read everything
            connection.sendall(sent)
        return read_all(connection, WITHIN_S)


def still_serves(up: Any) -> None:
    with up.http() as http:
        assert http.post("/v1/chat/completions", json=BODY).status_code == 200


CHUNKED = b"transfer-encoding: chunked"
NEVER_A_REQUEST: dict[str, Make] = {
    "chunk size is no number": lambda key: head(key, CHUNKED) + b"zz\r\n{}\r\n0\r\n\r\n",
    "chunk size is negative": lambda key: head(key, CHUNKED) + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk is longer than it says": lambda key: head(key, CHUNKED) + b"2\r\nhello\r\n0\r\n\r\n",
    "chunk size without end": lambda key: head(key, CHUNKED) + b"1" * 100_000,
    "coding that nobody knows": lambda key: head(key, b"transfer-encoding: gzip") + RAW,
    "length is no number": lambda key: head(key, b"content-length: ten") + RAW,
    "length is negative": lambda key: head(key, b"content-length: -1") + RAW,
    "two lengths": lambda key: head(key, b"content-length: 5", b"content-length: 6") + RAW,
    "head without end": lambda key: b"POST / HTTP/1.1\r\nx: " + b"a" * 1_000_000,
    "thousands of fields without end": lambda key: b"POST / HTTP/1.1\r\n" + b"x: y\r\n" * 50_000,
    "no method": lambda key: b"\r\n\r\n\r\n" + b" / HTTP/1.1\r\n\r\n",
    "folded field": lambda key: head(key, b"content-length: 2", b" folded") + b"{}",
    "zero byte in a field": lambda key: head(key, b"x: a\x00b") + RAW,
    "zero byte in the target": lambda key: head(key, target=b"/v1/\x00") + RAW,
    "space in the target": lambda key: head(key, target=b"/v1/a b") + RAW,
    "TLS": lambda key: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "HTTP/2": lambda key: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
    "noise": lambda key: bytes(range(256)) * 100,
}


@pytest.mark.parametrize("what", NEVER_A_REQUEST)
def test_what_is_no_request_is_refused_and_leaves_no_record(start: Any, what: str) -> None:
    up = start(server_config=ServerConfig(port=0, header_timeout_s=0.5, body_timeout_s=0.5))
    reply = exchange(up, NEVER_A_REQUEST[what](up.key.encode()))
    assert reply == b"" or reply.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), reply[:200]
    assert up.calls() == []
    still_serves(up)


def test_a_length_beyond_the_body_waits_for_the_deadline_only(start: Any) -> None:
    up = start(server_config=ServerConfig(port=0, body_timeout_s=0.3))
    reply = exchange(up, head(up.key.encode(), b"content-length: %d" % (len(RAW) + 9)) + RAW)
    assert reply.startswith(b"HTTP/1.1 408") and up.calls() == []


def test_a_length_short_of_the_body_makes_no_second_request_of_the_rest(up: Any) -> None:
    reply = exchange(up, whole(up.key.encode()) + b'{"smuggled": true}\r\n\r\n')
    assert reply.startswith(b"HTTP/1.1 200") and reply.count(b"HTTP/1.1 200") == 1 and b"HTTP/1.1 400" in reply
    assert len(up.calls()) == 1


def test_a_body_over_the_limit_is_refused_before_it_is_sent(start: Any) -> None:
    up = start(server_config=ServerConfig(port=0, max_body_bytes=1000))
    with connected(up) as connection:
        connection.sendall(head(up.key.encode(), b"content-length: 99999999999", b"expect: 100-continue"))
        reply = read_all(connection, WITHIN_S)
    assert reply.startswith(b"HTTP/1.1 413") and b"100 Continue" not in reply
    chunks = b"%x\r\n" % 900 + b" " * 900 + b"\r\n"
    assert exchange(up, head(up.key.encode(), CHUNKED) + chunks * 5).startswith(b"HTTP/1.1 413")
    assert up.calls() == []


def test_half_a_request_leaves_no_record(up: Any) -> None:
    for part in (whole(up.key.encode())[:-5], head(up.key.encode(), CHUNKED) + b"5\r\nhel"):
        with connected(up) as connection:
            connection.sendall(part)
    still_serves(up)
    assert len(up.calls()) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["half-closed", "reset"])
def test_a_caller_who_hangs_up_ends_its_call(start: Any, how: str, stream: bool) -> None:
    sampler = Gated()
    up = start(sampler)
    with connected(up) as connection:
        connection.sendall(whole(up.key.encode(), raw=json.dumps({**BODY, "stream": stream}).encode()))
        eventually(lambda: sampler.running)
        if how == "half-closed":
            connection.shutdown(socket.SHUT_WR)
        else:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        (call,) = eventually(lambda: [call for call in up.calls() if call.status != "open"])
    sampler.gate.set()
    assert call.status == "aborted" and call.error == "the caller disconnected"
    eventually(lambda: not sampler.running)
    still_serves(up)


def test_requests_in_a_row_are_answered_in_order(up: Any) -> None:
    bodies = [json.dumps({**BODY, "messages": [{"role": "user", "content": f"No {n}"}]}).encode() for n in range(5)]
    key = up.key.encode()
    reply = exchange(up, b"".join(whole(key, raw=raw) for raw in bodies) + whole(key, b"connection: close"))
    assert reply.count(b"HTTP/1.1 200") == 6
    places = [reply.find(b"You wrote: No %d" % number) for number in range(5)]
    assert -1 not in places and places == sorted(places)
    assert [call.status for call in up.calls()] == ["complete"] * 6


@pytest.mark.parametrize("stream", [True, False])
def test_an_old_client_gets_its_answer_and_the_end_of_the_connection(up: Any, stream: bool) -> None:
    raw = json.dumps({**BODY, "stream": stream}).encode()
    reply = exchange(up, whole(up.key.encode(), version=b"1.0", raw=raw))
    assert reply.startswith(b"HTTP/1.1 200") and b"transfer-encoding" not in reply.lower()
    assert reply.endswith(b"data: [DONE]\n\n") if stream else json.loads(reply.partition(b"\r\n\r\n")[2])["choices"]


def test_a_body_that_drips_has_one_deadline_for_all_of_it(start: Any) -> None:
    up = start(server_config=ServerConfig(port=0, body_timeout_s=0.5))
    with connected(up) as connection:
        connection.sendall(head(up.key.encode(), b"content-length: 100000"))
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < WITHIN_S:
                connection.sendall(b" ")
                time.sleep(0.02)
        assert time.monotonic() - began < WITHIN_S / 2
    assert up.calls() == []


def test_hundreds_of_idle_and_slow_sockets_keep_nobody_out(start: Any) -> None:
    up = start(server_config=ServerConfig(port=0, header_timeout_s=5, body_timeout_s=5))
    sockets = [socket.create_connection(("127.0.0.1", up.port), timeout=WITHIN_S) for _ in range(300)]
    try:
        for number, connection in enumerate(sockets):
            connection.sendall([b"", b"POST /v1", head(up.key.encode(), b"content-length: 500")][number % 3])
        still_serves(up)
    finally:
        for connection in sockets:
            connection.close()
    assert len(up.calls()) == 1
