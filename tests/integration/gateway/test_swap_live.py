"""Hot swap under load: every token is tagged with the version that sampled it, and nobody sees an error."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from practicum.engines.scripted import ScriptedSampler, letters
from practicum.errors import CorruptArtifact
from practicum.types.ids import new_id
from practicum.types.policies import Decision

HI = [{"role": "user", "content": "Hi"}]
STREAMS = 20
WAIT_S = 30


def register(up: Any, folder: Path, name: str) -> int:
    adapter = folder / name
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(name.encode())
    return int(up.registry.register_candidate(adapter, parent=0).version)


def decide(up: Any, version: int, verdict: Any) -> None:
    up.registry.apply_decision(
        Decision(
            decision_id=new_id("dec"), version=version, previous=up.registry.live().version, verdict=verdict,
            reason="test", actor="test", created_at=time.time(),
        )
    )  # fmt: skip


async def until_served(http: httpx.AsyncClient, version: int) -> float:
    """Wait for the readiness report to name the version; seconds that it took."""
    began = time.monotonic()
    while (await http.get("/readyz")).json()["serving_version"] != version:
        assert time.monotonic() - began < WAIT_S
        await asyncio.sleep(0.01)
    return time.monotonic() - began


async def more_answers(answers: list[tuple[int, str]], callers: list[asyncio.Task[None]]) -> None:
    """Wait for one more answer per stream; a caller that ended has failed."""
    seen = len(answers)
    while len(answers) < seen + STREAMS:
        done, _ = await asyncio.wait(callers, timeout=0.01)
        for task in done:
            task.result()


async def one_answer(http: httpx.AsyncClient) -> tuple[int, str]:
    """Version and text of one streamed answer."""
    body = {"model": "practicum", "messages": HI, "stream": True}
    text, ended = "", False
    async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        version = int(reply.headers["x-practicum-version"])
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert event["model"] == f"practicum@{version}"
                text += event["choices"][0]["delta"].get("content") or ""
            ended = ended or line == "data: [DONE]"
    assert ended
    return version, text


async def test_three_promotions_and_a_rollback_under_twenty_streams(start: Any, tmp_path: Path) -> None:
    up = start(ScriptedSampler(letters(40), per_token_delay_s=0.005))
    versions = [register(up, tmp_path, name) for name in ("one", "two", "three")]
    over = asyncio.Event()
    answers: list[tuple[int, str]] = []

    async def caller(http: httpx.AsyncClient) -> None:
        while not over.is_set():
            answers.append(await one_answer(http))

    limits = httpx.Limits(max_connections=STREAMS + 2)
    options: dict[str, Any] = {"base_url": up.url, "headers": {"authorization": f"Bearer {up.key}"}, "timeout": WAIT_S}
    async with httpx.AsyncClient(**options, limits=limits, trust_env=False) as http:
        callers = [asyncio.create_task(caller(http)) for _ in range(STREAMS)]
        for version in versions:
            await asyncio.to_thread(decide, up, version, "promote")
            await until_served(http, version)
            await more_answers(answers, callers)
        await asyncio.to_thread(decide, up, versions[1], "rollback")
        rollback_s = await until_served(http, versions[1])
        await more_answers(answers, callers)
        over.set()
        await asyncio.gather(*callers)
    assert {version for version, _ in answers} >= set(versions)
    assert all(text == chr(ord("a") + version) * 40 for version, text in answers)
    assert rollback_s < 5
    for call in up.calls():
        assert call.status == "complete" and set(call.versions) == {call.policy_version}
        assert set(call.text) == {chr(ord("a") + call.policy_version)}


class Fussy(ScriptedSampler):
    """Refuses to load anything but version 0."""

    async def load(self, version: int, adapter_path: Path | None, digest: str) -> None:
        if version:
            raise CorruptArtifact(f"{adapter_path} is broken")
        await super().load(version, adapter_path, digest)


async def test_a_version_that_cannot_be_loaded_leaves_the_one_before_serving(start: Any, tmp_path: Path) -> None:
    up = start(Fussy(letters(3)))
    version = register(up, tmp_path, "one")
    decide(up, version, "promote")
    async with httpx.AsyncClient(base_url=up.url, headers={"x-api-key": up.key}, trust_env=False) as http:
        began = time.monotonic()
        while (report := (await http.get("/readyz")).json())["status"] != "degraded":
            assert time.monotonic() - began < WAIT_S
            await asyncio.sleep(0.01)
        assert report["problems"] == [f"version {version} cannot be served: corrupt_artifact"]
        assert str(tmp_path) not in json.dumps(report)
        assert await one_answer(http) == (0, "aaa")
        pinned = await http.post("/v1/chat/completions", json={"model": f"practicum@{version}", "messages": HI})
    assert pinned.status_code == 503 and str(tmp_path) not in pinned.text


@pytest.mark.parametrize("prefix", ["", "/s/x"])
async def test_an_earlier_version_can_be_asked_for_by_name(start: Any, tmp_path: Path, prefix: str) -> None:
    up = start(ScriptedSampler(letters(3)))
    decide(up, register(up, tmp_path, "one"), "promote")
    async with httpx.AsyncClient(base_url=up.url, headers={"x-api-key": up.key}, trust_env=False) as http:
        await until_served(http, 1)
        models = (await http.get(f"{prefix}/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["practicum", "practicum@0", "practicum@1"]
        texts = [
            (await http.post(f"{prefix}/v1/chat/completions", json={"model": name, "messages": HI})).json()
            for name in ("practicum@0", "practicum")
        ]
    assert [reply["choices"][0]["message"]["content"] for reply in texts] == ["aaa", "bbb"]
