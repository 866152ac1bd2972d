"""`kill -9` of a rollout service at several points: the next one goes on, and each rollout ends once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.harnesses.rollout_world import World, task

from practicum.store import open_store

ROOT = Path(__file__).parents[3]
KILLS = [
    ("attempt", 2, "after_commit"),
    ("stage", 2, "before_commit"),
    ("running", 3, "after_commit"),
    ("grading", 1, "after_commit"),
    ("ended", 1, "before_commit"),
    ("ended", 1, "after_commit"),
]
NEVER = ("never", 1, "before_commit")


def serve(home: Path, kind: str, times: int, point: str) -> int:
    command = [sys.executable, "-m", "tests.integration.harnesses.rollout_world", str(home), kind, str(times), point]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=120).returncode


async def test_each_rollout_ends_once_whenever_the_service_is_killed(tmp_path: Path) -> None:
    with open_store(tmp_path / "practicum.db") as store:
        world = World(tmp_path, store)
        group_id = await world.service.submit(task(num_samples=6, options={"after_s": 0.05}))
    for kill in KILLS:
        assert serve(tmp_path, *kill) == -signal.SIGKILL
    assert serve(tmp_path, *NEVER) == 0

    with open_store(tmp_path / "practicum.db") as store:
        group = store.get_group(group_id)
        assert [rollout.cause for rollout in group.rollouts] == ["finished"] * 6
        assert [rollout.reward for rollout in group.rollouts] == [1.0] * 6
        lost = [attempt for rollout in group.rollouts for attempt in rollout.attempts]
        assert len(lost) >= 3 and {attempt.cause for attempt in lost} == {"interrupted"}
        for rollout in group.rollouts:
            kinds = [event.kind for event in store.rollout_events(rollout.rollout_id)]
            assert kinds.count("ended") == 1 and kinds[-1] == "ended"
            assert rollout.attempt == len(rollout.attempts) + 1
            calls = store.calls(rollout.session_id)
            assert [(call.status, call.principal) for call in calls] == [("complete", rollout.session_id)]
        assert all(call.status != "open" for call in store.calls())
        assert all(key.revoked_at is not None for key in store.keys())  # noqa: SIM118
        assert world.folders.left() == []
