"""Verifiers that a team supplies for its held-out answers: a Python file with a table `GRADERS`.

Each grader takes an `Answer` and returns True or False, a number in [0, 1], or None where it does not apply. The file
is the team's own code and runs in this process; a grader that raises is an error that names it, never a zero.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import ConfigError, PracticumError
from practicum.types.tokens import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a grader sees: the answer's text without markup, how it ended, and the last user message before it."""

    text: str
    finish_reason: FinishReason
    question: str = ""


Grader = Callable[[Answer], "bool | float | None"]


def load_graders(path: Path) -> Mapping[str, Grader]:
    """The `GRADERS` table of a Python file. Raises ConfigError if the file or the table is missing."""
    if not path.is_file():
        raise ConfigError(f"evals.graders names {path}, which is not a file.", hint="Give a path to a Python file.")
    spec = importlib.util.spec_from_file_location(f"practicum_graders_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as Python.", hint="Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = getattr(module, "GRADERS", None)
    if not isinstance(table, dict) or not table or not all(callable(grader) for grader in table.values()):
        raise ConfigError(f"{path} has no table GRADERS of functions.", hint='Add GRADERS = {"name": function}.')
    return table


def grade(graders: Mapping[str, Grader], answer: Answer) -> dict[str, float]:
    """Each grader's verdict in [0, 1]; those that do not apply are left out."""
    verdicts: dict[str, float] = {}
    for name, grader in graders.items():
        try:
            verdict = grader(answer)
        except Exception as error:
            raise PracticumError(
                f"Grader {name} raised {type(error).__name__}: {error}.",
                hint="A grader that fails is not a zero: mend it and run again; nothing was decided.",
                code="grader_failed",
            ) from error
        if verdict is not None:
            value = float(verdict)
            if not 0.0 <= value <= 1.0:
                raise PracticumError(f"Grader {name} returned {value}; it must lie in [0, 1].", code="grader_failed")
            verdicts[name] = value
    return verdicts
