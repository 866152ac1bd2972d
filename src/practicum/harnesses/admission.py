"""What a task is refused for before it is queued: what can be known of its failure without running it; and how
harnesses are closed at the end.

A group of a thousand rollouts that all fail for one misspelt option costs an hour and says so a thousand times. So
everything that a task names is looked up here: harness, options, program, model, files, graders, callback. It must not
know the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from practicum.errors import PracticumError, RequestError
from practicum.harnesses.attempt import Means
from practicum.harnesses.callbacks import check_callback_url
from practicum.harnesses.harness import ChecksJobs, Endpoint, Harness, HarnessJob
from practicum.sandboxes.contained import inner_parts
from practicum.sandboxes.sandbox import LooksAhead
from practicum.types.rollouts import Task

_log = logging.getLogger("practicum.harnesses")


def check_task(
    task: Task,
    means: Means,
    *,
    check_model: Callable[[str], None] | None = None,
    callback_hosts: Collection[str] = (),
) -> None:
    """Raises RequestError naming the field of a task that would be refused, or would fail each time.

    Args:
        task: what is asked.
        means: the harnesses, graders and sandboxes that there are.
        check_model: raises for the name of a model that the gateway would refuse.
        callback_hosts: hosts beside this machine that callbacks may go to.
    """
    if task.harness not in means.harnesses:
        known = ", ".join(sorted(means.harnesses)) or "none"
        raise RequestError(f"There is no harness {task.harness!r}.", hint=f"There are: {known}.", param="harness")
    if task.model is not None and check_model is not None:
        with _about("model"):
            check_model(task.model)
    _check_files(task)
    if isinstance(means.sandboxes, LooksAhead):
        with _about("workdir"):
            means.sandboxes.check_workdir(task.workdir)
    _check_options(task, means)
    for name, options in task.graders.items():
        if name not in means.graders:
            known = ", ".join(sorted(means.graders)) or "none"
            raise RequestError(f"There is no grader {name!r}.", hint=f"There are: {known}.", param="graders")
        with _about(f"graders.{name}"):
            means.graders[name](options)
    if task.callback_url is not None:
        check_callback_url(task.callback_url, callback_hosts)


def _check_options(task: Task, means: Means) -> None:
    harness = means.harnesses[task.harness]
    if not isinstance(harness, ChecksJobs):
        return
    job = HarnessJob(
        rollout_id="",
        instruction=task.instructions[0],
        endpoint=Endpoint(base_url="http://127.0.0.1", api_key="", model=task.model or ""),
        env=task.env,
        options=task.options,
    )
    finds = means.sandboxes.finds if isinstance(means.sandboxes, LooksAhead) else _unknown
    try:
        harness.check(job, finds)
    except PracticumError as error:
        param = "options" if error.param in (None, "options") else f"options.{error.param}"
        raise RequestError(error.message, hint=error.hint, param=param) from error
    except Exception as error:  # an adapter may be the customer's own, and make of options what it likes
        raise RequestError(
            f"The harness {task.harness!r} cannot be run with these options: {type(error).__name__}: {error}.",
            hint="See what options it reads.",
            param="options",
        ) from error


def _check_files(task: Task) -> None:
    """Each path names a file of its own below the working folder, which an absolute one must say where it is."""
    if task.workdir is not None and (not task.workdir.startswith("/") or task.workdir.strip("/") == ""):
        raise RequestError(
            f"`workdir` {task.workdir!r} is no place for a working folder.",
            hint="Give an absolute path such as /app.",
            param="workdir",
        )
    places = set()
    for path in task.files:
        with _about(f"files.{path}"):
            below = f"{(task.workdir or '').rstrip('/')}/"
            places.add(tuple(inner_parts(path.removeprefix(below) if len(below) > 1 else path)))
    for parts in places:
        for length in range(1, len(parts)):
            if parts[:length] in places:
                path = "/".join(parts[:length])
                raise RequestError(f"`files` has {path!r} as a file and as a folder.", param=f"files.{path}")


def _unknown(program: str) -> bool:
    return True


@contextmanager
def _about(field: str) -> Iterator[None]:
    """Errors of the tree as this field's."""
    try:
        yield
    except PracticumError as error:
        raise RequestError(f"`{field}`: {error.message}", hint=error.hint, param=field) from error


async def close_all(harnesses: Iterable[Harness]) -> None:
    """Close the harnesses that can be closed. One that fails to is logged and holds up no other."""
    for harness in harnesses:
        if (aclose := getattr(harness, "aclose", None)) is not None:
            try:
                await aclose()
            except Exception:
                _log.exception("the harness %s could not be closed", harness.name)
