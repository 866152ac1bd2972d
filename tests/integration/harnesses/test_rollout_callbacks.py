"""Callbacks against a real receiver: signed, repeated until taken, recorded, and never in the pools' way."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.harnesses.rollout_world import World, task, until

from practicum.harnesses.callbacks import Callbacks, callback_secret, signature
from practicum.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        yield opened


class Receiver:
    """Keeps what it gets; answers with the given statuses in order, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(outer.statuses.pop(0) if outer.statuses else 200)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/done"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    opened = Receiver(500)
    yield opened
    opened.server.shutdown()
    opened.server.server_close()


async def test_the_end_of_a_group_is_told_signed_and_told_again_after_a_500(
    tmp_path: Path, store: Store, receiver: Receiver
) -> None:
    async with World(tmp_path, store) as world:
        group_id = await world.service.submit(task(num_samples=2, callback_url=receiver.url))
        assert len(await world.service.collect(group_id)) == 2
        await until(lambda: store.get_group(group_id).callback == "delivered")
    assert len(receiver.got) == 2
    headers, body = receiver.got[-1]
    signed = signature(
        callback_secret(store.key_secret), headers["webhook-id"], int(headers["webhook-timestamp"]), body
    )
    assert headers["webhook-signature"] == signed
    assert receiver.got[0][0]["webhook-id"] == headers["webhook-id"] == f"msg_{group_id}"
    document = json.loads(body)
    assert (document["type"], document["group_id"]) == ("rollouts.ended", group_id)
    assert [(one["cause"], one["reward"]) for one in document["rollouts"]] == [("finished", 1.0)] * 2


async def test_a_group_that_ended_untold_is_told_by_the_next_service(
    tmp_path: Path, store: Store, receiver: Receiver
) -> None:
    async with World(tmp_path, store) as world:
        group_id = await world.service.submit(task(callback_url=receiver.url))
        await world.service.collect(group_id)
    assert store.get_group(group_id).callback == "pending"  # it left between two tries
    async with World(tmp_path, store):
        await until(lambda: store.get_group(group_id).callback == "delivered")


async def test_tries_are_bounded_spaced_and_follow_no_redirect() -> None:
    waits: list[float] = []
    answers = iter([httpx.Response(302, headers={"location": "http://10.0.0.1/"}), httpx.ConnectError("refused")])
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        given = next(answers, httpx.Response(503))
        if isinstance(given, Exception):
            raise given
        return given

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    secret = callback_secret(b"s")
    callbacks = Callbacks(secret, sleep=sleep, attempts=4, transport=httpx.MockTransport(answer), clock=lambda: 7.9)
    word = await callbacks.deliver("http://127.0.0.1/x", "msg_1", {"a": 1})
    assert word == "failed: it answered 503, 4 times"
    assert waits == [1.0, 2.0, 4.0]
    assert {str(request.url) for request in seen} == {"http://127.0.0.1/x"} and len(seen) == 4
    assert seen[0].headers["webhook-timestamp"] == "7"


def test_the_signature_is_that_of_the_convention() -> None:
    """The example of the Standard Webhooks specification's reference libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    signed = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
