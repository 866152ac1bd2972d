"""Does anybody notice a swap? Twenty streams run on while three versions are promoted and one is rolled back.

    python benchmarks/swap_under_load.py

The decisions are made in this process, as `practicum release` makes them; the server runs in another and learns of them
from the store. It is `practicum serve` with a stopwatch around the engine's step, so that every pause between two
chunks of a stream can be set against what the engine was doing: the rest is `unexplained`. The second part measures how
long the first token and the next one take while a training process runs beside the server.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.serving import Served, decide, percentile, serving, train_adapters, write_results

from practicum.config import Config, load_config
from practicum.engines.embedded.threads import configure_threads
from practicum.policies import Registry
from practicum.store import create_key, open_store
from practicum.types.policies import DecisionVerdict

MOST_UNEXPLAINED_S = 2.0
STREAMS = 20
_STEP = struct.Struct("<dd")
# Begin and end in monotonic seconds.
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """One stream: when it was asked for and when each chunk of text came, in monotonic seconds."""

    version: int
    asked_at: float
    chunks: tuple[float, ...]

    @property
    def first_s(self) -> float:
        return self.chunks[0] - self.asked_at

    @property
    def gaps(self) -> list[Span]:
        return list(zip(self.chunks, self.chunks[1:], strict=False))


@dataclass(slots=True)
class Load:
    """Streams that follow each other until `over`, and what came of them."""

    url: str
    key: str
    max_tokens: int
    over: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)
    answers: list[Answer] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def run(self, streams: int) -> None:
        limits = httpx.Limits(max_connections=streams + 2)
        headers = {"authorization": f"Bearer {self.key}"}
        async with (
            httpx.AsyncClient(base_url=self.url, headers=headers, timeout=600, limits=limits, trust_env=False) as http,
            asyncio.TaskGroup() as group,
        ):
            for number in range(streams):
                group.create_task(self._caller(http, number))

    async def more(self, count: int, timeout_s: float = 600.0) -> None:
        """Wait until `count` further answers are whole."""
        goal = len(self.answers) + count
        async with asyncio.timeout(timeout_s), self.moved:
            await self.moved.wait_for(lambda: len(self.answers) >= goal or bool(self.errors))

    async def _caller(self, http: httpx.AsyncClient, number: int) -> None:
        turn = 0
        while not self.over.is_set():
            try:
                self.answers.append(await self._answer(http, f"Stream {number}, message {turn}: where is my parcel?"))
            except Exception as error:  # every error is a finding
                self.errors.append(f"{type(error).__name__}: {error}")
                return
            finally:
                async with self.moved:
                    self.moved.notify_all()
            turn += 1

    async def _answer(self, http: httpx.AsyncClient, ask: str) -> Answer:
        body = {"model": "practicum", "messages": [{"role": "user", "content": ask}], "stream": True}
        asked_at, chunks, ended = time.monotonic(), [], False
        async with http.stream("POST", "/v1/chat/completions", json={**body, "max_tokens": self.max_tokens}) as reply:
            if reply.status_code != 200:
                raise RuntimeError(f"status {reply.status_code}: {(await reply.aread()).decode()}")
            version = int(reply.headers["x-practicum-version"])
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise RuntimeError(event["error"]["message"])
                    if event["model"] != f"practicum@{version}":
                        raise RuntimeError(f"an answer of version {version} went on as {event['model']}")
                    chunks.append(time.monotonic())
                ended = ended or line == "data: [DONE]"
        if not ended:
            raise RuntimeError("a stream ended without [DONE]")
        return Answer(version, asked_at, tuple(chunks))


# -- what the engine did ---------------------------------------------------------------------------------------------


class Steps:
    """The engine's steps, as the stopwatch wrote them: begin and end in monotonic seconds, ascending."""

    def __init__(self, file: Path) -> None:
        raw = file.read_bytes()
        self.times: list[Span] = list(_STEP.iter_unpack(raw[: len(raw) - len(raw) % _STEP.size]))
        self._ends = [end for _, end in self.times]

    def within(self, began: float, ended: float) -> float:
        """Seconds of [began, ended] that the engine spent in steps."""
        total = 0.0
        for start, end in self.times[bisect.bisect_left(self._ends, began) :]:
            if start >= ended:
                break
            total += min(end, ended) - max(start, began)
        return total


def serve_with_stopwatch(file: Path, arguments: Sequence[str]) -> None:
    """`practicum serve`, whose engine writes down when each of its steps began and ended."""
    configure_threads(1)
    from practicum.cli.main import app
    from practicum.engines.embedded import sampler
    from practicum.engines.embedded.decode import Scheduler

    with file.open("wb", buffering=0) as out:

        class Timed(Scheduler):
            def step(self) -> None:
                began = time.monotonic()
                super().step()
                out.write(_STEP.pack(began, time.monotonic()))

        sampler.Scheduler = Timed  # type: ignore[attr-defined]
        app(["serve", *arguments])


@contextmanager
def stopwatch_server(home: Path, steps: Path, *options: str) -> Iterator[Served]:
    command = (sys.executable, str(Path(__file__).resolve()), "--stopwatch", str(steps))
    with serving(home, *options, command=command) as up:
        yield up


# -- part one: swaps -------------------------------------------------------------------------------------------------


async def swap(
    load: Load, up: Served, registry: Registry, versions: Sequence[int], streams: int
) -> tuple[list[str], list[Span]]:
    """Promote every version in turn, then roll back to the last but one, with the streams running throughout.

    Returns the moves, and for each the time from the decision until the version was served.
    """
    moves: list[tuple[int, DecisionVerdict]] = [(version, "promote") for version in versions]
    moves.append((versions[-2], "rollback"))
    windows = []
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(streams))
        await load.more(streams)
        for version, verdict in moves:
            began = time.monotonic()
            await asyncio.to_thread(decide, registry, version, verdict)
            await asyncio.to_thread(up.wait_for_version, version)
            windows.append((began, time.monotonic()))
            await load.more(streams)
        load.over.set()
    return [f"{verdict} {version}" for version, verdict in moves], windows


def swaps(home: Path, key: str, model: Any, options: Sequence[str], *, streams: int, max_tokens: int) -> dict[str, Any]:
    """Part one, whole: adapters, server, streams, decisions, and the pauses set against the engine's steps."""
    with open_store(home / "practicum.db") as store, tempfile.TemporaryDirectory() as place:
        registry = Registry(store, home / "policies")
        adapters = train_adapters(model, Path(place), 3)
        versions = [registry.register_candidate(adapter, parent=0).version for adapter in adapters]
        steps = Path(place) / "steps"
        with stopwatch_server(home, steps, *options) as up:
            load = Load(up.url, key, max_tokens)
            moves, windows = asyncio.run(swap(load, up, registry, versions, streams))
            still_up = up.process.poll() is None
        engine = Steps(steps)
        mixed = sum(set(call.versions) != {call.policy_version} for call in store.calls(status="complete"))
    return {
        "moves": moves,
        "seconds_until_served": [round(ended - began, 3) for began, ended in windows],
        "streams": streams,
        "answers": len(load.answers),
        "errors": load.errors + ([] if still_up else ["the server stopped"]),
        "answers_with_tokens_of_two_versions": mixed,
        "answers_by_version": dict(sorted(Counter(answer.version for answer in load.answers).items())),
        "first_chunk_s": spread([answer.first_s for answer in load.answers]),
        **pauses(load.answers, engine, windows),
    }


def pauses(answers: Sequence[Answer], engine: Steps, windows: Sequence[Span]) -> dict[str, Any]:
    """Each stream's largest pause, every pause less the engine's steps, and both beside a swap and away from one."""
    gaps = [gap for answer in answers for gap in answer.gaps]
    figures: dict[str, Any] = {
        "largest_gap_per_stream_s": spread(
            [max(width(gap) for gap in answer.gaps) for answer in answers if answer.gaps]
        ),
        "unexplained_gap_s": spread([width(gap) - engine.within(*gap) for gap in gaps]),
    }
    for name, wanted in (("while_a_version_is_loaded", True), ("otherwise", False)):
        figures[name] = {
            "gap_s": spread([width(gap) for gap in gaps if overlaps(gap, windows) == wanted]),
            "engine_step_s": spread([width(step) for step in engine.times if overlaps(step, windows) == wanted]),
        }
    return figures


def width(span: Span) -> float:
    return span[1] - span[0]


def overlaps(span: Span, windows: Sequence[Span]) -> bool:
    return any(span[0] < ended and began < span[1] for began, ended in windows)


def spread(values: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the largest, in seconds."""
    return {
        "p50": round(percentile(values, 0.5), 4),
        "p99": round(percentile(values, 0.99), 4),
        "max": round(max(values, default=float("nan")), 4),
    }


# -- part two: training beside ---------------------------------------------------------------------------------------


def train_beside(folder: Path, priority: str) -> None:
    """Train for ever with one thread, at `low` priority as `practicum learn --background` does, or at `equal` priority.

    Prints a line a step: the processor seconds of this process so far.
    """
    configure_threads(1)
    from practicum.cli.wiring import lower_priority
    from practicum.engines.embedded import models
    from practicum.engines.embedded.settings import TrainerSettings
    from practicum.engines.embedded.trainer import EmbeddedTrainer
    from practicum.types.training import Datum

    if priority == "low":
        lower_priority()
    model, _ = models.load(folder)
    trainer = EmbeddedTrainer(model, settings=TrainerSettings(threads=1))
    row = {"prompt_ids": tuple(range(3, 35)), "completion_ids": tuple(range(40, 72)), "weights": (1 / 64,) * 32}
    rows = [Datum(row_id=str(number), **row) for number in range(2)]  # type: ignore[arg-type]
    step = 0
    while True:
        trainer.forward_backward(rows, "cross_entropy", key=f"{step}")
        trainer.optim_step(learning_rate=1e-4, key=f"{step}.step")
        step += 1
        print(time.process_time(), flush=True)


async def _under(load: Load, streams: int, answers: int) -> list[Answer]:
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(streams))
        await load.more(answers)
        load.over.set()
    if load.errors:
        raise RuntimeError(load.errors[0])
    return load.answers


def responsiveness(
    home: Path, key: str, folder: Path, options: Sequence[str], *, streams: int = 4, answers: int = 32
) -> dict[str, Any]:
    """Time to the first chunk and between chunks: alone, and with training beside at two priorities.

    On a machine that others use too, a process of low priority may hardly run; training at equal priority is no way
    that Practicum works, and bounds what a learner could do to serving.
    """

    def measured(url: str) -> dict[str, Any]:
        done = asyncio.run(_under(Load(url, key, 24), streams, answers))
        gaps = [width(gap) for answer in done for gap in answer.gaps]
        first = spread([answer.first_s for answer in done])
        return {"answers": len(done), "first_chunk_s": first, "between_chunks_s": spread(gaps)}

    with serving(home, *options, "--set", "model.threads=1") as up:
        measured(up.url)  # warm
        found = {"streams": streams, "alone": measured(up.url)}
        for priority in ("low", "equal"):
            with training(folder, priority) as work:
                found[f"training_beside_at_{priority}_priority"] = figures = measured(up.url)
            figures["training"] = work
    return found


@contextmanager
def training(folder: Path, priority: str) -> Iterator[dict[str, float]]:
    """A training process beside; what it came to do is in the mapping afterwards."""
    command = [sys.executable, str(Path(__file__).resolve()), "--train-beside", str(folder), priority]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    work: dict[str, float] = {}
    try:
        before_s = float(trainer.stdout.readline())  # it trains
        began, spent_s = time.monotonic(), _children_s()
        yield work
        if trainer.poll() is not None:
            raise RuntimeError(f"training stopped with status {trainer.returncode}")
    finally:
        ended = time.monotonic()
        trainer.kill()
        steps = len(trainer.communicate()[0].splitlines())
    work |= {"wall_s": ended - began, "processor_s": _children_s() - spent_s - before_s, "steps": steps}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -- the command -----------------------------------------------------------------------------------------------------


def measure(config: Config, options: Sequence[str], streams: int, max_tokens: int) -> dict[str, Any]:
    configure_threads(1)
    from practicum.engines.embedded import models

    folder = models.resolve(config.model.id, config.model.cache_path)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place) / "home"
        with open_store(home / "practicum.db") as store:
            key = create_key(store, "benchmark", ["sample"])
        model, _ = models.load(folder)
        swapped = swaps(home, key, model, options, streams=streams, max_tokens=max_tokens)
        del model
        return {"swaps": swapped, "responsiveness": responsiveness(home, key, folder, options)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="TOML file")
    parser.add_argument("--model", help="a name, a folder or a hub id; default the configured one")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--max-tokens", type=int, default=24)
    chosen = parser.parse_args()
    options = ["--config", str(chosen.config)] if chosen.config else []
    options += ["--model", chosen.model] if chosen.model else []
    config = load_config(chosen.config, {"model.id": chosen.model} if chosen.model else {})
    figures = measure(config, options, chosen.streams, chosen.max_tokens)
    print(json.dumps(figures, indent=2))
    print(write_results("swap_under_load", figures))
    swapped = figures["swaps"]
    fine = not swapped["errors"] and swapped["unexplained_gap_s"]["max"] <= MOST_UNEXPLAINED_S
    return 0 if fine and not swapped["answers_with_tokens_of_two_versions"] else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stopwatch"]:
        serve_with_stopwatch(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:2] == ["--train-beside"]:
        train_beside(Path(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(main())
