"""The adapter to the Inspect library, over the library's own local kind. Skipped where it is not installed."""

import asyncio
import importlib.util
import os
from pathlib import Path

import pytest

from practicum.errors import ConfigError, MissingExtra, NotFound, SandboxError, UsageError
from practicum.sandboxes.choose import provider
from practicum.sandboxes.sandbox import Limits, SandboxSpec

INSTALLED = importlib.util.find_spec("inspect_ai") is not None
NEEDED = pytest.mark.skipif(not INSTALLED, reason="inspect-ai is not installed")


@pytest.mark.skipif(INSTALLED, reason="inspect-ai is installed")
def test_without_the_library_the_error_names_the_command() -> None:
    with pytest.raises(MissingExtra, match=r"practicum\[sandboxes-remote\]"):
        provider("inspect:docker")


@pytest.mark.parametrize("name", ["dockr", "", "inspect"])
def test_an_unknown_kind_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="bubblewrap"):
        provider(name)


@NEEDED
def test_a_kind_that_the_library_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        provider("inspect:nosuch")


@NEEDED
async def test_commands_files_and_placed_folders(tmp_path: Path) -> None:
    async with provider("inspect:local").open(SandboxSpec(files={"a/b c": "x", "raw": b"\xff"}, env={"A": "1"})) as box:
        done = await box.run(["sh", "-c", 'pwd; cat; echo "$A$B" >&2; exit 4'], stdin="in", env={"B": "2"})
        assert (done.exit_code, done.stdout, done.stderr) == (4, f"{box.workdir}\nin", "12\n")
        assert await box.list_files() == ["a/b c", "raw"] and await box.read("raw") == "�"
        await box.write("run.sh", "#!/bin/sh\necho ran\n", executable=True)
        assert (await box.run(["./run.sh"])).stdout == "ran\n"
        assert (await box.run(["sleep", "30"], timeout_s=0.5)).timed_out
        with pytest.raises(SandboxError, match="no-such-program could not be started"):
            await box.run(["no-such-program"])
        placed = str(tmp_path / "tests")
        await box.run(["mkdir", "-p", placed])
        await box.run(["touch", f"{placed}/planted"])
        await box.place(placed, {"t/x": "1"})
        assert (await box.run(["find", placed, "-type", "f"])).stdout == f"{placed}/t/x\n"
        assert await box.read(f"{placed}/t/x") == "1"
        for path in ("../x", "/etc/passwd", ""):
            with pytest.raises(UsageError):
                await box.read(path)
        with pytest.raises(NotFound):
            await box.read("none")
        workdir = box.workdir
    assert not os.path.exists(workdir)  # noqa: ASYNC240, PTH110


@NEEDED
async def test_l17_a_cancelled_opening_and_a_failure_inside_remove_what_was_made() -> None:
    box = provider("inspect:local")
    made: list[str] = []

    async def rollout() -> None:
        async with box.open(SandboxSpec()) as inside:
            made.append(inside.workdir)
            await inside.run(["sleep", "30"])

    for seconds in (0, 0.01, 0.03, 0.1, 0.5):
        task = asyncio.create_task(rollout())
        await asyncio.sleep(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert made and not any(os.path.exists(workdir) for workdir in made)  # noqa: ASYNC240, PTH110
    with pytest.raises(SandboxError, match="its own configuration"):
        async with box.open(SandboxSpec(limits=Limits(cpu_s=1))):
            pass
