"""Jobs in a shell, done by a policy that knows how, in both forms and in real sandboxes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.integration.environments.environment_world import call, world

from practicum.engines.scripted import Step, Turn
from practicum.environments.shell import LOOKED, TRIED, jobs
from practicum.errors import SandboxError
from practicum.sandboxes.bubblewrap import BubblewrapProvider
from practicum.store import open_store
from practicum.types.rollouts import Task


def asked(turn: Turn) -> str:
    """The job, which is the last thing of the user's that ends like a sentence."""
    return next(text for role, text in reversed(turn.messages) if role == "user" and re.search(r"[a-z]\.$", text))


def command(turn: Turn) -> str:
    """The right command, from what is asked and what was heard last."""
    ask, heard = asked(turn), turn.messages[-1][1]
    heard = heard.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
    names, looked = re.findall(r"[a-z]+\.txt", ask), heard != ask
    word = re.search(r"the word (\w+)", ask)
    if ask.startswith("Write") and word:
        return f"echo {word[1]} > {names[0]}"
    if ask.startswith("Find") and word:
        return f"rm {heard}" if looked else f"grep -l {word[1]} *"
    if ask.startswith("Read"):
        act = f"cp {heard} {names[1]}" if "copy" in ask else f"rm {heard}"
        return act if looked else f"cat {names[0]}"
    return {"Copy": "cp", "Rename": "mv", "Delete": "rm"}[ask.split()[0]] + " " + " ".join(names)


async def rewards(home: Path, script: object, tasks: list[Task], provider: object = None) -> list[float | None]:
    with open_store(home / "practicum.db") as store:
        options = {"folders": provider} if provider else {}
        async with world(home, store, script, **options) as made:  # type: ignore[arg-type]
            groups = [await made.service.submit(task) for task in tasks]
            return [one.reward for group in groups for one in await made.service.collect(group)]


async def test_every_kind_is_done_by_commands(tmp_path: Path) -> None:
    done = await rewards(tmp_path, lambda turn: Step(content=command(turn)), jobs("train", 7))
    assert done == [1.0] * 7


async def test_every_kind_is_done_by_tools(tmp_path: Path) -> None:
    def policy(turn: Turn) -> Step:
        steps = 1 + bool(re.match("Find|Read", asked(turn)))
        return call("run", command=command(turn)) if turn.assistant_turns < steps else Step(content="done")

    assert await rewards(tmp_path, policy, jobs("heldout", 7, form="tools", max_tokens=256)) == [1.0] * 7


async def test_jobs_are_done_where_nothing_of_this_machine_can_be_written(tmp_path: Path) -> None:
    provider = BubblewrapProvider()
    try:
        await provider.check()
    except SandboxError as error:
        pytest.skip(str(error))
    done = await rewards(tmp_path, lambda turn: Step(content=command(turn)), jobs("train", 4), provider)
    assert done == [1.0] * 4


@pytest.mark.parametrize(
    ("said", "kind", "reward"),
    [
        ("I cannot do that.\nNo.", "delete", 0.0),
        ("false", "delete", 0.0),
        ("true", "delete", TRIED),
        ("cat *", "find", TRIED),
        ("grep . *", "find", LOOKED),
        ("rm *; exit 0", "follow-delete", TRIED),
    ],
)
async def test_what_is_not_right_is_worth_what_was_done(tmp_path: Path, said: str, kind: str, reward: float) -> None:
    assert await rewards(tmp_path, lambda turn: Step(content=said), jobs("train", 1, kinds=[kind])) == [reward]


async def test_the_tools_for_files_stay_in_the_sandbox(tmp_path: Path) -> None:
    heard: list[str] = []

    def policy(turn: Turn) -> Step:
        heard.append(turn.messages[-1][1])
        script = [
            call("read_file", path="../../secret"),
            call("write_file", path="/etc/practicum-was-here", text="x"),
            call("list_files"),
        ]
        return script[turn.assistant_turns] if turn.assistant_turns < len(script) else Step(content="done")

    task = jobs("train", 1, kinds=["copy"], form="tools", spare_turns=3, max_tokens=256)
    assert await rewards(tmp_path, policy, task) == [TRIED]
    assert "Error" in heard[1] and "Error" in heard[2] and ".txt" in heard[3]
