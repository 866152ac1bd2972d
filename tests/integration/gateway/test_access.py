"""Keys, scopes, routes, bodies and sockets: who gets in, and what a hostile caller gets."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import APIRouter, Depends
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration.gateway.test_chat import eventually

from practicum.config import ServerConfig
from practicum.engines.scripted import ScriptedSampler, letters
from practicum.errors import StoreError
from practicum.feedback import Ledger
from practicum.feedback.routes import router as feedback_router
from practicum.gateway import Timing, authenticate, require
from practicum.harnesses.routes import router as rollout_router
from practicum.harnesses.service import RolloutService
from practicum.sandboxes.local import LocalProvider
from practicum.store import create_key, open_store
from practicum.types.principals import Principal
from practicum.types.tokens import SampleRequest, TokenChunk

BODY = {"model": "practicum", "messages": [{"role": "user", "content": "Hi"}]}
ROUTES = [
    ("POST", "/v1/chat/completions"), ("POST", "/chat/completions"), ("POST", "/s/x/v1/chat/completions"),
    ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"), ("POST", "/v1/responses"),
    ("POST", "/v1/completions"), ("POST", "/v1beta/models/practicum:generateContent"),
    ("POST", "/v1beta/models/practicum:streamGenerateContent"), ("POST", "/s/x/v1beta/models/practicum:countTokens"),
    ("GET", "/v1beta/models"), ("GET", "/v1/models"), ("GET", "/models"), ("GET", "/v1/models/practicum"),
    ("GET", "/s/x/v1/models"),
]  # fmt: skip
CLOSED = [
    *ROUTES, ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/nothing"), ("POST", "/v1/feedback"),
    ("GET", "/v1/chat/completions"), ("DELETE", "/v1/models"), ("GET", "/healthz/"),
    ("GET", "/%2e%2e/healthz"), ("OPTIONS", "/v1/chat/completions"),
]  # fmt: skip


def asked(path: str) -> dict[str, Any]:
    """A body that this path answers."""
    if path.endswith("/v1/completions"):
        return {"model": "practicum", "prompt": "Hi"}
    return {**BODY, "input": "Hi", "contents": [{"parts": [{"text": "Hi"}]}], "max_tokens": 9}


def ways(key: str) -> dict[str, dict[str, Any]]:
    return {
        "bearer": {"headers": {"authorization": f"Bearer {key}"}},
        "lower-case bearer": {"headers": {"authorization": f"bearer  {key}"}},
        "x-api-key": {"headers": {"x-api-key": key}},
        "x-goog-api-key": {"headers": {"x-goog-api-key": key}},
        "query": {"params": {"key": key}},
    }


@pytest.fixture
def plain(up: Any) -> Any:
    with httpx.Client(base_url=up.url, timeout=20, trust_env=False) as client:
        yield client


def test_w8_every_way_of_sending_a_key_works_on_every_route(up: Any, plain: httpx.Client) -> None:
    for method, path in ROUTES:
        for name, extra in ways(up.key).items():
            reply = plain.request(method, path, json=asked(path) if method == "POST" else None, **extra)
            assert reply.status_code == 200, (method, path, name, reply.text)


def test_w19_no_route_answers_without_a_known_key(up: Any, plain: httpx.Client) -> None:
    for method, path in CLOSED:
        attempts = [{}, *ways("pk_unknown").values(), *ways("sk-1234").values(), *ways("admin").values()]
        for extra in attempts:
            reply = plain.request(method, path, json=BODY if method == "POST" else None, **extra)
            assert reply.status_code == 401, (method, path, extra)
            assert "traceback" not in reply.text.lower() and "pk_unknown" not in reply.text
    assert up.calls() == []


def test_w19_no_route_of_our_own_answers_without_a_known_key(start: Any, tmp_path: Path) -> None:
    """Whatever the server offers beside the models: its own document lists it."""
    store = open_store(tmp_path / "practicum.db")
    start.stores.append(store)
    assert store.keys() == [], "nobody is known before a key is made"
    service = RolloutService(store, harnesses={}, sandboxes=LocalProvider(tmp_path / "boxes"), gateway="")
    routers = [feedback_router(Ledger(store), authenticate), rollout_router(service, authenticate)]
    up = start(store=store, routers=routers)
    with up.http() as http:
        paths = http.get("/openapi.json").json()["paths"]
    assert {"/v1/feedback", "/v1/rollouts"} <= set(paths)
    with httpx.Client(base_url=up.url, timeout=20, trust_env=False) as stranger:
        for path, methods in paths.items():
            for method in methods:
                for headers in ({}, {"authorization": "Bearer admin"}):
                    reply = stranger.request(method, path.replace("{", "").replace("}", ""), headers=headers, json={})
                    assert reply.status_code == 401, (method, path)


def test_a_second_unknown_key_is_not_overlooked(up: Any, plain: httpx.Client) -> None:
    for other in ("pk_unknown", create_key(up.store, "ben", {"sample"})):
        headers = {"authorization": f"Bearer {up.key}", "x-api-key": other}
        assert plain.post("/v1/chat/completions", json=BODY, headers=headers).status_code == 401


def test_w12_probes_need_no_key(plain: httpx.Client) -> None:
    for path in ("/", "/api/hello", "/healthz", "/readyz", "/s/x", "/s/x/", "/s/x/api/hello"):
        assert plain.get(path).status_code == 200
        assert plain.head(path).status_code == 200


def test_errors_have_the_shape_that_the_caller_reads(up: Any, plain: httpx.Client) -> None:
    provider = plain.post("/v1/chat/completions", json=BODY)
    assert set(provider.json()) == {"error"} and provider.headers["www-authenticate"] == "Bearer"
    own = plain.get("/v1/feedback")
    assert own.headers["content-type"] == "application/problem+json" and own.json()["code"] == "missing_api_key"
    with up.http() as http:
        assert http.get("/v1/feedback").json()["code"] == "unknown_url"
        assert http.get("/v1/chat/completions").status_code == 405
    assert own.headers["x-request-id"].startswith("req_")


def test_a_key_does_only_what_its_scopes_say(start: Any) -> None:
    routes = APIRouter()

    @routes.get("/v1/feedback")
    async def who(principal: Principal = Depends(require("feedback"))) -> dict[str, str]:
        return {"name": principal.name}

    up = start(scopes={"feedback"}, routers=[routes])
    with pytest.raises(openai.PermissionDeniedError):
        up.openai().chat.completions.create(**BODY)
    with up.http() as http:
        assert http.get("/v1/feedback").json() == {"name": "helpdesk"}
    with up.http(create_key(up.store, "ben", {"sample"})) as http:
        assert http.get("/v1/feedback").status_code == 403
    with up.http(create_key(up.store, "root", {"admin"})) as http:
        assert http.get("/v1/feedback").status_code == 200


def test_a_store_that_cannot_be_read_is_an_outage_and_not_an_unknown_key(start: Any) -> None:
    def down(key: str) -> Principal | None:
        raise StoreError("The disk is gone.")

    up = start(key_lookup=down)
    with up.http() as http:
        assert http.post("/v1/chat/completions", json=BODY).status_code == 503


def test_keys_do_not_reach_the_log(up: Any, plain: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    plain.get("/v1/models", params={"key": up.key})
    plain.post("/v1/chat/completions", params={"key": up.key}, content=b"{")
    assert up.key not in caplog.text


def test_a_programming_error_says_nothing_of_itself(start: Any) -> None:
    routes = APIRouter()

    @routes.get("/v1/broken")
    async def broken() -> None:
        raise RuntimeError("secret detail")

    up = start(routers=[routes])
    with up.http() as http:
        reply = http.get("/v1/broken")
    assert reply.status_code == 500 and "secret" not in reply.text and reply.json()["code"] == "internal_error"
    assert reply.json()["request_id"] == reply.headers["x-request-id"]


def test_a_body_that_is_too_long_is_refused(start: Any) -> None:
    up = start(server_config=ServerConfig(port=0, max_body_bytes=1000))
    with up.http() as http:
        declared = http.post("/v1/chat/completions", content=b"x" * 2000)
        chunked = http.post("/v1/chat/completions", content=iter([b"x" * 600, b"x" * 600]))
        assert (declared.status_code, chunked.status_code) == (413, 413)
        assert declared.json()["error"]["code"] == "body_too_large"
        assert http.post("/v1/chat/completions", json=BODY).status_code == 200


def read_all(connection: socket.socket, within_s: float) -> bytes:
    """What the server sends until it closes; fails if it does not close in time."""
    connection.settimeout(within_s)
    out = b""
    try:
        while data := connection.recv(65536):
            out += data
    except ConnectionResetError:
        pass
    return out


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\ncontent-length: 500\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/comp", b"GET / HTTP/1.1\r\nhost: x\r\n"])
def test_sockets_that_never_send_a_whole_head_are_closed(start: Any, sent: bytes) -> None:
    up = start(server_config=ServerConfig(port=0, header_timeout_s=0.3))
    with socket.create_connection(("127.0.0.1", up.port)) as connection:
        connection.sendall(sent)
        assert read_all(connection, 5) == b""


def test_a_head_that_drips_is_closed_all_the_same(start: Any) -> None:
    up = start(server_config=ServerConfig(port=0, header_timeout_s=0.3))
    with socket.create_connection(("127.0.0.1", up.port)) as connection:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 10:
                connection.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() - began < 5


def test_a_second_request_on_a_connection_has_a_deadline_too(start: Any) -> None:
    up = start(server_config=ServerConfig(port=0, header_timeout_s=0.3))
    with socket.create_connection(("127.0.0.1", up.port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        connection.settimeout(10)
        reply = b""
        while b"}" not in reply:
            reply += connection.recv(65536)
        connection.sendall(b"GET /hea")
        assert read_all(connection, 5) == b""


def test_a_body_that_does_not_arrive_is_refused(start: Any) -> None:
    up = start(server_config=ServerConfig(port=0, body_timeout_s=0.3))
    with socket.create_connection(("127.0.0.1", up.port)) as connection:
        connection.sendall(HEAD % up.key.encode() + b'{"model"')
        assert b"408" in read_all(connection, 5)


def test_w14_an_idle_connection_outlives_the_clients_pools(start: Any) -> None:
    up = start(server_config=ServerConfig(port=0, header_timeout_s=0.2))
    assert up.server.config.timeout_keep_alive >= 75
    with socket.create_connection(("127.0.0.1", up.port)) as connection:
        connection.settimeout(10)
        for _ in range(2):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            reply = b""
            while b"}" not in reply:
                reply += connection.recv(65536)
            assert b"200 OK" in reply
            time.sleep(0.5)  # longer than the deadline for a head, which must not count between requests


class Torrent(ScriptedSampler):
    """Gives a hundred tokens at a time, in the end more than any socket buffer takes."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[TokenChunk]:
        for _ in range(20_000):
            await asyncio.sleep(0)
            yield TokenChunk(ids=(97,) * 100, logprobs=(0.0,) * 100, sampled_logprobs=(0.0,) * 100, version=0)


def test_a_caller_who_does_not_read_is_cut_and_its_tokens_stay_on_record(start: Any) -> None:
    up = start(Torrent(), timing=Timing(write_timeout_s=0.5))
    body = json.dumps({**BODY, "stream": True, "logprobs": True}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", up.port))
        head = HEAD.replace(b"500", str(len(body)).encode()) % up.key.encode()
        connection.sendall(head + body)
        deadline = time.monotonic() + 20
        while not (ended := [call for call in up.calls() if call.status != "open"]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert ended[0].status == "aborted" and ended[0].error == "the caller stopped reading"
    assert len(ended[0].completion_ids) > 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from(["model", "messages", "tools", "tool_choice", "stop", "stream", "stream_options", "n", "seed",
                          "temperature", "max_tokens", "logprobs", "top_p", "metadata"])  # fmt: skip
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]), "content": json_values}
    ),
    max_size=3,
)
bodies = st.one_of(
    st.binary(max_size=40),
    st.dictionaries(fields, json_values, max_size=5).map(lambda extra: json.dumps({**BODY, **extra}).encode()),
    messages.map(lambda listed: json.dumps({"model": "practicum", "messages": listed, "max_tokens": 2}).encode()),
)


def test_no_body_makes_a_500(up: Any) -> None:
    with up.http() as http:

        @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
        @given(bodies)
        def check(raw: bytes) -> None:
            reply = http.post("/v1/chat/completions", content=raw)
            assert reply.status_code in (200, 400, 404), (raw, reply.text)
            if reply.status_code != 200:
                assert set(reply.json()["error"]) == {"message", "type", "param", "code"}

        check()


def test_running_answers_finish_when_the_server_is_told_to_stop(start: Any) -> None:
    up = start(ScriptedSampler(letters(100), per_token_delay_s=0.005))
    stream = up.openai().chat.completions.create(model="practicum", messages=BODY["messages"], stream=True)
    pieces = iter(stream)
    next(pieces)
    up.server.should_exit = True
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == "a" * 100


def test_answers_that_take_too_long_at_shutdown_are_interrupted_and_keep_their_tokens(start: Any) -> None:
    up = start(ScriptedSampler(letters(10_000), per_token_delay_s=0.01), timing=Timing(shutdown_s=1))
    stream = up.openai().chat.completions.create(
        model="practicum", messages=BODY["messages"], stream=True, max_tokens=9999
    )
    next(iter(stream))
    up.stop()
    (call,) = eventually(lambda: [call for call in up.calls() if call.status != "open"])
    assert (
        call.status == "interrupted" and call.completion_ids and "the server stopped" in (call.untrainable_reason or "")
    )
