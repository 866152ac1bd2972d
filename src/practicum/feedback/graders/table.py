"""The table of graders: from the name that a task uses to what makes a grader of the task's options.

What a task may not decide is decided here, by whoever runs the service: which folder the files of graders lie in (a
task that could name any file could run any code), and which endpoint judges, with whose key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import UsageError
from practicum.feedback.graders.exit_status import ExitStatusGrader
from practicum.feedback.graders.grader import Grader
from practicum.feedback.graders.harbor import HarborGrader
from practicum.feedback.graders.python_file import PythonGrader
from practicum.feedback.graders.rubric import Judge, RubricGrader

__all__ = ["GraderSettings", "Judge", "graders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderSettings:
    """`folder` holds graders' Python files and Harbor tasks; None allows none. `judge` scores rubrics."""

    folder: Path | None = None
    judge: Judge | None = None


def graders(settings: GraderSettings) -> Mapping[str, Callable[[Mapping[str, Any]], Grader]]:
    """A maker for each kind of grader. Each raises UsageError for options that do not fit."""

    def python(given: Mapping[str, Any]) -> Grader:
        return PythonGrader(given, _within(settings, given))

    def harbor(given: Mapping[str, Any]) -> Grader:
        return HarborGrader(given, _within(settings, given))

    def rubric(given: Mapping[str, Any]) -> Grader:
        if settings.judge is None:
            raise UsageError("No judge is configured.", hint="Set `rollouts.judge_url` and `rollouts.judge_model`.")
        return RubricGrader(given, settings.judge)

    return {"exit_status": ExitStatusGrader, "python": python, "harbor": harbor, "rubric": rubric}


def _within(settings: GraderSettings, given: Mapping[str, Any]) -> Path:
    """The folder of graders. Raises UsageError where there is none, or where the option `path` leads outside it."""
    if settings.folder is None:
        raise UsageError("No folder of graders is configured.", hint="Set `rollouts.graders_folder`.")
    folder = settings.folder.resolve()
    path = str(given.get("path", ""))
    found = (folder / path).resolve()
    if not path or not found.is_relative_to(folder) or not found.exists():
        raise UsageError(f"There is no {path[:200]!r} in the folder of graders.", param="path")
    return folder
