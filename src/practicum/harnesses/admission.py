"""Whether a task can be run here, said when it is submitted and not after three attempts; and harnesses' own end."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from practicum.errors import PracticumError, RequestError
from practicum.harnesses.callbacks import check_callback_url
from practicum.harnesses.grading import GraderFactory
from practicum.harnesses.harness import Harness
from practicum.types.rollouts import Task

_log = logging.getLogger("practicum.harnesses")


def check_task(
    task: Task,
    harnesses: Mapping[str, Harness],
    graders: Mapping[str, GraderFactory],
    callback_hosts: Collection[str],
) -> None:
    """Raises RequestError naming the field of a task that would be refused."""
    if task.harness not in harnesses:
        known = ", ".join(sorted(harnesses)) or "none"
        raise RequestError(f"There is no harness {task.harness!r}.", hint=f"There are: {known}.", param="harness")
    if (check := getattr(harnesses[task.harness], "check", None)) is not None:
        try:
            check(task.options)
        except PracticumError as error:
            raise RequestError(error.message, hint=error.hint, param=error.param or "options") from error
    for name, options in task.graders.items():
        if name not in graders:
            known = ", ".join(sorted(graders)) or "none"
            raise RequestError(f"There is no grader {name!r}.", hint=f"There are: {known}.", param="graders")
        try:
            graders[name](options)
        except PracticumError as error:
            raise RequestError(
                f"`graders.{name}`: {error.message}", hint=error.hint, param=f"graders.{name}"
            ) from error
    if task.callback_url is not None:
        check_callback_url(task.callback_url, callback_hosts)


async def close_all(harnesses: Iterable[Harness]) -> None:
    """Close the harnesses that can be closed. One that fails to is logged and holds up no other."""
    for harness in harnesses:
        if (aclose := getattr(harness, "aclose", None)) is not None:
            try:
                await aclose()
            except Exception:
                _log.exception("the harness %s could not be closed", harness.name)
