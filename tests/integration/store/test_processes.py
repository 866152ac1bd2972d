"""Several processes on one file, and processes that are killed: what was acknowledged is there, once."""

import random
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from practicum.store import open_store

SCRIPT = Path(__file__).with_name("store_process.py")


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(path), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[str]:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.split()


def check_integrity(path: Path) -> None:
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    assert connection.pragma("foreign_key_check") is None
    connection.close()


def check_ledger(path: Path, acknowledged: list[str]) -> None:
    """Every acknowledged call is on record, finished, and no call is there twice."""
    check_integrity(path)
    with open_store(path) as store:
        found = store.calls()
        done = {call.call_id for call in found if call.status == "complete"}
        assert len({call.call_id for call in found}) == len(found)
        assert set(acknowledged) <= done
        assert len(found) <= len(acknowledged) + 1
        store.interrupt_open_calls(2.0).result()
        assert all(call.untrainable_reason for call in store.calls(status="interrupted"))
        assert store.calls(status="open") == []


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
@pytest.mark.parametrize("number", [1, 2, 11, 12])
def test_g1_killed_at_a_commit(tmp_path: Path, point: str, number: int) -> None:
    path = tmp_path / "practicum.db"
    process = start(path, "write", "a", "100", point, str(number))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -9
    assert len(output.split()) == (number - 1) // 2
    check_ledger(path, output.split())


def test_g1_killed_at_random_moments_again_and_again(tmp_path: Path) -> None:
    path, acknowledged, chance = tmp_path / "practicum.db", [], random.Random(7)
    for attempt in range(8):
        process = start(path, "write", f"{attempt}-", "100000")
        assert process.stdout is not None
        acknowledged += [process.stdout.readline().strip() for _ in range(chance.randint(1, 80))]
        process.kill()
        acknowledged += process.communicate(timeout=60)[0].split("\n")[:-1]
        check_integrity(path)
    with open_store(path) as store:
        found = store.calls()
    assert len({call.call_id for call in found}) == len(found)
    assert set(acknowledged) <= {call.call_id for call in found if call.status == "complete"}
    assert len(found) <= len(acknowledged) + 8


def test_g14_four_processes_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "practicum.db"
    for process in [start(path, "write" if name in "ab" else "bulk", name, "500") for name in "abcd"]:
        finish(process)
    check_integrity(path)
    with open_store(path) as store:
        assert {call.call_id for call in store.calls()} == {f"{name}{n}" for name in "abcd" for n in range(500)}
        assert store.count_calls() == 2000


def test_g15_one_of_several_concurrent_openers_migrates(tmp_path: Path) -> None:
    path = tmp_path / "practicum.db"
    for process in [start(path, "open") for _ in range(4)]:
        finish(process)
    check_integrity(path)
    with open_store(path) as store:
        assert len(store.runs()) == 4
        assert [policy.status for policy in store.policies()] == ["live"]
