"""Tasksets and environments of `verifiers` (0.4, its v1), unmodified, as tasks.

    TRAIN = tasks("my-taskset", 64, python=".venv-verifiers/bin/python", sampling={"max_tokens": 256})

An episode is the library's own from end to end: its environment, its harness, its tools' servers, its rewards, in a
process of the rollout's sandbox, which calls the gateway as the library calls any model. So nothing is translated, and
what is recorded is what the environment's authors meant. `verifiers_program` says the rest.

`python` is the interpreter that has verifiers and the taskset. It may be one of its own, and mostly has to: the
library pins its dependencies more narrowly than Practicum does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.errors import MissingExtra, UsageError
from practicum.types.rollouts import Task, Timeouts

_PROGRAM = Path(__file__).with_name("verifiers_program")
_TASK, _REWARD = "verifiers_task.json", "verifiers_reward.json"
_LIST_S = 600.0


def tasks(
    taskset: str,
    size: int,
    *,
    skip: int = 0,
    seed: int | None = None,
    python: str | Path = sys.executable,
    path: Sequence[str | Path] = (),
    config: Mapping[str, Any] | None = None,
    env: str = "",
    env_config: Mapping[str, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
    max_turns: int | None = None,
    timeouts: Timeouts | None = None,
    **settings: Any,
) -> list[Task]:
    """`size` tasks of a taskset, from `skip` on: give HELDOUT another `skip` than TRAIN.

    Args:
        taskset: its id, as the library imports it.
        size: how many.
        skip: how many to pass over.
        seed: shuffles the taskset first, where it is finite; None keeps its order.
        python: the interpreter that has verifiers.
        path: folders that it imports the taskset from, where that is not installed.
        config: the taskset's own settings.
        env: the id of an environment to pair it with; empty is the taskset's own, or the library's single agent.
        env_config: the environment's own settings, its agent's harness and runtime among them. If the taskset brings
            no harness, the agent is the library's plain chat loop with the task's tools.
        sampling: fields of the chat request, over the harness's own.
        max_turns: most model calls.
        timeouts: as a task has them.
        settings: further fields of `practicum.types.rollouts.Task`.

    Raises: MissingExtra where `python` has no verifiers; UsageError with what the library says.
    """
    asked = {
        "taskset": taskset, "config": dict(config or {}), "env": env, "env_config": dict(env_config or {}),
        "max_turns": max_turns,
    }  # fmt: skip
    folders = [str(Path(folder).absolute()) for folder in path]
    chosen = _list(str(python), folders, {**asked, "size": size, "skip": skip, "seed": seed})
    if len(chosen) < size:
        raise UsageError(f"The taskset {taskset!r} has {len(chosen)} tasks from {skip} on, not {size}.", param="size")
    play = {**asked, "sampling": dict(sampling or {})}
    options = {"python": str(python), "script": [str(_PROGRAM), "play", _TASK], "path": folders}
    settings = {"timeouts": timeouts or Timeouts(), **settings}
    return [_task(taskset, options, play, one, settings) for one in chosen]


def _task(
    taskset: str,
    options: Mapping[str, Any],
    play: Mapping[str, Any],
    data: dict[str, Any],
    settings: Mapping[str, Any],
) -> Task:
    prompt = data.pop("practicum_prompt")
    name = data["id"] or data["name"] or data["idx"]
    return Task(
        task_id=f"{taskset}/{name}",
        instructions=(prompt or str(name),),
        harness="python",
        options=options,
        files={_TASK: json.dumps({**play, "task": data})},
        graders={"exit_status": {"command": ["cat", _REWARD], "reward": "printed"}},
        **settings,
    )


def _list(python: str, path: Sequence[str], asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        found = subprocess.run(
            [python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('verifiers') is None)"],
            check=False, capture_output=True, timeout=_LIST_S,
        )  # fmt: skip
        if found.returncode != 0:
            raise MissingExtra(
                f"{python} has no verifiers.",
                hint=f"Install it: {python} -m pip install 'verifiers>=0.4'; or name another interpreter as `python`.",
            )
        said = subprocess.run(
            [python, str(_PROGRAM), "list"],
            input=json.dumps(asked), check=False, capture_output=True, text=True, timeout=_LIST_S,
            env={**os.environ, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})},
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{python} cannot be run: {error}.", param="python") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{asked['taskset']} did not list its tasks within {_LIST_S:g} s.") from error
    if said.returncode != 0:
        reason = (said.stderr.strip().splitlines() or [f"exit status {said.returncode}"])[-1]
        raise UsageError(f"verifiers cannot list the tasks of {asked['taskset']!r}: {reason}", param="taskset")
    return [json.loads(line) for line in said.stdout.splitlines()]
