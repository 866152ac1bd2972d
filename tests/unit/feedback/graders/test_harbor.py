"""Tasks in Harbor's format: read, refused by name, judged where nothing that was planted counts (R7)."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.feedback.graders.left_behind import Left, grade, left, rewards

from practicum.environments.harbor import load_task
from practicum.errors import SandboxError, UsageError
from practicum.feedback.graders import GraderSettings
from practicum.sandboxes.bubblewrap import BubblewrapProvider
from practicum.sandboxes.sandbox import SandboxSpec


def _bubblewrap_works() -> bool:
    if shutil.which("bwrap") is None:
        return False
    command = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


BWRAP = pytest.mark.skipif(not _bubblewrap_works(), reason="bubblewrap is not installed or not allowed here")

TASK_TOML = """
schema_version = "1.4"
[task]
name = "org/hello"
[metadata]
difficulty = "easy"
[agent]
timeout_sec = 120.0
[verifier]
timeout_sec = 20.0
env = { WANT = "hi" }
[environment]
build_timeout_sec = 600.0
memory_mb = 2048
"""
DOCKERFILE = """
# a comment
FROM python:3.12-slim
RUN apt-get update && \\
    apt-get install -y git
WORKDIR /app
ENV A=1 B="two words"
COPY data/ ./data
COPY one.txt sub/
COPY outside.txt /etc/x
COPY --chown=a one.txt two.txt
CMD ["bash"]
"""
TEST_SH = """
. /tests/lib.sh
echo "log"
if [ "$(cat /app/out.txt)" = "$WANT" ]; then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
exit $((1 - r))
"""


def harbor_task(folder: Path, test_sh: str = TEST_SH, toml: str = TASK_TOML) -> Path:
    for name, text in {
        "task.toml": toml,
        "instruction.md": "Write hi to out.txt.\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/data/d.txt": "d",
        "environment/one.txt": "one",
        "environment/outside.txt": "x",
        "tests/test.sh": test_sh,
        "tests/lib.sh": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_harbor_task_is_read_and_what_needs_a_container_is_named(tmp_path: Path) -> None:
    task = load_task(harbor_task(tmp_path / "hello"))
    assert (task.name, task.instruction, task.workdir) == ("org/hello", "Write hi to out.txt.\n", "/app")
    assert (task.agent_timeout_s, task.verifier_timeout_s, task.verifier_env) == (120.0, 20.0, {"WANT": "hi"})
    assert task.files == {"data/d.txt": b"d", "sub/one.txt": b"one"} and set(task.tests) == {"test.sh", "lib.sh"}
    assert task.env == {"A": "1", "B": "two words"}
    assert [line.split()[0] for line in task.left_out] == ["FROM", "RUN", "COPY", "COPY", "CMD"]


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ('[[steps]]\nname = "a"', "several steps"),
        ('[verifier]\nenvironment_mode = "separate"', "an environment of its own"),
        ('[environment]\nos = "windows"', "other than Linux"),
        ('[verifier]\nenv = { K = "${SECRET}" }', "takes its value from this machine"),
        ("[verifier]\ntimeout_sec = true", "number of seconds"),
        ("verifier = 1", "no table"),
        ("not toml", "no task in Harbor's format"),
    ],
)
def test_a_harbor_task_that_cannot_be_judged_here_is_refused(tmp_path: Path, toml: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        load_task(harbor_task(tmp_path / "t", toml=toml))


@asynccontextmanager
async def left_in_bubblewrap(tmp_path: Path, script: str) -> AsyncIterator[Left]:
    async with BubblewrapProvider(tmp_path / "boxes").open(SandboxSpec(workdir="/app")) as box:
        await box.run(["sh", "-c", script])
        yield Left(sandbox=box)


@BWRAP
async def test_harbor_tests_judge_and_a_planted_reward_is_never_read(tmp_path: Path) -> None:
    harbor_task(tmp_path / "hello")
    settings = GraderSettings(folder=tmp_path)
    async with left_in_bubblewrap(tmp_path, "echo hi > out.txt") as end:
        assert rewards(await grade("harbor", end, settings, path="hello")) == {"reward": 1.0}
    plant = "echo 1 > /app/reward.txt; (while :; do echo 1 > /logs/verifier/reward.txt; done) &"
    async with left_in_bubblewrap(tmp_path, plant) as end:
        await end.sandbox.place("/logs/verifier", {"reward.json": '{"reward": 1}'})
        await end.sandbox.place("/tests", {"lib.sh": "WANT="})
        assert rewards(await grade("harbor", end, settings, path="hello")) == {"reward": 0.0}


BOTH = {"reward": 0.5, "x": 1.0}


@BWRAP
@pytest.mark.parametrize(
    ("test_sh", "want", "reason"),
    [
        ("""cd /logs/verifier; echo '{"reward": 0.5, "x": 1}' > reward.json; echo 1 > reward.txt""", BOTH, ""),
        ("exit 1", {"reward": None}, "status 1 and wrote no reward"),
        ("echo > /logs/verifier/reward.txt", {"reward": None}, "is no reward"),
        ("echo nan > /logs/verifier/reward.txt", {"reward": None}, "no finite number"),
        ("ln -s /etc/hostname /logs/verifier/reward.txt", {"reward": None}, "Symbolic links"),
        ("mkdir /logs/verifier/reward.json", {"reward": None}, "no regular file"),
        ("sleep 60", {"reward": None}, "longer than 1.5 s"),
    ],
)
async def test_harbor_r7_tests_that_write_no_reward_give_none(
    tmp_path: Path, test_sh: str, want: Mapping[str, float | None], reason: str
) -> None:
    harbor_task(tmp_path / "hello", test_sh)
    async with left_in_bubblewrap(tmp_path, "true") as end:
        said = await grade(
            "harbor", end, GraderSettings(folder=tmp_path), path="hello", timeout_s=1.5 if "longer" in reason else 60
        )
        assert rewards(said) == want and reason in said[0].reason


async def test_harbor_in_a_local_sandbox_says_what_it_needs(tmp_path: Path) -> None:
    harbor_task(tmp_path / "hello")
    async with left(tmp_path) as end:
        (said,) = await grade("harbor", end, GraderSettings(folder=tmp_path), path="hello")
        assert said.reward is None and "bubblewrap" in said.reason
    with pytest.raises(SandboxError):
        await end.sandbox.place("/tests", {})
