"""Kinds that show only by what came later: consumed siblings, used and unused summaries."""

from __future__ import annotations

from conversation import call, said, user

from practicum.episodes.rows import training_rows
from practicum.episodes.settle import settle_kinds
from practicum.types.calls import ModelCall

ASK = [user("a")]
ASKED = [user("a"), said("x"), user("Sum it up.")]
SUMMARY = "The user wants a file called hello.txt that holds the word hi."


def afresh(holding: str, **fields: object) -> ModelCall:
    return call("c3", [user(f"So far: {holding}"), user("Go on.")], said("z"), prompt=(7, 8), ids=(1009,), **fields)


def compacted(kind: str, later: ModelCall) -> list[ModelCall]:
    first = call("c1", ASK, said("x"))
    summary = call("c2", ASKED, said(SUMMARY), prompt=(1, 2, 1000, 1001, 3), ids=(1002,), parent_call_id="c1",
                   kind=kind, text=SUMMARY)  # fmt: skip
    return [first, summary, later]


def test_e4_a_used_summary_trains_and_so_does_the_fresh_context() -> None:
    calls = compacted("compaction", afresh(SUMMARY, fork_reason="history_rewritten"))
    made = training_rows(calls)
    assert [one.kind for one in settle_kinds(calls)] == ["agent", "compaction", "agent"]
    assert {name for row in made.rows for name in row.call_ids} == {"c1", "c2", "c3"} and not made.refusals


def test_e4_a_rejected_summary_does_not_train() -> None:
    old_history = [user("a"), said("x"), user("b")]
    went_on = call("c3", old_history, said("z"), prompt=(1, 2, 1000, 1001, 4), ids=(1009,), parent_call_id="c1")
    made = training_rows(compacted("compaction", went_on))
    assert made.refusals == {"c2": "kind is auxiliary: summary_not_used"}


def test_e4_of_two_summaries_the_one_that_the_history_begins_with_trains() -> None:
    second = "Once more: the user wants hello.txt with the word hi in it."
    calls = compacted("compaction", afresh(second, fork_reason="history_rewritten"))
    again = call("c2b", ASKED, said(second), prompt=(1, 2, 1000, 1001, 5), ids=(1003,), kind="compaction", text=second)
    assert training_rows([*calls[:2], again, calls[2]]).refusals == {"c2": "kind is auxiliary: summary_not_used"}


def test_e4_a_summary_that_the_harness_rewrote_still_explains_the_fresh_history() -> None:
    calls = compacted("compaction", afresh("hello.txt, hi", fork_reason="history_rewritten"))
    assert training_rows(calls).refusals == {}


def test_e4_a_summary_that_ends_its_session_stands() -> None:
    assert [one.kind for one in settle_kinds(compacted("compaction", afresh(""))[:2])] == ["agent", "compaction"]


def test_e4_a_summary_that_no_rule_knows_shows_by_its_use() -> None:
    calls = compacted("agent", afresh(SUMMARY, fork_reason="history_rewritten"))
    assert [(one.kind, one.kind_reason) for one in settle_kinds(calls)][1] == ("compaction", "summary_used")
    unused = compacted("agent", afresh("something else", fork_reason="history_rewritten"))
    assert settle_kinds(unused)[1].kind == "agent"
    other = compacted("agent", afresh(SUMMARY, fork_reason="history_rewritten", agent_id="helper"))
    assert settle_kinds(other)[1].kind == "agent", "another agent's question may quote an answer"


def test_e4_an_answer_that_is_still_a_turn_is_no_summary() -> None:
    history = [user("A"), said(SUMMARY), user("Go on.")]
    later = call("c3", history, said("z"), prompt=(7, 8), ids=(1009,), fork_reason="history_rewritten")
    assert settle_kinds(compacted("agent", later))[1].kind == "agent"


def test_e7_three_answers_to_one_prompt_are_a_retry_samples_or_three_sub_agents() -> None:
    def thrice(**kinds: object) -> list[str]:
        calls = [call(f"c{n}", ASK, said(str(n)), **{key: value[n] for key, value in kinds.items()}) for n in range(3)]  # type: ignore[index]
        follow = call("c3", [*ASK, said("1"), user("b")], said("z"), prompt=(1, 2, 1000, 1001, 3), parent_call_id="c1")
        return [one.kind for one in settle_kinds([*calls, follow])][:3]

    assert thrice(kind=["agent", "retry", "retry"]) == ["retry", "agent", "retry"]
    assert thrice(kind=["agent", "best_of_n", "best_of_n"]) == ["retry", "agent", "best_of_n"]
    assert thrice(kind=["agent"] * 3, agent_id=["a", "b", "c"]) == ["agent"] * 3


def test_w18_a_call_that_failed_stays_what_it_was() -> None:
    calls = [
        call("c1", ASK, status="failed"),
        call("c2", ASK, said("y")),
        call("c3", [*ASK, said("y"), user("b")], said("z"), prompt=(1, 2, 1000, 1001, 3), parent_call_id="c2"),
    ]
    assert [(one.kind, one.kind_reason) for one in settle_kinds(calls)] == [("agent", None)] * 3
