"""One rollout as it is shown: only what is new in each call, the reward with its reason, and what trains."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from practicum.dashboard.rollout import rollout_json, rollout_view, session_of, show_group, show_rollout
from practicum.errors import NotFound
from practicum.types.calls import ModelCall
from practicum.types.outcomes import Outcome
from practicum.types.rollouts import Attempt, Group, Rollout, Task

ASKED = {"role": "user", "content": "Add up the rows."}
CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "row", "arguments": '{"index": 0}'}}],
}
HEARD = {"role": "tool", "tool_call_id": "c1", "content": "5"}


def call(number: int, messages: list[dict[str, Any]], text: str, **more: Any) -> ModelCall:
    ids = (1,) * (10 * number)
    given = {
        "call_id": f"call_{number}", "session_id": "s", "principal": "s", "kind": "agent", "status": "complete",
        "created_at": 10.0 * number, "finished_at": 10.0 * number + 2, "policy_version": 4, "model": "m",
        "request": {"model": "m", "messages": messages}, "text": text, "finish_reason": "stop", "prompt_ids": ids,
        "completion_ids": (2, 2, 3), "logprobs": (-0.1,) * 3, "sampled_logprobs": (-0.1,) * 3,
        "versions": (4, 4, 4), "episode_id": "e",
    }  # fmt: skip
    return ModelCall(**{**given, **more})


def rollout(**more: Any) -> Rollout:
    given = {
        "rollout_id": "rollout_1", "group_id": "group_1", "task_id": "ledger", "role": "agent", "index": 2,
        "state": "ended", "instructions": ("x",), "attempt": 2, "session_id": "s", "cause": "finished",
        "created_at": 0.0, "outcomes": (Outcome(name="reward", reward=0.5, reason="half right", by="environment"),),
        "attempts": (
            Attempt(number=1, session_id="s0", cause="sandbox_failed", error="the disk was full", ended_at=1.0),
        ),
    }  # fmt: skip
    return Rollout(**{**given, **more})


CALLS = [
    call(1, [ASKED], "<tool_call>raw</tool_call>", finish_reason="tool_calls"),
    call(
        2, [ASKED, CALLED, HEARD], "It is\x1b[31m 12.", parent_call_id="call_1", versions=(4, 5, 5),
        prompt_ids=(1,) * 10 + (2, 2, 3) + (1,) * 7,
    ),
    call(3, [ASKED], "never used", kind="retry", kind_reason="same_prompt_again"),
]  # fmt: skip


def printed(view: Any, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    show_rollout(view, console, **options)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_each_turn_shows_what_was_new_and_what_was_answered() -> None:
    view = rollout_view(rollout(), CALLS)
    assert [[(said.role, said.text) for said in turn.new] for turn in view.turns] == [
        [("user", "Add up the rows.")], [("tool", "5")], [("user", "Add up the rows.")],
    ]  # fmt: skip
    assert [[(said.role, said.text) for said in turn.answer] for turn in view.turns] == [
        [("calls", 'row {"index": 0}')], [("assistant", "It is\x1b[31m 12.")], [("assistant", "never used")],
    ]  # fmt: skip


def test_what_trains_and_what_does_not_is_said_with_the_reason() -> None:
    view = rollout_view(rollout(), CALLS)
    assert [turn.trained_tokens for turn in view.turns] == [3, 3, 0]
    assert (view.rows, view.excluded) == (1, None)
    text = printed(view)
    for words in (
        "ledger #2  rollout_1",
        "finished: the harness came to its end by itself",
        "0.500  by environment  half right",
        "attempt 1  sandbox_failed: the disk was full",
        "3 model calls, 9 sampled, 6 in 1 row",
        "trains     yes",
        "turn 2  20 → 3 tokens; version 4 (1), 5 (2); stop; 2.0 s  ✔ trains",
        "retry; 30 → 3 tokens; version 4; stop; 2.0 s  ✖ trains nothing: kind is retry:\nsame_prompt_again",
    ):
        assert words in text, (words, text)
    assert "\x1b" not in text


def test_a_rollout_that_takes_no_part_says_why() -> None:
    left_out = rollout(cause="harness_failed", error="`reset` of ledger.py failed", outcomes=())
    text = printed(rollout_view(left_out, []))
    assert "no: harness_failed: `reset` of ledger.py failed" in text
    assert "0 model calls, 0 sampled" in text


def test_long_texts_are_cut_unless_all_is_wanted() -> None:
    view = rollout_view(rollout(), [call(1, [ASKED], "line\n" * 40)])
    assert printed(view).count("line") == 12 and "characters more; --full shows all" in printed(view)
    assert printed(view, whole=True).count("line") == 40


def test_a_request_that_cannot_be_read_any_more_shows_its_answer() -> None:
    view = rollout_view(rollout(), [call(1, [ASKED], "well", dialect="of old")])
    assert view.turns[0].new == () and view.turns[0].answer[0].text == "well"


def test_json_holds_all_of_it() -> None:
    found = json.loads(rollout_json(rollout_view(rollout(), CALLS)))
    assert found["reward"] == 0.5 and found["turns"][1]["versions"] == {"4": 1, "5": 2}


def test_a_group_has_one_line_for_each_rollout() -> None:
    console = Console(file=io.StringIO(), width=100)
    task = Task(task_id="ledger", instructions=("x",), harness="environment")
    rollouts = (rollout(), rollout(rollout_id="rollout_2", cause=None, state="running", outcomes=(), error=None))
    show_group(Group(group_id="group_1", principal="p", task=task, created_at=0.0, rollouts=rollouts), console)
    text = str(console.file.getvalue())  # type: ignore[attr-defined]
    assert "rollout_1  finished   0.500  half right" in text
    assert "rollout_2  running        –" in text


def test_an_attempt_is_found_by_its_number() -> None:
    assert (session_of(rollout(), None), session_of(rollout(), 1)) == ("s", "s0")
    with pytest.raises(NotFound, match="There are: 1, 2"):
        session_of(rollout(), 3)
