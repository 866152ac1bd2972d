"""E9: sessions from content. Each mark, and that nothing is taken where two sessions fit."""

from __future__ import annotations

import json
from dataclasses import replace

from practicum.gateway.inference import Inference
from practicum.gateway.sessions import Session
from practicum.types.calls import Asked, CallStatus
from practicum.types.messages import Message, ToolCall

TASK = "Write the greeting file."
NAMED = Session(session_id="s1", source="url")
ONE, TWO = Session(session_id="s1", source="new"), Session(session_id="s2", source="new")


def user(text: str) -> Message:
    return Message(role="user", content=text)


def delegation(number: int, task: str = TASK) -> ToolCall:
    return ToolCall(id=f"call_0000000000_{number}", name="agent", arguments=json.dumps({"jobs": [{"prompt": task}]}))


def earlier(status: CallStatus, session: str = "s1", agent: str | None = None) -> Asked:
    return Asked(session_id=session, agent_id=agent, status=status)


def test_e9_a_prompt_whose_answer_did_not_arrive_is_asked_again() -> None:
    seen = Inference()
    found = seen.find("anna", [user("Go.")], earlier("failed", agent="a"))
    assert found is not None and (found.session_id, found.by, found.agent_id) == ("s1", "undelivered_prompt", "a")


def test_e9_the_same_prompt_alone_joins_nobody() -> None:
    """A group of rollouts of one task under one key: many sessions, however alike they are."""
    for status in ("complete", "open"):
        assert Inference().find("anna", [user("Go.")], earlier(status)) is None  # type: ignore[arg-type]


def test_e9_a_tool_call_id_that_one_session_has_names_it() -> None:
    seen, calls = Inference(), (delegation(0),)
    seen.served("anna", ONE, calls)
    history = [user("Other."), Message(role="assistant", tool_calls=calls), user("b")]
    found = seen.find("anna", history, None)
    assert found is not None and (found.session_id, found.by) == ("s1", "tool_call_id")
    assert seen.find("ben", history, None) is None
    seen.saw("anna", TWO, history, side_call=False)
    assert seen.find("anna", history, None) is None, "two sessions have it now"


def test_e9_short_ids_are_counters_and_name_nothing() -> None:
    seen, calls = Inference(), (ToolCall(id="call_0", name="x", arguments="{}"),)
    seen.served("anna", ONE, calls)
    assert seen.find("anna", [user("Other."), Message(role="assistant", tool_calls=calls)], None) is None


def test_e7_each_sub_agent_takes_one_task() -> None:
    seen = Inference()
    seen.served("anna", ONE, [delegation(0), delegation(1), delegation(2)])
    question = [Message(role="system", content="s"), user(f"Today is Tuesday.\n{TASK}")]
    found = [seen.find("anna", question, None) for _ in range(4)]
    assert [one.agent_id if one else None for one in found] == [
        "call_0000000000_0", "call_0000000000_1", "call_0000000000_2", None,
    ]  # fmt: skip


def test_e9_a_task_that_two_sessions_gave_is_nobodys() -> None:
    seen = Inference()
    seen.served("anna", ONE, [delegation(0)])
    seen.served("anna", TWO, [delegation(1)])
    assert seen.find("anna", [user(TASK)], None) is None
    assert seen.agent("anna", NAMED, [user(TASK)], None).agent_id == "call_0000000000_0"


def test_a_short_argument_is_no_task() -> None:
    seen = Inference()
    seen.served("anna", ONE, [delegation(0, "ls -la")])
    assert seen.find("anna", [user("ls -la")], None) is None


def test_e9_the_question_of_a_side_call_is_the_main_calls() -> None:
    seen = Inference()
    seen.saw("anna", ONE, [user("In /home. "), user("Go.")], side_call=True)
    found = seen.find("anna", [user("In /home. Go.")], None)
    assert found is not None and (found.session_id, found.by, found.agent_id) == ("s1", "side_call_question", None)
    assert seen.find("anna", [user("In /home. Go.")], None) is None, "once"


def test_e7_in_a_named_session_repeats_of_a_task_are_the_same_agents() -> None:
    seen = Inference()
    seen.served("anna", NAMED, [delegation(0)])
    first = seen.agent("anna", NAMED, [user(TASK)], None)
    assert first == replace(NAMED, agent_id="call_0000000000_0")
    failed = earlier("failed", agent=first.agent_id)
    assert seen.agent("anna", NAMED, [user(TASK)], failed).agent_id == first.agent_id
    assert seen.agent("anna", NAMED, [user(TASK)], earlier("complete", agent="x")).agent_id == "x"


def test_arguments_that_are_no_json_and_answers_without_calls_are_no_error() -> None:
    seen = Inference()
    seen.served("anna", ONE, [ToolCall(id="", name="x", arguments="{broken"), ToolCall(id="", name="x", arguments="")])
    assert seen.find("anna", [user("x")], None) is None and seen.find("anna", [], None) is None
