"""Processor time of one rollout of an in-house environment beside the model: `python benchmarks/environments.py`.

A scripted model answers at once; service, gateway, store and the environments' processes are the real ones. All
processes are counted, those that have ended too.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from practicum.capture.stalls import Stalls
from practicum.cli import wiring
from practicum.config import load_config
from practicum.engines.scripted import ScriptedSampler, Step
from practicum.environments import Environment, multi_turn, single_turn
from practicum.environments.shell import jobs
from practicum.gateway import create_app
from practicum.live.workshop import Workshop
from practicum.types.rollouts import Task

GROUP = 8


def one_word(answer: str, task: Mapping[str, object]) -> float:
    return float(answer == "true")


class OneTurn(Environment):
    """A world with a tool that nobody calls."""

    def reset(self, task: Mapping[str, object]) -> str:
        return "Say something."

    def look(self, at: int = 0) -> str:
        """Look at a place."""
        return str(at)

    def verify(self) -> float:
        return float(self.answer == "true")


def main() -> None:
    """Run the kinds of tasks one after the other and print what a rollout of each costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=160)
    parser.add_argument("--sandbox", default="local", help="Kind of sandbox for the commands.")
    chosen = parser.parse_args()
    groups = max(1, chosen.rollouts // GROUP)
    kinds = {
        "a prompt and a verifier": [single_turn(f"s{n}", "Say something.", one_word) for n in range(groups + 1)],
        "a world, one turn, no sandbox": [multi_turn(f"m{n}", OneTurn, {}) for n in range(groups + 1)],
        "a world, one command in a sandbox": jobs("train", groups + 1, kinds=["delete"]),
    }
    settings = {
        "rollouts.run": "16",
        "rollouts.ready": "16",
        "rollouts.sandbox": chosen.sandbox,
        "model.id": "scripted",
    }
    with tempfile.TemporaryDirectory() as home:
        config = load_config(None, {"home": home, **settings})
        stalls = Stalls()
        with wiring.opened(config) as (store, registry):
            sampler = ScriptedSampler(lambda turn: Step(content="true"))
            app = create_app(config, store, registry, sampler, wiring.renderer(config), stalls=stalls)
            service = wiring.rollout_service(config, store, stalls, tasks=Path(__file__))
            with Workshop(app, config.server, service) as workshop:
                figures = {name: cost_ms(workshop, tasks) for name, tasks in kinds.items()}
    print(json.dumps({"cpus": os.cpu_count(), "sandbox": chosen.sandbox, "cpu_ms_per_rollout": figures}, indent=2))


def cost_ms(workshop: Workshop, tasks: Sequence[Task]) -> float:
    """Milliseconds of processor time for each rollout; the first task is only for warming up."""
    wanted = {task.task_id: replace(task, num_samples=GROUP) for task in tasks}
    first = tasks[0].task_id
    workshop.run({first: wanted.pop(first)})
    before = cpu_s()
    ended = [one for results in workshop.run(wanted).values() for one in results]
    if any(one.reward is None for one in ended):
        raise SystemExit(f"A rollout was not scored: {next(one.excluded for one in ended if one.reward is None)}")
    time.sleep(0.2)  # for the last processes to end
    return round(1000 * (cpu_s() - before) / len(ended), 1)


def cpu_s() -> float:
    """Processor time of this process and all below it, and of those among them that have ended."""
    this = psutil.Process()
    times = [one.cpu_times() for one in (this, *this.children(recursive=True))]
    return float(sum(t.user + t.system + t.children_user + t.children_system for t in times))


if __name__ == "__main__":
    main()
