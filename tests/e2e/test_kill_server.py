"""`kill -9` of a serving process, of a process that promotes, and an adapter that rots: nothing half-done counts.

Pins: every call that its caller got whole is on record, complete, with exactly the tokens that the caller saw; a call
that was cut off is interrupted, absent, or whole (its record is durable just before its last byte leaves), and only
whole ones give training rows; after a kill anywhere in a promotion the old version or the new one is served, whole; a
version whose files changed by one byte is never served, and the readiness report says so.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from benchmarks.serving import decide, train_adapters

from practicum.engines.embedded import models
from practicum.engines.embedded.sampler import EmbeddedSampler
from practicum.episodes.rows import training_rows
from practicum.errors import CorruptArtifact
from practicum.gateway.swap import Swapper
from practicum.policies import Registry
from practicum.renderers import HubTokenizer
from practicum.store import create_key, open_store
from tests.e2e.conftest import Cli, Served, settings

CALLERS = 16
PROMOTION = Path(__file__).parents[1] / "integration" / "policies" / "registry_process.py"
PROMPT, COMPLETION = tuple(range(5, 25)), tuple(range(30, 50))


# -- killed while it serves ------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What callers know: tokens and logprobs of every call that they got whole, those of which they saw a beginning,
    and anything that went wrong."""

    whole: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    cut: int = 0
    problems: list[str] = field(default_factory=list)

    def call_until_killed(self, url: str, key: str, number: int) -> None:
        turn = 0
        with httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=60, trust_env=False) as http:
            while True:
                body = {
                    "model": "practicum",
                    "messages": [{"role": "user", "content": f"caller {number}, lamp {turn}"}],
                    "max_tokens": 80,
                    "logprobs": True,
                    "stream": (number + turn) % 4 != 0,
                }
                try:
                    self._call(http, url, body)
                except httpx.TransportError:
                    self.cut += 1
                    return
                turn += 1

    def _call(self, http: httpx.Client, url: str, body: dict[str, Any]) -> None:
        with http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                self.problems.append(reply.read().decode())
            elif not body["stream"]:
                answer = json.loads(reply.read())
                self.begun.add(answer["id"])
                self.whole[answer["id"]] = answer["choices"][0]["logprobs"]["content"]
            else:
                self._stream(reply)

    def _stream(self, reply: httpx.Response) -> None:
        entries: list[dict[str, Any]] = []
        call_id = ""
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                call_id = event["id"]
                self.begun.add(call_id)
                entries += (event["choices"][0]["logprobs"] or {}).get("content", [])
            elif line == "data: [DONE]":
                self.whole[call_id] = entries


def load_then_kill(served: Served, key: str, ledger: Ledger, more: int, streaming: int) -> None:
    """Sixteen callers; `kill -9` once `more` further calls were answered whole and `streaming` are in the middle."""
    threads = [threading.Thread(target=ledger.call_until_killed, args=(served.url, key, n)) for n in range(CALLERS)]
    goal, deadline = len(ledger.whole) + more, time.monotonic() + 60
    for thread in threads:
        thread.start()
    while len(ledger.whole) < goal or len(ledger.begun) - len(ledger.whole) < streaming:
        assert time.monotonic() < deadline and not ledger.problems, ledger.problems
        time.sleep(0.001)
    os.kill(served.process.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()


def check_ledger(home: Path, ledger: Ledger, tokenizer: HubTokenizer) -> int:
    """Compare store and ledger; returns how many calls are interrupted."""
    connection = apsw.Connection(str(home / "practicum.db"))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    with open_store(home / "practicum.db") as store:
        calls = {call.call_id: call for call in store.calls()}
        assert len(calls) == store.count_calls()
    assert {answer_id.removeprefix("chatcmpl-") for answer_id in ledger.begun} <= calls.keys()
    for answer_id, entries in ledger.whole.items():
        call = calls[answer_id.removeprefix("chatcmpl-")]
        assert call.status == "complete"
        assert [entry["logprob"] for entry in entries] == list(call.logprobs)
        assert [entry["token"] for entry in entries] == [tokenizer.decode([token]) for token in call.completion_ids]
        assert len(call.completion_ids) == len(call.versions) == len(call.sampled_logprobs)
    sessions = defaultdict(list)
    for call in calls.values():
        sessions[call.session_id].append(call)
        if f"chatcmpl-{call.call_id}" not in ledger.whole:
            assert call.status in ("interrupted", "complete")
            assert call.status == "complete" or not call.completion_ids
    trained = {call_id for held in sessions.values() for row in training_rows(held).rows for call_id in row.call_ids}
    assert trained == {call.call_id for call in calls.values() if call.status == "complete"}
    return sum(call.status == "interrupted" for call in calls.values())


def test_kill_9_at_several_moments_loses_no_acknowledged_call(cli: Cli, tiny_folder: Path) -> None:
    chance, ledger, tokenizer = random.Random(16), Ledger(), HubTokenizer.from_folder(tiny_folder)
    with open_store(cli.home / "practicum.db") as store:
        key = create_key(store, "team", ["sample"])
    interrupted = 0
    for kill in range(4):
        with cli.serving() as served:
            found = check_ledger(cli.home, ledger, tokenizer)
            assert found > interrupted or kill == 0, "a kill amid sixteen calls cuts some of them off"
            assert found - interrupted <= CALLERS
            interrupted = found
            if kill < 3:
                load_then_kill(served, key, ledger, chance.randint(5, 30), chance.randint(3, 9))
            else:
                body = {"model": "practicum", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
                headers = {"authorization": f"Bearer {key}"}
                url = f"{served.url}/v1/chat/completions"
                assert httpx.post(url, json=body, headers=headers, trust_env=False).status_code == 200
                assert served.ready()["status"] == "ready"
    assert ledger.cut == 3 * CALLERS and ledger.problems == []


# -- killed while it promotes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published:
    """The tiny model, two adapters over it, and what each version says of one completion."""

    model: Any
    adapters: list[Path]
    logprobs: list[list[float]]


@pytest.fixture(scope="module")
def published(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Published:
    model, _ = models.load(tiny_folder)
    adapters = train_adapters(model, tmp_path_factory.mktemp("published"), 2)
    sampler = EmbeddedSampler(model)
    for version, folder in enumerate(adapters, start=1):
        sampler.weights.load(version, folder, digest=None)  # type: ignore[arg-type]
    logprobs = [sampler.score(PROMPT, COMPLETION, version=version) for version in range(3)]
    sampler.close()
    assert all(max(abs(a - b) for a, b in zip(logprobs[0], other, strict=True)) > 1e-2 for other in logprobs[1:])
    return Published(model, adapters, logprobs)


def killed_promotion(home: Path, adapter: Path, number: int) -> str:
    """Register and promote an adapter in a process of its own that is killed at the n-th point; the point's name."""
    home.mkdir(exist_ok=True)
    shutil.copytree(adapter, home / "adapter")
    command = [sys.executable, str(PROMOTION), str(home), str(number)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()


async def served_after_restart(home: Path, published: Published) -> int:
    """The version that a starting server comes to serve, checked to be the whole of it."""
    with open_store(home / "practicum.db") as store:
        sampler = EmbeddedSampler(published.model)
        swapper = Swapper(Registry(store, home / "policies"), sampler, poll_s=1.0)
        await swapper.look()
        version = swapper.current().version
        assert swapper.alarm is None and version == store.live_policy().version
        logprobs = await sampler.logprobs(PROMPT, COMPLETION, version=version)
        assert logprobs == pytest.approx(published.logprobs[version], abs=1e-5)
        sampler.close()
        assert len(store.decisions()) == version
    return version


async def test_killed_anywhere_in_a_promotion_the_old_or_the_new_version_is_served(
    published: Published, tmp_path: Path
) -> None:
    numbers = range(1, 15)
    with ThreadPoolExecutor(2) as pool:
        points = list(pool.map(lambda n: killed_promotion(tmp_path / str(n), published.adapters[0], n), numbers))
    assert points[-1] == "finished" and points[-4:-1] == ["registered", "before_commit", "after_commit"]
    served = [await served_after_restart(tmp_path / str(number), published) for number in numbers]
    assert served == [0] * (len(points) - 2) + [1, 1]


# -- an adapter that rots --------------------------------------------------------------------------------------------


def flip_a_byte(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def until_degraded(served: Served) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while (report := served.ready())["status"] != "degraded":
        assert time.monotonic() < deadline, report
        time.sleep(0.02)
    return report


def ask(served: Served, key: str, model: str = "practicum") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=headers, timeout=60, trust_env=False)


@pytest.fixture
def promoted(published: Published, tiny_folder: Path, tmp_path: Path) -> Iterator[tuple[Cli, str]]:
    """A home whose first promotion was killed right after its commit, and a key."""
    home = tmp_path / "home"
    assert killed_promotion(home, published.adapters[0], 13) == "after_commit"
    with open_store(home / "practicum.db") as store:
        yield Cli(home, settings(tiny_folder)), create_key(store, "team", ["sample"])


def test_a_flipped_byte_is_never_served(promoted: tuple[Cli, str], published: Published) -> None:
    cli, key = promoted
    poll = ("--set", "gateway.policy_poll_s=0.05")
    broken = ["version 2 cannot be served: corrupt_artifact"]
    with open_store(cli.home / "practicum.db") as store:
        registry = Registry(store, cli.home / "policies")
        version = registry.register_candidate(published.adapters[1], parent=1).version
        with cli.serving(*poll) as served:
            assert ask(served, key).json()["model"] == "practicum@1", "the promotion was on record, so it counts"
            os.kill(served.process.pid, signal.SIGSTOP)  # it must not look before the byte is flipped
            decide(registry, version, "promote")
            flip_a_byte(cli.home / "policies" / "v2")
            os.kill(served.process.pid, signal.SIGCONT)
            report = until_degraded(served)
            assert report["problems"] == broken and report["serving_version"] == 1 and report["live_version"] == 2
            assert ask(served, key).json()["model"] == "practicum@1"
            pinned = ask(served, key, "practicum@2")
            assert pinned.status_code == 503 and pinned.json()["error"]["code"] == "corrupt_artifact"
        with cli.serving(*poll) as served:
            report = until_degraded(served)
            assert report["problems"] == broken and report["serving_version"] == 1
            assert ask(served, key).json()["model"] == "practicum@1"
            flip_a_byte(cli.home / "policies" / "v2")
            served.wait_for_version(2)
            assert ask(served, key).json()["model"] == "practicum@2" and served.ready()["problems"] == []
        assert {v for call in store.calls() for v in call.versions} == {1, 2}
        third = registry.register_candidate(published.adapters[0], parent=2).version
        flip_a_byte(cli.home / "policies" / f"v{third}")
        with pytest.raises(CorruptArtifact):
            decide(registry, third, "promote")
        assert registry.live().version == 2 and len(registry.decisions()) == 2
