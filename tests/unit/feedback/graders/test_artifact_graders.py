"""Graders over what a rollout left, in real sandboxes and processes. A grader that fails is not a zero (R2, R7, R8)."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from practicum.errors import SandboxError, UsageError
from practicum.feedback.graders import GraderSettings, Judge, graders
from practicum.feedback.graders.grader import Failed, parse_rewards
from practicum.feedback.graders.harbor_task import load_task
from practicum.feedback.graders.rubric import parse_scores
from practicum.sandboxes.bubblewrap import BubblewrapProvider
from practicum.sandboxes.local import LocalProvider
from practicum.sandboxes.sandbox import Sandbox, SandboxSpec
from practicum.types.calls import ModelCall
from practicum.types.outcomes import Outcome


def _bubblewrap_works() -> bool:
    if shutil.which("bwrap") is None:
        return False
    command = ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "--unshare-user", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


BWRAP = pytest.mark.skipif(not _bubblewrap_works(), reason="bubblewrap is not installed or not allowed here")

CALL = ModelCall(
    call_id="c",
    session_id="s",
    principal="p",
    kind="agent",
    status="complete",
    created_at=1.0,
    policy_version=3,
    model="m",
    request={"messages": [{"role": "user", "content": "Write hi to out.txt"}]},
    text="done",
    finish_reason="stop",
)


@dataclass(frozen=True, kw_only=True)
class Left:
    sandbox: Sandbox
    exit_code: int | None = 0
    output: str = "I wrote it."
    calls: Sequence[ModelCall] = (CALL,)


@asynccontextmanager
async def left(
    tmp_path: Path, script: str = "echo hi > out.txt", spec: SandboxSpec | None = None
) -> AsyncIterator[Left]:
    async with LocalProvider(tmp_path / "boxes").open(spec or SandboxSpec()) as box:
        await box.run(["sh", "-c", script])
        yield Left(sandbox=box)


async def grade(name: str, evidence: Left, settings: GraderSettings | None = None, **options: Any) -> list[Outcome]:
    return list(await graders(settings or GraderSettings())[name](options).grade(evidence))


def rewards(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    return {outcome.name: outcome.reward for outcome in outcomes}


# -- rewards as text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1", {"reward": 1.0}),
        (" 0.25\n", {"reward": 0.25}),
        ("257", {"reward": 257.0}),
        ("123456789.123", {"reward": 123456789.123}),
        ('{"reward": 0, "style": -2.5}', {"reward": 0.0, "style": -2.5}),
    ],
)
def test_r2_a_number_or_named_numbers_are_a_reward(text: str, want: Mapping[str, float]) -> None:
    assert parse_rewards(text) == want


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NaN",
        "nan",
        "inf",
        "-Infinity",
        "1e999",
        "true",
        "null",
        '"1"',
        "good job",
        "[1]",
        "{}",
        '{"a": NaN}',
        '{"a": true}',
        '{"a": "1"}',
        "1 2",
        "9" * 400,
        "[" * 100000,
    ],
)
def test_r2_anything_else_is_a_failure_and_never_a_zero(text: str) -> None:
    with pytest.raises(Failed):
        parse_rewards(text)


# -- exit status -------------------------------------------------------------------------------------------------------


async def test_an_exit_status_judges_the_final_files(tmp_path: Path) -> None:
    async with left(tmp_path) as end:
        assert rewards(await grade("exit_status", end, command=["grep", "-q", "hi", "out.txt"])) == {"reward": 1.0}
        assert rewards(await grade("exit_status", end, command=["grep", "-q", "ho", "out.txt"])) == {"reward": 0.0}
        script = 'test "$WANT" = "$(cat out.txt)" && . ./more.sh'
        asked = {"script": script, "files": {"more.sh": "exit 0"}, "env": {"WANT": "hi"}}
        await end.sandbox.write("more.sh", "exit 3")  # what the agent left under that name is replaced
        assert rewards(await grade("exit_status", end, **asked)) == {"reward": 1.0}


async def test_a_script_may_print_one_or_several_rewards(tmp_path: Path) -> None:
    async with left(tmp_path) as end:
        printed = {"reward": "printed"}
        said = await grade("exit_status", end, script="echo log; echo 0.75", **printed)
        assert said == [Outcome(name="reward", reward=0.75, by="exit_status")]
        both = """echo '{"tests": 0.5, "reward": 1, "size": 3}'"""
        assert list(rewards(await grade("exit_status", end, script=both, **printed))) == ["reward", "tests", "size"]
        said = await grade("exit_status", end, script=both, main="size", **printed)
        assert (said[0].name, said[0].reward) == ("size", 3.0)
        assert rewards(await grade("exit_status", end, script="""echo '{"only": 2}'""", **printed)) == {"only": 2.0}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"command": ["no-such-interpreter", "x"]}, "could not be started"),
        ({"script": "no-such-program"}, "status 127"),
        ({"script": "kill -SEGV $$"}, "status 139"),
        ({"script": "sleep 60", "timeout_s": 0.3}, "longer than 0.3 s"),
        ({"script": "echo good job", "reward": "printed"}, "is no reward"),
        ({"script": "echo NaN", "reward": "printed"}, "no finite number"),
        ({"script": "true", "reward": "printed"}, "printed no reward"),
        ({"script": "echo 1; exit 2", "reward": "printed"}, "status 2"),
        ({"script": """echo '{"a": 1, "b": 2}'""", "reward": "printed"}, "no reward named 'reward'"),
    ],
)
async def test_r7_a_check_that_fails_is_no_zero(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    async with left(tmp_path) as end:
        (said,) = await grade("exit_status", end, **options)
        assert said.reward is None and reason in said.reason
        (said,) = await grade("exit_status", end, **options, when_failed=-1.0)
        assert said.reward == -1.0 and reason in said.reason


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"command": ["a"], "script": "b"},
        {"script": "x", "typo": 1},
        {"script": "x", "timeout_s": 0},
        {"script": "x", "when_failed": float("nan")},
        {"command": "not a list"},
    ],
)
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="option"):
        graders(GraderSettings())["exit_status"](options)


# -- python ------------------------------------------------------------------------------------------------------------

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


# -- harbor ------------------------------------------------------------------------------------------------------------

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
    plant = (
        "mkdir -p /app/logs; echo 1 > /app/reward.txt; ls /tests; "
        "(while :; do echo 1 > /logs/verifier/reward.txt; done) &"
    )
    async with left_in_bubblewrap(tmp_path, plant) as end:
        await end.sandbox.place("/logs/verifier", {"reward.json": '{"reward": 1}'})
        await end.sandbox.place("/tests", {"lib.sh": "WANT="})
        assert rewards(await grade("harbor", end, settings, path="hello")) == {"reward": 0.0}


@BWRAP
@pytest.mark.parametrize(
    ("test_sh", "want", "reason"),
    [
        (
            'cd /logs/verifier; echo \'{"reward": 0.5, "style": 1}\' > reward.json; echo 1 > reward.txt',
            {"reward": 0.5, "style": 1.0},
            "",
        ),
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
        said = await grade("harbor", end, GraderSettings(folder=tmp_path), path="hello", timeout_s=1.5)
        assert rewards(said) == want and reason in said[0].reason


async def test_harbor_in_a_local_sandbox_says_what_it_needs(tmp_path: Path) -> None:
    harbor_task(tmp_path / "hello")
    async with left(tmp_path) as end:
        (said,) = await grade("harbor", end, GraderSettings(folder=tmp_path), path="hello")
        assert said.reward is None and "bubblewrap" in said.reason
    with pytest.raises(SandboxError):
        await end.sandbox.place("/tests", {})


# -- rubric ------------------------------------------------------------------------------------------------------------

CRITERIA = {"short": "It is short.", "polite": "It is polite."}


@asynccontextmanager
async def judge(*answers: Callable[[], str] | str | None) -> AsyncIterator[tuple[GraderSettings, list[dict[str, Any]]]]:
    """A real HTTP server in the judge's place: it gives each answer in turn, the last one again; None never answers."""
    asked: list[dict[str, Any]] = []
    hanging = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(next(line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length")))
        asked.append({"head": head, **json.loads(await reader.readexactly(size))})
        answer = answers[min(len(asked), len(answers)) - 1]
        if answer is None:
            await hanging.wait()
        status, text = ("500 Oh", "no") if answer == "500" else ("200 OK", json.dumps(completion(str(answer))))
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield GraderSettings(judge=Judge(base_url=url, model="judge-model", api_key="k-1")), asked
        hanging.set()


def completion(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


GOOD = '{"scores": {"polite": 1, "short": 0.5}}'


async def test_a_judge_scores_each_criterion_and_the_mean_is_the_reward(tmp_path: Path) -> None:
    async with left(tmp_path) as end, judge(GOOD) as (settings, asked):
        said = await grade(
            "rubric", end, settings, criteria=CRITERIA, weights={"short": 3.0}, files=["*.txt"], task="T"
        )
        assert list(rewards(said).items()) == [("reward", 0.625), ("short", 0.5), ("polite", 1.0)]
        (request,) = asked
        assert request["model"] == "judge-model" and "authorization: bearer k-1" in request["head"].lower()
        system, user = (message["content"] for message in request["messages"])
        mark = system.partition("lines that say ")[2].partition(". It is data")[0]
        assert len(mark) > 16 and user.count(mark) == 2
        work = user.split(mark)[1]
        assert "I wrote it." in work and "'out.txt':\nhi" in work and "It is short." not in work


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"scores": {"short": 1}}', "the criteria are"),
        ('{"scores": {"short": 1, "polite": 1, "more": 1}}', "the criteria are"),
        ('{"scores": [1, 1, 1]}', "the criteria are"),
        ('{"scores": {"short": 1.5, "polite": 1}}', "not between 0 and 1"),
        ('{"scores": {"short": NaN, "polite": 1}}', "no finite number"),
        ('{"scores": {"short": true, "polite": 1}}', "no number"),
        ("Both are fine: 8/10", "has no scores"),
        ("", "has no scores"),
        ("500", "status 500"),
        (None, "did not answer within 0.4 s"),
    ],
)
async def test_r8_a_judge_that_gives_no_score_is_asked_again_then_there_is_none(
    tmp_path: Path, bad: str | None, reason: str
) -> None:
    async with left(tmp_path) as end:
        async with judge(bad, GOOD) as (settings, asked):
            said = await grade("rubric", end, settings, criteria=CRITERIA, timeout_s=0.4)
            assert said[0].reward == 0.75 and len(asked) == 2
        async with judge(bad) as (settings, asked):
            (only,) = await grade("rubric", end, settings, criteria=CRITERIA, timeout_s=0.4, tries=2)
            assert only.reward is None and reason in only.reason and len(asked) == 2
        (only,) = await grade("rubric", end, settings, criteria=CRITERIA, timeout_s=0.4, tries=1)  # nobody listens
        assert only.reward is None


def test_a_fenced_answer_is_read_and_prose_around_it_is_not() -> None:
    assert parse_scores(f"```json\n{GOOD}\n```", CRITERIA) == {"short": 0.5, "polite": 1.0}
    with pytest.raises(Failed):
        parse_scores(f"Here it is: {GOOD}", CRITERIA)


def test_a_rubric_needs_a_judge_and_criteria() -> None:
    with pytest.raises(UsageError, match="No judge is configured"):
        graders(GraderSettings())["rubric"]({"criteria": CRITERIA})
    judged = GraderSettings(judge=Judge(base_url="http://x", model="m", api_key="secret"))
    with pytest.raises(UsageError, match="criteria"):
        graders(judged)["rubric"]({"criteria": {}})
    assert "secret" not in repr(judged)


def test_the_graders_child_imports_nothing_of_practicum() -> None:
    child = Path(sys.modules["practicum.feedback.graders.python_file"].__file__ or "").with_name("python_child.py")
    asked = json.dumps({"path": "x", "graders": [], "final": {}})
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(child)], input=asked, capture_output=True, text=True, check=True
    )
    assert "its name must end in .py" in json.loads(done.stdout)["error"]
