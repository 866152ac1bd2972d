"""The internship's gateway and rollout service on a thread: they start, refuse, run, and end without a wait for ever.

Pins: a task that cannot be run is named with its id; what the start raises reaches the caller; a service that dies
while rollouts run ends the wait, with its cause; leaving ends the thread.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from practicum.config import ServerConfig
from practicum.errors import ConfigError, Conflict, EngineError
from practicum.feedback.graders import GraderSettings, graders
from practicum.harnesses.harness import HarnessEnd, HarnessJob, HarnessState
from practicum.harnesses.service import RolloutService
from practicum.live.workshop import Workshop
from practicum.sandboxes.local import LocalProvider
from practicum.sandboxes.sandbox import Sandbox
from practicum.store import open_store
from practicum.types.rollouts import Task


async def app(scope: Any, receive: Any, send: Any) -> None:
    """A gateway that nobody asks anything."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


class Bug(BaseException):
    """Nothing that an adapter may raise."""


class Agent:
    """Ends at once, or takes the service down with it."""

    name = "agent"

    async def submit(self, job: HarnessJob, sandbox: Sandbox) -> str:
        if job.instruction == "Break.":
            raise Bug
        return job.rollout_id

    async def status(self, handle: str) -> HarnessState:
        return "ended"

    async def collect(self, handle: str) -> HarnessEnd:
        return HarnessEnd(exit_code=0, output="done")


@contextmanager
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    with open_store(tmp_path / "practicum.db") as store:

        def service(gateway: str) -> RolloutService:
            return RolloutService(
                store,
                harnesses={"agent": Agent()},
                sandboxes=LocalProvider(tmp_path / "boxes"),
                graders=graders(GraderSettings()),
                gateway=gateway,
            )

        with Workshop(app, ServerConfig(), service) as opened:
            yield opened


def task(**more: Any) -> Task:
    return Task(**{"task_id": "t", "instructions": ("Do it.",), "harness": "agent", **more})


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "workshop"]


def test_tasks_are_run_under_their_keys_and_a_key_gives_the_same_rollouts_again(tmp_path: Path) -> None:
    with workshop(tmp_path) as opened:
        found = opened.run({"one": task(num_samples=2), "two": task(task_id="u")})
        assert [(key, [one.rollout.cause for one in results]) for key, results in found.items()] == [
            ("one", ["no_model_call"] * 2),
            ("two", ["no_model_call"]),
        ]
        again = opened.run({"one": task(num_samples=2)})
        assert [one.rollout.rollout_id for one in again["one"]] == [one.rollout.rollout_id for one in found["one"]]
        with pytest.raises(Conflict, match="was used for another task"):
            opened.run({"one": task(num_samples=3)})
    assert not threads()
    with pytest.raises(EngineError, match="does not run"):
        opened.run({"one": task()})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"harness": "clippy"}, "Task 'bad': There is no harness 'clippy'."),
        ({"graders": {"guess": {}}}, "Task 'bad': There is no grader 'guess'."),
        ({"graders": {"exit_status": {"comand": []}}}, "Task 'bad': `graders.exit_status`"),
        ({"callback_url": "ftp://x"}, "Task 'bad': "),
    ],
)
def test_a_task_that_cannot_be_run_is_named(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with workshop(tmp_path) as opened:
        opened.check([task()])
        with pytest.raises(ConfigError) as wrong:
            opened.check([task(), task(task_id="bad", **more)])
        assert wrong.value.message.startswith(said) and wrong.value.hint


def test_what_the_start_raises_reaches_the_caller(tmp_path: Path) -> None:
    def refuses(gateway: str) -> RolloutService:
        raise ConfigError("There is no sandbox here.")

    with pytest.raises(ConfigError, match="no sandbox"), Workshop(app, ServerConfig(), refuses):
        pass
    with workshop(tmp_path), pytest.raises(Conflict), workshop(tmp_path):
        pass
    assert not threads()


def test_a_service_that_dies_ends_the_wait_with_its_cause(tmp_path: Path) -> None:
    with workshop(tmp_path) as opened:
        with pytest.raises(BaseExceptionGroup) as died:
            opened.run({"one": task(instructions=("Break.",)), "two": task(task_id="u")})
        assert died.value.subgroup(Bug) is not None
        with pytest.raises(BaseExceptionGroup):
            opened.run({"three": task()})
