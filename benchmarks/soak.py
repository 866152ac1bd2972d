"""A long run in miniature: groups of rollouts with faults on order, of which none may be lost, leak or go unaccounted.

    python benchmarks/soak.py                  2,000 groups
    python benchmarks/soak.py --steps 15       60 groups

A small random model learns from an environment whose processes crash, whose verifier hangs, raises or says what is no
number, whose tool calls cannot be read, whose reset fails, whose rewards are all alike; and groups are called off while
they run. At the end every group that was asked for must be on record with its end, the run's report must account for
every rollout of every step by its reason, and no process, folder or thread may be left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.serving import write_results
from benchmarks.soak_tasks import SCRIPTS, SHARES
from benchmarks.tiny_model import tiny_model

from practicum.capture.stalls import Stalls
from practicum.cli import wiring
from practicum.config import Config, load_config
from practicum.dashboard import build
from practicum.engines.embedded.sampler import EmbeddedSampler
from practicum.gateway import create_app
from practicum.harnesses.results import RolloutResult
from practicum.live.prompts import PromptBook
from practicum.live.syllabus import load_syllabus
from practicum.live.training import Training
from practicum.live.workshop import Workshop
from practicum.policies import Registry
from practicum.store import Store, open_store
from practicum.types.rollouts import Task
from practicum.types.tokens import SampleRequest, TokenChunk

TASKS = Path(__file__).with_name("soak_tasks.py")
GROUPS, SAMPLES = 4, 2


class Scripted:
    """The engine as it is, but where a prompt has a word of `scripts` (ids to ids): there it is made to write that.

    The ids are forced; their logprobs are the policy's own. `written` counts them, by their place in the table.
    """

    def __init__(self, engine: EmbeddedSampler, scripts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        self._engine = engine
        self._scripts = [(tuple(word), tuple(text)) for word, text in scripts]
        self.written: Counter[int] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def sample(self, request: SampleRequest) -> AsyncIterator[TokenChunk]:
        prompt = request.prompt_ids
        chosen = next((at for at, (word, _) in enumerate(self._scripts) if _holds(prompt, word)), None)
        if chosen is None:
            async for chunk in self._engine.sample(request):
                yield chunk
            return
        self.written[chosen] += 1
        _, text = self._scripts[chosen]
        values = await self._engine.logprobs(
            prompt, text, version=request.version, temperature=request.params.scoring_temperature
        )
        yield TokenChunk(
            ids=text,
            logprobs=tuple(values),
            sampled_logprobs=tuple(values),
            version=request.version,
            finish_reason="stop",
        )


def _holds(ids: Sequence[int], word: Sequence[int]) -> bool:
    return any(ids[at : at + len(word)] == word for at in range(len(ids)))


class CallsOff:
    """Rollouts whose groups of one kind are called off while they run."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workshop, name)

    def run(self, tasks: Mapping[str, Task]) -> dict[str, list[RolloutResult]]:
        self._workshop.submit(tasks)
        for key, task in tasks.items():
            if task.task_id.endswith("cancelled"):
                self._workshop.cancel(key, task)
        return self._workshop.run(tasks)


def main() -> None:
    """Run it, check it, and write down what became of everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help=f"Steps of {GROUPS} groups.")
    parser.add_argument("--staleness", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = soak(Path(folder), steps=chosen.steps, staleness=chosen.staleness)
    for name, value in figures.items():
        print(f"{name}: {value}")
    write_results("soak", figures)
    if figures["faults"]:
        raise SystemExit(1)


def soak(folder: Path, *, steps: int, staleness: int) -> dict[str, Any]:
    """Figures, among them `faults`: everything that is not as it must be."""
    process = psutil.Process()
    began = time.monotonic()
    before = set(process.children(recursive=True))
    config = _config(folder, steps, staleness)
    with open_store(config.store_path) as store:
        run_id, written = _train(config, store)
        report = build(store, Registry(store, config.policies_dir), run_id)
        groups = [store.get_group(group.group_id) for group in store.groups(limit=1_000_000)]
    trained = [group for group in groups if not group.task.task_id.startswith("heldout")]
    rollouts = [one for group in trained for one in group.rollouts]
    causes = Counter(str(one.cause) for one in rollouts)
    told = dict(report.work.rollouts)
    new = [child for child in process.children(recursive=True) if child not in before]
    left = [child for child in new if child.status() != psutil.STATUS_ZOMBIE]
    checks = {
        f"{steps * GROUPS} groups are on record, not {len(trained)}": len(trained) == steps * GROUPS,
        "a rollout has not ended": all(one.state == "ended" for one in rollouts),
        f"the report tells of {sum(told.values())} rollouts of {len(rollouts)}": sum(told.values()) == len(rollouts),
        f"{len(left)} processes are left": not left,
        "not every fault was asked for": all(
            any(group.task.task_id.endswith(f" {fault}") for group in trained) for fault in SHARES
        ),
        "not every script was played": len(written) == len(SCRIPTS),
        "a group that was called off has another end": all(
            one.cause == "cancelled"
            for group in trained
            if group.task.task_id.endswith("cancelled")
            for one in group.rollouts
        ),
    }
    return {
        "groups": len(trained),
        "rollouts": len(rollouts),
        "steps": steps,
        "max_staleness": staleness,
        "wall_s": round(time.monotonic() - began, 1),
        "causes": dict(causes.most_common()),
        "lost_attempts": dict(Counter(str(lost.cause) for one in rollouts for lost in one.attempts)),
        "report": told,
        "largest_mean_logprob_gap": max(step.get("logprob_gap", 0.0) for step in report.log),
        "peak_mb": round(process.memory_info().rss / 2**20),
        "faults": [fault for fault, held in checks.items() if not held],
    }


def _config(folder: Path, steps: int, staleness: int) -> Config:
    settings = {
        "home": str(folder / "home"),
        "model.id": str(tiny_model(folder / "model")),
        "model.threads": "1",
        "model.parser": "hermes",
        "learn.replay_rows": "0",
        "learn.max_kl": "100",
        "train.tasks": str(TASKS),
        "train.steps": str(steps),
        "train.groups": str(GROUPS),
        "train.samples": str(SAMPLES),
        "train.max_staleness": str(staleness),
        "train.learning_rate": "1e-4",
        "train.gate": "false",
        "train.max_idle_steps": "1000000",
        "rollouts.sandbox": "local",
        "rollouts.run": "8",
        "rollouts.ready": "8",
        "rollouts.attempts": "2",
    }
    return load_config(None, settings, environ={})


def _train(config: Config, store: Store) -> tuple[str, Counter[int]]:
    registry, stalls = Registry(store, config.policies_dir), Stalls()
    bench, renderer = wiring.workbench(config), wiring.renderer(config)
    tokenizer = renderer.tokenizer
    ends = tokenizer.encode(tokenizer.eos)
    engine: Any = Scripted(
        bench.sampler,  # type: ignore[arg-type]
        [(tokenizer.encode(f" {word}"), [*tokenizer.encode_plain(text), *ends]) for word, text in SCRIPTS.items()],
    )
    app = create_app(config, store, registry, engine, renderer, stalls=stalls)
    service = wiring.rollout_service(config, store, stalls, tasks=TASKS)
    try:
        with Workshop(app, config.server, service) as workshop:
            run_id, _ = Training(
                store=store,
                registry=registry,
                config=config,
                prompts=PromptBook(renderer, 64),
                syllabus=load_syllabus(TASKS),
                rollouts=CallsOff(workshop),
                workbench=lambda: bench,
                progress=_told,
            ).run()
    finally:
        bench.close()  # type: ignore[attr-defined]
    return run_id, engine.written


def _told(stage: str, done: int, total: int, figures: Mapping[str, Any]) -> None:
    if done % 25 == 0 or done == total:
        print(f"{stage}: {done}/{total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
