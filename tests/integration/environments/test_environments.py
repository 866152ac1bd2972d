"""What a team writes, and what comes of it: prompts, tools, the sandbox, rewards, seeds, records."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.environments.environment_world import call, forkers, played, rollout_processes, world
from tests.integration.environments.ledger import Ledger, one_word, says

from practicum.engines.scripted import ScriptedCall, Step, Turn
from practicum.environments import multi_turn, single_turn
from practicum.errors import RequestError
from practicum.store import open_store
from practicum.types.rollouts import Task

ROWS = {"rows": [5, 7]}


async def test_a_single_turn_task_is_asked_and_verified(tmp_path: Path) -> None:
    task = single_turn("t", "Say a word.", one_word, data={"want": "lamp"}, max_tokens=16, num_samples=2)
    ended = await played(tmp_path, [Step(content="lamp")], task)
    assert [one.reward for one in ended] == [1.0, 1.0]
    assert [len(one.rows) for one in ended] == [1, 1]
    assert all(one.excluded is None and one.rollout.output == "lamp" for one in ended)


async def test_tools_are_called_and_the_final_state_is_verified(tmp_path: Path) -> None:
    def policy(turn: Turn) -> Step:
        if turn.assistant_turns < 2:
            return call("row", index=turn.assistant_turns)
        assert turn.messages[-1][1] == "<tool_response>\n7\n</tool_response>"
        return Step(content="It is 12.")

    (one,) = await played(tmp_path, policy, multi_turn("l", Ledger, ROWS, max_tokens=256))
    assert one.rollout.cause == "finished", one.rollout.error
    assert [(o.name, o.reward) for o in one.rollout.outcomes] == [
        ("reward", 1.0), ("seen", 1.0), ("messages", 6.0), ("truncated", 0.0),
    ]  # fmt: skip
    assert one.rollout.outcomes[0].reason == "the episode came to its end"
    # One episode that only grew: three calls, one row.
    assert len(one.rows) == 1 and len(one.rows[0].call_ids) == 3


async def test_what_one_rollout_leaves_in_a_module_another_does_not_find(tmp_path: Path) -> None:
    ended = await played(tmp_path, [Step(content="12")], multi_turn("l", Ledger, ROWS, num_samples=3))
    assert [{o.name: o.reward for o in one.rollout.outcomes}["seen"] for one in ended] == [1.0] * 3


async def test_the_sandbox_is_made_when_a_tool_uses_it_and_not_before(tmp_path: Path) -> None:
    with open_store(tmp_path / "practicum.db") as store:
        async with world(
            tmp_path, store, [call("put", path="a/b.txt", text="x"), call("shell", command="cat c a/b.txt; exit 3")]
        ) as made:
            plain = multi_turn("without", Ledger, ROWS, max_turns=1)
            await made.service.collect(await made.service.submit(plain))
            first = made.folders.most_open
            task = multi_turn("with", Ledger, ROWS, max_turns=3, files={"c": "c"}, max_tokens=256)
            (one,) = await made.service.collect(await made.service.submit(task))
            last = store.calls(one.rollout.session_id)[-1]
        assert made.folders_left() == []
    assert (first, made.folders.most_open) == (1, 1)
    results = [m["content"] for m in last.request["messages"] if m["role"] == "tool"]
    assert results == ['["a/b.txt", "c", "x"]', "3 cx"]


async def test_several_calls_of_one_turn_are_answered_in_order(tmp_path: Path) -> None:
    both = Step(tool_calls=[ScriptedCall(name="row", arguments={"index": n}) for n in (1, 0)])
    with open_store(tmp_path / "practicum.db") as store:
        async with world(tmp_path, store, [both, Step(content="12")]) as made:
            (one,) = await made.service.collect(
                await made.service.submit(multi_turn("l", Ledger, ROWS, max_tokens=256))
            )
            said = store.calls(one.rollout.session_id)[-1].request["messages"]
    assert [(m["role"], m["content"]) for m in said[-2:]] == [("tool", "7"), ("tool", "5")]
    assert [m["tool_call_id"] for m in said[-2:]] == [c["id"] for c in said[-3]["tool_calls"]]


async def test_a_reply_goes_on_and_an_environment_may_end_from_a_tool(tmp_path: Path) -> None:
    script = [Step(content="count"), call("end"), Step(content="never said")]
    (one,) = await played(tmp_path, script, multi_turn("l", Ledger, ROWS, max_tokens=256))
    assert {o.name: o.reward for o in one.rollout.outcomes}["messages"] == 5.0
    assert len(one.rows[0].call_ids) == 2


async def test_an_episode_that_uses_all_its_turns_is_scored_and_says_so(tmp_path: Path) -> None:
    (one,) = await played(tmp_path, lambda turn: Step(content="count"), multi_turn("l", Ledger, ROWS))
    assert (one.reward, one.rollout.outcomes[0].reason) == (0.0, "all 4 turns were used")


async def test_a_truncated_answer_ends_its_turn_like_any_other(tmp_path: Path) -> None:
    task = multi_turn("l", Ledger, ROWS, max_tokens=5)
    (one,) = await played(tmp_path, [Step(content="12, I should think")], task)
    assert one.rollout.output == "12, I"
    assert {o.name: o.reward for o in one.rollout.outcomes} == {
        "reward": 1.0, "seen": 1.0, "messages": 2.0, "truncated": 1.0,
    }  # fmt: skip


async def test_a_full_context_ends_the_episode_scored_and_says_so(tmp_path: Path) -> None:
    def policy(turn: Turn) -> Step:
        return call("shell", command="head -c 3000 /dev/zero | tr '\\0' x")

    task = multi_turn("l", Ledger, ROWS, max_tokens=200, max_turns=20)
    (one,) = await played(tmp_path, policy, task, context_length=8000)
    assert one.reward == 0.0 and "the context was full in turn" in one.rollout.outcomes[0].reason
    assert one.excluded is None and one.rows


async def test_every_call_has_a_seed_of_its_own_and_the_same_one_the_next_time(tmp_path: Path) -> None:
    async def seeds(home: Path, seed: int | None) -> list[int]:
        script = [Step(content="count"), Step(content="12")]
        with open_store(home / "practicum.db") as store:
            async with world(home, store, script) as made:
                task = multi_turn("l", Ledger, ROWS, num_samples=2, seed=seed)
                ended = await made.service.collect(await made.service.submit(task))
                return [c.request["seed"] for one in ended for c in store.calls(one.rollout.session_id)]

    for name in "abcd":
        (tmp_path / name).mkdir()
    first, again = await seeds(tmp_path / "a", 3), await seeds(tmp_path / "b", 3)
    other, unseeded = await seeds(tmp_path / "c", 4), await seeds(tmp_path / "d", None)
    assert first == again and len({*first, *other, *unseeded}) == 12


async def test_the_first_messages_may_be_a_conversation_and_the_task_may_have_a_system_message(tmp_path: Path) -> None:
    heard: list[tuple[tuple[str, str], ...]] = []

    def policy(turn: Turn) -> Step:
        heard.append(turn.messages)
        return Step(content="12")

    first = [{"role": "system", "content": "Old."}, {"role": "user", "content": "Well?"}]
    await played(tmp_path, policy, single_turn("t", first, one_word, system="New.", max_tokens=16))
    assert heard == [(("system", "New."), ("user", "Well?"))]


async def test_a_file_of_the_teams_own_is_loaded_anew_once_it_has_changed(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text("WANT = 'lamp'\n")
    file = tmp_path / "mine.py"
    file.write_text("from words import WANT\n\ndef right(answer, task):\n    return float(answer == WANT)\n")
    with open_store(tmp_path / "practicum.db") as store:
        async with world(tmp_path, store, [Step(content="lamp")]) as made:
            task = single_turn("t", "Say it.", "mine.py:right")
            (first,) = await made.service.collect(await made.service.submit(task))
            file.write_text(file.read_text().replace("answer == WANT", "answer != WANT"))
            (second,) = await made.service.collect(await made.service.submit(task))
            assert len(forkers()) == 1
    assert (first.reward, second.reward) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("/etc/hosts.py:x", "no '/etc/hosts.py' in the folder"),
        ("../gone.py:x", "no '../gone.py'"),
        ("nothing", "names no environment"),
    ],
)
async def test_a_task_that_names_what_it_may_not_is_refused_at_once(
    tmp_path: Path, environment: str, said: str
) -> None:
    with open_store(tmp_path / "practicum.db") as store:
        async with world(tmp_path, store, []) as made:
            with pytest.raises(RequestError, match=said):
                await made.service.submit(single_turn("t", "Say it.", environment))


async def test_two_tasks_of_two_files_run_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def other(answer, task):\n    return 0.5\n")
    tasks: list[Task] = [
        single_turn("a", "Say it.", one_word, num_samples=4),
        single_turn("b", "Say it.", f"{tmp_path}/other.py:other", num_samples=4),
    ]
    with open_store(tmp_path / "practicum.db") as store:
        async with world(tmp_path, store, [Step(content="lamp")]) as made:
            groups = [await made.service.submit(task) for task in tasks]
            ended = [await made.service.collect(group) for group in groups]
            assert rollout_processes() == []
    assert [[one.reward for one in group] for group in ended] == [[1.0] * 4, [0.5] * 4]


async def test_numbers_of_any_size_keep_their_value(tmp_path: Path) -> None:
    task = single_turn("t", "Say it.", says, data={"say": "{'reward': 257, 'large': 1e300, 'small': -3.5}"})
    (one,) = await played(tmp_path, [Step(content="x")], task)
    assert [o.reward for o in one.rollout.outcomes] == [257.0, 1e300, -3.5]
