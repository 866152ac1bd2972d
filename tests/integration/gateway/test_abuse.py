"""Bodies that no client means, by the thousand, through the whole application: keys, routes, store and all.

What is pinned: no body makes a 5xx or a traceback; every answer that is given is on record, whole and as it was asked
for; every refusal has its provider's shape and leaves no tokens on record; and afterwards the application serves as
before. Time is bounded for all bodies together, so that a busy machine fails no single one.

`make test-abuse` sends ten thousand bodies a dialect.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.asgi import lifespan
from tests.integration.gateway.test_dialect_wire import WHERE
from tests.unit.dialects.mutations import BODIES, malformed

from practicum.config import Config, GatewayConfig
from practicum.dialects.registry import DIALECTS
from practicum.engines.scripted import ScriptedSampler
from practicum.errors import RequestError
from practicum.gateway import create_app
from practicum.policies import Registry
from practicum.renderers import ByteTokenizer, Renderer
from practicum.store import Store, create_key, open_store

AT_ONCE = 16
FEW, MANY = 300, 10_000
BUDGET_S = {FEW: 120, MANY: 1800}


@dataclass(frozen=True)
class Application:
    """A running application without a socket."""

    store: Store
    http: httpx.AsyncClient

    async def serves(self) -> None:
        """Ask for something ordinary, and whether anything was lost."""
        reply = await self.http.post("/v1/chat/completions", json=BODIES["openai_chat"])
        assert reply.status_code == 200
        ready = (await self.http.get("/readyz")).json()
        assert ready["status"] == "ready" and ready["capture"]["lost"] == 0, ready


@pytest.fixture
async def application(tmp_path: Path) -> AsyncIterator[Application]:
    with open_store(tmp_path / "practicum.db") as store:
        config = Config(home=tmp_path, gateway=GatewayConfig(default_max_tokens=8))
        key = create_key(store, "helpdesk", {"sample"})
        registry = Registry(store, config.policies_dir)
        app = create_app(config, store, registry, ScriptedSampler(), Renderer(ByteTokenizer()))
        headers = {"authorization": f"Bearer {key}"}
        transport = httpx.ASGITransport(app)
        async with (
            lifespan(app),
            httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as http,
        ):
            yield Application(store, http)


def shape(value: Any) -> Any:
    """The keys of an error, all the way down; what they hold may differ."""
    return {key: shape(inner) for key, inner in value.items()} if isinstance(value, dict) else None


async def send_all(application: Application, dialect: str, bodies: Iterable[bytes]) -> dict[str, bytes]:
    """Send bodies, several at a time; what was sent for each call that was answered."""
    refusal = shape(DIALECTS[dialect].error_body(RequestError("x", param="y", code="z")))
    answered: dict[str, bytes] = {}
    rest = iter(bodies)

    async def one_after_another() -> None:
        for raw in rest:
            reply = await application.http.post(WHERE[dialect], content=raw)
            if reply.status_code == 200:
                answered[reply.headers["x-practicum-call-id"]] = raw
            else:
                assert 400 <= reply.status_code < 500, (raw[:300], reply.text)
                assert shape(reply.json()) == refusal, (raw[:300], reply.text)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_another())
    return answered


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dialect", WHERE)
async def test_malformed_bodies_are_answered_on_record_or_refused(
    application: Application, dialect: str, count: int
) -> None:
    async with asyncio.timeout(BUDGET_S[count]):
        answered = await send_all(application, dialect, malformed(dialect, count, str(count)))
        assert 0 < len(answered) < count, "both kinds must be among them"
        recorded = {call.call_id: call for call in application.store.calls()}
        assert recorded.keys() >= answered.keys()
        for call_id, raw in answered.items():
            call = recorded.pop(call_id)
            assert call.status == "complete" and call.completion_ids
            assert call.request == json.loads(raw)
        for call in recorded.values():  # a demanded format that the engine refuses
            assert (call.status, call.completion_ids) == ("failed", ()) and call.request and call.error
        await application.serves()


def extremes(dialect: str) -> dict[str, Any]:
    """Fields of enormous bodies, each in its dialect's own words."""
    text = {"gemini": lambda: {"role": "user", "parts": [{"text": "Hi"}]}}.get(
        dialect, lambda: {"role": "user", "content": "Hi"}
    )
    tools: dict[str, Callable[[str], Any]] = {
        "openai_chat": lambda name: {"type": "function", "function": {"name": name}},
        "openai_responses": lambda name: {"type": "function", "name": name, "parameters": {}},
        "anthropic_messages": lambda name: {"name": name, "input_schema": {"type": "object"}},
        "gemini": lambda name: {"functionDeclarations": [{"name": name}]},
    }
    messages = {"gemini": "contents", "openai_responses": "input", "openai_completions": "prompt"}
    stops: dict[str, dict[str, Any]] = {
        "anthropic_messages": {"stop_sequences": ["x"] * 100_000},
        "gemini": {"generationConfig": {"stopSequences": ["x"] * 100_000}},
    }
    found: dict[str, Any] = {
        "messages": {messages.get(dialect, "messages"): [text() for _ in range(100_000)]},
        "stops": stops.get(dialect, {"stop": ["x" * 1_000_000]}),
        "text": {"model": "x" * 5_000_000},
    }
    if dialect in tools:
        found["tools"] = {"tools": [tools[dialect](f"tool_{number}") for number in range(10_000)]}
    return found


@pytest.mark.parametrize("dialect", WHERE)
async def test_enormous_bodies_are_refused_or_answered_and_others_are_served_meanwhile(
    application: Application, dialect: str
) -> None:
    async with asyncio.timeout(BUDGET_S[FEW]):
        for name, fields in extremes(dialect).items():
            raw = json.dumps({**BODIES[dialect], **fields}).encode()
            asked = asyncio.create_task(application.http.post(WHERE[dialect], content=raw))
            served = 0
            while not asked.done():
                assert (await application.http.get("/healthz")).status_code == 200
                served += 1
                await asyncio.sleep(0.01)  # the probe alone never waits, and would leave no turn to the others
            reply = asked.result()
            assert reply.status_code in (200, 400, 404), (name, reply.text[:300])
            assert served
        await application.serves()


async def test_equal_idempotency_keys_at_one_moment_make_one_record(application: Application) -> None:
    headers = {"idempotency-key": "the same"}
    for _ in range(20):
        replies = await asyncio.gather(
            *(
                application.http.post(WHERE["openai_chat"], json=BODIES["openai_chat"], headers=headers)
                for _ in range(20)
            )
        )
        assert {reply.status_code for reply in replies} <= {200, 409}
        assert len({reply.json()["id"] for reply in replies if reply.status_code == 200}) == 1
    (call,) = application.store.calls()
    assert call.status == "complete"
