"""A whole server on a free loopback port, with a real store and a scripted sampler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from practicum.config import Config, GatewayConfig, ServerConfig
from practicum.engines.scripted import ScriptedSampler
from practicum.gateway import Timing, create_app
from practicum.gateway.server import Server, serve, server
from practicum.policies import Registry
from practicum.renderers import ByteTokenizer, Renderer
from practicum.store import Store, create_key, open_store
from practicum.types.calls import ModelCall
from practicum.types.seams import Sampler

WAIT_S = 20


@dataclass
class Running:
    """A running server and what a test needs of it."""

    store: Store
    registry: Registry
    sampler: Sampler
    renderer: Renderer
    key: str
    app: Any
    server: Server
    port: int
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, key: str | None = None, prefix: str = "", **options: Any) -> OpenAI:
        base = f"{self.url}{prefix}/v1"
        return OpenAI(base_url=base, api_key=key or self.key, **{"max_retries": 0, "timeout": WAIT_S, **options})

    def http(self, key: str | None = None) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {key or self.key}"}, timeout=WAIT_S, trust_env=False
        )

    def calls(self, session_id: str | None = None) -> list[ModelCall]:
        return self.store.calls(session_id=session_id)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@dataclass
class Starter:
    """Starts servers; all are stopped at the end of the test."""

    home: Path
    running: list[Running] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)

    def __call__(
        self,
        sampler: Sampler | None = None,
        *,
        store: Any = None,
        timing: Timing = Timing(),
        server_config: ServerConfig | None = None,
        gateway_config: GatewayConfig | None = None,
        scopes: set[str] | None = None,
        renderer: Renderer | None = None,
        **options: Any,
    ) -> Running:
        sampler = sampler or ScriptedSampler()
        if store is None:
            store = open_store(self.home / "practicum.db")
            self.stores.append(store)
        config = Config(
            home=self.home,
            server=server_config or ServerConfig(port=0),
            gateway=gateway_config or GatewayConfig(policy_poll_s=0.05),
        )
        key = create_key(store, "helpdesk", scopes or {"sample", "feedback"})
        registry = Registry(store, config.policies_dir)
        renderer = renderer or Renderer(ByteTokenizer())
        app = create_app(config, store, registry, sampler, renderer, timing=timing, **options)
        started = threading.Event()
        port: list[int] = []
        web = server(app, config.server, timing=timing)
        web.started_at = lambda number: (port.append(number), started.set())[0]
        thread = threading.Thread(target=lambda: asyncio.run(serve(web)), daemon=True)
        thread.start()
        assert started.wait(WAIT_S), "the server did not start"
        up = Running(store, registry, sampler, renderer, key, app, web, port[0], thread)
        self.running.append(up)
        return up


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    for up in starter.running:
        up.stop()
    for store in starter.stores:
        store.close()


@pytest.fixture
def up(start: Callable[..., Running]) -> Running:
    return start()
