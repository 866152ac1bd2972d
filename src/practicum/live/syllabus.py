"""Tasks from a Python file: what is learned from, and what only judges."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import ConfigError
from practicum.types.rollouts import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Syllabus:
    """Tasks to learn from, and tasks that only judge."""

    train: tuple[Task, ...]
    heldout: tuple[Task, ...]


def load_syllabus(path: Path) -> Syllabus:
    """Lists `TRAIN` and `HELDOUT` of tasks in a Python file. Raises ConfigError naming what is wrong with it."""
    if not path.is_file():
        raise ConfigError(f"train.tasks names {path}, which is not a file.", hint="Give a path to a Python file.")
    spec = importlib.util.spec_from_file_location(f"practicum_tasks_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as Python.", hint="Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file is the team's own code
        raise ConfigError(f"{path} cannot be loaded: {_where(error, path)}.", hint="Mend it and run again.") from error
    train, heldout = (_tasks(getattr(module, name, None), name, path) for name in ("TRAIN", "HELDOUT"))
    counted = Counter(task.task_id for task in (*train, *heldout))
    if twice := [task_id for task_id, times in counted.items() if times > 1]:
        shown = ", ".join(map(repr, twice[:3]))
        raise ConfigError(
            f"{path} gives {len(twice)} task ids more than once: {shown}.",
            hint="Give every task of TRAIN and HELDOUT an id of its own.",
        )
    return Syllabus(train=train, heldout=heldout)


def _tasks(found: object, name: str, path: Path) -> tuple[Task, ...]:
    if not isinstance(found, list | tuple) or not found:
        said = "is empty" if found in ([], ()) else "is missing" if found is None else f"is a {type(found).__name__}"
        raise ConfigError(f"{path}: {name} {said}.", hint=f"Give a list {name} of practicum.types.rollouts.Task.")
    for place, task in enumerate(found):
        if not isinstance(task, Task):
            raise ConfigError(
                f"{path}: {name}[{place}] is a {type(task).__name__}.", hint="Give practicum.types.rollouts.Task."
            )
        if not task.graders:
            raise ConfigError(
                f"{path}: task {task.task_id!r} has no grader, so nothing can be learned from it.",
                hint="Give it `graders`; the first one's first outcome is the reward.",
            )
    return tuple(found)


def _where(error: BaseException, path: Path) -> str:
    """What was raised, and the last line of the file that it passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{type(error).__name__}: {str(error).rstrip('.')}" + (f", in line {lines[-1]}" if lines else "")
