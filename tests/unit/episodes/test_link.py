"""Parents, forks with their reasons, and the kinds of repeated requests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from conversation import call, said, user

from practicum.episodes.link import FORK_MEANING, Earlier, ForkReason, call_kind, find_parent, link, raw_link
from practicum.episodes.matching import prefix_hashes
from practicum.types.calls import CallKind, CallStatus, ModelCall
from practicum.types.messages import Message, ToolSpec

SYSTEM = Message(role="system", content="Be brief.")
BASH = ToolSpec(name="bash", parameters={})
OPENING = [SYSTEM, user("a")]
FIRST = call("c1", OPENING, said("b"), tools=(BASH,))
SECOND_MESSAGES = [*OPENING, said("b"), user("c")]
SECOND = call("c2", SECOND_MESSAGES, said("d"), tools=(BASH,), parent_call_id="c1")
EARLIER = Earlier(call=SECOND, messages=tuple(SECOND_MESSAGES), tools=(BASH,))


def served(*calls: ModelCall) -> object:
    return lambda history: [one for one in reversed(calls) if one.history_hash == history]


def parent_of(messages: Sequence[Message], *calls: ModelCall, session: str | None = None) -> str | None:
    found = find_parent(messages, (BASH,), served(*calls), session_id=session)  # type: ignore[arg-type]
    return found.call.call_id if found else None


def reason(messages: Sequence[Message], tools: tuple[ToolSpec, ...] = (BASH,)) -> ForkReason | None:
    found = find_parent(messages, tools, served(FIRST, SECOND))  # type: ignore[arg-type]
    return link(messages, tools, found, EARLIER).fork_reason


def test_the_longest_served_prefix_is_the_parent() -> None:
    messages = [*SECOND_MESSAGES, said("d"), user("e")]
    assert parent_of(messages, FIRST, SECOND) == "c2"
    assert parent_of(messages, FIRST) == "c1"
    assert reason(messages) is None


def test_the_rest_is_what_follows_the_answer() -> None:
    found = find_parent([*OPENING, said("b"), user("x"), user("y")], (BASH,), served(FIRST))  # type: ignore[arg-type]
    assert found is not None and found.rest == (user("x"), user("y"))


@pytest.mark.parametrize("status", ["open", "aborted", "failed", "interrupted"])
def test_an_answer_that_was_not_delivered_whole_is_no_parent(status: CallStatus) -> None:
    partial = call("c1", OPENING, said("b"), tools=(BASH,), status=status)
    assert parent_of([*OPENING, said("b"), user("c")], partial) is None


def test_the_sessions_own_call_comes_before_a_newer_one_of_another_session() -> None:
    mine = call("mine", OPENING, said("b"), tools=(BASH,), session_id="s1")
    other = call("other", OPENING, said("b"), tools=(BASH,), session_id="s2")
    messages = [*OPENING, said("b"), user("c")]
    assert parent_of(messages, mine, other, session="s1") == "mine"
    assert parent_of(messages, mine, other) == "other"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([Message(role="system", content="Other."), *SECOND_MESSAGES[1:], said("d"), user("e")], "system_changed"),
        ([*SECOND_MESSAGES, said("D"), user("e")], "assistant_rewritten"),
        ([*OPENING, said("B"), user("c"), said("d"), user("e")], "assistant_rewritten"),
        ([SYSTEM, user("A"), said("b"), user("c")], "history_rewritten"),
        ([*OPENING, user("more"), said("x"), user("c")], "assistant_rewritten"),
        ([SYSTEM], "new_conversation"),
        ([*OPENING], "history_shortened"),
        ([SYSTEM, user("another question")], "new_conversation"),
        ([*SECOND_MESSAGES, user("again")], None),
    ],
)
def test_forks_have_the_reason(messages: list[Message], expected: ForkReason | None) -> None:
    assert reason(messages) == expected


def test_other_tools_fork() -> None:
    assert (
        reason([*SECOND_MESSAGES, said("d"), user("e")], (BASH, ToolSpec(name="sh", parameters={}))) == "tools_changed"
    )


def test_other_options_of_the_template_fork() -> None:
    messages = [*SECOND_MESSAGES, said("d"), user("e")]
    joined = link(messages, (BASH,), None, EARLIER, options={"enable_thinking": False})
    assert joined.fork_reason == "options_changed"
    assert joined.prompt_hash == prefix_hashes(messages, (BASH,), {"enable_thinking": False})[-1]


def test_w9_a_call_that_is_not_accepted_leaves_an_earlier_one_and_the_reason() -> None:
    messages = [*SECOND_MESSAGES, said("d"), user("e")]
    found = find_parent(messages, (BASH,), served(FIRST, SECOND), accept=lambda call, prefix: len(prefix) < 5)  # type: ignore[arg-type]
    assert found is not None and found.call.call_id == "c1"
    joined = link(messages, (BASH,), found, EARLIER, changed="reasoning_dropped")
    assert (joined.parent, joined.fork_reason) == (found, "reasoning_dropped")


def test_a_changed_own_message_forks() -> None:
    earlier = Earlier(call=call("x", [user("a"), user("b")]), messages=(user("a"), user("b")), tools=())
    assert link([user("a"), user("B")], (), None, earlier).fork_reason == "history_rewritten"


def test_an_answer_that_broke_off_forks_what_goes_on_from_it() -> None:
    broken = call("x", [user("a")], status="aborted")
    earlier = Earlier(call=broken, messages=(user("a"),), tools=())
    assert link([user("a"), said("half an ans"), user("b")], (), None, earlier).fork_reason == "parent_incomplete"


def test_a_raw_prompt_joins_nothing_and_its_hash_is_no_conversations() -> None:
    joined = raw_link([1, 2])
    assert (joined.parent, joined.fork_reason) == (None, "raw_prompt")
    assert joined.prompt_hash == raw_link((1, 2)).prompt_hash != raw_link([1, 2, 3]).prompt_hash
    assert joined.prompt_hash not in prefix_hashes([user("a")], ())


def test_every_reason_is_explained() -> None:
    assert set(FORK_MEANING) == set(ForkReason.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("status", "kind"),
    [("open", "best_of_n"), ("complete", "retry"), ("aborted", "agent"), ("failed", "agent"), ("interrupted", "agent")],
)
def test_e7_the_kind_of_a_repeated_request_depends_on_the_earlier_answer(status: CallStatus, kind: CallKind) -> None:
    earlier = call("x", [user("a")], status=status)
    assert call_kind(earlier, earlier.prompt_hash)[0] == kind
    assert call_kind(earlier, "another prompt") == call_kind(None, "p") == ("agent", None)


def test_a_repeated_prompt_forks_for_the_reason_of_the_first_time() -> None:
    first = call("x", [user("a")], fork_reason="system_changed")
    again = link([user("a")], (), None, Earlier(call=first, messages=(user("a"),), tools=()))
    assert again.fork_reason == "system_changed"


def test_an_answer_that_is_still_there_behind_another_beginning_is_a_rewritten_history() -> None:
    before = (user("In /home/a: go."), said("b"), user("c"))
    earlier = Earlier(call=call("x", list(before)), messages=before, tools=())
    messages = [user("In /home/b: go."), said("b"), user("c"), said("d"), user("e")]
    assert link(messages, (), None, earlier).fork_reason == "history_rewritten"
