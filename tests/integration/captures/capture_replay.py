"""Recorded requests of real harnesses, played in order through the whole gateway.

The sampler answers what the harness was answered in the recording: the assistant turn that a later request of the same
conversation repeats. So histories extend exactly as far as the harness left them alone.

The recordings' prose is made up, equal where it was equal. Two texts that stand in protocol fields as well are put
back, so that both places are equal again. Ids of tool calls become those that the gateway gave, as they would have.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import tomllib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from tests.integration.asgi import lifespan

from practicum.config import Config, GatewayConfig, ServerConfig
from practicum.dialects.dialect import Dialect
from practicum.dialects.request import ChatRequest
from practicum.engines.scripted import ScriptedCall, ScriptedSampler, Step
from practicum.episodes.matching import canonical_message
from practicum.errors import RequestError
from practicum.gateway import create_app
from practicum.gateway.endpoints import dialect_of
from practicum.policies import Registry
from practicum.renderers import ByteTokenizer, Renderer
from practicum.store import Store, create_key, open_store
from practicum.types.calls import ModelCall
from practicum.types.messages import Message
from practicum.types.tokens import SampleRequest, TokenChunk

GOLDEN = Path(__file__).parents[2] / "golden" / "captures"
EXPECTED: dict[str, dict[str, dict[str, Any]]] = tomllib.loads((GOLDEN / "expected.toml").read_text("utf-8"))
# Protocol texts whose words were made up like all others.
PUT_BACK = {
    "x-gunidesiv-vugegeb-gadidu:": "x-anthropic-billing-header:",
    "DOSANON: folab ful tenitefu neco": "SUBTASK: write the greeting file",
}
# Belong to the recorded connection, or hold a key that was taken out.
_NOT_SENT = {"connection", "accept-encoding", "content-length", "host", "authorization", "x-api-key", "x-goog-api-key"}
LAST_WORDS = Step(content="That is all.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded request; `number` counts from 1 within its run."""

    number: int
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a run: the status of each request by its number, the calls on record, and the renderer."""

    statuses: dict[int, int]
    bodies: dict[int, str]
    calls: list[ModelCall]


class ReplaySampler(ScriptedSampler):
    """Says `step`, however little the request allows: so did the recorded endpoint."""

    def __init__(self) -> None:
        super().__init__(context_length=8_000_000)
        self.step = LAST_WORDS
        self.begun = asyncio.Event()

    def _step(self, prompt_ids: Sequence[int], version: int) -> Step:
        return self.step

    async def sample(self, request: SampleRequest) -> AsyncIterator[TokenChunk]:
        self.begun.set()
        async for chunk in super().sample(replace(request, params=replace(request.params, max_tokens=100_000))):
            yield chunk


def recordings() -> dict[str, dict[str, list[Recorded]]]:
    """Requests by recording and run."""
    return {path.name.removesuffix(".jsonl.gz"): _runs(path) for path in sorted(GOLDEN.glob("*.jsonl.gz"))}


def _runs(path: Path) -> dict[str, list[Recorded]]:
    runs: dict[str, list[Recorded]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            for made_up, text in PUT_BACK.items():
                line = line.replace(made_up, text)
            entry = json.loads(line)
            runs.setdefault(entry["run"], []).append(
                Recorded(
                    number=entry["seq"],
                    method=entry["method"],
                    path=entry["path"],
                    query=entry["query"] or {},
                    headers={k.lower(): v for k, v in entry["headers"].items() if k.lower() not in _NOT_SENT},
                    body="" if entry["body"] is None else json.dumps(entry["body"], ensure_ascii=False),
                )
            )
    return runs


async def replay(run: Sequence[Recorded], expected: dict[str, Any], home: Path) -> Replayed:
    """Play one run through an application with a store of its own."""
    sampler, renderer = ReplaySampler(), Renderer(ByteTokenizer())
    config = Config(
        home=home, server=ServerConfig(port=0, max_body_bytes=64_000_000), gateway=GatewayConfig(aliases=_models(run))
    )
    with open_store(home / "practicum.db") as store:
        key = create_key(store, "replay", {"sample"})
        app = create_app(config, store, Registry(store, config.policies_dir), sampler, renderer)
        async with lifespan(app):
            player = Player(app, key, sampler, run, expected)
            await player.play()
        return Replayed(statuses=player.statuses, bodies=player.bodies, calls=_calls(store))


def _calls(store: Store) -> list[ModelCall]:
    return store.calls()


class Player:
    """Sends the requests of one run, and keeps the sampler's next answer ready."""

    def __init__(
        self, app: Any, key: str, sampler: ReplaySampler, run: Sequence[Recorded], expected: dict[str, Any]
    ) -> None:
        self.statuses: dict[int, int] = {}
        self.bodies: dict[int, str] = {}
        self._app, self._key, self._sampler, self._run = app, key, sampler, run
        self._faults: dict[str, str] = expected.get("faults", {})
        self._says: dict[str, str] = expected.get("says", {})
        self._parsed = {one.number: parsed(one) for one in run}
        self._renamed: dict[str, str] = {}

    async def play(self) -> None:
        """All requests, in order."""
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=60) as client:
            for one in self._run:
                answer = self._answer(one)
                fault = self._faults.get(str(one.number))
                self._sampler.step = _step(answer, self._says.get(str(one.number)), fault)
                body = one.body
                for recorded_id, ours in self._renamed.items():
                    body = body.replace(recorded_id, ours)
                if fault == "hang":
                    await self._hang(one, body)
                    continue
                response = await client.request(
                    one.method, one.path, params=one.query, headers=self._headers(one), content=body.encode()
                )
                self.statuses[one.number], self.bodies[one.number] = response.status_code, response.text
                self._rename(one, answer, response.headers.get("x-practicum-call-id", ""))

    def _headers(self, one: Recorded) -> dict[str, str]:
        return {**one.headers, "authorization": f"Bearer {self._key}"}

    def _answer(self, one: Recorded) -> Message | None:
        """The assistant turn that the harness got: what follows this request's history in a later one."""
        mine = self._parsed[one.number]
        if mine is None:
            return None
        turns = [canonical_message(message) for message in mine.messages]
        later = [p for number, p in self._parsed.items() if number > one.number and p is not None]
        for request in later:
            theirs = [canonical_message(message) for message in request.messages]
            if theirs[: len(turns)] == turns and len(theirs) > len(turns):
                after = request.messages[len(turns)]
                if after.role == "assistant":
                    return after
        return None

    def _rename(self, one: Recorded, answer: Message | None, call_id: str) -> None:
        """Ids of the answer's calls are the gateway's from now on; Gemini's callers make up their own."""
        if answer is None or not call_id or "Content" in one.path:
            return
        suffix = call_id.rpartition("_")[2]
        for index, call in enumerate(answer.tool_calls):
            if call.id:
                self._renamed[call.id] = f"call_{suffix}_{index}"

    async def _hang(self, one: Recorded, body: str) -> None:
        """Send a request and go away before a byte of the answer came."""
        headers = [(name.encode(), value.encode()) for name, value in self._headers(one).items()]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": one.method, "scheme": "http",
            "path": one.path, "raw_path": one.path.encode(), "root_path": "", "headers": headers,
            "query_string": str(httpx.QueryParams(one.query)).encode(), "server": ("gateway", 80),
        }  # fmt: skip
        self._sampler.begun.clear()
        sent = [{"type": "http.request", "body": body.encode(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if sent:
                return sent.pop()
            await self._sampler.begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError(f"a byte left before the caller did: {message}")

        await self._app(scope, receive, send)


def parsed(one: Recorded) -> ChatRequest | None:
    """The canonical request; None for a probe, and for one that this release refuses."""
    dialect = _dialect(one)
    if dialect is None:
        return None
    model, _, task = one.path.rpartition("/models/")[2].partition(":")
    try:
        return dialect.parse(one.body.encode(), {"model": model, "method": task, "task": "answer", **one.query})
    except RequestError:
        return None


def _dialect(one: Recorded) -> Dialect | None:
    path = one.path.removeprefix("/s/rollout-42")
    return dialect_of(path, []) if one.method == "POST" else None


def _models(run: Sequence[Recorded]) -> list[str]:
    names = {json.loads(one.body).get("model") for one in run if one.body}
    names |= {one.path.rpartition("/models/")[2].partition(":")[0] for one in run if "/models/" in one.path}
    return sorted(name for name in names if name)


def _step(answer: Message | None, says: str | None, fault: str | None) -> Step:
    if fault == "refuse":
        return Step(fail="the recorded endpoint refused this call")
    if fault == "cut":
        return Step(content="Half an answ", fail="the recorded stream broke off here")
    if fault == "hang":
        return Step(content="never heard", delay_s=60)
    if says is not None:
        return Step(content=says)
    if answer is None:
        return LAST_WORDS
    calls = [ScriptedCall(name=call.name, arguments=json.loads(call.arguments or "{}")) for call in answer.tool_calls]
    return Step(content=answer.content, tool_calls=calls)
