"""Rollouts of in-house environments under the real service and gateway, with a scripted model and real processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from tests.integration.environments import ledger
from tests.integration.harnesses.rollout_world import World

from practicum.engines.scripted import ScriptedCall, ScriptedSampler, Step, Turn, play
from practicum.environments.grader import EnvironmentGrader
from practicum.environments.harness import EnvironmentHarness
from practicum.environments.places import Allowed
from practicum.harnesses.results import RolloutResult
from practicum.store import Store, open_store
from practicum.types.rollouts import Task

HERE = Path(ledger.__file__).parent
Script = Sequence[Step] | Callable[[Turn], Step]


def world(home: Path, store: Store, script: Script, *, context_length: int = 32_768, **options: Any) -> World:
    """A service that plays environments of these tests' folder and of `home`."""
    harness = EnvironmentHarness(Allowed(folders=(home, HERE), modules=True))
    policy = script if callable(script) else play(script)
    return World(
        home,
        store,
        sampler=ScriptedSampler(policy, context_length=context_length),
        harnesses={"environment": harness},
        graders={"environment": partial(EnvironmentGrader, harness)},
        **options,
    )


async def played(home: Path, script: Script, task: Task, **options: Any) -> list[RolloutResult]:
    """The results of a task; afterwards no process of it is left."""
    with open_store(home / "practicum.db") as store:
        async with world(home, store, script, **options) as made:
            ended = await made.service.collect(await made.service.submit(task))
            assert rollout_processes() == []
        assert forkers() == []
    return ended


def call(name: str, **arguments: Any) -> Step:
    """A turn that calls one tool."""
    return Step(tool_calls=[ScriptedCall(name=name, arguments=arguments)])


def forkers() -> list[psutil.Process]:
    """This process's forkers."""
    return [one for one in _below(psutil.Process()) if _is_forker(one) and not _is_forker(one.parent())]


def rollout_processes() -> list[psutil.Process]:
    """What rollouts run: all below a forker, and what was left behind by one."""
    found = [below for forker in forkers() for below in _below(forker)]
    return found + [one for one in psutil.process_iter() if _arguments(one)[:1] == ["sleep"] and _left(one)]


def _left(process: psutil.Process) -> bool:
    return ledger.LEFT in _arguments(process) and process.uids().real == os.getuid()


def _is_forker(process: psutil.Process | None) -> bool:
    return process is not None and any(word.endswith("environments/forker.py") for word in _arguments(process))


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
