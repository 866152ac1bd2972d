"""A world for connectors' tests: the real service, gateway and processes, and a scripted policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.harnesses.rollout_world import World

from practicum.engines.scripted import ScriptedSampler, Step, Turn
from practicum.environments.grader import EnvironmentGrader
from practicum.environments.harness import EnvironmentHarness
from practicum.environments.places import Allowed
from practicum.feedback.graders import GraderSettings, graders
from practicum.harnesses.registry import ADAPTERS
from practicum.store import open_store
from practicum.types.rollouts import Task


async def rolled_out(
    home: Path, policy: Callable[[Turn], Step], task: Task, *, folder: Path | None = None, **options: Any
) -> list[Any]:
    """The results of a task's rollouts. `folder` holds graders, `options` are the world's."""
    harness = EnvironmentHarness(Allowed(folders=(home,), modules=True))
    with open_store(home / "practicum.db") as store:
        async with World(
            home,
            store,
            sampler=ScriptedSampler(policy),
            harnesses={"environment": harness, "python": ADAPTERS["python"](), "command": ADAPTERS["command"]()},
            graders={
                "environment": partial(EnvironmentGrader, harness),
                **graders(GraderSettings(folder=folder)),
            },
            **options,
        ) as world:
            return await world.service.collect(await world.service.submit(task))


def says(text: Callable[[str], str] | str) -> Callable[[Turn], Step]:
    """A policy that answers the last message."""
    return lambda turn: Step(content=text if isinstance(text, str) else text(str(turn.messages[-1][1])))
