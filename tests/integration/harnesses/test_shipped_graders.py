"""Shipped graders at the end of real rollouts: an agent in bubblewrap with no way out but the gateway, judged there."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.harnesses.rollout_world import World, task

from practicum.errors import RequestError
from practicum.feedback.graders import GraderSettings, graders
from practicum.sandboxes.bubblewrap import BubblewrapProvider
from practicum.store import Store, open_store
from practicum.types.rollouts import Timeouts


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        yield opened


def _bubblewrap_works() -> bool:
    command = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


BWRAP = pytest.mark.skipif(not _bubblewrap_works(), reason="bubblewrap is not installed or not allowed here")


def checks(folder: Path) -> GraderSettings:
    """A folder of graders with a Harbor task and a Python file."""
    for name, text in {
        "lamp/task.toml": "[verifier]\ntimeout_sec = 20\n",
        "lamp/instruction.md": "Say lamp.",
        "lamp/tests/test.sh": "grep -c lamp /app/answer0.txt > /logs/verifier/reward.txt",
        "final.py": "GRADERS = {'calls': lambda end: len(end.calls), 'broken': lambda end: 1 / 0}",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return GraderSettings(folder=folder)


@BWRAP
async def test_an_agent_in_bubblewrap_is_judged_by_a_harbor_task_and_by_functions(tmp_path: Path, store: Store) -> None:
    shipped = graders(checks(tmp_path / "checks"))
    boxes = tmp_path / "boxes"
    async with World(tmp_path, store, graders=shipped, folders=BubblewrapProvider(boxes)) as world:
        asked = {"harbor": {"path": "lamp"}, "python": {"path": "final.py"}, "exit_status": {"script": "exit 1"}}
        group_id = await world.service.submit(task("agent", num_samples=2, workdir="/app", graders=asked))
        results = await world.service.collect(group_id)
    for one in results:
        assert (one.rollout.cause, one.reward, one.excluded) == ("finished", 1.0, None)
        said = [(outcome.by, outcome.name, outcome.reward) for outcome in one.rollout.outcomes]
        assert said == [
            ("harbor", "reward", 1.0),
            ("python", "calls", 1.0),
            ("python", "broken", None),
            ("exit_status", "reward", 0.0),
        ]
        assert "ZeroDivisionError" in one.rollout.outcomes[2].reason
        assert one.sampled_tokens > 0
    assert list(boxes.iterdir()) == []


async def test_r7_a_first_grader_that_fails_leaves_the_rollout_out(tmp_path: Path, store: Store) -> None:
    limits = Timeouts(grade_s=20.0)
    async with World(tmp_path, store, graders=graders(checks(tmp_path / "checks"))) as world:
        asked = {"exit_status": {"script": "no-such-program"}}
        (one,) = await world.service.collect(await world.service.submit(task(graders=asked, timeouts=limits)))
        assert (one.rollout.cause, one.reward) == ("grader_failed", None)
        asked = {"exit_status": {"script": "sleep 60", "timeout_s": 0.2, "when_failed": 0.0}}
        (one,) = await world.service.collect(await world.service.submit(task(graders=asked, timeouts=limits)))
        assert (one.rollout.cause, one.reward) == ("finished", 0.0)
        for name, options in (("exit_status", {}), ("python", {"path": "../x"}), ("rubric", {"criteria": {"a": "b"}})):
            with pytest.raises(RequestError, match=f"graders.{name}"):
                await world.service.submit(task(graders={name: options}))
