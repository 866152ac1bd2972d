"""Killed between any two steps of registering and promoting, no half-written version is on record or live."""

import subprocess
import sys
from pathlib import Path

from practicum.policies import Registry
from practicum.store import open_store

SCRIPT = Path(__file__).with_name("registry_process.py")


def run(home: Path, number: int) -> str:
    home.mkdir()
    adapter = home / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"weights" * 1000)
    command = [sys.executable, str(SCRIPT), str(home), str(number)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()


def check(home: Path, point: str, promoted: bool) -> None:
    with open_store(home / "practicum.db") as store:
        registry = Registry(store, home / "policies")
        for policy in registry.list():
            registry.verify(policy.version)
        live, decisions = registry.live(), registry.decisions()
        assert live.status == "live"
        assert (live.version, len(decisions)) == ((1, 1) if promoted else (0, 0)), point
        assert [policy.status for policy in registry.list()].count("live") == 1
        again = registry.register_candidate(home / "adapter", live.version)
        registry.verify(again.version)


def test_g11_killed_between_any_two_steps(tmp_path: Path) -> None:
    points: list[str] = []
    while not points or points[-1] != "finished":
        number = len(points) + 1
        home = tmp_path / str(number)
        points.append(run(home, number))
        check(home, points[-1], promoted=points[-1] == "finished" or (points[-1] == "after_commit" and number > 10))
    assert points == [
        "before_commit",
        "after_commit",
        "reserved",
        "file_copied",
        "file_copied",
        "copied",
        "renamed",
        "before_commit",
        "after_commit",
        "registered",
        "before_commit",
        "after_commit",
        "finished",
    ]
