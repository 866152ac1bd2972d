"""Tasks of in-house environments, as the rollout service takes them.

    TRAIN = [single_turn("t1", "Say one word.", one_word, max_tokens=16)]
    HELDOUT = [multi_turn("l1", Ledger, {"rows": [1, 2]}, max_tokens=64)]

A task names its verifier or its class by file or module, so that another process can load it. Importing this must stay
cheap: the environment's own process does.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypedDict, Unpack

from practicum.environments.environment import Environment
from practicum.errors import UsageError
from practicum.types.rollouts import Task, Timeouts

NAME = "environment"
Verifier = Callable[[str, Mapping[str, Any]], float | Mapping[str, float]]
_LABEL_CHARS = 200


class Sampling(TypedDict, total=False):
    """How completions are sampled. `more` holds further fields of the chat request (`response_format`, say)."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    stop: Sequence[str]
    more: Mapping[str, Any]


class Settings(Sampling, total=False):
    """What both kinds of tasks take beside: see `practicum.types.rollouts.Task` for the last five."""

    system: str | None
    seed: int | None
    tool_timeout_s: float
    files: Mapping[str, str]
    timeouts: Timeouts
    num_samples: int
    role: str
    model: str | None


def single_turn(
    task_id: str,
    prompt: str | Sequence[Mapping[str, Any]],
    verifier: Verifier | str,
    *,
    data: Mapping[str, Any] | None = None,
    grader: Mapping[str, Any] | None = None,
    **settings: Unpack[Settings],
) -> Task:
    """A prompt, one answer, and a verifier of it.

    Args:
        task_id: unique; groups are formed by it.
        prompt: the user's message, or chat messages in OpenAI's form.
        verifier: `(answer, task) -> float` or named numbers, at the top of a file or module; or where it stands,
            `/path/file.py:name` or `module:name`. It gets `data`, and the prompt under `prompt`.
        data: what the verifier needs to know; JSON.
        grader: options of the grader `environment`: `timeout_s`, `when_failed`, `main`.
        settings: `max_tokens`, `temperature` and the like; `system`; `seed`, from which every call's seed comes.

    Raises: UsageError naming what cannot be used.
    """
    messages = prompt if isinstance(prompt, str) else [dict(one) for one in prompt]
    label = prompt if isinstance(prompt, str) else str(prompt[-1].get("content", "")) if prompt else ""
    task = {"prompt": messages, **(data or {})}
    return _task(task_id, label, where_it_stands(verifier), task, grader, settings)


def multi_turn(
    task_id: str,
    environment: type[Environment] | str,
    task: Mapping[str, Any] | None = None,
    *,
    max_turns: int | None = None,
    grader: Mapping[str, Any] | None = None,
    **settings: Unpack[Settings],
) -> Task:
    """An episode in an environment.

    Args:
        task_id: unique; groups are formed by it.
        environment: the class, at the top of a file or module; or where it stands, as in `single_turn`.
        task: what its `reset` is given; JSON.
        max_turns: most model calls, where not the class's own.
        grader: options of the grader `environment`.
        settings: as in `single_turn`.

    Raises: UsageError naming what cannot be used.
    """
    place = where_it_stands(environment)
    shown = json.dumps(task or {}, ensure_ascii=False, default=str)
    label = f"{place.rpartition(':')[2]} {shown}"
    label = label if len(label) <= _LABEL_CHARS else label[: _LABEL_CHARS - 1] + "…"
    return _task(task_id, label, place, dict(task or {}), grader, settings, max_turns)


def where_it_stands(code: object) -> str:
    """`/path/file.py:name`, or `module:name` of an importable module. Raises UsageError for what has no such place."""
    if isinstance(code, str):
        return code
    name = getattr(code, "__qualname__", "")
    if not name or "<" in name:
        raise UsageError(
            f"{code!r} cannot be loaded by another process.",
            hint="Give a class or a function that stands at the top of a file, not a lambda.",
        )
    module = str(getattr(code, "__module__", ""))
    try:
        file = inspect.getsourcefile(code)  # type: ignore[arg-type]
    except TypeError:
        file = None
    if file is None or not Path(file).is_file():
        raise UsageError(
            f"{name} does not stand in a file.", hint="Write it to a file: another process has to load it."
        )
    if module != "__main__" and _origin(module) == file:
        return f"{module}:{name}"
    return f"{Path(file).resolve()}:{name}"


def _origin(module: str) -> str | None:
    """The file that another process would find under a module's name: what is loaded here already does not count."""
    path: Sequence[str] | None = None
    spec, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return spec.origin if spec else None


def _task(
    task_id: str,
    label: str,
    environment: str,
    task: Mapping[str, Any],
    grader: Mapping[str, Any] | None,
    settings: Settings,
    max_turns: int | None = None,
) -> Task:
    try:
        json.dumps(task, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The data of task {task_id!r} is no JSON: {error}.", hint="Give texts, numbers, lists and dictionaries."
        ) from None
    given: dict[str, Any] = {**settings}
    more = given.pop("more", {})
    sampling = {name: given.pop(name) for name in Sampling.__annotations__ if name in given}
    if "stop" in sampling:
        sampling["stop"] = list(sampling["stop"])
    options = {"environment": environment, "task": dict(task), "sampling": {**sampling, **more}, "max_turns": max_turns}
    options |= {name: given.pop(name) for name in ("system", "seed", "tool_timeout_s") if name in given}
    return Task(
        task_id=task_id,
        instructions=(label or task_id,),
        harness=NAME,
        options={name: value for name, value in options.items() if value is not None},
        graders={NAME: dict(grader or {})},
        **given,
    )
