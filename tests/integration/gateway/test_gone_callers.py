"""A caller who stops reading at the worst moment: its connection ends, and nothing is a fault of the program's.

Driven without a socket, so that the moment is exact: the application's own `send` breaks where the test says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.asgi import lifespan

from practicum.config import Config
from practicum.engines.scripted import Policy, ScriptedSampler, Step, play
from practicum.gateway import create_app
from practicum.policies import Registry
from practicum.renderers import ByteTokenizer, Renderer
from practicum.store import Store, create_key, open_store

BODY = {"model": "practicum", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


class Caller:
    """Sends one request and reads until `breaks` holds for a message; then its socket is gone, noticed or not."""

    def __init__(self, app: Callable[..., Any], key: str, *, breaks: Callable[[bytes], bool], **headers: str) -> None:
        self._app = app
        self._breaks = breaks
        self._gone = asyncio.Event()
        self._asked = False
        self.read: list[bytes] = []
        given = {"authorization": f"Bearer {key}", **headers}
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()],
        }

    async def ask(self, *, notices: bool) -> None:
        async def receive() -> dict[str, Any]:
            if not self._asked:
                self._asked = True
                return {"type": "http.request", "body": json.dumps(BODY).encode(), "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if self._breaks(message.get("body", b"")):
                if notices:
                    self._gone.set()
                    await asyncio.sleep(60)
                raise OSError("the connection is gone")
            self.read.append(message.get("body", b""))

        async with asyncio.timeout(20):
            await self._app(dict(self._scope), receive, send)


@asynccontextmanager
async def application(home: Path, policy: Policy) -> AsyncIterator[tuple[Callable[..., Any], Store, str]]:
    with open_store(home / "practicum.db") as store:
        config = Config(home=home)
        sampler, renderer = ScriptedSampler(policy), Renderer(ByteTokenizer())
        app = create_app(config, store, Registry(store, config.policies_dir), sampler, renderer)
        async with lifespan(app):
            yield app, store, create_key(store, "helpdesk", {"sample"})


@pytest.mark.parametrize("notices", [True, False])
async def test_a_caller_who_goes_while_it_is_told_of_a_failure_is_no_fault(tmp_path: Path, notices: bool) -> None:
    async with application(tmp_path, play([Step(content="Hello", fail="out of memory")])) as (app, store, key):
        caller = Caller(app, key, breaks=lambda body: b"out of memory" in body)
        await caller.ask(notices=notices)
        assert sum(b'"content"' in part for part in caller.read) >= len("Hello")
        (call,) = store.calls()
    assert call.status == "failed" and "out of memory" in (call.error or "")


async def test_a_caller_who_goes_while_an_answer_is_repeated_is_no_fault(tmp_path: Path) -> None:
    async with application(tmp_path, play([Step(content="Hello")])) as (app, store, key):
        await Caller(app, key, breaks=lambda body: False, idempotency_key="k").ask(notices=False)
        again = Caller(app, key, breaks=lambda body: b'"content":"o"' in body, idempotency_key="k")
        await again.ask(notices=False)
        assert again.read and len(store.calls()) == 1
