"""A team's own functions, in a real process that can be killed (L16). One that fails is not a zero (R7)."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.feedback.graders.left_behind import grade, left, rewards

from practicum.errors import UsageError
from practicum.feedback.graders import GraderSettings, graders

TEAM = """
import os, sys, time
print("0.9")  # not a verdict

def wrote(end):
    print("1.0")
    return end.files.get("out.txt") == "hi\\n"

def parts(end):
    return {"exit": end.exit_code == 0, "calls": len(end.calls), "version": end.calls[0]["policy_version"]}

def as_held_out(end):
    return (end.text, end.question, end.finish_reason) == ("I wrote it.", "Write hi to out.txt", "stop")

def seen(end):
    return len(end.files)

GRADERS = {
    "wrote": wrote, "parts": parts, "as_held_out": as_held_out, "seen": seen, "na": lambda end: None,
    "raises": lambda end: 1 / 0, "nan": lambda end: float("nan"), "text": lambda end: "good job",
    "exits": lambda end: sys.exit(0), "dies": lambda end: os._exit(0), "hangs": lambda end: time.sleep(600),
    "spins": lambda end: [None for _ in iter(int, 1)], "empty": lambda end: {},
    "floods": lambda end: [print("x" * 10000) for _ in range(3000)] and 1,
    "eats": lambda end: len(bytearray(10**9)),
}
"""


@pytest.fixture
def team(tmp_path: Path) -> GraderSettings:
    folder = tmp_path / "team"
    folder.mkdir()
    (folder / "mine.py").write_text(TEAM)
    (folder / "broken.py").write_text("raise RuntimeError('at import')")
    (folder / "bare.py").write_text("x = 1")
    return GraderSettings(folder=folder)


async def test_a_teams_functions_judge_files_answer_and_calls(tmp_path: Path, team: GraderSettings) -> None:
    async with left(tmp_path, "echo hi > out.txt; ln -s /etc/passwd p; mkfifo f; head -c 3000 /dev/zero > z") as end:
        names = ["wrote", "parts", "as_held_out", "na", "seen"]
        said = await grade("python", end, team, path="mine.py", graders=names)
        want = {
            "wrote": 1.0,
            "parts/exit": 1.0,
            "parts/calls": 1.0,
            "parts/version": 3.0,
            "as_held_out": 1.0,
            "seen": 2.0,
        }
        assert rewards(said) == want and said[0].name == "wrote"
        said = await grade("python", end, team, path="mine.py", graders=["seen"], files=["*.txt"])
        assert rewards(said) == {"seen": 1.0}
        assert rewards(await grade("python", end, team, path="mine.py", graders=["floods"])) == {"floods": 1.0}


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["raises"], "ZeroDivisionError"),
        (["nan"], "no finite number"),
        (["text"], "no number"),
        (["exits"], "SystemExit"),
        (["dies"], "said nothing"),
        (["empty"], "empty dictionary"),
        (["na"], "none of its functions applies"),
        (["unknown"], "GRADERS has no unknown"),
    ],
)
async def test_r7_a_function_that_fails_is_no_zero(
    tmp_path: Path, team: GraderSettings, names: list[str], reason: str
) -> None:
    async with left(tmp_path) as end:
        (said,) = await grade("python", end, team, path="mine.py", graders=names)
        assert said.reward is None and reason in said.reason
        said_with = await grade("python", end, team, path="mine.py", graders=["wrote", *names])
        assert said_with[0].reward == (None if names in (["dies"], ["unknown"]) else 1.0)


@pytest.mark.parametrize("name", ["hangs", "spins"])
async def test_l16_a_function_that_hangs_is_killed(tmp_path: Path, team: GraderSettings, name: str) -> None:
    async with left(tmp_path) as end:
        begun = time.monotonic()
        (said,) = await grade("python", end, team, path="mine.py", graders=[name], timeout_s=0.7)
        assert said.reward is None and "longer than 0.7 s" in said.reason
        assert time.monotonic() - begun < 6


async def test_files_of_graders_fail_by_name_and_stay_in_their_folder(tmp_path: Path, team: GraderSettings) -> None:
    async with left(tmp_path) as end:
        for path, reason in (("broken.py", "RuntimeError: at import"), ("bare.py", "no table of functions")):
            (said,) = await grade("python", end, team, path=path)
            assert said.reward is None and reason in said.reason
        eats = await grade("python", end, team, path="mine.py", graders=["eats"], memory_bytes=300_000_000)
        assert eats[0].reward is None and "MemoryError" in eats[0].reason
    for path in ("../mine.py", "/etc/passwd", "none.py", ""):
        with pytest.raises(UsageError, match="folder of graders"):
            graders(team)["python"]({"path": path})
    with pytest.raises(UsageError, match="No folder of graders"):
        graders(GraderSettings())["python"]({"path": "mine.py"})


def test_the_graders_child_imports_nothing_of_practicum() -> None:
    child = Path(sys.modules["practicum.feedback.graders.python_file"].__file__ or "").with_name("python_child.py")
    asked = json.dumps({"path": "x", "graders": [], "final": {}})
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(child)], input=asked, capture_output=True, text=True, check=True
    )
    assert "its name must end in .py" in json.loads(done.stdout)["error"]
